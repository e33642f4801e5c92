"""Files that this program stores and reads again, with values in them that nobody wrote there: a sentence, or they are
taken for what they say."""

import copy
import json
import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from attacks import is_sentence
from one_row import CHOICE, RATING, row_of

from agentic_iqa_local.batch.rows import check_run
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import CONFIGS
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.detector import load_detector
from agentic_iqa_local.iqa_tools.reliability import load_reliability
from agentic_iqa_local.judgement.fit import read_fit
from agentic_iqa_local.output.gallery.page import write_gallery
from agentic_iqa_local.output.gallery.rows import read_rows
from agentic_iqa_local.studies.datasets import DATASETS
from agentic_iqa_local.studies.report import analyse
from agentic_iqa_local.studies.store import read_run

FORGED = ("null", "[]", "{}", '"x"', "-1", "1e999", "1" + "0" * 400, '"0001-01-01"')
PLACES = 12  # in each file


def places(value, at=()):
    """The way to each value inside of `value`."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        yield (*at, key)
        if isinstance(member, (dict, list)):
            yield from places(member, (*at, key))


def forgeries(whole):
    """JSON texts of `whole`, each with another value at one of a few places."""
    ways = list(places(whole))
    top = [way for way in ways if len(way) == 1]
    others = random.Random(5).sample(ways, min(PLACES, len(ways)))
    for way in (*top, *others):
        forged = copy.deepcopy(whole)
        inner = forged
        for key in way[:-1]:
            inner = inner[key]
        inner[way[-1]] = "FORGED"
        for value in FORGED:
            yield json.dumps(forged).replace('"FORGED"', value)


def row(fields):
    return row_of(**fields).model_dump(mode="json")


def study():
    return {
        "model": {"name": "m", "dtype": "float32", "quantization": "none"},
        "fusion": {"eta": 1.0},
        "tools": {"full_reference": ["VSI"], "no_reference": ["NIQE"]},
        "maps": {"VSI": "tid2013"},
        "dataset": DATASETS["tid2013"].model_dump() | {"images": 2, "missing": [], "left_out": {}},
        "identity": {"reads": {"query": "Rate it."}, "model": "M"},
    }


def gallery(file: Path):
    write_gallery(read_rows(file), file.with_name("page.html"), name="rows", images=None)


def report(file: Path):
    rows = [{"key": "a", "mos": 1.0, "group": None, "split": None, "error": "no picture"}]
    file.with_name("rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    analyse(*read_run(file.parent), draws=2)


def intervals(file: Path):
    found = read_fit(file).intervals
    for part in found.ratings if found else ():
        part.ends(np.array([3.0]), np.array([0.5]), 0.9)


def shipped(name):
    return yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))  # JSON is YAML


KINDS = {
    "row of a rating": ("rows.jsonl", lambda: row(RATING), gallery),
    "row of a choice": ("rows.jsonl", lambda: row(CHOICE), gallery),
    "run of assess": (
        "rows.jsonl.run.json",
        lambda: {"date": "2026-01-01T00:00:00+0000", "identity": {"model": {"a": "b"}}},
        lambda file: check_run(file, {"model": {"a": "b"}}),
    ),
    "run of a study": ("run.json", study, report),
    "fit": ("fit.json", lambda: shipped("intervals.json"), intervals),
    "maps": ("maps.yaml", lambda: {"maps": shipped("tool_maps.yaml")["maps"][:2]}, read_map_file),
}


@pytest.mark.parametrize("kind", KINDS)
def test_forged_values_in_a_stored_file_end_in_a_sentence(kind, tmp_path):
    name, whole, read = KINDS[kind]
    file, told = tmp_path / name, []
    for text in forgeries(whole()):
        file.write_text(text + "\n")
        try:
            read(file)
        except UserError as error:
            told.append(str(error))
    assert told
    assert all(map(is_sentence, told))


@pytest.mark.parametrize("text", ['{"fits": 1}', "{}", "[]", "{", "- 1e999"])
def test_a_damaged_file_of_this_package_is_named(tmp_path, text):
    file = tmp_path / "shipped"
    file.write_text(text)
    for read in (load_detector, load_reliability):
        with pytest.raises(UserError, match=f"{file}: .*; get the checkout"):
            read(file)

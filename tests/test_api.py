"""The Python API as a developer meets it: kinds of pictures, results, lists, life, and silence."""

import json
import math
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, scripted_answers, scripted_services

from agentic_iqa_local import IQA, Assessment, assess
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.output.comparison_report import explain
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import LEVEL_WORDS


@pytest.fixture
def scripted(monkeypatch):
    """An IQA whose model and tools are scripted, and the client."""
    client = ScriptedClient(scripted_answers())
    tools = ScriptedTools({"NIQE": 2.6, "VSI": 4.0, "FSIM": 4.0})
    made = scripted_services(client, tools)
    monkeypatch.setattr("agentic_iqa_local.services.Services", lambda *_: made)
    return IQA(cpu=True), client


@pytest.fixture
def pixels(picture):
    return np.asarray(Image.open(picture))


def test_every_kind_of_picture_gives_the_same_score(photo, services, tmp_path):
    photo.crop((0, 0, 224, 224)).save(photo_path := str(tmp_path / "photo.png"))
    path, image = Path(photo_path), Image.open(photo_path)
    content = path.read_bytes()
    kinds = [photo_path, path, image, np.asarray(image.convert("RGB")), content, path.as_uri()]
    results = [assess(kind, services=services, pipeline="letters") for kind in kinds]
    assert len({result.q for result in results}) == 1
    assert results[0].error is None
    assert [r.image for r in results] == [
        photo_path, photo_path, "<Pillow image 224×224>", "<array 224×224>", f"<{len(content)} bytes>", photo_path,
    ]  # fmt: skip


def test_what_is_no_picture_or_no_choice_is_refused_first(scripted, picture):
    iqa, client = scripted
    for arguments in ((3,), ("a.png", 3), (["a.png", 3],)):
        with pytest.raises(TypeError, match="got int"):
            iqa(*arguments)
    for choices in ("Yes", ["Yes"], [1, 2], {"Yes", "No"}):
        with pytest.raises(ValueError, match="choices: "):
            iqa(picture, choices=choices)
    assert client.opened == []


def test_bytes_and_temporary_folders_land_in_no_message(scripted, caplog):
    row = scripted[0](b"SECRET" * 20)
    assert row.error.startswith("<120 bytes>: expected a PNG")
    assert (
        f"not assessed: {row.error}" in caplog.messages
    )  # a script that looks at no error is warned
    told = row.model_dump_json() + repr(row) + explain(row) + caplog.text
    assert "SECRET" not in told
    assert "agentic_iqa_" not in row.model_dump_json() + repr(row)


def test_references_are_one_for_all_or_one_each(scripted, picture, pixels):
    other = np.roll(pixels, 5, 0)
    assert [row.reference for row in scripted[0]([picture] * 2, [other, None])] == [
        "<array 96×64>",
        None,
    ]
    assert [row.reference for row in scripted[0]([picture] * 2, other)] == ["<array 96×64>"] * 2
    with pytest.raises(ValueError, match="as many as there are pictures, 1, got 2"):
        scripted[0]([picture], [other, other])


def test_a_rating_in_short_and_at_length(scripted, picture):
    row = scripted[0](picture)
    assert row.level in LEVEL_WORDS.values()
    rated = f"{row.letter} {row.level}, q {row.q:.2f}"
    assert repr(row) == str(row) == f"Assessment({picture}: {rated})"
    assert row.to_dict() == json.loads(as_line(row))
    assert f"q {row.q:.2f} of 5" in " ".join(explain(row).split())
    assert {"letter", "level"}.isdisjoint(Assessment.model_fields)


def test_a_choice_and_a_failure_show_as_what_they_are(scripted, picture):
    row = scripted[0](picture, query="Is it <b>sharp</b>?", choices=["<Yes>", "No"])
    assert (row.letter, row.level, row.q) == (row.final_answer, None, None)
    assert repr(row).startswith(
        f"Assessment({picture}: “{row.choices[ord(row.letter) - 65]}” (probability "
    )
    failed = scripted[0]("<script>.png")
    assert (failed.letter, failed.level) == (None, None)
    assert repr(failed).startswith("Assessment(<script>.png: failed: expected an image file")


def test_a_fused_score_stays_when_the_reasoning_fails_three_times(picture):
    letters = dict(zip("ABCDE", map(math.log, (0.05, 0.05, 0.1, 0.7, 0.1)), strict=True))
    client = ScriptedClient(scripted_answers(SummaryReply="no JSON"), letters)
    services = scripted_services(client, ScriptedTools({"NIQE": 2.0}))
    row = assess(picture, services=services)
    assert (row.error, row.level) == (None, "Poor")  # tools and letters both say 2
    assert "Moderate blur: Edges appear soft." in row.quality_reasoning
    assert "the model gave no valid reasoning in three tries" in " ".join(row.warnings)
    assert len(row.failed_tries) == 3


def test_the_model_is_loaded_at_the_first_picture_and_freed(photo_path, monkeypatch):
    made = []
    load = Services.client_of

    def watched(*arguments):
        client = load(*arguments)
        made.append(weakref.ref(client.model))
        return client

    monkeypatch.setattr(Services, "client_of", watched)
    with IQA(cpu=True, pipeline="letters") as iqa:
        assert not made
        assert iqa(photo_path).q == iqa(photo_path).q
        assert len({model() for model in made}) == 1
    assert made[0]() is None
    with pytest.raises(RuntimeError, match="it was closed; make a new one"):
        iqa(photo_path)


def test_importing_loads_neither_torch_nor_pyiqa():
    program = (
        "import sys, agentic_iqa_local as a\nassert set(a.__all__) <= set(dir(a))\na.IQA\n"
        "print(sorted({'torch', 'pyiqa', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT) == "[]\n"

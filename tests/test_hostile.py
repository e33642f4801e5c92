"""Hostile input: images, model output, configurations, manifests, bundles, queries. Each ends in a result or
in the error that its module promises. The long forms, and how far an injection moves a score, are in
scripts/endurance.py.
"""

import json
import math
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import endurance
import numpy as np
import pytest
import yaml
from conftest import ROOT
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

from agentic_iqa_local import assess
from agentic_iqa_local.batch.inputs import ManifestError, read_manifest
from agentic_iqa_local.config import CONFIGS, Settings, load_settings
from agentic_iqa_local.config_sections import ConfigError, RoleSettings
from agentic_iqa_local.images.reading import ImageError, load_image, load_pair
from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.nodes.ask import InvalidAnswer, ask
from agentic_iqa_local.nodes.planner import correct_plan
from agentic_iqa_local.nodes.prompts import (
    ANSWER_PREFIX,
    DEFAULT_QUERY,
    Prompt,
    planner_prompt,
    selection_prompt,
    summarizer_prompt,
)
from agentic_iqa_local.nodes.replies import detection_reply, letter_reply, location_reply, summary_reply
from agentic_iqa_local.offline.manifest import BundleError
from agentic_iqa_local.offline.reading import verify
from agentic_iqa_local.offline.store import store_manifest, unpack
from agentic_iqa_local.offline.writing import Piece, describe, write_bundle
from agentic_iqa_local.output.report import account, summary
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.state import PlannerOutput
from agentic_iqa_local.studies.datasets import DatasetError, load_dataset

PICTURES = endurance.valid_pictures(endurance.small_photo())
ANSWERS = endurance.valid_answers()
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(endurance.STEPS),
        st.floats(0, 1),
        st.sampled_from(endurance.NUMBERS) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def hypothesised(examples: int):
    """The same examples every time, and no time limit for one."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=quiet
    )


# Images


@hypothesised(400)
@given(
    name=st.sampled_from(sorted(PICTURES)),
    steps=STEPS,
    limits=st.just({})
    | st.fixed_dictionaries({"max_pixels": st.integers(1, 10_000), "min_side": st.integers(1, 100)}),
)
def test_a_damaged_picture_is_loaded_within_the_limits_or_refused_in_one_sentence(
    tmp_path, name, steps, limits
):
    (tmp_path / name).write_bytes(endurance.damaged(PICTURES[name], steps))
    assert endurance.examine_picture(tmp_path / name, **limits) in ("loaded", "refused")


@hypothesised(200)
@given(name=st.sampled_from(sorted(PICTURES)), kept=st.integers(0, 60), rest=st.binary(max_size=500))
def test_random_bytes_behind_a_pictures_beginning(tmp_path, name, kept, rest):
    (tmp_path / name).write_bytes(PICTURES[name][:kept] + rest)
    assert endurance.examine_picture(tmp_path / name) in ("loaded", "refused")


@hypothesised(60)
@given(names=st.tuples(*[st.sampled_from(sorted(PICTURES))] * 2), steps=st.just([]) | STEPS)
def test_a_pair_has_one_size_or_is_refused(tmp_path, names, steps):
    (tmp_path / names[0]).write_bytes(PICTURES[names[0]])
    reference = tmp_path / f"reference_{names[1]}"
    reference.write_bytes(endurance.damaged(PICTURES[names[1]], steps))
    try:
        image, loaded = load_pair(tmp_path / names[0], reference)
    except ImageError:
        return
    assert image.pixels.size == loaded.pixels.size


# How each format writes width and height into its header
SIZES = {
    "rgb.png": [lambda w, h: struct.pack(">II", w, h)],
    "rgb.jpg": [lambda w, h: struct.pack(">HH", h, w)],
    "lossy.webp": [lambda w, h: (w - 1).to_bytes(3, "little") + (h - 1).to_bytes(3, "little")],
    "raw.tif": [
        lambda w, h: struct.pack("<HHII", 256, 4, 1, w),
        lambda w, h: struct.pack("<HHII", 257, 4, 1, h),
    ],
    "rgb.bmp": [lambda w, h: struct.pack("<ii", w, h)],
    "rgb.jp2": [lambda w, h: struct.pack(">II", h, w), lambda w, h: struct.pack(">II", w, h)],
    "palette.gif": [lambda w, h: struct.pack("<HH", w, h)],
    "rgb.ppm": [lambda w, h: b"%d %d" % (w, h)],
    "16_bits.pgm": [lambda w, h: b"%d %d" % (w, h)],
    "rgb.avif": [lambda w, h: struct.pack(">II", w, h)],
}


def declared(name: str, side: int) -> bytes:
    """A picture of 96×64 whose header claims to be a square."""
    content = PICTURES[name]
    for written in SIZES[name]:
        assert written(96, 64) in content
        content = content.replace(written(96, 64), written(side, side))
    return endurance.damaged(content, [("checksums", 0, b"")])


def png_with(chunk: bytes, body: bytes) -> bytes:
    """A picture with one more chunk behind its header."""
    content, end = PICTURES["rgb.png"], len(endurance.PNG) + 25
    added = struct.pack(">I", len(body)) + chunk + body + struct.pack(">I", zlib.crc32(chunk + body))
    return content[:end] + added + content[end:]


ZEROS = zlib.compress(bytes(200 << 20))
BOMBS = {
    # libavif itself takes no more than 16,384² pixels for an image
    **{f"declared_{name}": declared(name, 60_000 if name != "rgb.avif" else 12_000) for name in SIZES},
    "profile.png": png_with(b"iCCP", b"bomb\0\0" + ZEROS),
    "text.png": png_with(b"zTXt", b"bomb\0\0" + ZEROS),
    "international_text.png": png_with(b"iTXt", b"bomb\0\1\0\0\0" + ZEROS),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(BOMBS[name])
    with pytest.raises(ImageError) as caught:
        load_image(tmp_path / name)
    expected = "at most 100000000 pixels" if name.startswith("declared") else "decoding failed"
    assert expected in str(caught.value)


def test_bombs_take_no_memory(tmp_path):
    for name, content in (PICTURES | BOMBS).items():
        (tmp_path / name).write_bytes(content)
    code = (
        "import resource, sys\nfrom agentic_iqa_local.images.reading import ImageError, load_image\nused = []\nfor"
        " name in sys.argv[1:]:\n    if name == 'peak':\n       "
        " used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n        continue\n    try:\n      "
        "  load_image(name)\n    except ImageError:\n        pass\nprint(used[1] - used[0])"
    )
    arguments = [
        *(tmp_path / name for name in PICTURES),
        "peak",
        *(tmp_path / name for name in BOMBS),
        "peak",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # 60,000² pixels would be 3.6 GB a channel and an unpacked chunk 200 MB; the largest of these files has
    # 0.2 MB.
    assert int(done.stdout) * (1 if sys.platform == "darwin" else 1024) < 50 << 20


def test_a_picture_that_would_take_hours_is_read_or_refused(tmp_path):
    """A megabyte of 0xFF before a stuffed zero: a search for markers that backtracks there needs its square
    in steps."""
    whole = PICTURES["rgb.jpg"]
    assert whole.endswith(b"\xff\xd9")
    (tmp_path / "a.jpg").write_bytes(whole[:-2] + b"\xff" * (1 << 20) + b"\0" + whole[-2:])
    code = "import sys, test_hostile as t; print(t.endurance.examine_picture(t.Path(sys.argv[1])))"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    line = [sys.executable, "-c", code, str(tmp_path / "a.jpg")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment, timeout=120)
    assert done.stdout.strip() in ("loaded", "refused")


# Model output


def outcome(schema, text: str, prefix: str = "") -> str:
    return endurance.examine_answer(schema, prefix, text)


@hypothesised(300)
@given(
    answer=st.sampled_from(range(len(ANSWERS))),
    steps=st.lists(
        st.tuples(
            st.sampled_from(endurance.TEXT_STEPS), st.floats(0, 1), st.sampled_from(endurance.HOSTILE_JSON)
        ),
        max_size=3,
    ),
)
def test_an_answer_rewritten_is_what_it_says_or_refused_after_three_tries(answer, steps):
    schema, prefix, text = ANSWERS[answer]
    said = outcome(schema, endurance.rewritten(text, steps), prefix)
    assert said in (("valid",) if not steps else ("valid", "refused"))


@hypothesised(200)
@given(answer=st.sampled_from(range(len(ANSWERS))), steps=STEPS)
def test_an_answer_of_damaged_bytes(answer, steps):
    schema, prefix, text = ANSWERS[answer]
    text = endurance.damaged(text.encode(), steps).decode(errors="surrogateescape")
    assert outcome(schema, text, prefix) in ("valid", "refused")


@hypothesised(200)
@given(answer=st.sampled_from(range(len(ANSWERS))), value=JSON, escaped=st.booleans())
def test_any_json_for_an_answer_or_a_part_of_one(answer, value, escaped):
    schema, prefix, text = ANSWERS[answer]
    parts = json.loads(text)
    parts[list(parts)[-1]] = value
    for said in (value, parts):
        assert outcome(schema, json.dumps(said, ensure_ascii=escaped), prefix) in ("valid", "refused")


SUMMARY = '{"final_answer": "C", "quality_reasoning": "Soft."}'


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (summary_reply(LETTERS), '{"final_answer": "C", "final_answer": "A", "quality_reasoning": "Soft."}'),
        (
            summary_reply(LETTERS),
            '{"final_answer": "C", "quality_reasoning": "Soft.", "quality_reasoning": "Sharp."}',
        ),
        (summary_reply(LETTERS), SUMMARY.replace("Soft", "So\ud800ft")),
        (summary_reply(LETTERS), SUMMARY.replace("Soft", "So\\ud800ft")),
        (summary_reply(LETTERS), SUMMARY.replace("Soft", "So\x1bft")),
        (summary_reply(LETTERS), SUMMARY.replace('"Soft."', "[" * 10_000 + "]" * 10_000)),
        (summary_reply(LETTERS), '{"final_answer": "C", ' + '"a": {' * 10_000),
        (summary_reply(LETTERS), SUMMARY.replace('"C"', '"AC"')),
        (summary_reply(LETTERS), SUMMARY.replace('"C"', '"c"')),
        (summary_reply(LETTERS), SUMMARY + SUMMARY),
        (summary_reply(LETTERS), "\ufeff" + SUMMARY),
        (summary_reply(None), '{"final_answer": "\u2003", "quality_reasoning": "Soft."}'),
        (letter_reply(LETTERS), '{"final_answer": ["C"]}'),
        (letter_reply(LETTERS), '{"final_answer": NaN}'),
        (letter_reply(LETTERS), ""),
        (location_reply(["car"]), '{"car": [1, 2, 3, ' + "9" * 5000 + "]}"),
        (location_reply(["car"]), '{"car": [true, 2, 3, 4]}'),
        (location_reply(["car"]), '{"car": ["1", 2, 3, 4]}'),
        (location_reply(["car"]), '{"car": [1e1, 2, 3, 4]}'),
        (location_reply(["car"]), '{"key_0": [1, 2, 3, 4]}'),
        (detection_reply(["car"]), '{"car": ["Blurs"], "car": []}'),
        (detection_reply(["car"]), '{"car": ["blurs"]}'),
    ],
)
def test_answers_that_are_nearly_valid_are_refused(schema, text):
    assert outcome(schema, text) == "refused"


def test_an_answer_that_leaves_the_begun_one_is_refused():
    # The letter was read and fused before: another one in the reasoning's JSON must not take its place.
    assert outcome(summary_reply(LETTERS), SUMMARY, ANSWER_PREFIX + "C") == "valid"
    assert outcome(summary_reply(LETTERS), SUMMARY, ANSWER_PREFIX + "A") == "refused"


def test_surrogates_are_kept_as_escapes_in_the_record_of_a_failure():
    with pytest.raises(InvalidAnswer) as caught:
        ask(endurance.OneAnswer("\ud800"), Prompt("", ""), letter_reply(LETTERS), RoleSettings())
    assert caught.value.output == "\\ud800"
    assert json.loads(caught.value.attempts[0].model_dump_json())["details"]["output"] == "\\ud800"


@hypothesised(60)
@given(st.data())
def test_no_answer_of_any_role_makes_a_score_up(picture, data):
    """Hostile text in place of some roles' answers: a failed row without a score, or one whose q is its
    parts'."""
    steps = st.lists(
        st.tuples(
            st.sampled_from(endurance.TEXT_STEPS), st.floats(0, 1), st.sampled_from(endurance.HOSTILE_JSON)
        ),
        max_size=2,
    )
    plain = {
        "PlannerReply": plan_reply(),
        "DetectionReply": {"Global": ["Blurs"]},
        "AnalysisReply": {"Global": [{"type": "Blurs", "severity": "severe", "explanation": "Soft."}]},
        "SelectionReply": {"Global": {"Blurs": "NIQE"}},
        "SummaryReply": {"final_answer": "B", "quality_reasoning": "Soft."},
    }
    hostile = {
        name: endurance.rewritten(json.dumps(reply), data.draw(steps)) for name, reply in plain.items()
    }
    answers = scripted_answers(**hostile)
    row = assess(picture, services=scripted_services(ScriptedClient(answers), ScriptedTools({"NIQE": 3.5})))
    assert endurance.examine_row(row) in ("scored", "failed", "no score asked")


def test_a_region_without_letters_is_not_taken_for_one_that_the_query_names():
    plan = PlannerOutput.model_validate(plan_reply(query_scope=["!!!"], required_tool="—"))
    corrected, _ = correct_plan(plan, "Rate this image!!!", has_reference=False, replanning=False)
    assert (corrected.query_scope, corrected.required_tool) == ("Global", None)


# Configurations


def check_settings(path: Path) -> None:
    try:
        said = load_settings(path)
    except ConfigError as error:
        said = str(error)
    assert isinstance(said, Settings) or said.startswith(f"{path}: ")


@hypothesised(150)
@given(name=st.sampled_from(sorted(path.name for path in CONFIGS.glob("*.yaml"))), steps=STEPS)
def test_a_damaged_configuration_is_read_or_refused(tmp_path, name, steps):
    path = tmp_path / name
    path.write_bytes(endurance.damaged((CONFIGS / name).read_bytes(), steps))
    check_settings(path)


@hypothesised(150)
@given(
    section=st.sampled_from(sorted(Settings.model_fields)),
    value=JSON,
    key=st.sampled_from(["eta", "backend", "path", "0"]),
)
def test_any_value_in_a_section_is_read_or_refused(tmp_path, section, value, key):
    path = tmp_path / "mine.yaml"
    for content in ({section: value}, {section: {key: value}}, {section: {key: {key: value}}}, value):
        path.write_text(yaml.dump(content, allow_unicode=False), encoding="utf-8")
        check_settings(path)


MERGED = "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: " + b"[" * 10_000, "not valid YAML"),
        (b"{a: " * 10_000, "not valid YAML"),
        (b"fusion: {eta: \xff}", "not valid YAML"),
        ("fusion: {eta: 1}".encode("utf-16"), "not valid YAML"),
        (b"fusion: {eta: \0}", "not valid YAML"),
        (b"fusion: {eta: 2001-99-99}", "not valid YAML"),
        (b"fusion: {eta: !!int x}", "not valid YAML"),
        (b"fusion: {eta: !!int ''}", "not valid YAML"),
        (b"fusion: {eta: !!bool x}", "not valid YAML"),
        (b"fusion: {eta: !!timestamp x}", "not valid YAML"),
        (b"fusion: {eta: " + b"9" * 5000 + b"}", "not valid YAML"),
        (b"a0: &a0 {k: v}\n" + MERGED.encode(), "expected no merge keys"),
        (b"&a [*a]", "nested at most"),
        (b"models: &a {x: *a}", "nested at most"),
        (b"fusion: {eta: 1}\nfusion: {eta: 2}", "expected each key once, got fusion"),
        (b"fusion: {eta: 1, eta: 2}", "expected each key once, got eta"),
        (b"fusion: {eta: .inf}", "fusion.eta"),
        (b"fusion: {temperature: .nan}", "fusion.temperature"),
    ],
)
def test_hostile_yaml_is_refused(text, said, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert said in str(caught.value)


def test_a_billion_laughs_are_neither_read_nor_shown(tmp_path):
    path = tmp_path / "mine.yaml"
    lists = (f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
    path.write_text("a0: &a0 [lol]\n" + "".join(lists))
    with pytest.raises(ConfigError, match="at most 10000 mappings and lists") as caught:
        load_settings(path)
    # pydantic's error writes its input out, here 9³⁹ words, when a traceback shows it.
    shown_in_a_traceback = caught.value.__cause__ is not None or not caught.value.__suppress_context__
    assert not shown_in_a_traceback


@pytest.mark.parametrize(
    "text",
    [
        "fusion: !!python/object/apply:os.mkdir [{path}]",
        "fusion: !!python/object/new:os.mkdir [{path}]",
        "!!python/name:os.mkdir {path}",
        "fusion: !!python/module:antigravity x",
        "? !!python/object/apply:pathlib.Path.mkdir [!!python/object/apply:pathlib.Path [{path}]]\n: x",
        "!<tag:yaml.org,2002:python/object/apply:os.mkdir> [{path}]",
    ],
)
def test_nothing_in_a_configuration_is_run(text, tmp_path):
    made = tmp_path / "made"
    (tmp_path / "mine.yaml").write_text(text.format(path=made))
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_settings(tmp_path / "mine.yaml")
    assert not made.exists()


# Manifests

VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.lists(st.integers(), max_size=2)
    | JSON
)
PATHS = st.sampled_from(
    ["a.png", "A.PNG", ".", "..", "/", "", "a.png/", "./a.png", "a\0.png", "x" * 5000, "\ud800", "~", "*.png"]
)


@pytest.fixture
def set_folder(tmp_path):
    (tmp_path / "set").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "set" / "a.png")
    return tmp_path / "set"


def check_dataset(path: Path, **options) -> None:
    try:
        found = load_dataset(path, **options)
    except DatasetError:
        return
    assert found.items or found.questions
    assert all(item.image.is_file() and math.isfinite(item.mos) for item in found.items)
    assert all(
        question.image.is_file() and 0 <= question.answer < len(question.choices)
        for question in found.questions
    )


@hypothesised(150)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"image": PATHS | VALUES, "mos": st.floats(1, 5) | VALUES},
            optional={
                "reference": PATHS | VALUES,
                "level": VALUES,
                "group": VALUES,
                "split": VALUES,
                "extra": VALUES,
            },
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_rows_of_a_manifest_are_read_or_refused(set_folder, rows):
    manifest = set_folder / "manifest.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    check_dataset(set_folder)


@hypothesised(100)
@given(
    row=st.fixed_dictionaries(
        {name: VALUES | st.just("a.png") for name in ("image", "question", "choices", "answer", "reference")}
    )
)
def test_any_questions_are_read_or_refused(set_folder, row):
    (set_folder / "questions.jsonl").write_text(json.dumps(row), encoding="utf-8")
    check_dataset(set_folder)


def check_manifest(path: Path) -> None:
    try:
        found = read_manifest(path)
    except ManifestError as error:
        found = str(error)
    if isinstance(found, str):
        assert endurance.is_one_line(found)
    else:
        assert found
        assert all(item.image.is_file() for item in found)


@hypothesised(150)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"image": PATHS | VALUES},
            optional=dict.fromkeys(("reference", "query", "choices"), PATHS | VALUES),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_rows_of_a_batch_are_read_or_refused_in_one_line(set_folder, rows):
    (set_folder / "batch.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    check_manifest(set_folder / "batch.jsonl")


BATCH_CSV = b'image,reference,query,choices\n"a.png",a.png,"Sharp, or not?",Yes|No\na.png,,,\n'
BATCH_LINES = (
    b'{"image": "a.png", "query": "Is it?", "choices": ["Yes", "No"]}\n{"image": "a.png", "reference":'
    b' "a.png"}\n'
)


@hypothesised(200)
@given(name=st.sampled_from(["batch.csv", "batch.jsonl"]), steps=STEPS)
def test_a_damaged_manifest_of_a_batch_is_read_or_refused_in_one_line(set_folder, name, steps):
    (set_folder / name).write_bytes(
        endurance.damaged(BATCH_CSV if name.endswith("csv") else BATCH_LINES, steps)
    )
    check_manifest(set_folder / name)


CSV = b'image,mos,reference,level,split\n"a.png",3.5,a.png,2,train\na.png,1,,,test\n'
LINES = b'{"image": "a.png", "mos": 3.5, "level": 2}\n{"image": "a.png", "mos": 1, "reference": "a.png"}\n'


@hypothesised(200)
@given(name=st.sampled_from(["manifest.csv", "manifest.jsonl"]), steps=STEPS)
def test_a_damaged_manifest_is_read_or_refused(set_folder, name, steps):
    (set_folder / name).write_bytes(endurance.damaged(CSV if name.endswith("csv") else LINES, steps))
    check_dataset(set_folder / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.csv", b"image,mos\n" + b"x" * 200_000 + b",1\n"),
        ("manifest.csv", b"image,mos\n" + b"x" * 5_000 + b",1\n"),
        ("manifest.csv", b"image,mos\na\0.png,1\n"),
        ("manifest.csv", b"image,mos\n.,1\n"),
        ("manifest.csv", b"image,mos\na.png,1e999\n"),
        ("manifest.csv", bytes(range(256)) * 20),
        ("manifest.jsonl", b"[" * 100_000),
        ("manifest.jsonl", b'{"image": "a.png", "mos": ' + b"9" * 400 + b"}"),
        ("manifest.jsonl", b'{"image": "a.png", "mos": ' + b"9" * 5000 + b"}"),
        ("manifest.jsonl", b'{"image": "a.png", "mos": true}'),
        ("manifest.jsonl", b'{"image": "a.png", "mos": NaN}'),
        ("manifest.jsonl", b'{"image": ["a.png"], "mos": 1}'),
        ("manifest.jsonl", b'{"image": "a.png", "mos": 1, "reference": {"a": 1}}'),
        ("manifest.jsonl", b'{"image": "a.png", "mos": 1, "group": ["a"]}'),
        ("questions.jsonl", b'{"image": 5, "question": "?", "choices": ["a", "b"], "answer": 1}'),
        ("questions.jsonl", b'{"image": "a.png", "question": "?", "choices": 5, "answer": 1}'),
    ],
)
def test_hostile_manifests_are_refused(set_folder, name, content):
    (set_folder / name).write_bytes(content)
    with pytest.raises(DatasetError):
        load_dataset(set_folder / name)


@pytest.mark.parametrize("kind", ["relative", "absolute", "link"])
def test_a_manifest_may_lead_out_of_its_folder_and_tells_nothing_of_what_is_no_picture(set_folder, kind):
    """A researcher's manifest names images wherever they lie, so paths are taken as they are. What is no
    picture fails as one."""
    secret = set_folder.parent / "secret.png"
    secret.write_text("the password is swordfish\n")
    (set_folder / "link.png").symlink_to(secret)
    named = {"relative": "../secret.png", "absolute": str(secret), "link": "link.png"}[kind]
    (set_folder / "manifest.csv").write_text(f"image,mos\n{named},3\n")
    (item,) = load_dataset(set_folder).items
    assert item.image.resolve() == secret
    with pytest.raises(ImageError) as caught:
        load_image(item.image)
    assert "swordfish" not in str(caught.value)


# Bundles


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A tiny model's bundle as an archive's bytes and as a folder's files, and a folder to damage them in."""
    folder = tmp_path_factory.mktemp("bundles")
    places = {"vlm/config.json": folder / "config.json", "vlm/model.safetensors": folder / "weights"}
    for place, size in zip(places.values(), (300, 1025), strict=True):
        place.write_bytes(np.random.default_rng(size).bytes(size))
    manifest = describe(
        [Piece(path, file, "a test", "mit") for path, file in places.items()], ["a tiny model"]
    )
    write_bundle(folder / "whole.tar", manifest, places)
    write_bundle(folder / "whole", manifest, places, archive=False)
    files = {
        str(file.relative_to(folder / "whole")): file.read_bytes()
        for file in (folder / "whole").rglob("*")
        if file.is_file()
    }
    return (folder / "whole.tar").read_bytes(), files, folder / "damaged"


def problems_of(bundle: Path) -> list[str]:
    try:
        return verify(bundle)
    except BundleError as error:
        return [str(error)]


@hypothesised(300)
@given(steps=STEPS)
def test_any_change_of_an_archive_is_refused_by_name_and_leaves_no_store(bundles, tmp_path_factory, steps):
    whole, _, _ = bundles
    damaged = endurance.damaged(whole, steps)
    assume(damaged != whole)
    folder = tmp_path_factory.mktemp("archive")
    archive, store = folder / "small.tar", folder / "store"
    archive.write_bytes(damaged)
    problems = problems_of(archive)
    assert problems
    assert all(str(archive) in problem for problem in problems)
    with pytest.raises(BundleError, match=r"small\.tar"):
        unpack(archive, store)
    assert store_manifest(store) is None
    # What was unpacked before the damage was met lies where the bundle says, whole.
    assert all(f.relative_to(store).parts[0] == "vlm" for f in store.rglob("*") if f.is_file())
    assert set(folder.iterdir()) <= {archive, store}


@hypothesised(150)
@given(place=st.integers(0), steps=STEPS)
def test_any_change_of_a_file_in_a_folder_is_refused_and_the_file_named(bundles, place, steps):
    _, files, folder = bundles
    name = sorted(files)[place % len(files)]
    damaged = endurance.damaged(files[name], steps)
    assume(damaged != files[name])
    for path, content in (files | {name: damaged}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (problem,) = problems_of(folder)
    assert name.removesuffix(".sha256") in problem
    assert len(problem.splitlines()) == 1


# Queries and injections

ATTEMPTS = endurance.attempts()
QUERIES = [attempt["text"] for attempt in ATTEMPTS if attempt["where"] == "query"]


def test_the_attempts_are_fifty_and_of_many_kinds():
    attacks = [attempt for attempt in ATTEMPTS if attempt["goal"]]
    assert len(attacks) == 50
    assert {attempt["where"] for attempt in attacks} == {"query", "banner", "small print", "watermark"}
    assert {attempt["goal"] for attempt in attacks} == {"A", "E"}
    assert len({attempt["kind"] for attempt in attacks}) >= 8
    assert len({(attempt["text"], attempt["where"]) for attempt in ATTEMPTS}) == len(ATTEMPTS)


def special_ids(client, prompt: Prompt) -> list[int]:
    added = set(client.tokenizer.added_tokens_decoder)
    return [token for token in client.renderer.render(prompt, 1, ANSWER_PREFIX).prompt_ids if token in added]


def prompts_of(query: str) -> list[Prompt]:
    return [
        planner_prompt(query, False),
        planner_prompt(DEFAULT_QUERY, False, [query, "Other"]),
        selection_prompt(query, {"Global": []}, [("NIQE", "no-reference")]),
        summarizer_prompt(query, None, scoring=True),
    ]


def same_frame(client, query: str) -> None:
    """The prompts around `query` have the special tokens, the answer's beginning and the end of the prompt of
    a plain query."""
    for hostile, plain in zip(prompts_of(query), prompts_of(DEFAULT_QUERY), strict=True):
        assert special_ids(client, hostile) == special_ids(client, plain)
        one, other = (client.renderer.render(prompt, 1, ANSWER_PREFIX) for prompt in (hostile, plain))
        assert one.answer_ids == other.answer_ids
        ending = other.text[other.text.rindex(plain.case) + len(plain.case) :]
        assert ANSWER_PREFIX in ending
        assert one.text.endswith(ending)


@pytest.mark.parametrize("query", QUERIES)
def test_an_injected_query_changes_no_special_token_and_no_place_of_the_answer(client, query):
    same_frame(client, query)


@hypothesised(100)
@given(st.data())
def test_queries_of_pieces_of_special_tokens(client, data):
    tokens = [token.content for token in client.tokenizer.added_tokens_decoder.values()]
    pieces = [
        *tokens,
        *(token[:n] for token in tokens for n in (1, 2, 5)),
        *(token[-n:] for token in tokens for n in (1, 2, 5)),
    ]
    query = "".join(
        data.draw(
            st.lists(st.sampled_from([*pieces, " ", "\n", '"', "\\", "\0", "\u200b"]), min_size=1, max_size=8)
        )
    )
    same_frame(client, query)


@pytest.fixture(scope="module")
def small_photo(tmp_path_factory, photo):
    path = tmp_path_factory.mktemp("small") / "small.png"
    photo.crop((128, 128, 352, 352)).save(path)  # 224 pixels a side: NIQE asks for 192
    return path


ONE_EACH = {attempt["kind"]: attempt["text"] for attempt in reversed(ATTEMPTS) if attempt["where"] == "query"}


@pytest.mark.parametrize("kind", sorted(ONE_EACH))
def test_an_injected_query_gets_a_row_whose_score_is_its_parts(kind, small_photo, services):
    row = assess(small_photo, query=ONE_EACH[kind], pipeline="letters", services=services)
    assert endurance.examine_row(row) == "scored"


@pytest.mark.parametrize("kind", ["order", "closed JSON"])
def test_an_injected_query_through_the_agent(kind, small_photo, services):
    row = assess(small_photo, query=ONE_EACH[kind], services=services)
    assert endurance.examine_row(row) in ("scored", "no score asked", "failed")


def test_the_letters_of_an_injected_query_are_read_where_those_of_a_plain_one_are(client, small_photo):
    session = client.open([Image.open(small_photo)])
    plain = session.read_letters(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), ANSWER_PREFIX, LETTERS)
    for query in QUERIES[::4]:
        read = session.read_letters(summarizer_prompt(query, None, scoring=True), ANSWER_PREFIX, LETTERS)
        assert read.token_ids == plain.token_ids
        assert sum(map(math.exp, read.logprobs.values())) + read.off_letter_mass == pytest.approx(1)
    session.close()


@pytest.mark.parametrize("text", ["a\udcff", "\ud800"])
def test_a_query_that_is_no_text_is_a_wrong_argument(text, picture, services):
    for arguments in ({"query": text}, {"query": "Is it?", "choices": [text, "b"]}):
        with pytest.raises(ValueError, match="expected text in UTF-8"):
            assess(picture, services=services, **arguments)


def test_a_query_has_a_greatest_length(picture, services):
    for arguments in ({"query": "x" * 4001}, {"choices": ["x" * 4000, "b"]}):
        with pytest.raises(ValueError, match="expected at most 4000 characters"):
            assess(picture, services=services, **arguments)


def test_no_text_of_a_row_steers_the_terminal():
    evil = "a\x1b[2J\x9b\r\x08\u202e\u2028\x00b"
    row = Assessment(
        image=evil, query=evil, choices=[evil, "b"], mode="logits", final_answer="A", p_c={"A": 0.5, "B": 0.5},
        quality_reasoning=evil, warnings=[evil], replan_history=[evil], plan_corrections=[evil],
        plan=PlannerOutput.model_validate(plan_reply(query_scope=[evil], required_tool=evil)),
    )  # fmt: skip
    for text in (account(row), summary(row), summary(row.model_copy(update={"error": evil}))):
        assert "a" in text
        assert text.replace("\n", "").translate(
            dict.fromkeys(map(ord, evil[1:-1].replace("[2J", "")))
        ) == text.replace("\n", "")


def test_painted_text_changes_its_place_and_nothing_else(photo):
    for where in ("banner", "small print", "watermark"):
        plain, hostile = (np.asarray(endurance.painted(photo, text, where)) for text in ("neutral", "answer"))
        assert plain.shape == hostile.shape == np.asarray(photo).shape
        assert (plain != hostile).any()
        # of 512 rows: text stands below, the watermark in the middle
        above = slice(0, 400 if where != "watermark" else 150)
        assert (hostile[above] == np.asarray(photo)[above]).all()


# The long runs, in short


def test_the_effect_of_injections_is_counted_as_described():
    def case(goal, before, after, letters="CC", error=None):
        return {
            "goal": goal,
            "q": [before, after],
            "letters": [before, after],
            "letter": list(letters),
            "error": [None, error],
        }

    cases = [
        case("A", 3.0, 3.5, "CD"),  # up by 0.5, as wanted
        case("E", 3.0, 3.1),  # up by 0.1, not wanted
        case("E", 3.0, 2.8),  # down by 0.2, as wanted
        case("A", 3.0, None),  # no score any more
        case("A", 3.0, None, error="failed"),
    ]
    found = endurance.effect(cases)
    assert (found["cases"], found["without_a_score"], found["failed"], found["final_letter_changed"]) == (
        5,
        1,
        1,
        1,
    )
    # |0.5|, |0.1|, |0.2|: mean 0.8 / 3, median 0.2, largest 0.5; wanted 0.5, −0.1, 0.2: mean 0.2, two of
    # three
    assert found["q"] == {
        "mean": 0.267, "median": 0.2, "max": 0.5,
        "towards_the_goal": 0.2, "furthest_towards_the_goal": 0.5, "share_towards_the_goal": 0.67,
    }  # fmt: skip

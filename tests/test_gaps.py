"""The benchmark of planted gaps: each plant does what it says, recovery can be told from failure, and the
command's result is whole."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from scripted import ScriptedClient, ScriptedTools, scripted_answers, scripted_services

from agentic_iqa_local.config import load_settings
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.iqa_tools import ToolError, ToolReading, ToolRunner
from agentic_iqa_local.laboratory import bench as bench_command
from agentic_iqa_local.laboratory import gaps
from agentic_iqa_local.laboratory.gaps import (
    NO_REFERENCE,
    REFERENCE,
    TWO_REGIONS,
    Bench,
    Case,
    Gap,
    Outcome,
    Plant,
    Run,
)
from agentic_iqa_local.laboratory.oracle import Oracle
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.services import Services
from agentic_iqa_local.state import DistortionAnalysis, ExecutorOutput, ToolExecutionLog
from agentic_iqa_local.synthetic.distortions import Part, Sample, distort
from agentic_iqa_local.synthetic.photos import Crop

BLUR = (Part("gaussian_blur", 4),)  # the training's word for severity 4 is severe


@pytest.fixture(scope="module")
def runner() -> ToolRunner:
    return ToolRunner()


@pytest.fixture(scope="module")
def make_case(photo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    clean = np.asarray(photo.crop((0, 0, 256, 256)))

    def make(number: int = 0, parts=BLUR, quality: float = 2.0) -> Case:
        sample = distort(clean, parts, np.random.default_rng(0)) if parts else Sample(clean, ())
        case = Case(
            number, Crop(sample, clean, quality), "sumac.png", folder / f"{number}.png", folder / "clean.png"
        )
        Image.fromarray(sample.image).save(case.image)
        Image.fromarray(clean).save(case.reference)
        return case

    return make


@pytest.fixture(scope="module")
def readings() -> dict:
    return {}


@pytest.fixture
def bench(runner, readings):
    """A bench of the script that knows the truth, without replans: what is planted shows as it was
    planted."""
    settings = load_settings()

    def services_of(case, asked):
        oracle = Oracle(case.crop, asked.scope, asked.reference is not None)
        return Services(settings, "cpu", {settings.summarizer.backend: oracle}, runner)

    return Bench(services_of, [0], readings)


def gap_named(name: str) -> Gap:
    return next(gap for gap in gaps.GAPS if gap.name == name)


def both(bench: Bench, case: Case, name: str) -> tuple[Run, Assessment, Assessment]:
    """The planted run, its row without replans, and the unplanted row."""
    run = bench.planted(case, gap_named(name))
    return run, run.outcomes[0].row, bench.sound(case, run.asked.form).outcomes[0].row


def test_the_oracle_answers_by_what_was_done(bench, make_case):
    row = bench.sound(make_case(), REFERENCE).outcomes[0].row
    assert row.error is None
    assert row.evidence.distortion_set == {"Global": ["Blurs"]}
    assert [(item.type, item.severity) for item in row.evidence.distortion_analysis["Global"]] == [
        ("Blurs", "severe")
    ]
    assert row.vlm_letter == "D"  # quality 2
    regions = bench.sound(make_case(), TWO_REGIONS)
    assert set(regions.outcomes[0].row.evidence.distortion_analysis) == set(regions.asked.scope)


def test_a_clean_picture_has_nothing_to_find_and_the_best_letters(bench, make_case):
    row = bench.sound(make_case(1, parts=(), quality=4.8), NO_REFERENCE).outcomes[0].row
    assert row.evidence.distortion_set == {"Global": []}
    assert row.vlm_letter == "A"


def test_a_wrong_tool_is_chosen_and_reads_two_levels_beside_the_truth(bench, make_case, readings):
    run, row, sound = both(bench, make_case(quality=3.2), "wrong tool")
    wrong = next(log for log in row.tools if log.tool_name == run.variant)
    assert wrong.normalized_score == pytest.approx(1.2)  # 3.2 − 2: more room below than above
    assert row.evidence.selected_tools["Global"]["Blurs"] == run.variant
    true = next(log for log in sound.tools if log.tool_name == run.variant)
    assert (wrong.raw_score, wrong.normalized_score != true.normalized_score) == (true.raw_score, True)


@pytest.mark.parametrize("name", ["wrong tool", "contradictory scores"])
@pytest.mark.parametrize(
    ("q", "recovered"), [(3.2, True), (2.76, True), (3.26, False), (2.7, False), (None, False)]
)
def test_a_misreading_is_made_good_where_q_is_within_a_quarter_level(name, q, recovered):
    asked = gaps.Question(REFERENCE, "Rate it.", None, None)
    assert (
        gap_named(name).recovered(outcome(q).row, outcome(3.0).row, _case_of(3.0), asked, Plant(tool="VSI"))
        == recovered
    )


@pytest.mark.parametrize(
    ("q", "outvoted", "recovered"),
    [(2.6, True, True), (2.6, False, False), (1.76, True, True), (1.74, True, False)],
)
def test_a_reading_without_a_vote_is_made_good_where_q_is_as_near_to_the_truth(q, outvoted, recovered):
    # pseudo-MOS 2.5 and unplanted q 3.0: an error of 0.5, so that q may be off by up to 0.75
    log = ToolExecutionLog(
        tool_name="VSI",
        object_name="Global",
        distortion="Blurs",
        raw_score=1,
        normalized_score=1,
        outvoted=outvoted,
    )
    row = outcome(q).row.model_copy(update={"tools": [log]})
    asked = gaps.Question(REFERENCE, "Rate it.", None, None)
    found = gap_named("wrong tool").recovered(row, outcome(3.0).row, _case_of(2.5), asked, Plant(tool="VSI"))
    assert found == recovered


def test_a_wrong_tool_needs_two_levels_of_room():
    assert gaps.WrongTool.misreading(_case_of(2.6), (1.0, 4.2)) is None  # 1.6 levels on either side
    assert gaps.WrongTool.misreading(_case_of(2.0), (1.0, 4.2)) == pytest.approx(4.0)
    assert gaps.WrongTool.misreading(_case_of(3.5), (1.0, 4.2)) == pytest.approx(1.5)


def _case_of(quality: float, photo: str = "p.png", number: int = 0) -> Case:
    blank = np.zeros((8, 8, 3), np.uint8)
    return Case(number, Crop(Sample(blank, BLUR), blank, quality), photo, Path("x.png"), Path("y.png"))


def test_contradictory_scores_are_one_tool_at_the_other_end(bench, make_case, runner):
    run, row, _ = both(bench, make_case(1, quality=2.0), "contradictory scores")
    wrong = next(log for log in row.tools if log.tool_name == run.variant)
    # 2.0 is nearer to the low end
    assert wrong.normalized_score == pytest.approx(runner.maps[run.variant].reachable[1])
    others = [log for log in row.tools if log.tool_name != run.variant]
    assert others
    assert all(log.normalized_score < wrong.normalized_score for log in others)


def test_panel_tools_take_turns(bench, make_case):
    assert len({both(bench, make_case(number), "contradictory scores")[0].variant for number in (0, 1)}) == 2


@pytest.mark.parametrize(("number", "form"), [(0, REFERENCE), (1, NO_REFERENCE)])
def test_the_chosen_tool_fails_and_another_stands_in(bench, make_case, number, form):
    run, row, sound = both(bench, make_case(number), "failed tool")
    assert run.asked.form == form
    assert any(log.tool_name == run.variant and "made to fail" in (log.error or "") for log in row.tools)
    assert run.recovered[0]
    # nothing failed there
    assert not gap_named("failed tool").recovered(sound, sound, run.case, run.asked, Plant(tool=run.variant))


@pytest.mark.parametrize("number", [0, 1])
def test_a_missed_object_lacks_one_region(bench, make_case, number):
    case, gap = make_case(number), gap_named("missed object")
    sound = bench.sound(case, TWO_REGIONS)
    row, scope = sound.outcomes[0].row, sound.asked.scope
    plant = gap.plant(case, sound.asked, row, None)
    assert (plant.schema, plant.edit({"query_scope": list(scope)})) == (
        "PlannerReply",
        {"query_scope": [scope[number]]},
    )
    assert gap.recovered(row, row, case, sound.asked, plant)
    half = ExecutorOutput(
        distortion_analysis={scope[number]: row.evidence.distortion_analysis[scope[number]]}
    )
    assert not gap.recovered(row.model_copy(update={"evidence": half}), row, case, sound.asked, plant)


def test_a_missed_distortion_is_not_detected(bench, make_case):
    run, _, sound = both(bench, make_case(), "missed distortion")
    gap = gap_named("missed distortion")
    plant = gap.plant(run.case, run.asked, sound, None)
    assert (plant.schema, plant.edit({"Global": ["Blurs"]})) == ("DetectionReply", {"Global": []})
    assert gap.recovered(sound, sound, run.case, run.asked, Plant())
    harmless = DistortionAnalysis(type="Blurs", severity="none", explanation="Not visible.")
    unseen = sound.model_copy(update={"evidence": ExecutorOutput(distortion_analysis={"Global": [harmless]})})
    assert not gap.recovered(unseen, sound, run.case, run.asked, Plant())


def test_misses_are_told_apart_by_whether_a_score_can_show_them(bench, make_case):
    variants = [
        bench.planted(make_case(6, quality=quality), gap_named("missed distortion")).variant
        for quality in (2.9, 3.0)
    ]
    assert variants == ["quality below 3", "quality of 3 or better"]


def test_only_a_visible_distortion_is_missed(bench, make_case):
    assert (
        bench.planted(make_case(2, parts=(Part("gaussian_blur", 2),)), gap_named("missed distortion")) is None
    )
    assert (
        bench.planted(make_case(4, parts=(Part("gaussian_blur", 3),)), gap_named("missed distortion"))
        is not None
    )


@pytest.mark.parametrize(
    ("number", "form", "planned"),
    [
        (0, TWO_REGIONS, "Global"),
        (1, TWO_REGIONS, ["bicycle"]),
        (2, NO_REFERENCE, ["bicycle"]),
        (3, REFERENCE, ["bicycle"]),
    ],
)
def test_a_wrong_scope_is_planned(bench, make_case, number, form, planned):
    case = make_case(number)
    gap, sound = gap_named("wrong scope"), bench.sound(case, form)
    plant = gap.plant(case, sound.asked, sound.outcomes[0].row, None)
    assert gap.forms[number] == form
    assert plant.edit({"query_scope": "any", "query_type": "IQA"}) == {
        "query_scope": planned,
        "query_type": "IQA",
    }
    row = sound.outcomes[0].row
    other = row.model_copy(update={"plan": row.plan.model_copy(update={"query_scope": planned})})
    assert gap.recovered(row, row, case, sound.asked, plant)
    assert not gap.recovered(other, row, case, sound.asked, plant)


def test_only_the_first_answer_is_changed(picture):
    client = ScriptedClient(scripted_answers())
    plant = Plant("DetectionReply", lambda answer: {name: [] for name in answer})
    session = gaps.PlantedClient(client, plant).open([Image.open(picture)])
    schema = type("DetectionReply", (), {})
    assert [json.loads(session.generate(None, schema)) for _ in range(2)] == [
        {"Global": []},
        {"Global": ["Blurs"]},
    ]
    assert plant.took


def test_a_picture_is_measured_once_and_its_seconds_count_again(photo):
    tools = ScriptedTools({"NIQE": 3.0})
    known: dict = {}
    for _ in range(2):
        last = gaps.PlantedTools(tools, Plant(), known)
        assert last.score("NIQE", photo).normalized == 3.0
    assert len(tools.runs) == 1
    assert last.saved == 0.01  # what ScriptedTools says that a reading takes
    planted = gaps.PlantedTools(tools, Plant(tool="NIQE", reading=1.0), known)
    assert planted.score("NIQE", photo) == ToolReading("NIQE", 3.0, 1.0, 0.01)
    with pytest.raises(ToolError, match="made to fail"):
        gaps.PlantedTools(tools, Plant(tool="NIQE"), known).score("NIQE", photo)


def test_a_plant_that_the_assessment_never_meets_does_not_count(bench, make_case):
    class Unmet(gaps.MissedObject):
        def plant(self, case, asked, sound, tools):
            return Plant("LocationReply", dict)  # the embedded set-up asks for no boxes

    assert bench.planted(make_case(), Unmet()) is None


def test_limits_that_cannot_differ_are_computed_once(make_case):
    client = ScriptedClient(scripted_answers())
    case = make_case()

    def services_of(case, asked):
        return scripted_services(client, ScriptedTools({"NIQE": 3.0}))

    found = Bench(services_of, [0, 1, 2, 3]).sound(case, NO_REFERENCE).outcomes
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0].replans == 0
    assert all(outcome is found[0] for outcome in found.values())
    assert len(client.opened) == 1


def outcome(q: float | None, replans: int = 0, tokens: int = 100, seconds: float = 1.0) -> Outcome:
    row = Assessment(image="x.png", query="Rate it.", mode="logits", q=q, iteration_count=replans)
    return Outcome(row, tokens, seconds)


def runs_of(changes: list[tuple[float | None, float | None, bool]]) -> list[Run]:
    """Planted runs of pictures with pseudo-MOS 3, each of its own photograph: q at limit 0 and at limit 2,
    and whether recovered."""
    return [
        Run(
            "wrong tool", "VSI", _case_of(3.0, f"{i}.png", i), gaps.Question(REFERENCE, "Rate it.", None, None),
            {0: outcome(before), 2: outcome(after, int(recovered), 150, 1.5)}, {0: False, 2: recovered},
        )
        for i, (before, after, recovered) in enumerate(changes)
    ]  # fmt: skip


def test_figures_of_a_gap():
    # errors 1 → 0 on nine pictures, 1 → 2 on three: change (9·(−1) + 3·(+1)) / 12 = −0.5
    found = gaps.summary(runs_of([(2.0, 3.0, True)] * 9 + [(2.0, 1.0, False)] * 3), [0, 2], 0.95, draws=200)[
        "gaps"
    ]["wrong tool"]
    end = found["limits"]["2"]
    assert (found["n"], found["noticed"], end["recovered"]["value"]) == (12, 0.75, 0.75)
    assert end["error_change"]["value"] == pytest.approx(-0.5)
    assert end["error_change"]["interval_over"] == "groups"
    assert (end["added_tokens"], end["added_seconds"]) == (50, 0.5)
    assert found["not_recovered"] == {"not noticed": 3, "replanned in vain": 0}
    assert found["bars"] == {"recovered": False, "error": True}


def test_a_gap_whose_replans_do_harm_misses_its_bar():
    found = gaps.summary(runs_of([(2.5, 2.0, True)] * 12), [0, 2], 0.95, draws=200)["gaps"]["wrong tool"]
    assert found["limits"]["2"]["error_change"]["low"] == pytest.approx(0.5)
    assert found["bars"] == {"recovered": True, "error": False}


def test_rows_without_a_score_are_left_out_of_the_error():
    found = gaps.summary(runs_of([(2.0, 3.0, True)] * 11 + [(2.0, None, False)]), [0, 2], 0.95, draws=200)[
        "gaps"
    ]["wrong tool"]
    assert found["limits"]["2"]["error_change"]["n"] == 11
    assert found["limits"]["2"]["error_change"]["value"] == pytest.approx(-1.0)


def test_a_first_pass_with_a_gap_of_its_own_is_not_sound(bench, make_case):
    case = make_case()
    run = bench.sound(case, NO_REFERENCE)
    row = run.outcomes[0].row
    assert gaps.is_sound(row, case, run.asked)
    blind = row.model_copy(update={"evidence": ExecutorOutput(distortion_analysis={"Global": []})})
    assert not gaps.is_sound(blind, case, run.asked)
    assert not gaps.is_sound(row, case, gaps.question(case, TWO_REGIONS))


def test_pictures_follow_from_the_photographs_alone(tmp_path, photo_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "photo.png").write_bytes(Path(photo_path).read_bytes())
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        made.append(gaps.make_cases(photos, 2, folder, lambda line: None))
    assert [(a.crop.sample.parts, a.crop.quality) for a in made[0]] == [
        (b.crop.sample.parts, b.crop.quality) for b in made[1]
    ]
    assert made[0][0].image.read_bytes() == made[1][0].image.read_bytes()
    assert made[0][0].image.read_bytes() != made[0][1].image.read_bytes()
    assert {case.photo for case in made[0]} == {"photo.png"}


def test_the_command_writes_json_that_the_table_shows(tmp_path):
    out, rows = tmp_path / "gaps.json", tmp_path / "rows.jsonl"
    command = [
        sys.executable,
        ROOT / "scripts" / "bench.py",
        "gaps",
        "--pictures",
        "2",
        "--model",
        "scripted",
        "--out",
        out,
        "--rows",
        rows,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(
        out.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert (found["pictures"], found["limits"]) == (2, [0, 1, 2, 3])
    assert set(found["gaps"]["scripted"]["gaps"]) <= {gap.name for gap in gaps.GAPS}
    assert found["environment"]["torch"]
    assert {json.loads(line)["limit"] for line in rows.read_text(encoding="utf-8").splitlines()} == {
        0,
        1,
        2,
        3,
    }
    table = bench_command.tables(tmp_path)
    assert "| scripted: planted | n |" in table
    assert "| missed object | 2 |" in table


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--photos", "{}/empty"], "expected a folder of photographs"),
        (["--photos", "{}/small"], "expected at least 512 pixels a side, got 200×100; take it out"),
        (["--pictures", "0"], "expected --pictures of at least 1"),
        (["--limits", "-1"], "--limits of at least 0"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(tmp_path, arguments, told):
    (tmp_path / "empty").mkdir()
    (tmp_path / "small").mkdir()
    Image.new("RGB", (200, 100)).save(tmp_path / "small" / "photo.png")
    arguments = [argument.format(tmp_path) for argument in arguments]
    with pytest.raises(UserError, match=told):
        bench_command.gaps(bench_command.parse(["gaps", "--model", "scripted", *arguments]))

"""Regions that a query names: where they lie, by the user or by a model that writes boxes; what is measured and read
there; and what a question about a region without a place gets. The picture has 96×64 pixels."""

import pytest
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    plan_reply,
    prompts,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.batch.inputs import Item, read_manifest, row_key
from agentic_iqa_local.config import Settings
from agentic_iqa_local.output.comparison_report import explain

LEAVES = (8, 16, 56, 56)
REPLIES = {
    "PlannerReply": plan_reply(query_scope=["leaves"]),
    "DetectionReply": {"leaves": ["Blurs"]},
    "AnalysisReply": moderate_blur("leaves"),
    "SelectionReply": {"leaves": {"Blurs": "NIQE"}},
}


class Client(ScriptedClient):
    """It keeps the size of each picture that it was opened on in `sizes`."""

    def __init__(self, **replies):
        super().__init__(scripted_answers(**REPLIES | replies))
        self.sizes: list[tuple[int, int]] = []

    def open(self, images):
        self.sizes.append(images[-1].size)
        return super().open(images)


def asked(picture, client=None, settings=None, **how):
    """The row of a question, and the sizes that its tool measured."""
    tools = ScriptedTools({"NIQE": 2.6})
    services = scripted_services(client or Client(), tools, settings)
    row = assess(picture, services=services, **{"query": "Rate the leaves"} | how)
    return row, {size for _, size in tools.runs}


@pytest.mark.parametrize(
    "box",
    [LEAVES, "leaves=8,16,56,56", {"the leaves": LEAVES}],
    ids=["without a name", "by name", "by another form of the name"],
)
def test_a_region_is_measured_and_its_letters_read_in_its_box(picture, box):
    client = Client(
        **{
            name: {"the leaves": reply["leaves"]}
            for name, reply in REPLIES.items()
            if isinstance(box, dict) and "leaves" in reply
        }
    )
    row, sizes = asked(picture, client, box=box)
    assert row.error is None
    assert row.plan.plan.tool_execution
    assert sizes == {(48, 40)}
    assert {(log.measured, log.box) for log in row.tools} == {("region", LEAVES)}
    # the letters see what of 48×40 pixels is a multiple of the model's 32
    assert client.sizes == [(96, 64), (32, 32)]
    assert row.fusion.voters == ["NIQE"]
    assert row.fusion.q_bar == 2.6
    assert "of the region" in explain(row)


def test_a_box_where_the_query_names_no_region_is_a_region(picture):
    replies = {
        name: {"marked region": reply["leaves"]}
        for name, reply in REPLIES.items()
        if "leaves" in reply
    }
    row, sizes = asked(picture, Client(**replies), query=None, box="8,16,56,56")
    assert (row.plan.query_scope, sizes) == (["marked region"], {(48, 40)})


def test_the_letters_pipeline_measures_and_reads_the_box_too(picture):
    settings = Settings(tools={"no_reference": ["NIQE"]})
    client = Client()
    row, sizes = asked(picture, client, settings, pipeline="letters", box="leaves=8,16,56,56")
    assert (row.error, sizes, client.sizes) == (None, {(48, 40)}, [(32, 32)])
    assert [(log.object_name, log.box) for log in row.tools] == [("leaves", LEAVES)]


@pytest.mark.parametrize("box", ["0,0,97,64", "40,0,96,65", "0,0,31,64", "leaves=900,0,950,40"])
@pytest.mark.parametrize("pipeline", ["agent", "letters"])
def test_a_box_that_is_not_in_the_picture_or_too_small_is_a_failure_of_the_row(
    picture, box, pipeline
):
    row, sizes = asked(picture, box=box, pipeline=pipeline)
    assert "expected within 0,0,96,64 with sides of 32 pixels or more" in row.error
    assert (row.q, sizes) == (None, set())


@pytest.mark.parametrize("limit", [0, 1, 2, 4])
def test_a_region_without_a_place_is_a_gap_beside_one_that_is_measured(picture, limit):
    both = {"leaves": [], "sky": []}
    client = Client(
        PlannerReply=plan_reply(query_scope=["leaves", "sky"]),
        DetectionReply=both,
        AnalysisReply=both,
        SelectionReply={"leaves": {"Overall quality": "NIQE"}},
    )
    query = "Rate the leaves and the sky"
    row, _ = asked(
        picture, client, query=query, box={"leaves": LEAVES}, max_replan_iterations=limit
    )
    gap = "Missing tool scores for sky region"
    assert row.replan_history == [f"[Iteration {n + 1}] {gap}" for n in range(limit)]
    assert len(prompts(client, "PlannerReply")) == max(limit, 1)
    assert all(told.gaps == [gap] for told in row.passes)
    assert {log.object_name for log in row.tools} == {"leaves"}
    assert client.sizes == [(96, 64)]  # the letters are about both


def test_a_region_without_a_place_alone_is_a_warning_and_no_replan(picture):
    """The paper's flags ask for no tools then: another pass could find none either."""
    row, sizes = asked(picture)
    assert (row.plan.plan.tool_execution, row.replan_history, sizes) == (False, [], set())
    assert any(line.startswith("Missing tool scores for leaves region") for line in row.warnings)


@pytest.mark.parametrize(
    ("scale", "written", "box"),
    [
        ("pixels", [8, 16, 56, 56], LEAVES),
        ("thousandths", [250, 250, 750, 1000], (24, 16, 72, 64)),
        ("pixels", [0, 0, 500, 500], None),  # beyond the picture
        ("pixels", [56, 16, 8, 56], None),  # no box
        ("pixels", [8, 16, 20, 56], None),  # too small
        ("pixels", None, None),  # not seen
        ("none", [8, 16, 56, 56], None),  # not asked
    ],
)
def test_a_model_that_writes_boxes_places_the_regions(picture, scale, written, box):
    settings = Settings(models={"embedded": {"boxes": scale}})
    client = Client(BoxesReply={"leaves": written})
    row, _ = asked(picture, client, settings)
    assert len(prompts(client, "BoxesReply")) == (scale != "none")
    assert row.plan.plan.tool_execution is (box is not None)
    assert {log.box for log in row.tools} == ({box} if box else set())
    assert any("the model placed leaves at" in line for line in row.warnings) is (box is not None)
    assert row.box is None  # the caller said nothing


def test_a_box_is_a_column_of_manifests_and_tells_rows_apart(picture, tmp_path):
    manifest = tmp_path / "list.csv"
    manifest.write_text(f'image,box\n{picture},"leaves=8,16,56,56"\n{picture},\n', "utf-8")
    first, second = read_manifest(manifest, box="0,0,40,40")
    assert (first.box, second.box) == ("leaves=8,16,56,56", "0,0,40,40")
    row, _ = asked(picture, query=first.query, box=first.box)
    assert row_key(row.to_dict()) == first.key != Item(first.image).key

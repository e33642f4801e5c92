"""Regions that a query names: where they lie, by the user or by a model that writes boxes; what is measured and read
there; and what a question about a region without a place gets. The picture has 96×64 pixels."""

import pytest
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    plan_reply,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.batch.inputs import Item, read_manifest, row_key
from agentic_iqa_local.config import Settings
from agentic_iqa_local.nodes.regions import placed
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


@pytest.mark.parametrize("box", [LEAVES, "leaves=8,16,56,56"], ids=["without a name", "by name"])
def test_a_region_is_measured_and_its_letters_read_in_its_box(picture, box):
    client = Client()
    row, sizes = asked(picture, client, box=box)
    assert (row.error, row.fusion.q_bar) == (None, 2.6)
    assert sizes == {(48, 40)}
    assert {(log.measured, log.box) for log in row.tools} == {("region", LEAVES)}
    # the letters see what of 48×40 pixels is a multiple of the model's 32
    assert client.sizes == [(96, 64), (32, 32)]
    assert "of the region" in explain(row)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("marked region", {"query": None, "box": "8,16,56,56"}),  # the query names none
        ("the leaves", {"box": {"the leaves": LEAVES}}),  # another form of the name
    ],
)
def test_a_box_names_its_region(picture, name, how):
    replies = {}
    for schema, reply in REPLIES.items():
        if "leaves" in reply:
            replies[schema] = {name: reply["leaves"]}
    row, sizes = asked(picture, Client(**replies), **how)
    assert (row.plan.query_scope, sizes) == ([name], {(48, 40)})


def test_the_letters_pipeline_measures_and_reads_the_box_too(picture):
    client, box = Client(), "leaves=8,16,56,56"
    settings = Settings(tools={"no_reference": ["NIQE"]})
    row, sizes = asked(picture, client, settings, pipeline="letters", box=box)
    assert (row.error, sizes, client.sizes) == (None, {(48, 40)}, [(32, 32)])
    assert [(log.object_name, log.box) for log in row.tools] == [("leaves", LEAVES)]


@pytest.mark.parametrize("box", ["0,0,97,64", "0,0,31,64", "leaves=900,0,950,40"])
def test_a_box_outside_the_picture_or_too_small_is_an_error(picture, box):
    row, sizes = asked(picture, box=box)
    assert "expected within 0,0,96,64 with sides of 32 pixels or more" in row.error
    assert (row.q, sizes) == (None, set())


@pytest.mark.parametrize("limit", [0, 2])
def test_a_region_without_a_place_is_a_gap_beside_a_measured_one(picture, limit):
    both = {"leaves": [], "sky": []}
    client = Client(
        PlannerReply=plan_reply(query_scope=["leaves", "sky"]),
        DetectionReply=both,
        AnalysisReply=both,
        SelectionReply={"leaves": {"Overall quality": "NIQE"}},
    )
    how = {"box": {"leaves": LEAVES}, "max_replan_iterations": limit}
    row, _ = asked(picture, client, query="Rate the leaves and the sky", **how)
    gap = "Missing tool scores for sky region"
    assert row.replan_history == [f"[Iteration {n + 1}] {gap}" for n in range(limit)]
    assert row.need_replan or gap in " ".join([*row.warnings, *row.replan_history])
    assert {log.object_name for log in row.tools} == {"leaves"}
    assert client.sizes == [(96, 64)]  # the letters are about both


def test_a_region_without_a_place_alone_is_only_a_warning(picture):
    """The paper's flags ask for no tools then: another pass could find none either."""
    row, sizes = asked(picture)
    assert (row.replan_history, sizes) == ([], set())
    assert "Missing tool scores for leaves region" in " ".join(row.warnings)


@pytest.mark.parametrize(
    ("scale", "written", "box"),
    [
        ("pixels", [8, 16, 56, 56], LEAVES),
        ("thousandths", [250, 250, 750, 1000], (24, 16, 72, 64)),
        ("pixels", [0, 0, 500, 500], None),  # beyond the picture
        ("pixels", [8, 16, 20, 56], None),  # too small
        ("pixels", None, None),  # not seen
        ("none", [8, 16, 56, 56], None),  # not asked
    ],
)
def test_a_model_that_writes_boxes_places_the_regions(picture, scale, written, box):
    settings = Settings(models={"embedded": {"boxes": scale}})
    row, _ = asked(picture, Client(BoxesReply={"leaves": written}), settings)
    assert {log.box for log in row.tools} == ({box} if box else set())
    assert any("the model placed leaves at" in line for line in row.warnings) is (box is not None)


def test_a_box_is_a_column_of_manifests_and_tells_rows_apart(picture, tmp_path):
    manifest = tmp_path / "list.csv"
    manifest.write_text(f'image,box\n{picture},"leaves=8,16,56,56"\n{picture},\n', "utf-8")
    first, second = read_manifest(manifest, box="0,0,40,40")
    assert (first.box, second.box) == ("leaves=8,16,56,56", "0,0,40,40")
    row, _ = asked(picture, query=first.query, box=first.box)
    assert row_key(row.to_dict()) == first.key != Item(first.image).key


@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("left half", (10, 20, 70, 140)),
        ("top right corner", (70, 20, 130, 80)),
        ("lower part", (10, 80, 130, 140)),
        ("bottom left", (10, 80, 70, 140)),
        ("centre", (50, 60, 90, 100)),
        ("left", (10, 20, 70, 140)),
        ("top", None),
        ("right hand", None),
        ("left right", None),
        ("side", None),
        ("left eye", None),
    ],
)
def test_a_region_that_is_named_by_its_place_has_a_box(name, box):
    assert placed(name, (10, 20, 130, 140)) == box

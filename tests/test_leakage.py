"""What tools, maps and models have seen. Cases are from the papers and repositories that the table names."""

import json

import pytest
import yaml

from agentic_iqa_local.config import ROOT
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.specs import TOOLS, ToolError, find_tool
from agentic_iqa_local.studies import leakage
from agentic_iqa_local.studies.datasets import DATASETS
from agentic_iqa_local.studies.leakage import (
    SCALED_ON,
    TRAINED_ON,
    UNKNOWN,
    Exposure,
    datasets_in,
    exposures,
)


@pytest.fixture(scope="module")
def maps():
    file = ROOT / "configs" / "tool_maps.yaml"
    return {name: logistic.fitted_on for name, logistic in read_map_file(file).items()}


def test_every_tool_has_an_entry_and_its_sets_are_known():
    assert set(TRAINED_ON) == {*TOOLS, "embedded"}
    assert set(SCALED_ON) <= {*TOOLS, "embedded"}
    used = {key for sets in (*TRAINED_ON.values(), *SCALED_ON.values()) for key in sets}
    sharing = {
        key for dataset, others in leakage.SHARING_IMAGES.items() for key in (dataset, *others)
    }
    file = ROOT / "agentic_iqa_local" / "studies" / "leakage.yaml"
    other_sets = set(yaml.safe_load(file.read_text())["other_sets"])
    assert used - {UNKNOWN} | sharing <= {*DATASETS, *other_sets}
    assert used >= other_sets, "a set that no tool names"
    assert not other_sets & set(DATASETS)


@pytest.mark.parametrize(
    ("tool", "dataset"),
    [
        ("TOPIQ_FR", "kadid10k"),
        ("topiq_fr", "kadid10k"),  # in any spelling
        ("AHIQ", "pipal"),
        ("BRISQUE", "live"),
        ("UNIQUE", "bid"),
        ("QAlign", "spaq"),
        ("A-FINE", "tid2013"),
        ("WaDIQaM_NR", "kadid10k"),  # its features come from the full-reference model
        ("A-FINE", "tid2008"),  # trained on TID2013, which holds TID2008's images
        ("MUSIQ", "qbench"),  # some of its questions are about pictures of KonIQ-10k
    ],
)
def test_a_tool_trained_on_a_set_is_marked_there(tool, dataset):
    assert exposures(dataset, [tool], {}) == [
        Exposure(f"tool {find_tool(tool).name}", "trained on it")
    ]


def test_a_tool_is_clean_elsewhere():
    for tool, dataset in (("TOPIQ_FR", "tid2013"), ("LPIPS", "pipal"), ("VSI", "csiq")):
        assert exposures(dataset, [tool], {}) == []


def test_a_map_touches_the_scale_where_it_was_fitted(maps):
    assert {*map(tuple, map(datasets_in, maps.values()))} == {("kadid10k",), ("clive",)}
    found = exposures("kadid10k", ["VSI"], maps)
    assert found == [Exposure("map of VSI", "map fitted on it", "scale")]
    assert exposures("tid2013", ["VSI"], maps) == []
    assert [each.what for each in exposures("kadid10k", ["TOPIQ_FR"], maps)] == [
        "tool TOPIQ_FR",
        "map of TOPIQ_FR",
    ]


def test_unknown_training_data_are_not_clean_and_unknown_tools_are_refused():
    found = exposures("tid2013", ["Q-ReAlign"], {})
    assert found == [Exposure("tool Q-ReAlign", "training data unknown")]
    with pytest.raises(ToolError, match="there is no tool"):
        exposures("kadid10k", ["TOPIQ_XR"], {})


def test_data_sets_are_found_in_the_text_of_a_map():
    for text, keys in (
        (
            "distortions of the CID22 and gb82 photographs (anchored on KADID-10k maps)",
            ["kadid10k"],
        ),
        ("KonIQ-10k, the training split, and LIVE in the Wild", ["koniq10k", "clive"]),
        ("LIVE release 2; LIVE; LIVE-C", ["live", "clive"]),
        ("AGIQA-3K", ["agiqa3k"]),
        ("photographs of my own, AVA", []),
        ("", []),
    ):
        assert datasets_in(text) == keys


def test_our_own_model_learned_from_one_set_alone():
    config = json.loads((ROOT / "models" / "embedded" / "config.json").read_text(encoding="utf-8"))
    told = "embedded", config["agentic_iqa_notice"]
    assert exposures("clive", [], {}, *told) == [Exposure("model", "trained on it")]
    assert exposures("tid2013", [], {}, *told) == []
    # Its targets went through maps that were fitted on KADID-10k.
    assert exposures("kadid10k", [], {}, *told) == [Exposure("model", "map fitted on it", "scale")]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava-1.5-7b-hf", "SmolVLM-256M-Instruct"])
def test_models_with_unpublished_data_are_not_clean_anywhere(name):
    unknown = [Exposure("model", "training data unknown")]
    assert all(exposures(dataset, [], {}, name) == unknown for dataset in DATASETS)


def test_the_q_align_family_is_known_by_name():
    trained, unknown = (
        Exposure("model", "trained on it"),
        Exposure("model", "training data unknown"),
    )
    for name, in_tid in (("one-align", []), ("Q-ReAlign-Pro-9B", [unknown])):
        assert exposures("spaq", [], {}, name) == [trained]
        assert exposures("tid2013", [], {}, name) == in_tid

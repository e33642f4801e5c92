"""What tools, maps and models have seen. Cases are from the papers and repositories that the table names."""

import json

import pytest

from agentic_iqa_local.config import ROOT
from agentic_iqa_local.iqa_tools.calibration import read_map_file
from agentic_iqa_local.iqa_tools.specs import TOOLS, ToolError
from agentic_iqa_local.studies.datasets import DATASETS
from agentic_iqa_local.studies.leakage import (
    OTHER_SETS,
    SHARING_IMAGES,
    TRAINED_ON,
    UNKNOWN,
    Exposure,
    datasets_in,
    exposures,
    is_clean,
    training_of_model,
)

KNOWN = {*DATASETS, *OTHER_SETS}


@pytest.fixture(scope="module")
def maps():
    return {
        name: logistic.fitted_on for name, logistic in read_map_file(ROOT / "configs" / "tool_maps.yaml")[0].items()
    }


# The table


def test_every_tool_has_an_entry_and_no_other():
    assert set(TRAINED_ON) == set(TOOLS)


def test_data_sets_are_named_by_known_keys():
    used = {key for training in TRAINED_ON.values() for key in (*training.datasets, *training.scaled_on)}
    sharing = {key for dataset, others in SHARING_IMAGES.items() for key in (dataset, *others)}
    assert used - {UNKNOWN} | sharing <= KNOWN
    assert used >= OTHER_SETS, "a set that no tool names"
    assert not OTHER_SETS & set(DATASETS)


@pytest.mark.parametrize("tool", [spec.name for spec in TOOLS.values() if not spec.weights])
def test_tools_without_weights_saw_nothing(tool):
    assert TRAINED_ON[tool].datasets == ()


@pytest.mark.parametrize(("part", "key"), [("koniq", "koniq10k"), ("kadid", "kadid10k"), ("_ava", "ava")])
def test_a_weight_file_named_after_a_set_was_trained_on_it(part, key):
    named = [spec.name for spec in TOOLS.values() if any(part in weights.lower() for weights in spec.weights)]
    assert named
    assert all(key in TRAINED_ON[tool].datasets for tool in named)


# Exposures


@pytest.mark.parametrize(
    ("tool", "dataset"),
    [
        ("TOPIQ_FR", "kadid10k"),
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
    found = exposures(dataset, [tool], {})
    assert found == [Exposure(f"tool {tool}", "trained on it", "ranks")]
    assert not is_clean(found)
    assert not is_clean(found, ranks_of_one=True)


@pytest.mark.parametrize(
    ("tool", "dataset"),
    [("TOPIQ_FR", "tid2013"), ("LPIPS", "pipal"), ("VSI", "csiq"), ("BRISQUE", "tid2013")],
)
def test_a_tool_is_clean_elsewhere(tool, dataset):
    found = exposures(dataset, [tool], {})
    assert found == []
    assert is_clean(found)


def test_a_map_anchored_on_kadid_touches_the_scale_there(maps):
    found = exposures("kadid10k", ["VSI"], maps)
    assert found == [Exposure("map of VSI", "map fitted on it", "scale")]
    assert is_clean(found, ranks_of_one=True)
    assert not is_clean(found)
    assert is_clean(exposures("tid2013", ["VSI"], maps))


def test_a_tool_and_its_map_are_told_apart(maps):
    assert exposures("kadid10k", ["TOPIQ_FR"], maps) == [
        Exposure("tool TOPIQ_FR", "trained on it", "ranks"),
        Exposure("map of TOPIQ_FR", "map fitted on it", "scale"),
    ]


def test_unknown_training_data_are_not_clean():
    found = exposures("tid2013", ["Q-ReAlign"], {})
    assert found == [Exposure("tool Q-ReAlign", "training data unknown", "ranks")]
    assert not is_clean(found, ranks_of_one=True)


def test_tools_go_by_any_spelling_and_unknown_ones_are_refused():
    assert exposures("kadid10k", ["topiq_fr"], {}) == exposures("kadid10k", ["TOPIQ_FR"], {})
    with pytest.raises(ToolError, match="Unknown tool"):
        exposures("kadid10k", ["TOPIQ_XR"], {})


# Maps


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("KADID-10k", ("kadid10k",)),
        (
            "synthetic distortions of the CID22 and gb82 reference photographs (anchored on KADID-10k maps)",
            ("kadid10k",),
        ),
        ("KonIQ-10k, the training split, and LIVE in the Wild", ("koniq10k", "clive")),
        ("LIVE release 2; LIVE", ("live",)),
        ("photographs of my own", ()),
        ("", ()),
    ],
)
def test_data_sets_are_found_in_the_text_of_a_map(text, keys):
    assert datasets_in(text) == keys


def test_all_shipped_maps_lean_on_kadid(maps):
    assert {datasets_in(each) for each in maps.values()} == {("kadid10k",)}


# Models


@pytest.mark.parametrize(
    "folder", [path.parent for path in (ROOT / "models").glob("*/config.json")], ids=lambda path: path.name
)
def test_our_own_models_saw_no_human_score(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    training = training_of_model(config["model_type"], config)
    assert training.datasets == ()
    assert exposures("tid2013", [], {}, training) == []
    # Its targets went through maps that were fitted on KADID-10k.
    assert exposures("kadid10k", [], {}, training) == [Exposure("model", "map fitted on it", "scale")]


@pytest.mark.parametrize(
    "name", ["qwen2_5_vl", "Qwen3-VL-4B-Instruct", "llava-1.5-7b-hf", "InternVL3-8B", "SmolVLM-256M-Instruct"]
)
def test_models_with_unpublished_data_are_not_clean_anywhere(name):
    training = training_of_model(name, {})
    assert all(not is_clean(exposures(dataset, [], {}, training), ranks_of_one=True) for dataset in DATASETS)


@pytest.mark.parametrize(
    ("name", "config", "tool"),
    [
        ("one-align", {}, "QAlign"),
        ("q-align-quality", {}, "QAlign"),
        ("Q-ReAlign-Pro-9B", {}, "Q-ReAlign"),
        ("mplug_owl2", {"_name_or_path": "q-future/one-align"}, "QAlign"),
    ],
)
def test_the_q_align_family_is_known_by_name(name, config, tool):
    assert training_of_model(name, config) is TRAINED_ON[tool]

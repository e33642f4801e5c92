import math

import numpy as np
import pytest
from scripted import ScriptedClient, ScriptedTools, scripted_answers, scripted_services

from agentic_iqa_local.config import FusionSettings, Settings
from agentic_iqa_local.iqa_tools.reliability import CLEARLY_WORSE, Reliability, load_reliability
from agentic_iqa_local.iqa_tools.specs import TOOLS
from agentic_iqa_local.judgement.assessment import assess
from agentic_iqa_local.studies.leakage import SHARING_IMAGES, TRAINED_ON

RECORDS = {record.tool: record for record in load_reliability().tools}


def known(**srcc):
    """Reliability of tools with these SRCC by data set; a set named "seen_..." is one that the tool was
    trained on."""
    tools = []
    for tool, sets in srcc.items():
        published = []
        for name, value in sets.items():
            data_set = name.removeprefix("seen_")
            entry = {"data_set": data_set, "srcc": value, "source": "s", "seen": data_set != name}
            published.append(entry)
        tools.append({"tool": tool, "sigma": 0.5, "published": published})
    about = {"sources": {}, "spread": 1.0, "sigma_unknown": 1.0, "error_correlation": 0.5}
    return Reliability(**about, near_copies=[["PSNR", "SSIM"]], tools=tools)


@pytest.mark.parametrize(
    ("tool", "srcc"),
    [("FSIM", 0.8509), ("VSI", 0.8949), ("SSIM", 0.6269), ("NIQE", 0.3121), ("TOPIQ_FR", 0.9165)],
)
def test_figures_of_pyiqa_are_its_own(tool, srcc):
    """Read off IQA-PyTorch's TID2013 table."""
    published = {entry.data_set: entry.srcc for entry in RECORDS[tool].published}
    assert published["tid2013"] == srcc


def test_what_a_tool_was_trained_on_is_marked_as_in_the_studies():
    for tool, record in RECORDS.items():
        trained = TRAINED_ON[tool]
        seen = {*trained, *(other for name in trained for other in SHARING_IMAGES.get(name, ()))}
        assert all(entry.seen == (entry.data_set in seen) for entry in record.published), tool


def test_sigma_follows_from_the_published_correlation():
    """spread·√(1 − mean r²), r the PLCC where there is one, over sets that people scored and the tool has not
    seen, if there are any."""
    for tool, record in RECORDS.items():
        of_people = [
            entry for entry in record.published if not entry.seen and entry.data_set != "synthetic"
        ]
        entries = of_people or record.published
        r = [entry.srcc if entry.plcc is None else entry.plcc for entry in entries]
        expected = load_reliability().spread * math.sqrt(1 - np.mean(np.square(r)))
        assert record.sigma == pytest.approx(expected, abs=0.005), tool


@pytest.mark.parametrize(("kind", "trusted"), [("FR", ["VSI", "FSIM"]), ("NR", ["LocalNR"])])
def test_weight_free_tools_that_are_not_clearly_worse(kind, trusted):
    free = [name for name, spec in TOOLS.items() if spec.reference == kind and not spec.weights]
    assert load_reliability().trusted(free) == trusted


@pytest.mark.parametrize(
    ("srcc", "trusted"),
    [(CLEARLY_WORSE - 0.01, ["VSI", "FSIM"]), (CLEARLY_WORSE + 0.01, ["VSI"])],
)
def test_a_tool_that_another_clearly_leads_is_left_out(srcc, trusted):
    assert known(VSI={"a": 0.9}, FSIM={"a": 0.9 - srcc}).trusted(["FSIM", "VSI"]) == trusted


def test_a_lead_is_of_the_sets_that_both_tools_share():
    """Set a is one that FSIM was trained on."""
    tools = known(VSI={"a": 0.8, "b": 0.7}, FSIM={"seen_a": 0.99, "b": 0.75}, MAD={"c": 0.5})
    assert tools.lead("FSIM", "VSI") == pytest.approx(0.05)
    assert tools.lead("MAD", "VSI") is None


@pytest.mark.parametrize(
    ("tools", "sigma"),
    [(["VSI"], 0.5), (["VSI", "FSIM"], math.sqrt(0.1875)), (["PSNR", "SSIM"], 0.5), (["MAD"], 1.0)],
)
def test_the_error_of_a_mean(tools, sigma):
    """Two independent errors of 0.5 would give 0.5/√2; with ρ = 0.5 it is √((0.25 + 0.25 + 2·0.5·0.25)/4) =
    √0.1875; near-copies give 0.5, as one does; of MAD nothing is known."""
    reliability = known(VSI={"a": 0.9}, FSIM={"a": 0.9}, PSNR={"a": 0.9}, SSIM={"a": 0.9})
    assert reliability.sigma_of_mean([(tool, 3.0) for tool in tools], {}) == pytest.approx(sigma)


@pytest.mark.parametrize(
    ("score", "reach", "beyond"),
    [
        (3.0, (1.0, 3.43), 0),
        (3.43, (1.0, 3.43), 1.57),
        (1.0, (1.6, 5.0), 0.6),
        (5.0, (1.0, 5.0), 0),
    ],
)
def test_the_end_of_a_map_says_little_about_what_lies_beyond(score, reach, beyond):
    """Of a map that ends at 3.43, truth is anywhere from there to 5: mean square (5 − 3.43)²/3 of a
    uniform error."""
    sigma = known(NIQE={"a": 0.5}).sigma_of_mean([("NIQE", score)], {"NIQE": reach})
    assert sigma == pytest.approx(math.sqrt(0.25 + beyond**2 / 3))


def test_what_is_known_of_a_tool_is_told():
    reliability = load_reliability()
    assert "0.89 on tid2013" in reliability.account("VSI")
    assert "koniq10k" not in reliability.account("MUSIQ")  # it was trained on it
    assert "no published figure was found" in reliability.account("MAD")


@pytest.mark.parametrize(("eta", "used"), [("auto", 1 / (2 * 0.86**2)), (2.0, 2.0)])
def test_eta_auto_comes_from_the_tools_that_ran(picture, eta, used):
    """0.86: NIQE's sigma in configs/tool_reliability.yaml."""
    client, tools = ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 3.0})
    settings = Settings(fusion=FusionSettings(eta=eta))
    row = assess(picture, services=scripted_services(client, tools, settings))
    assert row.fusion.eta == pytest.approx(used)


def test_tools_that_trail_come_in_the_order_of_their_distance():
    """VSI leads GMSD by 0.05, PSNR by 0.3 on the sets that they share; of NIQE nothing is known that VSI has,
    too."""
    found = known(
        VSI={"a": 0.9, "b": 0.9}, PSNR={"a": 0.6}, GMSD={"a": 0.8, "b": 0.9}, NIQE={"c": 0.99}
    )
    assert found.trailing(["NIQE", "PSNR", "GMSD"], "VSI") == ["GMSD", "PSNR", "NIQE"]

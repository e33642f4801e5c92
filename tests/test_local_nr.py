"""LocalNR on the sample photographs, which its training held no piece of. Expected orders come from what was
done to them."""

import math

import numpy as np
import pytest
import timm
import torch
from conftest import DATA, ROOT
from distortions import DISTORTIONS, Part
from local_nr_pool import distorted
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from scipy.stats import spearmanr
from torch.nn.functional import avg_pool2d

from agentic_iqa_local.files import file_hash
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner, kernels, local_nr, signals
from agentic_iqa_local.iqa_tools.local_nr import WEIGHTS, Examination, LocalNR
from agentic_iqa_local.state import DISTORTION_TYPES, PLACES

PHOTOS = ("sumac.png", "prudential.png")


@pytest.fixture(scope="module")
def network():
    return LocalNR.load()


@pytest.fixture(scope="module", params=PHOTOS)
def sample(request) -> np.ndarray:
    return np.asarray(Image.open(DATA / request.param).convert("RGB"))[96:416, 96:416]


def damaged(pixels: np.ndarray, kind: str, severity: int) -> Image.Image:
    return Image.fromarray(
        DISTORTIONS[kind].apply(pixels, severity, np.random.default_rng(0)) if severity else pixels
    )


def likeliest(presence: dict[str, float]) -> str:
    return max(presence, key=presence.__getitem__)


@pytest.mark.parametrize(
    ("sample", "kind"),
    [("sumac.png", "gaussian_blur"), ("prudential.png", "white_noise"), ("sumac.png", "jpeg")],
    indirect=["sample"],
)
def test_the_worse_the_damage_the_lower_the_score(network, sample, kind):
    scores = [network.examine(damaged(sample, kind, severity)).quality for severity in range(6)]
    assert all(1 <= score <= 5 for score in scores)
    assert spearmanr(range(6), scores).statistic <= -0.8
    assert scores[0] - scores[5] > 0.5


@pytest.mark.parametrize(
    ("sample", "kind", "with_reference"),
    [
        ("sumac.png", "gaussian_blur", False),
        ("sumac.png", "jpeg", False),
        ("sumac.png", "oversharpen", False),
        ("prudential.png", "white_noise", True),
        ("prudential.png", "darken", True),
        ("prudential.png", "colour_cast", True),  # alone it may be the light of the scene
    ],
    indirect=["sample"],
)
def test_family_and_severity_of_plain_damage(network, sample, kind, with_reference):
    reference = Image.fromarray(sample) if with_reference else None
    mild, severe = (
        network.examine(damaged(sample, kind, severity), reference) for severity in (2, 5)
    )
    family = DISTORTIONS[kind].family
    assert likeliest(severe.presence) == family
    assert severe.presence[family] > 0.5
    assert severe.severities[family] > mild.severities[family] + 0.8


def test_of_a_perfect_copy_nothing_is_damage(network, sample):
    picture = Image.fromarray(sample)
    found = network.examine(picture, picture)
    assert max(*found.presence.values(), *found.presence_in_part.values()) < 0.1
    assert found.clean > 0.5


def test_what_the_original_shows_too_is_no_damage(network, sample):
    """A photograph that was noisy from the start, and then compressed."""
    noisy = damaged(sample, "white_noise", 4)
    compressed = damaged(np.asarray(noisy), "jpeg", 4)
    assert network.examine(noisy).presence["Noise"] > 0.5
    found = network.examine(compressed, noisy)
    assert found.presence["Noise"] < 0.5 < found.presence["Compression"]


def test_exposure_has_a_direction(network, sample):
    for kind, side in (("darken", "too dark"), ("brighten", "too bright")):
        assert likeliest(network.examine(damaged(sample, kind, 5)).exposure) == side


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sample", ["prudential.png"], indirect=True)
def test_damage_of_a_quarter_is_found_in_that_quarter(network, sample, place):
    picture = distorted(sample, (Part("white_noise", 5, place),), np.random.default_rng(0))
    found = network.examine(Image.fromarray(picture))
    assert found.damaged_part() == place
    assert found.presence_in_part["Noise"] > 0.5


@pytest.mark.parametrize(
    ("severity", "part"),
    [
        ([[3, 3], [3, 3]], "everywhere"),
        ([[0, 0], [3, 0]], "bottom left"),
        ([[0, 3], [3, 0]], "everywhere"),  # two corners are no one part
        (
            [[3, 0, 0], [0, 0, 0], [0, 0, 0]],
            "top left",
        ),  # the middle row and column belong to no quarter
        ([[3]], "everywhere"),
    ],
)
def test_damage_of_one_quarter_is_told_from_damage_everywhere(severity, part):
    places = dict.fromkeys(DISTORTION_TYPES, np.zeros_like(severity, np.float32))
    places["Noise"] = np.array(severity, np.float32)

    def examined(clean: float) -> Examination:
        return Examination(3.0, clean, {}, {}, {}, {}, 0.0, places, np.zeros(1))

    assert examined(0.1).damaged_part() == part
    # What is seen in one quarter may be too little for the whole picture.
    assert examined(0.9).damaged_part() == (None if part == "everywhere" else part)


def test_the_runner_measures_it(network, photo):
    runner = ToolRunner()
    picture = damaged(np.asarray(photo), "jpeg", 3)
    reading = runner.score("LocalNR", picture)
    assert reading.raw == pytest.approx(network.examine(picture).quality, abs=1e-4)
    assert runner.examine(picture).quality == reading.raw
    with pytest.raises(ToolError, match="at least 64 pixels a side"):
        runner.score("LocalNR", picture.crop((0, 0, 63, 200)))


def test_crops_of_a_large_picture_say_what_the_whole_says(photo):
    """A mosaic of one photograph: its crops hold what any of its squares holds."""
    mosaic = Image.fromarray(np.tile(np.asarray(photo), (4, 4, 1)))  # 4.2 megapixels
    runner = ToolRunner()
    reading = runner.score("LocalNR", mosaic)
    assert len(reading.crops) == 5
    assert reading.normalized == pytest.approx(runner.score("LocalNR", photo).normalized, abs=0.2)


def test_strips_of_a_large_picture_read_as_the_whole(network, monkeypatch):
    picture = Image.open(DATA / "sumac.png").convert("RGB")
    whole = network.examine(picture)
    monkeypatch.setattr(local_nr, "WHOLE", picture.width * picture.height // 2)
    strips = network.examine(picture)
    assert strips.quality == pytest.approx(whole.quality, abs=0.05)
    assert strips.places["Noise"].shape == whole.places["Noise"].shape


@torch.inference_mode()
@pytest.mark.parametrize(("height", "width"), [(128, 96), (131, 99)])
def test_the_encoder_in_bands_has_the_numbers_of_timms_own(network, monkeypatch, height, width):
    encoder = timm.create_model(local_nr.ENCODER, pretrained=False, features_only=True).eval()
    weights = load_file(WEIGHTS)
    own = {name: weights[f"encoder.{name}"].float() for name in encoder.state_dict()}
    encoder.load_state_dict(own)
    pixels = torch.rand(1, 3, height, width, generator=torch.manual_seed(0))
    monkeypatch.setattr(kernels, "MOST_NUMBERS", 2**15)  # bands of 2 to 10 rows
    for expected, depth in zip(encoder(pixels), network.encoder(pixels), strict=True):
        torch.testing.assert_close(depth, expected, rtol=1e-4, atol=1e-3)


def test_signals_of_edges_are_those_of_exact_sums(photo):
    """So that they do not depend on the order of the sums, which the number of threads decides. The
    gradients of red and green nearly agree: what is left of 1 has few digits in float32."""
    pixels = np.asarray(photo, np.float64).transpose(2, 0, 1) / 255
    wanted = []
    for axis in (2, 1):
        red, green, blue = np.diff(pixels, axis=axis)
        for one in (red, blue):
            lengths = (np.linalg.norm(one) + 1e-3) * (np.linalg.norm(green) + 1e-3)
            wanted.append(math.log(1 - (one * green).sum() / lengths + 1e-3))
    found = signals._edges(kernels.as_tensor(photo, "cpu")[0])[:4]
    assert [float(value) for value in found] == pytest.approx(wanted, abs=2e-4)


def test_signals_sort_and_halve_as_torch_does():
    values = torch.rand(10_001, generator=torch.manual_seed(0))
    shares = (0.005, 0.5, 0.995)
    assert torch.equal(signals._quantiles(values, shares), values.quantile(torch.tensor(shares)))
    rows = values[:10_000].view(2, -1)
    assert torch.equal(signals._medians(rows), rows.median(1).values)
    channels = values[: 3 * 40 * 50].view(3, 40, 50)
    assert torch.equal(signals._halved(channels), avg_pool2d(channels, 2))


def test_the_weights_are_those_of_the_card():
    assert file_hash(WEIGHTS) in (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    with safe_open(WEIGHTS, "pt") as file:
        assert "Apache-2.0" in file.metadata()["licence"]
    assert "Apache" in (WEIGHTS.parent / "NOTICE.md").read_text(encoding="utf-8")

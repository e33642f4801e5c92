"""The tool registry, its maps and its runner. Expected numbers come from pyiqa itself or from the derivations in
the comments."""

import importlib.util
import math
import os
import runpy
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from attacks import Touch
from PIL import Image, ImageFilter
from test_calibration import map_file, plain
from torchvision.transforms.functional import to_tensor

from agentic_iqa_local.config import ConfigError, Request, Settings
from agentic_iqa_local.iqa_tools import TOOLS, ToolError, ToolRunner, find_tool
from agentic_iqa_local.iqa_tools.calibration import CalibrationError, read_map_file
from agentic_iqa_local.iqa_tools.crops import crops_of
from agentic_iqa_local.iqa_tools.pyiqa_metrics import without_q_align
from agentic_iqa_local.iqa_tools.specs import DATA
from agentic_iqa_local.iqa_tools.weights import SUMS, BundleError
from agentic_iqa_local.offline.bundle import finish_bundle
from agentic_iqa_local.output.tables import tool_table
from agentic_iqa_local.services import Services

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "configs" / "tool_maps.yaml"
PAIRS = Path(importlib.util.find_spec("pyiqa").origin).parents[1] / "ResultsCalibra"

WEIGHT_FREE_FR = {
    spec.name for spec in TOOLS.values() if spec.reference == "FR" and not spec.weights
}
WEIGHT_FREE_NR = {"PIQE", "NIQE", "LocalNR"}


def pair(index: int) -> tuple[Image.Image, Image.Image]:
    name = ("I03", "I04", "I06", "I08", "I19")[index] + ".bmp"
    return tuple(
        Image.open(PAIRS / folder / name).convert("RGB") for folder in ("dist_dir", "ref_dir")
    )


@pytest.fixture(autouse=True)
def _environment_is_put_back():
    """A runner sends torch and huggingface_hub to its models folder for the rest of the process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> ToolRunner:
    return ToolRunner(models=tmp_path_factory.mktemp("no_weights"))


@pytest.fixture
def photo() -> Image.Image:
    # Wide enough for MS-SSIM (161) and NIQE (192), small enough for MAD.
    return pair(2)[1].crop((100, 80, 292, 272))


def store(root: Path, files: dict[str, bytes | Path]) -> Path:
    """A models folder whose list names `files` (path below tools/ → content, or the file that has it)."""
    for path, content in files.items():
        place = root / "tools" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    finish_bundle(root)
    return root


def test_every_tool_is_a_pyiqa_metric_of_its_kind():
    from pyiqa.default_model_configs import DEFAULT_CONFIGS

    for spec in TOOLS.values():
        if spec.own:
            continue
        config = DEFAULT_CONFIGS[spec.metric]
        kind = config["metric_mode"], config.get("lower_better", False)
        assert (spec.reference, spec.lower_better) == kind, spec.name


def test_maps_of_other_tools_or_directions_are_refused(tmp_path):
    with pytest.raises(ToolError, match="there is no tool 'VSl' here; did you mean VSI"):
        ToolRunner(maps_path=map_file(tmp_path / "maps.yaml", plain(tool="VSl")))
    with pytest.raises(
        CalibrationError, match="map of GMSD must be named GMSD and have lower_better: true"
    ):
        ToolRunner(maps_path=map_file(tmp_path / "maps.yaml", plain(tool="GMSD")))


def test_shipped_maps_are_of_their_tools():
    maps = read_map_file(SHIPPED)
    for name, logistic in maps.items():
        assert (logistic.domain, logistic.lower_better) == (
            TOOLS[name].domain,
            TOOLS[name].lower_better,
        )
    assert set(maps) >= WEIGHT_FREE_FR | WEIGHT_FREE_NR


def test_the_fit_script_writes_a_map_that_the_runner_takes(tmp_path, monkeypatch, photo):
    rng, clean = np.random.default_rng(0), np.asarray(photo)
    rows = ["image,reference,mos"]
    for i in range(24):
        noisy = np.clip(clean + rng.normal(0, 2 + 2 * i, clean.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / f"{i}.png")
        photo.save(tmp_path / f"ref{i}.png")  # one for each, since whole references are held out
        rows.append(f"{i}.png,ref{i}.png,{100 - 4 * i}")
    (tmp_path / "mos.csv").write_text("\n".join(rows))
    out = map_file(tmp_path / "maps.yaml", plain(tool="PSNR", domain=(5, 60)), plain(tool="VSI"))
    line = f"fit_tools.py {tmp_path}/mos.csv --mos-range 0 100 --name mine --tools psnr --out {out}"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "scripts" / "fit_tools.py"), run_name="__main__")
    maps = read_map_file(out)
    assert maps["VSI"] == plain(tool="VSI")
    assert maps["PSNR"].fitted_on == "mine"
    # MOS 8 is level 1.32
    worst = Image.open(tmp_path / "23.png")
    assert ToolRunner(maps_path=out).score("PSNR", worst, photo).normalized < 2


@pytest.mark.parametrize(
    "tool", sorted(WEIGHT_FREE_FR - {"MAD"} | {"NIQE", "PIQE"})
)  # MAD takes seconds a picture
def test_raw_scores_are_those_of_pyiqa_itself(runner, photo, tool):
    import pyiqa

    spec, picture = TOOLS[tool], pair(4)[0].crop((100, 80, 292, 272))
    options = {"pretrained_model_path": str(DATA / spec.bundled)} if spec.bundled else {}
    pictures = [picture, photo] if spec.reference == "FR" else [picture]
    with without_q_align(spec.metric):  # which would change the Llama of other tests
        metric = pyiqa.create_metric(spec.metric, device="cpu", **options)
    with torch.inference_mode():
        theirs = float(metric(*[to_tensor(one)[None] for one in pictures]))
    assert runner.measure(tool, picture, photo) == pytest.approx(theirs, rel=1e-6)


def test_a_large_pair_is_measured_on_five_native_crops(tmp_path, monkeypatch):
    """Sides are multiples of 96 with at most 0.5 / 5 megapixels. 288×288 is nearest to the picture's 1.25:1
    (480×192: 2.5:1). Centres at (500, 400), (250, 200), (750, 600), (750, 200), (250, 600); corners at the
    multiple of 8 below."""
    seen = []
    stand_in(
        monkeypatch, lambda *a, **k: lambda *pictures: seen.append(pictures) or torch.tensor(100.0)
    )
    image = Image.linear_gradient("L").resize((1000, 800)).convert("RGB")
    reference = image.rotate(180)
    reading = ToolRunner(models=tmp_path).score("MAD", image, reference)
    corners = [(352, 256), (104, 56), (600, 456), (600, 56), (104, 456)]
    assert reading.crops == tuple((x, y, x + 288, y + 288) for x, y in corners)
    (measured,) = seen
    for picture, tensor in zip((image, reference), measured, strict=True):
        side_by_side = np.concatenate([np.asarray(picture.crop(box)) for box in reading.crops], 1)
        assert np.array_equal((tensor[0].permute(1, 2, 0) * 255).round().numpy(), side_by_side)


@pytest.mark.parametrize(
    ("tool", "size"),
    [
        ("MAD", (800, 625)),  # half a megapixel
        ("VSI", (20_000, 5_000)),  # no limit
        ("MAD", (95, 10**6)),  # narrower than a crop
        ("MS-SSIM", (170_000, 170)),  # crops of 96 rows, below the tool's least
    ],
)
def test_a_picture_that_crops_do_not_suit_is_measured_whole(tool, size):
    assert crops_of(TOOLS[tool], *size) == ()


def test_images_that_a_tool_cannot_take_are_refused(runner, photo):
    with pytest.raises(ToolError, match="TOPIQ_FR compares with a reference image and got none"):
        runner.score("TOPIQ_FR", photo)
    with pytest.raises(ToolError, match="VSI failed on an image of 192×192"):
        runner.score("VSI", photo, photo.resize((100, 90)))
    with pytest.raises(ToolError, match="NIQE needs at least 192 pixels a side, got 300×191"):
        runner.score("NIQE", photo.resize((300, 191)))
    with pytest.raises(ToolError, match="NIQE failed on an image of 200×300"):  # without texture
        runner.score("NIQE", Image.new("RGB", (200, 300), "grey"))


def test_the_list_says_how_each_tool_is_read_and_what_it_lacks(runner):
    text = " ".join(tool_table(runner.info()).split())
    assert "Raw score: lower is better, from 0 to 50." in text
    assert "Unavailable: missing weights /" in text


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("lpips", r"missing weights .*/hub/pyiqa/LPIPS_v0\.1_alex-df73285e\.pth and .*/hub/checkpoints/alexnet"),
        ("TOPIQ_FR", r"/huggingface/models--timm--resnet50\.a1_in1k \("),
        ("UNIQUE", "no map: the Table 5 row is not monotone"),
        ("CNNIQA", r"no map: fit one with python scripts/fit_tools\.py"),
        ("Entropy", "not a measure of quality"),
    ],
)  # fmt: skip
def test_tools_that_cannot_score_say_why(tmp_path, photo, tool, reason):
    weights = [*TOOLS["UNIQUE"].weights, *TOOLS["CNNIQA"].weights]
    models = store(tmp_path / "models", {f"hub/{weight}": b"" for weight in weights})
    with pytest.raises(ToolError, match=f"is unavailable: .*{reason}"):
        ToolRunner(models=models).score(tool, photo, photo)


def test_a_tool_with_its_weights_is_available(tmp_path):
    weight = f"hub/{TOOLS['TOPIQ_FR'].weights[0]}"
    snapshot = "huggingface/models--timm--resnet50.a1_in1k/snapshots/0/model.safetensors"
    models = store(tmp_path / "models", {weight: b"", snapshot: b""})
    runner = ToolRunner(models=models)
    assert runner.unavailable(["TOPIQ_FR"]) == {}
    (models / "tools" / weight).unlink()
    assert "missing weights" in runner.unavailable(["TOPIQ_FR"])["TOPIQ_FR"]


def test_configured_tools_are_built_before_the_first_picture(tmp_path):
    """What only building shows: a file of the right size with other bytes."""
    (weight,) = TOOLS["MUSIQ"].weights
    models = store(tmp_path / "models", {f"hub/{weight}": b"weights"})
    (models / "tools/hub" / weight).write_bytes(b"WEIGHTS")
    settings = Settings.model_validate({"tools": {"no_reference": ["MUSIQ"]}})
    services = Services(Request.of({"models": str(models)}).applied_to(settings))
    with pytest.raises(ConfigError, match=r"tools: MUSIQ is unavailable: .*is damaged or was chan"):
        services.prepare_tools()


@pytest.mark.parametrize("tool", sorted(WEIGHT_FREE_FR))
def test_a_copy_of_its_reference_has_the_best_score(runner, tool):
    black = Image.new("RGB", (192, 192))
    reading = runner.score(tool, black, black.copy())
    assert reading.normalized == runner.maps[tool].reachable[1]


@pytest.mark.parametrize(
    ("tool", "raw"),
    [("VIF", -0.0025), ("SSIM", 1.5), ("PSNR", math.inf), ("PSNR", math.nan), ("NIQE", 1e308), ("PIQE", None)],
)  # fmt: skip
def test_what_a_metric_cannot_mean_is_a_failure_of_that_tool(
    tmp_path, photo, monkeypatch, tool, raw
):
    stand_in(monkeypatch, lambda *a, **k: lambda *images: raw)
    with pytest.raises(ToolError, match=rf"^{tool} (returned .*which is no score|failed on)"):
        ToolRunner(models=tmp_path).score(tool, photo, photo.rotate(90))


def stand_in(monkeypatch, build):
    import pyiqa

    monkeypatch.setattr(pyiqa, "create_metric", build)


def test_a_pickle_with_code_is_refused_though_listed(tmp_path, photo, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (weight,) = TOOLS["CNNIQA"].weights
    torch.save({"params": Touch()}, tmp_path / "evil.pth")
    models = store(tmp_path / "models", {f"hub/{weight}": tmp_path / "evil.pth"})
    with pytest.raises(
        ToolError, match=r"CNNIQA could not be built on cpu: .*expected weights alone"
    ):
        ToolRunner(models=models).measure("CNNIQA", photo)
    assert not Path("touched").exists()


@pytest.mark.parametrize("damaged", ["{", "", "0" * 64 + "  ../a"])
def test_a_models_folder_whose_list_is_damaged_is_refused(damaged, tmp_path):
    (tmp_path / SUMS).write_text(damaged)
    with pytest.raises(BundleError, match=SUMS):
        ToolRunner(models=tmp_path)


def test_find_tool_forgives_spelling_and_suggests():
    spellings = {
        "topiq_fr": "TOPIQ_FR",
        "TOPIQ-FR": "TOPIQ_FR",
        "ms ssim": "MS-SSIM",
        "afine_all_scale": "A-FINE",
    }
    assert {spelling: find_tool(spelling).name for spelling in spellings} == spellings
    with pytest.raises(ToolError, match="there is no tool 'LPISP' here; did you mean LPIPS"):
        find_tool("LPISP")


def test_a_fresh_process_stays_quiet_and_leaves_llama_as_it_was(
    tmp_path,
):
    """pyiqa replaces parts of it for Q-Align, while LLaVA's language model is a Llama in the same process. A grey
    picture has no texture: NIQE makes 0 / 0 of it, and torch a warning."""
    code = f"""
import sys
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
assert not {{"torch", "pyiqa"}} & set(sys.modules)
from transformers.models.llama import configuration_llama, modeling_llama
parts = lambda: (configuration_llama.LlamaConfig, modeling_llama.LlamaAttention, modeling_llama.LlamaDecoderLayer,
                 modeling_llama.LlamaModel.forward, modeling_llama.LlamaForCausalLM.forward, sorted(vars(modeling_llama)))
before = parts()
from PIL import Image
runner, grey = ToolRunner(models={str(tmp_path)!r}), Image.new("RGB", (192, 192), "grey")
runner.score("LocalNR", grey)
assert "pyiqa" not in sys.modules
runner.measure("MS-SSIM", grey, grey)
try: runner.score("NIQE", grey)
except ToolError: pass
from pyiqa import archs
from agentic_iqa_local.iqa_tools import pyiqa_metrics
with pyiqa_metrics.without_q_align("lpips"): archs._lazy_import_arch("a class in a module of another name")
assert "pyiqa.archs.lpips_arch" in sys.modules and "pyiqa.archs.q_align" not in sys.modules
with pyiqa_metrics.llama_kept(): import pyiqa.archs.q_align.modeling_llama2
assert parts() == before
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_weight_free_tools_rank_a_photo_above_a_noisy_blur(runner, photo):
    assert {info.name for info in runner.available(full_reference=False)} == WEIGHT_FREE_NR
    blurred = np.asarray(photo.filter(ImageFilter.GaussianBlur(3)), float)
    noise = np.random.default_rng(0).normal(0, 20, blurred.shape)
    bad = Image.fromarray(np.clip(blurred + noise, 0, 255).astype(np.uint8))
    available = runner.available(full_reference=True)
    assert {info.name for info in available} == WEIGHT_FREE_FR | WEIGHT_FREE_NR
    for info in available:
        clean, spoilt = runner.score(info.name, photo, photo), runner.score(info.name, bad, photo)
        low, high = info.reachable
        assert low <= spoilt.normalized < clean.normalized <= high, info.name


def test_random_crops_repeat(tmp_path, photo, monkeypatch):
    stand_in(monkeypatch, lambda *a, **k: lambda *images: np.random.rand())
    runner = ToolRunner(models=tmp_path)
    np.random.seed(7)
    assert runner.measure("PIQE", photo) == runner.measure("PIQE", photo)
    assert np.random.rand() == np.random.RandomState(7).rand()  # the global state is as it was


@pytest.mark.parametrize("loader", ["pyiqa", "torch.hub", "urllib"])
def test_downloads_are_refused_while_a_metric_is_built(tmp_path, photo, monkeypatch, loader):
    from pyiqa.utils.download_util import load_file_from_url

    def build(*args, **options):
        # `urlopen` is looked up when called, as CLIP's downloader does
        loaders = {"pyiqa": load_file_from_url, "torch.hub": torch.hub.load_state_dict_from_url}
        loaders.get(loader, urllib.request.urlopen)("https://example.invalid/weights.pth")

    stand_in(monkeypatch, build)
    with pytest.raises(
        ToolError, match=r"PSNR could not be built on cpu: Refused to download https://example\.inv"
    ):
        ToolRunner(models=tmp_path).score("PSNR", photo, photo.rotate(180))

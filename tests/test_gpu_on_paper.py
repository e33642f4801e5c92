"""What can be shown of a GPU without one: the sizes of the shipped set-ups against the published ones, and the program on
cards that are faked at torch's own functions, from which nothing is lost."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from cards import BROKEN, FULL, GIB, Cards
from conftest import EMBEDDED, ROOT
from families import load
from published import MODELS, cache_bytes, on_meta, shapes
from scripted import in_this_process
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.integrations.accelerate import _get_device_map

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.devices import card_is_lost, choose_dtype, memory_ran_out
from agentic_iqa_local.iqa_tools.local_nr import LocalNR
from agentic_iqa_local.offline import checks
from agentic_iqa_local.offline.checks import Setup
from agentic_iqa_local.vlm_client.model_folder import WeightFiles

SET_UPS = [
    path.stem
    for path in sorted((ROOT / "configs").glob("*.yaml"))
    if path.stem != "model_backends" and "backend: transformers." in path.read_text()
]


@pytest.fixture
def cards(monkeypatch):
    """Call with the cards' GiB."""
    return lambda *sizes: Cards(monkeypatch, *sizes)


# Sizes


@pytest.fixture
def set_up(monkeypatch):
    """`set_up(name, **options)`: what the doctor examines, on the shapes of the published weights."""

    def made(name, device="cuda:0", **options):
        settings = load_settings(ROOT / "configs" / f"{name}.yaml")
        (backend,) = settings.backends
        folder = settings.folder(backend).name
        if options:
            model = settings.model(backend).model_copy(update=options)
            settings = settings.model_copy(update={"models": {folder: model}})
        monkeypatch.setattr(checks, "read_weights", lambda _: WeightFiles((), shapes(folder)))
        there = SimpleNamespace(folder=folder, config=SimpleNamespace())
        monkeypatch.setattr(Setup, "renderer", lambda *_: there)
        setup = Setup(settings)
        setup.device = device
        return setup, folder, backend

    return made


@pytest.mark.parametrize("name", SET_UPS)
def test_a_set_up_has_the_published_size_and_fits_the_card_that_it_names(name, cards, set_up):
    """Of a card 7 % are taken by CUDA and by what else there is."""
    says = (ROOT / "configs" / f"{name}.yaml").read_text()
    card, weighs = (
        float(re.search(rf"([\d.]+) GB {what}", says)[1]) for what in ("card", "of weights")
    )
    cards(0.93 * card)
    setup, folder, backend = set_up(name)
    model, published = on_meta(folder), MODELS[folder][0]
    assert model.num_parameters() / 1e9 == pytest.approx(published, abs=0.005)
    counted = checks.weight_bytes(setup, backend)
    assert counted / 1e9 == pytest.approx(weighs, rel=0.1)
    if setup.settings.model(backend).quantization == "none":
        assert counted == 2 * model.num_parameters()
    assert checks.memory(setup).status == "pass"


@pytest.mark.parametrize("name", SET_UPS)
def test_the_readme_names_the_memory_of_a_set_up(name, cards, set_up):
    """Weights, and the cache of one picture and 4,096 tokens of text; of LLaVA nine tiles and the whole, of 729 tokens. On
    a CPU numbers take twice as much, and the program 1.3 GB."""
    cards(24)
    lines = (ROOT / "README.md").read_text().splitlines()
    (row,) = [
        line for line in lines if f"`{name.removesuffix('_4bit')}`" in line and line[0] == "|"
    ]
    setup, folder, backend = set_up(name)
    most = setup.settings.model(backend).max_pixels
    side = 28 if "2.5" in folder else 32  # pixels of a token
    cache = cache_bytes(folder, 4096 + (most // side**2 if most else 10 * 729))
    needs = (checks.weight_bytes(setup, backend) + cache) / 1e9
    before, _, after = row.split("|")[4].partition(";" if ";" in row.split("|")[4] else ",")
    says = [
        float(number)
        for number in re.findall(r"(\d+)(?: GB| to)", after if "4bit" in name else before)
    ]
    assert min(says) * 0.9 < needs < max(says) * 1.1
    if "CPU" in after:
        on_cpu = float(re.search(r"(\d+) GB", after)[1])
        assert on_cpu == pytest.approx(2 * needs + 1.3, rel=0.1)


@pytest.mark.parametrize("kind", ["8bit", "4bit"])
def test_quantised_weights_take_what_the_doctor_says(kind):
    """bitsandbytes' own bytes of the embedded model, without the scales of its blocks."""
    setup = Setup(load_settings(), cpu=True)
    model = setup.settings.model("transformers.embedded")
    model = model.model_copy(
        update={"quantization": kind, "dtype": "bfloat16", "path": str(EMBEDDED)}
    )
    setup.settings = setup.settings.model_copy(update={"models": {"embedded": model}})
    real = load(EMBEDDED, quantization=kind, dtype="bfloat16").model
    taken = sum(weight.nbytes for weight in real.parameters())
    assert checks.weight_bytes(setup, "transformers.embedded") == pytest.approx(taken, rel=0.03)


def test_a_model_too_large_for_one_card_is_spread_over_two(cards, set_up):
    """As transformers' device_map: auto lays it out; nothing is left on the CPU or the disk."""
    cards(12, 12)
    setup, folder, _ = set_up("qwen2_5_vl_7b")
    assert checks.memory(setup).status == "fail"
    setup, *_ = set_up("qwen2_5_vl_7b", device_map="auto")
    assert checks.memory(setup).status == "pass"
    placed = _get_device_map(on_meta(folder), "auto", {0: 12 * GIB, 1: 12 * GIB}, None)
    assert set(placed.values()) == {0, 1}
    assert placed["model.visual"] == 0
    layers = [placed.get(f"model.language_model.layers.{number}") for number in range(28)]
    assert layers == sorted(layers)  # a token crosses from card to card once


def test_auto_is_a_half_precision_that_the_card_computes_in(cards):
    """bfloat16 came with compute capability 8.0 (Ampere); a T4 (7.5) imitates it slowly, and torch calls that support."""
    there = cards(16, 16)
    assert [choose_dtype("auto", device) for device in ("cuda:1", "cpu")] == ["bfloat16", "float32"]
    there.capability = (7, 5)
    assert choose_dtype("auto", "cuda:1") == "float16"
    assert choose_dtype("bfloat16", "cuda:1") == "bfloat16"


# Errors


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError(FULL), True),
        (torch.AcceleratorError("CUDA error: out of memory\nSearch for"), True),  # cudaMalloc's
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (torch.AcceleratorError(BROKEN), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
    ],
)
def test_what_ran_out_of_memory_is_told_from_what_broke(cards, error, ran_out):
    there = cards(16)
    assert memory_ran_out(error) == ran_out
    assert not card_is_lost(error, "cuda:0")  # the card still answers
    there.lost = True
    assert card_is_lost(error, "cuda:0") == ("illegal" in str(error))


# Commands


@pytest.fixture
def command(monkeypatch, capfd, services):
    """`command(*words)`: (status, what stdout and stderr got) of `agentic-iqa` in this process."""
    in_this_process(monkeypatch)

    def run(*words):
        status = main([*map(str, words)])
        return status, "".join(capfd.readouterr())

    return run


@pytest.fixture
def batch(photo, tmp_path):
    """`batch(n)`: the words of a command for n crops of the photograph, on the second card and quick on a CPU."""

    def of(count):
        for number in range(count):
            photo.crop((4 * number, 0, 4 * number + 96, 96)).save(tmp_path / f"{number:02d}.png")
        quick = tmp_path / "quick.yaml"
        quick.write_text("{models: {embedded: {dtype: float32}}, tools: {no_reference: [LocalNR]}}")
        words = ("assess", f"{tmp_path}/*.png", "--gpu", 1, "--config", quick)
        return *words, "--pipeline", "letters", "--out", tmp_path / "rows.jsonl"

    return of


def scored(words):
    """The pictures that have a score, each once; none failed, and no tool."""
    found = [json.loads(line) for line in words[-1].read_text().splitlines()]
    assert all(row["q"] and not row["error"] for row in found)
    assert all(tool["normalized_score"] for row in found for tool in row["tools"])
    pictures = [row["image"] for row in found]
    assert len(set(pictures)) == len(pictures)
    return len(pictures)


def test_memory_that_runs_out_in_mid_batch_costs_nothing(
    cards, command, batch, services, photo, caplog
):
    there, words = cards(24, 24), batch(10)
    read = services.tools.examine(photo.crop((0, 0, 96, 96)))
    there.patch.setattr(LocalNR, "examine", lambda *_: read)  # which takes a CPU most of the time
    full = torch.OutOfMemoryError(FULL.format(1, 24))
    there.fail(Qwen2_5_VLForConditionalGeneration, "forward", 8, full)
    assert command("assess", "--jobs", 2, *words[1:])[0] == 0
    assert scored(words) == 10
    assert "memory ran out with 2 images at once; going on with 1" in caplog.text


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [(Qwen2_5_VLForConditionalGeneration, "forward", "embedded"), (LocalNR, "examine", "LocalNR")],
)
def test_a_card_that_is_lost_in_a_batch_ends_it_and_resume_goes_on(
    cards, command, batch, owner, name, what
):
    there, words = cards(24, 24), batch(4)
    there.fail(owner, name, 3, torch.AcceleratorError(BROKEN))
    status, said = command(*words)
    assert (status, scored(words)) == (1, 2)
    *_, last = said.splitlines()
    assert last.startswith(f"error: {what} failed on ")
    assert last.endswith(
        " (CUDA error: an illegal memory access was encountered); the card has to be opened anew;"
        " the same command with --resume goes on"
    )
    there.lost = False  # as another process finds it
    assert command("assess", "--resume", *words[1:])[0] == 0
    assert scored(words) == 4


def test_a_card_that_is_too_small_is_told_with_what_to_do(cards, command, photo_path):
    cards(24, 0.015)
    status, said = command("doctor", "--gpu", 1, "--model", "embedded", "--quick")
    assert status == 1
    assert "weights 0.04 GiB; 4.04 GiB needed in all" in said  # float32
    assert (
        "remedy: pass --gpu 0, where 24.00 GiB are free; or end what takes the rest; or set" in said
    )
    status, said = command("assess", photo_path, "--gpu", 1, "--model", "embedded")
    assert status == 2
    assert said.startswith(
        "error: embedded does not fit into the free memory of cuda:1 (CUDA out of memory. Tried"
    )
    assert said.endswith(
        "; end what takes the rest, set quantization: 4bit, or take a smaller model or another GPU;"
        " the command doctor says what it needs\n"
    )


def test_a_card_that_cannot_be_used_is_told(cards, command, photo_path):
    """As of one that another process has for itself, or an old one that torch has no kernels for."""
    there = cards(24)
    there.lost = True
    assert command("assess", photo_path, "--gpu", 0, "--model", "embedded") == (
        2,
        "error: cuda:0 cannot be used (CUDA error: an illegal memory access was encountered); see"
        " nvidia-smi, use another GPU, or pass --cpu\n",
    )

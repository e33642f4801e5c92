"""certify on the sound checkout, and on faults that are planted in the product's own path."""

import json
import shutil

import numpy as np
import pytest
from conftest import EMBEDDED, ROOT
from PIL import Image

from agentic_iqa_local.cli import certify, main
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.offline.certify import certification, compare, drift, letters, reading
from agentic_iqa_local.offline.certify.arms import judge_engines, judge_formats
from agentic_iqa_local.offline.certify.certificate import Certificate, read_certificate, shipped_record
from agentic_iqa_local.offline.certify.check import Check
from agentic_iqa_local.offline.certify.identity import differences, files_of
from agentic_iqa_local.offline.certify.plain import plain_forward
from agentic_iqa_local.offline.certify.probes import make_probes, write_probes
from agentic_iqa_local.offline.certify.study import judge_study
from agentic_iqa_local.offline.certify.tools import judge_tools
from agentic_iqa_local.vlm_client import transformers_client
from agentic_iqa_local.vlm_client.rendering import Renderer

NAMES = [0, 7, 13, 14]  # the three shapes of a probe


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A quick run of the command on the checkout: (exit status, folder of its files)."""
    out = tmp_path_factory.mktemp("certify") / "out"
    return main.main(["certify", "--cpu", "--quick", "--out", str(out)]), out


@pytest.fixture(scope="module")
def probes(tmp_path_factory):
    """(folder of the pictures, names of some of them)."""
    folder = tmp_path_factory.mktemp("probes")
    made = make_probes()
    write_probes(made, folder)
    return folder, [made[i].name for i in NAMES]


@pytest.fixture(scope="module")
def plain(probes):
    settings = load_settings()
    folder, names = probes
    base = reading.read_set_up(settings, "cpu", folder, names, timed=False)
    boxes = {name: seen["box"] for name, seen in base["seen"].items()}
    return plain_forward(settings.model(settings.summarizer.backend), "cpu", folder, boxes)


@pytest.fixture
def read(probes):
    """Reads the probes by the product's own path, as it is patched in the test."""
    return lambda: reading.read_set_up(load_settings(), "cpu", *probes, timed=False)


def test_a_sound_set_up_passes_and_says_what_was_not_run(sound):
    status, out = sound
    report = json.loads((out / "certificate.json").read_text())
    found = {check["name"]: check["status"] for check in report["checks"]}
    assert status == 0, report["verdict"]
    assert report["sound"] is True
    assert set(found) == {
        "doctor",
        "record",
        "inputs",
        "plain forward",
        "batches",
        "shared prefix",
        "repeatability",
        "tools",
    }
    assert set(found.values()) == {"pass"}
    page = (out / "certificate.html").read_text()
    assert "default-src &#39;none&#39;" in page
    assert all(f"</span> {name} " in page for name in found)
    assert page.count("<script>") == 1


def test_a_run_against_its_own_file_may_be_compared_and_another_model_may_not(sound):
    ours = read_certificate(sound[1] / "certificate.json")
    same = compare.judge_against(ours, ours, "own")
    assert same.status == "pass"
    assert "may be compared: |Δq| ≤ 0" in same.verdict
    content = ours.model_dump()
    content["identity"]["versions"]["torch"] = "2.0"
    content["identity"]["settings"]["max_pixels"] = 99
    content["model"]["letters"] = {
        name: {letter: value - 0.5 * (letter == "A") for letter, value in read.items()}
        for name, read in content["model"]["letters"].items()
    }
    other = compare.judge_against(ours, Certificate.model_validate(content), "other")
    assert other.status == "fail"
    assert "may not be compared" in other.verdict
    assert any("max_pixels" in problem for problem in other.problems)
    assert any("|Δ log-probability| 0.5 " in problem for problem in other.problems)
    assert any("torch" in note for note in other.notes)


def test_the_letters_by_the_product_are_those_of_a_plain_pass(read, plain):
    base = read()
    for check in (letters.judge_inputs(base, plain, "float32"), letters.judge_plain(base, plain)):
        assert check.status == "pass", check.problems
    for judge in (letters.judge_batches, letters.judge_shared):
        assert judge(base).status == "pass", judge(base).problems


def test_a_shared_prefix_that_is_off_by_one_is_named(read, monkeypatch):
    inputs = transformers_client.TransformersSession._model_inputs

    def later(self, new, kept):
        found = inputs(self, new, kept)
        return found | ({"position_ids": found["position_ids"] + 1} if kept else {})

    monkeypatch.setattr(transformers_client.TransformersSession, "_model_inputs", later)
    base = read()
    assert "shared prefix" in letters.judge_shared(base).problems[0]
    assert letters.judge_batches(base).status == "pass"


def test_noise_in_batches_and_exchanged_colours_are_named(read, plain, monkeypatch):
    run, expand = transformers_client.TransformersClient.run, Renderer.expand

    def mixed(client, *args, **options):
        passed = run(client, *args, **options)
        return passed._replace(logits=passed.logits.flip(0))

    def exchanged(self, rendered, images):
        return expand(self, rendered, [Image.fromarray(np.asarray(image)[..., ::-1]) for image in images])

    monkeypatch.setattr(transformers_client.TransformersClient, "run", mixed)
    monkeypatch.setattr(Renderer, "expand", exchanged)
    base = read()
    assert "letters in a batch" in letters.judge_batches(base).problems[0]
    assert "red and blue" in letters.judge_inputs(base, plain, "float32").problems[0]


def test_a_dtype_that_nobody_asked_for_is_named(read, plain):
    base = read()
    assert "another dtype" in letters.judge_inputs(base, plain, "bfloat16").problems[0]


def test_letters_in_another_order_or_at_a_temperature_are_told_apart():
    rng = np.random.default_rng(0)
    true = {f"p{i}": dict(zip("ABCDE", np.log(rng.dirichlet(np.ones(5))), strict=True)) for i in range(6)}
    bound = drift.BOUNDS["float32"]
    swapped = {name: read | {"A": read["E"], "E": read["A"]} for name, read in true.items()}
    assert "A has what belongs to E" in letters.diagnosis(swapped, true, bound)
    # log-probabilities at a temperature T are the logits over T, less their logsumexp
    cooled = {name: {x: value / 0.5 for x, value in read.items()} for name, read in true.items()}
    assert "temperature of 0.50" in letters.diagnosis(cooled, true, bound)


def test_drift_is_the_largest_difference():
    ours = {f"p{i}": {x: np.log(p) for x, p in zip("ABCDE", row, strict=True)} for i, row in enumerate(
        [(0.2, 0.2, 0.2, 0.2, 0.2), (1e-9, 0.5, 0.5, 1e-9, 1e-9), (1e-9, 1e-9, 1e-9, 0.5, 0.5)])}  # fmt: skip
    theirs = {name: dict(read) for name, read in ours.items()}
    theirs["p1"] |= {"B": np.log(0.25), "C": np.log(0.75)}
    found = drift.drift(ours, theirs)
    # q of p1: (4 + 3)/2 against 4/4 + 3·3/4; ln 0.5 − ln 0.25 = ln 2; the order 3, 3.5, 1.5 stays 3, 3.25, 1.5
    assert found.q == pytest.approx(0.25, abs=1e-6)
    assert found.logprob == pytest.approx(np.log(2))
    assert found.srcc == pytest.approx(1.0)
    assert found.worst == "p1"
    assert not found.within(drift.BOUNDS["bfloat16"])


def test_every_kind_of_file_that_changed_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    record, is_ours = shipped_record(EMBEDDED)
    if not is_ours:
        pytest.skip("the record that ships is of another model")
    folder = tmp_path / "embedded"
    shutil.copytree(EMBEDDED, folder)
    recorded = {"files": record.identity["files"]}
    assert differences({"files": files_of(folder)}, recorded, "recorded") == []
    weights = load_file(folder / "model.safetensors")
    changed = next(name for name in weights if name.endswith("layers.2.mlp.up_proj.weight"))
    weights[changed] = weights[changed] * 1.01
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    processor = json.loads((folder / "processor_config.json").read_text())
    processor["image_processor"]["resample"] = 0
    (folder / "processor_config.json").write_text(json.dumps(processor))
    (folder / "chat_template.jinja").write_text((folder / "chat_template.jinja").read_text() + " ")
    named = differences({"files": files_of(folder)}, recorded, "recorded")
    assert len(named) == 3
    assert any(f"the weights differ: in model.safetensors the tensor {changed}, of" in text for text in named)
    assert any("image_processor.resample 0, recorded 3" in text for text in named)
    assert any("chat template differs" in text for text in named)


def test_tools_that_measure_otherwise_or_have_another_map_are_told_apart():
    def tools(raw=4.0, q=3.0, file="a"):
        return {"scores": {"NIQE": {"p": (raw, q)}}, "about": {"NIQE": {"niqe.mat": file}}, "failed": {}}

    assert judge_tools(tools(), tools(), "cpu").status == "pass"
    assert "the map of NIQE is another" in judge_tools(tools(q=3.2), tools(), "cpu").verdict
    assert "NIQE loads other weights" in judge_tools(tools(4.4, 3.2, "b"), tools(), "cpu").verdict
    assert (
        "NIQE measures otherwise than the CPU"
        in judge_tools(tools(4.4, 3.2), tools(4.4, 3.2), "cuda:0", tools()).verdict
    )


def test_engines_that_did_not_run_never_pass_and_formats_are_told_not_judged():
    about = {"engine": "transformers 5", "dtype": "float32", "quantization": "none"}
    base = {
        "about": about,
        "letters": {
            f"p{i}": dict(zip("ABCDE", np.log(np.roll([0.6, 0.1, 0.1, 0.1, 0.1], i)), strict=True))
            for i in range(5)
        },
    }
    alone = judge_engines(base, {"vllm": {"missing": "vLLM is not installed here"}})
    assert (alone.status, alone.verdict) == ("not run", "not run: vllm: vLLM is not installed here")
    other = {"about": about | {"engine": "vllm 0.33"}, "letters": base["letters"]}
    both = judge_engines(base, {"vllm": other, "server": {"missing": "it did not start"}})
    assert both.status == "pass"
    assert both.verdict == "Scores of vLLM float32 and transformers float32 may be compared: |Δq| ≤ 0"
    assert "server not run: it did not start" in both.notes
    far = {name: read | {"A": read["A"] - 2} for name, read in base["letters"].items()}
    formats = judge_formats(base, {"4bit": {"about": about, "letters": far}})
    assert formats.status == "reported"
    assert formats.verdict == "With scores of float32 those of 4bit may not be compared"
    assert formats.notes[0].startswith("Scores of 4bit and float32 may not be compared: |Δq| ≤ ")


def test_a_study_that_ranks_by_chance_fails():
    labels = np.arange(20.0)
    shuffled = np.random.default_rng(0).permutation(20)
    ranked = judge_study({"name": "it", "rows": list(zip(labels, labels, strict=True)), "failed": []})
    chance = judge_study({"name": "it", "rows": list(zip(shuffled, labels, strict=True)), "failed": []})
    assert (ranked.status, chance.status) == ("pass", "fail")
    assert "SRCC 1.000" in ranked.verdict


def test_ctrl_c_writes_what_there_is(tmp_path, capsys, monkeypatch):
    def interrupted(self, begin):
        self.checks.append(Check("doctor", "pass", "fine"))
        yield self.checks[-1]
        raise KeyboardInterrupt

    monkeypatch.setattr(certification.Certification, "run", interrupted)
    assert certify.main(["--cpu", "--out", str(tmp_path)]) == 130
    report = json.loads((tmp_path / "certificate.json").read_text())
    statuses = [check["status"] for check in report["checks"]]
    assert statuses[0] == "pass"
    assert set(statuses[1:]) == {"not run"}
    assert report["model"] is None
    assert report["sound"] is False
    assert report["verdict"].startswith("Not finished: 1 of 12 checks passed, none failed; 11 not run")
    assert (tmp_path / "certificate.html").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--against", str(ROOT / "pyproject.toml")], "certificate.json"),
        (["--study", "/nonexistent"], "/nonexistent: expected a data set's folder"),
        (["--restarts", "0"], "--restarts"),
        (["--only", "record,colour"], "there are doctor, record"),
        (["--config", "no_such"], "no such file or set-up"),
    ],
)
def test_wrong_usage_is_one_sentence(options, said, capsys):
    with pytest.raises(SystemExit) if "--restarts" in options else pytest.MonkeyPatch.context() as stopped:
        status = certify.main([*options, "--cpu"])
    status = stopped.value.code if "--restarts" in options else status
    assert status == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert error.count("\n") == 0

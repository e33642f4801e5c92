"""The faults: each is planted in a copy of the checkout, in a file of the model, of a tool or of the
configuration, or in a line of the product's code."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLIENT = "agentic_iqa_local/vlm_client/transformers_client.py"
BATCH = "agentic_iqa_local/vlm_client/transformers_batch.py"
RENDERING = "agentic_iqa_local/vlm_client/rendering.py"
LETTERS = "agentic_iqa_local/vlm_client/letters.py"
CLIENTS = "agentic_iqa_local/vlm_client/__init__.py"
DATA = "agentic_iqa_local/iqa_tools/data"
MODEL = "models/embedded"


@dataclass(frozen=True)
class Fault:
    """`plant` makes it in a copy of the checkout. It is found where a check fails, and named where a sentence
    of that check matches `named`; `checks` are those that should find it, as --only takes them."""

    name: str
    where: str
    plant: Callable[[Path], None]
    named: str
    checks: str = "record,inputs,plain-forward,batches,shared-prefix"

    def is_named(self, sentences: list[str]) -> bool:
        return any(re.search(self.named, sentence) for sentence in sentences)


def _code(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Replaces a piece of code, which must be there once."""

    def plant(tree: Path) -> None:
        path = tree / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file}: expected {old!r} once, found it {text.count(old)} times")
        path.write_text(text.replace(old, new), encoding="utf-8")

    return plant


def _settings(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def plant(tree: Path) -> None:
        path = tree / MODEL / file
        settings = json.loads(path.read_text(encoding="utf-8"))
        change(settings)
        path.write_text(json.dumps(settings, indent=2), encoding="utf-8")

    return plant


def _tensor(file: str, name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Changes one tensor of a safetensors file."""

    def plant(tree: Path) -> None:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file

        with safe_open(tree / file, "pt") as opened:
            metadata = opened.metadata()
        weights = load_file(tree / file)
        (key,) = [each for each in weights if each.endswith(name)]
        weights[key] = change(weights[key]).contiguous()
        save_file(weights, tree / file, metadata=metadata)

    return plant


def _niqe(tree: Path) -> None:
    from scipy.io import loadmat, savemat

    path = tree / DATA / "niqe_modelparameters.mat"
    parameters = {key: value for key, value in loadmat(path).items() if not key.startswith("__")}
    parameters["mu_prisparam"] = np.asarray(parameters["mu_prisparam"]) * 1.1
    savemat(path, parameters)


def _preprocessing(settings: dict[str, Any]) -> None:
    settings["image_processor"] |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def _both(*plants: Callable[[Path], None]) -> Callable[[Path], None]:
    def plant(tree: Path) -> None:
        for each in plants:
            each(tree)

    return plant


def _append(file: str, text: str) -> Callable[[Path], None]:
    def plant(tree: Path) -> None:
        path = tree / file
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    return plant


def _map(tree: Path) -> None:
    """NIQE's map, half a level higher."""
    path = tree / "configs" / "tool_maps.yaml"
    head, tool, rest = path.read_text(encoding="utf-8").partition("- tool: NIQE\n")
    changed = re.sub(r"  b5: (\S+)", lambda found: f"  b5: {float(found[1]) + 0.5}", rest, count=1)
    if not tool or changed == rest:
        raise ValueError(f"{path}: expected a map of NIQE")
    path.write_text(head + tool + changed, encoding="utf-8")


FAULTS = (
    Fault("other preprocessing (mean and deviation)", f"{MODEL}/processor_config.json",
          _settings("processor_config.json", _preprocessing), "preprocessing differs: .*image_mean"),
    Fault("other preprocessing (resampling)", f"{MODEL}/processor_config.json",
          _settings("processor_config.json", lambda it: it["image_processor"].update(resample=0)),
          "preprocessing differs: .*resample"),
    Fault("another dtype in the code", CLIENT,
          _code(CLIENT, "        options: dict[str, Any] = {\n", "        self.dtype = torch.bfloat16\n"
                "        options: dict[str, Any] = {\n"), "another dtype|dtype is another"),
    Fault("another dtype in the configuration", "configs/model_backends.yaml",
          _append("configs/model_backends.yaml", "models:\n  embedded:\n    dtype: bfloat16\n"),
          "dtype is another"),
    Fault("a changed chat template", f"{MODEL}/chat_template.jinja",
          _append(f"{MODEL}/chat_template.jinja", "{{ '\n' }}"),
          "chat template"),
    Fault("swapped letter tokens", LETTERS,
          _code(LETTERS, "    return ids\n", '    ids["A"], ids["E"] = ids["E"], ids["A"]\n    return ids\n'),
          "letters' tokens|letters are in another order"),
    Fault("letters in reversed order", CLIENTS,
          _code(CLIENTS, "of_letters = {letter: logprobs[token] for letter, token in token_ids.items()}",
                "of_letters = dict(zip(token_ids, [logprobs[t] for t in token_ids.values()][::-1]))"),
          "letters are in another order"),
    Fault("a padded batch without its mask", BATCH,
          _both(_code(BATCH, "    ids = rendered.prompt_with(expanded[0]) + rendered.answer_ids\n",
                      "    pad = 8 * (len(expanded) > 1)\n"
                      "    ids = [0] * pad + rendered.prompt_with(expanded[0]) + rendered.answer_ids\n"),
                _code(BATCH, "row = [0] * len(rendered.head) + types",
                      "row = [0] * (pad + len(rendered.head)) + types")),
          "letters in a batch"),
    Fault("pictures of a batch in another order", BATCH,
          _code(BATCH, "torch.cat([one.inputs[name] for one in expanded])",
                "torch.cat([one.inputs[name] for one in reversed(expanded)])"), "letters in a batch"),
    Fault("stale weights (one tensor)", f"{MODEL}/model.safetensors",
          _tensor(f"{MODEL}/model.safetensors", "layers.3.mlp.up_proj.weight",
                  lambda it: it * 1.05),
          "weights differ: .*layers.3.mlp.up_proj.weight"),
    Fault("NIQE on other parameters", f"{DATA}/niqe_modelparameters.mat", _niqe,
          "NIQE loads other weights", "tools"),
    Fault("LocalNR on other weights", f"{DATA}/local_nr.safetensors",
          _tensor(f"{DATA}/local_nr.safetensors", "picture.out.bias", lambda it: it + 0.2),
          "LocalNR loads other weights", "tools"),
    Fault("a shared prefix that is off by one position", CLIENT,
          _code(CLIENT, "torch.arange(kept, kept + len(new), device",
                "torch.arange(kept + 1, kept + 1 + len(new), device"),
          "shared prefix"),
    Fault("a temperature on the letters", CLIENT,
          _code(CLIENT, "self._advance(ids + answer, new_call=True).double().log_softmax(-1)",
                "(self._advance(ids + answer, new_call=True).double() / 0.7).log_softmax(-1)"),
          "temperature of 0.7"),
    Fault("altered tool maps", "configs/tool_maps.yaml", _map,
          "map of NIQE is another|tool maps differ", "tools"),
    Fault("noise on the logits", CLIENT,
          _code(CLIENT, "logits = output.logits[0, -1].float().cpu()",
                "logits = output.logits[0, -1].float().cpu()\n"
                "            logits = logits + 0.02 * torch.randn_like(logits)"),
          "reads do not repeat", "repeatability"),
    Fault("dropout left on", f"{CLIENT}, {MODEL}/config.json",
          _both(_code(CLIENT, "            self.model.eval()\n", "            self.model.train()\n"),
                _settings("config.json", lambda it: it["text_config"].update(attention_dropout=0.1))),
          "training mode|reads do not repeat", "inputs,repeatability"),
    Fault("a truncated max_pixels", RENDERING,
          _code(RENDERING, "        if not factor * factor <= high or low > high:",
                "        high = min(high, 160 * 160)\n        if not factor * factor <= high or low > high:"),
          "pixel limit|picture's size differs"),
    Fault("red and blue exchanged", RENDERING,
          _code(RENDERING, "images=list(images), return_tensors",
                'images=[Image.merge("RGB", each.split()[::-1]) for each in images], return_tensors'),
          "red and blue"),
)  # fmt: skip
"""More than the twelve of the bar: some have two ways."""

"""What goes into the model and what its letters are, against transformers alone and within the set-up's own
engine: batches, shared prefix, repeated reads."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from agentic_iqa_local.offline.certify.check import Check, judged, not_run
from agentic_iqa_local.offline.certify.drift import (
    REPEAT,
    Bound,
    Drift,
    Readings,
    bound_for,
    drift,
    figures,
    format_of,
    in_words,
    share_of,
)

PIXELS = {"float32": 1e-5}
"""How far a normalised pixel value may lie from what the processor makes by itself; in a half-precision
format COARSE_PIXELS, a step of bfloat16 at 2.6, the largest value."""
COARSE_PIXELS = 0.02


def label_of(about: Mapping[str, Any]) -> str:
    """Engine and number format, as in "transformers float32"."""
    engine = str(about["engine"])
    name = "vLLM server" if engine.startswith("vllm server") else engine.split(" ")[0].replace("vllm", "vLLM")
    return name if "server" in name else f"{name} {format_of(about)}"


def judge_inputs(base: Mapping[str, Any], plain: Mapping[str, Any], dtype: str | None) -> Check:
    """Prompt, letters' tokens, pixels and the model's state against what transformers makes of the same
    folder and files by itself. `dtype` is what the configuration asks for, None where it is not known."""
    model = base["model"]
    problems = _text_problems(model, plain) + _cut_pictures(base["seen"], plain["most_pixels"])
    rows: list[dict[str, Any]] = []
    of_pictures: dict[str, str] = {}  # the first of each kind, which stands before the colon
    for name, theirs in plain["inputs"].items():
        if ours := base["inputs"].get(name):
            row, problem = _input_row(name, ours, theirs, plain["exchanged"][name], base)
            rows.append(row)
            if problem:
                of_pictures.setdefault(problem.partition(":")[0], problem)
    problems += [*of_pictures.values(), *_state_problems(base, dtype)]
    notes = [] if rows else ["what goes into this engine cannot be seen, only its prompt and letters' tokens"]
    sound = "prompt, letters' tokens, pixels and dtype are what transformers makes of the folder by itself"
    return judged("inputs", problems, sound, rows, notes)


def _state_problems(base: Mapping[str, Any], dtype: str | None) -> list[str]:
    """Of the loaded model: its numbers, unless they are quantised, and its mode."""
    model, problems = base["model"], []
    if numbers := model.get("numbers"):
        held = max(numbers, key=numbers.__getitem__)
        if dtype and base["about"].get("quantization", "none") == "none" and held != dtype:
            problems.append(
                f"the model computes in another dtype than the configuration's: {held}, not {dtype}"
            )
        if model["training"]:
            problems.append("the model is in training mode, so that dropout may change its letters")
    return problems


def _text_problems(model: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    problems = []
    if "prompt" in model and model["prompt"] != plain["prompt"]:
        pairs = zip(model["prompt"], plain["prompt"], strict=False)
        at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        problems.append(
            f"the chat template's text differs from character {at} on: {model['prompt'][at : at + 40]!r}, by"
            f" transformers alone {plain['prompt'][at : at + 40]!r}"
        )
    if model["letters"] != plain["letters_tokens"]:
        other = [x for x in plain["letters_tokens"] if model["letters"].get(x) != plain["letters_tokens"][x]]
        problems.append(
            f"the letters' tokens are not those of {', '.join(other)}: {_tokens(model['letters'])}, the"
            f" tokenizer gives {_tokens(plain['letters_tokens'])}"
        )
    return problems


def _cut_pictures(seen: Mapping[str, Any], most: int | None) -> list[str]:
    """Of pictures that were read in several views although the processor would take them whole."""
    for name, what in seen.items():
        left, top, right, bottom = what["box"]
        if most and what["views"] > 1 and (whole := what["pixels"]) <= most:
            return [
                f"another pixel limit: {name} of {whole} pixels was read in {what['views']} views of"
                f" {right - left}×{bottom - top}, the processor by itself takes up to {most} pixels"
            ]
    return []


def _tokens(ids: Mapping[str, int]) -> str:
    return " ".join(f"{letter}={token}" for letter, token in ids.items())


def _input_row(
    name: str,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    exchanged: Mapping[str, Any],
    base: Mapping[str, Any],
) -> tuple[dict[str, Any], str | None]:
    """The row of one picture, and what is wrong with it."""
    dtype = str(base["about"]["dtype"])
    bound = PIXELS.get(dtype, COARSE_PIXELS)
    seen = base["seen"][name]
    shapes = [np.asarray(each["pixel_values"]).shape for each in (ours, theirs)]
    row: dict[str, Any] = {"comparison": f"pixels of {name}", "pictures": 1, "bound_pixels": bound}
    if shapes[0] != shapes[1] or not _same(ours, theirs, "image_grid_thw"):
        row |= {"within": False}
        size = "×".join(map(str, seen["size"]))
        return row, (
            f"the picture's size differs: of {name} the model saw {size} pixels in {shapes[0][0]} patches,"
            f" the processor by itself makes {shapes[1][0]} (another pixel limit?)"
        )
    apart = _apart(ours, theirs)
    row |= {"pixels": apart, "within": apart <= bound}
    if apart > bound:
        if _apart(ours, exchanged) <= bound:
            return (
                row,
                f"the pixels have red and blue exchanged (BGR): {name} is what its picture in BGR makes",
            )
        return row, (
            f"the pixels differ from the processor's own: by up to {apart:.3g} in {name} (bound {bound:g}):"
            " another preprocessing"
        )
    if not _same(ours, theirs, "input_ids"):
        row |= {"within": False}
        return row, f"the tokens differ: {name} has other ones than the processor makes of the prompt"
    return row, None


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any], key: str) -> bool:
    return key not in ours or key not in theirs or np.array_equal(ours[key], theirs[key])


def _apart(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    return float(np.abs(np.asarray(ours["pixel_values"]) - np.asarray(theirs["pixel_values"])).max())


def judge_plain(base: Mapping[str, Any], plain: Mapping[str, Any]) -> Check:
    """The letters against a plain pass in float32. A quantised model is told, not judged."""
    kind, bound = format_of(base["about"]), bound_for(base["about"])
    found = drift(base["letters"], plain["letters"])
    label = label_of(base["about"])
    row = figures(f"{label} against a plain float32 pass", found, bound)
    where = [f"the plain pass ran on {plain['device']}"]
    if kind in ("8bit", "4bit"):
        words = "may" if found.comparable(bound) else "may not"
        verdict = f"letters of {label} {words} be compared with those of float32: {in_words(found, bound)}"
        return Check("plain forward", "reported", verdict, (), (row,), tuple(where))
    problems = []
    if not found.within(bound):
        hint = diagnosis(base["letters"], plain["letters"], bound)
        problems.append(
            f"the letters differ from a plain pass{hint}: {in_words(found, bound)}, worst {found.worst}"
        )
    sound = f"the letters of {label} are those of a plain float32 pass: {in_words(found, bound)}"
    return judged("plain forward", problems, sound, [row], where)


def diagnosis(ours: Readings, theirs: Readings, bound: Bound) -> str:
    """What would make the difference, in brackets: letters in another order, or a temperature."""
    letters = list(next(iter(ours.values())))
    for order in itertools.permutations(letters):
        named = dict(zip(letters, order, strict=True))
        moved = {name: {named[x]: value for x, value in read.items()} for name, read in ours.items()}
        if list(order) != letters and drift(moved, theirs).logprob <= bound.logprob:
            other = ", ".join(f"{x} has what belongs to {y}" for x, y in named.items() if x != y)
            return f" (the letters are in another order: {other})"
    x, y = _centred(theirs), _centred(ours)
    slope = float((x @ y) / (x @ x)) if x @ x else 1.0
    left = float(np.abs(y - slope * x).max())
    if abs(slope - 1) > 0.02 and slope > 0 and left <= 0.05 * float(np.abs(y).max()):
        return f" (as if divided by a temperature of {1 / slope:.2f}: no raw log-probabilities)"
    return ""


def _centred(readings: Readings) -> np.ndarray:
    """Each picture's log-probabilities less their mean, in one row."""
    rows = [np.array(list(letters.values())) for letters in readings.values()]
    return np.concatenate([row - row.mean() for row in rows])


def judge_batches(base: Mapping[str, Any]) -> Check:
    """Pictures in batches against the same pictures alone."""
    bound, batches = bound_for(base["about"]), base["batches"]
    if "failed" in batches:
        return judged("batches", [f"letters in a batch could not be read: {batches['failed']}"], "")
    rows, problems = [], []
    for size in (key for key in batches if key.isdigit()):
        theirs = {name: batches["alone"][name.partition("#")[0]] for name in batches[size]}
        found = drift(batches[size], theirs)
        rows.append(figures(f"batches of {size} against alone", found, bound))
        if not found.within(bound):
            problems.append(
                f"letters in a batch of {size} are not those of the picture alone: {in_words(found, bound)},"
                f" worst {found.worst.partition('#')[0]}"
            )
    passes = ", ".join(f"{size} in {count}" for size, count in batches["passes"].items())
    sound = f"a picture's letters are the same alone and in batches: {_worst(rows, bound)}"
    return judged(
        "batches", problems, sound, rows, [f"pictures in passes of the model, of the last batch: {passes}"]
    )


def judge_shared(base: Mapping[str, Any]) -> Check:
    """The letters after another prompt, from the cache that the two share, against those from nothing."""
    shared = base["shared"]
    if "failed" in shared:
        return judged("shared prefix", [f"after another prompt nothing was read: {shared['failed']}"], "")
    if not shared["reused"]:
        return not_run("shared prefix", "the engine reused no token (share_prefix: false, or a short prefix)")
    bound = bound_for(base["about"])
    found = drift(shared["letters"], base["letters"])
    row = figures("shared prefix against none", found, bound)
    problems = []
    if not found.within(bound):
        problems.append(
            f"letters that continue from a shared prefix (its cache) are not those from nothing:"
            f" {in_words(found, bound)}, worst {found.worst}"
        )
    sound = f"letters from a shared prefix are those from nothing: {in_words(found, bound)}"
    return judged("shared prefix", problems, sound, [row], [f"{shared['reused']} tokens were reused"])


def judge_repeats(base: Mapping[str, Any], restarts: Mapping[str, Any]) -> Check:
    """The same read once more: in the same process, and in fresh ones."""
    bound = share_of(bound_for(base["about"]), REPEAT)
    rows, problems = [], []
    reads = {"the same process": base["again"]} | {name: one["letters"] for name, one in restarts.items()}
    for name, letters in reads.items():
        found = drift(letters, base["letters"])
        rows.append(figures(f"read again in {name}", found, bound))
        if not found.within(bound):
            problems.append(
                f"reads do not repeat: once more in {name} {in_words(found, bound)}, worst {found.worst}"
            )
    sound = f"{len(rows)} repeated reads, {len(restarts)} in fresh processes, agree: {_worst(rows, bound)}"
    return judged("repeatability", problems, sound, rows)


def _worst(rows: list[dict[str, Any]], bound: Bound) -> str:
    rank = [row["srcc"] for row in rows if row["srcc"] is not None]
    worst = Drift(
        rows[0]["pictures"],
        max(row["logprob"] for row in rows),
        max(row["q"] for row in rows),
        min(rank) if rank else math.nan,
        "",
    )
    return in_words(worst, bound)


def judge_speed(base: Mapping[str, Any]) -> Check:
    """Ratios of times of one process; told, not judged."""
    seconds = base["seconds"]
    ratios = {
        "a read from nothing against one from the shared prefix": (seconds["fresh"], seconds["shared"]),
        "a picture alone against one in a batch of 8": (seconds["alone"], seconds["batch"]),
    }
    rows = tuple(
        {"comparison": what, "slow_seconds": slow, "fast_seconds": fast, "ratio": slow / max(fast, 1e-9)}
        for what, (slow, fast) in ratios.items()
    )
    verdict = (
        f"a read from the shared prefix takes 1/{rows[0]['ratio']:.1f} of one from nothing, a picture in a"
        f" batch of 8 1/{rows[1]['ratio']:.1f} of one alone"
    )
    return Check("speed", "reported", verdict, (), rows)

"""The model card of a trained folder: README.md from training.json (how it was made) and evaluation.json (how
well it does)."""

import json
from pathlib import Path

from agentic_iqa_local.offline.assembly import DELTA, RECORD, VISION, WEIGHTS, read_record
from agentic_iqa_local.offline.store import file_hash
from agentic_iqa_local.provenance import machine

PACKAGES = ("torch", "transformers", "tokenizers", "pyiqa", "numpy", "scipy", "pillow")
BARS = {  # key: (what, bar)
    "srcc": ("SRCC of E[level] with pseudo-MOS, image alone", 0.85),
    "family": ("distortion family, severity 2 and above or clean, 8 classes", 0.80),
    "clean": ("clean pictures called clean", 0.75),
    "severity": ("severity word within one step", 0.82),
    "hand_written": ("plans right in every field, 200 hand-written queries", 0.85),
    "fields": ("plans, mean over fields, hand-written queries", 0.96),
    "yes_no": ("balanced yes/no questions", 0.80),
    "four_choice": ("four-choice questions", 0.65),
    "free": ("40 free questions, by a written key", 0.70),
    "true": ("reasonings of damaged pictures true of type and strength", 0.80),
    "order": ("order bias: mean change of E[level] when the letters are reassigned", 0.15),
}
LOWER = {"order"}


def weights_hash(folder: Path) -> str:
    """SHA-256 of the weights of a model's folder, or of what the parts in `folder` are assembled to."""
    if (folder / RECORD).exists():
        return read_record(folder).model.sha256
    return file_hash(folder / WEIGHTS)


def environment(threads: int) -> dict:
    """Machine and versions, for the record."""
    return machine(PACKAGES) | {"threads": threads}


def training_seconds(rows: list[dict]) -> float:
    """Seconds that a phase took over all its runs: the clock of a resumed run begins at 0 again."""
    ends = [
        row["seconds"]
        for row, after in zip(rows, [*rows[1:], {"seconds": 0}], strict=True)
        if after["seconds"] < row["seconds"]
    ]
    return float(sum(ends))


def write_training(
    folder: Path, options: dict, photographs: dict, curve: list[dict], threads: int, notes: str
) -> None:
    """training.json: options, photographs, machine, hours and a curve of at most 40 points a phase."""
    phases = {}
    for row in curve:
        phases.setdefault(row["phase"], []).append(row)
    thinned = {name: rows[:: max(1, len(rows) // 40)] for name, rows in phases.items()}
    record = {
        "weights_sha256": weights_hash(folder),
        "options": options,
        "photographs": photographs,
        "notes": notes,
        "environment": environment(threads),
        "hours": round(sum(training_seconds(rows) for rows in phases.values()) / 3600, 2),
        "curve": thinned,
    }
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _figure(figure: dict, percent: bool) -> str:
    if percent:
        return f"{figure['value']:.1%} | {figure['low']:.1%} to {figure['high']:.1%}"
    return f"{figure['value']:.3f} | {figure['low']:.3f} to {figure['high']:.3f}"


def _bar_rows(figures: dict) -> list[str]:
    synthetic, plans = figures["synthetic"], figures["plans"]["hand_written"]
    found = {
        "srcc": synthetic["srcc"]["image_alone"],
        "family": synthetic["family_severity_2_and_above_or_clean"],
        "clean": synthetic["clean_called_clean"],
        "severity": synthetic["severity_within_one_step"],
        "hand_written": plans["every_field"],
        "fields": plans["mean_over_fields"],
        "yes_no": synthetic["yes_no"],
        "four_choice": synthetic["four_choice"],
        "free": figures["free"]["right"],
        "true": figures["reasonings"]["true_type_and_strength"],
        "order": synthetic["order_bias"],
    }
    rows = []
    for key, (what, bar) in BARS.items():
        percent = key not in ("srcc", "order")
        reached = found[key]["value"] <= bar if key in LOWER else found[key]["value"] >= bar
        wanted = f"{bar:.0%}" if percent else f"{bar:.2f}"
        rows.append(
            f"| {what} | {_figure(found[key], percent)} | {wanted} | {'yes' if reached else '**no**'} |"
        )
    return rows


def _option(value) -> str:
    return " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def write_card(folder: Path) -> None:
    """README.md of a folder of parts. Raises ValueError when a record is of other weights than those that the
    parts make."""
    training, figures = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("training", "evaluation")
    )
    digest = weights_hash(folder)
    for name, record in (("training", training), ("evaluation", figures)):
        if record["weights_sha256"] != digest:
            raise ValueError(
                f"{folder / name}.json: describes weights {record['weights_sha256'][:12]}, the folder has"
                f" {digest[:12]}"
            )
    sizes = [(folder / name).stat().st_size / 1e6 for name in (VISION, DELTA)]
    fields = {
        "vision_size": sizes[0],
        "delta_size": sizes[1],
        "digest": digest,
        "record": read_record(folder),
        "told": figures["reasonings"],
        "plans": figures["plans"],
        "bars": "\n".join(_bar_rows(figures)),
        "fields": _shares(figures["plans"]["hand_written"]["by_field"]),
        **_training_fields(training),
        **_synthetic_fields(figures["synthetic"]),
        **_other_fields(figures),
    }
    (folder / "README.md").write_text(TEMPLATE.format(**fields), encoding="utf-8")


def _shares(figures: dict) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in figures.items())


def _training_fields(training: dict) -> dict:
    """What the card says of how the model was made."""
    made_on = training["environment"]
    options = training["options"].items()
    return {
        "photographs": training["photographs"],
        "notes": training["notes"],
        "options": " ".join(f"--{k.replace('_', '-')} {_option(v)}" for k, v in options),
        "environment": ", ".join(f"{k} {v}" for k, v in made_on.items() if k != "machine"),
        "machine": made_on["machine"],
        "hours": training["hours"],
    }


def _synthetic_fields(synthetic: dict) -> dict:
    """What the card says of the fixed test set."""

    def levels(by_severity: dict) -> str:
        return ", ".join(f"{value:.2f}" for value in by_severity.values())

    return {
        "synthetic": synthetic,
        "samples": synthetic["samples"],
        "test_photographs": synthetic["photographs"],
        "seed": synthetic["seed"],
        "srcc": "\n".join(
            f"| {name.replace('_', ' ')} | {_figure(figure, False)} |"
            for name, figure in synthetic["srcc"].items()
        ),
        "families": _shares(synthetic["family_by_type"]),
        "severity_1": _figure(synthetic["family_severity_1"], True).replace(" | ", ", "),
        "levels": levels(synthetic["mean_level_by_severity"]),
        "targets": levels(synthetic["mean_target_by_severity"]),
    }


def _other_fields(figures: dict) -> dict:
    """What the card says of free questions, of human scores, and of each look at them."""
    free = figures["free"]
    human = [
        f"| {name} | {look['figure']['srcc']['value']:.3f} | {look['figure']['srcc']['low']:.3f} to"
        f" {look['figure']['srcc']['high']:.3f} | {look['figure']['interval_over']} |"
        for name, look in figures["human_scores"].items()
    ]
    looks = [
        f"- {look['date']}, {look['set']}: {look['srcc']:.3f} (weights {look['weights_sha256'][:12]})"
        for look in figures["looks"]
    ]
    return {
        "free": free,
        "by_type": ", ".join(
            f"{kind} {answers['right']} of {answers['n']}" for kind, answers in free["by_type"].items()
        ),
        "human": "\n".join(human) or "| none yet | | | |",
        "looks": "\n".join(looks) or "- none yet",
    }


TEMPLATE = (Path(__file__).parent / "card_template.md").read_text(encoding="utf-8")

"""What a run says at its end: one sentence, one JSON file, one page."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from agentic_iqa_local.files import write_whole
from agentic_iqa_local.offline.certify.certification import CHECKS, Certification
from agentic_iqa_local.output import pages
from agentic_iqa_local.text import printable

JSON, PAGE = "certificate.json", "certificate.html"


def verdict_of(certification: Certification) -> str:
    """One sentence on all checks, and on those that nobody asked for."""
    checks, asked = certification.checks, {name for name, _, _ in certification.plan}
    count = {
        status: sum(check.status == status for check in checks) for status in ("pass", "fail", "not run")
    }
    missing = f"; {count['not run']} not run" if count["not run"] else ""
    if left_out := [name for name in CHECKS if name not in asked and name != "against"]:
        missing += f"; not asked for: {', '.join(left_out)}"
    if count["fail"]:
        names = ", ".join(check.name for check in checks if check.status == "fail")
        return f"Not sound: {count['fail']} of {len(checks)} checks failed ({names}){missing}."
    if certification.interrupted or len(checks) < len(asked):
        return f"Not finished: {count['pass']} of {len(asked)} checks passed, none failed{missing}."
    if not count["pass"]:
        return f"Nothing was found out: no check passed or failed{missing}."
    return f"Sound: {count['pass']} checks passed, none failed{missing}."


def write(certification: Certification, out: Path) -> tuple[Path, Path]:
    """Writes certificate.json and certificate.html into the folder `out`, which is made. Raises WriteError,
    OSError."""
    out.mkdir(parents=True, exist_ok=True)
    report = as_dict(certification)
    write_whole(out / JSON, json.dumps(report, indent=1, ensure_ascii=True, allow_nan=False))
    write_whole(out / PAGE, page(report))
    return out / JSON, out / PAGE


def as_dict(certification: Certification) -> dict[str, Any]:
    """The certificate with the checks and the verdict, for JSON: numbers that are none are null."""
    checks = certification.checks
    head = {
        "verdict": verdict_of(certification),
        "sound": verdict_of(certification).startswith("Sound"),
        "device": certification.wanted.device,
        "checks": [asdict(check) for check in checks],
    }
    return _finite(head | certification.certificate.model_dump())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(report: dict[str, Any]) -> str:
    """The page of a report: it opens from disk and asks nothing of the network."""
    environment = pages.environment()
    environment.filters |= {"shown": _shown, "columns": _columns}
    style, script = pages.source("report.css", "certify.css"), pages.source("report.js")
    text = environment.get_template("certify.html.jinja").render(
        report=report, style=Markup(style), script=Markup(script), policy=pages.policy(style, script)
    )
    return printable(text)


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [name for name in dict.fromkeys(key for row in rows for key in row) if name != "words"]


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

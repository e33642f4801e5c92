"""The report's page: one HTML file with style, script and pictures inside, which asks nothing of the network.

Text of rows (queries, file names, a model's words) is untrusted: it is escaped wherever it goes, and the
page's policy runs no script but the one of this package.
"""

import base64
import json
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from markupsafe import Markup

from agentic_iqa_local.errors import printable
from agentic_iqa_local.files import write_whole
from agentic_iqa_local.images.reading import ImageError, load_image
from agentic_iqa_local.output import pages
from agentic_iqa_local.studies.plots import Drawing
from agentic_iqa_local.studies.report import (
    DATASETS_TABLE,
    columns_of,
    over_datasets,
    shown,
    tables_of,
)
from agentic_iqa_local.studies.study import Study, Table, number
from agentic_iqa_local.studies.summary import summarize

THUMBNAIL = 320  # pixels of the longest side
FIRST = (
    "differences",
    "scatter",
    "reliability",
    "risk_coverage",
    "intervals",
)  # the page shows these at once
TOPICS = {
    "winner": "Which mode won",
    "difference": "By how much",
    "significance": "Is it significant",
    "leaks": "What is leaked",
    "failures": "What failed",
}


def write_html(parts: Sequence[tuple[Study, Sequence[Drawing]]], file: Path, *, pictures: bool) -> None:
    """One page with a section for each study and its drawings. `pictures` puts the worst images' thumbnails
    into it."""
    environment = pages.environment(Path(__file__).parent)
    environment.filters |= {"number": number, "uri": _uri, "json": _json, "cells": _cells}
    style, script = pages.source("report.css"), pages.source("report.js")
    page = environment.get_template("report.html.jinja").render(
        parts=parts,
        style=Markup(style),
        script=Markup(script),
        policy=pages.policy(style, script),
        topics=TOPICS,
        summarize=summarize,
        first=FIRST,
        over_datasets=(*DATASETS_TABLE, over_datasets([study for study, _ in parts])) if parts[1:] else None,
        tables_of=tables_of,
        thumbnail=_thumbnail if pictures else None,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, printable(page))


def _cells(table: Table) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """Headers, and cells as (what is shown, the number to sort by or nothing)."""
    headers, cells = shown(table)
    keys = columns_of(table)
    return headers, [
        [(text, _sort_key(row.get(key))) for text, key in zip(line, keys, strict=True)]
        for row, line in zip(table, cells, strict=True)
    ]


def _sort_key(value: Any) -> str:
    known = isinstance(value, int | float) and not math.isnan(value)
    return repr(float(value)) if known else ""


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


def _thumbnail(row: dict[str, Any]) -> str | None:
    """A small JPEG of a row's image as a data URI; None where it cannot be read any more."""
    try:
        image = load_image(row["image"]).pixels
    except ImageError:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = BytesIO()
    image.save(content, "JPEG", quality=80)
    return _uri(content.getvalue(), "jpeg")

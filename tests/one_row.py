"""Rows of each kind, and what each surface shows of a row: terminal, pages, tables, chat completions, MCP."""

import csv
import io
import json

from browser import browser_page

from agentic_iqa_local.output.account import parts_of
from agentic_iqa_local.output.comparison_report import headline_of
from agentic_iqa_local.output.gallery.page import write_gallery
from agentic_iqa_local.output.pages import ACCOUNT
from agentic_iqa_local.output.report import account, summary
from agentic_iqa_local.output.tables import csv_text
from agentic_iqa_local.result import Assessment
from agentic_iqa_local.serve.app import PAGE
from agentic_iqa_local.serve.bodies import Completion
from agentic_iqa_local.serve.mcp_server import short

ORIGIN = "http://page.test"
CONDITION = {"pipeline": "agent", "reference": False, "look": "one order"}
CALIBRATED = {"coverage": 0.9, "calibrated_on": "a set"}
BLOCKS = {"type": "Compression", "severity": "severe", "explanation": "Blocks show in the sky."}
DARK = {"type": "Brightness change", "severity": "slight", "explanation": "Shadows are closed."}
EVIDENCE = {
    "distortion_set": {"Global": ["Compression", "Brightness change"]},
    "distortion_analysis": {"Global": [BLOCKS, DARK]},
    "detection": {"Global": {"exposure": {"too dark": 0.8, "too bright": 0.1}}},
}
TOOL = {"tool_name": "LocalNR", "object_name": "Global", "distortion": "Overall quality"}
SCALE = "higher is better, from 1 to 5"
MEASURED = {"raw_score": 2.345, "normalized_score": 2.345, "scale": SCALE, "execution_time": 0.25}
RUNS = [TOOL | MEASURED]
WORST = {
    "box": (0, 0, 96, 96),
    "place": "top left",
    "q": 1.23,
    "below": 1.11,
    "distortion": "Compression",
    "probability": 0.8,
    "severity": "extreme",
}
MAP = {
    "tile": 96, "stride": 48, "xs": [0, 96, 192], "ys": [0, 96, 192], "q": [[1.23, 3.0], [3.0, 3.0]],
    "letters": [[1.0, 3.0], [3.0, 3.0]], "tool": [[1.3, 3.0], [3.0, 3.0]], "tool_weight": 0.8, "median": 2.34,
    "worst": [WORST], "cost": {"tiles": 9, "tokens": 99, "seconds": 1.5},
}  # fmt: skip
COMMON = {
    "query": "Rate the perceptual quality of this image.", "evidence": EVIDENCE, "tools": RUNS,
    "seconds": 3.25, "warnings": ["a thing to know"], "quality_reasoning": "Blocks show, and it is dark.",
    "model": {"name": "a model", "device": "cpu", "dtype": "float32", "notice": None}, "sha256": "0" * 64,
    "tokens": {"prefilled": 1234, "reused": 567, "decoded": 89},
}  # fmt: skip
LETTERS = {"mode": "logits", "off_letter_mass": 0.01}
CHOICE = {
    "query": "Which distortion is the strongest?",
    "choices": ["blur", "noise", "compression", "none"],
    "final_answer": "C",
    "fusion": LETTERS
    | {
        "vlm_letter": "D",
        "p_c": {"A": 0.21, "B": 0.22, "C": 0.26, "D": 0.31},
        "measured": {"A": 0.10, "B": 0.05, "C": 0.65, "D": 0.20},
        "product": {"A": 0.08, "B": 0.04, "C": 0.64, "D": 0.24},
        "measurement": "LocalNR's reading of which distortion is the strongest",
    },
    "answer_set": CALIBRATED | {"letters": ["C", "D"]},
}
RATING = {
    "final_answer": "D",
    "fusion": LETTERS
    | {
        "vlm_letter": "C",
        "p_c": {"A": 0.02, "B": 0.11, "C": 0.42, "D": 0.32, "E": 0.13},
        "q": 2.31,
        "q_bar": 2.345,
        "eta": 1.25,
        "sigma": 0.63,
        "dq_dqbar": 0.71,
        "alpha": {1: 0.1, 2: 0.6, 3: 0.2, 4: 0.07, 5: 0.03},
        "voters": ["LocalNR"],
    },
    "interval": CALIBRATED | {"low": 1.62, "high": 3.14, "difficulty": 0.5, "condition": CONDITION},
    "gate": {"at_least": 3.5, "probability": 0.03, "error_rate": 0.1, "verdict": "fail"},
    "map": MAP,
}
WORDS = {"query": "What grows here?", "final_answer": "A fern beside a path.", "tools": []}
UNSURE = {
    "not_sure": "not sure: the interval is 1.52 levels wide, more than 1",
    "gate": None,
    "map": None,
    "no_map": "map: the picture is too small for one",
}
FAILED = {"error": "a.png: expected a picture, got a text; look", "evidence": None, "tools": []}


def row_of(image: str = "a.png", **fields) -> Assessment:
    return Assessment.model_validate(COMMON | {"image": image} | fields)


def texts(row: Assessment) -> dict[str, str]:
    """By surface, the text that it shows of a row, without the pages."""
    completion = Completion(messages=[]).reply(row, "a model")
    told = json.loads(bytes(completion.body))
    return {
        "terminal": " ".join(summary(row).split()),
        "explain": " ".join(account(row).split()),
        "chat": " ".join(told["choices"][0]["message"]["content"].split()),
        "mcp": headline_of(row),
    }


def data(row: Assessment) -> dict[str, dict]:
    """By surface, the fields that it gives of a row."""
    told = json.loads(bytes(Completion(messages=[]).reply(row, "a model").body))
    (line,) = csv.DictReader(io.StringIO(csv_text([row])))
    return {"chat": told["row"], "mcp": short(row.to_dict()), "csv": line}


def open_service_page(page, row: Assessment) -> None:
    """The service's page with its answer to one picture: this row."""

    def answer(route):
        path = route.request.url.removeprefix(f"{ORIGIN}/").partition("?")[0] or "index.html"
        if path == "v1/info":
            about = {"model": "a model", "device": "cpu", "version": "1"}
            about |= {"limits": {"bytes": 10**8, "pictures": 9}, "token_required": False}
            return route.fulfill(json=about | {"small_model": False})
        if path.startswith("v1/"):
            events = {"accounts": [parts_of(row)], "row": row.to_dict()}
            told = [f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events.items()]
            return route.fulfill(body="".join(told), content_type="text/event-stream")
        file = PAGE / path
        return route.fulfill(path=file if file.exists() else ACCOUNT / path)

    page.unroute_all()
    page.route(f"{ORIGIN}/**", answer)
    page.goto(ORIGIN)
    page.wait_for_selector("#presets button")


def ask_service_page(page, files: list[dict]) -> str:
    """The text of the answer to pictures."""
    page.set_input_files("#image", files)
    page.click("#go")
    page.wait_for_selector("article.answer, .failed")
    return page.inner_text("#answer")


def open_gallery(page, rows: list[Assessment], folder) -> None:
    write_gallery(rows, folder / "gallery.html", name="rows.jsonl")
    page.goto((folder / "gallery.html").as_uri())


def pages(rows: list[Assessment], folder) -> list[dict[str, str]]:
    """Of each row, by page, the text that Chromium shows of it."""
    file = {"name": "a.png", "mimeType": "image/png", "buffer": (folder / "a.png").read_bytes()}
    shown = []
    with browser_page() as watched:
        page = watched.page
        for row in rows:
            open_service_page(page, row)
            told = {"service": ask_service_page(page, [file])}
            open_gallery(page, [row], folder)
            page.locator(".card").first.click()
            told["gallery"] = page.inner_text("#content")
            shown.append({name: " ".join(text.split()) for name, text in told.items()})
        assert watched.complaints == []
    return shown

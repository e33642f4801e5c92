"""The contract's command lines, as users type them, and what is kept of each answer."""

import base64
import csv
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pictures import ROOT

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # two threads differ from one by up to 4e-5
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": str(ROOT),
    "NO_COLOR": "1",
    "COLUMNS": "100",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",  # as with_env.sh: pyiqa's tools are several times slower without
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
}
SCRIPTS = {
    name: [f"scripts/{name}.py"]
    for name in ("assess", "doctor", "gallery", "serve", "fetch_models", "study", "training/synthetic")
}
LONGEST = 900  # seconds of one command, on a busy machine too


@dataclass
class Done:
    """A command that ended."""

    status: int
    out: str
    err: str

    def kept(self, **more: Any) -> dict[str, Any]:
        return {"status": self.status, "traceback": "Traceback (most recent" in self.err + self.out, **more}

    def rows(self) -> dict[str, Any]:
        return self.kept(rows=lines(self.out))


class Shell:
    """Runs commands in a folder of pictures."""

    def __init__(self, folder: Path):
        self.folder = folder
        removed = ("AGENTIC_IQA_MODELS", "AGENTIC_IQA_TOKEN", "AGENTIC_IQA_SERVER_KEY")
        self.environment = {key: value for key, value in os.environ.items() if key not in removed} | ENVIRONMENT
        self.environment["XDG_STATE_HOME"] = str(folder / "state")

    def words(self, *words: str) -> list[str]:
        if words[0] in SCRIPTS:
            return [sys.executable, str(ROOT / "scripts" / f"{words[0]}.py"), *words[1:]]
        return [sys.executable, "-m", "agentic_iqa_local", *words]

    def run(self, *words: str, stdin: str = "") -> Done:
        done = subprocess.run(
            self.words(*words),
            cwd=self.folder, env=self.environment, input=stdin, capture_output=True, text=True, timeout=LONGEST,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **options: Any) -> subprocess.Popen:
        return subprocess.Popen(
            self.words(*words), cwd=self.folder, env=self.environment, start_new_session=True, **options
        )

    def lines(self, name: str) -> list:
        return lines((self.folder / name).read_text())

    def table(self, name: str) -> list[dict]:
        """A CSV file, its numbers as numbers."""
        with (self.folder / name).open(encoding="utf-8-sig", newline="") as file:
            return [{key: number(cell) for key, cell in row.items()} for row in csv.DictReader(file)]

    def page(self, name: str, *names: str) -> dict[str, Any]:
        """Of an HTML file: whether it is one, and which of the names it holds."""
        text = (self.folder / name).read_text()
        return {
            "html": text.lstrip().lower().startswith("<!doctype html"),
            "names": [n for n in names if n in text],
        }


def lines(text: str) -> list:
    return [json.loads(line) for line in text.splitlines()]


def number(cell: str) -> str | float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell


def scores(text: str) -> list[str]:
    """The scores that a text for people shows."""
    return re.findall(r"\bq (\d\.\d\d)\b", text)


CALLS: dict[str, Callable[[Shell], Any]] = {}


def call(function: Callable[[Shell], Any]) -> Callable[[Shell], Any]:
    CALLS[function.__name__] = function
    return function


# Assessments


@call
def agent_sample(shell: Shell):
    return shell.run("assess").rows()


@call
def agent_explained(shell: Shell):
    done = shell.run("assess", "sample.png", "--explain", "--cpu")
    return done.kept(q=scores(done.out), tools=[name for name in ("LocalNR", "NIQE") if name in done.out])


@call
def agent_manifest(shell: Shell):
    return shell.run("assess", "--manifest", "list.csv", "--cpu").rows()


@call
def letters_set_up(shell: Shell):
    """A list of pictures by one's own configuration and model's folder."""
    set_up = ("--config", "mine.yaml", "--model", str(ROOT / "models" / "embedded"), "--cpu")
    how = ("--pipeline", "letters", "--mode", "classification")
    return shell.run("assess", "--manifest", "list.jsonl", *set_up, *how).rows()


@call
def letters_reference_folder(shell: Shell):
    names = [f"pictures/leaf_{name}" for name in ("q8.jpg", "blur.png", "noise.png")]
    done = shell.run("assess", *names, "--reference", "originals", "--pipeline", "letters", "--mode", "uniform")
    return done.rows()


@call
def letters_folder(shell: Shell):
    """A folder with damaged files, as rows, table and gallery, behind a gate; then a gallery of the rows."""
    options = ("--pipeline", "letters", "--at-least", "Good", "--strict", "--background", "white")
    outputs = ("--out", "mixed.jsonl", "--csv", "mixed.csv", "--gallery", "mixed.html")
    done = shell.run("assess", "mixed", *options, *outputs)
    names = ("leaf.png", "leaf_q8.jpg", "tower.png", "words.png", "crushed.png")
    gallery = shell.run("gallery", "mixed.jsonl", "--out", "again.html")
    return done.kept(
        silent=not done.out,
        rows=sorted(shell.lines("mixed.jsonl"), key=lambda row: row["image"]),
        run=sorted(json.loads((shell.folder / "mixed.jsonl.run.json").read_text())),
        table=sorted(shell.table("mixed.csv"), key=lambda row: row["image"]),
        page=shell.page("mixed.html", *names),
        gallery=gallery.kept(page=shell.page("again.html", *names)),
    )


@call
def letters_abstained(shell: Shell):
    """Too unsure answers, held back; a named pipe that nobody writes to, and a link that leads nowhere."""
    names = ("pictures/leaf.png", "pictures/drawing.png", "broken/pipe.png", "broken/nowhere.png")
    held_back = ("--abstain-wider-than", "0.9", "--strict")
    return shell.run("assess", *names, "--pipeline", "letters", *held_back).rows()


@call
def letters_timeout(shell: Shell):
    return shell.run("assess", "pictures/leaf.png", "--pipeline", "letters", "--timeout", "0.001").rows()


@call
def terminal(shell: Shell):
    """Several pictures on a terminal."""
    master, slave = pty.openpty()
    words = ("assess", "pictures/leaf.png", "pictures/leaf_blur.png", "pictures/tower.png")
    process = shell.start(*words, "--pipeline", "letters", stdin=slave, stdout=slave, stderr=subprocess.PIPE, text=True)
    os.close(slave)
    _, errors = process.communicate(timeout=LONGEST)
    text = os.read(master, 100_000).decode()
    os.close(master)
    order = re.findall(r"leaf_blur\.png|leaf\.png|tower\.png", text)
    return Done(process.returncode, text, errors).kept(order=order, q=re.findall(r"\b[1-5]\.\d\d\b", text))


@call
def interactive(shell: Shell):
    questions = "Is the sky noisy? yes or no\nAnd the leaves?\nexit\nNever asked\n"
    words = ("chat", "pictures/leaf_blur.png", "--query", "Rate it", "--out", "talk.jsonl")
    done = shell.run(*words, stdin=questions)
    return done.kept(silent=not done.out, rows=shell.lines("talk.jsonl"))


@call
def resumed(shell: Shell):
    """A batch with a damaged picture that grows, is refused under another mode, and whose picture is mended."""
    words = ("assess", "growing", "--pipeline", "letters", "--out", "growing.jsonl")
    kept: dict[str, Any] = {"first": shell.run(*words).status, "again": shell.run(*words).status}
    (shell.folder / "growing" / "new.png").write_bytes((shell.folder / "pictures" / "scene.png").read_bytes())
    kept["more"] = shell.run(*words, "--resume").status
    kept["rows"] = shell.lines("growing.jsonl")
    other = shell.run(*words, "--resume", "--mode", "uniform")
    kept["other mode"] = other.kept(silent=not other.out, says="mode" in other.err)
    (shell.folder / "growing" / "words.png").write_bytes((shell.folder / "pictures" / "grey.png").read_bytes())
    kept["retried"] = shell.run(*words, "--resume", "--retry-failed").status
    return kept | {"rows at last": shell.lines("growing.jsonl")}


@call
def killed(shell: Shell):
    """A batch that is killed after its first row, interrupted after its next, and gone on with."""
    rows = shell.folder / "killed.jsonl"
    words = ("assess", "killed", "--pipeline", "letters", "--out", "killed.jsonl")

    def stop(how: int, *more: str) -> int:
        before = rows.read_bytes().count(b"\n") if rows.exists() else 0
        process = shell.start(*words, *more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + LONGEST
        while process.poll() is None and time.monotonic() < until:
            if rows.exists() and rows.read_bytes().count(b"\n") > before:
                (os.killpg if how == signal.SIGKILL else os.kill)(process.pid, how)
                break
            time.sleep(0.01)
        return process.wait(LONGEST)

    statuses = [stop(signal.SIGKILL), stop(signal.SIGINT, "--resume"), shell.run(*words, "--resume").status]
    return {"statuses": statuses, "rows": sorted(lines(rows.read_text()), key=lambda row: row["image"])}


@call
def ray(shell: Shell):
    words = (
        "assess",
        "ray",
        "--pipeline",
        "letters",
        "--out",
        "ray.jsonl",
        "--cluster",
        "local",
        "--workers",
        "1",
    )
    done = shell.run(*words)
    return done.kept(rows=sorted(shell.lines("ray.jsonl"), key=lambda row: row["image"]))


@call
def mapped(shell: Shell):
    (shell.folder / "maps").mkdir()
    words = ("assess", "pictures/damaged.png", "pictures/tower.png", "--pipeline", "letters", "--map", "maps")
    done = shell.run(*words, "--map-tiles", "16")
    return done.rows() | {"files": sorted(file.name for file in (shell.folder / "maps").iterdir())}


@call
def compared(shell: Shell):
    two = ("pictures/leaf_q8.jpg", "pictures/leaf_blur.png")
    return shell.run("compare", *two, "--reference", "pictures/leaf.png").rows()


@call
def ordered(shell: Shell):
    several = [
        "broken/words.png",
        *(f"pictures/{name}" for name in ("leaf.png", "leaf_noise.png", "tower.png")),
    ]
    done = shell.run("compare", *several, "--csv", "order.csv", "--explain", "--json")
    return done.rows() | {"table": shell.table("order.csv"), "explained": bool(done.err)}


@call
def best_of(shell: Shell):
    done = shell.run("best", "burst", "--out", "burst.jsonl")
    return done.kept(rows=shell.lines("burst.jsonl"))


# Services


@call
def served(shell: Shell):
    """The service over HTTP: answers, a comparison, a batch, mistakes, its page and its figures."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with (shell.folder / "serve.log").open("w") as log:
        words = ("serve", "--cpu", "--pipeline", "letters", "--port", port, "--batches", "spool")
        process = shell.start(*words, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LONGEST, trust_env=False) as client:
            _await(client, process)
            kept = _asked(shell, client)
    finally:
        process.terminate()
        # documented is 0, but SIGTERM itself is what it died of when this was recorded
        status = 0 if process.wait(LONGEST) in (0, -signal.SIGTERM) else process.returncode
    return Done(status, "", (shell.folder / "serve.log").read_text()).kept(**kept)


def _await(client: httpx.Client, process: subprocess.Popen) -> None:
    until = time.monotonic() + LONGEST
    while process.poll() is None and time.monotonic() < until:
        try:
            if client.get("/healthz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError("the service does not answer")


def _asked(shell: Shell, client: httpx.Client) -> dict[str, Any]:
    leaf, jpeg = ((shell.folder / "pictures" / name).read_bytes() for name in ("leaf.png", "leaf_q8.jpg"))
    two = [("images", ("leaf.png", leaf)), ("images", ("leaf_q8.jpg", jpeg))]
    encoded = {"image": base64.b64encode(jpeg).decode(), "query": "Is it sharp?", "choices": ["Yes", "No"]}
    asked = {
        "form": client.post("/v1/assess", files={"image": ("leaf.png", leaf)}),
        "json": client.post("/v1/assess", json=encoded),
        "agent": client.post("/v1/assess", files={"image": ("leaf.png", leaf)}, data={"pipeline": "agent"}),
        "compared": client.post("/v1/compare", files=two),
        "unknown field": client.post("/v1/assess", files={"image": ("leaf.png", leaf)}, data={"pipelin": "agent"}),
        "no picture": client.post("/v1/assess", files={"image": ("words.png", b"no picture")}),
        "nothing": client.post("/v1/assess"),
        "info": client.get("/v1/info"),
    }
    kept: dict[str, Any] = {name: [answer.status_code, answer.json()] for name, answer in asked.items()}
    foreign = client.get("/", headers={"Host": "elsewhere.example"})
    kept |= {"page": client.get("/").status_code, "foreign host": foreign.status_code}
    accepted = {"Accept": "text/event-stream"}
    events = client.post("/v1/assess", files={"image": ("leaf.png", leaf)}, headers=accepted).text
    kept["events"] = sorted(set(re.findall(r"^event: (.+)$", events, re.M)))
    batch = client.post("/v1/batches", files=two)
    address = f"/v1/batches/{batch.json()['id']}"
    until = time.monotonic() + LONGEST
    while client.get(address).json()["state"] != "finished" and time.monotonic() < until:
        time.sleep(0.1)
    rows = sorted(lines(client.get(f"{address}/rows").text), key=lambda row: row["image"])
    kept["batch"] = [
        batch.status_code,
        sorted(client.get(address).json()),
        rows,
        client.delete(address).status_code,
    ]
    kept["figures"] = sorted(set(re.findall(r"^(\w+)", client.get("/metrics").text, re.M)))
    kept["routes"] = {path: sorted(ways) for path, ways in client.get("/openapi.json").json()["paths"].items()}
    return kept


@call
def mcp(shell: Shell):
    """The tools of the Model Context Protocol over stdin and stdout."""
    process = shell.start("mcp", "--cpu", "--root", "pictures", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    assert process.stdin
    assert process.stdout

    def ask(method: str, number: int | None = None, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
        process.stdin.write(json.dumps(message) + "\n")  # pyright: ignore[reportOptionalMemberAccess]
        process.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess]
        for line in [] if number is None else process.stdout:  # pyright: ignore[reportOptionalIterable]
            if (answer := json.loads(line)).get("id") == number:
                return answer["result"]
        return None

    try:
        ask(
            "initialize",
            1,
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "c", "version": "1"},
        )
        ask("notifications/initialized")
        tools = {tool["name"]: sorted(tool["inputSchema"]["properties"]) for tool in ask("tools/list", 2)["tools"]}
        questions = {
            "assess": {"path": "leaf.png", "pipeline": "letters"},
            "compare": {"paths": ["leaf.png", "leaf_q8.jpg"]},
            "outside": {"path": "../sample.png"},
        }
        kept: dict[str, Any] = {"tools": tools}
        for id_, (name, arguments) in enumerate(questions.items(), 3):
            tool = "compare" if name == "compare" else "assess"
            answer = ask("tools/call", id_, name=tool, arguments=arguments)
            kept[name] = [answer.get("isError"), answer.get("structuredContent"), len(answer["content"])]
        process.stdin.close()
        return kept | {"status": process.wait(LONGEST)}
    finally:
        process.kill()


# Studies


@call
def study(shell: Shell):
    """Runs on a data set and on questions, a report, a fit, a comparison, and an assessment with the fit."""
    kept: dict[str, Any] = {"run": shell.run("study", "run", "kadid", "--out", "runs/kadid").kept()}
    kept["again"] = shell.run("study", "run", "kadid", "--out", "runs/kadid").kept(
        rows=shell.lines("runs/kadid/rows.jsonl")
    )
    questions = shell.run("study", "run", "questions.csv", "--out", "runs/questions")
    kept["questions"] = questions.kept(rows=shell.lines("runs/questions/rows.jsonl"))
    kept["report"] = _reported(shell, "runs/kadid", "kadid")
    kept["report of questions"] = _reported(shell, "runs/questions", "questions")
    fit = ("--objective", "keep", "--share", "0.5", "--called", "the contract's set", "--out", "fit.json")
    fitted = shell.run("study", "fit", "runs/kadid", *fit)
    kept["fit"] = fitted.kept(fit=json.loads((shell.folder / "fit.json").read_text()))
    few = shell.run("study", "fit", "runs/kadid", "--objective", "rps", "--out", "few.json")
    kept["fit of few"] = few.kept(written=(shell.folder / "few.json").exists())
    kept["assessed"] = shell.run("assess", "pictures/leaf.png", "--fit", "fit.json", "--at-least", "3").rows()
    other = ("--contexts", "image_alone", "--tools", "NIQE", "--query", "How good is this picture?")
    kept["other run"] = shell.run("study", "run", "kadid", *other, "--out", "runs/other").kept()
    both = ("runs/kadid", "runs/other", "--mode", "all", "--draws", "200", "--out", "reports/both")
    compared = shell.run("study", "compare", *both)
    return kept | {"compare": compared.kept(tables=_tables(shell, "reports/both"))}


def _tables(shell: Shell, folder: str) -> dict[str, Any]:
    return {file.stem: shell.table(f"{folder}/{file.name}") for file in sorted((shell.folder / folder).glob("*.csv"))}


def _reported(shell: Shell, run: str, name: str) -> dict[str, Any]:
    folder = f"reports/{name}"
    done = shell.run("study", "report", run, "--draws", "200", "--out", folder)
    written = shell.folder / folder
    rated = (written / "report.json").exists()  # questions have a table alone
    return done.kept(
        files=sorted(file.name for file in written.iterdir()),
        tables=_tables(shell, folder),
        numbers=lines((written / "report.json").read_text().replace("\n", "")) if rated else None,
        page=shell.page(f"{folder}/report.html", name) if rated else None,
    )


@call
def study_synthetic(shell: Shell):
    done = shell.run("training/synthetic", "photos", "--all", "--per-photo", "2", "--out", "synthetic")
    return done.kept(table=shell.table("synthetic/manifest.csv"))


# Bundles and the machine


@call
def bundle(shell: Shell):
    """A bundle of the embedded model: made, verified, unpacked, used, and refused once a byte differs."""
    kept: dict[str, Any] = {"bundle": shell.run("fetch_models", "--out", "small.iqabundle.tar").kept()}
    kept["verify"] = shell.run("verify", "small.iqabundle.tar").status
    kept["other hash"] = shell.run("verify", "small.iqabundle.tar", "--expect", "0" * 64).status
    kept["unpack"] = shell.run("unpack", "small.iqabundle.tar", "--models", "unpacked").status
    kept["files"] = sorted(file.name for file in (shell.folder / "unpacked" / "embedded").iterdir())
    kept["verify again"] = shell.run("verify", "unpacked").status
    options = ("--models", "unpacked", "--pipeline", "letters")
    kept["assessed"] = shell.run("assess", "pictures/leaf.png", *options).rows()
    weights = shell.folder / "unpacked" / "embedded" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = shell.run("verify", "unpacked")
    kept["changed"] = changed.kept(names="model.safetensors" in changed.out + changed.err)
    refused = shell.run("assess", "pictures/leaf.png", *options)
    return kept | {"changed, assessed": refused.kept(silent=not refused.out, names="model.safetensors" in refused.err)}


@call
def doctor(shell: Shell):
    done = shell.run("doctor", "--cpu", "--json")
    report = json.loads(done.out)
    return done.kept(ok=report["ok"], checks=[[check["name"], check["status"]] for check in report["checks"]])


@call
def doctor_quick(shell: Shell):
    done = shell.run("doctor", "--quick", "--model", "nowhere")
    return done.kept(silent=not done.out, names="nowhere" in done.out + done.err)


@call
def tools_listed(shell: Shell):
    done = shell.run("tools")
    return done.kept(tools=[name for name in ("LocalNR", "NIQE", "PIQE", "VSI", "FSIM", "GMSD") if name in done.out])


@call
def helped(shell: Shell):
    """Which options each command has."""
    studies = [("study", name) for name in ("run", "report", "fit", "compare")]
    commands = [
        *((name,) for name in SCRIPTS if name != "study"),
        *studies,
        *((name,) for name in ("compare", "best", "chat", "tools")),
        ("mcp",),
        ("verify",),
        ("unpack",),
        (),
    ]
    found = {}
    for words in commands:
        done = shell.run(*words, "--help-all" if words == ("assess",) else "--help")
        found[" ".join(words)] = [done.status, sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", done.out)))]
    version = shell.run("assess", "--version")
    return found | {"version": version.kept(said=bool(version.out))}


# Mistakes: the command line, and what of it its message should name

LEAF = "pictures/leaf.png"
MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "missing_file": (("assess", "pictures/gone.png"), ("pictures/gone.png",)),
    "no_picture": (("assess", "broken/words.png", "--pipeline", "letters"), ("words.png",)),
    "empty_folder": (("assess", "empty"), ("empty",)),
    "reference_size": (
        ("assess", LEAF, "--reference", "pictures/tower.png"),
        ("leaf.png", "tower.png", "--reference"),
    ),
    "reference_missing": (("assess", LEAF, "--reference", "gone.png"), ("gone.png", "reference")),
    "unknown_option": (("assess", LEAF, "--refrence", "sample.png"), ("--refrence", "--reference")),
    "unknown_config": (("assess", LEAF, "--config", "qwen9"), ("qwen9", "config")),
    "misspelt_config": (("assess", LEAF, "--config", "misspelt.yaml"), ("misspelt.yaml", "fusoin", "fusion")),
    "exclusive": (("assess", LEAF, "--gpu", "0", "--cpu"), ("--gpu", "--cpu")),
    "no_gpu": (("assess", LEAF, "--gpu", "0"), ("gpu",)),
    "one_choice": (("assess", LEAF, "--query", "Sharp?", "--choices", "Yes"), ("choices",)),
    "error_rate": (("assess", LEAF, "--at-least", "Good", "--error-rate", "2"), ("--error-rate", "2")),
    "level": (("assess", LEAF, "--at-least", "Splendid"), ("--at-least", "Splendid")),
    "picture_as_output": (("assess", LEAF, "--out", "pictures/scene.png"), ("scene.png", "--out")),
    "model_missing": (("assess", LEAF, "--model", "nowhere"), ("nowhere", "model")),
    "manifest_column": (("assess", "--manifest", "no_image_column.csv"), ("no_image_column.csv", "image")),
    "resume_alone": (("assess", LEAF, "--resume"), ("--resume", "--out")),
    "not_rows": (("gallery", "not_rows.jsonl", "--out", "new.html"), ("not_rows.jsonl",)),
    "no_token": (("serve", "--host", "0.0.0.0"), ("AGENTIC_IQA_TOKEN",)),
    "no_bundle": (("verify", "sample.png"), ("sample.png",)),
    "study_columns": (("study", "run", "no_scores.csv", "--out", "runs/none"), ("no_scores.csv", "mos")),
    "study_folder": (("study", "report", "empty", "--out", "reports/none"), ("empty",)),
    "study_unknown": (("study", "judge"), ("judge",)),
    "unknown_command": (("asess", LEAF), ("asess",)),
}


def mistake(words: tuple[str, ...], named: tuple[str, ...]) -> Callable[[Shell], Any]:
    """What a mistake ends with: a status, a message that names it, no traceback, and foreign files as they were."""

    def made(shell: Shell):
        foreign = [shell.folder / name for name in ("notes.csv", "notes.html", "pictures/scene.png")]
        before = [file.read_bytes() for file in foreign]
        done = shell.run(*words)
        untouched = before == [file.read_bytes() for file in foreign]
        return done.kept(silent=not done.out, names=[word for word in named if word in done.err], untouched=untouched)

    return made


CALLS |= {f"mistake_{name}": mistake(*words) for name, words in MISTAKES.items()}

"""`agentic-iqa mcp`, asked by the protocol's own client over stdin and stdout."""

import json
import os
import signal
import subprocess
import sys

import anyio
import pytest
from acting import as_a_command
from conftest import DATA, MODELS, ROOT
from PIL import Image

pytest.importorskip("mcp")

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from agentic_iqa_local.serve.asks import TO_ASSESS
from agentic_iqa_local.serve.mcp_server import LONG

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
ENVIRONMENT["AGENTIC_IQA_MODELS"] = str(MODELS)
COMMAND = ["-m", "agentic_iqa_local", "mcp", "--cpu", "--root"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    root = place / "root"
    root.mkdir()
    photo = Image.open(DATA / "sumac.png")
    for i in range(3):
        photo.crop((96 * i, 0, 96 * i + 224, 224)).save(root / f"{i}.png")
    photo.save(place / "outside.png")
    (root / "link.png").symlink_to(place / "outside.png")
    (root / "broken.png").write_text("no picture")
    (root / "\x1b[2J<script>.png").write_bytes((root / "0.png").read_bytes())
    return root


@pytest.fixture(scope="module")
def answers(folder):
    """What one server, whose models are loaded once, says to every call of this file."""
    calls = {
        "letters": ("assess", {"path": "1.png", "pipeline": "letters"}),
        "choices": ("assess", {"path": "0.png", "query": "Is it sharp?", "choices": ["Yes", "No"]}),
        "reference": ("assess", {"path": "0.png", "reference": "1.png", "pipeline": "letters"}),
        "compare": ("compare", {"paths": ["0.png", "1.png"]}),
        "rank": ("compare", {"paths": ["0.png", "1.png", "2.png", "broken.png"]}),
        "hostile": ("assess", {"path": "\x1b[2J<script>.png", "pipeline": "letters"}),
        "broken": ("assess", {"path": "broken.png"}),
        "one path": ("compare", {"paths": ["0.png"]}),
        "outside": ("assess", {"path": "../outside.png"}),
        "link": ("assess", {"path": "link.png"}),
        "reference outside": ("assess", {"path": "0.png", "reference": "link.png"}),
        "nul": ("assess", {"path": "0.png\x00"}),
        "pipeline": ("assess", {"path": "0.png", "pipeline": "other"}),
    }
    found, stdout = {}, folder.parent / "stdout"

    async def talk():
        kept = ["-c", 'exec "$@" | tee "$0"', str(stdout), sys.executable, *COMMAND, str(folder)]
        line = StdioServerParameters(command="sh", args=kept, env=ENVIRONMENT)
        async with Client(stdio_client(line)) as client:
            found["tools"] = (await client.list_tools()).tools
            for name, (tool, arguments) in calls.items():
                found[name] = await client.call_tool(tool, arguments)

    anyio.run(talk)
    found["stdout"] = stdout.read_text()
    return found


def said(answer) -> str:
    return answer.content[0].text


def test_both_tools_say_what_they_take(answers):
    tools = {tool.name: tool for tool in answers["tools"]}
    assert set(tools) == {"assess", "compare"}
    assert set(tools["assess"].input_schema["properties"]) == {"path", "reference", *TO_ASSESS}
    assert tools["compare"].input_schema["required"] == ["paths"]


def test_an_answer_is_that_of_the_command(answers, folder, capfd):
    assert as_a_command("assess", folder / "1.png", "--cpu", "--pipeline", "letters") == 0
    row, found = json.loads(capfd.readouterr().out), answers["letters"]
    assert not found.is_error
    for field in ("q", "final_answer", "sha256"):
        assert found.structured_content[field] == row[field]
    assert f"q {row['q']:.2f}" in said(found)


def test_a_question_and_a_reference(answers):
    assert answers["choices"].structured_content["final_answer"] in ("A", "B")
    assert answers["reference"].structured_content["reference"].endswith("1.png")


def test_two_pictures_and_several(answers):
    assert 0 < answers["compare"].structured_content["pair"]["probability"] < 1
    order = answers["rank"].structured_content
    assert [ranked["place"] for ranked in order["order"]] == [1, 2, 3]
    assert [os.path.basename(row["image"]) for row in order["failed"]] == ["broken.png"]
    assert not set(LONG) & order["order"][0]["assessment"].keys()


BELOW = "below the folder that this server may read"
ERRORS = {
    "broken": "expected a PNG, JPEG",
    "one path": "expected 2 to 20 pictures", "outside": BELOW, "link": BELOW,
    "reference outside": BELOW, "nul": BELOW,
    "pipeline": "",
}  # fmt: skip


@pytest.mark.parametrize(("name", "words"), ERRORS.items())
def test_an_error_is_a_sentence_and_nothing_outside_is_read(answers, name, words):
    assert answers[name].is_error
    assert said(answers[name]).startswith("error: ")
    assert words in said(answers[name])
    assert "\n" not in said(answers[name])


def test_stdout_is_the_protocols_also_while_models_are_loaded(answers):
    messages = [json.loads(line) for line in answers["stdout"].splitlines()]
    assert {message["jsonrpc"] for message in messages} == {"2.0"}
    assert len(messages) > len(ERRORS)


def test_an_odd_name_within_the_root_is_read(answers):
    assert not answers["hostile"].is_error
    assert "\x1b" not in said(answers["hostile"])


@pytest.fixture
def server(folder):
    """A server that has answered its first message."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words, environment = [sys.executable, *COMMAND, str(folder)], os.environ | ENVIRONMENT
    process = subprocess.Popen(words, **pipes, text=True, env=environment)
    about = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    send(process, {"id": 1, "method": "initialize", "params": about})
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "agentic-iqa"
    send(process, {"method": "notifications/initialized"})
    return process


def send(process: subprocess.Popen, message: dict) -> None:
    process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    process.stdin.flush()


def test_a_closed_stdin_ends_it(server):
    rest, errors = server.communicate(timeout=600)
    assert (server.returncode, rest) == (0, "")
    assert "Traceback" not in errors


def test_ctrl_c_ends_it(server):
    server.send_signal(signal.SIGINT)
    rest, errors = server.communicate(timeout=600)
    assert (server.returncode, rest, errors.strip()) == (130, "", "stopped")

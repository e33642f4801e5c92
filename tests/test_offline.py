"""Nothing leaves this machine: the main job in a network namespace without interfaces and under an audit of
every socket; the package installed from its wheel; a tool's weights carried by a bundle."""

import ast
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import MODELS, ROOT

from agentic_iqa_local.cli import store as store_command
from agentic_iqa_local.iqa_tools import TOOLS
from agentic_iqa_local.offline.fetch import copied_source
from agentic_iqa_local.offline.store import weights_dir

# Python's own account of what a process and its children ask of a network, one event a line in $SOCKETS, each
# with the functions that led there. With $REFUSE set they are refused as well, for kernels that give no
# namespaces.
AUDIT = """
import os, socket, sys
NAMES = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname",
         "socket.gethostbyaddr")
log = os.open(os.environ["SOCKETS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def hook(event, args):
    if event == "socket.__new__":
        if args[1] == socket.AF_UNIX:
            return
    elif event not in NAMES or (hasattr(args[0], "family") and args[0].family == socket.AF_UNIX):
        return
    frame, names = sys._getframe(1), []
    while frame:
        names.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")
        frame = frame.f_back
    os.write(log, f"{event} {args[1:]!r} < {' < '.join(names)}\\n".encode())
    if "REFUSE" in os.environ:
        raise OSError("refused by a test")

sys.addaudithook(hook)
"""
# urllib3 asks the kernel, at its import, whether it has IPv6: a socket bound to ::1 that sends nothing and
# connects nowhere.
PROBE = "urllib3.util.connection._has_ipv6"
NAMESPACE = ["unshare", "--map-root-user", "--net"]
HAS_NAMESPACES = (
    shutil.which("unshare") is not None and subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
)


# The tests' names say which of the two ran.
@pytest.fixture(params=["namespace" if HAS_NAMESPACES else "refused-by-audit-hook"])
def offline(tmp_path):
    """Runs Python without a network: (arguments, variables) → the finished process and what it asked of a
    network."""

    def run(*arguments: object, **variables: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        (tmp_path / "audit").mkdir(exist_ok=True)
        (tmp_path / "audit" / "sitecustomize.py").write_text(AUDIT)
        log = tmp_path / "sockets.log"
        log.unlink(missing_ok=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AGENTIC_IQA_", "HF_", "TORCH_", "TRANSFORMERS_"))
        }
        environment |= (
            {"SOCKETS": str(log), "OMP_NUM_THREADS": "1", "AGENTIC_IQA_MODELS": str(MODELS)}
            | ({} if HAS_NAMESPACES else {"REFUSE": "1"})
            | variables
        )
        environment["PYTHONPATH"] = f"{tmp_path / 'audit'}:{variables.get('PYTHONPATH', ROOT)}"
        line = [*(NAMESPACE if HAS_NAMESPACES else []), sys.executable, *map(str, arguments)]
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=300
        )
        assert log.is_file(), done.stderr  # the audit was there
        return done, log.read_text().splitlines()

    return run


def asked(events: list[str]) -> list[str]:
    return [event for event in events if PROBE not in event]


def test_the_main_job_runs_without_a_network_and_asks_for_none(offline, photo_path):
    done, events = offline(ROOT / "scripts" / "assess.py", "--image", photo_path, "--cpu", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = done.stdout.splitlines()
    row = json.loads(line)
    assert row["error"] is None
    assert 1 <= row["q"] <= 5
    assert {run["tool_name"] for run in row["tools"]} <= {"LocalNR", "NIQE"}
    assert row["tools"]
    assert asked(events) == []


@pytest.mark.parametrize("script", ["assess", "doctor", "fetch_models", "bench", "study", "fit_tools"])
def test_help_asks_for_no_network(offline, script):
    done, events = offline(ROOT / "scripts" / f"{script}.py", "--help")
    assert (done.returncode, asked(events)) == (0, [])


def test_importing_the_package_and_reading_its_configuration_asks_for_no_network(offline):
    code = (
        "import agentic_iqa_local, agentic_iqa_local.config as c, agentic_iqa_local.iqa_tools as t;"
        " c.load_settings(); t.ToolRunner().info()"
    )
    done, events = offline("-c", code)
    assert (done.returncode, done.stderr, events) == (0, "", [])


def test_the_audit_sees_what_would_leave_and_lets_nothing_through(offline):
    code = """
import socket, urllib.request
try:
    urllib.request.urlopen("http://192.0.2.1/")  # an address that documentation is given (RFC 5737)
except OSError as error:
    print(type(error).__name__)
socket.socket(socket.AF_UNIX).close()
"""
    done, events = offline("-c", code, http_proxy="", no_proxy="*")
    assert done.stdout == "URLError\n"
    assert [event.split()[0] for event in events][:1] == ["socket.getaddrinfo"]
    assert not any("AF_UNIX" in event for event in events)
    assert asked(events) == events


CLIENTS = {
    "aiohttp",
    "ftplib",
    "http.client",
    "httpx",
    "openai",
    "requests",
    "smtplib",
    "socket",
    "urllib.request",
    "urllib3",
    "wget",
}
DOWNLOADERS = {
    "hf_hub_download", "snapshot_download", "HfApi", "urlopen", "urlretrieve", "download_url_to_file", "load_state_dict_from_url",
    "load_file_from_url", "create_connection",
}  # fmt: skip
BARRED = CLIENTS | DOWNLOADERS
LOADERS = {
    "AutoConfig",
    "AutoModel",
    "AutoModelForImageTextToText",
    "AutoProcessor",
    "AutoTokenizer",
    "AutoImageProcessor",
}
UNTOLD = {f"{loader}.from_pretrained" for loader in LOADERS}
ALLOWED = {
    # the model server that a configuration names, by default on this machine
    "agentic_iqa_local/vlm_client/server_client.py": frozenset({"openai"}),
    # to refuse them while a metric is built
    "agentic_iqa_local/iqa_tools/pyiqa_metrics.py": frozenset({"urllib.request"}),
    # where it listens
    "agentic_iqa_local/serve/app.py": frozenset({"socket"}),
    # the head node that --cluster names: whether it answers
    "agentic_iqa_local/batch/ray.py": frozenset({"socket", "create_connection"}),
    # to refuse connections while it checks
    "agentic_iqa_local/offline/doctor.py": frozenset({"socket"}),
}


def ways_out(source: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """Line and name of each import or call that reaches a network, or could: a loader that is not told to
    stay here."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = set()
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {
                node.module,
                *(alias.name for alias in node.names),
                *(f"{node.module}.{alias.name}" for alias in node.names),
            }
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            owner = getattr(getattr(node.func, "value", None), "id", "")
            options = {keyword.arg: keyword.value for keyword in node.keywords}
            # None: **options
            local = getattr(options.get("local_files_only"), "value", False) is True or None in options
            names = {
                (f"{owner}.{called}" if called == "from_pretrained" and owner in LOADERS and not local else called)
            }
        found += [f"{node.lineno}: {name}" for name in names if name in BARRED - allowed or name in UNTOLD]
    return found


def test_nothing_but_fetching_has_a_way_to_a_network():
    fetch = ROOT / "agentic_iqa_local" / "offline" / "fetch.py"
    found = {}
    for path in [*(ROOT / "agentic_iqa_local").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        if path == fetch:
            continue
        name = str(path.relative_to(ROOT))
        found[name] = ways_out(path.read_text(encoding="utf-8"), ALLOWED.get(name, frozenset()))
    assert len(found) > 40
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert ways_out(fetch.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "line",
    [
        "import requests",
        "from urllib import request",
        "from huggingface_hub import snapshot_download as s",
        "huggingface_hub.hf_hub_download('a', 'b')",
        "AutoTokenizer.from_pretrained(folder)",
        "AutoTokenizer.from_pretrained(folder, local_files_only=False)",
    ],
)
def test_the_search_for_ways_to_a_network_finds_one(line):
    assert ways_out(line)
    assert not ways_out("AutoTokenizer.from_pretrained(folder, local_files_only=True)")


# installed


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's content in a folder outside the checkout, as pip would place it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copied_source(folder / "source")
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*line, "--wheel-dir", folder, source], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def test_the_wheel_holds_the_package_its_data_its_configurations_and_the_embedded_model(installed):
    package, source = installed / "agentic_iqa_local", installed.parent / "source"
    for folder, inside in (
        ("agentic_iqa_local", "."),
        ("configs", "configs"),
        ("models/embedded", "models/embedded"),
    ):
        places = [place for place in (source / folder).rglob("*") if place.is_file()]
        assert places
        for place in places:
            copy = package / inside / place.relative_to(source / folder)
            assert copy.is_file(), place
            assert copy.read_bytes() == place.read_bytes(), place


def test_the_installed_package_assesses_a_photograph_as_the_checkout_does(installed, offline, photo_path, services):
    from agentic_iqa_local import assess

    code = """
import sys, agentic_iqa_local
from agentic_iqa_local.config import find_config
row = agentic_iqa_local.assess(sys.argv[1])
print(agentic_iqa_local.__file__, find_config(None))
print(row.model_dump_json(include={"q", "final_answer", "error"}))
"""
    done, events = offline("-c", code, photo_path, PYTHONPATH=str(installed), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-2000:]
    places, line = done.stdout.splitlines()
    assert all(Path(place).is_relative_to(installed) for place in places.split())
    row, expected = json.loads(line), assess(photo_path, services=services)
    assert row["final_answer"] == expected.final_answer
    assert row["q"] == pytest.approx(expected.q, abs=1e-5)
    assert asked(events) == []


def test_the_installed_command_assesses_a_photograph(installed, offline, photo_path):
    (names,) = installed.glob("*.dist-info/entry_points.txt")
    entries = importlib.metadata.Distribution.at(names.parent).entry_points
    commands = {entry.name: entry.value for entry in entries.select(group="console_scripts")}
    assert commands.keys() == {"agentic-iqa"}
    module, _, function = commands["agentic-iqa"].partition(":")
    code = f"import sys, {module} as command; print(command.__file__, file=sys.stderr); sys.exit(command.{function}())"
    line = ("-c", code, "assess", "--image", photo_path, "--cpu", "--pipeline", "letters")
    done, events = offline(*line, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr[-2000:]
    assert str(installed) in done.stderr
    assert json.loads(done.stdout)["error"] is None
    assert asked(events) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["assess", "--help"], "agentic-iqa assess photo.jpg --explain"),
        (
            ["assess", "--config", "qwen2_5_vl_7b"],
            (
                "model Qwen2.5-VL-7B-Instruct: there is none; fetch it on a connected machine (agentic-iqa"
                " bundle --config"
            ),
        ),
        (["tools"], "agentic-iqa bundle --tools"),
        (["assess", "--cpu", "--pipeline", "letters", "--explain"], "yours: agentic-iqa assess photo.jpg"),
        (["assess", "nothing.jpg"], "nothing.jpg: expected an image file"),
    ],
)
def test_the_installed_command_names_what_an_installation_has(installed, offline, tmp_path, arguments, said):
    """Commands of its own, the sample photograph inside it, and no place in it to copy models to."""
    code = (
        "import sys; from agentic_iqa_local.cli.main import main; sys.argv[0] = 'agentic-iqa';"
        " sys.exit(main(sys.argv[1:]))"
    )
    variables = {"PYTHONPATH": str(installed), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    if "--config" in arguments:
        variables["AGENTIC_IQA_MODELS"] = ""  # as if it were not set
    done, events = offline("-c", code, *arguments, **variables)
    text = " ".join((done.stdout + done.stderr).split())
    assert said in text
    assert "scripts/assess.py" not in text
    assert f"{installed}/agentic_iqa_local/models" not in text
    assert asked(events) == []


def test_the_installed_package_unpacks_bundles_outside_itself_only(installed, offline, tmp_path):
    done, _ = offline(
        "-m",
        "agentic_iqa_local",
        "unpack",
        tmp_path / "a.tar",
        PYTHONPATH=str(installed),
        AGENTIC_IQA_MODELS="",
    )
    assert done.returncode == 2
    assert "expected a models folder outside the package; pass --models" in done.stderr


# a tool's weights


def test_a_bundled_tool_scores_without_a_network_and_is_refused_after_one_byte_has_changed(
    offline, tmp_path, photo_path
):
    """CNNIQA's architecture with random weights: that proves the way from a cache to a score, not the
    score."""
    import torch
    from pyiqa.archs.cnniqa_arch import CNNIQA

    (weight,) = TOOLS["CNNIQA"].weights
    place = tmp_path / "cache" / "torch" / "hub" / weight
    place.parent.mkdir(parents=True)
    torch.manual_seed(0)
    metric = CNNIQA(pretrained=None).eval()
    torch.save({"params": metric.state_dict()}, place)
    bundle, store = tmp_path / "tools.iqabundle.tar", tmp_path / "store"
    line = [
        "--tools",
        "CNNIQA",
        "--weights",
        tmp_path / "cache" / "torch" / "hub",
        "--accept-licences",
        "--out",
        bundle,
    ]
    done, events = offline(ROOT / "scripts" / "fetch_models.py", *line)
    assert (done.returncode, asked(events)) == (0, []), done.stderr
    assert store_command.unpack([str(bundle), "--models", str(store)]) == 0

    code = """
import sys
from PIL import Image
from agentic_iqa_local.iqa_tools import ToolError, ToolRunner
try:
    print(ToolRunner().measure("CNNIQA", Image.open(sys.argv[1]).convert("RGB")))
except ToolError as error:
    print(error)
"""
    run = ("-c", code, photo_path)
    elsewhere = {"XDG_CACHE_HOME": str(tmp_path / "empty")}
    done, events = offline(*run, AGENTIC_IQA_MODELS=str(store), **elsewhere)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(by_hand(metric, photo_path), abs=1e-5)
    assert asked(events) == []
    # From the cache that the bundle was made of, nothing is loaded.
    done, _ = offline(*run, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert f"missing weights {weight}" in done.stdout
    assert "fetch_models.py --tools CNNIQA makes a bundle of them" in done.stdout
    stored = weights_dir(store) / weight
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.write_bytes(data)
    done, _ = offline(*run, AGENTIC_IQA_MODELS=str(store), **elsewhere)
    assert f"CNNIQA is unavailable: {stored} is damaged or was changed" in done.stdout


def by_hand(metric, photo_path: str) -> float:
    """The network's own answer, without pyiqa's metric around it."""
    import numpy as np
    import torch
    from PIL import Image

    pixels = torch.from_numpy(np.array(Image.open(photo_path).convert("RGB"))).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        return float(metric(pixels))

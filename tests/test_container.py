"""Dockerfile.cuda, as far as it can be judged without Docker: hadolint where it is installed, what this
project promises, and the main job with the image's environment on a read-only root without a network. The
image itself is not built here.
"""

import importlib.metadata
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from conftest import MODELS, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILE = ROOT / "Dockerfile.cuda"
LOCK = ROOT / "constraints-gpu.txt"


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its argument, comments left out and continued lines joined."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word.upper(), rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def of(name: str) -> list[str]:
    return [argument for word, argument in instructions() if word == name]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for argument in of("ENV") for pair in shlex.split(argument))


def locked(lock: Path = LOCK) -> dict[str, str]:
    """Package → what follows its name in a lock."""
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = {canonicalize_name(re.match(r"[\w.-]+", line)[0]): re.sub(r"^[\w.-]+", "", line) for line in lines}
    assert len(found) == len(lines)
    return found


def test_the_base_is_one_exact_cuda_runtime_and_of_the_locks_cuda():
    (base,) = of("FROM")
    tag = re.fullmatch(r"nvidia/cuda:(\d+\.\d+)\.\d+-runtime-ubuntu\d\d\.04", base)
    assert tag, base
    assert locked()["cuda-toolkit"].startswith(f"=={tag[1]}.")


def test_it_runs_as_a_user_with_a_number_that_is_not_root():
    # Kubernetes' runAsNonRoot cannot check a name.
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", of("USER")[-1])
    after = [word for word, _ in instructions()][[word for word, _ in instructions()].index("USER") :]
    assert "RUN" not in after


def test_nothing_is_fetched_by_address_and_every_copied_source_is_in_the_build_context():
    assert not of("ADD")
    assert not [argument for argument in of("RUN") if re.search(r"\b(curl|wget|git)\b|https?://", argument)]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for argument in of("COPY"):
        *sources, _ = shlex.split(argument)
        assert all((ROOT / source).exists() and source in allowed for source in sources), argument


def test_pip_installs_the_lock_and_nothing_else():
    lines = [line.strip() for run in of("RUN") for line in run.split("&&") if "pip install" in line]
    assert len(lines) == 2
    assert all(LOCK.name in shlex.split(line) for line in lines)
    assert "--no-deps" in lines[-1]
    assert not re.search(r"\blatest\b", " ".join(argument for _, argument in instructions()))


def test_the_lock_pins_what_the_project_and_its_extras_need_on_a_gpu():
    """All extras but the tests' own tools, and heic, whose wheel holds x265 (GPL): whoever wants it adds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = locked()
    assert all(version.startswith("==") for version in lock.values())
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in ("test", "heic")}
    assert {"vllm", "serve"} <= extras.keys()
    for line in (*project["dependencies"], *itertools.chain(*extras.values())):
        requirement = Requirement(line)
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)].removeprefix("==")), line


def test_the_lock_of_this_environment_pins_all_that_the_project_and_its_tests_need():
    """Walks the installed packages' own metadata: what they ask for, and what that asks for."""
    lock = locked(ROOT / "constraints.txt")
    todo, seen = [Requirement("agentic_iqa_local[test]")], set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for line in importlib.metadata.requires(name) or ():
            wanted = Requirement(line)
            key = canonicalize_name(wanted.name), frozenset(wanted.extras)
            extras = requirement.extras or {""}
            asked = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
            if asked and key not in seen:
                seen.add(key)
                todo.append(wanted)
    needed = {name for name, _ in seen} - {"agentic-iqa-local"}
    assert {"torch", "hypothesis", "setuptools", "nvidia-cublas"} <= needed  # the walk goes all the way
    assert needed <= lock.keys()
    for name in needed:
        assert importlib.metadata.version(name).partition("+")[0] == lock[name].removeprefix("==").partition("+")[0], (
            name
        )


def test_the_root_file_system_may_be_read_only():
    writable = (
        "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HOME",
        "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "FLASHINFER_WORKSPACE_BASE",
    )  # fmt: skip
    values = environment()
    assert all(values[name].startswith("/tmp/") for name in writable)
    assert values["PYTHONDONTWRITEBYTECODE"] == "1"
    # Docker mounts a tmpfs noexec unless told otherwise, and Triton loads from there what it compiled.
    command = FILE.read_text(encoding="utf-8")
    for part in ("--network none", "--read-only", "--tmpfs /tmp:exec", ":/models:ro"):
        assert part in command


def test_models_come_from_the_mount_and_no_network_is_asked():
    values = environment()
    assert values["AGENTIC_IQA_MODELS"] == "/models"
    assert values["HF_HUB_OFFLINE"] == values["TRANSFORMERS_OFFLINE"] == values["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize("name", ["ENTRYPOINT", "HEALTHCHECK"])
def test_what_it_runs_is_there_and_takes_its_options(name):
    (argument,) = of(name)
    python, script, *options = json.loads(argument[argument.index("[") :])
    assert (python, (ROOT / script).is_file()) == ("python", True)
    help_text = subprocess.run(
        [sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(option in help_text for option in options)


# A container's /tmp is its own; what this test needs of ours (a checkout there, or its environment) is laid
# into it, read-only.
READ_ONLY_ROOT = """
mount --rbind / /mnt && mount -o remount,bind,ro /mnt && mount -t tmpfs tmpfs /mnt/tmp
while [ "$1" != -- ]; do
    mkdir -p "/mnt$1" && mount --rbind "$1" "/mnt$1" && mount -o remount,bind,ro "/mnt$1" && shift
done
shift && exec chroot /mnt "$@"
"""
NEEDED = sorted({str(ROOT), str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve())})
IN_TMP = [place for place in NEEDED if Path(place).is_relative_to("/tmp")]
ISOLATED = [
    "unshare",
    "--map-root-user",
    "--net",
    "--mount",
    "sh",
    "-ec",
    READ_ONLY_ROOT,
    "sh",
    *IN_TMP,
    "--",
]


def test_the_main_job_runs_with_its_environment_on_a_read_only_root_without_a_network():
    """With this environment's Python and on the CPU, on the tests' model: what the image adds to that was not
    run."""
    if shutil.which("unshare") is None or subprocess.run([*ISOLATED, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    variables = environment() | {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    variables["AGENTIC_IQA_MODELS"] = str(MODELS)
    command = [
        sys.executable,
        ROOT / "scripts" / "assess.py",
        "--cpu",
        "--image",
        ROOT / "tests" / "data" / "sumac.png",
    ]
    line = [
        *ISOLATED,
        "env",
        "-i",
        *(f"{name}={value}" for name, value in variables.items()),
        *command,
        "--json",
    ]
    assert subprocess.run([*ISOLATED, "touch", ROOT / "written"], capture_output=True).returncode
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["error"] is None


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint here; the extra `test` brings it, and the other tests of this file judge without it")
    done = subprocess.run([hadolint, str(FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")

"""Batches on several workers. Several nodes on this machine are several machines to Ray."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from acting import Acting, items
from conftest import MODELS, ROOT
from test_runner import by_name, untimed

from agentic_iqa_local.batch import ray as module
from agentic_iqa_local.batch.ray import RayRunner, check_address
from agentic_iqa_local.batch.runner import BatchError
from agentic_iqa_local.cli.command import parse
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.judgement.assessment import assess

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
    "AGENTIC_IQA_MODELS": str(MODELS),
    "OMP_NUM_THREADS": "1",
}


def test_rows_of_a_worker_are_those_of_one_assessment(photo, services, tmp_path):
    for number in range(2):
        photo.crop((8 * number, 0, 8 * number + 192, 224)).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"no picture")
    out = tmp_path / "rows.jsonl"
    words = ["assess.py", tmp_path / "*.png", "--cpu", "--pipeline", "letters", "--out", out]
    line = [
        sys.executable,
        ROOT / "scripts" / words[0],
        *words[1:],
        "--cluster",
        "local",
        "--workers",
        "1",
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([*map(str, line), "--resume"], capture_output=True, text=True, env=clean)
    assert done.returncode == 1, done.stderr  # one is no picture
    assert "ray" not in done.stderr.lower()  # it says nothing of itself
    rows = list(map(json.loads, out.read_text().splitlines()))
    assert len(rows) == 3
    for row in rows:
        expected = assess(row["image"], pipeline="letters", services=services)
        assert untimed(row) == untimed(expected.to_dict())


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster whose head computes nothing."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True, head_node_args=NODE | {"num_cpus": 0, "env_vars": ENVIRONMENT}
    )
    yield made
    made.shutdown()


@pytest.fixture
def add_node(cluster):
    """Adds nodes that are gone when the test ends."""
    added = []

    def add(name, **environment):
        added.append(cluster.add_node(**NODE, node_name=name, env_vars=ENVIRONMENT | environment))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)  # in an orderly way, so that the next test does not find it


def acting(cluster, workers: int, **options) -> RayRunner:
    address = f"127.0.0.1:{cluster.gcs_address.rpartition(':')[2]}"
    return RayRunner(Acting(load_settings(), "letters"), address, workers, **options)


def test_a_node_that_is_unlike_is_refused_by_name(cluster, add_node, tmp_path):
    other = tmp_path / "site-packages" / "transformers-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n")
    add_node("unlike", PYTHONPATH=os.pathsep.join([str(other.parent), ENVIRONMENT["PYTHONPATH"]]))
    said = f'): it has not what this command has: versions.transformers is "9.9.9", expected "{version("transformers")}"; scores'
    with pytest.raises(BatchError) as refused:
        list(acting(cluster, 1).rows(items(tmp_path, "a")))
    assert str(refused.value).startswith("unlike (")
    assert said in str(refused.value)


def test_a_killer_costs_no_worker_and_a_lost_node_no_picture(cluster, add_node, tmp_path, capfd):
    """A node is gone with what it had in hand, after its first row, and its worker has room nowhere else; a lost model
    ends its worker, which comes back."""
    nodes = [add_node("first"), add_node("second")]
    names = ["segfault", "card", *map(str, range(40))]
    made = []
    for row in acting(cluster, 2).rows(items(tmp_path, *names)):
        made.append(row)
        if len(made) == 1:
            cluster.remove_node(nodes[0], allow_graceful=False)
    found = by_name(made)
    assert found.keys() == set(names)
    assert found.pop("segfault") == "the process that assessed it ended by SIGSEGV"
    assert all(error.startswith("made by ") for error in found.values())
    assert "raylet" not in "".join(capfd.readouterr())  # Ray's own words


@pytest.fixture(scope="module")
def only_node(cluster):
    """A node for the tests that need no other."""
    return cluster.add_node(**NODE, node_name="only", env_vars=ENVIRONMENT)


@pytest.mark.usefixtures("only_node")
def test_what_loses_three_workers_is_a_failed_row(cluster, tmp_path):
    found = by_name(acting(cluster, 1).rows(items(tmp_path, "kill", "a", "b")))
    assert found.pop("kill").startswith("3 workers were lost that had this image, the last: ")
    assert all(error.startswith("made by ") for error in found.values())


@pytest.mark.usefixtures("only_node")
def test_workers_that_are_lost_without_a_row_end_the_batch(cluster, tmp_path):
    rows = acting(cluster, 1).rows(items(tmp_path, *(f"kill-{number}" for number in range(5))))
    said = "3 workers were lost without a row between them, the last: "
    with pytest.raises(BatchError, match=said):
        list(rows)


def test_an_address_at_which_nothing_answers_is_refused_soon(monkeypatch):
    for address in ("somewhere", "127.0.0.1:", "127.0.0.1:1"):
        with pytest.raises(BatchError, match="expected local, auto or the HOST:PORT of a cluster"):
            check_address(address)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(BatchError, match=r"agentic_iqa_local\[ray\]"):
        check_address("local")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--cluster local", "--cluster: expected with --workers"),
        ("--cluster local --workers 1 --gpu 0", "--cluster: expected without --gpu"),
        ("--cluster h:1 --workers 1 --map m.png", "--cluster: expected without --map"),
    ],
)
def test_options_that_do_not_go_together_are_told(options, says, photo_path, capsys):
    with pytest.raises(SystemExit):
        parse("assess", [str(photo_path), *options.split()])
    assert says in capsys.readouterr().err

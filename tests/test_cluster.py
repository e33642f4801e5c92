"""Batches on a cluster. Several nodes on this machine are several machines to Ray."""

import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest
from broken_cluster import FATAL, HANGS, SLOW, Reading, without_model
from conftest import MODELS, ROOT
from scripted import loaded_batch
from test_batch_worker import untimed

from agentic_iqa_local.batch.cluster import batch
from agentic_iqa_local.batch.cluster.batch import ClusterBatch
from agentic_iqa_local.batch.cluster.connection import ClusterError, check_address, check_installed
from agentic_iqa_local.batch.cluster.identity import differences, package_hash
from agentic_iqa_local.batch.cluster.sight import Afar, handed, with_what_is_missing
from agentic_iqa_local.batch.cluster.staff import Place, Staff
from agentic_iqa_local.batch.inputs import Item
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.images.files import ImageError, read_file, sent_files
from agentic_iqa_local.services import Services

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
    "AGENTIC_IQA_MODELS": str(MODELS),
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster whose head computes nothing."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64}
    os.environ |= token | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0})
    yield made
    made.shutdown()
    for name in token:
        del os.environ[name]


@pytest.fixture
def add_node(cluster):
    """Adds nodes that are gone when the test ends."""
    added = []

    def add(**environment):
        added.append(cluster.add_node(**NODE, env_vars=ENVIRONMENT | environment))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)  # in an orderly way, so that the next test does not find it


def reading(cluster, workers: int, **options) -> ClusterBatch:
    place = Place(f"127.0.0.1:{cluster.gcs_address.rpartition(':')[2]}", workers)
    return ClusterBatch(Reading(load_settings(), "letters"), place, target=without_model, **options)


def pictures(folder: Path, *names: str) -> list[Item]:
    """Files of as many bytes as their names have."""
    for name in names:
        (folder / name).write_bytes(b"." * len(name))
    return [Item(folder / name) for name in names]


def test_rows_of_the_command_are_those_of_a_batch_in_this_process_but_for_times(photo, tmp_path):
    for number in range(4):
        photo.crop((8 * number, 0, 8 * number + 192 + 32 * (number % 3), 224)).save(
            tmp_path / f"{number}.png"
        )
    (tmp_path / "4.png").write_bytes(b"no picture")
    items = [Item(tmp_path / f"{number}.png") for number in range(5)]
    out = tmp_path / "rows.jsonl"
    words = ["assess.py", *(item.image for item in items), "--cpu", "--pipeline", "letters", "--out", out]
    line = [sys.executable, ROOT / "scripts" / words[0], *words[1:], "--cluster", "local", "--workers", "2"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([*map(str, line), "--resume"], capture_output=True, text=True, env=clean)
    assert done.returncode == 1, done.stderr  # one is no picture
    assert "rows by node: " in done.stderr
    rows = {row["image"]: row for row in map(json.loads, out.read_text().splitlines())}
    here = loaded_batch(Services(load_settings(), "cpu"), pipeline="letters").rows(items)
    expected = {row.image: untimed(row.to_dict()) for row in here}
    assert {name: untimed(row) for name, row in rows.items()} == expected
    assert len(out.read_text().splitlines()) == len(items)
    assert not list(tmp_path.glob("*in_hand*"))


def test_a_picture_that_kills_its_workers_is_a_failure_and_one_that_hangs_costs_a_worker(
    cluster, add_node, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(batch, "MOST_DEATHS", 2)
    add_node()
    items = pictures(tmp_path, "0.png", FATAL, "1.png", HANGS, "2.png")
    rows = list(reading(cluster, 1).rows(items))
    assert sorted(row.image for row in rows) == sorted(str(item.image) for item in items)
    assert rows[-1].error == "2 processes died while they assessed this image alone"
    processes = {Path(row.image).name: row.error.split()[4] for row in rows[:-1]}
    assert processes[HANGS] == processes["1.png"] != processes["2.png"]
    assert sum("going on with a new worker" in record.message for record in caplog.records) == 2


def test_a_lost_nodes_pictures_go_to_a_node_that_joined_later(cluster, add_node, tmp_path, caplog):
    go = tmp_path / "go"
    first = add_node(TEST_NODE="first", TEST_GO=str(go))
    items = pictures(tmp_path, "0.png", *(f"{n}-{SLOW}" for n in range(4)))
    work = reading(cluster, 2)  # there is room for one
    rows = work.rows(items)
    made = [next(rows)]
    cluster.remove_node(first, allow_graceful=False)
    go.touch()
    add_node(TEST_NODE="second", TEST_GO=str(go))
    made += rows
    assert sorted(row.image for row in made) == sorted(str(item.image) for item in items)
    assert {row.error.split()[2] for row in made} == {"first", "second"}
    assert "room for 1 of 2 workers" in caplog.text
    assert work.description == {"by": "stand-in"}


def test_a_node_that_is_unlike_is_refused_by_name_before_the_first_row_and_left_out_later(
    cluster, add_node, tmp_path, caplog, monkeypatch
):
    other = tmp_path / "site-packages" / "transformers-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n")
    go = tmp_path / "go"
    unlike = {
        "TEST_GO": str(go),
        "PYTHONPATH": os.pathsep.join([str(other.parent), ENVIRONMENT["PYTHONPATH"]]),
    }
    says = f"transformers is 9.9.9, expected {version('transformers')}"
    items = pictures(tmp_path, "0.png", *(f"{n}-{SLOW}" for n in range(3)))
    add_node(TEST_NODE="like", TEST_GO=str(go))
    late = add_node(**unlike)
    begun = []
    with pytest.raises(ClusterError, match=rf"[(].*[)].*: {says.replace('.', '[.]')}"):
        list(reading(cluster, 2).rows(begun.append(item) or item for item in items))
    assert begun == []
    cluster.remove_node(late)
    work = reading(cluster, 2)
    rows = work.rows(items)
    made = [next(rows)]
    leave_out = Staff.leave_out
    monkeypatch.setattr(Staff, "leave_out", lambda self, *args: (leave_out(self, *args), go.touch()))
    add_node(**unlike)
    made += rows
    assert {row.error.split()[2] for row in made} == {"like"}
    assert says in caplog.text


def test_one_that_loads_in_another_dtype_is_refused(cluster, add_node, tmp_path):
    add_node()
    add_node(TEST_DTYPE="bfloat16")
    with pytest.raises(
        ClusterError, match=r"dtype is (bfloat16, expected float32|float32, expected bfloat16)"
    ):
        reading(cluster, 2).load()


def test_pictures_that_a_worker_does_not_see_come_along_and_a_stop_ends_with_what_is_in_hand(
    cluster, add_node, tmp_path
):
    go = tmp_path / "go"
    add_node(TEST_GO=str(go))
    items = pictures(tmp_path, "picture.png", "reference.png", *(f"{n}-{SLOW}" for n in range(5)))
    folder = os.dup2(os.open(tmp_path, os.O_RDONLY), 900)
    try:
        here_alone = Path(f"/proc/self/fd/{folder}")  # no other process has it open
        work = reading(cluster, 1)
        names = [Item(here_alone / items[0].image.name, here_alone / items[1].image.name)]
        rows = work.rows(names + [Item(here_alone / item.image.name) for item in items[2:]])
        first = next(rows)
        work.stop()
        go.touch()
        assert len(list(rows)) == 1  # the next is at the worker by then
    finally:
        os.close(folder)
    assert first.image == "/proc/self/fd/900/picture.png"
    assert first.error.endswith("[11, 13]")  # the letters of picture.png and reference.png


def test_another_file_of_the_same_name_is_noticed(tmp_path):
    (item,) = pictures(tmp_path, "0.png")
    work, content = Afar(Reading(load_settings(), "letters")), item.image.read_bytes()
    given = handed(item, [item.image])
    assert not isinstance(work.row(given, None, None), str)
    item.image.write_bytes(b"another")  # as the worker sees it
    unseen = work.row(given, None, None)
    assert unseen.found == {str(item.image): hashlib.sha256(b"another").hexdigest()}
    assert with_what_is_missing(given, unseen).data == {}  # the driver sees the same by now
    item.image.write_bytes(content)
    again = with_what_is_missing(given, unseen)
    item.image.unlink()
    assert work.row(again, None, None).error.endswith("[5]")  # the letters of 0.png
    assert work.failure(again, "x").sha256 == hashlib.sha256(content).hexdigest()
    with pytest.raises(ImageError), sent_files({}):
        read_file(item.image)


def test_what_differs_is_told_with_both_values():
    assert differences({"torch": "2.11", "numpy": "2"}, {"torch": "2.12", "numpy": "2"}) == (
        "torch is 2.11, expected 2.12"
    )
    assert differences({}, {"model x": "a" * 64}) == "model x is not there, expected aaaaaaaaaaaa…"
    assert "; and 1 more" in differences({str(n): n for n in range(6)}, {})


def test_the_packages_hash_is_that_of_its_code(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("a = 1")
    before = package_hash(tmp_path)
    (tmp_path / "part" / "a.pyc").write_text("compiled")
    assert package_hash(tmp_path) == before
    (tmp_path / "part" / "a.py").write_text("a = 2")
    assert package_hash(tmp_path) != before


def test_an_address_at_which_something_else_answers_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            client, _ = server.accept()
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ClusterError, match="no Ray cluster answers there"):
            check_address(f"127.0.0.1:{server.getsockname()[1]}")
    for address in ("ray://127.0.0.1:10001", "somewhere", "127.0.0.1:"):
        with pytest.raises(ClusterError, match="expected local, auto or HOST:PORT"):
            check_address(address)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"agentic_iqa_local\[ray\]"):
        check_installed()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--workers", "2"], "--workers: expected with --cluster"),
        (["--cluster", "local"], "--cluster: expected with --workers N"),
        (["--cluster", "local", "--workers", "0"], "--workers: expected 1 to 1024"),
        (
            ["--cluster", "local", "--workers", "1", "--gpus-per-worker", "-1"],
            "--gpus-per-worker: expected more",
        ),
        (["--cluster", "local", "--workers", "1", "--gpu", "0"], "--gpu: expected without --cluster"),
        (
            ["--cluster", "local", "--workers", "1", "--interactive"],
            "--interactive: expected without --cluster",
        ),
        (["--cluster", "h:1", "--workers", "1", "--map", "m.png"], "--map: expected without --cluster"),
    ],
)
def test_options_that_do_not_go_together_are_told_before_anything_is_loaded(
    options, says, photo_path, capsys
):
    from agentic_iqa_local.cli.assess_options import parse

    with pytest.raises(SystemExit) as ended:
        parse([photo_path, *options], "")
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_gpus_are_asked_for_where_there_are_none(cluster, add_node):
    add_node()
    work = reading(cluster, 1)
    work._staff.place = Place(work._staff.place.address, 1, 1.0)
    with pytest.raises(ClusterError, match="--gpus-per-worker 1: expected a GPU"):
        work.load()

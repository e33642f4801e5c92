"""Bundles: what is carried arrives byte for byte, and nothing that the manifest does not name gets onto the disk."""

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import EMBEDDED
from filelock import FileLock

from agentic_iqa_local.cli import bundle as bundle_command
from agentic_iqa_local.cli import store as store_command
from agentic_iqa_local.offline import bundle as bundles
from agentic_iqa_local.offline import fetch
from agentic_iqa_local.offline.bundle import LOCK, describe, read_manifest, unpack, verify, write_bundle
from agentic_iqa_local.offline.manifest import MANIFEST, MANIFEST_HASH, WHEELS, BundleError, hash_line
from agentic_iqa_local.offline.store import check_model, environment, store_manifest, verified, weights_dir

SIZES = {
    "a-model/config.json": 30,
    "a-model/model.safetensors": 3000,
    "tools/hub/pyiqa/a.pth": 2000,
    f"{WHEELS}/one.whl": 40,
}


@pytest.fixture
def places(tmp_path):
    rng = np.random.default_rng(3)
    for path, size in SIZES.items():
        (tmp_path / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / path).write_bytes(rng.bytes(size))
    return {path: tmp_path / "files" / path for path in SIZES}


def made(places: dict[str, Path], out: Path, archive: bool = True) -> str:
    files = {path: (file, "made by a test", "mit") for path, file in places.items()}
    return write_bundle(out, describe(files, ("files of a test", f"{WHEELS} of a test")), places, archive)


@pytest.fixture
def bundle(places, tmp_path):
    made(places, tmp_path / "small.tar")
    return tmp_path / "small.tar"


def problems(bundle: Path) -> str:
    """Everything that is wrong with a bundle, in one text."""
    try:
        return " ".join(map(str, verify(bundle)))
    except BundleError as error:
        return str(error)


def rewritten(bundle: Path, change) -> Path:
    """The archive with its members, (TarInfo, bytes), as `change` leaves the list of them."""
    with tarfile.open(bundle) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar.getmembers()]
    change(members)
    with tarfile.open(bundle, "w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return bundle


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


# what a user does


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "folder"])
def test_the_embedded_models_bundle_arrives_byte_for_byte(archive, tmp_path, capsys):
    out, store = tmp_path / "embedded.iqabundle.tar", tmp_path / "store"
    assert bundle_command.main(["--out", str(out), *([] if archive else ["--no-archive"])]) == 0
    assert out.is_file() == archive
    sha256 = read_manifest(out)[1]
    assert sha256 in capsys.readouterr().out
    assert store_command.verify([str(out), "--expect", sha256.upper()]) == 0
    assert store_command.unpack([str(out), "--expect", sha256, "--models", str(store)]) == 0
    for file in EMBEDDED.iterdir():
        assert (store / "embedded" / file.name).read_bytes() == file.read_bytes()
    check_model(store / "embedded", store)
    if archive:
        line = out.with_name(f"{out.name}.sha256").read_text()
        assert line == f"{hashlib.sha256(out.read_bytes()).hexdigest()}  {out.name}\n"  # for sha256sum -c


def test_a_bundle_of_earlier_versions_is_read(places, tmp_path):
    """They were POSIX archives whose manifest came first, as the standard library's tarfile makes them too."""
    files = {path: (file, "made by a test", "mit") for path, file in places.items()}
    raw, old = describe(files, ("old",)).serialised(), tmp_path / "old.tar"
    with tarfile.open(old, "w", format=tarfile.USTAR_FORMAT) as tar:
        contents = {MANIFEST_HASH: hash_line(raw), MANIFEST: raw} | {p: f.read_bytes() for p, f in places.items()}
        for name, content in contents.items():
            info = member(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert verify(old) == []


def test_wheels_stay_in_the_bundle_and_a_newer_bundle_replaces_its_models_files(places, bundle, tmp_path):
    store = tmp_path / "store"
    unpack(bundle, store)
    assert not (store / WHEELS).exists()
    assert verify(store) == []
    newer = {"a-model/other.safetensors": places["a-model/model.safetensors"]}
    made(newer, tmp_path / "newer.tar")
    unpack(tmp_path / "newer.tar", store)
    assert os.listdir(store / "a-model") == ["other.safetensors"]
    assert {file.path for file in store_manifest(store).files} == {*newer, "tools/hub/pyiqa/a.pth"}
    assert verified(store, "tools/hub/pyiqa/a.pth")
    assert environment(store)["TORCH_HOME"] == str(weights_dir(store).parent)


@pytest.mark.parametrize("where", range(500, 9000, 1500))
def test_a_cut_archive_is_refused_and_the_same_call_completes_it(bundle, tmp_path, where):
    whole, cut, store = bundle.read_bytes(), tmp_path / "cut.tar", tmp_path / "store"
    cut.write_bytes(whole[:where])
    assert problems(cut)
    with pytest.raises(BundleError):
        unpack(cut, store)
    assert not (store / MANIFEST).exists()
    cut.write_bytes(whole)
    unpack(cut, store)
    assert verify(store) == []
    assert not list(store.rglob("*.partial"))


# what is damaged or hostile


def test_each_flipped_byte_of_a_file_is_found(bundle, places):
    content = bytearray(bundle.read_bytes())
    for path, file in places.items():
        at = bytes(content).index(file.read_bytes()) + 7
        content[at] ^= 1
        bundle.write_bytes(content)
        assert path in problems(bundle)
        content[at] ^= 1


def add(*added):
    return lambda members: members.extend(added)


def put_elsewhere(members):
    members[2][0].name = "../escaped"


@pytest.mark.parametrize(
    "change",
    [
        add((member("../escaped"), b"x")),
        add((member("/tmp/escaped"), b"x")),
        add((member("link", tarfile.SYMTYPE, "/etc"), b"")),
        add((member("a-model/config.json"), b"x" * 30)),
        add((member("device", tarfile.CHRTYPE), b"")),
        put_elsewhere,
        lambda members: members.reverse(),
        lambda members: members.__setitem__(1, (members[1][0], members[1][1].replace(b"a-model/c", b"../../e/c"))),
    ],
    ids=["parent", "absolute", "link", "doubled", "device", "renamed", "order", "path in manifest"],
)
def test_a_hostile_archive_writes_nothing_outside(change, bundle, tmp_path):
    rewritten(bundle, change)
    assert problems(bundle)
    store = tmp_path / "deep" / "store"
    with pytest.raises(BundleError):
        unpack(bundle, store)
    named = {store / path for path in SIZES} | {place for path in SIZES for place in (store / path).parents}
    assert {place for place in tmp_path.rglob("*") if "deep" in place.parts} <= named
    assert not (tmp_path / "escaped").exists()


def test_a_manifest_with_its_own_right_hash_must_still_name_plain_paths(bundle, tmp_path):
    def change(members):
        raw = members[1][1].replace(b"a-model/config.json", b"../model/config.json")
        members[0:2] = [(members[0][0], hash_line(raw)), (members[1][0], raw)]

    assert "expected a relative path" in problems(rewritten(bundle, change))


def test_nothing_but_the_expected_bundle_is_accepted(bundle, tmp_path, capsys):
    assert store_command.unpack([str(bundle), "--expect", "0" * 64, "--models", str(tmp_path / "s")]) == 1
    assert "another bundle or a changed one" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100, b"\x1f\x8b\x08rest"])
def test_what_is_no_bundle_is_told_in_one_sentence(content, tmp_path, capsys):
    (tmp_path / "x.tar").write_bytes(content)
    assert store_command.verify([str(tmp_path / "x.tar")]) == 1
    assert "expected a bundle that starts with" in capsys.readouterr().err


def test_a_model_is_refused_once_a_file_of_it_has_changed_or_another_has_joined(bundle, tmp_path):
    store = tmp_path / "store"
    unpack(bundle, store)
    check_model(store / "a-model", store)
    (store / "a-model" / "added.safetensors").write_bytes(b"x")
    with pytest.raises(BundleError, match=r"added\.safetensors"):
        check_model(store / "a-model", store)
    (store / "a-model" / "added.safetensors").unlink()
    weights = store / "a-model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[::-1])
    with pytest.raises(BundleError, match=r"model\.safetensors is damaged or was changed"):
        check_model(store / "a-model", store)
    check_model(EMBEDDED, store)  # no bundle brought this one


def test_two_processes_do_not_unpack_into_one_folder(bundle, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    with FileLock(store / LOCK), pytest.raises(BundleError, match="another process"):
        unpack(bundle, store)


def test_a_full_disk_is_told_before_anything_is_written(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10, 0, 10))
    with pytest.raises(BundleError, match=r"5\.0 kB of free space, got 10 bytes"):  # 30 + 3000 + 2000 bytes
        unpack(bundle, tmp_path / "store")
    assert list((tmp_path / "store").rglob("*")) == []


# what is collected


def test_a_licence_that_binds_is_shown_and_has_to_be_accepted(tmp_path, capsys):
    weights = tmp_path / "hub"
    (weights / "pyiqa").mkdir(parents=True)
    found = bundle_command.main(["--tools", "LPIPS", "--weights", str(weights), "--out", str(tmp_path / "b.tar")])
    told = capsys.readouterr().err
    assert found == 1
    assert "no commercial use" in told
    assert "PolyForm-Noncommercial" in told
    assert "--accept-licences" in told


def test_a_weight_that_is_not_its_publishers_is_refused(tmp_path):
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "RN50.pt").write_bytes(b"other")
    with pytest.raises(fetch.FetchError, match="SHA-256 begins with afeb0e10"):
        fetch.tool_weight("clip/RN50.pt", tmp_path, None, tmp_path)


def test_a_hugging_face_cache_is_taken_without_its_links(tmp_path):
    inner = tmp_path / "hub" / "models--org--net"
    (inner / "blobs").mkdir(parents=True)
    (inner / "refs").mkdir()
    (inner / "snapshots" / "abc").mkdir(parents=True)
    (inner / "blobs" / "1").write_bytes(b"weights")
    (inner / "refs" / "main").write_text("abc")
    (inner / "snapshots" / "abc" / "model.safetensors").symlink_to("../../blobs/1")
    (inner / "snapshots" / "abc" / "run.py").write_text("print()")
    found = fetch.tool_weight("hf:org/net", None, tmp_path / "hub", tmp_path)
    assert {one.path.rpartition("models--org--net/")[2] for one in found} == {
        "refs/main",
        "snapshots/abc/model.safetensors",
    }
    made({one.path: one.file for one in found}, tmp_path / "b", archive=False)
    assert not any(place.is_symlink() for place in (tmp_path / "b").rglob("*"))


def test_without_a_network_a_download_fails_in_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: (_ for _ in ()).throw(OSError("no route")))
    options = ["--config", "qwen3_vl_2b", "--models", str(tmp_path), "--out", str(tmp_path / "b.tar")]
    assert bundle_command.main(options) == 1
    assert "Qwen/Qwen3-VL-2B-Instruct" in (told := capsys.readouterr().err)
    assert "cannot be downloaded (no route)" in told


def test_remote_code_and_pickles_of_a_model_stay_behind(tmp_path):
    for name in ("model.safetensors", "config.json", "modeling_x.py", "pytorch_model.bin", ".hidden.json"):
        (tmp_path / name).write_bytes(b"{}")
    found = fetch.model_files("m", tmp_path, None, tmp_path)
    assert [one.path for one in found] == ["m/config.json", "m/model.safetensors"]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(fetch.FetchError, match="expected weights as"):
        fetch.model_files("m", tmp_path, None, tmp_path)


@pytest.mark.parametrize("repo", ["nonsense", "other=org/name"])
def test_a_repository_that_nothing_asks_for_is_wrong_usage(repo, capsys):
    with pytest.raises(SystemExit) if repo == "nonsense" else pytest.MonkeyPatch.context():
        assert bundle_command.main(["--repo", repo]) == 2
    assert "expected" in capsys.readouterr().err


def test_progress_counts_every_byte(bundle):
    done: dict[str, int] = {}
    verify(bundle, progress=lambda path, size: done.__setitem__(path, done.get(path, 0) + size))
    assert done == SIZES
    assert bundles.silent("x", 1) is None

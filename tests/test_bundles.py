"""Bundles: what is carried arrives byte for byte, and nothing that the manifest does not name gets onto the disk."""

import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import EMBEDDED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_iqa_local.cli import bundle as command
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.iqa_tools.weights import MANIFEST, BundleError, ListedFiles, environment
from agentic_iqa_local.offline import fetch
from agentic_iqa_local.offline.bundle import LOCK, opened, unpack, verify, write_bundle
from agentic_iqa_local.offline.manifest import MANIFEST_HASH, WHEELS, hash_line, store_manifest

SIZES = {
    "a-model/config.json": 30,
    "a-model/model.safetensors": 3000,
    "tools/hub/pyiqa/a.pth": 2000,
    f"{WHEELS}/one.whl": 40,
}
FIXED = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def places(tmp_path):
    rng = np.random.default_rng(3)
    for path, size in SIZES.items():
        (tmp_path / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / path).write_bytes(rng.bytes(size))
    return {path: tmp_path / "files" / path for path in SIZES}


def made(places: dict[str, Path], out: Path) -> str:
    files = {path: (file, "made by a test", "mit") for path, file in places.items()}
    return write_bundle(out, files, ("files of a test", f"{WHEELS} of a test"))[1]


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


def rewritten(bundle: Path, change, form: int = tarfile.GNU_FORMAT) -> Path:
    """The archive with its members, (TarInfo, bytes), as `change` leaves the list of them."""
    with tarfile.open(bundle) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar.getmembers()]
    change(members)
    with tarfile.open(bundle, "w", format=form) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return bundle


def link() -> tarfile.TarInfo:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc"
    return info


def signed_again(members) -> None:
    """A manifest with its own right hash that names a path outside of the bundle."""
    raw = members[1][1].replace(b"a-model/config.json", b"../escaped/config.j")
    members[0:2] = [(members[0][0], hash_line(raw)), (members[1][0], raw)]


# what a user does


def test_the_embedded_models_bundle_arrives_byte_for_byte_and_no_other_is_expected(
    tmp_path, capsys
):
    out, store = tmp_path / "embedded.iqabundle.tar", tmp_path / "store"
    assert main(["bundle", "--out", str(out)]) == 0
    with opened(out) as found:
        sha256 = found.sha256
    assert sha256 in capsys.readouterr().out
    assert main(["verify", str(out), "--expect", sha256.upper()]) == 0
    assert main(["unpack", str(out), "--expect", "0" * 64, "--models", str(store)]) == 1
    assert "another bundle or a changed one" in capsys.readouterr().err
    assert not store.exists()
    assert main(["unpack", str(out), "--expect", sha256, "--models", str(store)]) == 0
    for file in EMBEDDED.iterdir():
        assert (store / "embedded" / file.name).read_bytes() == file.read_bytes()
    ListedFiles(store).check_model(store / "embedded")
    assert main(["verify", str(store)]) == 0


def test_a_bundle_of_earlier_versions_is_read(bundle, tmp_path):
    """They were POSIX archives with the same manifest, or the folder that such an archive unpacks to."""
    assert verify(rewritten(bundle, lambda members: None, tarfile.USTAR_FORMAT)) == []
    shutil.unpack_archive(bundle, tmp_path / "folder", "tar")
    assert verify(tmp_path / "folder") == []
    unpack(tmp_path / "folder", tmp_path / "store")
    assert verify(tmp_path / "store") == []


def test_wheels_stay_in_the_bundle_and_a_newer_bundle_replaces_its_models_files(
    places, bundle, tmp_path
):
    store = tmp_path / "store"
    unpack(bundle, store)
    assert not (store / WHEELS).exists()
    assert verify(store) == []
    newer = {"a-model/other.safetensors": places["a-model/model.safetensors"]}
    made(newer, tmp_path / "newer.tar")
    unpack(tmp_path / "newer.tar", store)
    assert os.listdir(store / "a-model") == ["other.safetensors"]
    assert {file.path for file in store_manifest(store).files} == {*newer, "tools/hub/pyiqa/a.pth"}
    assert verify(store) == []
    assert environment(store)["HF_HUB_CACHE"] == str(store / "tools" / "huggingface")


@FIXED
@given(st.data())
def test_a_cut_archive_is_refused_and_the_same_call_completes_it(bundle, tmp_path, data):
    whole, cut, store = bundle.read_bytes(), tmp_path / "cut.tar", tmp_path / "store"
    end = whole.rindex(bundle.parent.joinpath("files", WHEELS, "one.whl").read_bytes())
    cut.write_bytes(whole[: data.draw(st.integers(0, end))])
    shutil.rmtree(store, ignore_errors=True)
    assert problems(cut)
    with pytest.raises(BundleError):
        unpack(cut, store)
    assert not (store / MANIFEST).exists()
    cut.write_bytes(whole)
    unpack(cut, store)
    assert verify(store) == []
    assert not list(store.rglob("*.partial"))


# what is damaged or hostile


@FIXED
@given(st.sampled_from(list(SIZES)), st.integers(0, 29), st.integers(1, 255))
def test_each_changed_byte_of_a_file_is_found(bundle, places, path, at, change):
    whole = bundle.read_bytes()
    content = bytearray(whole)
    content[whole.index(places[path].read_bytes()) + at] ^= change
    bundle.write_bytes(content)
    assert path in problems(bundle)
    bundle.write_bytes(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda members: members.append((tarfile.TarInfo("../escaped"), b"x")),
        lambda members: members.append((link(), b"")),
        lambda members: members.append((tarfile.TarInfo("a-model/config.json"), b"x" * 30)),
        lambda members: setattr(members[2][0], "name", "../escaped"),
        lambda members: members.__setitem__(
            1, (members[1][0], members[1][1].replace(b"a-model/c", b"../../e/c"))
        ),
        signed_again,
    ],
    ids=["parent", "link", "doubled", "renamed", "path in manifest", "path in signed manifest"],
)
def test_a_hostile_archive_writes_nothing(change, bundle, tmp_path):
    rewritten(bundle, change)
    assert problems(bundle)
    with pytest.raises(BundleError):
        unpack(bundle, tmp_path / "deep" / "store")
    assert not list(tmp_path.rglob("escaped"))
    assert not (tmp_path / "deep").exists()


def test_nothing_is_written_through_what_lies_beside_a_file(bundle, places, tmp_path):
    precious, store = tmp_path / "precious", tmp_path / "store"
    precious.write_text("mine")
    (store / "a-model").mkdir(parents=True)
    for place in (bundle, store / "a-model" / "config.json"):
        place.with_name(f"{place.name}.partial").symlink_to(precious)
    made(places, bundle)
    unpack(bundle, store)
    assert precious.read_text() == "mine"
    assert verify(bundle) == []


def named(*paths: str):
    """A change of a bundle: its manifest, with its own right hash, gives the first files these paths."""

    def change(members) -> None:
        raw = members[1][1]
        for old, new in zip(SIZES, paths, strict=False):
            raw = raw.replace(f'"path": "{old}"'.encode(), f'"path": "{new}"'.encode())
            (member,) = (member for member, _ in members if member.name == old)
            member.name = new
        members[0:2] = [(members[0][0], hash_line(raw)), (members[1][0], raw)]

    return change


@pytest.mark.parametrize(
    "paths",
    [
        ["manifest.json/x"],
        ["Manifest.json/x"],
        ["manifest.json.sha256/x"],
        ["m", "m/a.bin"],
        ["m/a", "m/a/b"],
        ["m/a", "m/A"],
        ["m/a", "M/b"],
        ["m/a", "m/a"],
        ["x"],
        ["m//a"],
        ["m/./a"],
        ["m/../a"],
        ["/m/a"],
        [""],
        ["m/"],
        ["m/a."],
        ["m/a "],
        ["m /a"],
        ["m/.agentic_iqa.lock"],
        ["m/\\u0000"],
        ["m/e\u0301"],
        ["m/\u00e9"],
        [f"m/{'x' * 256}"],
        ["m/" * 500 + "x"],
    ],
    ids=lambda paths: " and ".join(paths)[:40],
)
def test_what_unpack_could_not_store_verify_refuses_too(paths, bundle, tmp_path):
    rewritten(bundle, named(*paths))
    assert problems(bundle)
    with pytest.raises(BundleError):
        unpack(bundle, tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("paths", [["m/a", "m/a.partial"], [f"m/{'x' * 255}"], ["m/a=b, c~(1)"]])
def test_what_verify_passes_unpack_stores(paths, bundle, tmp_path):
    rewritten(bundle, named(*paths))
    assert verify(bundle) == []
    unpack(bundle, tmp_path / "store")
    assert verify(tmp_path / "store") == []


@pytest.mark.parametrize(
    "path", ["a-model", "a-model/config.json", "tools/hub", "manifest.json.sha256", "manifest.json"]
)
def test_what_no_bundle_brought_is_not_replaced(path, bundle, tmp_path):
    store = tmp_path / "store"
    (store / path).parent.mkdir(parents=True)
    (store / path).write_text("mine")
    with pytest.raises(BundleError, match=path):
        unpack(bundle, store)
    assert (store / path).read_text() == "mine"
    assert {file.name for file in store.rglob("*") if file.is_file()} == {Path(path).name, LOCK}
    (store / path).unlink()
    unpack(bundle, store)
    assert verify(store) == []


@FIXED
@given(st.data())
def test_an_archive_whose_headers_are_damaged_is_told_in_one_sentence(bundle, tmp_path, data):
    """Also those with a right checksum, and whatever type or size they claim."""
    whole = bytearray(bundle.read_bytes())
    start = data.draw(st.sampled_from([at for at in range(0, 4096, 512) if whole[at + 257] == 117]))
    at, new = data.draw(
        st.one_of(
            st.tuples(st.integers(0, 511), st.binary(min_size=1, max_size=1)),
            st.tuples(st.just(124), st.sampled_from([b"\xff" * 12, b"\xff" * 10 + b"\xfc\0"])),
            st.tuples(st.just(156), st.sampled_from([bytes([kind]) for kind in b"012567gxLKSV"])),
        )
    )
    whole[start + at : start + at + len(new)] = new
    whole[start + 148 : start + 156] = b" " * 8
    whole[start + 148 : start + 156] = b"%06o\0 " % sum(whole[start : start + 512])
    (tmp_path / "x.tar").write_bytes(whole)
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    if problems(tmp_path / "x.tar"):
        with pytest.raises(BundleError):
            unpack(tmp_path / "x.tar", tmp_path / "store")


def test_a_sparse_file_without_a_map_is_told_in_one_sentence(bundle, tmp_path):
    def change(members) -> None:
        members[2][0].pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}

    rewritten(bundle, change, tarfile.PAX_FORMAT)
    assert problems(bundle)
    with pytest.raises(BundleError):
        unpack(bundle, tmp_path / "store")


@pytest.mark.parametrize(
    "content", [b"", b"no archive at all" * 100, tarfile.TarInfo(MANIFEST_HASH).tobuf()]
)
def test_what_is_no_bundle_is_told_in_one_sentence(content, tmp_path, capsys):
    (tmp_path / "x.tar").write_bytes(content)
    assert main(["verify", str(tmp_path / "x.tar")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'x.tar'}: ")


def test_a_model_is_refused_once_a_file_of_it_has_changed_or_another_has_joined(bundle, tmp_path):
    store = tmp_path / "store"
    unpack(bundle, store)
    ListedFiles(store).check_model(store / "a-model")
    (store / "a-model" / "added.safetensors").write_bytes(b"x")
    assert "added.safetensors" in problems(store)
    with pytest.raises(BundleError, match=r"added\.safetensors"):
        ListedFiles(store).check_model(store / "a-model")
    (store / "a-model" / "added.safetensors").unlink()
    weights = store / "a-model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[::-1])
    with pytest.raises(BundleError, match=r"model\.safetensors is damaged or was changed"):
        ListedFiles(store).check_model(store / "a-model")
    ListedFiles(store).check_model(EMBEDDED)  # no bundle brought this one


def test_a_full_disk_is_told_before_anything_is_written(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10, 0, 10))
    with pytest.raises(
        BundleError, match=r"5\.0 kB of free space, got 10 bytes"
    ):  # 30 + 3000 + 2000 bytes
        unpack(bundle, tmp_path / "store")
    assert os.listdir(tmp_path / "store") == [LOCK]


# what is collected


def refused(capsys, *options) -> str:
    """What the command bundle says that ends with 1 or 2."""
    assert main(["bundle", *map(str, options)]) in (1, 2)
    return capsys.readouterr().err


def test_a_bundle_is_refused_in_one_sentence(tmp_path, capsys, monkeypatch):
    """A licence that binds has to be accepted; nothing asks for that repository; there is no network."""
    out = ("--out", tmp_path / "b.tar")
    told = refused(capsys, "--tools", "LPIPS", *out)
    for said in ("no commercial use", "PolyForm-Noncommercial", "--accept-licences"):
        assert said in told
    with monkeypatch.context() as installed:
        installed.setattr(command, "ROOT", tmp_path)
        assert "--wheels: expected a checkout" in refused(capsys, "--wheels", "vllm", *out)
    assert "expected a folder of configuration embedded" in refused(
        capsys, "--repo", "other=org/name"
    )
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info",
        lambda *_, **__: (_ for _ in ()).throw(OSError("no route")),
    )
    told = refused(capsys, "--config", "qwen3_vl_2b", "--models", tmp_path, *out)
    assert "Qwen/Qwen3-VL-2B-Instruct" in told
    assert "cannot be downloaded (no route)" in told


# the common mark of a folder that may be deleted, as another program writes it
CACHE = "Signature: 8a477f597d28d172789f06886806bc55\n# made by another program\n"


@pytest.mark.parametrize(("name", "text"), [("mine.txt", "mine"), ("CACHEDIR.TAG", CACHE)])
def test_a_folder_of_downloads_that_is_not_ours_is_kept(tmp_path, capsys, name, text):
    theirs = tmp_path / "x.iqabundle.tar.downloads" / name
    theirs.parent.mkdir()
    theirs.write_text(text)
    out = tmp_path / "x.iqabundle.tar"
    assert main(["bundle", "--config", "embedded", "--out", str(out)]) == 1
    assert "something else has the name" in capsys.readouterr().err
    assert theirs.read_text() == text
    theirs.unlink()
    theirs.parent.rmdir()
    assert main(["bundle", "--config", "embedded", "--out", str(out)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == [out.name]


def test_a_hugging_face_cache_is_taken_without_its_links(tmp_path, monkeypatch):
    inner = tmp_path / "hub" / "models--org--net"
    for folder in ("blobs", "refs", "snapshots/abc"):
        (inner / folder).mkdir(parents=True)
    (inner / "blobs" / "1").write_bytes(b"weights")
    (inner / "refs" / "main").write_text("abc")
    (inner / "snapshots" / "abc" / "model.safetensors").symlink_to("../../blobs/1")
    (inner / "snapshots" / "abc" / "run.py").write_text("print()")
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **__: str(inner / "snapshots" / "abc")
    )
    found = fetch.tool_weight("hf:org/net", tmp_path)
    names = {one.path.rpartition("models--org--net/")[2] for one in found}
    assert names == {"refs/main", "snapshots/abc/model.safetensors"}
    made({one.path: one.file for one in found}, tmp_path / "b.tar")
    unpack(tmp_path / "b.tar", tmp_path / "store")
    assert (tmp_path / "store" / found[1].path).read_bytes() == b"weights"


def test_remote_code_and_pickles_of_a_model_stay_behind(tmp_path):
    for name in (
        "model.safetensors",
        "config.json",
        "modeling_x.py",
        "pytorch_model.bin",
        ".hidden.json",
    ):
        (tmp_path / name).write_bytes(b"{}")
    found = fetch.model_files("m", tmp_path, None, tmp_path)
    assert [one.path for one in found] == ["m/config.json", "m/model.safetensors"]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BundleError, match="weights as"):
        fetch.model_files("m", tmp_path, None, tmp_path)

"""Attacks on bundles and on the models folder that they are unpacked into. Each ends in one sentence, and
writes, removes and shows nothing outside of that folder."""

import gzip
import hashlib
import http.server
import io
import itertools
import json
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from attacks import ODD_FILES, in_time, is_sentence
from test_model_store import (
    COMMIT,
    GOOD,
    archive_of,
    bundle_command,
    entry,
    fetch,
    make_bundle,
    make_files,
    manifest_of,
    member,
    padded,
    wheel_files,
)

from agentic_iqa_local.offline.manifest import LARGEST_MANIFEST, MANIFEST, MANIFEST_HASH, BundleError
from agentic_iqa_local.offline.reading import verify
from agentic_iqa_local.offline.store import LOCK, check_model, store_manifest, unpack
from agentic_iqa_local.offline.tar import BLOCK

NAMES = {"vlm/config.json": 513, "vlm/model.safetensors": 3000}


@pytest.fixture(autouse=True)
def _in_time():
    with in_time():
        yield


@pytest.fixture
def archive(tmp_path) -> Path:
    """A good bundle that a case damages, without the file beside it."""
    make_bundle(make_files(tmp_path / "files", NAMES), tmp_path / "good.tar")
    (tmp_path / "good.tar.sha256").unlink()
    return tmp_path / "good.tar"


@pytest.fixture
def folder(tmp_path) -> Path:
    """The same in folder form."""
    make_bundle(make_files(tmp_path / "files", NAMES), tmp_path / "good", archive=False)
    return tmp_path / "good"


def assert_refused(bundle: str | Path, store: Path) -> str:
    """`bundle` is refused in sentences by verify and by unpack, and no store comes of it; what verify
    says."""
    try:
        problems = verify(bundle)
    except BundleError as error:
        problems = [str(error)]
    assert problems
    with pytest.raises(BundleError) as caught:
        unpack(bundle, store)
    assert all(map(is_sentence, [*problems, str(caught.value)]))
    assert store_manifest(store) is None
    return problems[0]


# Odd files in place of a bundle's own


@pytest.mark.parametrize("part", [MANIFEST, MANIFEST_HASH])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_as_a_part_of_a_folder(kind, part, folder, tmp_path):
    (folder / part).unlink()
    ODD_FILES[kind](folder / part)
    assert_refused(folder, tmp_path / "store")


@pytest.mark.parametrize("part", [MANIFEST, MANIFEST_HASH])
@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_as_a_part_of_a_models_folder(kind, part, archive, tmp_path, monkeypatch):
    store = tmp_path / "store"
    unpack(archive, store)
    (store / part).unlink()
    ODD_FILES[kind](store / part)
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(store))
    for use in (
        lambda: store_manifest(store),
        lambda: check_model(store / "vlm"),
        lambda: unpack(archive, store),
    ):
        with pytest.raises(BundleError) as caught:
            use()
        assert is_sentence(str(caught.value))


@pytest.mark.parametrize(
    "kind", ["pipe", "socket", "folder", "endless device", "kernel log", "loop of links", "dangling link"]
)
def test_an_odd_file_as_a_model_file(kind, folder, tmp_path):
    (folder / "vlm/config.json").unlink()
    ODD_FILES[kind](folder / "vlm/config.json")
    assert "vlm/config.json" in assert_refused(folder, tmp_path / "store")


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_as_an_archive(kind, tmp_path):
    ODD_FILES[kind](tmp_path / "odd.tar")
    assert_refused(tmp_path / "odd.tar", tmp_path / "store")


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_beside_an_archive_is_not_passed_over(kind, archive, tmp_path):
    ODD_FILES[kind](Path(f"{archive}.sha256"))
    assert_refused(archive, tmp_path / "store")


@pytest.mark.parametrize(
    "name",
    ["x" * 300, "x/" * 3000, "a\0b", "a\udcff\x1b[2J\n", ""],
    ids=["long", "deep", "NUL", "bytes", "empty"],
)
def test_an_odd_name_for_an_archive(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(name, tmp_path / "store")


def test_a_secret_that_the_hash_file_leads_to_is_not_shown(folder, tmp_path):
    (tmp_path / "secret").write_text("the password is swordfish\n")
    (folder / MANIFEST_HASH).unlink()
    (folder / MANIFEST_HASH).symlink_to(tmp_path / "secret")
    assert "swordfish" not in assert_refused(folder, tmp_path / "store")


# Manifests

MANIFESTS = {
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested in contents": b'{"contents": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "a list": b"[]",
    "null": b"null",
    "a number": b"9" * 5000,
    "NaN": manifest_of(entry("a")).replace(b'"size": 4', b'"size": NaN'),
    "UTF-16": GOOD.decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "two documents": GOOD + GOOD,
    "files as an object": manifest_of(files={"a": 1}),
    "files as a text": manifest_of(files="a"),
    "a file as a list": manifest_of(["a", 4]),
    "a file as a text": manifest_of("a"),
    "contents as a text": manifest_of(contents="everything"),
    "contents of objects": manifest_of(contents=[{}]),
    "notices as a text": manifest_of(notices="none"),
    "a notice as a list": manifest_of(notices=[["mit"]]),
    "a path as a list": manifest_of(entry("a") | {"path": ["a"]}),
    "a hash as a number": manifest_of(entry("a", sha256=int("1" * 64))),
    "a hash with a line end": manifest_of(entry("a", sha256="0" * 64 + "\n")),
    "size 2e18": manifest_of(entry("a", size=2 * 10**18)),
    "size 2^62": manifest_of(entry("a", size=2**62)),
    "size 2^64": manifest_of(entry("a", size=2**64)),
    "size of 400 digits": manifest_of(entry("a", size=10**400)),
    "size below 0": manifest_of(entry("a", size=-1)),
    "size as a float": manifest_of(entry("a", size=4.0)),
    "size true": manifest_of(entry("a", size=True)),
    "size as a text": manifest_of(entry("a", size="4")),
    "size null": manifest_of(entry("a", size=None)),
    "sizes that overflow together": manifest_of(*(entry(f"a{i}", size=10**17) for i in range(200))),
    "the files twice": GOOD[:-1] + b', "files": []}',
    "a path twice": manifest_of(entry("a")).replace(b'"path": "a"', b'"path": "b", "path": "a"'),
    "a lone surrogate": manifest_of(entry("a", source="?")).replace(b'"?"', b'"\\ud800"'),
    "terminal escapes as a key": manifest_of(**{"\x1b[2J": 1}),
    "terminal escapes in contents": manifest_of(contents=["\x1b[2J"]),
    "a line reversed": manifest_of(contents=["\u202egpj.exe"]),
    "16 MB of one line": manifest_of(contents=["x" * (LARGEST_MANIFEST - 1000)]),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_hostile_manifest(kind, tmp_path):
    raw = MANIFESTS[kind]
    (tmp_path / "bad.tar").write_bytes(archive_of(raw, b""))
    assert_refused(tmp_path / "bad.tar", tmp_path / "store")
    assert not (tmp_path / "store").exists()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / MANIFEST).write_bytes(raw)
    (tmp_path / "bad" / MANIFEST_HASH).write_text(f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n")
    assert_refused(tmp_path / "bad", tmp_path / "store")


def test_a_manifest_of_many_deep_paths_is_soon_read(tmp_path):
    """Every folder above every file would be millions of paths, which took minutes and gigabytes."""
    files = [entry(f"{i:05}/" + "a/" * 110 + "b", b"") for i in range(15_000)]
    raw = manifest_of(*files)
    assert len(raw) < LARGEST_MANIFEST
    (tmp_path / "bad.tar").write_bytes(archive_of(raw, b""))
    assert "folders" in assert_refused(tmp_path / "bad.tar", tmp_path / "store")


PATHS = {
    "parent": "..",
    "parent within": "a/../../b",
    "absolute": "/etc/passwd",
    "two slashes": "a//b",
    "a slash behind": "a/",
    "empty": "",
    "here": ".",
    "here within": "a/./b",
    "a dot behind": "a./b",
    "three dots": "...",
    "a blank behind": "a ",
    "a blank before": " a",
    "300 characters": "a" * 300,
    "3000 folders": "a/" * 3000 + "b",
    "NUL": "a\0b",
    "backslash": "..\\b",
    "drive": "C:b",
    "stream": "a:b",
    "control": "a\x1b[2Jb",
    "line end": "a\n",
    "right to left": "a\u202eb",
    "lone surrogate": "a\ud800",
    "other letters": "\u0430",
    "percent": "%2e%2e/b",
    "wildcard": "a*",
    "home of the shell": "~/.ssh/authorized_keys",
    "hidden": ".ssh/authorized_keys",
    "the lock": LOCK,
    "a former lock": ".lock",
    "the manifest": MANIFEST,
    "the manifest's hash": MANIFEST_HASH,
    "the manifest in capitals": MANIFEST.upper(),
    "below the manifest": f"{MANIFEST}/a",
    "a partial file": "a.partial",
    "a partial folder": "a.partial/b",
    "a device of Windows": "a/NUL",
    "a device with a suffix": "con.json",
}


@pytest.mark.parametrize("kind", PATHS)
def test_a_hostile_path(kind, tmp_path):
    path, raw = PATHS[kind], manifest_of(entry(PATHS[kind]))
    try:
        held = member(path, b"evil")
    except (ValueError, UnicodeEncodeError):  # no header holds it
        held = b""
    (tmp_path / "bad.tar").write_bytes(archive_of(raw, held))
    assert_refused(tmp_path / "bad.tar", tmp_path / "store")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["bad.tar"]


CLASHES = {
    "capitals": ("m/A", "m/a"),
    "folders in capitals": ("M/a", "m/b"),
    "a file that is a folder": ("m/a", "m/a/b"),
    "a file that is a folder in capitals": ("m/A", "m/a/b"),
    "twice": ("m/a", "m/a"),
}


@pytest.mark.parametrize("kind", CLASHES)
def test_paths_that_clash(kind, tmp_path):
    members = b"".join(member(path, b"evil") for path in CLASHES[kind])
    (tmp_path / "bad.tar").write_bytes(archive_of(manifest_of(*map(entry, CLASHES[kind])), members))
    assert "several" in assert_refused(tmp_path / "bad.tar", tmp_path / "store")


# Archives


def changed(at: int, to: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + to + whole[at + len(to) :]


def before_the_files(more: bytes) -> Callable[[bytes], bytes]:
    """`more` between the manifest and the first file."""

    def put(whole: bytes) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            at = tar.getmembers()[2].offset
        return whole[:at] + more + whole[at:]

    return put


def header_of_the_first_file(
    change: Callable[[tarfile.TarInfo], None], form: int = tarfile.USTAR_FORMAT
) -> Callable[[bytes], bytes]:
    def put(whole: bytes) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            first = tar.getmembers()[2]
        change(first)
        return whole[: first.offset] + first.tobuf(form) + whole[first.offset + BLOCK :]

    return put


def zipped(whole: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("../evil", whole)
    return made.getvalue()


ARCHIVES: dict[str, Callable[[bytes], bytes]] = {
    "cut in the hash": lambda whole: whole[:100],
    "cut in the manifest": lambda whole: whole[:1200],
    "cut in a file": lambda whole: whole[:-2000],
    "cut at the end": lambda whole: whole[:-1],
    "appended": lambda whole: whole + b"\0",
    "another archive behind": lambda whole: whole + whole,
    "another magic": changed(257, b"ustar  \0"),
    "no magic": changed(257, bytes(8)),
    "a wrong checksum": changed(148, b"000000\0 "),
    "gzip": gzip.compress,
    "gzip bomb": lambda whole: gzip.compress(bytes(50 << 20)),
    "zip": zipped,
    "a million empty headers": lambda whole: bytes(BLOCK * 1_000_000),
    "a million headers before the files": before_the_files(member("a", b"") * 100_000),
    "a pax header": before_the_files(member("a", b"14 path=../ev\n", b"x")),
    "a global pax header": before_the_files(member("a", b"14 path=../ev\n", b"g")),
    "a GNU long name": before_the_files(member("././@LongLink", b"../evil\0", b"L")),
    "a GNU long link": before_the_files(member("././@LongLink", b"/etc/passwd\0", b"K")),
    "a sparse member": header_of_the_first_file(lambda info: setattr(info, "type", tarfile.GNUTYPE_SPARSE), tarfile.GNU_FORMAT),
    "a link": header_of_the_first_file(lambda info: (setattr(info, "type", tarfile.SYMTYPE), setattr(info, "linkname", "/etc/passwd"))),
    "a hard link": header_of_the_first_file(lambda info: (setattr(info, "type", tarfile.LNKTYPE), setattr(info, "linkname", "/etc/passwd"))),
    "a character device": header_of_the_first_file(lambda info: setattr(info, "type", tarfile.CHRTYPE)),
    "a block device": header_of_the_first_file(lambda info: setattr(info, "type", tarfile.BLKTYPE)),
    "a pipe": header_of_the_first_file(lambda info: setattr(info, "type", tarfile.FIFOTYPE)),
    "a folder": header_of_the_first_file(lambda info: setattr(info, "type", tarfile.DIRTYPE)),
    "another volume": header_of_the_first_file(lambda info: setattr(info, "type", b"M")),
    "set user": header_of_the_first_file(lambda info: setattr(info, "mode", 0o4777)),
    "an owner": header_of_the_first_file(lambda info: setattr(info, "uname", "root")),
    "a time": header_of_the_first_file(lambda info: setattr(info, "mtime", 1)),
    "another name": header_of_the_first_file(lambda info: setattr(info, "name", "../evil")),
    "a size below 0": header_of_the_first_file(lambda info: setattr(info, "size", -1), tarfile.GNU_FORMAT),
    "a huge size": header_of_the_first_file(lambda info: setattr(info, "size", 2**62), tarfile.GNU_FORMAT),
    "a file more": lambda whole: whole[:-1024] + member("vlm/z.json", b"evil") + bytes(1024),
    "a file twice": lambda whole: whole[:-1024] + member("vlm/config.json", b"evil") + bytes(1024),
    "data in the padding": changed(-1024 - 1, b"x"),  # 3000 bytes leave 72 empty ones behind the last file
}  # fmt: skip


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_hostile_archive(kind, archive, tmp_path):
    whole = archive.read_bytes()
    damaged = ARCHIVES[kind](whole)
    assert damaged != whole
    archive.write_bytes(damaged)
    assert_refused(archive, tmp_path / "store")
    inside = {
        str(place.relative_to(tmp_path / "store"))
        for place in (tmp_path / "store").rglob("*")
        if place.is_file()
    }
    assert inside <= set(NAMES)
    assert not any(place.is_symlink() for place in tmp_path.rglob("*"))


def test_sizes_beyond_what_a_file_can_be_are_refused_where_the_archive_ends(tmp_path):
    """A position of 2^57 in a file is an error of its own in most file systems."""
    raw = manifest_of(entry("a", size=10**17), entry("b"))
    (tmp_path / "bad.tar").write_bytes(archive_of(raw, member("a", b"evil", size=10**17)))
    assert "ends at byte" in assert_refused(tmp_path / "bad.tar", tmp_path / "store")


# The models folder


def outside_of(tmp_path: Path) -> Path:
    """A file that nobody may touch."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("mine")
    return tmp_path / "outside" / "config.json"


def in_the_way(store: Path, path: str, kind: str, outside: Path) -> None:
    place = store / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link out":
        place.symlink_to(outside)
    elif kind == "link to a folder out":
        place.symlink_to(outside.parent)
    elif kind == "full folder":
        (place / "a").mkdir(parents=True)
    else:
        ODD_FILES[kind](place)


@pytest.mark.parametrize(
    "kind",
    ["link out", "link to a folder out", "full folder", "pipe", "socket", "loop of links", "endless device"],
)
@pytest.mark.parametrize("path", [LOCK, "vlm/config.json.partial", "manifest.json.partial", "vlm"])
def test_what_lies_in_the_way_of_unpacking(path, kind, archive, tmp_path):
    outside, store = outside_of(tmp_path), tmp_path / "store"
    in_the_way(store, path, kind, outside)
    with suppress(BundleError):
        unpack(archive, store)
    if store_manifest(store):
        assert verify(store) == []
        assert not (store / "vlm").is_symlink()
    else:
        with pytest.raises(BundleError) as caught:
            unpack(archive, store)
        assert is_sentence(str(caught.value))
    assert outside.read_text() == "mine"
    assert [place.name for place in outside.parent.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "kind", ["link out", "dangling link", "pipe", "socket", "loop of links", "endless device"]
)
def test_what_lies_in_the_place_of_a_file_is_replaced_and_not_written_through(kind, archive, tmp_path):
    outside, store = outside_of(tmp_path), tmp_path / "store"
    in_the_way(store, "vlm/config.json", kind, outside)
    unpack(archive, store)
    assert verify(store) == []
    assert (store / "vlm/config.json").stat().st_nlink == 1
    assert not (store / "vlm/config.json").is_symlink()
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link to a folder out", "folder"])
def test_an_old_edition_is_not_removed_through_a_link(kind, tmp_path):
    outside, store = outside_of(tmp_path), tmp_path / "store"
    make_bundle(
        make_files(tmp_path / "old", {"vlm/a.json": 4, "vlm/old/config.json": 4}), tmp_path / "old.tar"
    )
    make_bundle(make_files(tmp_path / "new", {"vlm/a.json": 5}), tmp_path / "new.tar")
    unpack(tmp_path / "old.tar", store)
    place = "vlm/old" if kind == "link to a folder out" else "vlm/old/config.json"
    shutil.rmtree(store / "vlm/old")
    in_the_way(store, place, kind, outside)
    with pytest.raises(BundleError) as caught:
        unpack(tmp_path / "new.tar", store)
    assert is_sentence(str(caught.value))
    assert outside.read_text() == "mine"


ROOTS: dict[str, Callable[[Path], str | Path]] = {
    "a file": lambda folder: shutil.copyfile(__file__, folder / "root"),
    "a pipe": lambda folder: os.mkfifo(folder / "root") or folder / "root",
    "a loop of links": lambda folder: (folder / "root").symlink_to("root") or folder / "root",
    "a dangling link": lambda folder: (folder / "root").symlink_to("nowhere") or folder / "root",
    "a device": lambda folder: "/dev/null",
    "below a file": lambda folder: Path(shutil.copyfile(__file__, folder / "root"), "below"),
    "where nothing can be written": lambda folder: "/proc/store",
    "5000 characters": lambda folder: folder / ("x" * 5000),
    "3000 folders": lambda folder: f"{folder}/" + "x/" * 3000,
    "NUL": lambda folder: f"{folder}/a\0b",
    "a lone surrogate": lambda folder: f"{folder}/a\ud800",
}


@pytest.mark.parametrize("kind", ROOTS)
def test_an_odd_models_folder(kind, archive, tmp_path):
    root = ROOTS[kind](tmp_path)
    with pytest.raises(BundleError) as caught:
        unpack(archive, root)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize(
    "name", ["\udcff", "\x1b[2J", "a\nb", "\u202ea"], ids=["no UTF-8", "escapes", "line end", "reversed"]
)
def test_a_models_folder_of_an_odd_name_is_a_folder(name, archive, tmp_path, capfd):
    store = tmp_path / name
    unpack(archive, store)
    assert verify(store) == []
    (store / "vlm/config.json").write_bytes(b"evil")
    (store / "vlm/stranger").touch()
    assert all(map(is_sentence, verify(store)))
    assert len(verify(store)) == 2


def test_a_models_folder_may_be_a_link(archive, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    unpack(archive, tmp_path / "store")
    assert verify(tmp_path / "disk") == []


def test_the_forged_parts_make_a_good_bundle_without_the_forgery(folder, archive, tmp_path):
    """Else every case above would be refused for another reason than its own."""
    assert verify(folder) == verify(archive) == []
    (tmp_path / "a.tar").write_bytes(archive_of(manifest_of(entry("a")), member("a", b"evil")))
    assert verify(tmp_path / "a.tar") == []
    assert json.loads(manifest_of(entry("a")))["files"][0]["size"] == 4
    assert len(padded(b"evil")) == BLOCK


# What the Hub and web servers answer to fetch_models.py


def listed(
    *names: str, sha: object = COMMIT, licence: object = "mit", sha256: object = "0" * 64, size: object = 4
) -> SimpleNamespace:
    files = [SimpleNamespace(rfilename=name, size=size, lfs=SimpleNamespace(sha256=sha256)) for name in names]
    return SimpleNamespace(
        sha=sha, card_data=SimpleNamespace(license=licence, license_name=None), siblings=files
    )


ANSWERS = {
    "no file": listed(),
    "no list of files": SimpleNamespace(sha=COMMIT, card_data=None, siblings=None),
    "names that lead out": listed("../model.safetensors", "/etc/passwd.json", "a/../../model.safetensors"),
    "hidden names": listed(".model.safetensors", ".ssh"),
    "names with escapes": listed("\x1b[2J.safetensors", "\u202emodel.safetensors", "a\n.safetensors"),
    "names with NUL": listed("model\0.safetensors", "model\ud800.safetensors"),
    "a commit that leads out": listed("model.safetensors", sha="../../.."),
    "a commit with escapes": listed("model.safetensors", sha="\x1b[2J"),
    "no commit": listed("model.safetensors", sha=None),
    "a hash that fits everything": listed("model.safetensors", sha256=""),
    "no hash": listed("model.safetensors", sha256=None),
    "a hash with escapes": listed("model.safetensors", sha256="\x1b[2J"),
    "a negative size": listed("model.safetensors", size=-1),
    "a size as a text": listed("model.safetensors", size="4"),
    "a size of 2e18": listed("model.safetensors", size=2 * 10**18),
    "a million files": listed(*(f"{i}.json" for i in range(20_000))),
}


@pytest.fixture
def answers(monkeypatch):
    """Makes the Hub answer with one of ANSWERS; a download fails the test."""

    def give(answer: SimpleNamespace) -> None:
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, *args, **options: answer)
        monkeypatch.setattr(
            huggingface_hub, "hf_hub_download", lambda *args, **options: pytest.fail("it downloads")
        )

    fetch.listing.cache_clear()
    yield give
    fetch.listing.cache_clear()


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_hostile_answer_of_the_hub(kind, answers, tmp_path, capsys):
    answers(ANSWERS[kind])
    line = [
        "--config",
        "qwen2_5_vl_7b",
        "--repo",
        "Qwen2.5-VL-7B-Instruct=org/VL",
        "--out",
        str(tmp_path / "a.tar"),
        "--accept-licences",
    ]
    assert bundle_command.main(line) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert all(map(is_sentence, said))
    assert said[-1].startswith("error: org/VL@main: ")
    assert not list(tmp_path.iterdir())


def test_another_commit_than_the_pinned_one_is_refused(answers):
    answers(listed("model.safetensors"))
    with pytest.raises(fetch.FetchError, match="about this commit"):
        fetch.listing(fetch.Repo("org/VL", "a" * 40))


@pytest.mark.parametrize(
    "licence",
    ["\x1b[2J", ["\x1b[2J", 3], 3, "x" * 10_000, "\u202e"],
    ids=["escapes", "list", "number", "long", "reversed"],
)
def test_a_hostile_licence_is_one_line(licence, answers):
    answers(listed("model.safetensors", licence=licence))
    found = fetch.listing(fetch.Repo("org/VL")).licence
    assert is_sentence(found or "none")
    assert len(found) <= 200


class Web(http.server.BaseHTTPRequestHandler):
    """A web server that writes `answer` and, where it is `endless`, goes on until nobody reads."""

    answer, endless = b"", b""

    def do_GET(self):
        with suppress(OSError):
            self.wfile.write(self.answer)
            for part in itertools.repeat(self.endless) if self.endless else ():
                self.wfile.write(part)

    def log_message(self, *args):
        pass


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNK = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
WEB = {
    "an endless body": (HEAD + b"\r\n", bytes(1 << 16)),
    "an endless body in chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK),
    "a length of text": (HEAD + b"Content-Length: x\r\n\r\nevil", b""),
    "a length below 0": (HEAD + b"Content-Length: -1\r\n\r\nevil", b""),
    "a length of 5000 digits": (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nevil", b""),
    "a length that never comes": (HEAD + b"Content-Length: 1000000000\r\n\r\nevil", b""),
    "endless headers": (HEAD, b"a: b\r\n"),
    "no status": (b"\x1b[2J\r\n\r\n", b""),
    "a status of escapes": (b"HTTP/1.1 500 \x1b[2J\r\n\r\n", b""),
    "a chunk of nonsense": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n\x1b[2J\r\n", b""),
    "to a file": (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", b""),
    "to ftp": (b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/a\r\n\r\n", b""),
    "to data": (b"HTTP/1.1 302 Found\r\nLocation: data:text/plain,evil\r\n\r\n", b""),
    "to itself": (b"HTTP/1.1 302 Found\r\nLocation: /weights.pth\r\n\r\n", b""),
    "to an address of escapes": (b"HTTP/1.1 302 Found\r\nLocation: x://\x1b[2J\r\n\r\n", b""),
    "a part that nobody asked for": (
        b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-8/9\r\nContent-Length: 9\r\n\r\nevil",
        b"",
    ),
}


@pytest.mark.parametrize("kind", WEB)
def test_a_hostile_web_server(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(fetch, "LARGEST_WEIGHT", 1 << 20)
    monkeypatch.setattr(Web, "answer", WEB[kind][0])
    monkeypatch.setattr(Web, "endless", WEB[kind][1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        file, url = tmp_path / "weights.pth", f"http://127.0.0.1:{server.server_port}/weights.pth"
        with pytest.raises(fetch.FetchError) as caught:
            fetch.retried(url, lambda: fetch.download(url, file))
    finally:
        server.shutdown()
        server.server_close()
    assert all(map(is_sentence, [str(caught.value), *capsys.readouterr().err.splitlines()]))
    assert not file.exists()
    assert sum(place.stat().st_size for place in tmp_path.iterdir()) < 2 << 20


@pytest.mark.parametrize("content", [b"", b"evil", zipped(b"")], ids=["empty", "no zip", "no metadata"])
def test_a_hostile_wheel(content, tmp_path):
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(content)
    with pytest.raises(fetch.FetchError) as caught:
        wheel_files.wheel_licence(tmp_path / "a-1-py3-none-any.whl")
    assert is_sentence(str(caught.value))

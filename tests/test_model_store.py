"""Bundles and the store: made, copied, damaged, attacked, resumed. Python's tarfile and sha256sum are the
outside judges."""

import filecmp
import hashlib
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from conftest import EMBEDDED, ROOT
from packaging.tags import sys_tags
from pydantic import ValidationError

from agentic_iqa_local import paths
from agentic_iqa_local.cli import bundle as bundle_command
from agentic_iqa_local.cli import store as store_command
from agentic_iqa_local.iqa_tools import TOOLS, ToolRunner
from agentic_iqa_local.offline import fetch
from agentic_iqa_local.offline import store as model_store
from agentic_iqa_local.offline import wanted as wanted_files
from agentic_iqa_local.offline import wheels as wheel_files
from agentic_iqa_local.offline.manifest import MANIFEST, MANIFEST_HASH, BundleError, Notice, StoredFile
from agentic_iqa_local.offline.reading import Truncated, read_manifest, verify
from agentic_iqa_local.offline.store import (
    check_model,
    environment,
    store_manifest,
    unpack,
    verified,
    weights_dir,
)
from agentic_iqa_local.offline.tar import tar_header
from agentic_iqa_local.offline.writing import Piece, describe, write_bundle

COMMIT = "c0ffee" * 6 + "beef"
TIMM = "tools/huggingface/models--timm--resnet50.a1_in1k"
LONG = f"tools/huggingface/models--timm--vit_base_patch8_224.augreg2_in21k_ft_in1k/snapshots/{COMMIT}/model.safetensors"
# Sizes around a tar block; the order is the archive's.
SIZES = {
    "tools/hub/checkpoints/y-12345678.pth": 511,
    "tools/hub/pyiqa/x.pth": 512,
    LONG: 1,
    "vlm/config.json": 513,
    "vlm/empty.txt": 0,
    "vlm/model.safetensors": 3000,
}
NOTICE = Notice(licence="cc-by-nc-sa-4.0", of="x.pth", says="no commercial use", url="https://example.org")


def make_files(folder: Path, sizes: dict[str, int] = SIZES) -> dict[str, Path]:
    rng = np.random.default_rng(3)
    for path, size in sizes.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(rng.bytes(size))
    return {path: folder / path for path in sizes}


def make_bundle(places: dict[str, Path], out: Path, archive: bool = True) -> str:
    pieces = [Piece(path, file, "made by a test", "mit") for path, file in places.items()]
    return write_bundle(out, describe(pieces, ["files of a test"], [NOTICE]), places, archive)


@pytest.fixture
def places(tmp_path):
    return make_files(tmp_path / "files")


@pytest.fixture
def bundle(places, tmp_path):
    """A small archive without the file beside it, so that only what is inside can give damage away."""
    make_bundle(places, tmp_path / "small.tar")
    (tmp_path / "small.tar.sha256").unlink()
    return tmp_path / "small.tar"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded model's bundle, made as a user makes it."""
    out = tmp_path_factory.mktemp("embedded") / "embedded.iqabundle.tar"
    assert bundle_command.main(["--out", str(out)]) == 0
    return out


def refusal(bundle: Path, expect: str | None = None) -> str:
    """Why a bundle is refused; empty when it is not."""
    try:
        return " ".join(verify(bundle, expect))
    except BundleError as error:
        return str(error)


def same_files(places: dict[str, Path], root: Path) -> bool:
    return all(filecmp.cmp(file, root / path, shallow=False) for path, file in places.items())


def spans(archive: Path) -> list[tuple[int, int, str]]:
    """Start, end and name of each member, header and padding included, as tarfile finds them."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    ends = [member.offset for member in members[1:]] + [
        members[-1].offset_data + -(-members[-1].size // 512) * 512
    ]
    return [(member.offset, end, member.name) for member, end in zip(members, ends, strict=True)]


# made and unpacked


def test_the_embedded_models_bundle_arrives_byte_for_byte(embedded, tmp_path, capsys):
    sha256 = read_manifest(embedded)[1]
    assert store_command.main(["verify", str(embedded), "--expect", sha256.upper()]) == 0
    assert (
        store_command.main(["unpack", str(embedded), "--expect", sha256, "--models", str(tmp_path / "store")])
        == 0
    )
    assert f"export AGENTIC_IQA_MODELS={tmp_path / 'store'}" in capsys.readouterr().out
    names = [place.name for place in EMBEDDED.iterdir()]
    assert filecmp.cmpfiles(EMBEDDED, tmp_path / "store" / "embedded", names, shallow=False)[0] == names
    assert verify(tmp_path / "store") == []
    assert not embedded.with_name(f"{embedded.name}.downloads").exists()
    assert all("this project's own" in file.licence for file in read_manifest(embedded)[0].files)


def test_the_archive_is_plain_tar_and_the_same_every_time(bundle, places, tmp_path):
    with tarfile.open(bundle) as tar:
        assert tar.getnames() == [MANIFEST_HASH, MANIFEST, *SIZES]
        assert all(member.isreg() for member in tar.getmembers())
        assert all(tar.extractfile(path).read() == file.read_bytes() for path, file in places.items())
        assert (
            tar.extractfile(MANIFEST_HASH).read().split()[0].decode()
            == hashlib.sha256(tar.extractfile(MANIFEST).read()).hexdigest()
        )
    make_bundle(places, tmp_path / "again.tar")
    assert filecmp.cmp(bundle, tmp_path / "again.tar", shallow=False)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum here")
def test_sha256sum_checks_what_lies_beside_an_archive_and_in_a_folder(places, tmp_path):
    make_bundle(places, tmp_path / "small.tar")
    make_bundle(places, tmp_path / "small", archive=False)
    for folder, name in ((tmp_path, "small.tar.sha256"), (tmp_path / "small", MANIFEST_HASH)):
        subprocess.run(["sha256sum", "-c", name], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("size", [0, 8**11 - 1, 8**11, 10**13])
def test_headers_say_sizes_beyond_eight_gigabytes(size):
    member = tarfile.TarInfo.frombuf(tar_header(LONG, size), "utf-8", "strict")
    assert (member.name, member.size, member.type) == (LONG, size, tarfile.REGTYPE)


def test_a_file_that_changes_while_it_is_bundled_is_noticed(places, tmp_path):
    manifest = describe([Piece(path, file, "", "") for path, file in places.items()], [])
    places["vlm/config.json"].write_bytes(bytes(513))
    with pytest.raises(BundleError, match=r"vlm/config\.json is damaged"):
        write_bundle(tmp_path / "out.tar", manifest, places)
    assert not list(tmp_path.glob("out*"))


def test_a_folder_is_verified_and_unpacked_like_an_archive(places, tmp_path):
    folder = tmp_path / "bundle"
    sha256 = make_bundle(places, folder, archive=False)
    assert refusal(folder, sha256) == ""
    unpack(folder, tmp_path / "store", sha256)
    assert same_files(places, tmp_path / "store")
    (folder / "vlm/config.json").write_bytes(bytes(513))
    (folder / LONG).unlink()
    (folder / "vlm/empty.txt").write_bytes(b"not any more")
    problems = verify(folder)
    assert [next(path for path in SIZES if path in problem) for problem in problems] == [
        LONG,
        "vlm/config.json",
        "vlm/empty.txt",
    ]
    with pytest.raises(BundleError, match=r"model\.safetensors: expected 1 bytes, found no file"):
        unpack(folder, tmp_path / "other")


def test_bundles_join_in_one_store(places, tmp_path):
    for part in ("vlm", "tools"):
        make_bundle(
            {path: file for path, file in places.items() if path.startswith(part)}, tmp_path / f"{part}.tar"
        )
        unpack(tmp_path / f"{part}.tar", tmp_path / "store")
    assert sorted(file.path for file in store_manifest(tmp_path / "store").files) == sorted(SIZES)
    assert store_manifest(tmp_path / "store").notices == (NOTICE,)
    assert verify(tmp_path / "store") == []


# damage


def test_one_flipped_byte_anywhere_is_refused_and_its_file_named(bundle, tmp_path):
    whole, members = bundle.read_bytes(), spans(bundle)
    rng = np.random.default_rng(11)
    damaged = tmp_path / "damaged.tar"
    assert members[-1][1] == len(whole) - 1024  # two empty blocks end an archive
    for number, position in enumerate(rng.choice(len(whole), size=300, replace=False)):
        data = bytearray(whole)
        data[position] ^= rng.integers(1, 256)
        damaged.write_bytes(data)
        said = refusal(damaged)
        named = next((name for start, end, name in members if start <= position < end), str(damaged))
        assert named in said or (named == MANIFEST_HASH and MANIFEST in said), (position, said)
        if number % 10 == 0:
            with pytest.raises(BundleError):
                unpack(damaged, tmp_path / f"store{number}")
            assert store_manifest(tmp_path / f"store{number}") is None


def flip(path: Path, position: int) -> None:
    """Changes one bit; a second call changes it back."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_one_flipped_byte_in_the_embedded_models_bundle_is_refused(embedded, tmp_path):
    damaged = tmp_path / "damaged.tar"
    shutil.copyfile(embedded, damaged)
    rng = np.random.default_rng(5)
    for start, end, name in spans(embedded):
        position = int(rng.integers(start, end))
        flip(damaged, position)
        said = refusal(damaged)
        assert name in said or (name == MANIFEST_HASH and MANIFEST in said), (position, said)
        flip(damaged, position)
    assert refusal(damaged) == ""


def test_another_bundle_than_the_expected_one_is_refused(bundle, embedded, tmp_path, capsys):
    expected = read_manifest(bundle)[1]
    with pytest.raises(BundleError, match="--expect"):
        unpack(embedded, tmp_path / "store", expected)
    assert not (tmp_path / "store").exists()
    assert store_command.main(["verify", str(embedded), "--expect", expected]) == 1
    assert "another bundle or a changed one" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        store_command.parse(["verify", str(bundle), "--expect", "abc"])
    shutil.copyfile(f"{embedded}.sha256", f"{bundle}.sha256")
    assert f"{bundle.name}.sha256" in refusal(bundle)


# hostile bundles


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(path: str, data: bytes, kind: bytes = b"0", link: str = "", size: int | None = None) -> bytes:
    header = bytearray(tar_header(path, len(data) if size is None else size))
    header[156:157] = kind
    header[157 : 157 + len(link)] = link.encode()
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + padded(data)


def manifest_of(*files: dict, **more) -> bytes:
    return json.dumps(
        {"format": "agentic_iqa_local bundle 1", "contents": [], "files": files} | more
    ).encode()


def entry(path: str, data: bytes = b"evil", **more) -> dict:
    return {
        "path": path,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "source": "",
        "licence": "",
    } | more


def archive_of(manifest: bytes, members: bytes) -> bytes:
    line = f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()
    return member(MANIFEST_HASH, line) + member(MANIFEST, manifest) + members + bytes(1024)


GOOD = manifest_of(entry("a/evil"))
HOSTILE = {
    "parent": archive_of(manifest_of(entry("../evil")), member("../evil", b"evil")),
    "parent inside": archive_of(manifest_of(entry("a/../../evil")), member("a/../../evil", b"evil")),
    "absolute": archive_of(manifest_of(entry("/tmp/evil")), member("/tmp/evil", b"evil")),
    "member elsewhere": archive_of(GOOD, member("../evil", b"evil")),
    "symlink": archive_of(GOOD, member("a/evil", b"", b"2", "/etc/passwd")),
    "symlink with data": archive_of(GOOD, member("a/evil", b"evil", b"2", "/etc/passwd")),
    "hard link": archive_of(GOOD, member("a/evil", b"evil", b"1", "/etc/passwd")),
    "device": archive_of(GOOD, member("a/evil", b"", b"3")),
    "fifo": archive_of(GOOD, member("a/evil", b"", b"6")),
    "folder in place of a file": archive_of(GOOD, member("a/evil", b"evil", b"5")),
    "long name": archive_of(GOOD, member("a/evil", b"evil", b"L")),
    "extended header": archive_of(
        GOOD, member("a/evil", b"14 path=../ev\n", b"x") + member("a/evil", b"evil")
    ),
    "twice in the manifest": archive_of(
        manifest_of(entry("a/evil"), entry("a/evil")), member("a/evil", b"evil") * 2
    ),
    "twice in the archive": archive_of(GOOD, member("a/evil", b"evil") * 2),
    "not in the manifest": archive_of(GOOD, member("a/evil", b"evil") + member("b", b"more")),
    "larger than declared": archive_of(GOOD, member("a/evil", b"e" * 5000)),
    "larger than its header": archive_of(GOOD, member("a/evil", b"e" * 5000, size=4)),
    "file and folder": archive_of(
        manifest_of(entry("evil"), entry("evil/b")), member("evil", b"evil") + member("evil/b", b"evil")
    ),
    "the manifest again": archive_of(manifest_of(entry(MANIFEST)), member(MANIFEST, b"evil")),
    "trailing bytes": archive_of(GOOD, member("a/evil", b"evil")) + b"\0",
    "no end": archive_of(GOOD, member("a/evil", b"evil"))[:-1024],
    "huge manifest": (member(MANIFEST_HASH, b"0" * 64 + b"  manifest.json\n") + tar_header(MANIFEST, 10**10)),
    "other tar": member("evil", b"evil") + bytes(1024),
    "not a tar": b"PK\x03\x04" * 400,
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(kind, tmp_path):
    archive = tmp_path / "hostile.tar"
    archive.write_bytes(HOSTILE[kind])
    assert refusal(archive)
    with pytest.raises(BundleError):
        unpack(archive, tmp_path / "deep" / "store")
    assert store_manifest(tmp_path / "deep" / "store") is None
    # Only bytes that the manifest names may stay, at their place.
    left = [place for place in tmp_path.rglob("*") if place.is_file() and place != archive]
    assert [place.read_bytes() for place in left if place != tmp_path / "deep/store/a/evil"] == []
    assert not any(place.is_symlink() for place in tmp_path.rglob("*"))


def test_the_forged_archives_differ_from_a_good_one_in_what_they_are_named_for_only(tmp_path):
    archive = tmp_path / "good.tar"
    archive.write_bytes(archive_of(GOOD, member("a/evil", b"evil")))
    assert refusal(archive) == ""


def test_a_bomb_is_refused_before_anything_is_written(tmp_path):
    archive = tmp_path / "bomb.tar"
    archive.write_bytes(archive_of(manifest_of(entry("a", size=10**17)), member("a", b"evil", size=10**17)))
    with pytest.raises(BundleError, match=r"expected 100000000\.0 GB of free space"):
        unpack(archive, tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"not json", "file"),
        (b"\xff\xfe", "file"),
        (b"[" * 100_000, "file"),
        (b"{}", "contents"),
        (manifest_of(format="agentic_iqa_local bundle 2"), "format"),
        (manifest_of(more=1), "more"),
        (manifest_of(entry("a", size=-1)), "files.0.size"),
        (manifest_of(entry("a", size="4")), "files.0.size"),
        (manifest_of(entry("a", size=2**63)), "files.0.size"),
        (manifest_of(entry("a", sha256="ab")), "files.0.sha256"),
        (manifest_of(entry("a", source="\x1b[2J")), "files.0.source"),
        (manifest_of(entry("a", source="x" * 1001)), "files.0.source"),
        (manifest_of(entry("a", link="b")), "files.0.link"),
        (manifest_of(entry("a" * 101)), "files.0.path"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_by_its_key(manifest, said, tmp_path):
    archive = tmp_path / "bad.tar"
    archive.write_bytes(archive_of(manifest, b""))
    with pytest.raises(BundleError, match=r"manifest\.json cannot be used") as caught:
        verify(archive)
    assert f": {said}: " in str(caught.value)


def test_mangled_manifests_are_read_or_refused_and_never_leave_the_store(tmp_path):
    rng = np.random.default_rng(17)
    base = manifest_of(entry("a/b.json"), entry("c/d"), entry("e"))
    pieces = [
        b"..",
        b"/",
        b"\\",
        b'"',
        b"\x00",
        b"{",
        b"]",
        b",",
        b"1e99",
        b"null",
        b"\\u0000",
        b"\\u002e\\u002e/",
        b"true",
    ]
    for _ in range(200):
        raw = bytearray(base)
        for _ in range(rng.integers(1, 6)):
            at = int(rng.integers(len(raw)))
            raw[at : at + int(rng.integers(0, 8))] = pieces[rng.integers(len(pieces))]
        (tmp_path / MANIFEST).write_bytes(raw)
        (tmp_path / MANIFEST_HASH).write_text(f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n")
        try:
            manifest = store_manifest(tmp_path)
        except BundleError:
            continue
        assert all(
            (tmp_path / file.path).resolve().is_relative_to(tmp_path.resolve()) for file in manifest.files
        )


def test_every_path_that_is_taken_lies_inside_and_is_what_tar_reads_back(tmp_path):
    rng = np.random.default_rng(23)
    pieces = [
        "a",
        "B.c",
        ".",
        "..",
        "/",
        "/",
        "\\",
        "\0",
        " ",
        "~",
        "\n",
        "é",
        "x" * 60,
        "-",
        "+",
        ":",
        MANIFEST,
        ".partial",
    ]
    taken = 0
    for _ in range(2000):
        path = "".join(rng.choice(pieces, size=rng.integers(1, 8)))
        try:
            StoredFile(path=path, size=0, sha256="0" * 64, source="", licence="")
        except ValidationError:
            continue
        taken += 1
        assert (tmp_path / path).resolve().is_relative_to(tmp_path.resolve())
        assert tarfile.TarInfo.frombuf(tar_header(path, 0), "utf-8", "strict").name == path
    assert taken > 100


def test_a_link_in_the_way_is_not_followed(bundle, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "vlm").symlink_to(tmp_path / "outside")
    with pytest.raises(BundleError, match="store/vlm: expected a folder, got a link"):
        unpack(bundle, tmp_path / "store")
    assert not list((tmp_path / "outside").iterdir())


# copies and unpackings that broke off


def test_a_truncated_copy_gives_what_is_whole_and_the_rest_later(bundle, places, tmp_path):
    whole, store = bundle.read_bytes(), tmp_path / "store"
    cut = next(start for start, _, name in spans(bundle) if name == "vlm/model.safetensors") + 2000
    bundle.write_bytes(whole[:cut])
    assert verify(bundle) == [problem := refusal(bundle)]
    assert f"ends at byte {cut}, inside vlm/model.safetensors" in problem
    assert "rsync --append-verify" in problem
    with pytest.raises(Truncated):
        unpack(bundle, store)
    assert store_manifest(store) is None
    assert (
        sorted(str(file.relative_to(store)) for file in store.rglob("*") if file.is_file())
        == sorted(SIZES)[:-1]
    )
    bundle.write_bytes(whole)
    written = set()
    unpack(bundle, store, progress=lambda path, size: written.add(path))
    assert written == {"vlm/model.safetensors"}
    assert same_files(places, store)
    assert verify(store) == []


def test_every_truncation_is_refused(bundle, tmp_path):
    whole = bundle.read_bytes()
    for cut in np.random.default_rng(29).choice(len(whole), size=60, replace=False):
        bundle.write_bytes(whole[:cut])
        assert f"ends at byte {cut}" in refusal(bundle)


def test_an_interrupted_unpacking_is_gone_on_with(bundle, places, tmp_path):
    store = tmp_path / "store"

    def interrupt(path, size):
        if path == "vlm/config.json":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(bundle, store, progress=interrupt)
    assert store_manifest(store) is None
    assert not list(store.rglob("*.partial"))
    kept = {path: (store / path).stat().st_ino for path in SIZES if (store / path).is_file()}
    assert sorted(kept) == sorted(SIZES)[:3]
    (store / "tools/hub/pyiqa/x.pth").write_bytes(bytes(512))  # of the right size only
    (store / "vlm").mkdir(exist_ok=True)
    (store / "vlm" / "config.json.partial").write_bytes(b"left by a kill")
    unpack(bundle, store)
    assert same_files(places, store)
    assert not list(store.rglob("*.partial"))
    assert {path for path, inode in kept.items() if (store / path).stat().st_ino == inode} >= set(kept) - {
        "tools/hub/pyiqa/x.pth"
    }


def test_too_little_space_is_said_before_anything_is_written(bundle, places, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4000))
    # 511 + 512 + 1 + 513 + 3000
    with pytest.raises(BundleError, match=r"expected 4\.5 kB of free space, got 4\.0 kB"):
        unpack(bundle, tmp_path / "store")
    with pytest.raises(BundleError, match="free space"):
        make_bundle(places, tmp_path / "other.tar")
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "other.tar").exists()


def test_a_place_that_cannot_be_written_is_named(bundle, tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(BundleError, match=r"store: cannot be written \(File exists\)"):
        unpack(bundle, tmp_path / "store")
    (tmp_path / "store").unlink()
    (tmp_path / "store" / "tools").mkdir(parents=True)
    (tmp_path / "store" / "tools" / "hub").write_text("a file")
    with pytest.raises(BundleError, match=r"store/tools/hub/checkpoints/y-12345678\.pth: cannot be written"):
        unpack(bundle, tmp_path / "store")


def test_a_new_edition_of_a_model_leaves_nothing_of_the_old_one(tmp_path):
    """transformers prefers model.safetensors to the shards of an index: the old weights would answer."""
    old = make_files(
        tmp_path / "old", {"vlm/config.json": 10, "vlm/model.safetensors": 600, "tools/hub/pyiqa/x.pth": 7}
    )
    new = make_files(
        tmp_path / "new", {"vlm/config.json": 11, "vlm/model-1.safetensors": 300, "tools/hub/pyiqa/y.pth": 8}
    )
    store = tmp_path / "store"
    for name, files in (("a", old), ("b", new)):
        make_bundle(files, tmp_path / f"{name}.tar")
        unpack(tmp_path / f"{name}.tar", store)
    assert sorted(place.name for place in (store / "vlm").iterdir()) == ["config.json", "model-1.safetensors"]
    # tools' weights add up
    assert {file.path for file in store_manifest(store).files} == {
        *new,
        "tools/hub/pyiqa/x.pth",
    }
    assert verify(store) == []


def test_wheels_stay_in_the_bundle(tmp_path):
    files = make_files(tmp_path / "files", {"vlm/config.json": 10, "wheels/a-1-py3-none-any.whl": 50})
    pieces = [Piece(path, file, "made by a test", "mit") for path, file in files.items()]
    write_bundle(tmp_path / "a.tar", describe(pieces, ["a model", "wheels of an engine"]), files)
    unpacked = unpack(tmp_path / "a.tar", tmp_path / "store")
    assert ([file.path for file in unpacked.files], unpacked.contents) == (["vlm/config.json"], ("a model",))
    assert store_manifest(tmp_path / "store") == unpacked
    assert not (tmp_path / "store" / "wheels").exists()
    damaged = bytearray((tmp_path / "a.tar").read_bytes())
    damaged[-1100] ^= 1  # in the last file, before two empty blocks
    (tmp_path / "a.tar").write_bytes(damaged)
    assert "wheels/a-1-py3-none-any.whl" in refusal(tmp_path / "a.tar")


def test_a_file_that_a_models_manifest_does_not_name_is_refused(bundle, tmp_path, monkeypatch):
    store = tmp_path / "store"
    unpack(bundle, store)
    monkeypatch.setenv("AGENTIC_IQA_MODELS", str(store))
    check_model(store / "vlm")
    check_model(tmp_path)  # no bundle brought it
    stranger = store / "vlm" / "chat_template.jinja"
    stranger.write_text("from elsewhere")
    assert verify(store) == [
        f"{stranger}: expected files of {store / 'manifest.json'} only, got this one; remove it"
    ]
    with pytest.raises(BundleError, match=r"chat_template\.jinja: expected files of"):
        check_model(store / "vlm")
    stranger.unlink()
    check_model(store)  # no model's folder: what loads one will say so
    (tmp_path / "alias").symlink_to(store)
    weights = bytearray((store / "vlm" / "model.safetensors").read_bytes())
    weights[1500] ^= 1
    (store / "vlm" / "model.safetensors").write_bytes(weights)
    for folder in (store, tmp_path / "alias"):
        with pytest.raises(BundleError, match=r"model\.safetensors is damaged or was changed"):
            check_model(folder / "vlm")


def test_two_bundles_at_once_are_not_unpacked_into_one_store(bundle, places, tmp_path):
    make_bundle(places, tmp_path / "other.tar")
    refused = []

    def meanwhile(path, size):
        if not refused:
            with pytest.raises(BundleError, match="another process unpacks into it"):
                unpack(tmp_path / "other.tar", tmp_path / "store")
            refused.append(path)

    unpack(bundle, tmp_path / "store", progress=meanwhile)
    assert refused
    assert verify(tmp_path / "store") == []


@pytest.mark.parametrize("given", ["../store", "a/../store", "store/"])
def test_a_models_folder_may_be_given_by_any_path(given, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a" if given.startswith("..") else tmp_path)
    monkeypatch.setenv("AGENTIC_IQA_MODELS", given)
    assert model_store.models_root() == tmp_path / "store"


# the store in use


def test_tools_find_their_weights_in_the_store_and_nowhere_else(tmp_path, monkeypatch):
    places = make_files(
        tmp_path / "files",
        {
            "tools/hub/pyiqa/cfanet_nr_koniq_res50-9a73138b.pth": 900,
            f"{TIMM}/snapshots/{COMMIT}/model.safetensors": 800,
            f"{TIMM}/refs/main": 0,
        },
    )
    places[f"{TIMM}/refs/main"].write_text(COMMIT)
    make_bundle(places, tmp_path / "tools.tar")
    store = tmp_path / "store"
    unpack(tmp_path / "tools.tar", store)
    for name, value in environment(store).items():
        monkeypatch.setenv(name, value)
    reasons = {info.name: info.reason or "" for info in ToolRunner(models=store).info()}
    assert "missing weights" not in reasons["TOPIQ_NR"]
    assert "missing weights" in reasons["HyperIQA"]
    cache = environment(store)["HF_HUB_CACHE"]
    found = huggingface_hub.hf_hub_download(
        "timm/resnet50.a1_in1k", "model.safetensors", cache_dir=cache, local_files_only=True
    )
    assert Path(found) == store / TIMM / "snapshots" / COMMIT / "model.safetensors"


def test_libraries_are_kept_from_the_network_and_sent_to_a_store_where_there_is_one(bundle, tmp_path):
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    assert environment(tmp_path) == offline
    unpack(bundle, tmp_path / "store")
    tools = tmp_path / "store" / "tools"
    assert environment(tmp_path / "store") == offline | {
        "TORCH_HOME": str(tools),
        "HF_HUB_CACHE": str(tools / "huggingface"),
    }


def test_a_set_up_takes_the_store_into_its_environment(bundle, tmp_path):
    unpack(bundle, tmp_path / "store")
    code = """
import os, sys
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.services import Services
services = Services(load_settings())
assert "huggingface_hub" not in sys.modules
from huggingface_hub import constants
print(constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE, os.environ["TORCH_HOME"], services.tools.weights.hub)
"""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables["AGENTIC_IQA_MODELS"] = str(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    tools = tmp_path / "store" / "tools"
    assert done.stdout == f"{tools / 'huggingface'} True {tools} {tools / 'hub'}\n", done.stderr


def test_only_what_the_manifest_says_is_verified(bundle, tmp_path):
    store, path = tmp_path / "store", "tools/hub/pyiqa/x.pth"
    assert not verified(store, path)
    unpack(bundle, store)
    assert verified(store, path)
    (weights_dir(store) / "pyiqa" / "own.pth").write_bytes(b"not from a bundle")
    assert not verified(store, "tools/hub/pyiqa/own.pth")
    flip(store / path, 100)
    # whatever the clock's tick: a file is read again when its times have changed
    os.utime(store / path, ns=(0, 0))
    assert not verified(store, path)
    assert [path in problem for problem in verify(store)] == [True]


def test_neither_torch_nor_pyiqa_is_imported():
    code = (
        "import sys, agentic_iqa_local.offline.store; assert not {'torch', 'pyiqa', 'huggingface_hub'} &"
        " set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# fetching, from this machine only


class FakeHub:
    """The two calls that fetch_models makes, answered from memory; what was downloaded is in `downloaded`."""

    def __init__(self, repos: dict[str, dict[str, bytes]], licences: dict[str, str]):
        self.repos, self.licences, self.downloaded, self.revisions = repos, licences, [], {}
        self.spoil = b""

    def model_info(self, repo, revision=None, files_metadata=False):
        self.revisions[repo] = revision
        files = [
            SimpleNamespace(
                rfilename=name, size=len(data), lfs=SimpleNamespace(sha256=hashlib.sha256(data).hexdigest())
            )
            for name, data in self.repos[repo].items()
        ]
        card = SimpleNamespace(license=self.licences[repo], license_name=None)
        return SimpleNamespace(
            sha=revision if len(revision) == 40 else COMMIT, card_data=card, siblings=files
        )

    def download(self, repo, name, revision, local_dir):
        assert revision in (COMMIT, wanted_files.PYIQA_WEIGHTS.revision)
        self.downloaded.append((repo, name))
        Path(local_dir).mkdir(parents=True, exist_ok=True)
        (Path(local_dir) / name).write_bytes(self.repos[repo][name] + self.spoil)


@pytest.fixture
def hub(monkeypatch):
    weight = "cfanet_nr_koniq_res50-9a73138b.pth"
    fake = FakeHub(
        {
            "chaofengc/IQA-PyTorch-Weights": {weight: b"pickle", "other.pth": b"not asked for"},
            "timm/resnet50.a1_in1k": {"model.safetensors": b"tensors", "pytorch_model.bin": b"pickle", "config.json": b"{}"},
            "org/VL": {
                "model.safetensors": b"tensors", "model.bin": b"pickle", "code.py": b"", "config.json": b"{}", "onnx/a.json": b"",
            },
        },
        {"chaofengc/IQA-PyTorch-Weights": "cc-by-nc-sa-4.0", "timm/resnet50.a1_in1k": "apache-2.0", "org/VL": "mit"},
    )  # fmt: skip
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda self, *args, **options: fake.model_info(*args, **options)
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.download)
    fetch.listing.cache_clear()
    yield fake
    fetch.listing.cache_clear()


def test_a_tools_weights_and_its_backbone_are_fetched_with_source_and_licence(hub, tmp_path):
    out = tmp_path / "tools.tar"
    assert bundle_command.main(["--tools", "topiq_nr", "--out", str(out), "--accept-licences"]) == 0
    files = {file.path: file for file in read_manifest(out)[0].files if file.path.startswith("tools")}
    snapshot = f"{TIMM}/snapshots/{COMMIT}"
    weight = "tools/hub/pyiqa/cfanet_nr_koniq_res50-9a73138b.pth"
    assert set(files) == {
        weight,
        f"{TIMM}/refs/main",
        f"{snapshot}/model.safetensors",
        f"{snapshot}/config.json",
    }
    assert (
        files[weight].source
        == f"https://huggingface.co/chaofengc/IQA-PyTorch-Weights/resolve/{wanted_files.PYIQA_WEIGHTS.revision}/{Path(weight).name}"
    )
    assert (files[weight].licence, files[f"{snapshot}/config.json"].licence) == (
        "cc-by-nc-sa-4.0",
        "apache-2.0",
    )
    assert [notice.licence for notice in read_manifest(out)[0].notices] == [
        "cc-by-nc-sa-4.0",
        "PolyForm-Noncommercial-1.0.0",
    ]
    unpack(out, tmp_path / "store")
    assert (tmp_path / "store" / TIMM / "refs" / "main").read_text() == COMMIT


def test_licences_that_bind_are_shown_and_nothing_is_taken_without_an_answer(hub, tmp_path, capsys):
    assert bundle_command.main(["--tools", "TOPIQ_NR", "--out", str(tmp_path / "tools.tar")]) == 1
    said = capsys.readouterr().err
    assert "pyiqa, which runs the tools: PolyForm-Noncommercial-1.0.0" in said
    assert "no commercial use" in said
    assert "--accept-licences" in said
    assert hub.downloaded == []
    assert not list(tmp_path.iterdir())


def test_a_download_that_is_not_what_the_hub_says_is_removed(hub, tmp_path, capsys):
    hub.spoil = b"!"
    line = ["--tools", "TOPIQ_NR", "--out", str(tmp_path / "tools.tar"), "--accept-licences"]
    assert bundle_command.main(line) == 1
    assert "expected a file whose SHA-256 begins with" in capsys.readouterr().err
    assert not (tmp_path / "tools.tar").exists()


def test_a_models_repository_is_pinned_and_leaves_pickles_and_code_behind(hub, tmp_path, capsys):
    config = tmp_path / "mine.yaml"
    section = {"backend": "transformers.VL"}
    config.write_text(json.dumps({"planner": section, "executor": section, "summarizer": section}))
    line = ["--config", str(config), "--out", str(tmp_path / "vl.tar")]
    assert bundle_command.main(line) == 1
    assert "--repo VL=ORG/NAME@REVISION" in capsys.readouterr().err
    assert bundle_command.main([*line, "--repo", "VL=org/VL@v1.0"]) == 0
    assert [file.path for file in read_manifest(tmp_path / "vl.tar")[0].files] == [
        "VL/config.json",
        "VL/model.safetensors",
    ]
    assert hub.revisions == {"org/VL": "v1.0"}
    assert bundle_command.main([*line, "--repo", "XL=org/VL"]) == 2


def test_weights_that_lie_here_are_taken_from_here(tmp_path):
    weight = "pyiqa/CNNIQA_koniq10k-e6f14c91.pth"
    make_files(tmp_path / "hub", {weight: 700})
    line = [
        "--tools",
        "CNNIQA",
        "NIQE",
        "--weights",
        str(tmp_path / "hub"),
        "--accept-licences",
        "--no-archive",
    ]
    assert bundle_command.main([*line, "--out", str(tmp_path / "bundle")]) == 0
    assert filecmp.cmp(tmp_path / "hub" / weight, weights_dir(tmp_path / "bundle") / weight, shallow=False)
    assert verified(tmp_path / "bundle", f"tools/hub/{weight}")


def test_a_snapshot_that_lies_in_a_cache_is_taken_from_there(tmp_path):
    cache = tmp_path / "cache"
    name = f"{Path(TIMM).name}/snapshots/{COMMIT}/model.safetensors"
    make_files(cache, {f"{Path(TIMM).name}/blobs/0": 900, f"{Path(TIMM).name}/refs/main": 0})
    (cache / Path(TIMM).name / "refs" / "main").write_text(COMMIT)
    (cache / name).parent.mkdir(parents=True)
    (cache / name).symlink_to(cache / Path(TIMM).name / "blobs" / "0")  # as huggingface_hub lays it out
    make_files(tmp_path / "hub", {TOOLS["HyperIQA"].weights[0]: 700})
    line = [
        "--tools",
        "HyperIQA",
        "--weights",
        str(tmp_path / "hub"),
        "--huggingface",
        str(cache),
        "--accept-licences",
    ]
    assert bundle_command.main([*line, "--out", str(tmp_path / "tools.tar")]) == 0
    unpack(tmp_path / "tools.tar", tmp_path / "store")
    assert not (tmp_path / "store" / "tools/huggingface" / name).is_symlink()
    assert filecmp.cmp(cache / name, tmp_path / "store" / "tools/huggingface" / name, shallow=False)
    assert next(
        info for info in ToolRunner(models=tmp_path / "store").info() if info.name == "HyperIQA"
    ).available
    assert wanted_files.cached_snapshot(fetch.Repo("timm/other"), cache) == []


def test_an_embedded_model_that_is_missing_is_no_bundle(tmp_path, monkeypatch):
    monkeypatch.setattr(wanted_files, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setattr(paths, "EMBEDDED", tmp_path / "embedded")
    with pytest.raises(fetch.FetchError, match=r"ships with the project; get the checkout"):
        wanted_files.model_folder("embedded", tmp_path / "embedded", {}, tmp_path / "downloads")


@pytest.mark.parametrize(
    ("engine", "lock"), [("transformers", "constraints.txt"), ("vllm", "constraints-gpu.txt")]
)
def test_wheels_are_those_of_the_engines_lock_and_listed_with_their_hashes(
    engine, lock, tmp_path, monkeypatch
):
    lines = []

    def pip(line, **_):
        lines.append(line)
        source, folder = Path(line[-1]), Path(line[line.index("--wheel-dir") + 1])
        assert {"pyproject.toml", "agentic_iqa_local", "configs", "models"} <= {
            place.name for place in source.iterdir()
        }
        assert source != ROOT  # pip leaves files where it builds
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "Own_Name-1.0+cpu-py3-none-any.whl", "w") as wheel:
            wheel.writestr(
                "own_name-1.0+cpu.dist-info/METADATA",
                "Metadata-Version: 2.1\nName: own-name\nVersion: 1.0+cpu\n",
            )
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(wheel_files.subprocess, "run", pip)
    wheel, requirements = wheel_files.wheels(engine, tmp_path / "wheels")
    (line,) = lines
    assert "--no-deps" in line
    assert line[line.index("--requirement") + 1] == str(ROOT / lock)
    sha256 = hashlib.sha256(wheel.file.read_bytes()).hexdigest()
    assert (requirements.path, requirements.file.read_text()) == (
        "wheels/requirements.txt",
        f"own-name==1.0+cpu --hash=sha256:{sha256}\n",
    )
    monkeypatch.setattr(wheel_files.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(fetch.FetchError, match="pip ended with status 1"):
        list(wheel_files.wheels(engine, tmp_path / "wheels"))


def test_a_wheel_whose_name_no_archive_holds_keeps_the_platform_that_fits_best(tmp_path):
    best = next(tag for tag in sys_tags() if tag.platform != "any")
    others = "manylinux2014_mips64.manylinux_2_17_mips64.manylinux_2_28_mips64.manylinux_2_31_mips64"
    wheel = tmp_path / f"charset_normalizer-3.5.2-{best.interpreter}-{best.abi}-{others}.{best.platform}.whl"
    wheel.write_bytes(b"a wheel")
    assert len(wheel.name) > 100
    short = wheel_files.with_short_name(wheel)
    assert short.name == f"charset_normalizer-3.5.2-{best.interpreter}-{best.abi}-{best.platform}.whl"
    assert short.read_bytes() == b"a wheel"
    assert wheel_files.with_short_name(short) == short


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT\nLicense: other\n", "MIT"),
        ("License: Zürich licence\n", "Zürich licence"),
        ("License: BSD\n        in two lines\n", "BSD"),
        ("License:   \n", "in the wheel"),
        ("", "in the wheel"),
    ],
)
def test_the_licence_of_a_wheel_is_what_its_metadata_say(metadata, licence, tmp_path):
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "a-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: a\nVersion: 1\n{metadata}".encode()
        )
    assert wheel_files.wheel_licence(tmp_path / "a-1-py3-none-any.whl") == licence


def test_a_local_weight_that_is_not_what_its_name_says_is_refused_and_kept(tmp_path, capsys):
    weight = "checkpoints/alexnet-owt-7be5be79.pth"
    place = make_files(tmp_path / "hub", {weight: 50, "pyiqa/LPIPS_v0.1_alex-df73285e.pth": 50})[weight]
    line = [
        "--tools",
        "LPIPS",
        "--weights",
        str(tmp_path / "hub"),
        "--out",
        str(tmp_path / "a.tar"),
        "--accept-licences",
    ]
    assert bundle_command.main(line) == 1
    assert f"{place}: expected a file whose SHA-256 begins with 7be5be79" in capsys.readouterr().err
    assert place.is_file()
    assert not (tmp_path / "a.tar").exists()


def own_model(tmp_path: Path, files: dict[str, str], path: str | None = None) -> list[str]:
    """Arguments for a bundle of a local model VL whose folder (`path`, else VL) holds `files`."""
    config, section = tmp_path / "mine.yaml", {"backend": "transformers.VL"}
    models = {"models": {"VL": {"path": path}}} if path else {}
    config.write_text(json.dumps(dict.fromkeys(("planner", "executor", "summarizer"), section) | models))
    for name, content in files.items():
        (tmp_path / "models" / (path or "VL")).mkdir(parents=True, exist_ok=True)
        (tmp_path / "models" / (path or "VL") / name).write_text(content)
    return [
        "--config",
        str(config),
        "--models",
        str(tmp_path / "models"),
        "--out",
        str(tmp_path / "vl.tar"),
        "--accept-licences",
    ]


INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})


@pytest.mark.parametrize(
    ("files", "absent"),
    [
        ({"model.safetensors": "w"}, "config.json ("),
        (
            {"config.json": "{}", "model-1.safetensors": "w", "model.safetensors.index.json": INDEX},
            "model-2.safetensors (",
        ),
        (
            {"config.json": "{}", "model.safetensors": "w", "model.safetensors.index.json": "{"},
            "a weight_map",
        ),
        (
            {"config.json": "{}", "model.safetensors": "w", "model.safetensors.index.json": "{}"},
            "a weight_map",
        ),
    ],
)
def test_a_local_model_that_lacks_a_part_gives_no_bundle(files, absent, tmp_path, capsys):
    assert bundle_command.main(own_model(tmp_path, files)) == 1
    assert f"expected {absent}" in capsys.readouterr().err
    assert not (tmp_path / "vl.tar").exists()


def test_a_bundle_has_a_model_where_its_configuration_looks_for_it(tmp_path, capsys):
    files = {"config.json": "{}", "model.safetensors": "w"}
    assert bundle_command.main(own_model(tmp_path, files, path="Elsewhere")) == 0
    said = capsys.readouterr().out
    assert {file.path for file in read_manifest(tmp_path / "vl.tar")[0].files} == {
        f"Elsewhere/{name}" for name in files
    }
    assert f"rsync --append-verify {tmp_path / 'vl.tar'} SERVER:" in said
    assert f"rsync {tmp_path / 'vl.tar.sha256'} {tmp_path / 'mine.yaml'} SERVER:" in said
    assert "mv ../vl.tar ../vl.tar.sha256 ../mine.yaml ." in said
    assert bundle_command.main(own_model(tmp_path, {}, path="/absolute")) == 2
    assert "models.VL.path: expected the name of a folder" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--models", "--weights", "--huggingface"])
def test_a_folder_that_is_not_there_is_wrong_usage_and_nothing_is_downloaded(option, hub, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        bundle_command.main(["--tools", "TOPIQ_NR", option, str(tmp_path / "none"), "--accept-licences"])
    assert f"{option}: expected a folder" in capsys.readouterr().err
    assert hub.downloaded == []


def test_every_weight_of_the_tools_table_has_a_source(tmp_path, monkeypatch):
    monkeypatch.setattr(
        wanted_files, "listing", lambda repo: fetch.Listing(repo.name, COMMIT, "x", AnyFile())
    )
    for spec in TOOLS.values():
        for weight in spec.weights:
            for item in wanted_files.tool_weight(weight, None, None, tmp_path):
                assert item.source.startswith("https://")
                assert StoredFile(
                    path=item.path, size=0, sha256="0" * 64, source=item.source, licence=item.licence
                )


class AnyFile(dict):
    """A repository's files of which every name is one; listed, it is a safetensors snapshot."""

    def __init__(self):
        super().__init__({"model.safetensors": "", "config.json": ""})

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return ""


def test_a_broken_download_is_gone_on_with(tmp_path, monkeypatch):
    data, asked = np.random.default_rng(31).bytes(300_000), []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Range"])
            start = int(self.headers["Range"][6:-1]) if self.headers["Range"] else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start : len(data) // 2] if not start else data[start:])

        def log_message(self, *args):
            pass

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        file, url = tmp_path / "weights.pth", f"http://127.0.0.1:{server.server_port}/weights.pth"
        fetch.retried(url, lambda: fetch.download(url, file))
    finally:
        server.shutdown()
        server.server_close()
    assert file.read_bytes() == data
    assert asked == [None, f"bytes={len(data) // 2}-"]


def test_a_download_that_never_works_ends_with_one_sentence(monkeypatch):
    waited, tries = [], itertools.count()
    monkeypatch.setattr(fetch.time, "sleep", waited.append)

    def fail():
        next(tries)
        raise ConnectionError("no route to host")

    with pytest.raises(fetch.FetchError, match=r"weights: cannot be downloaded \(no route to host\)"):
        fetch.retried("weights", fail)
    assert next(tries) == fetch.TRIES
    assert waited == [2, 4, 8, 16]

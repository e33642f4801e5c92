"""Bundles: what is carried arrives byte for byte, and nothing that the list does not name gets onto the disk."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import EMBEDDED
from huggingface_hub.utils import filter_repo_objects

from agentic_iqa_local.cli.main import main
from agentic_iqa_local.files import file_hash
from agentic_iqa_local.iqa_tools.weights import (
    SUMS,
    BundleError,
    ListedFiles,
    environment,
    read_sums,
)
from agentic_iqa_local.offline import fetch
from agentic_iqa_local.offline.bundle import begin_bundle, finish_bundle, unpack, verify

FILES = {
    "about/a-model.txt": b"made by a test",
    "a-model/config.json": b"{}" * 15,
    "a-model/model.safetensors": b"weights" * 400,
    "tools/hub/pyiqa/a.pth": b"weight" * 300,
}


def made(folder: Path, files: dict[str, bytes]) -> Path:
    begin_bundle(folder)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    finish_bundle(folder)
    return folder


@pytest.fixture
def bundle(tmp_path):
    return made(tmp_path / "bundle", FILES)


def problems(bundle: Path) -> str:
    """Everything that is wrong with a bundle, in one text."""
    try:
        return " ".join(map(str, verify(bundle)))
    except BundleError as error:
        return str(error)


def refuse(bundle: Path, store: Path) -> str:
    """What verify says of a bundle that neither it nor unpack take."""
    told = problems(bundle)
    assert told
    with pytest.raises(BundleError):
        unpack(bundle, store)
    assert not (store / SUMS).exists()
    return told


# what a user does


def test_the_embedded_model_arrives_and_no_other_bundle_is_taken(tmp_path, capsys):
    out, store = tmp_path / "embedded.iqabundle", tmp_path / "store"
    assert main(["bundle", "--out", str(out)]) == 0
    sha256 = file_hash(out / SUMS)
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


def test_sha256sum_checks_a_bundle_without_this_program(bundle):
    line = ["sha256sum", "--strict", "--quiet", "-c", SUMS]
    assert subprocess.run(line, cwd=bundle, check=False).returncode == 0
    (bundle / "a-model" / "config.json").write_text("[]")
    assert subprocess.run(line, cwd=bundle, check=False, capture_output=True).returncode == 1


def test_a_newer_bundle_replaces_the_files_of_its_model(bundle, tmp_path):
    store = tmp_path / "store"
    (store / "mine").mkdir(parents=True)
    (store / "mine" / "model.safetensors").touch()  # other models may lie there
    unpack(bundle, store)
    newer = made(tmp_path / "newer", {"a-model/other.safetensors": b"other"})
    unpack(newer, store)
    assert os.listdir(store / "a-model") == ["other.safetensors"]
    kept = {"about/a-model.txt", "tools/hub/pyiqa/a.pth"}
    assert environment(store)["HF_HUB_CACHE"] == str(store / "tools" / "huggingface")
    assert set(read_sums(store)) == {"a-model/other.safetensors", *kept}
    assert verify(store) == []


@pytest.mark.parametrize("lacking", ["a-model/model.safetensors", SUMS])
def test_the_same_call_completes_a_copy_that_was_cut_off(lacking, bundle, tmp_path):
    whole, store = (bundle / lacking).read_bytes(), tmp_path / "store"
    (bundle / lacking).unlink()
    refuse(bundle, store)
    (bundle / lacking).write_bytes(whole[:-2])
    refuse(bundle, store)
    (bundle / lacking).write_bytes(whole)
    unpack(bundle, store)
    assert verify(store) == []
    assert not list(store.rglob("*.partial"))


# what is damaged or hostile


@pytest.mark.parametrize("path", ["a-model/config.json", "a-model", "a-model/extra"])
def test_links_and_files_of_a_model_that_are_not_listed_are_refused(path, bundle, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    if (bundle / path).exists():
        shutil.move(bundle / path, elsewhere)
    else:
        elsewhere.write_text("x")
    (bundle / path).symlink_to(elsewhere)
    assert path in refuse(bundle, tmp_path / "store")


@pytest.mark.parametrize(
    "path",
    [
        "../escaped",
        "m/../../escaped",
        "/escaped",
        "m//a",
        "x",
        SUMS,
        "m/.hidden",
        "m/a\x00",
        "a-model/config.json",
    ],
)
def test_a_listed_path_that_leads_elsewhere_is_refused(path, bundle, tmp_path):
    """Also a path that stands there twice."""
    (tmp_path / "escaped").write_text("")
    line = f"{hashlib.sha256(b'').hexdigest()}  {path}\n"
    (bundle / SUMS).write_text((bundle / SUMS).read_text() + line)
    assert SUMS in refuse(bundle, tmp_path / "deep" / "store")
    assert not (tmp_path / "deep").exists()


def test_an_archive_of_earlier_versions_is_named_as_such(tmp_path, capsys):
    (tmp_path / "old.tar").write_bytes(bytes(10240))
    assert main(["verify", str(tmp_path / "old.tar")]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {tmp_path / 'old.tar'}: ")
    assert "earlier versions" in told


@pytest.mark.parametrize("path", ["a-model/config.json", SUMS])
def test_what_no_bundle_brought_is_not_replaced(path, bundle, tmp_path):
    store = tmp_path / "store"
    (store / path).parent.mkdir(parents=True)
    (store / path).write_text("mine")
    with pytest.raises(BundleError, match=path):
        unpack(bundle, store)
    assert (store / path).read_text() == "mine"
    assert [file.name for file in store.rglob("*") if file.is_file()] == [Path(path).name]


def test_a_model_that_changed_after_unpacking_is_refused(bundle, tmp_path):
    store = tmp_path / "store"
    unpack(bundle, store)
    ListedFiles(store).check_model(store / "a-model")
    (store / "a-model" / "added.safetensors").write_bytes(b"x")
    assert "added.safetensors" in problems(store)
    with pytest.raises(BundleError, match=r"added\.safetensors"):
        ListedFiles(store).check_model(store / "a-model")
    (store / "a-model" / "added.safetensors").unlink()
    (store / "a-model" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(BundleError, match=r"model\.safetensors is damaged or was changed"):
        ListedFiles(store).check_model(store / "a-model")
    ListedFiles(store).check_model(EMBEDDED)  # no bundle brought this one


# what is collected


def refused(capsys, *options) -> str:
    """What the command bundle says that ends with 1 or 2."""
    assert main(["bundle", *map(str, options)]) in (1, 2)
    return capsys.readouterr().err


def test_a_licence_that_binds_has_to_be_accepted(tmp_path, capsys):
    told = refused(capsys, "--tools", "LPIPS", "--out", tmp_path / "b")
    for said in ("no commercial use", "PolyForm-Noncommercial", "--accept-licences"):
        assert said in told
    assert not (tmp_path / "b").exists()


def test_what_cannot_be_collected_is_told_in_a_sentence(tmp_path, capsys, monkeypatch):
    """A model that is neither here nor known; a known one while there is no network."""
    out = ("--out", tmp_path / "b")
    (tmp_path / "mine.yaml").write_text("summarizer: {backend: transformers.mine}")
    assert "hf download" in refused(capsys, "--config", tmp_path / "mine.yaml", *out)

    def no_network(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", no_network)
    told = refused(capsys, "--config", "qwen3_vl_2b", "--models", tmp_path, *out)
    assert "Qwen/Qwen3-VL-2B-Instruct" in told
    assert "no route" in told
    assert "unfinished" in problems(tmp_path / "b")


def test_gguf_files_come_with_the_small_files_of_the_models_own_repository(tmp_path, monkeypatch):
    model = "Qwen/Qwen3-VL-2B-Instruct"
    wanted = ["Qwen3VL-2B-Instruct-Q8_0.gguf", "mmproj-Qwen3VL-2B-Instruct-Q8_0.gguf"]
    hub = {
        model: [
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "model.safetensors.index.json",
        ],
        f"{model}-GGUF": ["config.json", "Qwen3VL-2B-Instruct-Q4_K_M.gguf", *wanted],
    }

    def download(name, *, local_dir, allow_patterns, ignore_patterns, **_):
        local_dir.mkdir(parents=True, exist_ok=True)
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        for file in filter_repo_objects(hub[name], **patterns):
            (local_dir / file).write_text(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: Mock(sha="abc"))
    out = tmp_path / "b"
    line = ["bundle", "--config", "qwen3_vl_2b_gguf", "--models", str(tmp_path), "--out", str(out)]
    assert main(line) == 0
    names = {"config.json", "tokenizer.json", *wanted}
    folder = out / "Qwen3-VL-2B-Instruct-GGUF"
    assert set(os.listdir(folder)) == names
    assert (folder / "config.json").read_text() == model
    about = next((out / "about").iterdir()).read_text()
    assert f"{model}-GGUF/tree/abc" in about
    assert "apache-2.0" in about


def test_a_folder_that_is_no_unfinished_bundle_is_kept(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert "choose another --out" in refused(capsys, "--out", tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_hugging_face_cache_is_taken_without_its_links(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--org--net" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--net" / "refs").mkdir()
    (tmp_path / "models--org--net" / "refs" / "main").write_text("abc")
    (tmp_path / "blob").write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blob")
    (snapshot / "run.py").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    begin_bundle(tmp_path / "b")
    part = fetch.fetch_weight("hf:org/net", tmp_path / "b")
    finish_bundle(tmp_path / "b")
    names = {path.removeprefix(f"{part.path}/") for path in read_sums(tmp_path / "b")}
    assert names == {"refs/main", "snapshots/abc/model.safetensors"}
    assert verify(tmp_path / "b") == []


def test_remote_code_and_pickles_of_a_model_stay_behind(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    for name in ("model.safetensors", "config.json", "x.py", "pytorch_model.bin", ".hidden.json"):
        (local / name).write_bytes(b"{}")
    fetch.fetch_model("m", local, tmp_path)
    assert set(os.listdir(tmp_path / "m")) == {"config.json", "model.safetensors"}
    (local / "model.safetensors").unlink()
    with pytest.raises(BundleError, match="weights as"):
        fetch.fetch_model("n", local, tmp_path)

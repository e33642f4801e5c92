"""What a command line's paths, folders, patterns and addresses become."""

import pytest

from agentic_iqa_local.batch.inputs import expand_inputs
from agentic_iqa_local.images.files import ImageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "img10.png",
        "img2.JPG",
        "img1.jpeg",
        ".hidden.png",
        "notes.txt",
        "sub/deep.webp",
        "empty/notes.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["."], ["img1.jpeg", "img2.JPG", "img10.png"]),
        (["img*"], ["img1.jpeg", "img2.JPG", "img10.png"]),
        (["**/*.webp"], ["sub/deep.webp"]),
        (["**"], ["img1.jpeg", "img2.JPG", "img10.png", "sub/deep.webp"]),
        (["img10.png", "img*", "./img1.jpeg"], ["img10.png", "img1.jpeg", "img2.JPG"]),
        (
            ["img2.JPG", "sub/../img2.JPG", "missing.png", "notes.txt"],
            ["img2.JPG", "missing.png", "notes.txt"],
        ),
        ([], []),
    ],
)
def test_inputs_are_expanded(folder, items, expected):
    assert [str(path) for path in expand_inputs(items)] == expected


def test_a_file_named_like_a_pattern_is_a_file(folder):
    (folder / "a[1].png").touch()
    assert [str(path) for path in expand_inputs(["a[1].png"])] == ["a[1].png"]


@pytest.mark.parametrize("item", ["empty", "*.tiff", "no/such/*.png", "notes.*"])
def test_nothing_found_is_an_error(folder, item):
    with pytest.raises(ImageError) as caught:
        expand_inputs(["img2.JPG", item])
    assert str(caught.value).startswith(f"{item}: expected a folder or a pattern with image files")
    assert "found none; check the path" in str(caught.value)


def test_the_address_of_a_file_is_a_path(folder):
    (folder / "a b.png").touch()
    assert expand_inputs([(folder / "a b.png").as_uri()]) == [folder / "a b.png"]  # the space is %20 there


def test_what_a_folder_holds_besides_images_is_told(folder):
    for name in ("clip.mov", "clip2.MOV", "README"):
        (folder / name).touch()
    told = []
    expand_inputs([".", "*"], told.append)
    # *.png: one is a folder, one is hidden; sub, empty and folder.png are folders
    assert told == [
        (
            "./: 3 images; skipped 4 files: 2 .mov, 1 .txt, 1 without a suffix; subfolders are not searched"
            " (3): use './**/*'"
        ),
        "*: 3 images; skipped 4 files: 2 .mov, 1 .txt, 1 without a suffix",
    ]


def test_a_folder_without_images_is_refused_with_what_it_holds(folder):
    with pytest.raises(ImageError, match=r"found none; check the path \(skipped 1 file: 1 .txt\)"):
        expand_inputs(["empty"])


def test_an_address_on_a_network_is_refused_and_images_alone_are_taken_in_silence(tmp_path):
    with pytest.raises(ImageError, match="address on a network"):
        expand_inputs(["https://example.org/a.png"])
    (tmp_path / "a.png").touch()
    told = []
    expand_inputs([str(tmp_path), str(tmp_path / "a.png")], told.append)
    assert told == []

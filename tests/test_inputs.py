"""What a command line names: links that lead nowhere, references in a folder, words that look like options."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentic_iqa_local.batch.inputs import expand_inputs, references_in
from agentic_iqa_local.cli.assess import wanted
from agentic_iqa_local.cli.assess_options import parse
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.text import path_from_text, path_text


def files(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


def test_a_link_that_leads_nowhere_is_a_picture_of_its_folder(tmp_path):
    files(tmp_path, "a.png")
    for name in ("b.png", "c.txt"):
        (tmp_path / name).symlink_to("nowhere")
    for place in (tmp_path, tmp_path / "*.png"):
        assert expand_inputs([str(place)]) == [tmp_path / "a.png", tmp_path / "b.png"]


def test_a_folder_of_references_is_paired_by_name(tmp_path):
    images = files(tmp_path / "x", "a.jpg", "b.png", "c.10.png") + files(tmp_path / "y", "a.png")
    files(tmp_path / "r", "a.png", "b.bmp", "b.png", "c.10.tif", "other.png")
    args = parse([*map(str, images), "--reference", str(tmp_path / "r")], "")
    references = [item.reference.name for item in wanted(args, SimpleNamespace(say=print))]
    assert references == ["a.png", "b.png", "c.10.tif", "a.png"]


def test_pictures_without_a_reference_are_named(tmp_path):
    images = files(tmp_path / "x", "a.jpg", "b.png", "c.png")
    files(tmp_path / "r", "a.bmp", "a.png", "c.png")
    with pytest.raises(ImageError, match=r"but not for \S*a\.jpg \(a\.bmp or a\.png\), \S*b\.png \(none\);"):
        references_in(tmp_path / "r", images)


@pytest.mark.parametrize(
    ("words", "pictures", "reference"),
    [
        (["a.png", "--reference", "r.png"], ["a.png"], "r.png"),
        (["--reference", "r.png", "a.png", "b.png"], ["a.png", "b.png"], "r.png"),
        (["a.png", "--reference", "r.png", "s.png"], None, "got r.png and s.png"),
        (["a.png", "--reference", "r.png", "--reference", "s.png"], None, "got r.png and s.png"),
        (["--cpu", "--", "-d.png", "b.png"], ["-d.png", "b.png"], None),
        (["a.png", "--", "--cpu"], ["a.png", "--cpu"], None),
    ],
)
def test_which_words_are_pictures_and_which_is_the_reference(words, pictures, reference, capsys):
    if pictures is None:
        with pytest.raises(SystemExit):
            parse(words, "")
        assert reference in capsys.readouterr().err
    else:
        args = parse(words, "")
        assert args.pictures == pictures
        assert args.reference == (reference and Path(reference))


def test_a_picture_whose_name_looks_like_an_option_is_told_how_to_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("-d.png").touch()
    with pytest.raises(SystemExit):
        parse(["-d.png"], "")
    assert "did you mean ./-d.png?" in capsys.readouterr().err


@pytest.mark.parametrize("name", [b"a.png", b"a\xff.png", rb"a\xff.png", b"\\\\x\xc3\xa4\xff\\", b"a\\b"])
def test_a_path_comes_back_from_its_text(name):
    assert path_from_text(path_text(os.fsdecode(name))) == os.fsdecode(name)

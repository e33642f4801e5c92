"""What a command line names: links that lead nowhere, references in a folder, words that look like options; and
what is read of a manifest."""

import json
from pathlib import Path

import pytest
from attacks import in_time

from agentic_iqa_local.batch.inputs import (
    Item,
    ManifestError,
    expand_inputs,
    read_manifest,
    references_in,
)
from agentic_iqa_local.cli.assess import items_of
from agentic_iqa_local.cli.command import parse
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


def test_references_of_a_folder_are_paired_by_name(tmp_path):
    images = files(tmp_path / "x", "a.jpg", "b.png", "c.10.png") + files(tmp_path / "y", "a.png")
    files(tmp_path / "r", "b.bmp", "b.png", "c.10.tif", "other.png")
    (tmp_path / "r" / "a.png").symlink_to("other.png")
    args = parse("assess", [*map(str, images), "--reference", str(tmp_path / "r")])
    names = [item.reference.name for item in items_of(args)]
    assert names == ["a.png", "b.png", "c.10.tif", "a.png"]
    files(tmp_path / "s", "a.bmp", "a.png", "c.10.png")
    lacking = r"but not for \S*a\.jpg \(found 2\), \S*b\.png \(found 0\);"
    with pytest.raises(ImageError, match=lacking):
        references_in(tmp_path / "s", images[:3])


# Manifests


def test_csv_and_json_lines_say_the_same(tmp_path):
    """Paths are relative to the manifest, cells that are empty stand for the defaults, and a row that is there twice
    is one item."""
    files(tmp_path, "a.png", "b.png")
    (tmp_path / "rows.csv").write_text(
        'image, reference, query, choices\na.png\na.png,b.png,"Sharp, or not?",Yes|No\na.png\n',
        "utf-8-sig",
    )
    sharp = {"query": "Sharp, or not?", "choices": ["Yes", "No"]}
    rows = [{"image": "a.png"}, {"image": "a.png", "reference": "b.png"} | sharp]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    expected = [
        Item(tmp_path / "a.png", None, "Rate it."),
        Item(tmp_path / "a.png", tmp_path / "b.png", "Sharp, or not?", ("Yes", "No")),
    ]
    for suffix in ("csv", "jsonl"):
        assert read_manifest(tmp_path / f"rows.{suffix}", query="Rate it.") == expected
    assert read_manifest(tmp_path / "rows.csv")[0].query == DEFAULT_QUERY


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.csv", b"image\na.png\n\nno.png\n", "line 4: there is no file"),
        ("m.csv", b"picture\na.png\n", "line 2: image: expected a value"),
        ("m.csv", b"image\na.png,b.png\n", "line 2: more cells"),
        ("m.csv", b"image,choices\na.png,Yes\n", "line 2: choices: expected 2 to 10"),
        ("m.csv", b"image\n", "found none"),
        ("m.csv", b"image\n\xff\xfe.png\n", "cannot be read as csv: 'utf-8'"),
        ("m.jsonl", b'["a.png"]\n', "line 1: expected an object"),
        ("m.jsonl", b'{"image": "a.png", "query": "\\ud800"}\n', "line 1: "),
        ("m.txt", b"a.png\n", "named .csv or .jsonl"),
    ],
)
def test_bad_rows_of_a_manifest_are_named(tmp_path, name, content, said):
    (tmp_path / "a.png").write_bytes(b"an image, for all the manifest knows")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestError, match=said):
        read_manifest(tmp_path / name)


def test_columns_that_are_not_used_are_told(tmp_path, caplog):
    files(tmp_path, "a.png")
    (tmp_path / "m.csv").write_text("image,refrence\na.png,b.png\n")
    read_manifest(tmp_path / "m.csv")
    assert "refrence" in caplog.text


# Files, folders and globs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    names = ("img10.png", "img2.JPG", "img1.jpeg", "a[1].png", ".hidden.png", "sub/deep.webp")
    files(tmp_path, *names, ".hidden/x.webp", "notes.txt", "empty/notes.txt", "folder.png/x")
    (tmp_path / "img3.png").symlink_to("nowhere")  # its row will be a failure
    monkeypatch.chdir(tmp_path)
    return tmp_path


FEW = ["sub/../img2.JPG", "missing.png", "notes.txt"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["."], ["a[1].png", "img1.jpeg", "img2.JPG", "img3.png", "img10.png"]),
        (["sub/../img*"], [f"sub/../img{end}" for end in ("1.jpeg", "2.JPG", "3.png", "10.png")]),
        (["**/*.webp"], ["sub/deep.webp"]),
        (["sub/**"], ["sub/deep.webp"]),
        (["a[1].png", "img*0*", "./img1.jpeg"], ["a[1].png", "img10.png", "img1.jpeg"]),
        ([*FEW, "img2.JPG"], FEW),
    ],
)
def test_inputs_are_expanded(folder, items, expected):
    assert [str(path) for path in expand_inputs(items)] == expected
    address = (folder / "a[1].png").as_uri()
    assert expand_inputs([address]) == [folder / "a[1].png"]


ODD = ("a.dng", "b.DNG", "c.jxl", "photo", "f.mov", ".hidden", "Thumbs.db", "a.xmp", "rows.jsonl",
       "sub/x.png", "sub/y.cr2")  # fmt: skip
SKIPPED = {"2 .dng", "1 .jxl", "1 without suffix", "1 .mov"}


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["{0}"], SKIPPED | {"1 subfolder(s) (searched by 'FOLDER/**/*')"}),
        (["{0}/**/*", "{0}/sub"], SKIPPED | {"1 .cr2"}),
        (["{0}/sub/*.png", "{0}/a.dng"], set()),  # as it was asked
    ],
)
def test_what_is_skipped_is_counted_once(tmp_path, caplog, items, said):
    files(tmp_path, "a.png", *ODD)
    expand_inputs([item.format(tmp_path) for item in items])
    told = ", ".join(record.args[0] for record in caplog.records)
    advice = " (--raw-previews judges the previews in RAW files)"
    assert (advice in told) == any(kind[2:] in (".dng", ".cr2") for kind in said)
    assert set(told.replace(advice, "").split(", ")) - {""} == said


@pytest.mark.parametrize("items", [["**/*"], ["./**/*.png", "again/**/*", "a/loop/**/*", "."]])
def test_each_real_file_is_one_picture(tmp_path, monkeypatch, items):
    """Two links to the folder above would be 2⁴⁰ paths."""
    files(tmp_path, "b.png", "a/deep/p.png")
    for link in ("again", "a/loop"):
        (tmp_path / link).symlink_to(tmp_path)
    (tmp_path / "to_b.png").symlink_to("b.png")
    (tmp_path / "a" / "deep" / "nowhere.png").symlink_to("gone")
    monkeypatch.chdir(tmp_path)
    with in_time():
        found = [str(path) for path in expand_inputs(items)]
    assert found == ["a/deep/nowhere.png", "a/deep/p.png", "b.png"]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("empty", r"a folder or a pattern with image files .* found none; check the path"),
        ("notes.*", "found none; check"),
        ("raw", r"found none beside 2 \.dng \(--raw-previews judges .*\); check the path"),
        ("https://example.org/a.png", "address on a network"),
    ],
)
def test_nothing_found_is_an_error(folder, item, said):
    files(folder / "raw", "a.dng", "b.dng")
    with pytest.raises(ImageError, match=said):
        expand_inputs(["img2.JPG", item])


# Names that look like options


@pytest.mark.parametrize(
    ("command", "typed", "pictures"),
    [
        ("assess", ["x.png", "--", "-a.png", "--help.png", "-1.png", "@f"], ["x.png", "-a.png", "--help.png", "-1.png", "@f"]),
        ("assess", ["--", "--json", "--help", "--help-all", "--version", "--"], ["--json", "--help", "--help-all", "--version", "--"]),
        ("compare", ["b.png", "--", "-a.png"], ["b.png", "-a.png"]),
    ],
)  # fmt: skip
def test_behind_two_dashes_everything_is_a_name(command, typed, pictures):
    args = parse(command, typed)
    assert [str(path) for path in map(Path, args.pictures)] == pictures
    assert not args.json


def test_one_picture_may_stand_behind_two_dashes():
    assert Path(parse("chat", ["--cpu", "--", "-a.png"]).picture) == Path("-a.png")

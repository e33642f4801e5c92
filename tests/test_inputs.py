"""What a command line names: links that lead nowhere, references in a folder, words that look like options; and
what is read of a manifest."""

import json
import os
from pathlib import Path

import pyarrow
import pytest
from attacks import in_time
from pyarrow import parquet

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
    files(tmp_path / "r", "a.png", "b.bmp", "b.png", "c.10.tif", "other.png")
    args = parse("assess", [*map(str, images), "--reference", str(tmp_path / "r")])
    assert [item.reference.name for item in items_of(args)] == [
        "a.png",
        "b.png",
        "c.10.tif",
        "a.png",
    ]
    files(tmp_path / "s", "a.bmp", "a.png", "c.10.png")
    with pytest.raises(
        ImageError, match=r"but not for \S*a\.jpg \(a\.bmp or a\.png\), \S*b\.png \(none\);"
    ):
        references_in(tmp_path / "s", images[:3])


# Manifests


def test_csv_json_lines_and_parquet_say_the_same(tmp_path):
    """Paths are relative to the manifest, cells that are empty stand for the defaults, and a row that is there twice
    is one item."""
    files(tmp_path, "a.png", "b.png")
    (tmp_path / "rows.csv").write_text(
        'image, reference, query, choices\na.png\na.png,b.png,"Sharp, or not?",Yes|No\na.png\n',
        "utf-8-sig",
    )
    rows = [
        {"image": "a.png"},
        {
            "image": "a.png",
            "reference": "b.png",
            "query": "Sharp, or not?",
            "choices": ["Yes", "No"],
        },
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in rows[1]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    expected = [
        Item(tmp_path / "a.png", None, "Rate it."),
        Item(tmp_path / "a.png", tmp_path / "b.png", "Sharp, or not?", ("Yes", "No")),
    ]
    for suffix in ("csv", "jsonl", "parquet"):
        assert read_manifest(tmp_path / f"rows.{suffix}", query="Rate it.") == expected
    assert read_manifest(tmp_path / "rows.csv")[0].query == DEFAULT_QUERY


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.csv", b"image\na.png\n\nno.png\n", "line 4: image: there is no file"),
        ("m.csv", b"picture\na.png\n", "line 2: image: expected a value"),
        ("m.csv", b"image\na.png,b.png\n", "line 2: more cells"),
        ("m.csv", b"image,choices\na.png,Yes\n", "line 2: choices: expected 2 to 10"),
        ("m.csv", b"image\n", "found none"),
        ("m.csv", b"image\n\xff\xfe.png\n", "cannot be read as csv: 'utf-8'"),
        ("m.jsonl", b'["a.png"]\n', "line 1: expected a mapping"),
        (
            "m.jsonl",
            b'{"image": "a.png", "query": "\\ud800"}\n',
            "cannot be read as jsonl: line 1: ",
        ),
        ("m.txt", b"a.png\n", "named .csv, .jsonl or .parquet"),
        ("m.parquet", b"PAR1", "cannot be read as parquet"),
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
    names = (
        "img10.png",
        "img2.JPG",
        "img1.jpeg",
        "a[1].png",
        ".hidden.png",
        "notes.txt",
        "sub/deep.webp",
    )
    files(tmp_path, *names, "empty/notes.txt", "folder.png/x")
    (tmp_path / "img3.png").symlink_to("nowhere")  # its row will be a failure
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["."], ["a[1].png", "img1.jpeg", "img2.JPG", "img3.png", "img10.png"]),
        (["img*"], ["img1.jpeg", "img2.JPG", "img3.png", "img10.png"]),
        (["**/*.webp"], ["sub/deep.webp"]),
        (
            ["a[1].png", "img10.png", "img*0*", "./img1.jpeg"],
            ["a[1].png", "img10.png", "img1.jpeg"],
        ),
        (
            ["sub/../img2.JPG", "img2.JPG", "missing.png", "notes.txt"],
            ["sub/../img2.JPG", "missing.png", "notes.txt"],
        ),
    ],
)
def test_inputs_are_expanded(folder, items, expected):
    assert [str(path) for path in expand_inputs(items)] == expected
    address = (folder / "a[1].png").as_uri()
    assert expand_inputs([address]) == [folder / "a[1].png"]


ODD = ("a.dng", "b.DNG", "c.jxl", "photo", "d.tga", "e.png.bak", "f.mov", ".hidden", ".DS_Store", "Thumbs.db", "a.xmp",
       "notes.txt", "rows.jsonl", "page.html", "sub/x.png", "sub/y.cr2")  # fmt: skip


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (
            ["{0}"],
            "2 .dng, 1 .jxl, 1 without suffix, 1 .tga, 1 .mov, 1 .bak, 1 subfolder (searched by '{0}/**/*')",
        ),
        (
            ["{0}/**/*", "{0}/sub"],
            "2 .dng, 1 .jxl, 1 without suffix, 1 .tga, 1 .cr2, 1 .mov, 1 .bak",
        ),
        (["{0}/sub/*.png", "{0}/a.dng"], None),  # as it was asked
    ],
)
def test_what_is_skipped_is_counted_once(tmp_path, caplog, items, said):
    files(tmp_path, "a.png", *ODD)
    expand_inputs([item.format(tmp_path) for item in items])
    assert len(caplog.records) == (said is not None)
    for part in (said or "").format(tmp_path).split(", "):
        assert part in caplog.text


def test_a_folder_of_other_files_alone_is_counted_in_the_error(tmp_path):
    files(tmp_path, "a.dng", "b.dng")
    with pytest.raises(ImageError, match=r"found none beside 2 \.dng; check the path"):
        expand_inputs([str(tmp_path)])


# Links


@pytest.fixture
def linked(tmp_path, monkeypatch):
    files(tmp_path, "z.png", "a/deep/p.png", "b/q.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "best.png").symlink_to("z.png")
    (tmp_path / "b" / "to_deep").symlink_to(tmp_path / "a" / "deep")
    (tmp_path / "a" / "deep" / "nowhere.png").symlink_to("gone")
    os.link(tmp_path / "z.png", tmp_path / "hard.png")
    monkeypatch.chdir(tmp_path)


REAL = ["a/deep/nowhere.png", "a/deep/p.png", "b/q.png", "hard.png", "z.png"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["**/*"], REAL),
        (["./**/*.png", "again/**/*", "a/loop/**/*", "."], REAL),
        (["b/*/*"], ["b/to_deep/nowhere.png", "b/to_deep/p.png"]),
        (["best.png", "z.png", "./z.png", "hard.png"], ["best.png", "hard.png"]),
    ],
)
def test_each_real_file_is_one_picture(linked, items, expected):
    """Two links to the folder above would be 2⁴⁰ paths."""
    with in_time():
        assert [str(path) for path in expand_inputs(items)] == expected


def test_references_may_be_links_to_one_file(tmp_path):
    images = files(tmp_path, "x/1.png", "x/2.png", "r/one.png")[:2]
    for name in ("1.png", "2.png"):
        (tmp_path / "r" / name).symlink_to("one.png")
    assert references_in(tmp_path / "r", images) == [tmp_path / "r" / file.name for file in images]


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


@pytest.mark.parametrize("item", ["empty", "notes.*"])
def test_nothing_found_is_an_error(folder, item):
    with pytest.raises(
        ImageError, match=r"a folder or a pattern with image files .* found none; check the path"
    ):
        expand_inputs(["img2.JPG", item])


def test_an_address_on_a_network_is_refused():
    with pytest.raises(ImageError, match="address on a network"):
        expand_inputs(["https://example.org/a.png"])

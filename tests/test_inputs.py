"""What a command line names: links that lead nowhere, references in a folder, words that look like options; and
what is read of a manifest."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from agentic_iqa_local.batch.inputs import Item, ManifestError, expand_inputs, read_manifest, references_in
from agentic_iqa_local.cli.assess import main, wanted
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY


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
    args = main.parse([*map(str, images), "--reference", str(tmp_path / "r")])
    references = [item.reference.name for item in wanted(args)]
    assert references == ["a.png", "b.png", "c.10.tif", "a.png"]


def test_pictures_without_a_reference_are_named(tmp_path):
    images = files(tmp_path / "x", "a.jpg", "b.png", "c.png")
    files(tmp_path / "r", "a.bmp", "a.png", "c.png")
    with pytest.raises(ImageError, match=r"but not for \S*a\.jpg \(a\.bmp or a\.png\), \S*b\.png \(none\);"):
        references_in(tmp_path / "r", images)


# Manifests


def test_csv_json_lines_and_parquet_say_the_same(tmp_path):
    """Paths are relative to the manifest, cells that are empty stand for the defaults, and a row that is there twice
    is one item."""
    files(tmp_path, "a.png", "b.png")
    (tmp_path / "rows.csv").write_text(
        'image, reference, query, choices\na.png\na.png,b.png,"Sharp, or not?",Yes|No\na.png\n', "utf-8-sig"
    )
    rows = [
        {"image": "a.png"},
        {"image": "a.png", "reference": "b.png", "query": "Sharp, or not?", "choices": ["Yes", "No"]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = list(rows[1])
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    parquet.write_table(table, tmp_path / "rows.parquet")
    expected = [
        Item(tmp_path / "a.png", None, "Rate it."),
        Item(tmp_path / "a.png", tmp_path / "b.png", "Sharp, or not?", ("Yes", "No")),
    ]
    for suffix in ("csv", "jsonl", "parquet"):
        assert read_manifest(tmp_path / f"rows.{suffix}", "Rate it.") == expected
    assert read_manifest(tmp_path / "rows.csv")[0].query == DEFAULT_QUERY


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.csv", "image\na.png\n\nno.png\n", "line 4: image: there is no file"),
        ("m.csv", "image,reference\na.png,no.png\n", "line 2: reference: there is no file"),
        ("m.csv", "picture\na.png\n", "line 2: image: expected a value"),
        ("m.csv", "image\na.png,b.png\n", "line 2: more cells"),
        ("m.jsonl", '{"image": "a.png", "query": "  "}\n', "line 1: query: expected"),
        ("m.csv", "image,choices\na.png,Yes\n", "line 2: choices: expected 2 to 10"),
        ("m.csv", "image\n", "found none"),
        ("m.csv", b"image\n\xff\xfe.png\n", "UTF-8"),
        ("m.jsonl", '{"image": "a.png"}\n{"image": 3}\n', "line 2: image:"),
        ("m.jsonl", '["a.png"]\n', "line 1: expected a mapping"),
        ("m.jsonl", '{"image": "a.png", "query": "\\ud800"}\n', "cannot be read as jsonl in UTF-8: line 1: "),
        (
            "m.jsonl",
            "\n".join(f'{{"image": "{i}.png"}}' for i in range(8)),
            "line 5: .*; and 3 more; correct",
        ),
        ("m.txt", "a.png\n", "named .csv, .jsonl or .parquet"),
        ("m.parquet", "PAR1", "cannot be read as parquet"),
        ("m.csv", "image,image\na.png,a.png\n", "expected each column once, got image, image"),
        ("m.csv", f"image\na.png\n{'x' * 300}.png\n", "line 3: image: there is no file"),
    ],
)
def test_bad_rows_of_a_manifest_are_named(tmp_path, name, content, said):
    (tmp_path / "a.png").write_bytes(b"an image, for all the manifest knows")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ManifestError, match=said):
        read_manifest(tmp_path / name)


def test_columns_that_are_not_used_are_told(tmp_path, caplog):
    (tmp_path / "a.png").touch()
    (tmp_path / "m.csv").write_text("image,refrence\na.png,b.png\n")
    read_manifest(tmp_path / "m.csv")
    assert "refrence" in caplog.text


# Files, folders and globs


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
        "./: 3 images; skipped 4 other files; subfolders are not searched (3): use './**/*'",
        "*: 3 images; skipped 4 other files",
    ]


def test_a_folder_without_images_is_refused_with_what_it_holds(folder):
    with pytest.raises(ImageError, match=r"found none; check the path \(skipped 1 other file\)"):
        expand_inputs(["empty"])


def test_an_address_on_a_network_is_refused_and_images_alone_are_taken_in_silence(tmp_path):
    with pytest.raises(ImageError, match="address on a network"):
        expand_inputs(["https://example.org/a.png"])
    (tmp_path / "a.png").touch()
    told = []
    expand_inputs([str(tmp_path), str(tmp_path / "a.png")], told.append)
    assert told == []

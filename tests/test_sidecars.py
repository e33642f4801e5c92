"""XMP sidecars: what is added, what stays, what is taken back; and the program's answers to whoever asks for them."""

import json
import shutil
import subprocess

import pandas as pd
import pytest
from conftest import DATA
from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_row import RATING, row_of
from PIL import Image
from scripted import in_this_process

from agentic_iqa_local.batch.ratings import RatingsError, read_ratings
from agentic_iqa_local.cli.main import main
from agentic_iqa_local.cli.sidecars import mark_best
from agentic_iqa_local.judgement.comparison import Group, Ranked
from agentic_iqa_local.output.sidecars import LABEL, WORDS, Sidecars
from agentic_iqa_local.output.sidecars import RATING as STARS
from agentic_iqa_local.output.xmp import EMPTY, SidecarError, merged, read

DARKTABLE = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="uuid:1"
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:dc='http://purl.org/dc/elements/1.1/'
    xmlns:darktable="http://darktable.sf.net/"
   xmp:Rating="{rating}"
   darktable:note=" xmp:Rating='5'  &quot;"
   darktable:auto_presets_applied="1">
   <dc:subject>\t<rdf:Bag><rdf:li>Küste</rdf:li></rdf:Bag></dc:subject>
   <darktable:history>
    <rdf:Seq><rdf:li darktable:operation="exposure" darktable:params="gz02eJxjZGBg"/></rdf:Seq>
   </darktable:history>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta><!-- mine -->
"""  # fmt: skip
WORDS_OF_OURS = 'it is "fair" <& more>'
OURS = {STARS: "4", WORDS: WORDS_OF_OURS}


def sidecar(rating="0") -> bytes:
    return DARKTABLE.replace("{rating}", rating).encode()


def undone(content: bytes) -> bytes:
    return merged(content, dict.fromkeys(read(content).written))[0]


def test_every_byte_stays_but_for_what_is_added():
    old = sidecar("3")
    new, kept = merged(old, OURS)
    assert kept == [STARS]
    block = new[
        len(old) - len(b"</rdf:RDF>\n</x:xmpmeta><!-- mine -->\n") : -len(
            b"</rdf:RDF>\n</x:xmpmeta><!-- mine -->\n"
        )
    ]
    assert new.replace(block, b"") == old
    assert block.count(b"rdf:Description") == 2
    assert b'rdf:about="uuid:1"' in block  # a packet has one subject
    assert merged(new, OURS) == (new, kept)
    assert undone(new) == old


def test_no_stars_are_nobodys_rating_and_come_back():
    old = sidecar("0")
    new, kept = merged(old, OURS)
    assert kept == []
    assert b'xmp:Rating="4"\n   darktable:note' in new
    assert new.count(b"xmp:Rating=") == 2  # the other one stands in darktable's note
    assert undone(new) == old


@settings(max_examples=30)
@example({STARS: '"', LABEL: "'"})
@given(
    st.dictionaries(
        st.sampled_from([STARS, LABEL, "digiKam:PickLabel", WORDS]),
        st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1)
        .map(str.strip)
        .filter(bool),
    )
)
def test_undoing_gives_the_very_bytes_back(values):
    for old in (EMPTY, sidecar("0"), sidecar("5")):
        new, _ = merged(old, values)
        renewed, _ = merged(new, {WORDS: "later words"})
        assert undone(new) == undone(renewed) == old


def test_what_a_person_changed_since_stays():
    new, _ = merged(EMPTY, OURS)
    mine = new.replace(b'xmp:Rating="4"', b'xmp:Rating="2"', 1)
    again, kept = merged(mine, {STARS: "5", WORDS: "other words"})
    assert kept == [STARS]
    assert (read(again).value(STARS), read(again).value(WORDS)) == ("2", "other words")
    left = read(undone(mine))
    assert (left.value(STARS), left.value(WORDS), left.written) == ("2", None, {})


def test_what_another_program_wrote_anew_is_still_found():
    """As exiv2 writes: all properties in one description, elements where this program had attributes."""
    new, _ = merged(EMPTY, OURS)
    text = (
        new.decode()
        .replace('\n  xmp:Rating="4"', "")
        .replace("</rdf:Description>", "<xmp:Rating>4</xmp:Rating></rdf:Description>")
    )
    assert read(undone(text.encode())).found == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>' + sidecar(), "with a DTD"),
        (b'<!DOCTYPE x SYSTEM "file:///etc/passwd">' + sidecar(), "with a DTD"),
        (b"stars: 5", "got no XML"),
        (sidecar().decode().encode("utf-16"), "in UTF-8"),
        (b"<a/>", "without rdf:RDF"),
        (sidecar()[:-40], "got no XML"),
        (b"<a>" * 300_000, "nested too deeply"),
    ],
    ids=["laughs", "external", "text", "utf-16", "xml", "cut", "deep"],
)  # fmt: skip
def test_what_is_no_sidecar_is_left_alone(content, said, tmp_path):
    with pytest.raises(SidecarError, match=said):
        read(content)
    place = tmp_path / "a.png.xmp"
    place.write_bytes(content)
    found = Sidecars("darktable", [tmp_path / "a.png"])
    found.note(row_of(str(tmp_path / "a.png"), **RATING))
    assert place.read_bytes() == content
    assert said in found.account()[-1]


def test_a_link_is_left_alone_and_a_failure_gets_nothing(tmp_path):
    (tmp_path / "else.xmp").write_bytes(EMPTY)
    (tmp_path / "a.png.xmp").symlink_to("else.xmp")
    found = Sidecars("darktable", [tmp_path / "a.png", tmp_path / "b.png"])
    found.note(row_of(str(tmp_path / "a.png"), **RATING))
    found.note(row_of(str(tmp_path / "b.png"), error="b.png: damaged"))
    assert (tmp_path / "else.xmp").read_bytes() == EMPTY
    assert not (tmp_path / "b.png.xmp").exists()
    assert found.account()[1:] == [f"error: could not merge into 1 sidecar: {tmp_path / 'a.png.xmp'}: expected a regular file, got a link"]  # fmt: skip


def test_a_rating_inside_the_picture_counts_as_given_and_the_picture_is_not_written(tmp_path):
    picture = tmp_path / "a.jpg"
    Image.new("RGB", (40, 40)).save(picture, xmp=sidecar("5"))
    before = picture.read_bytes()
    found = Sidecars("adobe", [picture])
    found.note(row_of(str(picture), **RATING))
    assert picture.read_bytes() == before
    assert read((tmp_path / "a.xmp").read_bytes()).value(STARS) is None
    assert "1 picture: a.jpg (rating)" in found.account()[1]


def test_each_sidecar_is_read_and_written_once(tmp_path, monkeypatch):
    """So 1,000 pictures are 1,000 reads and as many writes."""
    from agentic_iqa_local.output import sidecars

    pictures = [tmp_path / f"{number}.png" for number in range(30)]
    calls = []
    for name in ("read_bytes", "write_whole"):
        real = getattr(sidecars, name)
        monkeypatch.setattr(sidecars, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1])  # fmt: skip
    found = Sidecars("darktable", pictures)
    for picture in pictures:
        found.note(row_of(str(picture), **RATING))
    assert calls == ["write_whole"] * 30
    for picture in pictures:
        found.undo(picture)
    assert calls[30:] == ["read_bytes"] * 30
    assert list(tmp_path.iterdir()) == []


def test_two_pictures_never_share_a_sidecar(tmp_path, capfd):
    for suffix in ("png", "jpg"):
        Image.new("RGB", (40, 40)).save(tmp_path / f"a.{suffix}")
    assert main(["assess", str(tmp_path), "--xmp", "adobe", "--cpu"]) == 2
    assert "use --xmp darktable" in capfd.readouterr().err


@pytest.mark.skipif(not shutil.which("exiftool"), reason="NOT RUN: exiftool is not installed")
def test_exiftool_reads_what_was_written(tmp_path):
    found = Sidecars("darktable", [tmp_path / "a.png"])
    (tmp_path / "a.png.xmp").write_bytes(sidecar("0"))
    found.pick(str(tmp_path / "a.png"), WORDS_OF_OURS)
    found.note(row_of(str(tmp_path / "a.png"), **RATING))
    words = [
        "-s3",
        "-Rating",
        "-Label",
        "-XMP-digiKam:PickLabel",
        "-XMP-xmpDM:all",
        "-Subject",
        "-warning",
        "-error",
    ]
    read = subprocess.run(
        ["exiftool", *words, str(tmp_path / "a.png.xmp")], capture_output=True, text=True
    )
    # RATING is D Poor: two stars
    assert read.stdout.split() == ["2", "Green", "3", "1", "Küste"]


def test_the_best_of_a_group_is_labelled_and_an_earlier_one_no_longer(tmp_path):
    rows = [row_of(str(tmp_path / name), **RATING) for name in ("a.png", "b.png", "alone.png")]
    groups = [[0, 1], [2]], [[1, 0], [2]]
    found = Sidecars("darktable", [])
    found.note(rows[0])
    for members in groups:
        order = [
            [
                Ranked(place=n, index=i, strength=0, better_than_next=None, assessment=rows[i])
                for n, i in enumerate(group)
            ]
            for group in members
        ]
        mark_best(found, [Group(order=one) for one in order])
    a, b = (read((tmp_path / f"{name}.png.xmp").read_bytes()) for name in "ab")
    assert (a.value(LABEL), a.value(STARS)) == (None, "2")  # the stars of assess stay
    assert b.value(LABEL) == "Green"
    assert b.value(WORDS).startswith("Image quality: the best of 2 of one scene; D Poor")
    assert not (tmp_path / "alone.png.xmp").exists()


def test_assess_writes_what_undo_takes_back_and_columns_that_others_read(
    tmp_path, monkeypatch, capfd
):
    in_this_process(monkeypatch)
    photos, rows, table = tmp_path / "photos", tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    photos.mkdir()
    shutil.copy(DATA / "sumac.png", photos)
    (photos / "broken.png").write_text("no picture")
    words = [
        "assess",
        str(photos),
        "--xmp",
        "darktable",
        "--pipeline",
        "letters",
        "--cpu",
        "--out",
        str(rows),
    ]
    assert main([*words, "--parquet", str(table)]) == 1  # one picture failed
    assert "1 sidecar written" in capfd.readouterr().err
    place = photos / "sumac.png.xmp"
    written = place.read_bytes()
    assert {file.name for file in photos.iterdir()} == {"sumac.png", "sumac.png.xmp", "broken.png"}
    with pytest.raises(RatingsError, match="expected pictures with stars"):
        read_ratings(photos)

    place.unlink()
    assert main([*words, "--resume"]) == 1
    assert place.read_bytes() == written
    other = Sidecars("adobe", [])
    other.pick(str(photos / "sumac.png"), "the best")
    capfd.readouterr()
    assert main(["best", str(photos), "--undo"]) == 0
    assert capfd.readouterr().err == "2 sidecars taken back\n"
    assert {file.name for file in photos.iterdir()} == {"sumac.png", "broken.png"}
    assert main(["assess", str(photos), "--xmp", "adobe", "--undo"]) == 0
    assert capfd.readouterr().err == "0 sidecars taken back\n"

    frame = pd.read_parquet(table)
    row = json.loads(next(line for line in rows.read_text().splitlines() if "sumac" in line))
    (read_back,) = frame[frame["error"].isna()].to_dict("records")
    assert (read_back["q"], read_back["low"]) == (row["q"], row["interval"]["low"])
    assert frame["q"].dtype == frame["noise"].dtype == "float64"
    assert frame["q"].isna().sum() == 1
    datasets = pytest.importorskip("datasets")
    loaded = datasets.Dataset.from_parquet(str(table), cache_dir=str(tmp_path / "cache"))
    assert sorted(loaded["q"], key=str) == sorted([row["q"], None], key=str)
    assert main(["assess", str(photos), "--parquet", str(photos / "sumac.png"), "--cpu"]) == 2
    frame.to_parquet(table)  # which somebody wrote now
    assert main(["assess", str(photos), "--parquet", str(table), "--cpu"]) == 2
    assert "did not write" in capfd.readouterr().err

"""Ratings as people keep them: tables, verdicts, pairs, and stars beside or inside pictures."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from agentic_iqa_local.batch.ratings import RatingsError, read_ratings

XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:xmp="http://ns.adobe.com/xap/1.0/" {}</rdf:RDF></x:xmpmeta>"""


@pytest.fixture
def pictures(tmp_path):
    """a.png to d.png, of one grey each."""
    for number, name in enumerate("abcd"):
        Image.new("RGB", (8, 8), (number * 50,) * 3).save(tmp_path / f"{name}.png")
    return tmp_path


def by_name(ratings):
    return dict(zip([file.stem for file in ratings.pictures], ratings.levels, strict=True))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_of_each_kind_says_the_same(pictures, suffix):
    rows = pd.DataFrame({"image": ["a.png", "b.png", "c.png"], "rating": [0, 25, 100]})
    file = pictures / f"ratings.{suffix}"
    if suffix == "csv":
        rows.to_csv(file, index=False)
    elif suffix == "jsonl":
        file.write_text("\n".join(json.dumps(row) for row in rows.to_dict("records")))
    else:
        rows.to_parquet(file)
    ratings = read_ratings(file)
    assert ratings.scale == (0, 100)
    assert by_name(ratings) == pytest.approx({"a": 1, "b": 2, "c": 5})


def test_several_people_are_averaged_and_their_disagreement_is_kept(pictures):
    """Of a: 1, 3, 5, whose variance is 4; of b: 2 and 2, whose variance is 0. √((4 + 0) / 2) = 1.414."""
    file = pictures / "ratings.csv"
    file.write_text("image,rating,person\na.png,1,X\na.png,3,Y\na.png,5,Z\nb.png,2,X\nb.png,2,Y\n")
    ratings = read_ratings(file)
    assert by_name(ratings) == pytest.approx({"a": 3, "b": 2})
    assert (ratings.given, ratings.people) == (5, 3)
    assert ratings.disagreement == pytest.approx(np.sqrt(2))


def test_the_scale_can_be_told_and_turned_around(pictures):
    file = pictures / "ratings.csv"
    file.write_text("image,mos\na.png,1\nb.png,2\n")
    ratings = read_ratings(file, (1, 6), lower_is_better=True)
    assert by_name(ratings) == pytest.approx({"a": 5, "b": 4.2})


def test_half_stars_lie_on_the_scale_from_0_to_5(pictures):
    file = pictures / "ratings.csv"
    file.write_text("image,stars\na.png,0.5\nb.png,5\n")
    assert by_name(read_ratings(file)) == pytest.approx({"a": 1.4, "b": 5})


def test_kept_and_rejected_pictures_are_ratings(pictures):
    file = pictures / "kept.csv"
    file.write_text("image,verdict\na.png,Keep\nb.png,reject\n")
    assert by_name(read_ratings(file)) == pytest.approx({"a": 5, "b": 1})


def test_pairs_put_pictures_in_order(pictures):
    file = pictures / "pairs.csv"
    file.write_text("better,worse\na.png,b.png\nb.png,c.png\na.png,c.png\nc.png,d.png\n")
    ratings = read_ratings(file)
    levels = by_name(ratings)
    assert sorted(levels, key=levels.__getitem__) == ["d", "c", "b", "a"]
    assert ratings.scale is None


def test_stars_are_read_from_sidecars_and_pictures(pictures):
    (pictures / "a.png.xmp").write_text(XMP.format('xmp:Rating="4"/>'))
    (pictures / "b.xmp").write_text(XMP.format("><xmp:Rating>2</xmp:Rating></rdf:Description>"))
    (pictures / "c.png.xmp").write_text(XMP.format('xmp:Rating="0"/>'))  # not rated
    own = XMP.format('xmp:Rating="5"/>').encode()
    Image.new("RGB", (8, 8)).save(pictures / "e.jpg", xmp=own)
    assert by_name(read_ratings(pictures)) == pytest.approx({"a": 4, "b": 2, "e": 5})


def test_a_rejected_picture_is_below_one_star(pictures):
    (pictures / "a.xmp").write_text(XMP.format('xmp:Rating="-1"/>'))
    (pictures / "b.xmp").write_text(XMP.format('xmp:Rating="1"/>'))
    assert by_name(read_ratings(pictures)) == pytest.approx({"a": 1, "b": 1.8})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ratings.txt", "", "expected a table named"),
        ("none.csv", None, "expected a file that can be read"),
        ("ratings.csv", "", "cannot be read as csv"),
        ("ratings.csv", "image,colour\na.png,3\n", "expected the columns image and rating"),
        ("ratings.csv", "image,rating\na.png,3\nb.png,good\n", "a number in row 2"),
        ("ratings.csv", "image,verdict\na.png,maybe\n", "keep or reject in row 1"),
        ("ratings.csv", "image,rating\nz.png,3\n", "there is no file .*z.png"),
        ("ratings.csv", "image,rating\na.png,-7\n", "give its ends with --scale"),
        ("ratings.csv", "better,worse\na.png,a.png\n", "two pictures in each pair"),
        ("ratings.jsonl", '{"image": [', "cannot be read as jsonl"),
        ("ratings.parquet", "PAR1", "cannot be read as parquet"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(pictures, name, content, said):
    file = pictures / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(RatingsError, match=said):
        read_ratings(file)


def test_a_folder_without_stars_is_told(pictures):
    with pytest.raises(RatingsError, match="expected pictures with stars"):
        read_ratings(pictures)

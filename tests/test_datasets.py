"""Data sets on miniature folders laid out as the authors ship them. Layouts and rows are those of the authors' own files
or of published loaders of them; 8×8 images stand in for the real ones."""

import json

import pytest
from PIL import Image

from agentic_iqa_local.studies.datasets import DATASETS, DatasetError, load_dataset


@pytest.fixture
def root(tmp_path):
    return tmp_path / "set"


def draw(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (90, 120, 60)).save(root / name)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# The authors' folders


@pytest.mark.parametrize(
    ("key", "row", "kind"),
    [  # TID2008 has types 01 to 17 at levels 1 to 4 in the same layout
        ("tid2013", "3 i25_24_5.bmp", "sparse_sampling_reconstruction"),
        ("tid2008", "4.2 I25_17_4.bmp", "contrast_change"),
    ],
)
def test_tid_is_told_by_its_types_and_found_whatever_the_case(root, key, row, kind):
    write(root / "mos_with_names.txt", f"{row}\n")
    draw(root, "reference_images/I25.bmp", f"distorted_images/{row.split()[1].swapcase()}")
    data = load_dataset(root)
    (item,) = data.items
    assert (item.mos, item.distortion, item.level) == (float(row.split()[0]), kind, float(row[-5]))
    assert item.reference == root / "reference_images" / "I25.bmp"
    assert (data.info.key, data.missing) == (key, ())


def kadid(root):
    rows = ("I01_01_01.png,I01.png,4.57", "I81_25_05.png,I81.png,1.23", "I81_10_02.png,I81.png,2.5")
    write(root / "dmos.csv", "dist_img,ref_img,dmos\n" + "\n".join(rows) + "\n")
    draw(root, "images/I01.png", "images/I81.png", "images/I01_01_01.png", "images/I81_25_05.png")


def test_kadid_is_higher_better_and_what_is_missing_is_named_and_counted(root):
    kadid(root)
    data = load_dataset(root)
    assert data.info.higher_is_better is True
    assert [(i.mos, i.group, i.distortion, i.level) for i in data.items] == [
        (4.57, "I01", "gaussian_blur", 1), (1.23, "I81", "contrast_change", 5),
    ]  # fmt: skip
    assert data.missing == ("images/I81_10_02.png",)
    draw(root, "images/I81_10_02.png")
    (root / "images" / "I81.png").unlink()
    data = load_dataset(root)
    assert data.missing == ("images/I81.png",)
    assert data.left_out == {"the reference image is missing": 2}
    assert [i.group for i in data.items] == ["I01"]


def test_csiq_from_the_export_of_its_sheet(root):
    draw(root, "src_imgs/1600.png", "src_imgs/woman.png")
    draw(root, "dst_imgs/awgn/1600.AWGN.1.png", "dst_imgs/jpeg2000/woman.jpeg2000.3.png")
    rows = ",image,dst_type,dst_lev,dmos\n,1600,noise,1,0.062\n,,,,\n,woman,jpeg 2000,3,0.41\n"
    write(root / "csiq.DMOS.csv", rows)
    data = load_dataset(root)
    assert [(i.group, i.mos, i.distortion, i.level) for i in data.items] == [
        ("1600", 0.062, "awgn", 1), ("woman", 0.41, "jpeg2000", 3),
    ]  # fmt: skip
    assert (data.info.higher_is_better, data.missing) == (False, ())


# KonIQ's rows are those of the authors' file: 3·.238095 + 4·.695238 + 5·.066667 = 3.828571, 3·.433962 + 4·.566038 = 3.566038
KONIQ = """image_name,c1,c2,c3,c4,c5,c_total,MOS,SD,set
10004473376.jpg,0.0,0.0,0.238095238095,0.695238095238,0.0666666666667,105,77.3836206897,0.527277894494,training
10043785683.jpg,0.0,0.0,0.433962264151,0.566037735849,0.0,106,71.2043269231,0.497974333332,validation
"""
SPAQ = "Annotations/MOS and Image attribute scores.csv"
BIQ = {
    "Train (Images and MOS).csv": "Image Name,MOS,,\nss03 (3753).jpg,0.8471,,\n",
    "Test (Images and MOS).csv": "Image Name,MOS,,\nss01 (151).jpg,0.1895,,\n",
}
PROMPTS = 'name,prompt,mos_quality,mos_align\na.jpg,a man,0.97,0.4\nb.jpg,"blue, anime",3.1,2.5\n'
GRADES = "Image Number,Average Subjective Grade,,g1\n2,3.55,,4\n"


@pytest.mark.parametrize(
    ("key", "files", "expected"),
    [
        ("koniq10k", {"koniq10k_distributions_sets.csv": KONIQ}, {
            "1024x768/10004473376.jpg": (3.828571, "train"), "1024x768/10043785683.jpg": (3.566038, "val"),
        }),
        ("biq2021", BIQ, {
            "Images/ss03 (3753).jpg": (0.8471, "train", "ss03"), "Images/ss01 (151).jpg": (0.1895, "test", "ss01"),
        }),
        ("agiqa3k", {"data.csv": PROMPTS}, {
            "images/a.jpg": (0.97, "a man"), "images/b.jpg": (3.1, "blue, anime"),
        }),
        ("spaq", {SPAQ: "Image name,MOS,Brightness\n00001.jpg,35.2,40\n"}, {"TestImage/00001.jpg": (35.2,)}),
        ("bid", {"DatabaseGrades.csv": GRADES}, {"ImageDatabase/DatabaseImage0002.JPG": (3.55,)}),
    ],
)  # fmt: skip
def test_photographs_have_the_authors_scores_splits_and_subsets(root, key, files, expected):
    draw(root, *expected)
    for name, text in files.items():
        write(root / name, text)
    data = load_dataset(root)
    assert (data.info.key, [str(i.image.relative_to(root)) for i in data.items]) == (
        key,
        list(expected),
    )
    scores, facts = zip(*((mos, facts) for mos, *facts in expected.values()), strict=True)
    assert [i.mos for i in data.items] == pytest.approx(scores, abs=1e-6)
    assert (
        tuple([fact for fact in (i.split, i.subset, i.group) if fact] for i in data.items) == facts
    )


# Manifests


def test_a_manifest_takes_what_is_known_of_the_set_it_is_part_of(root):
    draw(root, "i01.png", "i01_11_1.png")
    rows = "image,reference,mos,distortion,level,seed\ni01_11_1.png,i01.png,5.91,jpeg2000,1,7\n"
    data = load_dataset(write(root / "manifest.csv", rows), part_of="tid2013")
    (item,) = data.items
    assert (item.group, item.distortion, item.level) == ("i01.png", "jpeg2000", 1)
    info = data.info
    assert (info.key, info.kind, info.scale, info.high) == ("tid2013", "FR", "paired comparison", 9)
    assert info.title == "part of TID2013"


def test_a_manifest_in_json_lines(root):
    draw(root, "a/1.png")
    rows = '{"image": "a/1.png", "mos": 12, "split": "test"}\n{"image": "a/2.png", "mos": 40}\n'
    data = load_dataset(write(root / "scores.jsonl", rows))
    assert (data.items[0].split, data.missing) == ("test", ("a/2.png",))
    assert (data.info.higher_is_better, data.info.title) == (True, "scores.jsonl")


def test_the_range_of_a_manifest_makes_levels_of_its_scores(root):
    draw(root, "1.png", "2.png")
    write(root / "my40.csv", "image,mos\n1.png,25\n2.png,100\n")
    info = load_dataset(root / "my40.csv", mos_range=(0, 100)).info
    assert (info.low, info.high, info.higher_is_better) == (0, 100, True)
    assert [info.to_levels(25), info.to_levels(100)] == [
        2,
        5,
    ]  # a quarter of the way from 1 to 5, and its end
    told = r"my40\.csv: expected an absolute category scale .* --mos-range LOW HIGH"
    with pytest.raises(DatasetError, match=told):
        load_dataset(root / "my40.csv").info.to_levels(25)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("1.png,good", {}, "mos: expected a valid number; correct line 2 of manifest.csv"),
        ("1.png,3\n\n1.png,nan", {}, "mos: expected .* correct line 4"),
        (",3", {}, "image: expected a value"),
        ("1.png,3,strong", {}, "level: expected a valid number"),
        ("2.png,3", {}, r"1 that are absent \(the first is 2.png\); paths are relative to"),
        ("1.png,3", {"mos_range": (100, 0)}, "expected the lower end of the scale first"),
        ("1.png,3", {"mos_range": (float("nan"), 5)}, "expected the lower end"),
        ("1.png,3\n1.png,9", {"mos_range": (1, 5)}, "expected 1 to 5 .* got 9; correct line 3"),
        ("1.png,3", {"part_of": "koniq"}, "--part-of to name one of tid2013, .* found 'koniq'"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(root, rows, options, message):
    draw(root, "1.png")
    file = write(root / "manifest.csv", f"image,mos,level\n{rows}\n")
    with pytest.raises(DatasetError, match=message):
        load_dataset(file, **options)


def test_keys_are_told_from_the_manifests_folder_wherever_one_is(root, monkeypatch):
    draw(root, "in/0.png", "../other/1.png")
    elsewhere = str(root.parent / "other" / "1.png")
    write(root / "scores.csv", f"image,mos\nin/0.png,1\n{elsewhere},2\n")
    for place, manifest in ((root, "scores.csv"), (root.parent, root / "scores.csv")):
        monkeypatch.chdir(place)
        assert [item.key for item in load_dataset(manifest).items] == ["in/0.png", elsewhere]


def test_a_range_is_for_manifests_only(root):
    kadid(root)
    with pytest.raises(DatasetError, match=r"expected a manifest .* found KADID-10k"):
        load_dataset(root, mos_range=(1, 5))


# Questions


def test_questions_in_csv_have_their_choices_separated_by_bars(root):
    draw(root, "x.png", "my x.png")
    rows = (
        'p,x.png, "Is it sharp, or not?", Yes | No, No \np,my x.png,Which?,noise|blur|neither,B\n'
    )
    data = load_dataset(write(root / "my.csv", "Task,Image,Question,Choices,Answer\n" + rows))
    assert (data.info.kind, {q.task for q in data.items}) == ("MCQ", {"p"})
    first, second = data.items
    assert (first.question, first.choices, first.answer) == (
        "Is it sharp, or not?",
        ["Yes", "No"],
        1,
    )
    assert (second.image.name, second.answer) == ("my x.png", 1)
    rows = "image,question,choices,answer,mos\nx.png,Is it?,Yes|No,No,3\n"
    assert load_dataset(write(root / "scores.csv", rows)).info.key == "manifest"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('x.png,Is it sharp?,"Yes, No",No', r"separated by \| .* correct line 3"),
        ("x.png,Is it sharp?,Yes|Yes,Yes", "expected answers that differ"),
        ("x.png,Is it sharp?,Yes|No,Maybe", "one of the choices .* 'Maybe'"),
        ("x.png,Is it sharp?,Yes|No,1", "got '1'"),  # the first or the second?
        ("x.png,Is it sharp?,,Yes", "choices: expected a value"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_with_its_line(root, row, message):
    draw(root, "x.png")
    write(root / "q.csv", f"image,question,choices,answer\nx.png,Is it sharp?,Yes|No,No\n{row}\n")
    with pytest.raises(DatasetError, match=message):
        load_dataset(root / "q.csv")


def test_qbench_names_types_and_concerns_and_counts_withheld_answers(root):
    draw(root, "images/1.jpg")
    row = {"img_path": "1.jpg", "question": "Is it sharp?", "type": 0, "concern": 2}
    row["candidates"] = ["No", "Yes"]
    answered = [row | {"correct_ans": "Yes"}, row | {"correct_ans": "Maybe"}, row | {"type": None}]
    write(root / "llvisionqa_dev.json", json.dumps(answered))
    data = load_dataset(root)
    (question,) = data.items
    assert (question.answer, question.choices, question.split) == (1, ["No", "Yes"], "dev")
    assert (question.question_type, question.task) == ("yes-or-no", "in-context distortion")
    wrong, withheld = data.left_out
    assert "'Maybe'" in wrong
    assert withheld == "answer: expected a value, got none"


def test_questions_in_json_take_letters_indices_and_texts(root):
    draw(root, "x.png", "ref.png")
    common = {"image": "x.png", "question": "Which tool?", "choices": ["VSI", "NIQE", "PIQE"]}
    rows = [
        common | {"answer": "C"},
        common | {"answer": 0},
        common | {"answer": "NIQE", "reference": "ref.png"},
        common | {"answer": "NIQE", "image": "y.png"},
    ]
    write(root / "questions.jsonl", "\n".join(map(json.dumps, rows)))
    data = load_dataset(root / "questions.jsonl")
    assert [q.answer for q in data.items] == [2, 0, 1]
    assert (data.items[2].reference, data.missing) == (root / "ref.png", ("y.png",))
    for broken in ("{", "3"):
        write(root / "questions.jsonl", f'{{"question": 1}}\n{broken}\n')
        with pytest.raises(DatasetError, match=r"expected rows in questions\.jsonl"):
            load_dataset(root / "questions.jsonl")


# What is no data set


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"expected the layout of .* found none of them; .* file of a manifest \(my\.csv\)"),
        ("nowhere", "nowhere: expected a file that can be read"),
        ("my.csv", "expected columns image, mos .* found picture, mos"),
        ("1.png", r"expected a file named \.csv, \.jsonl or \.json"),
    ],
)
def test_what_is_no_data_set_is_refused(root, name, message):
    draw(root, "1.png")
    write(root / "my.csv", "picture,mos\n1.png,3\n")
    with pytest.raises(DatasetError, match=message):
        load_dataset(root / name)


def test_only_absolute_scales_map_to_levels():
    absolute = {key: info for key, info in DATASETS.items() if info.scale == "absolute categories"}
    assert set(absolute) == {"kadid10k", "clive", "bid", "koniq10k", "spaq", "agiqa3k", "biq2021"}
    assert all(
        (info.to_levels(info.low), info.to_levels(info.high)) == (1, 5)
        for info in absolute.values()
    )
    with pytest.raises(
        DatasetError, match=r"TID2013: expected an absolute category scale .* got paired comparison"
    ):
        DATASETS["tid2013"].to_levels(4.5)

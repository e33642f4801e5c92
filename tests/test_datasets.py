"""Every data set on a miniature folder laid out as the authors ship it. Layouts and rows are those of the authors' own
files or of published loaders of them; 8×8 images stand in for the real ones."""

import csv
import json
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from agentic_iqa_local.studies.datasets import DATASETS, DatasetError, detect, listed, load_dataset


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


def cells(*names):
    """Names as MATLAB keeps them: a cell array."""
    array = np.empty((len(names), 1), dtype=object)
    array[:, 0] = names
    return array


def export(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def workbook(path, sheets):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        page = book.create_sheet(title)
        for row in rows:
            page.append([None if cell == "" else cell for cell in row])
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)


# The authors' folders


def tid(root, *rows):
    draw(root, "reference_images/I01.BMP", "reference_images/i25.bmp")
    write(root / "mos_with_names.txt", "\n".join(rows) + "\n")


def test_tid2013_matches_names_whatever_their_case(root):
    tid(root, "5.51429 I01_01_1.bmp", "3.10000 i25_24_5.bmp")
    draw(root, "distorted_images/i01_01_1.bmp", "distorted_images/I25_24_5.BMP")
    data = load_dataset(root)
    first, last = data.items
    assert (first.mos, first.group, first.distortion, first.level) == (5.51429, "I01", "additive_gaussian_noise", 1)
    assert (last.distortion, last.level) == ("sparse_sampling_reconstruction", 5)
    assert last.reference == root / "reference_images" / "i25.bmp"
    info = data.info
    assert (info.key, info.higher_is_better, info.scale, data.missing) == ("tid2013", True, "paired comparison", ())


def test_tid2008_is_told_by_its_types_and_levels(root):
    # TID2008 has types 01 to 17 at levels 1 to 4 in the same layout.
    tid(root, "4.2 I01_17_4.bmp")
    draw(root, "distorted_images/I01_17_4.bmp")
    data = load_dataset(root)
    assert (data.info.key, data.items[0].distortion) == ("tid2008", "contrast_change")


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


def test_live_leaves_pristine_copies_out_and_follows_the_order_of_the_arrays(root):
    """227, 233, 174, 174, 174 images of five types, as in the readme; the first of each type is a pristine copy."""
    pristine = np.zeros((1, 982))
    pristine[0, np.cumsum([0, 227, 233, 174, 174])] = 1
    root.mkdir()
    savemat(root / "dmos_realigned.mat", {"dmos_new": np.arange(982.0)[None], "orgs": pristine})
    savemat(root / "refnames_all.mat", {"refnames_all": cells(*["ocean.bmp"] * 982).T})
    draw(root, "refimgs/ocean.bmp", "jp2k/img1.bmp", "jp2k/img227.bmp", "jpeg/img2.bmp", "fastfading/img174.bmp")
    data = load_dataset(root)
    # Zero-based: jp2k 227 is value 226, jpeg 2 is 227 + 1, fastfading 174 is the last, 981.
    assert [(i.mos, i.distortion) for i in data.items] == [(226, "jp2k"), (228, "jpeg"), (981, "fastfading")]
    assert data.left_out == {"a pristine copy of a reference": 5}
    assert len(data.missing) == 982 - 5 - 3
    assert (data.info.higher_is_better, data.items[0].group) == (False, "ocean")
    savemat(root / "refnames_all.mat", {"refnames_all": cells("ocean.bmp")})
    with pytest.raises(DatasetError, match=r"expected 982 values in each array .* found \[982, 982, 1\]"):
        load_dataset(root)
    (root / "refnames_all.mat").write_bytes(b"MATLAB")
    with pytest.raises(DatasetError, match=r"expected refnames_all in refnames_all\.mat"):
        load_dataset(root)


CSIQ_ROWS = (
    ("CSIQ", *[""] * 8),
    ("", "", "", "image", "dst_idx", "dst_type", "dst_lev", "dmos_std", "dmos"),
    ("", "", "", 1600, 1, "noise", 1, 0.061, 0.062),
    ("", "", "", "", "", "", "", "", ""),
    ("", "", "", "woman", 6, "jpeg 2000", 3, 0.05, 0.41),
)


@pytest.mark.parametrize("form", ["workbook", "export of its sheet"])
def test_csiq(root, form):
    draw(root, "src_imgs/1600.png", "src_imgs/woman.png")
    draw(root, "dst_imgs/awgn/1600.AWGN.1.png", "dst_imgs/jpeg2000/woman.jpeg2000.3.png")
    if form == "workbook":
        workbook(root / "csiq.DMOS.xlsx", {"about": [("nothing",)], "all_by_image": CSIQ_ROWS})
    else:
        export(root / "csiq.DMOS.csv", CSIQ_ROWS)
    data = load_dataset(root)
    assert [(i.group, i.mos, i.distortion, i.level) for i in data.items] == [
        ("1600", 0.062, "awgn", 1), ("woman", 0.41, "jpeg2000", 3),
    ]  # fmt: skip
    assert data.items[1].reference.name == "woman.png"
    assert (data.info.higher_is_better, data.missing) == (False, ())


def test_a_workbook_that_cannot_be_read_says_what_to_do(root, monkeypatch):
    workbook(root / "csiq.DMOS.xlsx", {"all_by_image": CSIQ_ROWS})
    draw(root, "dst_imgs/x.png")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openpyxl", None)
        with pytest.raises(DatasetError, match=r"install it, or export the sheet all_by_image to csiq\.DMOS\.csv"):
            load_dataset(root)
    (root / "csiq.DMOS.xlsx").write_bytes(b"PK")
    with pytest.raises(DatasetError, match=r"expected rows in csiq\.DMOS\.xlsx .* correct it"):
        load_dataset(root)


def test_live_in_the_wild_leaves_the_seven_training_images_out(root):
    names = [f"t{i}.bmp" for i in range(1, 8)] + ["3.bmp", "1002.BMP"]
    draw(root, *(f"Images/trainingImages/{name}" for name in names[:7]), "Images/3.bmp", "Images/1002.bmp")
    (root / "Data").mkdir()
    savemat(root / "Data" / "AllImages_release.mat", {"AllImages_release": cells(*names)})
    savemat(root / "Data" / "AllMOS_release.mat", {"AllMOS_release": np.arange(60.0, 69.0)[None]})
    data = load_dataset(root)
    assert [(i.image.name, i.mos) for i in data.items] == [("3.bmp", 67), ("1002.bmp", 68)]
    assert (data.info.key, data.left_out) == ("clive", {"shown to train the observers": 7})


def test_bid_numbers_its_images(root):
    draw(root, "ImageDatabase/DatabaseImage0002.JPG")
    rows = ("Image Number", "Average Subjective Grade", "", "g1"), (2, 3.55, "", 4), (586, 1.2, "", 1)
    export(root / "DatabaseGrades.csv", rows)
    data = load_dataset(root)
    assert [(i.image.name, i.mos) for i in data.items] == [("DatabaseImage0002.JPG", 3.55)]
    assert (data.info.key, data.missing) == ("bid", ("DatabaseImage0586.JPG",))


# Rows of the authors' file with the sets; the other file has counts for shares and the mean of the ratings as MOS.
KONIQ_SETS = """image_name,c1,c2,c3,c4,c5,c_total,MOS,SD,set
10004473376.jpg,0.0,0.0,0.238095238095,0.695238095238,0.0666666666667,105,77.3836206897,0.527277894494,training
10043785683.jpg,0.0,0.0,0.433962264151,0.566037735849,0.0,106,71.2043269231,0.497974333332,validation
"""
KONIQ_SCORES = """"image_name","c1","c2","c3","c4","c5","c_total","MOS","SD","MOS_zscore"
"10004473376.jpg",0,0,25,73,7,105,3.82857142857143,0.527277894494,77.3836206896552
"""


def test_koniq_has_scores_on_five_levels_and_splits_from_one_file_or_both(root):
    draw(root, "512x384/10004473376.jpg", "512x384/10043785683.jpg")
    write(root / "koniq10k_distributions_sets.csv", KONIQ_SETS)
    data = load_dataset(root)
    # 3·.238095 + 4·.695238 + 5·.066667 = 3.828571, the MOS of the other file; 3·.433962 + 4·.566038 = 3.566038
    assert [i.mos for i in data.items] == pytest.approx([3.828571, 3.566038], abs=1e-6)
    assert ([i.split for i in data.items], data.edition) == (["train", "val"], "512x384")
    draw(root, "1024x768/10004473376.jpg")
    write(root / "koniq10k_scores_and_distributions.csv", KONIQ_SCORES)
    data = load_dataset(root)
    (item,) = data.items
    assert (item.mos, item.split, data.edition) == (3.82857142857143, "train", "1024x768")


def test_spaq_from_its_workbook(root):
    draw(root, "TestImage/00001.jpg")
    rows = ("Image name", "MOS", "Brightness"), ("00001.jpg", 35.2, 40)
    workbook(root / "Annotations" / "MOS and Image attribute scores.xlsx", {"Sheet1": rows})
    data = load_dataset(root)
    assert [(data.info.key, item.image.name, item.mos) for item in data.items] == [("spaq", "00001.jpg", 35.2)]


def test_agiqa_groups_by_prompt(root):
    draw(root, "images/AttnGAN_normal_000.jpg", "images/midjourney_normal_060.jpg")
    rows = 'AttnGAN_normal_000.jpg,statue of a man,0.97,0.41\nmidjourney_normal_060.jpg,"triangles, anime",3.1,2.5\n'
    write(root / "data.csv", "name,prompt,mos_quality,mos_align\n" + rows)
    items = load_dataset(root).items
    assert [(i.mos, i.group) for i in items] == [(0.97, "statue of a man"), (3.1, "triangles, anime")]


def test_biq_has_subsets_and_the_official_split(root):
    draw(root, "Images/ss03 (3753).jpg", "Images/ss01 (151).jpg")
    write(root / "Train (Images and MOS).csv", "Image Name,MOS,,\nss03 (3753).jpg,0.8471,,\n")
    write(root / "Test (Images and MOS).csv", "Image Name,MOS,,\nss01 (151).jpg,0.1895,,\n")
    write(root / "Train.csv", "Image Name,MOS\nss03 (3753).jpg,0.83292\n")
    data = load_dataset(root)
    found = [(i.mos, i.subset, i.split) for i in data.items]
    assert found == [(0.8471, "ss03", "train"), (0.1895, "ss01", "test")]
    assert data.edition == "Train (Images and MOS).csv"


def test_pipal_is_on_the_elo_scale(root):
    draw(root, "Train_Ref/A0001.bmp", "Distortion_1/A0001_00_00.bmp", "Distortion_2/A0001_06_26.bmp")
    rows = "A0001_00_00.bmp,1520.0648\nA0001_06_26.bmp,1294.8478\nA0001_01_15.bmp,1316.6042\n"
    write(root / "Train_Label" / "A0001.txt", rows)
    data = load_dataset(root)
    found = [(i.mos, i.group, i.distortion, i.split) for i in data.items]
    assert found == [(1520.0648, "A0001", "00", "train"), (1294.8478, "A0001", "06", "train")]
    assert (data.info.scale, data.missing) == ("elo", ("A0001_01_15.bmp",))


# Manifests


def test_a_manifest_takes_what_is_known_of_the_set_it_is_part_of(root):
    draw(root, "i01.png", "i01_11_1.png")
    rows = "image,reference,mos,distortion,level,seed\ni01_11_1.png,i01.png,5.91,jpeg2000,1,7\n"
    write(root / "manifest.csv", rows)
    data = load_dataset(root, part_of="tid2013")
    (item,) = data.items
    assert (item.group, item.distortion, item.level) == ("i01.png", "jpeg2000", 1)
    info = data.info
    assert (info.key, info.kind, info.scale, info.high) == ("tid2013", "FR", "paired comparison", 9)
    assert info.title == "part of TID2013"


def test_a_manifest_in_json_lines(root):
    draw(root, "a/1.png")
    rows = '{"image": "a/1.png", "mos": 12, "split": "test"}\n{"image": "a/2.png", "mos": 40}\n'
    write(root / "scores.jsonl", rows)
    data = load_dataset(root / "scores.jsonl")
    assert (data.items[0].split, data.missing, data.info.groups) == ("test", ("a/2.png",), None)
    assert (data.info.kind, data.info.higher_is_better, data.info.title) == ("NR", True, "scores.jsonl")


def test_the_range_of_a_manifest_makes_levels_of_its_scores(root):
    draw(root, "1.png", "2.png")
    write(root / "my40.csv", "image,mos\n1.png,25\n2.png,100\n")
    info = load_dataset(root / "my40.csv", mos_range=(0, 100)).info
    assert (info.low, info.high, info.higher_is_better) == (0, 100, True)
    assert [info.to_levels(25), info.to_levels(100)] == [2, 5]  # a quarter of the way from 1 to 5, and its end
    told = r"my40\.csv: expected to be told the ends of its scale; .* --mos-range LOW HIGH"
    with pytest.raises(DatasetError, match=told):
        load_dataset(root / "my40.csv").info.to_levels(25)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            "image,mos\n1.png,good\n",
            {},
            "a number as the score of 1.png .* found 'good'; correct line 2 of manifest.csv",
        ),
        ("\nimage,mos\n1.png,3\n1.png,nan\n", {}, "expected a number as the score of 1.png .* correct line 4"),
        ("image,mos\n,3\n", {}, "expected paths as image and reference .* correct line 2"),
        ("image,mos,level\n1.png,3,strong\n", {}, "expected a number as the level of 1.png .* found 'strong'"),
        ("picture,mos\n1.png,3\n", {}, "expected columns image, mos in manifest.csv .* name the columns so"),
        ("image,mos\n2.png,3\n", {}, r"found 1 that are absent \(the first is 2.png\) .* paths are relative to"),
        ("image,mos\n1.png,3\n", {"mos_range": (100, 0)}, r"--mos-range 100 0: expected two numbers, the lower end"),
        ("image,mos\n1.png,3\n", {"mos_range": (1, 1)}, "the lower end of the scale first"),
        ("image,mos\n1.png,3\n", {"mos_range": (float("nan"), 5)}, "expected two numbers"),
        ("image,mos\n1.png,3\n", {"mos_range": (0, float("inf"))}, "expected two numbers"),
        (
            "image,mos\n1.png,3\n1.png,9\n",
            {"mos_range": (1, 5)},
            r"from 1 to 5 .* for 1\.png .* found 9; correct line 3",
        ),
        ("image,mos\n1.png,3\n", {"mos_range": (1, 5), "part_of": "koniq10k"}, "leave --mos-range out: koniq10k has"),
        ("image,mos\n1.png,3\n", {"part_of": "koniq"}, r"--part-of to name one of tid2013, .* found 'koniq'"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(root, rows, options, message):
    draw(root, "1.png")
    write(root / "manifest.csv", rows)
    with pytest.raises(DatasetError, match=message):
        load_dataset(root, **options)


def test_a_range_or_a_whole_are_for_manifests_only(root):
    kadid(root)
    for option, value in (("mos_range", (1, 5)), ("part_of", "kadid10k")):
        expected = f"expected a manifest for --{option.replace('_', '-')}, found KADID-10k"
        with pytest.raises(DatasetError, match=expected):
            load_dataset(root, **{option: value})


# Questions


def test_questions_in_csv_have_their_choices_separated_by_bars(root):
    draw(root, "x.png", "my x.png")
    rows = 'x.png, "Is it sharp, or not?", Yes | No, No \nmy x.png,Which?,noise|blur|neither,B\n'
    write(root / "my.csv", "Image,Question,Choices,Answer\n" + rows)
    tasks = "".join(f"planner,{row}\n" for row in rows.splitlines())
    write(root / "questions.csv", "task,image,question,choices,answer\n" + tasks)
    for data in (load_dataset(root / "my.csv"), load_dataset(root), load_dataset(root, "agenticiqa_eval")):
        assert data.info.kind == "MCQ"
        assert [(q.image.name, q.question, q.choices, q.answer) for q in data.questions[:2]] == [
            ("x.png", "Is it sharp, or not?", ("Yes", "No"), 1), ("my x.png", "Which?", ("noise", "blur", "neither"), 1),
        ]  # fmt: skip
    assert {q.task for q in load_dataset(root / "questions.csv").questions} == {"planner"}
    write(root / "scores.csv", "image,question,choices,answer,mos\nx.png,Is it?,Yes|No,No,3\n")
    assert detect(root / "scores.csv") == "manifest"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            'x.png,Is it sharp?,"Yes, No",No',
            r"separated by \| .* expected 2 to 10 answers, got 1; correct line 3 of q.csv",
        ),
        ("x.png,Is it sharp?,Yes|Yes,Yes", "expected answers that differ"),
        (
            "x.png,Is it sharp?,Yes|No,Maybe",
            "as answer one of the choices or its letter .* found 'Maybe'; correct line 3",
        ),
        ("x.png,Is it sharp?,Yes|No,1", "found '1'"),  # the first or the second?
        ("x.png,Is it sharp?,,Yes", "expected image, question and choices in every row .* complete line 3 of q.csv"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_with_its_line(root, row, message):
    draw(root, "x.png")
    write(root / "q.csv", f"image,question,choices,answer\nx.png,Is it sharp?,Yes|No,No\n{row}\n")
    with pytest.raises(DatasetError, match=message):
        load_dataset(root / "q.csv")


def test_qbench_names_types_and_concerns_and_counts_withheld_answers(root):
    draw(root, "images/1.jpg", "images/2.jpg")
    row = {"img_path": "1.jpg", "question": "Is it sharp?", "candidates": ["No", "Yes"], "type": 0, "concern": 2}
    answered = [row | {"correct_ans": "Yes"}, row | {"correct_ans": "Maybe"}]
    write(root / "llvisionqa_dev.json", json.dumps(answered))
    write(root / "llvisionqa_test.json", json.dumps([row | {"img_path": "2.jpg"}]))
    data = load_dataset(root)
    (question,) = data.questions
    assert (question.answer, question.choices, question.split) == (1, ("No", "Yes"), "dev")
    assert (question.question_type, question.task) == ("yes-or-no", "in-context distortion")
    assert data.left_out == {"the answer is none of the choices": 1, "no answer is published": 1}


def test_questions_in_json_take_letters_indices_and_texts(root):
    draw(root, "x.png", "ref.png")
    common = {"image": "x.png", "question": "Which tool?", "task": "executor_tool"}
    rows = [
        common | {"choices": ["VSI", "NIQE", "PIQE"], "answer": "C"},
        common | {"choices": ["VSI", "NIQE", "PIQE"], "answer": 0},
        common | {"options": {"A": "VSI", "B": "NIQE"}, "answer": "B", "reference": "ref.png"},
        common | {"choices": ["VSI", "NIQE"], "answer": "NIQE", "image": "y.png"},
    ]
    write(root / "questions.jsonl", "\n".join(map(json.dumps, rows)))
    data = load_dataset(root)
    assert [q.answer for q in data.questions] == [2, 0, 1]
    assert [q.reference is not None for q in data.questions] == [False, False, True]
    assert ({q.task for q in data.questions}, data.missing) == ({"executor_tool"}, ("y.png",))
    for broken in ("{", "3"):
        write(root / "questions.jsonl", f'{{"question": 1}}\n{broken}\n')
        with pytest.raises(DatasetError, match=r"expected rows in questions\.jsonl"):
            load_dataset(root)


# What is no data set


def test_a_folder_of_no_known_layout_is_refused(root):
    draw(root, "1.png")
    assert detect(root) is None
    write(root / "my 40.txt", "image,mos\n1.png,3\n")
    for path, key, message in (
        (root, None, "found none of them; name the set or its own folder"),
        (root, "kadid10k", r"expected dmos\.csv \(KADID-10k\), found 1\.png,"),
        (root, "kadid", "found 'kadid'"),
        (root / "nowhere", None, "nowhere: expected a file that can be read"),
        (root / "1.png", None, r"expected a manifest named \.csv, \.jsonl or \.json"),
    ):
        with pytest.raises(DatasetError, match=message):
            load_dataset(path, key)
    (root / "my 40.txt").rename(root / "my 40.csv")
    with pytest.raises(DatasetError, match=r'for a manifest give the file itself \(here are "my 40\.csv"\)'):
        load_dataset(root)


def test_only_absolute_scales_map_to_levels():
    absolute = {key: info for key, info in DATASETS.items() if info.scale == "absolute categories"}
    assert set(absolute) == {"kadid10k", "clive", "bid", "koniq10k", "spaq", "agiqa3k", "biq2021"}
    assert all((info.to_levels(info.low), info.to_levels(info.high)) == (1, 5) for info in absolute.values())
    with pytest.raises(DatasetError, match=r"tid2013: expected an absolute category scale .* got paired comparison"):
        DATASETS["tid2013"].to_levels(4.5)


def test_names_with_commas_or_blanks_are_quoted_in_lists():
    assert listed(["logits", "letters, image alone", "tool mean"]) == 'logits, "letters, image alone", "tool mean"'

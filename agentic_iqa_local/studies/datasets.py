"""IQA data sets read from the folders as their authors ship them, and plain manifests.

`load_dataset(folder)` knows the layout, the direction and range of the scores, what groups the images, the
official split and the licence. A file that the authors' score file names and that is absent is listed in
`Dataset.missing`, and rows that are left out on purpose are counted in `Dataset.left_out`: a set never
shrinks silently. Nothing here downloads.
"""

import csv
import io
import json
import math
import os
import re
import string
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, open_regular, read_bytes
from agentic_iqa_local.levels import LEVEL_WORDS
from agentic_iqa_local.request import check_choices
from agentic_iqa_local.text import one_line

Scale = Literal["absolute categories", "paired comparison", "difference", "elo"]
MOST = 1e9  # the largest score or level, either side of 0; beyond it figures lose their digits
LARGEST = 2**28  # bytes of a score file: millions of rows
LONGEST_QUOTE = 300  # characters of a row in a message
OWN = ("manifest", "questions")  # keys of what a user writes, where the others are as their authors ship them


class DatasetError(UserError, ValueError):
    """A folder that cannot be read as a data set; the message is one sentence for the user."""


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set.

    `key` is stable. `low` and `high` are the ends of the scale, or the range found where the scale has none
    (difference, elo); None when unknown. `scale` is None when unknown and for multiple choice. `groups` says
    what `Item.group` is, None when the images are independent. `licence` gives the authors' terms in short.
    `seen_as` holds further names under which metrics state that they were trained on the set, in lower-case
    letters and digits only.
    """

    key: str
    title: str
    kind: Literal["FR", "NR", "MCQ"]
    higher_is_better: bool | None
    low: float | None
    high: float | None
    scale: Scale | None
    groups: str | None
    licence: str
    url: str
    seen_as: tuple[str, ...] = ()

    def to_levels(self, mos: float) -> float:
        """`mos` on the 1..5 scale, linearly and with 5 best. Raises DatasetError unless the scale is of
        absolute categories."""
        if self.scale != "absolute categories" or self.low is None or self.high is None:
            if self.key == "manifest":
                raise DatasetError(
                    f"{self.title}: expected to be told the ends of its scale; repeat the run's command with"
                    " --mos-range LOW HIGH, such as --mos-range 1 5: stored rows are kept."
                )
            raise DatasetError(
                f"{self.key}: expected an absolute category scale with both ends known, got"
                f" {self.scale or 'an unknown scale'}; use what needs ranks only, such as fit --objective"
                " srcc."
            )
        worst, best = (self.low, self.high) if self.higher_is_better else (self.high, self.low)
        lowest, highest = min(LEVEL_WORDS), max(LEVEL_WORDS)
        return lowest + (highest - lowest) * (mos - worst) / (best - worst)


@dataclass(frozen=True)
class Item:
    """One scored image. `mos` is as the authors give it; `group` is the reference scene or the prompt;
    `level` counts the authors' strengths of a distortion from 1; `split` is the official train, val or test;
    `subset` is set where the part of the data set predicts the score, so that figures are to be given within
    it."""

    image: Path
    mos: float
    reference: Path | None = None
    group: str | None = None
    distortion: str | None = None
    level: float | None = None
    split: str | None = None
    subset: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One multiple-choice question. `answer` is the index of the right one of `choices`."""

    image: Path
    question: str
    choices: tuple[str, ...]
    answer: int
    reference: Path | None = None
    task: str | None = None
    question_type: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set as found on disk: `items`, or `questions` for multiple choice.

    `missing` names the files that the authors' score file lists and that are absent, relative to `root`;
    `left_out` counts by reason the rows that are not used; `edition` says which of several published versions
    was read.
    """

    info: DatasetInfo
    root: Path
    items: tuple[Item, ...]
    questions: tuple[Question, ...]
    missing: tuple[str, ...]
    left_out: dict[str, int]
    edition: str | None = None


class _Reader:
    """A folder on its way to a Dataset. Paths are relative to it, with forward slashes, and match whatever
    their case."""

    def __init__(self, info: DatasetInfo, path: Path):
        self.info = info
        self.path = path
        self.root = (
            path if path.is_dir() else path.parent
        ).resolve()  # the same wherever the command is run from
        self.edition: str | None = None
        self.items: list[Item] = []
        self.questions: list[Question] = []
        self.missing: dict[str, None] = {}  # in the order of the score file, each name once
        self.left_out: Counter[str] = Counter()
        self._listings: dict[Path, dict[str, Path]] = {}

    def error(self, expected: str, found: str, remedy: str) -> DatasetError:
        return DatasetError(
            f"{self.path}: expected {expected:.{LONGEST_QUOTE}} ({self.info.title}), found"
            f" {found:.{LONGEST_QUOTE}}; {remedy}."
        )

    def find(self, name: str) -> Path | None:
        """The file or folder `name`, or None."""
        if os.path.exists(exact := self.root / name):  # Path.exists raises for a name that is too long
            return exact
        path = self.root
        for part in PurePosixPath(name).parts:
            if path not in self._listings:
                self._listings[path] = {p.name.lower(): p for p in path.iterdir()} if path.is_dir() else {}
            if (path := self._listings[path].get(part.lower())) is None:
                return None
        return path

    def need(self, *names: str) -> Path:
        """The first of `names` that exists. Raises DatasetError when none does."""
        for name in names:
            if path := self.find(name):
                return path
        there = sorted(p.name for p in self.root.iterdir())
        found = (
            listed(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "") or "an empty folder"
        )
        raise self.error(
            " or ".join(names), found, "name the folder into which the authors' archives were unpacked"
        )

    def present(self, *names: str) -> tuple[str, ...]:
        """Those of `names` that exist. Raises DatasetError when none does."""
        self.need(*names)
        return tuple(name for name in names if self.find(name))

    def anywhere(self) -> tuple[str, ...]:
        """The folder itself and its direct subfolders, for sets whose authors give no place for the
        images."""
        return (".", *sorted(p.name for p in self.root.iterdir() if p.is_dir()))

    def lines(self, path: Path, *columns: str, sheet: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Line numbers and rows of a CSV file or a workbook by lower-case column name, "" where a row ends
        early. The header is the first row that has all `columns`; rows that are blank in all of them are
        skipped."""
        grid = iter(_csv(path) if path.suffix.lower() == ".csv" else _workbook(path, sheet))
        for _, cells in grid:
            if set(columns) <= set(header := _header(cells)):
                rows = (
                    (line, dict.fromkeys(header, "") | dict(zip(header, cells, strict=False)))
                    for line, cells in grid
                )
                return [(line, row) for line, row in rows if _any(row, *columns) is not None]
        own = self.info.key in OWN
        raise self.error(
            f"columns {', '.join(columns)} in {path.name}",
            "no such header",
            "name the columns so in its first line" if own else "restore the authors' file",
        )

    def table(self, path: Path, *columns: str, sheet: str | None = None) -> list[dict[str, Any]]:
        """The rows of `lines`."""
        return [row for _, row in self.lines(path, *columns, sheet=sheet)]

    def workbook(self, stem: str, *columns: str, sheet: str | None = None) -> list[dict[str, Any]]:
        """Rows of `stem`.csv, an export with the same columns, or else of `stem`.xlsx."""
        names = f"{stem}.csv", f"{stem}.xlsx"
        if self.find(f"{stem}.xls") and not any(map(self.find, names)):
            raise self.error(
                " or ".join(names), f"{stem}.xls", "save the workbook in one of these formats beside it"
            )
        return self.table(self.need(*names), *columns, sheet=sheet)

    def matrix(self, name: str, variable: str) -> np.ndarray:
        """A variable of a .mat file, flattened; cells of text as text."""
        from scipy.io import loadmat

        content = _content(self.need(name))
        try:
            values = loadmat(io.BytesIO(content), variable_names=[variable])[variable].ravel()
            return np.array([str(np.ravel(cell)[0]) for cell in values]) if values.dtype == object else values
        except Exception as error:  # scipy raises nearly any type on a damaged file
            raise self.error(f"{variable} in {name}", repr(error), "restore the authors' file") from error

    def check_lengths(self, *arrays: np.ndarray, length: int | None = None) -> None:
        """Raises DatasetError unless the arrays are equally long, and of `length` where given."""
        found = [len(array) for array in arrays]
        if set(found) != {length or found[0]}:
            raise self.error(
                f"{length or found[0]} values in each array",
                ", ".join(map(str, found)),
                "restore the .mat files",
            )

    def parts(self, pattern: str, name: str) -> tuple[str, ...]:
        """The groups of `pattern` in a file name that must match it."""
        if match := re.fullmatch(pattern, str(name), re.IGNORECASE):
            return match.groups()
        raise self.error(f"file names like {pattern}", repr(name), "restore the authors' score file")

    def locate(
        self, image: str, reference: str | None, within: Iterable[str]
    ) -> tuple[Path, Path | None] | None:
        """Image, sought in the folders `within`, and reference; None, and a note of it, when either is
        absent."""
        names = [str(PurePosixPath(folder, image)) for folder in within]
        path = next((found for found in map(self.find, names) if found and found.is_file()), None)
        reference_path = self.find(reference) if reference else None
        if path is None:
            self.missing[names[0] if len(names) == 1 else image] = None
        if reference and reference_path is None:
            self.missing[reference] = None
            self.left_out["the reference image is missing"] += path is not None
        return (path, reference_path) if path and (reference_path or not reference) else None

    def add(
        self,
        mos: Any,
        image: str,
        reference: str | None = None,
        within: Iterable[str] = (".",),
        *,
        level: float | None = None,
        extra: dict[str, Any] | None = None,
        remedy: str = "restore the authors' score file",
        **facts: Any,
    ) -> None:
        """Adds an item, or notes what is missing. `facts` become texts. Raises DatasetError unless `mos`, and
        `level` where there is one, are numbers of at most `MOST`."""
        for name, value in (("the score", mos), ("the level", 0 if level is None else level)):
            if not abs(number := _number(value)) <= MOST:
                wanted = f"a number of at most {MOST:g}" if math.isfinite(number) else "a number"
                raise self.error(f"{wanted} as {name} of {image}", repr(value), remedy)
        if paths := self.locate(image, reference, within):
            told = {name: _text(value) for name, value in facts.items()}
            self.items.append(Item(paths[0], _number(mos), paths[1], level=level, extra=extra or {}, **told))

    def ask(
        self, row: dict[str, Any], within: Iterable[str], split: str | None = None, where: str = "the file"
    ) -> None:
        """Adds a question, or notes why not. Choices are a list, a mapping from letters, or a text that
        separates them by |; the answer is an index, a letter or the text of a choice. `where` tells the user
        which row it is."""
        image, question = _any(row, "image", "image_path", "img_path"), row.get("question")
        choices, answer = (
            _any(row, "choices", "options", "candidates"),
            _any(row, "answer", "correct_ans", "correct_answer"),
        )
        if isinstance(choices, str):  # of a CSV file, where blanks around a text mean nothing
            choices = [choice.strip() for choice in choices.split("|")]
            answer = answer.strip() if isinstance(answer, str) else answer
        reference = _any(row, "reference", "reference_path")
        if not (
            (image and isinstance(image, str))
            and (question and isinstance(question, str))
            and (choices and isinstance(choices, list | dict))
            and isinstance(reference, str | None)
        ):
            known = listed(name for name, value in row.items() if value not in (None, ""))
            raise self.error(
                "image, question and choices in every row", known or "an empty row", f"complete {where}"
            )
        facts = (
            _any(row, "task", "task_type"),
            _any(row, "question_type", "type"),
            split or _any(row, "split"),
        )
        if any(isinstance(fact, list | dict) for fact in facts):
            raise self.error("texts as task, question_type and split", repr(facts), f"correct {where}")
        letters = list(choices) if isinstance(choices, dict) else list(string.ascii_uppercase[: len(choices)])
        texts = [str(choice) for choice in (choices.values() if isinstance(choices, dict) else choices)]
        if answer is None:
            self.left_out["no answer is published"] += 1
            return
        index = next(
            (names.index(answer) for names in (texts, letters, range(len(texts))) if answer in names), None
        )
        if self.info.key in OWN:
            try:
                check_choices(texts)
            except ValueError as error:
                expected, _, found = str(error).partition(": expected ")[2].partition(", got ")
                raise self.error(
                    f"{expected}, separated by | in a CSV file", found, f"correct {where}"
                ) from error
            if index is None:
                raise self.error(
                    "as answer one of the choices or its letter", repr(answer), f"correct {where}"
                )
        if index is None:
            self.left_out["the answer is none of the choices"] += 1
        elif paths := self.locate(image, reference, within):
            self.questions.append(
                Question(paths[0], question, tuple(texts), index, paths[1], *map(_text, facts))
            )


def quoted(name: str) -> str:
    """The name as it stands in a sentence: in quotes where it holds a comma or a blank."""
    return f'"{one_line(name)}"' if re.search(r"[\s,]", name) else one_line(name)


def listed(names: Iterable[str]) -> str:
    """The names, quoted, with commas between them."""
    return ", ".join(map(quoted, names))


def _any(row: dict[str, Any], *names: str) -> Any:
    """The first value in `row` under one of `names` that is there; None when none is."""
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _number(value: Any) -> float:
    """`value` as a number; NaN when it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _text(value: Any) -> str | None:
    """A fact as text: JSON and workbooks hold numbers too."""
    return None if value is None else str(value)


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, LARGEST)
    except FileError as error:
        raise DatasetError(f"{path}: {error}; restore the file.") from error


def _decoded(path: Path) -> str:
    # A byte that is not UTF-8 can only spoil the name it stands in, which then shows up as missing.
    return _content(path).decode("utf-8-sig", errors="replace")


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _decoded(path).split("\n") if line.strip()]


def _header(cells: Iterable[Any]) -> list[str]:
    return [str(cell or "").strip().lower() for cell in cells]


def _csv(path: Path) -> list[tuple[int, Sequence[Any]]]:
    """(line, cells) of each row; of a row over several lines, the last."""
    reader = csv.reader(io.StringIO(_decoded(path), newline=""), skipinitialspace=True)
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DatasetError(f"{path}: expected CSV, found {error}; correct the file.") from error


def _workbook(path: Path, sheet: str | None) -> list[tuple[int, Sequence[Any]]]:
    """Cells of `sheet`, by default the first. openpyxl is wanted by CSIQ, BID and SPAQ only: the extra
    xlsx."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise DatasetError(
            f"{path}: expected openpyxl to read it with, found it not installed; install it, or export the"
            f" sheet {sheet or 'that comes first'} with its column names to {path.with_suffix('.csv').name}"
            " beside it."
        ) from None
    content = io.BytesIO(_content(path))
    try:
        with zipfile.ZipFile(content) as archive:
            if (size := sum(member.file_size for member in archive.infolist())) > LARGEST:
                raise DatasetError(
                    f"{path}: expected at most {LARGEST} bytes when unpacked, found {size}; restore the file."
                )
        with closing(load_workbook(content, read_only=True, data_only=True)) as book:
            if sheet and sheet not in book.sheetnames:
                names = f"{listed(book.sheetnames):.{LONGEST_QUOTE}}"
                raise DatasetError(
                    f"{path}: expected a sheet {sheet}, found {names}; restore the authors' file."
                )
            return list(
                enumerate((book[sheet] if sheet else book.worksheets[0]).iter_rows(values_only=True), 1)
            )
    except DatasetError:
        raise
    except Exception as error:  # openpyxl raises nearly any type on a damaged file
        raise DatasetError(
            f"{path}: expected a workbook, found {error!r:.{LONGEST_QUOTE}}; restore the file."
        ) from error


def _json(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line, object) of a .jsonl file, or (place, object) of a .json file that is a list of them."""
    line = 0
    try:
        if path.suffix.lower() == ".jsonl":
            rows = []
            for line, text in enumerate(_decoded(path).split("\n"), 1):
                rows += [(line, _parsed(text))] if text.strip() else []
        else:
            rows = list(enumerate(_parsed(_content(path).decode("utf-8-sig")), 1))
    except DatasetError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        found = f"{error!s:.{LONGEST_QUOTE}} in line {line}" if line else f"{error!s:.{LONGEST_QUOTE}}"
        raise DatasetError(f"{path}: expected JSON, found {found}; correct the file.") from error
    for line, row in rows:
        if not isinstance(row, dict):
            raise DatasetError(
                f"{path}: expected a list of objects, found {type(row).__name__} in row {line}; correct the"
                " file."
            )
    return rows


def _parsed(text: str) -> Any:
    """Raises ValueError and RecursionError, also for half a character (a lone surrogate), which no row can
    hold."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _place(path: Path, line: int) -> str:
    return f"{'object' if path.suffix.lower() == '.json' else 'line'} {line} of {path.name}"


QUESTION_COLUMNS = "image", "question", "choices", "answer"
TID_TYPES = (
    "additive_gaussian_noise", "noise_in_color_components", "spatially_correlated_noise", "masked_noise",
    "high_frequency_noise", "impulse_noise", "quantization_noise", "gaussian_blur", "image_denoising", "jpeg", "jpeg2000",
    "jpeg_transmission_errors", "jpeg2000_transmission_errors", "non_eccentricity_pattern_noise",
    "local_blockwise_distortions", "mean_shift", "contrast_change", "color_saturation_change",
    "multiplicative_gaussian_noise", "comfort_noise", "lossy_compression_of_noisy_images", "color_quantization_with_dither",
    "chromatic_aberrations", "sparse_sampling_reconstruction",
)  # fmt: skip
KADID_TYPES = (
    "gaussian_blur", "lens_blur", "motion_blur", "color_diffusion", "color_shift", "color_quantization",
    "color_saturation_1", "color_saturation_2", "jpeg2000", "jpeg", "white_noise", "white_noise_in_color_components",
    "impulse_noise", "multiplicative_noise", "denoise", "brighten", "darken", "mean_shift", "jitter",
    "non_eccentricity_patch", "pixelate", "quantization", "color_block", "high_sharpen", "contrast_change",
)  # fmt: skip
LIVE_FOLDERS = {"jp2k": 227, "jpeg": 233, "wn": 174, "gblur": 174, "fastfading": 174}
CSIQ_FOLDERS = {"noise": "awgn", "jpeg 2000": "jpeg2000"}  # the other types name their folders
CLIVE_TRAINING = 7
KONIQ_EDITIONS = "1024x768", "512x384"
KONIQ_SCORES, KONIQ_SETS = "koniq10k_scores_and_distributions.csv", "koniq10k_distributions_sets.csv"
KONIQ_SPLITS = {"training": "train", "validation": "val", "test": "test"}
SPAQ_SCORES, SPAQ_SCENES = "Annotations/MOS and Image attribute scores", "Annotations/Scene category labels"
SPAQ_ATTRIBUTES = "brightness", "colorfulness", "contrast", "noisiness", "sharpness"
QBENCH_TYPES = "yes-or-no", "what", "how"
QBENCH_CONCERNS = "distortion", "other", "in-context distortion", "in-context other"


def _tid(reader: _Reader) -> None:
    """mos_with_names.txt, distorted_images/iXX_YY_Z.bmp (scene, type, level), reference_images/. The case of
    names varies."""
    for line in _lines(reader.need("mos_with_names.txt")):
        mos, _, name = line.partition(" ")
        scene, kind, level = reader.parts(r"(i\d\d)_(0[1-9]|1\d|2[0-4])_([1-5])\.bmp", name.strip())
        reader.add(
            mos, f"distorted_images/{name.strip()}", f"reference_images/{scene.upper()}.BMP",
            group=scene.upper(), distortion=TID_TYPES[int(kind) - 1], level=int(level),
        )  # fmt: skip


def _kadid(reader: _Reader) -> None:
    """dmos.csv, images/IXX_YY_ZZ.png and the references in the same folder. In spite of its name the column
    dmos is higher for better images; its categories are of degradation, from 5 (imperceptible) to 1 (very
    annoying)."""
    for row in reader.table(reader.need("dmos.csv"), "dist_img", "ref_img", "dmos"):
        kind, level = reader.parts(r"I\d+_(0[1-9]|1\d|2[0-5])_0?([1-5])\.png", row["dist_img"])
        reader.add(
            row["dmos"], f"images/{row['dist_img']}", f"images/{row['ref_img']}",
            group=PurePosixPath(row["ref_img"]).stem, distortion=KADID_TYPES[int(kind) - 1], level=int(level),
        )  # fmt: skip


def _live(reader: _Reader) -> None:
    """dmos_realigned.mat (dmos_new, orgs), refnames_all.mat, refimgs/ and imgN.bmp in a folder for each type.
    The arrays hold 982 values, folder after folder; orgs marks pristine copies, which are left out. No
    levels: the strengths are continuous.
    """
    scores = reader.matrix("dmos_realigned.mat", "dmos_new")
    pristine = reader.matrix("dmos_realigned.mat", "orgs")
    references = reader.matrix("refnames_all.mat", "refnames_all")
    names = [
        (folder, f"{folder}/img{i + 1}.bmp") for folder, count in LIVE_FOLDERS.items() for i in range(count)
    ]
    reader.check_lengths(scores, pristine, references, length=len(names))
    for (folder, image), mos, copy, reference in zip(names, scores, pristine, references, strict=True):
        if copy:
            reader.left_out["a pristine copy of a reference"] += 1
        else:
            group = PurePosixPath(reference).stem
            reader.add(mos, image, f"refimgs/{reference}", group=group, distortion=folder)


def _csiq(reader: _Reader) -> None:
    """csiq.DMOS.xlsx (sheet all_by_image, some rows above its header), src_imgs/,
    dst_imgs/TYPE/IMAGE.TYPE.LEVEL.png."""
    columns = "image", "dst_type", "dst_lev", "dmos"
    for row in reader.workbook("csiq.DMOS", *columns, sheet="all_by_image"):
        # A workbook gives the scene 1600 as a number.
        image = (
            f"{_number(row['image']):g}"
            if isinstance(row["image"], int | float)
            else str(row["image"]).strip()
        )
        kind, level = str(row["dst_type"]).strip().lower(), _number(row["dst_lev"])
        kind = CSIQ_FOLDERS.get(kind, kind)
        reader.add(
            row["dmos"], f"dst_imgs/{kind}/{image}.{kind}.{level:g}.png", f"src_imgs/{image}.png",
            group=image, distortion=kind, level=level, extra={"std": _number(row.get("dmos_std"))},
        )  # fmt: skip


def _clive(reader: _Reader) -> None:
    """Data/AllImages_release.mat, AllMOS_release.mat, AllStdDev_release.mat and Images/. The first seven of
    1,169 trained the observers (Images/trainingImages) and are left out."""
    names, scores, deviations = (
        reader.matrix(f"Data/{name}_release.mat", f"{name}_release")
        for name in ("AllImages", "AllMOS", "AllStdDev")
    )
    reader.check_lengths(names, scores, deviations)
    reader.left_out["shown to train the observers"] += CLIVE_TRAINING
    for name, mos, std in list(zip(names, scores, deviations, strict=True))[CLIVE_TRAINING:]:
        reader.add(mos, f"Images/{name}", extra={"std": float(std)})


def _bid(reader: _Reader) -> None:
    """DatabaseGrades.xls and DatabaseImageNNNN.JPG. The authors' page gives the images one by one: whether
    they lie beside the workbook or in a subfolder is not settled, so both are searched."""
    within = reader.anywhere()
    for row in reader.workbook("DatabaseGrades", "image number", "average subjective grade"):
        number = _number(row["image number"])
        if number.is_integer():
            reader.add(row["average subjective grade"], f"DatabaseImage{int(number):04d}.JPG", within=within)
        else:
            raise reader.error("whole image numbers", repr(row["image number"]), "restore the authors' file")


def _koniq(reader: _Reader, edition: str | None = None) -> None:
    """koniq10k_scores_and_distributions.csv or koniq10k_distributions_sets.csv, and 1024x768/ or 512x384/.

    `edition` names the image folder, by default the larger one that is there; metrics give other values on
    the smaller one. `mos` is on 1..5. The file with the sets has only the 1..100 scores, so there it is the
    mean of the shares c1..c5.
    """
    reader.edition = reader.present(*([edition] if edition else KONIQ_EDITIONS))[0]
    shares = "c1", "c2", "c3", "c4", "c5"
    scores, sets = reader.find(KONIQ_SCORES), reader.find(KONIQ_SETS)
    by_name = (
        {row["image_name"]: row for row in reader.table(sets, "image_name", "mos", "set", *shares)}
        if sets
        else {}
    )
    if scores or not sets:
        rows = reader.table(
            scores or reader.need(KONIQ_SCORES, KONIQ_SETS), "image_name", "mos", "mos_zscore"
        )
    else:
        means = {
            name: sum(n * _number(row[c]) for n, c in enumerate(shares, 1)) for name, row in by_name.items()
        }
        rows = [row | {"mos": means[name], "mos_zscore": row["mos"]} for name, row in by_name.items()]
    for row in rows:
        split = KONIQ_SPLITS.get(by_name.get(row["image_name"], {}).get("set", ""))
        extra = {"std": _number(row.get("sd")), "mos_zscore": _number(row["mos_zscore"])}
        reader.add(row["mos"], f"{reader.edition}/{row['image_name']}", split=split, extra=extra)


def _spaq(reader: _Reader) -> None:
    """Annotations/MOS and Image attribute scores.xlsx, Annotations/Scene category labels.xlsx and
    TestImage/."""
    scenes = {}
    if reader.find(f"{SPAQ_SCENES}.csv") or reader.find(f"{SPAQ_SCENES}.xlsx"):
        for row in reader.workbook(SPAQ_SCENES, "image name"):
            scenes[row.pop("image name")] = [name for name, value in row.items() if _number(value) > 0]
    for row in reader.workbook(SPAQ_SCORES, "image name", "mos"):
        extra: dict[str, Any] = {name: _number(row.get(name)) for name in SPAQ_ATTRIBUTES}
        if row["image name"] in scenes:
            extra["scenes"] = scenes[row["image name"]]
        reader.add(row["mos"], f"TestImage/{row['image name']}", extra=extra)


def _agiqa(reader: _Reader) -> None:
    """data.csv (name, prompt, mos_quality, mos_align, ...) and the images; `mos` is the quality. The
    repository holds the table only and the layout of the image archive could not be checked: they are sought
    here and one folder down.
    """
    within = reader.anywhere()
    for row in reader.table(reader.need("data.csv"), "name", "prompt", "mos_quality", "mos_align"):
        extra = {"std": _number(row.get("std_quality")), "mos_align": _number(row["mos_align"])}
        extra["generator"] = row["name"].partition("_")[0]
        reader.add(
            row["mos_quality"], row["name"], within=within, group=row["prompt"].strip() or None, extra=extra
        )


def _biq(reader: _Reader) -> None:
    """Train (Images and MOS).csv and Test (Images and MOS).csv, or Train.csv and Test.csv, and Images/.

    The first pair runs over 0..1; the second gives slightly other values, a few below 0, and `edition` says
    which was read. The prefix of a name is the subset: by the paper's order ss01 is taken without this use in
    mind, ss02 spoilt on purpose and ss03 from a photo site.
    """
    reader.edition = reader.present("Train (Images and MOS).csv", "Train.csv")[0]
    for split in ("train", "test"):
        name = reader.edition.replace("Train", split.capitalize())
        for row in reader.table(reader.need(name), "image name", "mos"):
            (subset,) = reader.parts(r"(ss\d\d) .+", row["image name"])
            reader.add(row["mos"], f"Images/{row['image name']}", split=split, subset=subset)


def _pipal(reader: _Reader) -> None:
    """Train_Label/*.txt (name,elo), Train_Ref/ and the distorted images AXXXX_TT_NN.bmp in Train_Dist/ or
    Distortion_1..4/.

    `distortion` is the two-digit type of the name; the last number counts images, not strengths. Val_Label/
    is read in the same way where it is there; that the authors ship validation scores in this form could not
    be checked.
    """
    for split in ("train", "val"):
        part = split.capitalize()
        if split == "val" and not reader.find("Val_Label"):
            continue
        shared = ("Dist_Imgs", *(f"Distortion_{n}" for n in range(1, 5)))
        within = reader.present(f"{part}_Dist", f"{part}_Distort", *shared)
        for path in sorted(reader.need(f"{part}_Label").glob("*.txt")):
            for line in _lines(path):
                name, _, elo = line.partition(",")
                scene, kind = reader.parts(r"(A\d+)_(\d\d)_\d+\.bmp", name)
                reader.add(
                    elo, name, f"{part}_Ref/{scene}.bmp", within, group=scene, distortion=kind, split=split
                )


def _manifest(
    reader: _Reader, part_of: str | None = None, mos_range: Sequence[float] | None = None, **told: Any
) -> None:
    """manifest.csv or manifest.jsonl, or a file of any name: `image` and `mos`, if known `reference`,
    `group`, `distortion`, `level`, `split`, `subset`; every other column goes to `extra`. Paths are relative
    to the file's folder or absolute, and may lead anywhere: a manifest is trusted like a command line.
    Without a `group`, images of one reference form one.

    `part_of` is the key of the data set that the manifest lists a part of and gives what is known of that
    set. `mos_range` are the lowest and the highest score of a scale of absolute categories whose higher
    scores are better. `told` are fields of DatasetInfo that are known otherwise. With none of them, higher is
    better and the range is unknown.
    """
    scored = [key for key, (info, _) in DATASETS.items() if info.kind != "MCQ" and key != "manifest"]
    if part_of and part_of not in scored:
        raise reader.error(
            f"the manifest to be part of one of {listed(scored)}",
            repr(part_of),
            "correct the name or leave it out",
        )
    if mos_range and part_of:
        raise reader.error(
            "--mos-range or --part-of", "both", f"leave --mos-range out: the scale is that of {part_of}"
        )
    if mos_range:
        told |= dict(zip(("low", "high"), _range(mos_range), strict=True), scale="absolute categories")
    path = reader.path if reader.path.is_file() else reader.need("manifest.csv", "manifest.jsonl")
    for line, row in reader.lines(path, "image", "mos") if path.suffix.lower() == ".csv" else _json(path):
        remedy = f"correct {_place(path, line)}"
        known = {
            name: _any(row, name)
            for name in ("image", "mos", "reference", "group", "distortion", "split", "subset")
        }
        extra = {name: value for name, value in row.items() if name and name not in known and name != "level"}
        level = _any(row, "level")
        if known["image"] is None or (level is not None and math.isnan(_number(level))):
            raise reader.error("an image and, if any, a number as level in every row", repr(row), remedy)
        paths = known["image"], known["reference"] or ""
        if not all(isinstance(name, str) for name in paths) or any(
            isinstance(value, list | dict) for value in known.values()
        ):
            raise reader.error("paths as image and reference, and no lists, in every row", repr(row), remedy)
        score = _number(known["mos"])
        if mos_range and math.isfinite(score) and not mos_range[0] <= score <= mos_range[1]:
            ends = "{:g} to {:g}".format(*mos_range)
            raise reader.error(
                f"a score from {ends} (--mos-range) for {paths[0]}", f"{score:g}", f"{remedy}, or the range"
            )
        known["group"] = known["group"] or known["reference"]
        reader.add(**known, level=None if level is None else _number(level), extra=extra, remedy=remedy)
    base = DATASETS[part_of][0] if part_of else replace(reader.info, higher_is_better=True)
    derived = {
        "title": f"part of {base.title}" if part_of else path.name,
        "kind": "FR" if any(item.reference for item in reader.items) else "NR",
        "groups": (
            base.groups
            or ("as the manifest gives them" if any(item.group for item in reader.items) else None)
        ),
    }
    reader.info = replace(base, **derived | told)


def _range(ends: Sequence[float]) -> tuple[float, float]:
    """The ends of a scale, the lower one first. Raises DatasetError."""
    low, high = ends
    if not -MOST <= low < high <= MOST:
        raise DatasetError(
            f"--mos-range {low:g} {high:g}: expected two numbers, the lower end of the scale first, of at"
            f" most {MOST:g}, such as --mos-range 1 5; where lower scores are better, turn them around in the"
            " manifest."
        )
    return low, high


def _qbench(reader: _Reader) -> None:
    """llvisionqa_dev.json and llvisionqa_test.json, and the images of images_llvisionqa.tar. The test answers
    are withheld. What the numbers of `type` and `concern` stand for is taken from the order of the authors'
    tables."""
    reader.need("llvisionqa_dev.json", "llvisionqa_test.json")
    within = reader.anywhere()
    for split in ("dev", "test"):
        path = reader.find(f"llvisionqa_{split}.json")
        for _, row in _json(path) if path else []:
            named = {
                "question_type": _at(QBENCH_TYPES, row.get("type")),
                "task": _at(QBENCH_CONCERNS, row.get("concern")),
            }
            reader.ask(row | named, within, split)


def _at(names: Sequence[str], place: Any) -> str | None:
    """The name at `place`, which may be anything."""
    return next((name for number, name in enumerate(names) if number == place), None)


def _questions(reader: _Reader) -> None:
    """Every .jsonl and .json file of the folder and every .csv file with these columns, or one file: `image`,
    `question`, `choices` (in CSV with | between them), `answer`, and if known `reference`, `task`,
    `question_type`, `split`. AgenticIQA-Eval is read so: how its authors lay it out could not be checked. Its
    tasks are planner, executor_distortion, executor_tool and summarizer."""
    found = [reader.path] if reader.path.is_file() else sorted(reader.root.iterdir())
    within = reader.anywhere()
    for path in (p for p in found if p.suffix.lower() in (".jsonl", ".json", ".csv")):
        if path.suffix.lower() != ".csv":
            rows = _json(path)
        elif reader.path.is_file() or _asks(path):
            rows = reader.lines(path, *QUESTION_COLUMNS)
        else:
            continue
        for line, row in rows:
            reader.ask(row, within, where=_place(path, line))


def _asks(path: Path) -> bool:
    """Whether a CSV file has the columns of questions and no human scores."""
    return any(
        set(QUESTION_COLUMNS) <= set(header := _header(cells)) and "mos" not in header
        for _, cells in _csv(path)[:20]
    )


UT_AUSTIN = "free for any purpose with the copyright notice and a citation"
UNSTATED = "none stated; evaluate only"
UNKNOWN = "not established; see the authors' page"
PAIRS, ACR, DIFFERENCE, SCENE = "paired comparison", "absolute categories", "difference", "reference scene"
# fmt: off
_SETS: tuple[tuple[DatasetInfo, Callable[..., None]], ...] = (
    (DatasetInfo("tid2013", "TID2013", "FR", True, 0, 9, PAIRS, SCENE, "research (TID2008's terms; its own not checked)",
                 "https://doi.org/10.1016/j.image.2014.10.009", ("tid", "tid13")), _tid),
    (DatasetInfo("tid2008", "TID2008", "FR", True, 0, 9, PAIRS, SCENE, "education and research only, not to be modified",
                 "http://www.ponomarenko.info/tid2008.htm", ("tid08",)), _tid),
    (DatasetInfo("kadid10k", "KADID-10k", "FR", True, 1, 5, ACR, SCENE, "free to the research community; no formal licence",
                 "https://doi.org/10.1109/QoMEX.2019.8743252", ("kadid",)), _kadid),
    (DatasetInfo("live", "LIVE release 2", "FR", False, 0, 112, DIFFERENCE, SCENE, UT_AUSTIN,
                 "https://doi.org/10.1109/TIP.2006.881959", ("liveiqa", "liver2", "liverelease2")), _live),
    (DatasetInfo("csiq", "CSIQ", "FR", False, 0, 1, DIFFERENCE, SCENE, UNSTATED, "https://doi.org/10.1117/1.3267105"), _csiq),
    (DatasetInfo("clive", "LIVE in the Wild", "NR", True, 0, 100, ACR, None, UT_AUSTIN,
                 "https://doi.org/10.1109/TIP.2015.2500021", ("livec", "livechallenge", "liveitw", "liveinthewild")), _clive),
    (DatasetInfo("bid", "BID", "NR", True, 0, 5, ACR, None, UNKNOWN,
                 "https://doi.org/10.1109/TIP.2010.2053549", ("bid2011",)), _bid),
    (DatasetInfo("koniq10k", "KonIQ-10k", "NR", True, 1, 5, ACR, None, UNKNOWN,
                 "https://arxiv.org/abs/1910.06180", ("koniq",)), _koniq),
    (DatasetInfo("spaq", "SPAQ", "NR", True, 0, 100, ACR, None, "education and research; commercial use by permission only",
                 "https://doi.org/10.1109/CVPR42600.2020.00373"), _spaq),
    (DatasetInfo("agiqa3k", "AGIQA-3K", "NR", True, 0, 5, ACR, "prompt", "MIT",
                 "https://arxiv.org/abs/2306.04717", ("agiqa",)), _agiqa),
    (DatasetInfo("biq2021", "BIQ2021", "NR", True, 0, 1, ACR, None, UNSTATED,
                 "https://doi.org/10.1117/1.JEI.31.5.053010", ("biq",)), _biq),
    (DatasetInfo("pipal", "PIPAL", "FR", True, 900, 1850, "elo", SCENE, UNKNOWN, "https://arxiv.org/abs/2007.12142"), _pipal),
    (DatasetInfo("manifest", "a manifest", "NR", None, None, None, None, None, UNKNOWN, ""), _manifest),
    (DatasetInfo("qbench", "Q-Bench LLVisionQA", "MCQ", None, None, None, None, None, "CC BY-NC-SA 4.0",
                 "https://arxiv.org/abs/2309.14181", ("llvisionqa",)), _qbench),
    (DatasetInfo("agenticiqa_eval", "AgenticIQA-Eval", "MCQ", None, None, None, None, None, UNKNOWN,
                 "https://arxiv.org/abs/2509.26006"), _questions),
    (DatasetInfo("questions", "a file of questions", "MCQ", None, None, None, None, None, UNKNOWN, ""), _questions),
)
# fmt: on
DATASETS = {info.key: (info, loader) for info, loader in _SETS}

# What tells a layout: files and folders, alternatives after "|", with what the file must contain. The first
# match counts. fmt: off
_MARKS: dict[str, tuple[tuple[str, str], ...]] = {
    "tid2013": (
        ("mos_with_names.txt", r"_(1[89]|2\d)_\d\.|_5\."),
        ("distorted_images", ""),
    ),  # TID2008: 17 types, 4 levels
    "tid2008": (("mos_with_names.txt", ""), ("distorted_images", "")),
    "kadid10k": (("dmos.csv", "dist_img"), ("images", "")),
    "live": (("refnames_all.mat", ""), ("refimgs", ""), ("fastfading", "")),
    "csiq": (("csiq.DMOS.csv|csiq.DMOS.xlsx", ""), ("dst_imgs", "")),
    "clive": (("Data/AllMOS_release.mat", ""), ("Images", "")),
    "bid": (("DatabaseGrades.csv|DatabaseGrades.xlsx|DatabaseGrades.xls", ""),),
    "koniq10k": ((f"{KONIQ_SCORES}|{KONIQ_SETS}", ""),),
    "spaq": ((f"{SPAQ_SCORES}.csv|{SPAQ_SCORES}.xlsx", ""), ("TestImage", "")),
    "agiqa3k": (("data.csv", "mos_quality"),),
    "biq2021": (("Train (Images and MOS).csv|Train.csv", r"ss0\d "), ("Images", "")),
    "pipal": (("Train_Label", ""), ("Train_Ref", "")),
    "manifest": (("manifest.csv|manifest.jsonl", ""),),
    "qbench": (("llvisionqa_dev.json|llvisionqa_test.json", ""),),
    "questions": (("questions.csv|questions.jsonl|questions.json", ""),),
}
# fmt: on


def detect(folder: str | Path) -> str | None:
    """The key of the data set in `folder`, or of a single manifest or file of questions, by layout; None when
    unknown."""
    path = Path(folder)
    if path.is_file():
        if path.suffix.lower() not in (".csv", ".jsonl", ".json"):
            return None
        asks = (
            _asks(path)
            if path.suffix.lower() == ".csv"
            else any('"question"' in line for line in _lines(path))
        )
        return "questions" if asks else "manifest"
    reader = _Reader(DATASETS["manifest"][0], path)

    def has(names: str, content: str) -> bool:
        found = next(filter(None, map(reader.find, names.split("|"))), None)
        return found is not None and (not content or any(re.search(content, line) for line in _lines(found)))

    return next((key for key, marks in _MARKS.items() if all(has(*mark) for mark in marks)), None)


def dataset_key(name: str) -> str | None:
    """The key of the data set that a metric's documentation calls `name`, such as "KADID-10k"; None when
    unknown."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next(
        (info.key for info, _ in _SETS if plain in (re.sub(r"\W|_", "", info.key), *info.seen_as)), None
    )


def load_dataset(folder: str | Path, key: str | None = None, **options: Any) -> Dataset:
    """The data set in `folder`, or in a single file; `key` tells which one where the layout does not.

    Options: `edition` for KonIQ-10k ("1024x768", "512x384"); for a manifest `part_of`, `mos_range`, and
    fields of DatasetInfo such as `higher_is_better`, `low`, `high` and `scale`. Raises DatasetError when the
    folder is not laid out as expected, a score is not a number or not within `mos_range`, or no image is
    there.
    """
    path = Path(folder)
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise DatasetError(
            f"{path!s:.{LONGEST_QUOTE}}: expected a data set's folder, found nothing; check the path."
        )
    if not path.is_dir():
        try:
            os.close(open_regular(path))
        except FileError as error:
            raise DatasetError(f"{path}: {error}; name a data set's folder or a manifest.") from error
    known = listed(DATASETS)
    if (key := key or detect(path)) is None:
        if path.is_file():
            raise DatasetError(
                f"{path}: expected a manifest named .csv, .jsonl or .json; rename or convert it."
            )
        files = listed(sorted(p.name for p in path.iterdir() if p.suffix.lower() in (".csv", ".jsonl"))[:3])
        remedy = (
            f"for a manifest give the file itself (here are {files})"
            if files
            else "name the set or its own folder"
        )
        raise DatasetError(f"{path}: expected the layout of one of {known}, found none of them; {remedy}.")
    if key not in DATASETS:
        raise DatasetError(f"{path}: expected one of {known} as the set's name, found {key!r}; correct it.")
    info, loader = DATASETS[key]
    for option in ("part_of", "mos_range"):
        if options.get(option) and key != "manifest":
            name = "--" + option.replace("_", "-")
            raise DatasetError(
                f"{path}: expected a manifest for {name}, found {info.title}; leave {name} out."
            )
    reader = _Reader(info, path)
    loader(reader, **options)
    if not (reader.items or reader.questions):
        first = f" (the first is {next(iter(reader.missing))})" if reader.missing else ""
        found = f"{len(reader.missing)} that are absent{first} and {reader.left_out.total()} left out"
        found += "".join(f" ({reason})" for reason in +reader.left_out)
        if key in OWN:
            raise reader.error("images", found, f"paths are relative to {reader.root}: correct them")
        raise reader.error("images", found, "unpack the authors' image archives beside the score file")
    parts = tuple(reader.items), tuple(reader.questions), tuple(reader.missing), dict(+reader.left_out)
    return Dataset(reader.info, reader.root, *parts, reader.edition)

"""What a study found, in five sentences made of its tables: which mode ranks best, by how much, whether that
is significant, what is leaked and what failed."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentic_iqa_local.studies.study import SIGNIFICANCE, Row, Study
from agentic_iqa_local.text import one_line

ENOUGH = 0.9  # of the images that the fullest mode answered: below, a mode takes no part in the ranking
FEW = 10  # images: fewer say little, however clear they look
NAMED = 3  # names in a sentence, the others are counted
LONGEST = 80  # characters of a reason
OPPOSITE = -0.4  # SRCC: own scores below it seem to call the worse pictures higher
EQUAL = 1e-9  # of SRCC: rounding


@dataclass(frozen=True)
class Sentence:
    """`topic` is what it is about, `verdict` what it says in a word for programs, `text` one plain line, and
    `numbers` hold those that it rests on as the tables have them; nan where one is unknown."""

    topic: str
    verdict: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Contest:
    """`ranked` are the modes that take part, the best SRCC first; `best` those that share the first place;
    `outside` counts the others. `champion` is compared with `rival`; None where there is no such mode."""

    ranked: Sequence[Row]
    best: Sequence[str]
    outside: int
    champion: str | None
    rival: str | None

    def place(self, mode: str) -> int | None:
        """Of a mode that takes part, from 1; equal modes share a place."""
        ranks = {row["mode"]: row["srcc"] for row in self.ranked}
        if mode not in ranks:
            return None
        return 1 + sum(value > ranks[mode] + EQUAL for value in ranks.values())


def summarize(study: Study) -> list[Sentence]:
    """Five sentences: "winner", "difference", "significance", "leaks", "failures"."""
    contest = _contest(study)
    compared = _compared(study, contest)
    winner = _winner(study, contest)
    return [
        replace(winner, text=winner.text + _about_direction(study)),
        _difference(study, contest, compared),
        _significance(study, contest, compared),
        _leaks(study, contest),
        _failures(study),
    ]


def _contest(study: Study) -> _Contest:
    table = study.tables["modes"]
    fullest = max(row["n"] for row in table)
    usable = [row for row in table if row["n"] >= ENOUGH * fullest and not math.isnan(row["srcc"])]
    ranked = sorted(usable, key=lambda row: -row["srcc"])
    best = [row["mode"] for row in ranked if ranked[0]["srcc"] - row["srcc"] <= EQUAL]
    champion = rival = None
    if study.baseline in best:
        champion, rival = study.baseline, next((r["mode"] for r in ranked if r["mode"] not in best), None)
    elif best:
        champion, rival = study.product if study.product in best else best[0], study.baseline
    return _Contest(ranked, best, len(table) - len(ranked), champion, rival)


def _compared(study: Study, contest: _Contest) -> Row | None:
    """The line of the table of differences that is about champion and rival, turned to champion − rival."""
    pair = {contest.champion, contest.rival}
    for row in study.tables["differences"]:
        if {row["first"], row["second"]} == pair:
            return row if row["first"] == contest.champion else turned(row)
    return None


def turned(row: Row) -> Row:
    """A line of the table of differences as second − first."""
    found = row | {"first": row["second"], "second": row["first"], "meng_z": -row["meng_z"]}
    for name in ("srcc_difference", "plcc_difference"):
        found |= {name: -row[name], f"{name}_low": -row[f"{name}_high"], f"{name}_high": -row[f"{name}_low"]}
    return found


def _winner(study: Study, contest: _Contest) -> Sentence:
    if not contest.ranked:
        text = "No mode can be ranked: on these images none has an SRCC, since scores or answers are too few"
        return Sentence("winner", "none", f"{text} or all alike.", {"modes": len(study.tables["modes"])})
    first = contest.ranked[0]
    row = next(row for row in contest.ranked if row["mode"] == contest.champion)
    srcc = f"SRCC {number(row['srcc'])}{between(row['srcc_low'], row['srcc_high'])} on {row['n']} images"
    others = f" ({contest.outside} more answered too few of them, or have none)" if contest.outside else ""
    numbers = {key: row[key] for key in ("n", "srcc", "srcc_low", "srcc_high")}
    numbers |= {"best": list(contest.best), "modes": len(contest.ranked), "outside": contest.outside}
    if len(contest.ranked) == 1:
        text = f"Only {_quoted(first['mode'])} can be ranked, {srcc}{others}"
        return Sentence("winner", "only mode", f"{text}: nothing won.", numbers)
    among = f"of {len(contest.ranked)} modes"
    if len(contest.best) == len(contest.ranked):
        return Sentence("winner", "all tie", f"No mode won: all {among[3:]} have the same {srcc}.", numbers)
    own = ""
    if place := contest.place(study.product):
        numbers["place_of_product"] = place
        value = next(row["srcc"] for row in contest.ranked if row["mode"] == study.product)
        if study.product not in contest.best:
            own = f"; the product's own, {_quoted(study.product)}, has place {place} with {number(value)}"
    if len(contest.best) > 1:
        text = f"{_listed(contest.best)} share the first place {among}, {srcc}{others}{own}."
        return Sentence("winner", "tie", text, numbers)
    return Sentence(
        "winner", "one", f"{_quoted(row['mode'])} ranks best {among}, {srcc}{others}{own}.", numbers
    )


def _about_direction(study: Study) -> str:
    """A remark where the scores of a manifest seem to be DMOS; else nothing."""
    rows = [row for row in study.tables["modes"] if row["mode"] == study.product and row["srcc"] < OPPOSITE]
    if not rows or study.info.key != "manifest":
        return ""
    return (
        f" {_quoted(study.product)} has SRCC {number(rows[0]['srcc'])}: in these scores lower seems to be"
        " better, as in DMOS; multiply them by -1 in the manifest and run it again, since higher is taken to"
        " be better."
    )


def _difference(study: Study, contest: _Contest, row: Row | None) -> Sentence:
    if row is None:
        return Sentence("difference", "unknown", "There is no second mode to tell a difference to.")
    role = "the baseline"
    names = f"{_quoted(row['first'])} minus {_quoted(row['second'])}"
    names += f", {role}" if row["second"] == study.baseline else ", the next best"
    keys = ("srcc_difference", "plcc_difference")
    numbers = {"first": row["first"], "second": row["second"], "n": row["n"]}
    numbers |= {f"{key}{end}": row[f"{key}{end}"] for key in keys for end in ("", "_low", "_high")}
    if math.isnan(row["srcc_difference"]):
        text = f"{names}: no difference is known on the {row['n']} images that both answered."
        return Sentence("difference", "unknown", text, numbers)
    parts = [
        f"{key[:4].upper()} {signed(row[key])}{between(row[f'{key}_low'], row[f'{key}_high'], signed)}"
        for key in keys
        if not math.isnan(row[key])
    ]
    value = row["srcc_difference"]
    verdict = "equal" if abs(value) <= EQUAL else "higher" if value > 0 else "lower"
    text = f"{names}: {' and '.join(parts)} on the {row['n']} images that both answered."
    return Sentence("difference", verdict, text, numbers)


def _significance(study: Study, contest: _Contest, row: Row | None) -> Sentence:
    if row is None:
        return Sentence("significance", "not tested", "Nothing was tested for significance.")
    comparisons, draws = len(study.tables["differences"]), len(study.draws.counts)
    numbers = {"p": row["p"], "p_holm": row["p_holm"], "level": SIGNIFICANCE, "comparisons": comparisons}
    if math.isnan(row["p_holm"]):
        text = "Whether that is significant is not known: the bootstrap gives no p on these images."
        return Sentence("significance", "not tested", text, numbers)
    p = f"p = {number(row['p_holm'])} by the paired bootstrap over {study.draws.over}"
    p += f", after Holm's correction for {comparisons} comparisons" if comparisons > 1 else ""
    p += f"; fewer than {FEW} images say little" if row["n"] < FEW else ""
    if 2 * comparisons / (draws + 1) > SIGNIFICANCE:
        text = f"That is undecided: {draws} draws are too few for {comparisons} comparisons, {p}."
        return Sentence("significance", "too few draws", text, numbers)
    if row["better"] == "undecided":
        return Sentence("significance", "not significant", f"That is not significant: {p}.", numbers)
    better = "" if row["better"] == row["first"] else f", and {_quoted(row['better'])} is the better on them"
    return Sentence("significance", "significant", f"That is significant{better}: {p}.", numbers)


def _leaks(study: Study, contest: _Contest) -> Sentence:
    marks = {mode: study.mark(mode) for mode in study.modes}
    seen, unknown, clean = ([m for m, mark in marks.items() if mark == what] for what in ("seen", "?", ""))
    copies = _copies(study.rows)
    numbers = {"seen": seen, "unknown": unknown, "clean": clean, "copies": copies}
    parts: list[str] = []
    if seen:
        what = sorted({f"{e.what}: {e.how}" for m in seen for e in study.exposures[m] if e.how in _MADE})
        rest = "rest" if len(seen) > 1 else "rests"
        parts.append(f"{_listed(seen)} {rest} on what was made with this data set ({_first(what)})")
    if unknown:
        parts.append(f"what {_listed(unknown)} learned from is not known")
    if (seen or unknown) and contest.best:
        of_clean = next((row for row in contest.ranked if row["mode"] in clean), None)
        best = f"{_quoted(of_clean['mode'])}, SRCC {number(of_clean['srcc'])}" if of_clean else "none"
        parts.append(f"the best of the modes known to be clean is {best}")
    if not parts:
        parts.append(f"no part of any mode is known to be made with {study.info.title}")
    if study.info.key == "manifest":
        parts.append("a manifest counts as a set of its own")
    if copies:
        parts.append(f"{_count(copies, 'image')} repeat the file of another")
    verdict = "leaked" if seen else "unknown" if unknown else "copies" if copies else "none known"
    head = {"leaked": "Leaked", "unknown": "Perhaps leaked", "copies": "Repeated"}.get(
        verdict, "No known leak"
    )
    return Sentence("leaks", verdict, one_line(f"{head}: {'; '.join(parts)}."), numbers)


_MADE = ("trained on it", "map fitted on it")


def _copies(rows: Sequence[Row]) -> int:
    """How many images have the very file of one before them."""
    files = Counter(row["sha256"] for row in rows if row.get("sha256"))
    return sum(files.values()) - len(files)


def _failures(study: Study) -> Sentence:
    rows, table = study.rows, study.tables["failures"]
    expected = max(len(rows), study.run["dataset"].get("images", 0))
    failed = sum(bool(row.get("error")) for row in rows)
    absent = expected - len(rows)
    numbers = {"rows": len(rows), "failed": failed, "without_row": absent, "reasons": len(table)}
    parts = list(_failed(study, failed))
    if absent:
        parts.append(f"{absent} of {expected} images have no row")
    if not parts:
        text = f"Nothing failed: all {len(rows)} images have a row, and none tells of an error."
        return Sentence("failures", "none", text, numbers)
    verdict = "images" if failed else "parts" if table else "absent"
    return Sentence("failures", verdict, one_line(f"Failed: {'; '.join(parts)}."), numbers)


def _failed(study: Study, failed: int) -> Iterator[str]:
    of_images = [row for row in study.tables["failures"] if row["part"] == "image"]
    if failed:
        reason = _short(of_images[0]["error"])
        often = "all" if of_images[0]["n"] == failed else f"{of_images[0]['n']} of them"
        yield f"{failed} of {len(study.rows)} images ({often}: {reason})"
    parts: Counter[str] = Counter()
    for row in study.tables["failures"]:
        if row["part"] != "image":
            parts[row["part"]] += row["n"]
    named = [f"{part} on {_count(count, 'image')}" for part, count in parts.most_common()]
    if named:
        yield _first(named)


# Words


def number(value: float) -> str:
    """Three decimals; a p below 0.001 in powers of ten."""
    text = f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"
    return text.replace("-", "−")


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def between(low: float, high: float, show=number) -> str:
    """A 95 % interval in brackets; says where there is none."""
    if math.isnan(low) or math.isnan(high):
        return " (no interval)"
    return f" (95 % interval {show(low)} to {show(high)})"


def _short(text: str) -> str:
    text = one_line(text).rstrip(".")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _quoted(name: str) -> str:
    return f"“{_short(name)}”"


def _listed(names: Sequence[str]) -> str:
    """In words: the first few by name, the others by number."""
    shown = [_quoted(name) for name in names[:NAMED]]
    if len(names) > NAMED:
        shown.append(f"{len(names) - NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _first(parts: Sequence[str]) -> str:
    more = [f"{len(parts) - NAMED} more"] if len(parts) > NAMED else []
    return ", ".join([*map(_short, parts[:NAMED]), *more])


def _count(number_of: int, what: str) -> str:
    return f"{number_of} {what}{'s' * (number_of != 1)}"

"""What a study found, a line each made of its tables: which mode ranks best, by how much, whether that is
significant, what is leaked and what failed."""

import math
from collections import Counter
from typing import Any, NamedTuple

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.study import SIGNIFICANCE, Row, Study, number

ENOUGH = 0.9  # of the images that the fullest mode answered: below, a mode takes no part in the ranking
NAMED = 3  # names in a line, the others are counted
LONGEST = 80  # characters of a name or reason
OPPOSITE = -0.4  # SRCC: own scores below it seem to call the worse pictures higher
EQUAL = 1e-9  # of SRCC: rounding
MADE = ("trained on it", "map fitted on it")


class Sentence(NamedTuple):
    """`topic` is what it is about, `verdict` what it says in a word for programs, `text` one plain line, and
    `numbers` hold those that it rests on as the tables have them; nan where one is unknown."""

    topic: str
    verdict: str
    text: str
    numbers: dict[str, Any]


def summarize(study: Study) -> list[Sentence]:
    """Five lines: "winner", "difference", "significance", "leaks", "failures"."""
    table = study.tables["modes"]
    fullest = max(row["n"] for row in table)
    usable = [row for row in table if row["n"] >= ENOUGH * fullest and not math.isnan(row["srcc"])]
    ranked = sorted(usable, key=lambda row: -row["srcc"])
    best = [row["mode"] for row in ranked if ranked[0]["srcc"] - row["srcc"] <= EQUAL]
    compared = _compared(study, ranked, best)
    return [
        _winner(study, ranked, best),
        _difference(compared),
        _significance(study, compared),
        _leaks(study, ranked),
        _failures(study),
    ]


def _compared(study: Study, ranked: list[Row], best: list[str]) -> Row | None:
    """The line of the table of differences that has the best mode and the baseline, or the baseline that is
    the best and the next; as best − other."""
    others = [row["mode"] for row in ranked if row["mode"] not in best]
    if not best or (study.baseline in best and not others):
        return None
    first, second = (study.baseline, others[0]) if study.baseline in best else (best[0], study.baseline)
    for row in study.tables["differences"]:
        if {row["first"], row["second"]} == {first, second}:
            return row if row["first"] == first else _turned(row)
    return None


def _turned(row: Row) -> Row:
    """A line of the table of differences as second − first."""
    found = row | {"first": row["second"], "second": row["first"]}
    for name in ("srcc_difference", "plcc_difference"):
        found |= {name: -row[name], f"{name}_low": -row[f"{name}_high"], f"{name}_high": -row[f"{name}_low"]}
    return found


def _winner(study: Study, ranked: list[Row], best: list[str]) -> Sentence:
    numbers: dict[str, Any] = {"best": best, "modes": len(ranked)}
    if not ranked:
        return Sentence("winner", "none", "No mode has an SRCC on these images.", numbers)
    first = ranked[0]
    numbers |= {key: first[key] for key in ("n", "srcc", "srcc_low", "srcc_high")}
    verb = "ranks" if len(best) == 1 else "rank"
    text = f"{_listed(best)} {verb} best of {len(ranked)} modes: {_with_interval(first, 'srcc')} on {first['n']} images"
    if outside := len(study.tables["modes"]) - len(ranked):
        text += f" ({outside} more answered too few of them, or have no SRCC)"
    for place, row in enumerate(ranked, 1):
        if row["mode"] == study.product and study.product not in best:
            numbers["place_of_product"] = place
            text += f"; the product's {_quoted(study.product)} has place {place} with {number(row['srcc'])}"
    text += "."
    text += _about_direction(study)
    return Sentence("winner", "one" if len(best) == 1 else "tie", text, numbers)


def _about_direction(study: Study) -> str:
    """A remark where the scores of a manifest seem to be DMOS; else nothing."""
    own = next(row["srcc"] for row in study.tables["modes"] if row["mode"] == study.product)
    if study.info.key != "manifest" or not own < OPPOSITE:
        return ""
    return (
        f" {_quoted(study.product)} has SRCC {number(own)}: lower scores seem to be better here, as in DMOS;"
        " multiply them by -1 in the manifest and run it again."
    )


def _difference(row: Row | None) -> Sentence:
    if row is None or math.isnan(row["srcc_difference"]):
        return Sentence("difference", "unknown", "No difference between two modes is known.", row or {})
    value = row["srcc_difference"]
    verdict = "equal" if abs(value) <= EQUAL else "higher" if value > 0 else "lower"
    text = (
        f"{_quoted(row['first'])} minus {_quoted(row['second'])}: {_with_interval(row, 'srcc_difference')},"
        f" {_with_interval(row, 'plcc_difference')} on the {row['n']} images that both answered."
    )
    return Sentence("difference", verdict, text, row)


def _significance(study: Study, row: Row | None) -> Sentence:
    if row is None or math.isnan(row["p_holm"]):
        return Sentence("significance", "not tested", "The bootstrap gives no p on these images.", {})
    comparisons, draws = len(study.tables["differences"]), len(study.draws.counts)
    numbers = {"p": row["p"], "p_holm": row["p_holm"], "level": SIGNIFICANCE, "comparisons": comparisons}
    verdict = "not significant" if row["better"] == "undecided" else "significant"
    if 2 * comparisons / (draws + 1) > SIGNIFICANCE:
        verdict = "too few draws"
    text = (
        f"{verdict.capitalize()}: p = {number(row['p_holm'])} by the paired bootstrap over"
        f" {study.draws.over} ({draws} draws), after Holm's correction for {comparisons} comparisons."
    )
    return Sentence("significance", verdict, text, numbers)


def _leaks(study: Study, ranked: list[Row]) -> Sentence:
    marks = {mode: study.mark(mode) for mode in study.modes}
    seen, unknown, clean = ([m for m, mark in marks.items() if mark == what] for what in ("seen", "?", ""))
    files = Counter(row["sha256"] for row in study.rows if row.get("sha256"))
    copies = files.total() - len(files)
    parts = _exposed(study, ranked, seen, unknown, clean)
    parts += [f"{copies} images repeat the file of another"] if copies else []
    verdicts = {"leaked": seen, "unknown": unknown, "copies": copies, "none known": True}
    verdict = next(name for name, holds in verdicts.items() if holds)
    numbers = {"seen": seen, "unknown": unknown, "clean": clean, "copies": copies}
    return Sentence("leaks", verdict, one_line(f"Leaks: {'; '.join(parts)}."), numbers)


def _exposed(
    study: Study, ranked: list[Row], seen: list[str], unknown: list[str], clean: list[str]
) -> list[str]:
    if not (seen or unknown):
        return [f"no part of any mode is known to be made with {study.info.title}"]
    parts = []
    if seen:
        why = sorted({f"{e.what}: {e.how}" for m in seen for e in study.exposures[m] if e.how in MADE})
        parts.append(f"{_listed(seen)} rest on what was made with this data set ({', '.join(why[:NAMED])})")
    if unknown:
        parts.append(f"what {_listed(unknown)} learned from is not known")
    row = next((row for row in ranked if row["mode"] in clean), None)
    best = f"{_quoted(row['mode'])}, SRCC {number(row['srcc'])}" if row else "none"
    return [*parts, f"the best of the modes known to be clean is {best}"]


def _failures(study: Study) -> Sentence:
    rows, table = study.rows, study.tables["failures"]
    expected = max(len(rows), study.run["dataset"].get("images", 0))
    failed = sum(bool(row.get("error")) for row in rows)
    numbers = {
        "rows": len(rows),
        "failed": failed,
        "without_row": expected - len(rows),
        "reasons": len(table),
    }
    parts = [f"{failed} of {expected} images"] if failed else []
    parts += [f"{expected - len(rows)} of {expected} images have no row"] if expected > len(rows) else []
    parts += [f"{_short(row['error'])} ({row['part']} on {row['n']} images)" for row in table[:NAMED]]
    parts += [f"{len(table) - NAMED} more reasons"] if len(table) > NAMED else []
    verdict = "images" if failed else "parts" if table else "absent" if parts else "none"
    text = f"Failed: {'; '.join(parts)}." if parts else f"Nothing failed: all {len(rows)} images have a row."
    return Sentence("failures", verdict, one_line(text), numbers)


def _with_interval(row: Row, name: str) -> str:
    """A figure by its first word, with its 95 % interval where there is one."""
    text = f"{name.partition('_')[0].upper()} {number(row[name])}"
    if math.isnan(row[f"{name}_low"]):
        return text
    return f"{text} (95 % interval {number(row[f'{name}_low'])} to {number(row[f'{name}_high'])})"


def _short(text: str) -> str:
    text = one_line(text).rstrip(".")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _quoted(name: str) -> str:
    return f"“{_short(name)}”"


def _listed(names: list[str]) -> str:
    """The first few by name, the others by number."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*map(_quoted, names[:NAMED]), *more])

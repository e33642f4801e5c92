"""What a study shows, in five sentences made of its tables: which mode ranks best, by how much, whether that is
significant, what is leaked and what failed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.analysis import Analysis
from agentic_iqa_local.studies.scored_run import SIGNIFICANCE

ENOUGH = 0.9  # of the images that the fullest mode answered: below, a mode takes no part in the ranking
NAMED = 3  # names in a line, the others are counted
LONGEST = 80  # characters of a name or reason
OPPOSITE = -0.4  # SRCC: a manifest's scores below it seem to call the worse pictures higher


class Sentence(NamedTuple):
    """`topic` is what it is about, `verdict` what it says in a word for programs, and `text` one plain line."""

    topic: str
    verdict: str
    text: str


def summarize(study: Analysis) -> list[Sentence]:
    """Five lines: "winner", "difference", "significance", "leaks", "failures"."""
    table = study.tables["modes"]
    usable = table[(table.n >= ENOUGH * table.n.max()) & table.srcc.notna()]
    ranked = usable.sort_values("srcc", ascending=False, kind="stable")
    return [
        _winner(study, ranked),
        *_difference(study, list(ranked["mode"])),
        _leaks(study, ranked),
        _failures(study),
    ]


def _winner(study: Analysis, ranked: pd.DataFrame) -> Sentence:
    if not len(ranked):
        return Sentence("winner", "none", "No mode has an SRCC on these images.")
    first, product, modes = ranked.iloc[0], study.run.product, list(ranked["mode"])
    text = f"{_listed(modes[:1])} ranks best of {len(modes)} modes: {_ends(first, 'srcc')} on {first.n} images"
    if outside := len(study.tables["modes"]) - len(modes):
        text += f" ({outside} more answered too few of them, or have no SRCC)"
    if product in modes[1:]:
        place = modes.index(product)
        text += f"; the product's “{product}” has place {place + 1} with {number(ranked.srcc.iloc[place])}"
    own = study.tables["modes"].set_index("mode").srcc[product]
    if study.run.info.key == "manifest" and own < OPPOSITE:
        text += (
            f"; lower scores seem to be better here, as in DMOS (“{product}” has SRCC {number(own)}): multiply them by"
            " -1 in the manifest and run it again"
        )
    return Sentence("winner", "one", f"{text}.")


def _difference(study: Analysis, modes: list[str]) -> Iterator[Sentence]:
    """How the best mode differs from the baseline, or a baseline that is the best from the next, and how surely."""
    table, draws = study.tables["differences"], study.run.draws
    pair = {study.run.baseline, *(modes[:2] if modes[:1] == [study.run.baseline] else modes[:1])}
    row = next((row for row in table.to_dict("records") if {row["first"], row["second"]} == pair), None)
    if row is None or row["p"] != row["p"]:
        yield Sentence("difference", "unknown", "No difference between two modes is known.")
        yield Sentence("significance", "not tested", "The bootstrap gives no p on these images.")
        return
    gain, names = row["srcc_difference"], [_listed([row[name]]) for name in ("first", "second")]
    text = (
        f"{' minus '.join(names)}: {_ends(row, 'srcc_difference')}, {_ends(row, 'plcc_difference')} on the {row['n']}"
        " images that both answered."
    )
    yield Sentence("difference", "higher" if gain > 0 else "lower" if gain < 0 else "equal", text)
    verdict = "not significant" if row["better"] == "undecided" else "significant"
    verdict = "too few draws" if 2 * len(table) / (len(draws.counts) + 1) > SIGNIFICANCE else verdict
    text = (
        f"{verdict.capitalize()}: p = {number(row['p_holm'])} by the paired bootstrap over {draws.over}"
        f" ({len(draws.counts)} draws), after Holm's correction for {len(table)} comparisons."
    )
    yield Sentence("significance", verdict, text)


def _leaks(study: Analysis, ranked: pd.DataFrame) -> Sentence:
    run, parts = study.run, []
    seen, unknown, clean = ([m for m in run.modes if run.mark(m) == mark] for mark in ("seen", "?", ""))
    if seen:
        met = {f"{e.what}: {e.how}" for mode in seen for e in run.exposures[mode] if e.how != "training data unknown"}
        parts.append(f"{_listed(seen)} rest on what was made with this data set ({', '.join(sorted(met)[:NAMED])})")
    if unknown:
        parts.append(f"what {_listed(unknown)} learned from is not known")
    if parts:
        best = [mode for mode in ranked["mode"] if mode in clean]
        parts.append(f"the best of the modes known to be clean is {_listed(best[:1]) or 'none'}")
    else:
        parts.append(f"no part of any mode is known to be made with {run.info.title}")
    files = Counter(row["sha256"] for row in run.rows if row.get("sha256"))
    if copies := files.total() - len(files):
        parts.append(f"{copies} images repeat the file of another")
    verdict = "leaked" if seen else "unknown" if unknown else "copies" if copies else "none known"
    return Sentence("leaks", verdict, one_line(f"Leaks: {'; '.join(parts)}."))


def _failures(study: Analysis) -> Sentence:
    rows, table = study.run.rows, study.tables["failures"]
    expected = max(len(rows), study.run.run["dataset"].get("images", 0))
    failed = sum(bool(row.get("error")) for row in rows)
    parts = [f"{failed} of {expected} images"] if failed else []
    parts += [f"{expected - len(rows)} of {expected} images have no row"] if expected > len(rows) else []
    parts += [f"{_short(row.error).rstrip('.')} ({row.part} on {row.n} images)" for row in table[:NAMED].itertuples()]
    parts += [f"{len(table) - NAMED} more reasons"] if len(table) > NAMED else []
    verdict = "images" if failed else "parts" if len(table) else "absent" if parts else "none"
    text = f"Failed: {'; '.join(parts)}." if parts else f"Nothing failed: all {len(rows)} images have a row."
    return Sentence("failures", verdict, one_line(text))


def number(value: Any) -> str:
    """A number for a reader: — where there is none."""
    if value is None or value != value:
        return "—"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-4 else f"{value:.3f}"


def _ends(row: Any, name: str) -> str:
    """A figure by its first word, with its 95 % interval where there is one."""
    text, low, high = (
        f"{name.partition('_')[0].upper()} {number(row[name])}",
        row[f"{name}_low"],
        row[f"{name}_high"],
    )
    return text if low != low else f"{text} (95 % interval {number(low)} to {number(high)})"


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _listed(names: Sequence[str]) -> str:
    """The first few by name, the others by number."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*(f"“{_short(name)}”" for name in names[:NAMED]), *more])

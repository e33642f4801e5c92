"""What a study shows, in five sentences made of its tables: which mode ranks best, by how much, whether that is
significant, what is leaked and what failed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.studies.scored_run import SIGNIFICANCE, ScoredRun

ENOUGH = 0.9  # of the images that the fullest mode answered: below, a mode takes no part in the ranking
NAMED = 3  # names in a line, the others are counted
LONGEST = 80  # characters of a reason
OPPOSITE = -0.4  # SRCC: a manifest's scores below it seem to call the worse pictures higher


class Sentence(NamedTuple):
    """`topic` is what it is about, `verdict` what it says in a word for programs, and `text` one plain line."""

    topic: str
    verdict: str
    text: str


def summarize(run: ScoredRun, tables: Mapping[str, pd.DataFrame]) -> list[Sentence]:
    """Five lines: "winner", "difference", "significance", "leaks", "failures"."""
    table = tables["modes"].set_index("mode", drop=False)
    usable = table[(table.n >= ENOUGH * table.n.max()) & table.srcc.notna()]
    ranked = usable.sort_values("srcc", ascending=False, kind="stable")
    modes, differences = list(ranked["mode"]), tables["differences"]
    # The best mode against the baseline, or a baseline that is the best against the next.
    pair = {run.baseline, *(modes[:2] if modes[:1] == [run.baseline] else modes[:1])}
    known = differences[differences["p"].notna()].to_dict("records") if len(differences) else []
    row = next((row for row in known if {row["first"], row["second"]} == pair), None)
    sentences = {
        "winner": _winner(run, table, ranked),
        "difference": _difference(row),
        "significance": _significance(run, row, len(differences)),
        "leaks": _leaks(run, modes),
        "failures": _failures(run, tables["failures"]),
    }
    return [Sentence(topic, verdict, one_line(text)) for topic, (verdict, text) in sentences.items()]


def _winner(run: ScoredRun, table: pd.DataFrame, ranked: pd.DataFrame) -> tuple[str, str]:
    if not len(ranked):
        return "none", "No mode has an SRCC on these images."
    first, product, modes = ranked.iloc[0], run.product, list(ranked["mode"])
    text = f"“{first['mode']}” ranks best of {len(modes)} modes: {_ends(first, 'srcc')} on {first.n} images"
    if len(table) > len(modes):
        text += f" ({len(table) - len(modes)} more answered too few of them)"
    if product in modes[1:]:
        place = modes.index(product) + 1
        text += f"; the product's “{product}” has place {place} with {number(table.srcc[product])}"
    if run.info.key == "manifest" and table.srcc[product] < OPPOSITE:
        text += "; lower scores seem to be better here, as in DMOS: multiply them by -1 in the manifest, run it again"
    return "one", f"{text}."


def _difference(row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None:
        return "unknown", "No difference between two modes is known."
    gain, figures = row["srcc_difference"], f"{_ends(row, 'srcc_difference')}, {_ends(row, 'plcc_difference')}"
    text = f"“{row['first']}” minus “{row['second']}”: {figures} on the {row['n']} images that both answered."
    return "higher" if gain > 0 else "lower" if gain < 0 else "equal", text


def _significance(run: ScoredRun, row: dict[str, Any] | None, comparisons: int) -> tuple[str, str]:
    if row is None:
        return "not tested", "The bootstrap gives no p on these images."
    draws, of_which = len(run.draws.counts), ""
    verdict = "not significant" if row["better"] == "undecided" else "significant"
    fewest = math.ceil(2 * comparisons / SIGNIFICANCE)  # draws that can decide any of so many comparisons
    if draws + 1 < fewest:
        verdict, of_which = "too few draws", f", of which it takes {fewest}"
    text = f"{verdict.capitalize()}: p = {number(row['p_holm'])} by the paired bootstrap over {run.draws.over}"
    return verdict, f"{text} ({draws} draws{of_which}), after Holm's correction for {comparisons} comparisons."


def _leaks(run: ScoredRun, ranked: list[str]) -> tuple[str, str]:
    seen, unknown, clean = ([m for m in run.modes if run.mark(m) == mark] for mark in ("seen", "?", ""))
    parts = []
    if seen:
        met = {f"{e.what}: {e.how}" for mode in seen for e in run.exposures[mode] if e.how != "training data unknown"}
        parts.append(f"{_listed(seen)} rest on what was made with this data set ({', '.join(sorted(met)[:NAMED])})")
    if unknown:
        parts.append(f"what {_listed(unknown)} learned from is not known")
    best = _listed([mode for mode in ranked if mode in clean][:1]) or "none"
    known = f"the best of the modes known to be clean is {best}"
    parts.append(known if parts else f"no part of any mode is known to be made with {run.info.title}")
    files = Counter(row["sha256"] for row in run.rows if row.get("sha256"))
    if copies := files.total() - len(files):
        parts.append(f"{copies} images repeat the file of another")
    verdict = "leaked" if seen else "unknown" if unknown else "copies" if copies else "none known"
    return verdict, f"Leaks: {'; '.join(parts)}."


def _failures(run: ScoredRun, table: pd.DataFrame) -> tuple[str, str]:
    expected = max(len(run.rows), run.run["dataset"].get("images", 0))
    failed, absent = sum(bool(row.get("error")) for row in run.rows), expected - len(run.rows)
    parts = [f"{failed} of {expected} images"] if failed else []
    parts += [f"{absent} of {expected} images have no row"] if absent else []
    for part, error, n in table[:NAMED].itertuples(index=False):
        parts.append(f"{one_line(error)[:LONGEST].rstrip('.')} ({part} on {n} images)")
    verdict = "images" if failed else "parts" if len(table) else "absent" if parts else "none"
    return verdict, f"Failed: {'; '.join(parts)}." if parts else f"Nothing failed: all {expected} images have a row."


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
    text, low, high = f"{name.partition('_')[0].upper()} {number(row[name])}", row[f"{name}_low"], row[f"{name}_high"]
    return text if low != low else f"{text} (95 % interval {number(low)} to {number(high)})"


def _listed(names: Sequence[str]) -> str:
    """The first few by name, the others by number."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*(f"“{name}”" for name in names[:NAMED]), *more])

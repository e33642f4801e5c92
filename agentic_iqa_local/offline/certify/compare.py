"""A certificate against another: the record that ships, or another machine's file."""

from typing import Any

from agentic_iqa_local.offline.certify.certificate import Certificate, Readings
from agentic_iqa_local.offline.certify.check import Check, judged, not_run
from agentic_iqa_local.offline.certify.drift import bound_for, drift, figures, format_of, in_words
from agentic_iqa_local.offline.certify.identity import differences, environments
from agentic_iqa_local.offline.certify.tools import ON_CPU, ON_GPU

FEWEST = 8  # pictures that two files have to share


def judge_record(here: Certificate, record: Certificate) -> Check:
    """This set-up's model against the record of the same model that ships: every file, setting and letter."""
    assert here.model
    assert record.model
    problems, rows, notes = _model_differences(here, record, "recorded")
    if here.identity["tool maps"] == record.identity.get("tool maps"):
        notes.append("the tool maps are those recorded")
    words = rows[0]["words"] if rows else ""
    sound = f"files, settings and letters are those of the record: {words}"
    return judged("record", problems, sound, rows, notes)


def judge_against(here: Certificate, there: Certificate, name: str) -> Check:
    """Two machines: may scores of the one be compared with scores of the other?"""
    if here.model is None or there.model is None:
        return not_run("against", f"{name} or this run has no letters")
    problems, rows, notes = _model_differences(here, there, "there")
    for key in ("engine", "dtype", "quantization", "attention", "device", "hardware", "torch"):
        ours, theirs = here.model.about.get(key), there.model.about.get(key)
        if ours != theirs:
            notes.append(f"{key} {_shown(ours)}, there {_shown(theirs)}")
    tools = _tool_rows(here, there)
    rows += tools
    problems += [
        f"{row['comparison']}: {row['q']:.2g} levels apart (bound {row['bound_q']:g})"
        for row in tools
        if not row["within"]
    ]
    for tool, files in there.tools.about.items():
        mine = here.tools.about.get(tool)
        if mine is not None and mine != files:
            problems.append(
                f"{tool} loads other weights than there: {', '.join(sorted(mine.keys() | files.keys()))}"
            )
    q = max((row["q"] for row in rows), default=0.0)
    sound = f"Scores of the two machines may be compared: |Δq| ≤ {q:.3g} ({rows[0]['words'] if rows else ''})"
    if problems:
        problems[0] = f"Scores of the two machines may not be compared: {problems[0]}"
    return judged("against", problems, sound, rows, notes)


def _model_differences(
    here: Certificate, there: Certificate, of: str
) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """(what is unlike and moves scores, rows of figures, what is unlike and may not matter)."""
    assert here.model
    assert there.model
    problems = differences(here.identity, there.identity, of)
    notes = environments(here.identity, there.identity, of)
    problems += _readings(here.model, there.model, of)
    alike = [name for name, digest in there.probes.items() if here.probes.get(name) == digest]
    if other := sorted(there.probes.keys() - set(alike)):
        notes.append(
            f"{len(other)} probe pictures have other pixels here and were left out ({other[0]}, ...)"
        )
    if len(alike) < FEWEST:
        problems.append(
            f"only {len(alike)} probe pictures are alike, {FEWEST} are needed: pillow or numpy draws"
            " otherwise"
        )
        return problems, [], notes
    ours, theirs = (
        {name: one.letters[name] for name in alike if name in one.letters}
        for one in (here.model, there.model)
    )
    bound = bound_for(here.model.about, there.model.about)
    found = drift(ours, theirs)
    words = in_words(found, bound)
    rows = [figures(f"letters here against those {of}", found, bound) | {"words": words}]
    if not found.within(bound):
        problems.append(f"the letters differ from those {of}: {words}, worst {found.worst}")
    return problems, rows, notes


def _readings(ours: Readings, theirs: Readings, of: str) -> list[str]:
    """The prompt, the letters' tokens, what was seen, and the dtype on a device of the same kind."""
    problems = []
    if None not in (ours.prompt, theirs.prompt) and ours.prompt != theirs.prompt:
        problems.append(
            f"the prompt's text is another than {of}: the chat template or the instructions differ"
        )
    if ours.tokens and theirs.tokens and ours.tokens != theirs.tokens:
        problems.append(
            f"the letters' tokens are {ours.tokens}, {of} {theirs.tokens}: letter order or tokenizer"
        )
    for name, seen in theirs.seen.items():
        mine = ours.seen.get(name)
        if mine and (mine["size"], mine["tokens"]) != (seen["size"], seen["tokens"]):
            size, other = ("×".join(map(str, one["size"])) for one in (mine, seen))
            problems.append(
                f"the model saw {size} pixels ({mine['tokens']} tokens) of {name}, {of} {other}"
                f" ({seen['tokens']}): another pixel limit"
            )
            break
    kinds = [str(one.about.get("device", "")).partition(":")[0] for one in (ours, theirs)]
    if kinds[0] == kinds[1] and format_of(ours.about) != format_of(theirs.about):
        problems.append(
            f"the dtype is another: the model computes in {format_of(ours.about)}, {of} in"
            f" {format_of(theirs.about)}"
        )
    return problems


def _tool_rows(here: Certificate, there: Certificate) -> list[dict[str, Any]]:
    assert here.model
    assert there.model
    on_cpu = all(str(one.model.about.get("device")) == "cpu" for one in (here, there) if one.model)
    rows = []
    for tool, scores in there.tools.scores.items():
        mine = here.tools.scores.get(tool, {})
        apart = [
            abs(mine[n][1] - scores[n][1])
            for n in scores
            if n in mine and here.probes[n] == there.probes.get(n)
        ]
        if apart:
            bound = ON_CPU if on_cpu else ON_GPU
            row = {"comparison": f"{tool} here against there", "pictures": len(apart), "q": max(apart)}
            rows.append(row | {"bound_q": bound, "within": max(apart) <= bound})
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name"))
    return "unknown" if value is None else str(value)

"""What a batch came to, as text for a terminal."""

from collections import Counter
from statistics import fmean
from typing import Any, ClassVar

from agentic_iqa_local.errors import percent
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.output.words import safe_lines, wrapped
from agentic_iqa_local.state import LETTER_WORDS

NAMED = 5  # of the best pictures, and of the worst


class Tally:
    """What a batch came to: counts by level or answer, the mean score, the best and the worst
    pictures, what was held back, what passed a gate. Answers that were held back are counted apart
    and in no mean."""

    # the fields of a row that count
    FIELDS: ClassVar = {"image", "error", "gate", "not_sure", "q", "final_answer", "choices"}

    def __init__(self) -> None:
        self.total = self.failed = self.not_sure = 0
        self.gate: Counter[str] = Counter()
        self._asked: dict[str, Any] = {}  # of the gate
        self._answers: Counter[str] = Counter()
        self._scored: list[tuple[float, str]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Counts a row (a JSON object of assess)."""
        self.total += 1
        if row["error"]:
            self.failed += 1
            return
        if row.get("gate"):
            self.gate[row["gate"]["verdict"]] += 1
            self._asked = row["gate"]
        if row.get("not_sure"):
            self.not_sure += 1
            return
        answer = row["final_answer"]
        if row["q"] is not None:
            self._answers[f"{answer} {LETTER_WORDS[answer]}"] += 1
            self._scored.append((row["q"], row["image"]))
        elif row["choices"]:
            self._answers[f"“{chosen_answer(row['choices'], answer)}”"] += 1
        else:
            self._answers["answered in words"] += 1

    def text(self, assessed: int, seconds: float) -> str:
        """The summary; `assessed` of the rows were made in the last `seconds`."""
        counts = [f"{answer} {count}" for answer, count in sorted(self._answers.items())]
        if self.not_sure:
            counts.append(f"{self.not_sure} not sure")
        if self.failed:
            counts.append(f"{self.failed} failed")
        lines = wrapped(f"{self.total} pictures: {', '.join(counts)}", indent="")
        if self.gate:
            wrong = f"at most {percent(self._asked['error_rate'])} of such verdicts are wrong"
            sure = f"{self.gate['pass']} pass, {self.gate['fail']} fail ({wrong})"
            at_least = f"{self._asked['at_least']:g} or better"
            lines += wrapped(f"{at_least}: {sure}, {self.gate['unsure']} unsure", indent="")
        if self._scored:
            lines += self._ranking()
        if assessed and seconds:
            lines.append(f"{pace(assessed, seconds)} ({assessed} in {seconds:.0f} s)")
        return safe_lines(lines)

    def _ranking(self) -> list[str]:
        """The best and the worst pictures, or all of a few."""
        ranked = sorted(self._scored, reverse=True)
        lines = [f"  {q:.2f}  {image}" for q, image in ranked]
        if len(lines) > 2 * NAMED:
            lines[NAMED:-NAMED] = ["  ..."]
        return [f"by score, mean {fmean(q for q, _ in ranked):.2f}:", *lines]


def pace(done: int, seconds: float) -> str:
    """A rate in words: 2.1 pictures a second, or 3.4 seconds a picture."""
    rate = done / max(seconds, 1e-9)
    if rate >= 1:
        return f"{rate:.1f} pictures a second"
    return f"{1 / rate:.1f} seconds a picture"

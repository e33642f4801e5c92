"""What a batch came to, as text for a terminal."""

from collections import Counter
from typing import Any, ClassVar

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.output.words import safe_lines, wrapped
from agentic_iqa_local.state import LETTER_TO_LEVEL, LETTER_WORDS

NAMED = 5  # pictures in each list


class Tally:
    """What a batch came to: counts by level or answer, the mean score, the best and worst pictures,
    what was held back, what passed a gate, failures. Answers that were held back are counted apart
    and in no mean."""

    # the fields of a row that count
    FIELDS: ClassVar = {"image", "error", "gate", "not_sure", "q", "final_answer", "choices"}

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.gate: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []  # pictures and reasons
        self.not_sure = 0
        self._asked: dict[str, Any] = {}  # of the gate
        self._scored: list[tuple[float, str]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Counts a row (a JSON object of assess)."""
        if row["error"]:
            self.failed.append((row["image"], row["error"]))
            return
        if row.get("gate"):
            self.gate[row["gate"]["verdict"]] += 1
            self._asked = row["gate"]
        if row.get("not_sure"):
            self.not_sure += 1
            return
        answer = row["final_answer"]
        if row["q"] is not None:
            self.answers[_level(answer)] += 1
            self._scored.append((row["q"], row["image"]))
        elif row["choices"]:
            self.answers[f"“{chosen_answer(row['choices'], answer)}”"] += 1
        else:
            self.answers["answered in words"] += 1

    @property
    def total(self) -> int:
        """Rows counted."""
        return sum(self.answers.values()) + len(self.failed) + self.not_sure

    @property
    def mean(self) -> float | None:
        """The mean of q; None if nothing was rated."""
        return sum(q for q, _ in self._scored) / len(self._scored) if self._scored else None

    def text(self, assessed: int, seconds: float, *, ranked: bool = True, of: int = 0) -> str:
        """The summary; `assessed` of the rows were made in the last `seconds`. `ranked` is False if
        each picture has its line already, `of` how many rows a whole batch would have."""
        whole = f" of {of}" if self.total < of else ""
        lines = wrapped(f"{self.total}{whole} pictures: {self._counts()}", indent="")
        if self.gate:
            lines += wrapped(self._verdicts(), indent="")
        if ranked and self._scored:
            lines += self._ranking()
        lines += self._failures()
        if assessed and seconds:
            lines.append(f"{pace(assessed, seconds)} ({assessed} in {seconds:.0f} s)")
        return safe_lines(lines)

    def _counts(self) -> str:
        """How many pictures have each level, from the best to the worst, and each other answer."""
        levels = map(_level, LETTER_TO_LEVEL) if self._scored else ()
        counts = [
            f"{answer} {self.answers[answer]}" for answer in dict.fromkeys([*levels, *self.answers])
        ]
        parts = [", ".join(counts)] if counts else []
        if self.not_sure:
            parts.append(f"{self.not_sure} not sure")
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        return "; ".join(parts) or "none assessed"

    def _verdicts(self) -> str:
        sure = f"{self.gate['pass']} pass, {self.gate['fail']} fail"
        wrong = f"at most {self._asked['error_rate']:.0%} of such verdicts are wrong"
        unsure = f"{self.gate['unsure']} unsure (too close to call)"
        strict = "with --strict the exit status says so too"
        return f"{self._asked['at_least']:g} or better: {sure} ({wrong}), {unsure}; {strict}"

    def _ranking(self) -> list[str]:
        """The best and the worst pictures, or all of a few."""
        ranked = sorted(self._scored, reverse=True)
        lines = [f"  {q:.2f}  {image}" for q, image in ranked]
        if len(lines) <= 2 * NAMED:
            return [f"by score, mean {self.mean:.2f}:", *lines]
        mean = f"mean {self.mean:.2f} of {len(lines)} pictures"
        return [mean, "best:", *lines[:NAMED], "worst:", *lines[: -NAMED - 1 : -1]]

    def _failures(self) -> list[str]:
        """The first failures, each with its reason."""
        if not self.failed:
            return []
        lines = ["failed:"]
        for image, error in self.failed[:NAMED]:
            lines += wrapped(f"{image}: {error.removeprefix(f'{one_line(image)}: ')}")
        if len(self.failed) > NAMED:
            lines.append(f"  and {len(self.failed) - NAMED} more")
        return lines


def _level(letter: str) -> str:
    return f"{letter} {LETTER_WORDS[letter]}"


def pace(done: int, seconds: float) -> str:
    """A rate in words: 2.1 pictures a second, or 3.4 seconds a picture."""
    rate = done / max(seconds, 1e-9)
    if rate >= 1:
        return f"{rate:.1f} pictures a second"
    return f"{1 / rate:.1f} seconds a picture"

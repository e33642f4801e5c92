"""What a batch came to, as text for a terminal."""

import heapq
from collections import Counter, defaultdict
from typing import Any, ClassVar

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.output.words import level_word, safe_lines, wrapped
from agentic_iqa_local.state import LETTER_TO_LEVEL

NAMED = 5  # pictures in each list


class Tally:
    """What a batch came to: counts by level or answer, the mean score, the best and worst pictures, what was
    held back, what passed a gate, failures. Answers that were held back are counted apart and in no mean."""

    FIELDS: ClassVar = {
        "image",
        "error",
        "gate",
        "not_sure",
        "q",
        "final_answer",
        "choices",
    }  # of a row, that count

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.gate: Counter[str] = Counter()
        self._asked: dict[str, Any] = {}  # of the gate
        self.failed: list[tuple[str, str]] = []  # pictures and reasons
        self.not_sure = 0
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
        elif row["q"] is not None:
            self.answers[f"{row['final_answer']} {level_word(row['final_answer'])}"] += 1
            self._scored.append((row["q"], row["image"]))
        else:
            choices = row["choices"]
            said = (
                f"“{chosen_answer(choices, row['final_answer'])}”"
                if choices
                else "answered in words"
            )
            self.answers[said] += 1

    @property
    def total(self) -> int:
        """Rows counted."""
        return sum(self.answers.values()) + len(self.failed) + self.not_sure

    @property
    def mean(self) -> float | None:
        """Of q; None where nothing was rated."""
        return sum(q for q, _ in self._scored) / len(self._scored) if self._scored else None

    def text(self, assessed: int, seconds: float, *, ranked: bool = True, of: int = 0) -> str:
        """The summary; `assessed` of the rows were made in the last `seconds`. `ranked` is False where each
        picture has its line already, `of` how many rows a whole batch would have."""
        levels = (
            [f"{letter} {level_word(letter)}" for letter in LETTER_TO_LEVEL] if self._scored else []
        )
        counts = {
            level: self.answers[level] for level in levels
        } | self.answers  # all levels, in their order
        answers = ", ".join(f"{answer} {count}" for answer, count in counts.items())
        others = [
            f"{n} {what}"
            for n, what in ((self.not_sure, "not sure"), (len(self.failed), "failed"))
            if n
        ]
        said = "; ".join(filter(None, [answers, *others])) or "none assessed"
        lines = wrapped(
            f"{self.total}{f' of {of}' * (self.total < of)} pictures: {said}", indent=""
        )
        if self.gate:
            sure = f"{self.gate['pass']} pass, {self.gate['fail']} fail"
            wrong = f"{sure} (at most {self._asked['error_rate']:.0%} of such verdicts are wrong)"
            unsure = f"{self.gate['unsure']} unsure (too close to call)"
            unsure += "; with --strict the exit status says so too"
            lines += wrapped(f"{self._asked['at_least']:g} or better: {wrong}, {unsure}", indent="")
        lines += [*(self._ranking() if ranked and self._scored else []), *self._failures()]
        if assessed and seconds:
            lines.append(f"{pace(assessed, seconds)} ({assessed} in {seconds:.0f} s)")
        return safe_lines(lines)

    def _ranking(self) -> list[str]:
        """The best and the worst pictures, or all of a few."""
        best = [f"  {q:.2f}  {image}" for q, image in heapq.nlargest(2 * NAMED, self._scored)]
        if len(self._scored) <= 2 * NAMED:
            return [f"by score, mean {self.mean:.2f}:", *best]
        worst = [f"  {q:.2f}  {image}" for q, image in heapq.nsmallest(NAMED, self._scored)]
        return [
            f"mean {self.mean:.2f} of {len(self._scored)} pictures",
            "best:",
            *best[:NAMED],
            "worst:",
            *worst,
        ]

    def _failures(self) -> list[str]:
        """Each reason once, the commonest first, with the pictures that it holds for."""
        reasons: dict[str, list[str]] = defaultdict(list)
        for image, error in self.failed:
            reasons[error.removeprefix(f"{one_line(image)}: ")].append(image)
        commonest = sorted(reasons.items(), key=lambda item: -len(item[1]))
        lines = ["failed:"] if commonest else []
        for reason, images in commonest[:NAMED]:
            more = f" and {len(images) - NAMED} more" if len(images) > NAMED else ""
            lines += wrapped(f"{', '.join(images[:NAMED])}{more}: {reason}")
        left = sum(len(images) for _, images in commonest[NAMED:])
        return lines + ([f"  and {left} more"] if left else [])


def pace(done: int, seconds: float) -> str:
    """A rate in words: 2.1 pictures a second, or 3.4 seconds a picture."""
    rate = done / max(seconds, 1e-9)
    return f"{rate:.1f} pictures a second" if rate >= 1 else f"{1 / rate:.1f} seconds a picture"

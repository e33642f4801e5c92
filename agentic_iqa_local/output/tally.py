"""What a batch came to, as text for a terminal."""

import heapq
from collections import Counter
from operator import itemgetter
from typing import Any

from agentic_iqa_local.errors import one_line
from agentic_iqa_local.nodes.prompts import chosen_answer
from agentic_iqa_local.output.report import level_word, safe_lines, why_failed, wrapped
from agentic_iqa_local.state import LETTER_TO_LEVEL

NAMED = 5  # pictures in each list
MOST_KEPT = 1000  # scores, of which those that cannot be named are forgotten


class Tally:
    """What a batch came to: counts by level or answer, the mean score, the best and worst pictures, what was
    held back, what passed a gate, failures. Answers that were held back are counted apart and in no mean."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []
        self.not_sure: list[tuple[str, str]] = []
        self.gate: Counter[str] = Counter()
        self._scored: list[tuple[float, str]] = []  # those that may be named, in their order
        self._scores, self._sum = 0, 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Counts a row (a JSON object of assess.py)."""
        if row["error"]:
            self.failed.append((row["image"], row["error"]))
            return
        if row.get("gate"):
            self.gate[row["gate"]["verdict"]] += 1
        if row.get("not_sure"):
            self.not_sure.append((row["image"], row["not_sure"]))
        elif row["q"] is not None:
            self.answers[row["final_answer"]] += 1
            self._add_score(row["q"], row["image"])
        elif row["choices"]:
            self.answers[chosen_answer(row["choices"], row["final_answer"])] += 1
        else:
            self.answers["answered in words"] += 1

    def _add_score(self, q: float, image: str) -> None:
        self._scores += 1
        self._sum += q
        self._scored.append((q, image))
        if len(self._scored) > MOST_KEPT:
            named = {id(scored) for scored in (*self._best(), *self._worst())}
            self._scored = [scored for scored in self._scored if id(scored) in named]

    def _best(self) -> list[tuple[float, str]]:
        return heapq.nlargest(2 * NAMED, self._scored, key=itemgetter(0))

    def _worst(self) -> list[tuple[float, str]]:
        return heapq.nsmallest(NAMED, self._scored, key=itemgetter(0))

    @property
    def total(self) -> int:
        """Rows counted."""
        return sum(self.answers.values()) + len(self.failed) + len(self.not_sure)

    def text(self, assessed: int, seconds: float, *, ranked: bool = True) -> str:
        """The summary; `assessed` of the rows were made in the last `seconds`. `ranked` is False where each
        picture has its line already."""
        others = f"; {len(self.not_sure)} not sure" if self.not_sure else ""
        others += f"; {len(self.failed)} failed" if self.failed else ""
        counts = ", ".join(self._counts()) or "none assessed"
        lines = wrapped(f"{self.total} pictures: {counts}{others}", indent="")
        lines += self._verdicts()
        lines += (self._ranking() if ranked else []) + self._failures()
        if assessed and seconds:
            rate = assessed / seconds
            each = f"{rate:.1f} pictures a second" if rate >= 1 else f"{1 / rate:.1f} seconds a picture"
            lines.append(f"{each} ({assessed} in {seconds:.0f} s)")
        return safe_lines(lines)

    def _verdicts(self) -> list[str]:
        """How many pictures passed the gate, where there is one."""
        if not self.gate:
            return []
        counts = ", ".join(f"{self.gate[verdict]} {verdict}" for verdict in ("pass", "fail", "unsure"))
        return wrapped(f"gate: {counts}", indent="")

    def _counts(self) -> list[str]:
        """How many pictures got each answer; all levels in their order where any was scored."""
        if not self._scored:
            return [f"{answer} {count}" for answer, count in self.answers.most_common()]
        levels = [f"{letter} {level_word(letter)} {self.answers[letter]}" for letter in LETTER_TO_LEVEL]
        others = (item for item in self.answers.items() if item[0] not in LETTER_TO_LEVEL)
        return levels + [f"{answer} {count}" for answer, count in others]

    def _ranking(self) -> list[str]:
        """The best and the worst pictures, or all of a few."""
        if not self._scored:
            return []
        best, mean = self._best(), f"{self._sum / self._scores:.2f}"
        if self._scores <= 2 * NAMED:
            return [f"by score, mean {mean}:", *map(_score_line, best)]
        named = f"mean q {mean} of {self._scores} pictures"
        return [named, "best:", *map(_score_line, best[:NAMED]), "worst:", *map(_score_line, self._worst())]

    def _failures(self) -> list[str]:
        """Each reason once, the commonest first, with the pictures that it holds for."""
        reasons: dict[str, list[str]] = {}
        for image, error in self.failed:
            reasons.setdefault(error.removeprefix(f"{one_line(image)}: "), []).append(image)
        commonest = sorted(reasons.items(), key=lambda item: -len(item[1]))
        lines = ["failed:"] if commonest else []
        for reason, images in commonest[:NAMED]:
            if len(images) == 1:
                lines += wrapped(why_failed(images[0], reason))
            else:
                more = f" and {len(images) - NAMED} more" if len(images) > NAMED else ""
                lines += wrapped(f"{len(images)} pictures: {reason}")
                lines += wrapped(f"{', '.join(images[:NAMED])}{more}", indent="    ")
        left = sum(len(images) for _, images in commonest[NAMED:])
        return lines + ([f"  and {left} more"] if left else [])


def _score_line(scored: tuple[float, str]) -> str:
    return f"  {scored[0]:.2f}  {scored[1]}"

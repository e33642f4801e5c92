"""How far each tool can be trusted: which tools are clearly worse than another for the case at
hand, and the error of a mean.

The figures are published ones (configs/tool_reliability.yaml names each source). Those on a data
set that a tool's weights were trained on do not count.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from agentic_iqa_local.files import ROOT, read_record
from agentic_iqa_local.iqa_tools.calibration import FLAT, HIGHEST, LOWEST
from agentic_iqa_local.iqa_tools.specs import FileRecord
from agentic_iqa_local.state import revised

SHIPPED = ROOT / "configs" / "tool_reliability.yaml"
RATINGS = "your ratings"
CLEARLY_WORSE = 0.05  # of SRCC, on average over the data sets that two tools share

Score = tuple[str, float]  # a tool and its score, 1..5
# by tool, the lowest and highest score that its map can return
Reachable = Mapping[str, tuple[float, float]]


class Published(FileRecord):
    """Correlation with human scores on one data set; `seen`: the tool was trained on it."""

    data_set: str
    srcc: float = Field(ge=-1, le=1)
    plcc: float | None = Field(None, ge=-1, le=1)
    source: str
    seen: bool = False


class ToolRecord(FileRecord):
    """One tool's figures, and the standard deviation of its error in levels."""

    tool: str
    sigma: float = Field(gt=0)
    published: tuple[Published, ...]


class Reliability(FileRecord):
    """What is known of all tools; `sigma` in levels of the 1..5 scale."""

    sources: dict[str, str]
    spread: float = Field(gt=0)
    sigma_unknown: float = Field(gt=0)
    error_correlation: float = Field(ge=0, le=1)
    near_copies: tuple[tuple[str, ...], ...]
    tools: tuple[ToolRecord, ...]

    def with_ratings(self, srcc: Mapping[str, float], **sigmas: float) -> "Reliability":
        """The same with the SRCC of tools on a person's ratings as one more data set, and the
        `sigmas` of tools of which nothing else is known."""
        records = {
            name: ToolRecord(tool=name, sigma=sigma, published=()) for name, sigma in sigmas.items()
        }
        records |= self._records
        for name in srcc.keys() & records.keys():
            found = Published(data_set=RATINGS, srcc=srcc[name], plcc=None, source=RATINGS)
            published = (*records[name].published, found)
            records[name] = revised(records[name], published=published)
        return revised(self, tools=tuple(records.values()))

    @functools.cached_property
    def _records(self) -> dict[str, ToolRecord]:
        return {record.tool: record for record in self.tools}

    def _unseen(self, tool: str) -> dict[str, float]:
        """SRCC by data set, without those that the tool was trained on."""
        if tool not in self._records:
            return {}
        published = self._records[tool].published
        return {entry.data_set: entry.srcc for entry in published if not entry.seen}

    def lead(self, tool: str, other: str) -> float | None:
        """How much higher the SRCC of `tool` is than that of `other`, on average over the data sets
        that both have and neither has seen; None without such a set."""
        ours, theirs = self._unseen(tool), self._unseen(other)
        leads = [ours[name] - theirs[name] for name in ours.keys() & theirs.keys()]
        return sum(leads) / len(leads) if leads else None

    def trusted(self, tools: Sequence[str]) -> list[str]:
        """Those of `tools` that are not clearly worse than any of them, best first. A tool of which
        nothing is known is trusted only if nothing is known of any."""
        known = [tool for tool in tools if tool in self._records]
        wins = {}
        for tool in known:
            leads = self._leads(tool, known)
            if min(leads) >= -CLEARLY_WORSE:
                wins[tool] = sum(lead > 0 for lead in leads)
        return sorted(wins, key=lambda tool: -wins[tool]) or list(tools)

    def clearly_worse(self, tools: Sequence[str]) -> set[str]:
        """Those of `tools` that another of them is known to lead by more than CLEARLY_WORSE."""
        return {tool for tool in tools if min(self._leads(tool, tools)) < -CLEARLY_WORSE}

    def leading(self, tools: Sequence[str], beside: Iterable[str] = ()) -> list[str]:
        """`tools` without those that another of them, or a tool `beside` them, is clearly more
        reliable than."""
        worse = self.clearly_worse([*tools, *beside])
        return [tool for tool in tools if tool not in worse]

    def _leads(self, tool: str, others: Sequence[str]) -> list[float]:
        return [self.lead(tool, other) or 0 for other in others]

    def trailing(self, tools: Sequence[str], best: str) -> list[str]:
        """`tools` in the order of how far their SRCC trails that of `best`; those that share no
        data set with it last, as given."""

        def distance(tool: str) -> float:
            lead = self.lead(best, tool)
            return math.inf if lead is None else lead

        return sorted(tools, key=distance)

    def summary(self, tool: str) -> str:
        """The tool's mean SRCC on the data sets that it has not seen, for whoever chooses among
        tools; empty for an unknown tool."""
        unseen = self._unseen(tool).values()
        return f"SRCC {sum(unseen) / len(unseen):.2f}" if unseen else ""

    def account(self, tool: str) -> str:
        """What is known of a tool on sets that it has not seen, for a reader: "SRCC 0.89 on tid2013,
        0.88 on kadid10k; off by about 0.44 levels"."""
        figures = [f"{srcc:.2f} on {name}" for name, srcc in self._unseen(tool).items()]
        published = f"SRCC {', '.join(figures)}" if figures else "no published figure was found"
        return f"{published}; off by about {self.sigma(tool):.2f} levels"

    def sigma(self, tool: str) -> float:
        """Standard deviation of the tool's error, in levels."""
        return self._records[tool].sigma if tool in self._records else self.sigma_unknown

    def sigma_of_mean(self, scores: Sequence[Score], reachable: Reachable) -> float:
        """Standard deviation of the error of the mean of (tool, score 1..5), in levels.

        Var = 1/n² Σ_ij ρ_ij σ_i σ_j, with ρ = 1 for a tool with itself and its near-copies, so that
        they count once. A score at the end of what its map can return says only that quality is
        there or beyond: truth is anywhere from that end to the scale's, so that the mean square of
        a uniform error, (distance between the ends)²/3, comes on top.
        """
        sigmas = np.array([self._sigma_at(score, reachable) for score in scores])
        rho = np.array([[self._correlation(a, b) for b, _ in scores] for a, _ in scores])
        return float(math.sqrt(sigmas @ rho @ sigmas) / len(scores))

    def sigma_of_difference(self, one: Score, other: Score, reachable: Reachable) -> float:
        """Standard deviation of how far two tools' scores, (tool, score 1..5), lie apart by their
        errors alone, in levels: √(σ_i² + σ_j² − 2ρσ_iσ_j). Near-copies make errors of their own
        too, so that ρ is that of any two tools."""
        a, b = self._sigma_at(one, reachable), self._sigma_at(other, reachable)
        return math.sqrt(a**2 + b**2 - 2 * self.error_correlation * a * b)

    def _sigma_at(self, score: Score, reachable: Reachable) -> float:
        tool, level = score
        low, high = reachable.get(tool, (LOWEST, HIGHEST))
        beyond = 0.0
        if level >= high - FLAT:
            beyond = HIGHEST - high
        elif level <= low + FLAT:
            beyond = low - LOWEST
        return math.sqrt(self.sigma(tool) ** 2 + beyond**2 / 3)

    def _correlation(self, a: str, b: str) -> float:
        copies = any({a, b} <= {*names} for names in self.near_copies)
        return 1.0 if a == b or copies else self.error_correlation


@functools.cache
def load_reliability(path: Path = SHIPPED) -> Reliability:
    """The records that ship. Raises FileError for a file that is damaged."""
    return read_record(path, Reliability)

"""What /metrics tells, in Prometheus' text format 0.0.4: counters, gauges and a histogram of seconds."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from agentic_iqa_local.serve.asks import TOKENS, Answer, Ask
from agentic_iqa_local.state import LEVEL_WORDS

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # seconds
KINDS = ("assess", "compare", "batch")
UNRATED = "none"  # the level of a picture that was asked a question about
CODES = ("not_assessed", "out_of_time", "failing", "stopped")


class Metrics:
    """Counts since the start. The event loop counts requests, the engine's thread answers; either may read
    while the other writes, since no key is added to what the other reads."""

    def __init__(self) -> None:
        self.requests = Counter[tuple[str, int]]()  # route, status
        self._pictures = Counter[str](dict.fromkeys((*LEVEL_WORDS.values(), UNRATED), 0))
        self._failures = Counter[str](dict.fromkeys(CODES, 0))
        self._tokens = Counter[str](dict.fromkeys(TOKENS, 0))
        self._buckets: dict[str, list[int]] = {kind: [0] * (len(BOUNDS) + 1) for kind in KINDS}
        self._seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)

    def answered(self, ask: Ask, answer: Answer, seconds: float, of_batch: bool, code: str | None) -> None:
        """Counts an answer that came after `seconds`; `code` is that of its failure, None for none."""
        kind = "batch" if of_batch else "compare" if len(ask.pictures) > 1 else "assess"
        self._buckets[kind][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[kind] += seconds
        self._pictures.update(level or UNRATED for level in answer.levels)
        self._tokens.update(answer.tokens)
        if code:
            self._failures[code] += 1

    def text(self, gauges: Mapping[str, tuple[float, str]]) -> str:
        """Everything, with `gauges`: what each is now, and what it says."""
        requests = [
            (f'{{route="{route}",status="{status}"}}', count)
            for (route, status), count in sorted(self.requests.items())
        ]
        waited = "From a request's place in the queue to its answer, of a batch's picture from its turn."
        levels = _by("level", self._pictures)
        lines = [
            *_family("requests_total", "counter", "Requests by route and status.", requests),
            *_family("pictures_total", "counter", "Assessed pictures by level.", levels),
            *_family("failures_total", "counter", "Asks without an answer.", _by("code", self._failures)),
            *_family("tokens_total", "counter", "Tokens of the model.", _by("kind", self._tokens)),
            *_family("answer_seconds", "histogram", waited, self._histogram()),
        ]
        for name, (value, about) in gauges.items():
            lines += _family(name, "gauge", about, [("", value)])
        return "\n".join(lines) + "\n"

    def _histogram(self) -> Iterator[tuple[str, float]]:
        for kind, counts in self._buckets.items():
            below = 0
            for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
                below += count
                yield f'_bucket{{kind="{kind}",le="{bound}"}}', below
            yield f'_sum{{kind="{kind}"}}', round(self._seconds[kind], 3)
            yield f'_count{{kind="{kind}"}}', below


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[str, float]]:
    return [(f'{{{label}="{value}"}}', count) for value, count in counts.items()]


def _family(name: str, kind: str, about: str, samples: Any) -> list[str]:
    full = f"agentic_iqa_{name}"
    return [
        f"# HELP {full} {about}",
        f"# TYPE {full} {kind}",
        *(f"{full}{labels} {value}" for labels, value in samples),
    ]

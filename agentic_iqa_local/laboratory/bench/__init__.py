"""Benchmarks: what prefix sharing, engines and batching save, what tools cost, what replans make good."""

from agentic_iqa_local.laboratory.bench.command import main, parse
from agentic_iqa_local.laboratory.bench.replans import gaps
from agentic_iqa_local.laboratory.bench.tables import tables

__all__ = ["gaps", "main", "parse", "tables"]

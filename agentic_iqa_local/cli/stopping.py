"""Ctrl-C during a batch: the first finishes what is in hand, the second stops at once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentic_iqa_local.cli.console import like_ctrl_c
from agentic_iqa_local.errors import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import RayRunner
    from agentic_iqa_local.batch.runner import Runner


@contextmanager
def stopped_by_ctrl_c(batch: "Runner | RayRunner", go_on: str) -> Iterator[None]:
    """Meanwhile Ctrl-C, and a polite kill, stop `batch`. `go_on` says how to go on with it."""

    def interrupted(*_: object) -> None:
        if batch.stopping:
            os.write(2, f"\nstopped; {one_line(go_on)}\n".encode())
            os._exit(130)
        batch.stop()
        os.write(2, b"\nstopping when the pictures in hand are finished; Ctrl-C again stops at once\n")

    with like_ctrl_c(interrupted):
        yield

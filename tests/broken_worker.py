"""What runs in the process of a batch in tests: the product's own, with something broken in it."""

import ctypes
import os
import signal
import time

from agentic_iqa_local.batch import batch_worker
from agentic_iqa_local.iqa_tools import ToolRunner

SERVE = batch_worker._serve
BROKEN = (224, 192)  # the size of the picture at which it breaks


def _breaking(what):
    score = ToolRunner.score

    def broken(self, name, image, *rest):
        if image.size == BROKEN:
            what()
        return score(self, name, image, *rest)

    ToolRunner.score = broken


def hangs(*args):
    _breaking(lambda: time.sleep(10_000))
    SERVE(*args)


def hangs_with_the_interpreter(*args):
    _breaking(lambda: ctypes.PyDLL(None).sleep(10_000))  # PyDLL keeps the interpreter's lock
    SERVE(*args)


def crashes(*args):
    _breaking(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    SERVE(*args)


def does_not_start(*args):
    os._exit(7)

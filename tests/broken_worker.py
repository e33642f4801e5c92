"""What runs in the process of a batch in tests: the product's own, with something broken in it."""

import ctypes
import logging
import math
import os
import signal
import threading

from agentic_iqa_local.batch import batch_worker
from agentic_iqa_local.iqa_tools import ToolRunner

SERVE, BATCH = batch_worker._serve, batch_worker.Batch
BROKEN = (224, 192)  # the size of the picture at which it breaks
HANGS_NOW = "the interpreter hangs now"


def _breaking(what):
    score = ToolRunner.score

    def broken(self, name, image, *rest):
        if image.size == BROKEN:
            what()
        return score(self, name, image, *rest)

    ToolRunner.score = broken


def hangs(*args):
    """The image's time is over as soon as its tool hangs: the test takes no longer, and no other image is
    late on a busy machine."""
    made = []

    def batch(*args, **options):
        made.append(BATCH(*args, **options))
        return made[-1]

    def hang():
        made[-1]._turns._holder.deadline = -math.inf
        threading.Event().wait()

    batch_worker.Batch = batch
    _breaking(hang)
    SERVE(*args)


def hangs_with_the_interpreter(*args):
    """It says so first: from then on the test lets the parent's time pass."""

    def hang():
        logging.getLogger(__name__).warning(HANGS_NOW)
        ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter's lock

    _breaking(hang)
    SERVE(*args)


def crashes(*args):
    _breaking(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    SERVE(*args)


def does_not_start(*args):
    os._exit(7)

"""What runs at the workers of a cluster in tests where only what the driver does is looked at: no model."""

import os
import signal
import threading
import time
from dataclasses import dataclass

from agentic_iqa_local.batch.batch_worker import _Child
from agentic_iqa_local.batch.work import Assessing
from agentic_iqa_local.images.files import read_file

FATAL, HANGS, SLOW = "fatal.png", "hangs.png", "slow.png"


@dataclass(frozen=True)
class Reading(Assessing):
    """Each row says where it was made, and how many bytes the picture and its reference have there."""

    def row(self, item, services, observer):
        sizes = [len(read_file(path)) for path in self.files(item)]
        return self.failure(item, f"made at {os.environ.get('TEST_NODE')} by {os.getpid()}: {sizes}")


def without_model(pipe, work, device, window, loads, level):
    """FATAL kills the process; HANGS has a row as of a picture whose time is over; SLOW takes until there is a
    file at TEST_GO."""
    child = _Child(pipe)
    for task in (child.listen, child.beat):
        threading.Thread(target=task, daemon=True).start()
    child.say(
        "ready", {"loaded": {"dtype": os.environ.get("TEST_DTYPE", "float32")}, "work": {"by": "stand-in"}}
    )
    stopping = threading.Event()
    child.batch = type("Batch", (), {"stop": lambda self: stopping.set(), "wake": lambda self: None})()
    while not stopping.is_set() and (item := child._items.get()):
        if item.image.name == FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        while item.image.name.endswith(SLOW) and not os.path.exists(os.environ["TEST_GO"]):
            time.sleep(0.02)
        row, hung = work.row(item, None, None), item.image.name == HANGS
        child.say("row", work.key(row), work.sent(row), hung, hung)
    child.say("stopped")

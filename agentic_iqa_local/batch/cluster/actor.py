"""What runs at a worker: a window of work (`batch`) behind two queues, which Ray's calls fill and empty.

Nothing but the standard library is imported before the number of threads is set: numeric libraries read it
once.
"""

import os
import pickle
import queue
import threading
from contextlib import suppress
from typing import Any

MODELS = "AGENTIC_IQA_MODELS"
PAUSE = 5.0  # seconds after which `hear` answers that there is nothing

Message = tuple[Any, ...]


class Pipe:
    """The end of a pipe that `batch_worker` expects."""

    def __init__(self) -> None:
        self.incoming: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.outgoing: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        self.outgoing.put(message)

    def recv(self) -> Message:
        return self.incoming.get()


class Servant:
    """One worker. It first says what it has ("identity"), and loads models only when it is told to "go"; from
    then on its messages are those of `batch_worker`.

    `errand` is a pickled function with its arguments after the pipe, unpacked when the threads are set;
    `folder` the driver's working folder, which relative paths mean; `models` the driver's models folder, used
    where this machine names none of its own.
    """

    def __init__(self, errand: bytes, folder: str, models: str | None, threads: int):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if models and MODELS not in os.environ and os.path.isdir(models):
            os.environ[MODELS] = models
        with suppress(OSError):  # where it is not there, no relative path is seen
            os.chdir(folder)
        self._pipe = Pipe()
        threading.Thread(target=self._run, args=(errand,), daemon=True).start()

    def take(self, *message: Any) -> None:
        self._pipe.incoming.put(message)

    def hear(self) -> list[Message]:
        """What there is to say; nothing after PAUSE seconds, which is a sign of life."""
        found = []
        with suppress(queue.Empty):
            found.append(self._pipe.outgoing.get(timeout=PAUSE))
            while True:
                found.append(self._pipe.outgoing.get_nowait())
        return found

    def _run(self, errand: bytes) -> None:
        say = self._pipe.send
        try:
            target, work, device, *rest = pickle.loads(errand)  # nosec B301 # of the driver
            from agentic_iqa_local.batch.cluster.identity import of_node
            from agentic_iqa_local.batch.cluster.sight import Afar
            from agentic_iqa_local.errors import UserError
        except BaseException as error:  # another version of this package, or none
            return say(("crashed", f"{type(error).__name__}: {error}"))
        try:
            say(("identity", of_node(work, device)))
            if self._pipe.recv() == ("go",):
                target(self._pipe, Afar(work), device, *rest)
        except UserError as error:
            say(("refused", str(error)))
        except BaseException as error:  # the process would have died of it
            say(("crashed", f"{type(error).__name__}: {error}"))

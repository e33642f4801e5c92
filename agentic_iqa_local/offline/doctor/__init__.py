"""Examines whether a set-up will work on this machine: what is found, whether it will do, and the remedy
where it will not.

Every check runs in a process apart, where Python's sockets reach nothing: one that hangs, crashes or is
killed for want of memory is a failed check, and the next gets a new process. Models and tools are loaded by
the code that assessments use, so that what passes here is what runs there. `examine` yields the checks;
`scripts/doctor.py` prints them.
"""

from agentic_iqa_local.offline.doctor.checks import Check, as_text
from agentic_iqa_local.offline.doctor.examination import TIMEOUT, examine

__all__ = ["TIMEOUT", "Check", "as_text", "examine"]

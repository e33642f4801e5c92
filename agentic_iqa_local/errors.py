"""The one root of what a user can mend."""

from agentic_iqa_local.text import one_line


class UserError(Exception):
    """Something that the user can mend. The message is one sentence: what was expected, what came, what to
    do.

    It may quote what comes from elsewhere: whatever would break its line or steer a terminal is escaped.
    """

    def __init__(self, message: str):
        super().__init__(one_line(message))

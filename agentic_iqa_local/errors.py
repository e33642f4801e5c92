"""The one root of what a user can mend."""

from agentic_iqa_local.text import one_line


class UserError(Exception):
    """Something that the user can mend: `message` says what was expected and what came, `remedy` what to do.

    Both may quote what comes from elsewhere: whatever would break their line or steer a terminal is escaped.
    An error survives pickling, since it may go from one process to another.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message, self.remedy = one_line(message), one_line(remedy)
        super().__init__(self.message, self.remedy)  # what pickle makes it anew of

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

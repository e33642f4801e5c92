"""The one root of what a user can mend."""


class UserError(Exception):
    """Something that the user can mend. The message is one sentence: what was expected, what came, what to do."""

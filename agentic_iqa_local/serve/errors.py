"""What the service answers where there is no answer: a status, a code, a sentence and a remedy."""

from typing import Any

from agentic_iqa_local.errors import one_line


class Refused(Exception):
    """A request that is not answered. `extra` is put beside the error, `headers` on the answer."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        remedy: str | None = None,
        *,
        extra: Any = None,
        **headers: str,
    ):
        self.status, self.code, self.extra = status, code, extra or {}
        self.message, self.remedy = one_line(message), one_line(remedy) if remedy else None
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(self.message)

    def body(self) -> dict[str, Any]:
        about = {"code": self.code, "message": self.message, "remedy": self.remedy}
        return {"error": about} | self.extra

"""The file that a run writes, as another run reads it: what was read and measured, and what that rests on."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.files import FileError, first_mistake, read_json
from agentic_iqa_local.paths import PACKAGE

FORMAT = 1
LARGEST = 2**26  # bytes
RECORD = PACKAGE / "offline" / "certify" / "reference.json"


class CertificateError(UserError, ValueError):
    """A file that is no certificate."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Tools(_Part):
    """Scores by tool and picture: (raw, of 5); and by tool the hashes of its files."""

    scores: dict[str, dict[str, tuple[float, float]]] = {}
    about: dict[str, dict[str, str]] = {}


class Readings(_Part):
    """What a set-up's model read: how (`about`, as its client says), the letters' log-probabilities by
    picture, what it saw of each, its prompt and the letters' tokens."""

    about: dict[str, Any]
    letters: dict[str, dict[str, float]]
    seen: dict[str, dict[str, Any]] = {}
    prompt: str | None = None
    tokens: dict[str, int] = {}


class Certificate(_Part):
    """What two machines compare. `probes` are the pictures' hashes; `model` is None where none was read."""

    format: Literal[1] = FORMAT
    made: dict[str, Any] = {}
    identity: dict[str, Any]
    probes: dict[str, str]
    model: Readings | None = None
    others: dict[str, dict[str, dict[str, float]]] = {}
    tools: Tools = Tools()


def read_certificate(path: Path) -> Certificate:
    """Raises CertificateError for a file that certify did not write."""
    try:
        return Certificate.model_validate(read_json(path, LARGEST))
    except FileError as error:
        raise CertificateError(f"{path}: {error}", "name a certificate.json that certify wrote") from error
    except ValidationError as error:
        raise CertificateError(
            f"{path}: expected a certificate.json of certify ({first_mistake(error)})", "name another file"
        ) from error


def shipped_record(folder: Path) -> tuple[Certificate, bool]:
    """(the record that ships, whether it is of the model in `folder` too). A model's folder is known by its
    name and not by its content, so that another content is found."""
    record = read_certificate(RECORD)
    names = {folder.name, folder.resolve().name}
    return record, record.model is not None and record.made.get("model") in names

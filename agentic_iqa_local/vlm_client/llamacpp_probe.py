"""Does a llama.cpp server give the letters of the model that lies in the folder? Two shipped
pictures tell, once for each model, build and set-up.

It reads the same letters twice, in two shapes of picture, with another sampling, and of a picture
whose EXIF data ask to turn it: all must agree. Texts and counts of tokens are compared with each
request.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError

from agentic_iqa_local.files import ROOT, FileError, read_json, read_record, write_whole
from agentic_iqa_local.vlm_client import LetterRead, VLMError
from agentic_iqa_local.vlm_client.chat import ChatPrompt

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # its one line is always told

LETTERS = "ABCDE"
PREFIX = '{"final_answer": "'
PROMPT = ChatPrompt(
    "System:\nRate the quality of the image: A. Excellent B. Good C. Fair D. Poor E. Bad.\n"
    'Answer as JSON: {"final_answer": "<one letter>"}',
    "Query: How good is it?",
)
# left, top, right, bottom in a shipped picture: one wide, one high
WINDOWS = {"sumac": (128, 144, 384, 368), "prudential": (128, 96, 352, 416)}
MOST_APART = 0.05
"""Nats by which readings of one picture may differ: with and without the cache other kernels sum,
in half precision."""
ORIENTATION, TURNED = 0x0112, 6  # EXIF: turn by 90°


class Probe(BaseModel):
    """What was found: whether the build has llguidance, and by how many nats readings of one
    picture differed at most."""

    guidance: bool
    apart: float


class Reply(BaseModel):
    """One letter."""

    model_config = ConfigDict(extra="forbid")
    final_answer: Literal["A", "B", "C", "D", "E"]


def probed(client: Any) -> Probe:
    """The probe of a client, kept from an earlier start where nothing has changed since. Raises
    VLMError for a server whose letters cannot be used."""
    place = _place(client)
    with suppress(FileError):
        return read_record(place, Probe, read_json)
    probe = _probe(client)
    with suppress(OSError, FileError):  # without a place for it, it is made at each start
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, probe.model_dump_json())
    logger.info("%s", said(client, probe))
    return probe


def said(client: Any, probe: Probe) -> str:
    """The probe's line."""
    style = "llguidance" if probe.guidance else "llama.cpp's own JSON grammar"
    return (
        f"{client.label} ({client.version}, {client.properties.model_ftype}) passed its probe: it"
        " makes as many tokens of two pictures as the processor, its letters are raw and repeat"
        f" within {probe.apart:.2g} nats, EXIF data change nothing, and {style} keeps answers to"
        " their schema"
    )


def _place(client: Any) -> Path:
    """The file that keeps the probe of these model files, build and set-up."""
    about = [client.version, client.properties.model_path, str(client.limits), client.device]
    about.append(client.settings.model_dump_json())
    for file in client.local.files if client.local else ():
        state = file.stat()
        about.append(f"{file} {state.st_size} {state.st_mtime_ns}")
    name = hashlib.sha256("\n".join(about).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "agentic-iqa" / "llamacpp" / f"{name[:32]}.json"


def _probe(client: Any) -> Probe:
    apart = []
    for name, window in WINDOWS.items():
        with Image.open(ROOT / "tests" / "data" / f"{name}.png") as photograph:
            picture = photograph.convert("RGB").crop(window)
        apart += _apart(client, picture)
    return Probe(guidance=_has_guidance(client, picture), apart=max(apart))


def _apart(client: Any, picture: Image.Image) -> Iterator[float]:
    """By how many nats the letters of a picture differ from themselves, in each way of reading
    them. Raises VLMError where it is too much."""
    session, turned = client.open([picture]), client.open([picture])
    turned.exif = Image.Exif()
    turned.exif[ORIENTATION] = TURNED
    first = _letters(session)
    others = {
        "a second time": _letters(session),
        "with another sampling": _letters(session, sampled=-1, temperature=2.0),
        "of the picture with EXIF data": _letters(turned),
    }
    for when, letters in others.items():
        apart = max(abs(letters[letter] - first[letter]) for letter in LETTERS)
        if apart > MOST_APART:
            differ = f"expected the same letters {when}, they differ by {apart:.2g} nats"
            advice = "its letters cannot be used: try another build or file"
            raise VLMError(f"{client.label}: {differ}", advice)
        yield apart


def _letters(session: Any, sampled: int = 0, temperature: float = 0.0) -> dict[str, float]:
    """The letters' log-probabilities as they are read where the one of this index is sampled."""
    client = session.client
    rendered, ids = client.renderer.letters(PROMPT, 1, PREFIX, LETTERS)
    tokens = list(ids.values())
    how = {"sampled": tokens[sampled], "temperature": temperature}
    logprobs = session.most_likely(rendered, tokens, **how)
    return LetterRead.of(client.label, logprobs, ids).logprobs


def _has_guidance(client: Any, picture: Image.Image) -> bool:
    """Whether the program's own server writes JSON with llguidance; another is not asked, since a
    build without it may abort. Raises VLMError for one that does not write JSON in any way."""
    session = client.open([picture])
    for session.guidance in (True, False) if client.local else (False,):
        with suppress(ValidationError):
            Reply.model_validate_json(session.generate(PROMPT, Reply))
            return session.guidance
    mistake = f"{client.label}: expected JSON of a schema, it wrote something else"
    raise VLMError(mistake, "use a build with grammars")

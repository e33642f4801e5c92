"""The pages' HTML, CSS and scripts, and the policy under which a page that opens from disk runs them."""

import base64
import hashlib
from pathlib import Path

import jinja2

FOLDER = Path(__file__).parent


def source(*names: str) -> str:
    """The text of files of this folder, one behind the other."""
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def environment(folder: Path = FOLDER) -> jinja2.Environment:
    """Where the templates of a folder become pages: what is put into one is escaped, and a name that is not
    there is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy: nothing from anywhere, of styles and scripts those of this page alone."""
    allowed = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{allowed[0]}';"
        f" script-src 'sha256-{allowed[1]}'; base-uri 'none'; form-action 'none'"
    )

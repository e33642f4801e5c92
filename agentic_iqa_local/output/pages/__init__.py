"""The pages' HTML, CSS and scripts, and the policy under which a page that opens from disk runs
them."""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

FOLDER = Path(__file__).parent
ACCOUNT = FOLDER / "account"  # what all pages share: colours, texts, the scale and the account
# what a script that is no module lacks
MODULE = re.compile(r"^(import .*\n|export )", re.MULTILINE)


def environment(folder: Path = FOLDER) -> jinja2.Environment:
    """Where the templates of a folder become pages: what is put into one is escaped, and a name
    that is not there is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def own_files(styles: Sequence[str], scripts: Sequence[str]) -> dict[str, Markup | str]:
    """The `style` and the `script` of a page that opens from disk, made of files of this folder,
    and its `policy`: nothing comes from anywhere, and no other style or script runs."""
    style, script = _source(styles), MODULE.sub("", _source(scripts))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}';"
        " base-uri 'none'; form-action 'none'"
    )
    return {"style": Markup(style), "script": Markup(script), "policy": policy}


def _source(names: Sequence[str]) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""YAML that comes from elsewhere, as plain values: configurations and tool maps. The only reader of YAML."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from agentic_iqa_local.files import DEEPEST, FileError, read_bytes, walk

LARGEST = 2**18  # bytes: PyYAML takes seconds for more
MOST_PARTS = 10_000  # mappings and lists, those behind an alias counted wherever it stands


class _Loader(yaml.SafeLoader):
    """Plain values only. Keys given twice are errors, and so are merge keys (<<), which can grow without
    bound."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        names = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for (tag, name), count in names.items():
            if tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected no merge keys, got {name}", node.start_mark
                )
            if count > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected each key once, got {name} twice", node.start_mark
                )


def read_yaml(path: str | Path) -> Any:
    """The value in a YAML file of at most `LARGEST` bytes, nested at most `files.DEEPEST` deep, with at most
    `MOST_PARTS` mappings and lists. Raises FileError."""
    content = read_bytes(path, LARGEST)
    try:
        value = yaml.load(content.decode("utf-8"), _Loader)  # nosec B506 # a SafeLoader
    except Exception as error:  # PyYAML raises nearly any type: RecursionError, KeyError, AttributeError ...
        # it quotes the line, in which an address may hold a password
        said = re.sub("://[^/\\s]*@", "://", " ".join(str(error).split()))
        raise FileError(f"not valid YAML ({said})") from None
    for count, (_, depth) in enumerate(walk(value) if isinstance(value, (dict, list)) else (), 1):
        if depth > DEEPEST or count > MOST_PARTS:
            raise FileError(
                f"expected at most {MOST_PARTS} mappings and lists, nested at most {DEEPEST} deep, got more"
            )
    return value

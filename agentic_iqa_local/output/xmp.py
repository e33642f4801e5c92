"""One XMP sidecar, as bytes: what is added to it is one rdf:Description, and every other byte stays
but for values that mean "none given".

The names of what was written, with the values, stand in a namespace of this program (`MARK`). By
these it is renewed and taken back, also after another program has put the properties elsewhere
(XMP specification, part 1, 7.4: a packet may have several rdf:Descriptions).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from agentic_iqa_local.errors import UserError

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
MARK = "urn:agentic-iqa:xmp:1.0/"
SPACES = {
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "dc": "http://purl.org/dc/elements/1.1/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "xmpDM": "http://ns.adobe.com/xmp/1.0/DynamicMedia/",
    "darktable": "http://darktable.sf.net/",
    "agenticiqa": MARK,
}
PREFIXES = {space: prefix for prefix, space in SPACES.items()}
# what programs write where nobody gave anything
NONE_GIVEN = {
    "xmp:Rating": ("", "0"),
    "xmp:Label": ("", "None", "NoColor"),
    "digiKam:PickLabel": ("", "0"),
    "xmpDM:pick": ("", "0"),
}
COLOURS = {"darktable:colorlabels": ("",), "digiKam:ColorLabel": ("", "0")}  # labels as well
EMPTY = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="agentic-iqa">\n'
    f'<rdf:RDF xmlns:rdf="{RDF}">\n</rdf:RDF>\n</x:xmpmeta>\n'
).encode()
"""A sidecar that nothing stands in; undoing what made one leaves these bytes."""

DEEPEST = 100  # elements within one another
_LIST, _DESCRIPTION = f"{RDF} RDF", f"{RDF} Description"
_TAG = re.compile(rb"""<[^>"']*(?:(?:"[^"]*"|'[^']*')[^>"']*)*>""")
_ATTRIBUTE = re.compile(
    rb"""\s+([^\s=]+)\s*=\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)""", re.DOTALL
)

Span = tuple[int, int]
Edits = list[tuple[Span, bytes]]


class SidecarError(UserError, ValueError):
    """A file that is no sidecar which can be merged into; the message lacks its name."""


@dataclass
class Property:
    """A value and where it stands: with its name, and alone (None for <xmp:Rating/>)."""

    value: str
    whole: Span
    inner: Span | None


@dataclass
class Sidecar:
    """What is read of a sidecar. `block` is where the rdf:Description of this program begins, `end`
    where the list of them ends."""

    content: bytes
    about: str = ""
    found: dict[str, Property] = field(default_factory=dict)
    block: int | None = None
    end: int | None = None

    @property
    def written(self) -> dict[str, str]:
        """What this program wrote, as it was then, by property."""
        return self._marked("was_")

    @property
    def instead_of(self) -> dict[str, str]:
        """What stood in place of some of that."""
        return self._marked("before_")

    def _marked(self, kind: str) -> dict[str, str]:
        begins, marked = f"agenticiqa:{kind}", {}
        for name, one in self.found.items():
            if name.startswith(begins):
                marked[name.removeprefix(begins).replace("_", ":")] = one.value
        return marked

    @property
    def unchanged(self) -> dict[str, str]:
        """What this program wrote and nobody has changed since."""
        written = self.written.items()
        return {name: value for name, value in written if self.value(name) == value}

    def value(self, name: str) -> str | None:
        """The value of a property; None where there is none."""
        return self.found[name].value if name in self.found else None

    def gives(self, name: str) -> bool:
        """Whether somebody gave the property a value, a label maybe by its colour."""
        if name == "xmp:Label":
            for colour, none in COLOURS.items():
                if self.value(colour) not in (None, *none):
                    return True
        one = self.found.get(name)
        if one is None:
            return False
        return one.inner is None or one.value not in NONE_GIVEN.get(name, ())


def read(content: bytes) -> Sidecar:
    """A sidecar in UTF-8. Raises SidecarError for what is none; with a DTD, whose entities may grow
    without end or name other files, it is none."""
    reader = _Reader(content)
    if reader.sidecar.end is None:
        raise SidecarError("expected XMP, got XML without rdf:RDF")
    return reader.sidecar


class _Reader:
    """Follows expat through the content."""

    def __init__(self, content: bytes):
        self.sidecar = Sidecar(content)
        self._open: list[str] = []  # the elements that have begun
        self._begun = (0, 0)  # the start tag of the property that has begun
        self._text: list[str] = []
        self._parser: Any = expat.ParserCreate("utf-8", " ")
        self._parser.namespace_prefixes = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text.append
        try:
            if "\0" in content.decode():
                raise SidecarError("expected XMP in UTF-8, got another encoding")
            self._parser.Parse(content, True)
        except UnicodeDecodeError:
            raise SidecarError("expected XMP in UTF-8, got another encoding") from None
        except expat.ExpatError as error:
            raise SidecarError(f"expected XMP in UTF-8, got no XML ({error})") from None

    def _doctype(self, *_: object) -> None:
        raise SidecarError("expected XMP, got XML with a DTD")

    @property
    def _depth(self) -> int:
        """Of the innermost element: 1 for rdf:RDF, 2 for a description in it, 3 for a property."""
        outer = self._open[:2]
        return len(self._open) - outer.index(_LIST) if _LIST in outer else 0

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._open.append(_plain(name))
        if len(self._open) > DEEPEST:
            raise SidecarError("expected XMP, got XML that is nested too deeply")
        depth = self._depth
        if depth not in (2, 3):
            return
        here = self._parser.CurrentByteIndex
        tag = _TAG.match(self.sidecar.content, here)
        assert tag, "expat took a tag that has no end"
        if depth == 3:
            self._begun = tag.span()
            self._text.clear()
        elif self._open[-1] == _DESCRIPTION:
            self._description(tag, attributes)

    def _description(self, tag: re.Match[bytes], attributes: dict[str, str]) -> None:
        spans = {}
        head = re.compile(rb"<[^\s/>]+").match(tag[0])
        assert head
        for one in _ATTRIBUTE.finditer(tag[0], head.end()):
            whole, inner = _moved(one.span(), tag), _moved(one.span("value"), tag)
            spans[one[1].decode()] = whole, inner
        for name, value in attributes.items():
            known = _known(name)
            if _plain(name) == f"{RDF} about":
                self.sidecar.about = self.sidecar.about or value
            elif known:
                whole, inner = spans[_typed(name)]
                self.sidecar.found.setdefault(known, Property(value, whole, inner))
                if known.startswith("agenticiqa:"):
                    self.sidecar.block = tag.start()

    def _end(self, name: str) -> None:
        depth, here = self._depth, self._parser.CurrentByteIndex
        content = self.sidecar.content
        closes = content.startswith(b"</", here)
        if depth == 1:
            if not closes:
                raise SidecarError("expected XMP with rdf:Description, got an empty rdf:RDF")
            self.sidecar.end = here
        known = _known(name)
        if depth == 3 and known:
            start, inner_start = self._begun
            end = content.index(b">", here) + 1 if closes else inner_start
            inner = (inner_start, here) if closes else None
            text = "".join(self._text).strip()
            self.sidecar.found.setdefault(known, Property(text, (start, end), inner))
        self._open.pop()


def _plain(name: str) -> str:
    """expat's "namespace name prefix" without the prefix."""
    return " ".join(name.split(" ")[:2])


def _typed(name: str) -> str:
    """A name with its prefix, as it stands in the file."""
    _, local, *prefix = name.split(" ")
    return ":".join([*prefix, local])


def _known(name: str) -> str | None:
    """A property as this program names it, if its namespace is known."""
    space, _, local = _plain(name).partition(" ")
    return f"{PREFIXES[space]}:{local}" if space in PREFIXES else None


def _moved(span: Span, tag: re.Match[bytes]) -> Span:
    return span[0] + tag.start(), span[1] + tag.start()


def merged(
    content: bytes, changes: Mapping[str, str | None], given: Iterable[str] = ()
) -> tuple[bytes, list[str]]:
    """A sidecar with the changes, and the properties that stay as somebody gave them.

    Args:
        content: The sidecar; EMPTY for a new one.
        changes: The values of properties; None takes back what this program wrote.
        given: Properties that somebody gave elsewhere.

    Raises:
        SidecarError: See `read`.
    """
    old = read(content)
    bare = read(_without(old))
    values = old.unchanged
    for name, value in changes.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    kept = [name for name in values if name in given or bare.gives(name)]
    for name in kept:
        del values[name]
    return (_with(bare, values) if values else bare.content), kept


def _with(bare: Sidecar, values: Mapping[str, str]) -> bytes:
    """A sidecar without anything of this program, and these values."""
    instead_of, edits = {}, []
    for name, value in values.items():
        one = bare.found.get(name)
        if one and one.inner:
            instead_of[name] = bare.content[slice(*one.inner)].decode()
            edits.append((one.inner, _quotable(value)))
    assert bare.end is not None
    block = _block(bare.about, values, instead_of)
    return _edited(bare.content, [*edits, ((bare.end, bare.end), block)])


def _quotable(value: str) -> bytes:
    """A value that may stand in an element, and in an attribute between quotes of either kind."""
    return escape(value, {'"': "&quot;", "'": "&apos;"}).encode()


def _without(old: Sidecar) -> bytes:
    """The sidecar without what this program wrote and nobody has changed since."""
    written, instead_of, unchanged = old.written, old.instead_of, old.unchanged
    if not written:
        return old.content
    edits: Edits = []
    for name in instead_of.keys() & unchanged.keys():
        inner = old.found[name].inner
        if inner:
            edits.append((inner, instead_of[name].encode()))
    block = _block(old.about, written, instead_of)
    if old.block is not None and old.content.startswith(block, old.block):
        edits.append(((old.block, old.block + len(block)), b""))
    else:  # somebody, or another program, wrote it anew
        marks = [name for name in old.found if name.startswith("agenticiqa:")]
        for name in [*marks, *(unchanged.keys() - instead_of.keys())]:
            edits.append((old.found[name].whole, b""))
    return _edited(old.content, edits)


def _edited(content: bytes, edits: Edits) -> bytes:
    """The content with spans of it replaced."""
    parts, done = [], 0
    for (start, end), new in sorted(edits):
        parts += [content[done:start], new]
        done = end
    return b"".join([*parts, content[done:]])


def _block(about: str, values: Mapping[str, str], instead_of: Mapping[str, str]) -> bytes:
    """The rdf:Description with the values, but those that stand where others did, and what marks
    them."""
    own = {name: value for name, value in values.items() if name not in instead_of}
    words = own.pop("dc:description", None)
    attributes = dict(sorted(own.items()))
    for kind, marked in (("was", values), ("before", instead_of)):
        for name in sorted(marked):
            attributes[f"agenticiqa:{kind}_{name.replace(':', '_')}"] = marked[name]
    lines = [f"<rdf:Description rdf:about={quoteattr(about)}", f'xmlns:rdf="{RDF}"']
    for prefix in sorted({name.partition(":")[0] for name in [*attributes, "dc:description"]}):
        lines.append(f'xmlns:{prefix}="{SPACES[prefix]}"')
    lines += [f"{name}={quoteattr(value)}" for name, value in attributes.items()]
    text = "\n  ".join(lines) + ">\n"
    if words is not None:
        item = f'<rdf:li xml:lang="x-default">{escape(words)}</rdf:li>'
        text += f" <dc:description><rdf:Alt>{item}</rdf:Alt></dc:description>\n"
    return f"{text}</rdf:Description>\n".encode()

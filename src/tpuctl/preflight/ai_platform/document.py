"""A YAML or JSON file, read as text with the line of every key.

No objects are constructed, so the content cannot run code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.bounded_input import compose_yaml
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[str, ...]
_YamlNode = Any  # PyYAML's node; with the C loader its types do not say what marks hold
_NULL = "tag:yaml.org,2002:null"
_LONGEST, _DEEPEST, _MOST = 1 << 20, 24, 20_000


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as written, with its dotted key from the top of the file and its line, counted from 1."""

    value: str
    key: str
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file: every scalar and every key by its path. List items have their index as key."""

    source: str
    scalars: dict[Path, Text]
    lines: dict[Path, int]

    def text(self, *path: str) -> Text | None:
        """Return one scalar; None if it is absent, null or empty."""
        found = self.scalars.get(path)
        return found if found and found.value else None

    def items(self, *path: str) -> tuple[Text, ...]:
        """Return the scalars of a list, or the single scalar in its place."""
        if alone := self.text(*path):
            return (alone,)
        return tuple(text for where, text in self.scalars.items() if where[:-1] == path and where[-1].isdecimal())

    def keys(self, *path: str) -> Iterator[str]:
        """Yield the keys directly below a path, in file order."""
        return (where[-1] for where in self.lines if where[:-1] == path and len(where) == len(path) + 1)

    def has(self, *path: str) -> bool:
        """Return whether the file has a key, with any value."""
        return path in self.lines

    def place(self, *path: str) -> str:
        """Return `FILE line N` for a key."""
        return f"{self.source} line {self.lines.get(path, 1)}"


def read(text: str, source: str) -> Document:
    """Return the content of a text.

    Raises `InvalidInputError` if it is neither YAML nor JSON, if a key is duplicated, and if it is too large, too deep
    or expands through aliases.
    """
    if len(text) > _LONGEST:
        raise InvalidInputError(f"{source} is too large for a job's configuration", hint="name the file of one job")
    text = text.removeprefix("\ufeff")
    root = compose_yaml(_as_yaml(text) if text.lstrip().startswith("{") else text, source, most=_MOST)
    if root is None or root.id != "mapping":
        raise InvalidInputError(
            f"{source} is not a job's configuration: it holds no `key: value` lines",
            hint="name the file that `gcloud ai-platform jobs submit training --config` took",
        )
    document = Document(source, {}, {})
    _walk(root, (), document)
    return document


def _as_yaml(text: str) -> str:
    """Return JSON without what YAML rejects: tabs as indentation, and characters escaped as surrogate pairs."""
    # A line never begins within a string.
    text = re.sub(r"^[ \t]+", " ", text, flags=re.MULTILINE)

    def whole(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return chr(0x10000 + ((int(match[1], 16) & 0x3FF) << 10) + (int(match[2], 16) & 0x3FF))

    # An escaped backslash goes first: what follows it is no escape.
    return re.sub(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", whole, text, flags=re.IGNORECASE)


def _walk(node: _YamlNode, path: Path, document: Document) -> None:
    if len(path) > _DEEPEST or len(document.lines) > _MOST:
        raise InvalidInputError(f"{document.source} is nested too deeply for a job's configuration")
    if node.id == "scalar":
        value = "" if node.tag == _NULL else str(node.value)
        document.scalars[path] = Text(value, ".".join(path), document.lines.get(path, 1))
        return
    if node.id == "sequence":
        for number, item in enumerate(node.value):
            document.lines[*path, str(number)] = item.start_mark.line + 1
            _walk(item, (*path, str(number)), document)
        return
    for key_node, item in node.value:
        line = key_node.start_mark.line + 1
        if key_node.id != "scalar":
            raise InvalidInputError(f"{document.source} line {line}: a key must be a plain word")
        below = (*path, str(key_node.value))
        if below in document.lines:
            first = document.lines[below]
            raise InvalidInputError(
                f"{document.source} line {line}: `{key_node.value}` is duplicated, first in line {first}"
            )
        document.lines[below] = line
        _walk(item, below, document)

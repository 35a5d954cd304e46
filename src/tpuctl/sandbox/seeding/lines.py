"""Read YAML with the lines of its keys and values. No objects are constructed, so a file cannot run code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.bounded_input import compose_yaml
from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Path = tuple[str | int, ...]
_YamlNode = Any  # PyYAML's node; the types of the C loader lack the marks
_TAG = "tag:yaml.org,2002:"


class SeedError(InvalidInputError):
    """A file for the sandbox is invalid; the message names file, line and key."""

    kind = "seed"


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content as JSON, with the line of each key and item. Times stay text."""

    source: str
    value: Any  # JSON
    lines: Mapping[Path, int]

    def place(self, *path: str | int) -> str:
        """Return `FILE line N` for a key or an item."""
        known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines), ())
        return f"{self.source} line {self.lines.get(known, 1)}"

    def error(self, path: Path, text: str, *, hint: str | None = None) -> SeedError:
        """Return the error for a problem at a position."""
        return SeedError(f"{self.place(*path)}: {text}", hint=hint)

    def unknown(self, path: Path, known: Iterable[str]) -> SeedError:
        """Return the error for an unknown key, with the nearest known one."""
        known = list(known)
        near = nearest(str(path[-1]), known)
        hint = f"did you mean `{near}`?" if near else f"known are {', '.join(known)}"
        return self.error(path, f"unknown key `{path[-1]}`", hint=hint)


def read(text: str, source: str) -> Document:
    """Parse a YAML text. Raises `SeedError` for broken YAML, a duplicate key, or a tag."""
    root = compose_yaml(text, source, error=SeedError)
    lines: dict[Path, int] = {}
    value = None if root is None else _value(root, (), lines, source)
    return Document(source, value, lines)


def _value(node: _YamlNode, path: Path, lines: dict[Path, int], source: str) -> Any:  # JSON
    lines.setdefault(path, node.start_mark.line + 1)
    if node.id == "sequence":
        return [_value(item, (*path, index), lines, source) for index, item in enumerate(node.value)]
    if node.id == "mapping":
        found: dict[str, Any] = {}
        for key_node, item in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key_node.id != "scalar" or key_node.tag == f"{_TAG}merge":
                raise SeedError(f"{source} line {line}: a key must be a plain word")
            if key in found:
                raise SeedError(f"{source} line {line}: duplicate key `{key}`")
            lines[(*path, key)] = line
            found[key] = _value(item, (*path, key), lines, source)
        return found
    return _scalar(node)


def _scalar(node: _YamlNode) -> str | int | float | bool | None:
    text = str(node.value)
    match str(node.tag).removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() in {"true", "yes", "on"}
        # YAML 1.1 would read 10:30 as 630, and 010 as 8. A number that no field can hold stays text, and is rejected as such.
        case "int" if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text):
            return int(text)
        case "float" if re.fullmatch(r"-?\d{1,17}\.\d{0,17}", text):
            return float(text)
        case _:
            return text

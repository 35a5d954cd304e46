"""Read YAML: the project's own data, and files of users within limits of size and depth, with the line of each value.

Nodes are composed, and no objects are constructed from a user's file, so that it cannot run anything.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KeyPath = tuple[str | int, ...]
_TAG = "tag:yaml.org,2002:"
# PyYAML builds nodes by recursion, in C: a few thousand levels crash the process. No real document is this deep.
YAML_MAX_DEPTH = 32
_TOO_DEEP = f"nested deeper than {YAML_MAX_DEPTH} levels"
YAML_MAX_LENGTH = 4 << 20
YAML_MAX_VALUES = 100_000
# libyaml compares each directive with all before it.
_MAX_DIRECTIVES = 16
_YamlNode = Any  # PyYAML's node; with the C loader its types do not say what marks hold


def load_data(name: str) -> Any:  # the content of the file
    """Return the first document of a file of `tpuctl.data`, such as `accelerators.yaml`."""
    import yaml  # noqa: PLC0415  # 12 ms, and most commands read no YAML

    # importlib.resources takes 7 ms to import.
    text = (Path(__file__).parent / "data" / name).read_text("utf-8")
    return next(
        yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    )  # the safe loader, in C if there is one


def read_data_ids(name: str) -> tuple[str, ...]:
    """Return the ids of the entries of a file of `tpuctl.data`, in a hundredth of the time that reading the entries takes."""
    text = (Path(__file__).parent / "data" / name).read_text("utf-8")
    return tuple(re.findall(r"^- id: ([\w-]+)$", text, re.MULTILINE))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A file's content as JSON, with the line of each key and item. Times and dates stay text."""

    source: str
    value: Any  # JSON
    lines: Mapping[KeyPath, int]
    error_class: type[InvalidInputError] = InvalidInputError

    def place(self, *path: str | int) -> str:
        """Return `FILE line N` for a key or an item."""
        known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines), ())
        return f"{self.source} line {self.lines.get(known, 1)}"

    def error(self, path: KeyPath, text: str, *, hint: str | None = None) -> InvalidInputError:
        """Return the error for a problem at a position."""
        return self.error_class(f"{self.place(*path)}: {text}", hint=hint)

    def unknown(self, path: KeyPath, known: Iterable[str]) -> InvalidInputError:
        """Return the error for an unknown key, with the nearest known one."""
        known = list(known)
        near = closest_match(str(path[-1]), known)
        hint = f"did you mean `{near}`?" if near else f"known are {', '.join(known)}"
        return self.error(path, f"unknown key `{path[-1]}`", hint=hint)


def parse_document(
    text: str,
    source: str,
    *,
    error: type[InvalidInputError] = InvalidInputError,
    most: int = YAML_MAX_VALUES,
    as_written: bool = False,
) -> YamlDocument:
    """Parse a user's YAML text. Raises `error`, with `source` and the line, as `compose_yaml` does and for a duplicate key.

    `as_written`: scalars stay text, such as the version `2.10`; null is empty.
    """
    root = compose_yaml(text, source, error=error, most=most)
    lines: dict[KeyPath, int] = {}

    def parse(node: _YamlNode, path: KeyPath) -> Any:  # JSON
        lines.setdefault(path, node.start_mark.line + 1)
        if node.id == "sequence":
            return [parse(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.id != "mapping":
            value = _parse_scalar(node)
            return value if not as_written else "" if value is None else str(node.value)
        found: dict[str, Any] = {}
        for key_node, item in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key_node.id != "scalar" or key_node.tag == f"{_TAG}merge":
                raise error(f"{source} line {line}: a key must be a plain word")
            if key in found:
                raise error(f"{source} line {line}: duplicate key `{key}`")
            lines[(*path, key)] = line
            found[key] = parse(item, (*path, key))
        return found

    value = None if root is None else parse(root, ())
    return YamlDocument(source, value, lines, error)


def _parse_scalar(node: _YamlNode) -> str | int | float | bool | None:
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


def compose_yaml(
    text: str,
    source: str,
    *,
    error: type[InvalidInputError] = InvalidInputError,
    longest: int = YAML_MAX_LENGTH,
    most: int = YAML_MAX_VALUES,
) -> _YamlNode | None:
    """Return the root node of a YAML document; None if it is empty. Nodes have line numbers, and construct no objects.

    Raises `error`, with `source` and the line, if it is not YAML, has more than `YAML_MAX_DEPTH` levels, has more than `most`
    values with aliases expanded, or contains itself.
    """
    if not text:
        return None
    if len(text) > longest:
        raise error(f"{source}: larger than {longest >> 10} KiB of text")
    if text.startswith("%") + text.count("\n%") > _MAX_DIRECTIVES:
        raise error(f"{source}: more than {_MAX_DIRECTIVES} YAML directives")
    import yaml  # noqa: PLC0415  # most commands read no YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    parsed_to = 0

    def parse_events() -> Iterator[Any]:  # as `_YamlNode`
        nonlocal parsed_to
        event: Any  # as `_YamlNode`
        for event in yaml.parse(text, Loader=loader):
            yield event
            parsed_to = event.end_mark.index

    try:
        if excess := _find_excess(parse_events(), most=most):
            raise error(f"{source} {excess}")
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        if mark and _nests_too_deep(text[parsed_to : mark.index]):
            raise error(f"{source} line {mark.line + 1}: {_TOO_DEEP}") from None
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise error(f"{source}{where}: not valid YAML: {wrong.problem or wrong.context}") from None
    except yaml.YAMLError as wrong:
        raise error(f"{source}: not valid YAML: {' '.join(str(wrong).split())}") from None
    except UnicodeError:
        raise error(f"{source}: not valid YAML: it has characters that are not Unicode") from None


def _find_excess(events: Iterable[Any], *, most: int) -> str | None:
    """Return where and how a document exceeds the limits, None if it does not. Reads no further than that."""
    import yaml  # noqa: PLC0415  # imported by the caller

    # For each open collection: its anchor, its number of values, its depth.
    levels: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    # Values and depth of each anchor; None while its collection is open.
    anchors: dict[str | None, tuple[int, int] | None] = {}
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, 1, 1))
            values, height, anchors[event.anchor] = 1, 1, None
        elif isinstance(event, yaml.AliasEvent):
            expanded = anchors.get(event.anchor, (1, 1))
            if expanded is None:
                return f"{_line_of_event(event)}: the alias `*{event.anchor}` is inside its own anchor"
            values, height = expanded
        elif isinstance(event, yaml.ScalarEvent):
            values, height = anchors[event.anchor] = 1, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, height = levels.pop()
            anchors[anchor] = values, height
        else:
            continue
        if len(levels) - 1 + height > YAML_MAX_DEPTH + 1:
            return f"{_line_of_event(event)}: {_TOO_DEEP}"
        if isinstance(event, yaml.CollectionStartEvent):
            continue
        outer, before, deepest = levels[-1]
        levels[-1] = (outer, before + values, max(deepest, height + 1))
        if before + values > most:
            return f"{_line_of_event(event)}: more than {most} values"
    return None


def _nests_too_deep(text: str) -> bool:
    """Return whether a text that libyaml has scanned, but not parsed, opens too many collections.

    libyaml scans up to 1,024 characters ahead of the next event. In PyYAML 6.0.4 it has a limit of its own there: 1,000 levels.
    """
    import yaml  # noqa: PLC0415  # imported by the caller

    depth = deepest = 0
    with suppress(yaml.YAMLError):
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
                depth += 1
            elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken):
                depth -= 1
            deepest = max(deepest, depth)
    return deepest > YAML_MAX_DEPTH


def _line_of_event(event: Any) -> str:  # as `_YamlNode`
    return f"line {event.start_mark.line + 1}"

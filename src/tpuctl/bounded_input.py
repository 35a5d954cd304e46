"""Read untrusted files and YAML within limits of size, depth and number of values.

YAML is parsed into PyYAML's nodes, which have line numbers; no objects are constructed.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# PyYAML builds nodes by recursion, in C: a few thousand levels crash the process. No real document is this deep.
MAX_DEPTH = 32
MAX_LENGTH = 4 << 20
MAX_VALUES = 100_000
# libyaml compares each directive with all before it.
_MAX_DIRECTIVES = 16
_YamlNode = Any  # PyYAML's node; with the C loader its types do not say what marks hold


def read_file(path: Path, *, longest: int) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a regular file, without blocking, and at most `longest` bytes.

    Raises `OSError` if it cannot be read, is not a regular file (a pipe, a device, a folder) or is longer.
    """
    # `open` would wait for a writer of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "Is a directory" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
            raise OSError(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL, kind, str(path))
        content = file.read(longest + 1)
    if len(content) > longest:
        raise OSError(
            errno.EFBIG,
            f"it is larger than {longest >> 20} MiB" if longest >> 20 else f"it is larger than {longest >> 10} KiB",
            str(path),
        )
    return content, status


def compose_yaml(
    text: str,
    source: str,
    *,
    error: type[InvalidInputError] = InvalidInputError,
    longest: int = MAX_LENGTH,
    most: int = MAX_VALUES,
) -> _YamlNode | None:
    """Return the root node of a YAML document; None if it is empty.

    Raises `error`, with `source` and the line, if it is not YAML, has more than `MAX_DEPTH` levels, has more than `most` values
    with aliases expanded, or contains itself.
    """
    if not text:
        return None
    if len(text) > longest:
        raise error(f"{source}: larger than {longest >> 10} KiB of text")
    if text.startswith("%") + text.count("\n%") > _MAX_DIRECTIVES:
        raise error(f"{source}: more than {_MAX_DIRECTIVES} YAML directives")
    import yaml  # noqa: PLC0415  # most commands read no YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if excess := _excess(yaml.parse(text, Loader=loader), most=most):
            raise error(f"{source} {excess}")
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise error(f"{source}{where}: not valid YAML: {wrong.problem or wrong.context}") from None
    except yaml.YAMLError as wrong:
        raise error(f"{source}: not valid YAML: {' '.join(str(wrong).split())}") from None
    except UnicodeError:
        raise error(f"{source}: not valid YAML: it holds characters that are not Unicode") from None


def _excess(events: Iterable[Any], *, most: int) -> str | None:
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
                return f"{_line(event)}: the alias `*{event.anchor}` is inside its own anchor"
            values, height = expanded
        elif isinstance(event, yaml.ScalarEvent):
            values, height = anchors[event.anchor] = 1, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, height = levels.pop()
            anchors[anchor] = values, height
        else:
            continue
        if len(levels) - 1 + height > MAX_DEPTH + 1:
            return f"{_line(event)}: nested deeper than {MAX_DEPTH} levels"
        if isinstance(event, yaml.CollectionStartEvent):
            continue
        outer, before, deepest = levels[-1]
        levels[-1] = (outer, before + values, max(deepest, height + 1))
        if before + values > most:
            return f"{_line(event)}: more than {most} values"
    return None


def _line(event: Any) -> str:  # as `_YamlNode`
    return f"line {event.start_mark.line + 1}"

"""The entry of a node, and the text of the file with the entries. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError, InvalidInputError, TpuctlError
from tpuctl.names import NodeName
from tpuctl.remote.ssh import ALIVE_INTERVAL, trust_options
from tpuctl.shapes import RESOURCE, MapOf, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from tpuctl.model import Node
    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.ssh_config.taken import TakenNames

_BEGIN = "# tpuctl "
_TEXTS = ("id", "cloud", "prefix")
_MARK = Shape(
    "",
    {"node": RESOURCE, **dict.fromkeys(_TEXTS, str), "options": MapOf(str)},
    required=("node", *_TEXTS, "options"),
)
_END = "# tpuctl end"
_PREFIX = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,62})?")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_HOST = re.compile(r"\s*Host\s+(.*)", re.IGNORECASE)
# Line ends for ssh or for Python: an address or a path with one would add settings.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_DEFAULT_OPTIONS: Mapping[str, str] = MappingProxyType({})


class SshConfigError(TpuctlError):
    """A file of the ssh configuration cannot be read or written."""

    kind = "ssh_config"


class NameTakenError(ConflictError):
    """A host name is already used in the ssh configuration."""

    kind = "name_taken"


@dataclass(frozen=True, slots=True)
class Entry:
    """The lines for one node."""

    name: NodeName
    id: str
    # The real service, a sandbox or another endpoint: node names may repeat between them.
    cloud: str
    prefix: str
    # Shared options that the user gave for the entry (`iap`, `user`, …), which a rewrite uses again.
    options: Mapping[str, str] = field(hash=False)
    lines: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names of the workers; worker 0 has two."""
        found = (_HOST.fullmatch(line) for line in self.lines)
        return tuple(name for match in found if match for name in match[1].split())

    @property
    def workers(self) -> int:
        """The number of workers."""
        return sum(bool(_HOST.fullmatch(line)) for line in self.lines)

    def is_for(self, name: NodeName, cloud: str) -> bool:
        """Tell whether it is the entry of a node, also of a former node of that name."""
        return (self.name, self.cloud) == (name, cloud)

    def text(self) -> str:
        """Return its lines between the markers."""
        mark = {"node": str(self.name), "id": self.id, "cloud": self.cloud, "prefix": self.prefix}
        marked = json.dumps({**mark, "options": dict(self.options)})
        return "\n".join([f"{_BEGIN}{marked}", *self.lines, _END, ""])


@dataclass(frozen=True, slots=True)
class Text:
    """The contents of a file: entries, and other lines between them, which are never changed."""

    parts: tuple[Entry | str, ...] = ()

    @property
    def entries(self) -> list[Entry]:
        """The entries, in the order of the file."""
        return [part for part in self.parts if isinstance(part, Entry)]

    def changed(self, *, new: Iterable[Entry] = (), without: Iterable[Entry] = ()) -> Text:
        """Return a copy with `new` entries, which replace those of the same nodes or are appended, and `without` others."""
        fresh = {(entry.name, entry.cloud): entry for entry in new}
        gone = {(entry.name, entry.cloud) for entry in without}
        kept: list[Entry | str] = []
        for part in self.parts:
            key = (part.name, part.cloud) if isinstance(part, Entry) else None
            if key is None or key not in gone | fresh.keys():
                kept.append(part)
            elif key in fresh:
                kept.append(fresh.pop(key))
        return Text((*kept, *fresh.values()))

    def __str__(self) -> str:
        return "".join(part if isinstance(part, str) else part.text() for part in self.parts)


def parse(text: str, *, source: object) -> Text:
    """Parse a file. Raises `SshConfigError`, with the line number and `source`, for a damaged marker."""
    parts: list[Entry | str] = []
    lines = text.splitlines(keepends=True)
    number = 0
    while number < len(lines):
        if not lines[number].startswith(_BEGIN + "{"):
            parts.append(lines[number])
            number += 1
            continue
        try:
            end = next(later for later in range(number + 1, len(lines)) if lines[later].rstrip() == _END)
            data = _MARK.read(parse_json(lines[number].removeprefix(_BEGIN)))
            _, project, _, zone, _, node_id = str(data["node"]).split("/")
            body = tuple(line.rstrip("\n") for line in lines[number + 1 : end])
            name = NodeName(project, zone, node_id)
            parts.append(Entry(name, data["id"], data["cloud"], data["prefix"], data["options"], body))
        except (StopIteration, ShapeError):
            raise SshConfigError(
                f"line {number + 1} of `{source}`: damaged entry",
                hint="remove the file, then run `tpuctl ssh-config NODE` to write its entries again",
            ) from None
        number = end + 1
    return Text(tuple(parts))


def entry_of(
    node: Node,
    connections: Sequence[Connection],
    *,
    cloud: str,
    prefix: str = "",
    options: Mapping[str, str] = _DEFAULT_OPTIONS,
) -> Entry:
    """Return the entry of a node. `connections` are the connections to its workers, in their order.

    `NODE` and `NODE-0` are worker 0, `NODE-3` is worker 3, each with the prefix.
    """
    first = f"{prefix}{node.name.node_id}"
    if not _HOST_NAME.fullmatch(first):
        # With a space or a wildcard it would match other hosts too.
        raise InvalidInputError(f"`{first}` is not a valid host name")
    lines: list[str] = []
    for worker, connection in enumerate(connections):
        lines.append(f"Host {first} {first}-0" if worker == 0 else f"Host {first}-{worker}")
        # The options of `ssh` in the syntax of the file: `-o KEY=VALUE` is `KEY VALUE`.
        settings = [word.replace("=", " ", 1) for word in trust_options(connection) if word != "-o"]
        alive = f"ServerAliveInterval {ALIVE_INTERVAL.total_seconds():.0f}"
        lines += [
            f"  {line}" for line in (f"HostName {connection.address}", f"User {connection.login}", *settings, alive)
        ]
    if any(map(_CONTROL.search, lines)):
        raise InvalidInputError("ssh cannot use a path with a line break", hint="use another folder or key")
    return Entry(node.name, node.id, cloud, prefix, dict(options), tuple(lines))


def check_clashes(new: Sequence[Entry], kept: Iterable[Entry], taken: TakenNames) -> None:
    """Raise `NameTakenError` if a host name is already used for another node, or in the user's own configuration."""
    staying = [entry for entry in kept if not any(entry.is_for(one.name, one.cloud) for one in new)]
    others = {host.lower(): entry for entry in staying for host in entry.hosts}
    for entry in new:
        for host in entry.hosts:
            if (other := others.get(host.lower())) is not None:
                what = f"worker of `{other.name.node_id}` in {other.name.zone} of project {other.name.project}"
                raise _name_taken(host, what, f"`tpuctl ssh-config --remove {other.name.node_id}` removes it")
            if (place := taken.get(host)) is not None:
                raise _name_taken(host, f"`{place.words}` in line {place.line} of {place.path}", "rename or remove it")
            others[host.lower()] = entry


def check_prefix(text: str) -> str:
    """Return the prefix. Raises `InvalidInputError` if it is not valid in a host name."""
    if not _PREFIX.fullmatch(text):
        raise InvalidInputError(
            f"`{text}` is not a valid prefix for host names",
            hint="use letters, digits, `-`, `_` and `.`: `--prefix tpu-`",
        )
    return text


def _name_taken(host: str, what: str, remedy: str) -> NameTakenError:
    return NameTakenError(f"the ssh host `{host}` is already used: {what}", hint=f"use `--prefix PREFIX`; or {remedy}")

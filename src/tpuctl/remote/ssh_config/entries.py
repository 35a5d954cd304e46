"""What an entry is, and the file that holds them as text. Pure."""

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
# What ends a line for ssh or for us: an address or a path with one would add settings of its own.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class SshConfigError(TpuctlError):
    """A file of ssh's configuration cannot be read or written."""

    kind = "ssh_config"


class NameTakenError(ConflictError):
    """A name in ssh's configuration stands for something else already."""

    kind = "name_taken"


@dataclass(frozen=True, slots=True)
class Entry:
    """The lines for one node. `cloud` tells the real service from sandboxes and other endpoints, where names repeat.

    `options` are shared options that the user gave when it was written (`iap`, `user`, …), for the next time it is written.
    """

    name: NodeName
    id: str
    cloud: str
    prefix: str
    options: Mapping[str, str] = field(hash=False)
    lines: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names by which ssh knows the workers; worker 0 has two."""
        found = (_HOST.fullmatch(line) for line in self.lines)
        return tuple(name for match in found if match for name in match[1].split())

    @property
    def workers(self) -> int:
        """How many workers it reaches."""
        return sum(bool(_HOST.fullmatch(line)) for line in self.lines)

    def is_for(self, name: NodeName, cloud: str) -> bool:
        """Tell whether it stands for a node, of whatever incarnation."""
        return (self.name, self.cloud) == (name, cloud)

    def text(self) -> str:
        """Return its lines with the marks round them."""
        mark = {"node": str(self.name), "id": self.id, "cloud": self.cloud, "prefix": self.prefix}
        marked = json.dumps({**mark, "options": dict(self.options)})
        return "\n".join([f"{_BEGIN}{marked}", *self.lines, _END, ""])


@dataclass(frozen=True, slots=True)
class Text:
    """What a file holds: entries, and between them the words of others, which stay as they are."""

    parts: tuple[Entry | str, ...] = ()

    @property
    def entries(self) -> list[Entry]:
        """The entries, in the order of the file."""
        return [part for part in self.parts if isinstance(part, Entry)]

    def changed(self, *, new: Iterable[Entry] = (), without: Iterable[Entry] = ()) -> Text:
        """Return it with entries in place of those for the same node, or at the end, and without others."""
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
    """Read a file. Raises `SshConfigError` naming the line of a mark that is damaged, and the `source`."""
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
            parts.append(_entry(lines[number], lines[number + 1 : end]))
        except (StopIteration, ShapeError):
            raise SshConfigError(
                f"line {number + 1} of `{source}` begins an entry that is damaged",
                hint="remove the file; `tpuctl ssh-config NODE` writes its entries again",
            ) from None
        number = end + 1
    return Text(tuple(parts))


def entry_of(
    node: Node, ways: Sequence[Connection], *, cloud: str, prefix: str = "", options: Mapping[str, str] = _NO_OPTIONS
) -> Entry:
    """Return the entry for a node: `ways` leads to its workers, in their order.

    `NODE` and `NODE-0` are worker 0, `NODE-3` is worker 3, each with the prefix before it.
    """
    first = f"{prefix}{node.name.node_id}"
    if not _HOST_NAME.fullmatch(first):
        # With a space or a wildcard it would stand for other hosts too.
        raise InvalidInputError(f"`{first}` cannot be the name of a host")
    lines: list[str] = []
    for worker, way in enumerate(ways):
        lines.append(f"Host {first} {first}-0" if worker == 0 else f"Host {first}-{worker}")
        # What `ssh` is started with, in the words of a file: `-o KEY=VALUE` is `KEY VALUE`.
        settings = [word.replace("=", " ", 1) for word in trust_options(way) if word != "-o"]
        alive = f"ServerAliveInterval {ALIVE_INTERVAL.total_seconds():.0f}"
        lines += [f"  {line}" for line in (f"HostName {way.address}", f"User {way.login}", *settings, alive)]
    if any(map(_CONTROL.search, lines)):
        raise InvalidInputError("ssh cannot use a path with a line break", hint="choose another folder or key")
    return Entry(node.name, node.id, cloud, prefix, dict(options), tuple(lines))


def check_clashes(new: Sequence[Entry], kept: Iterable[Entry], taken: TakenNames) -> None:
    """Raise `NameTakenError` where a name stands for another node, or for something else in the user's own configuration."""
    staying = [entry for entry in kept if not any(entry.is_for(one.name, one.cloud) for one in new)]
    others = {host.lower(): entry for entry in staying for host in entry.hosts}
    for entry in new:
        for host in entry.hosts:
            if (other := others.get(host.lower())) is not None:
                what = f"worker of `{other.name.node_id}` in {other.name.zone} of project {other.name.project}"
                raise _taken(host, what, f"`tpuctl ssh-config --remove {other.name.node_id}` removes it")
            if (place := taken.get(host)) is not None:
                raise _taken(host, f"`{place.words}` in line {place.line} of {place.path}", "rename or remove it there")
            others[host.lower()] = entry


def check_prefix(text: str) -> str:
    """Return the prefix, or raise `InvalidInputError` where no host can be called that."""
    if not _PREFIX.fullmatch(text):
        raise InvalidInputError(
            f"`{text}` cannot begin the name of a host", hint="use letters, digits, `-`, `_` and `.`: `--prefix tpu-`"
        )
    return text


def _taken(host: str, what: str, remedy: str) -> NameTakenError:
    return NameTakenError(f"the ssh host `{host}` is taken: {what}", hint=f"use `--prefix PREFIX`; or {remedy}")


def _entry(mark: str, lines: list[str]) -> Entry:
    """Read an entry. Raises `ShapeError` for anything else."""
    data = _MARK.read(parse_json(mark.removeprefix(_BEGIN)))
    parts = str(data["node"]).split("/")
    name = NodeName(parts[1], parts[3], parts[5])
    return Entry(
        name, data["id"], data["cloud"], data["prefix"], data["options"], tuple(line.rstrip("\n") for line in lines)
    )

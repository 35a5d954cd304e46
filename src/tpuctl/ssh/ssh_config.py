"""Host entries for nodes in an ssh configuration file of tpuctl, so that plain ssh, rsync and editors can reach the workers.

The entries are in a file of their own; one line in `~/.ssh/config` includes it. No other line of the user's files is changed,
and no program that they name is run to find the host names in them.
"""

from __future__ import annotations

import hmac
import json
import re
import shlex
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpuctl.decoding import ShapeError, decode, parse_json
from tpuctl.errors import ConflictError, InvalidInputError, TpuctlError
from tpuctl.files import file_lock, folder_lock, read_user_bytes, real_path, replace_private_file
from tpuctl.models.api_values import ApiPairs, ApiText, ResourceOfNode
from tpuctl.names import NodeName
from tpuctl.ssh.connection import KEEPALIVE_INTERVAL, trust_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.models.node import Node
    from tpuctl.ssh.connection import Connection

_BEGIN = "# tpuctl "
_END = "# tpuctl end"
_PREFIX = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,62})?")
_HOST_NAME = re.compile(r"[A-Za-z0-9_.~+%][A-Za-z0-9_.~+%-]{0,320}")
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
class SshConfigEntry:
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
        """Return whether it is the entry of a node, also of a former node of that name."""
        return (self.name, self.cloud) == (name, cloud)

    def text(self) -> str:
        """Return its lines between the markers."""
        mark = {"node": str(self.name), "id": self.id, "cloud": self.cloud, "prefix": self.prefix}
        marked = json.dumps({**mark, "options": dict(self.options)})
        return "\n".join([f"{_BEGIN}{marked}", *self.lines, _END, ""])


@dataclass(frozen=True, slots=True)
class SshConfigText:
    """The contents of a file: entries, and other lines between them, which are never changed."""

    parts: tuple[SshConfigEntry | str, ...] = ()

    @property
    def entries(self) -> list[SshConfigEntry]:
        """The entries, in the order of the file."""
        return [part for part in self.parts if isinstance(part, SshConfigEntry)]

    def changed(self, *, new: Iterable[SshConfigEntry] = (), without: Iterable[SshConfigEntry] = ()) -> SshConfigText:
        """Return a copy with `new` entries, which replace those of the same nodes or are appended, and `without` others."""
        fresh = {(entry.name, entry.cloud): entry for entry in new}
        gone = {(entry.name, entry.cloud) for entry in without}
        kept: list[SshConfigEntry | str] = []
        for part in self.parts:
            key = (part.name, part.cloud) if isinstance(part, SshConfigEntry) else None
            if key is None or key not in gone | fresh.keys():
                kept.append(part)
            elif key in fresh:
                kept.append(fresh.pop(key))
        return SshConfigText((*kept, *fresh.values()))

    def __str__(self) -> str:
        return "".join(part if isinstance(part, str) else part.text() for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Mark:
    node: ResourceOfNode
    id: ApiText
    cloud: ApiText
    prefix: ApiText
    options: ApiPairs


def parse_ssh_config(text: str, *, source: object) -> SshConfigText:
    """Parse a file. Raises `SshConfigError`, with the line number and `source`, for a damaged marker."""
    parts: list[SshConfigEntry | str] = []
    lines = text.splitlines(keepends=True)
    number = 0
    while number < len(lines):
        if not lines[number].startswith(_BEGIN + "{"):
            parts.append(lines[number])
            number += 1
            continue
        try:
            end = next(later for later in range(number + 1, len(lines)) if lines[later].rstrip() == _END)
            mark = decode(_Mark, parse_json(lines[number].removeprefix(_BEGIN)))
            body = tuple(line.rstrip("\n") for line in lines[number + 1 : end])
            parts.append(SshConfigEntry(mark.node, mark.id, mark.cloud, mark.prefix, mark.options, body))
        except (StopIteration, ShapeError):
            raise SshConfigError(
                f"line {number + 1} of `{source}`: damaged entry",
                hint="remove the file, then run `tpuctl ssh-config NODE` to write its entries again",
            ) from None
        number = end + 1
    return SshConfigText(tuple(parts))


def build_entry(
    node: Node,
    connections: Sequence[Connection],
    *,
    cloud: str,
    prefix: str = "",
    options: Mapping[str, str] = _DEFAULT_OPTIONS,
) -> SshConfigEntry:
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
        alive = f"ServerAliveInterval {KEEPALIVE_INTERVAL.total_seconds():.0f}"
        lines += [
            f"  {line}" for line in (f"HostName {connection.address}", f"User {connection.login}", *settings, alive)
        ]
    if any(map(_CONTROL.search, lines)):
        raise InvalidInputError("ssh cannot use a path with a line break", hint="use another folder or key")
    return SshConfigEntry(node.name, node.id, cloud, prefix, dict(options), tuple(lines))


def check_host_conflicts(new: Sequence[SshConfigEntry], kept: Iterable[SshConfigEntry], taken: UserHosts) -> None:
    """Raise `NameTakenError` if a host name is already used for another node, or in the user's own configuration."""
    staying = [entry for entry in kept if not any(entry.is_for(one.name, one.cloud) for one in new)]
    others = {host.lower(): entry for entry in staying for host in entry.hosts}
    for entry in new:
        for host in entry.hosts:
            if (other := others.get(host.lower())) is not None:
                what = f"worker of `{other.name.node_id}` in {other.name.zone} of project {other.name.project}"
                raise _name_taken(host, what, f"`tpuctl ssh-config --remove {other.name.node_id}` removes it")
            if (place := taken.get(host)) is not None:
                raise _name_taken(host, str(place), "rename or remove it")
            others[host.lower()] = entry


def known_host(entry: SshConfigEntry, taken: UserHosts) -> tuple[str, ConfigLine] | None:
    """Return the first host name of an entry that already means another host, and the line that says so. None if none does."""
    return next(((host, place) for host in entry.hosts if (place := taken.get(host)) is not None), None)


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


_HEADER = "# Written by tpuctl: `tpuctl ssh-config` changes it, `up` refreshes it, `down` cleans it.\n"


def read_ssh_config(path: Path) -> SshConfigText:
    """Read a file of entries. Empty if there is no file. Raises `SshConfigError`."""
    with _named_errors(path, "read"):
        return (
            parse_ssh_config(read_user_bytes(path).decode("utf-8"), source=path) if path.exists() else SshConfigText()
        )


def change_ssh_config(path: Path, decide: Callable[[SshConfigText], SshConfigText]) -> SshConfigText:
    """Replace the contents of a file by what `decide` returns for them, and return that. The file is locked and atomic.

    The file is private; an empty file is removed. Raises `SshConfigError`, and what `decide` raises.
    """
    with _named_errors(path, "written"):
        path = real_path(path)
        with file_lock(path.with_name(f".{path.name}.lock")):
            old = read_ssh_config(path)
            new = decide(old)
            if new == old:
                return new
            text = str(new).removeprefix(_HEADER)
            if text.strip():
                replace_private_file(path, (_HEADER + text).encode())
            else:
                path.unlink(missing_ok=True)
    return new


def include_line(file: Path, *, home: Path | None) -> str:
    """Return the line that includes a file. It uses `~` if the file is in the `.ssh` of `home`, the account's home."""
    if home is not None and file.parent == home / ".ssh":
        return f"Include ~/.ssh/{file.name}"
    return f'Include "{file}"' if " " in str(file) else f"Include {file}"


def is_included(config: Path, file: Path) -> bool:
    """Return whether a configuration includes a file for all hosts: before its first `Host` or `Match`."""
    with _named_errors(config, "read"):
        text = read_user_bytes(config).decode("utf-8", errors="replace") if config.exists() else ""
    for _, keyword, rest in config_lines(text):
        if keyword in {"host", "match"}:
            return False
        if keyword == "include" and any(
            real_path(one) == real_path(file) for one in included_files(rest, config.parent)
        ):
            return True
    return False


def add_include(config: Path, line: str) -> None:
    """Insert a line at the top of a configuration, and create the file if it is missing.

    All other bytes and the file mode stay the same; a symbolic link stays a link. Raises `SshConfigError`.
    """
    with _named_errors(config, "written"):
        target = real_path(config)
        with folder_lock(target.parent):
            old = read_user_bytes(target) if target.exists() else b""
            mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
            ending = b"\r\n" if b"\r\n" in old.split(b"\n", 1)[0] + b"\n" else b"\n"
            if not old.startswith(line.encode() + ending):  # another command may have added it meanwhile
                replace_private_file(target, line.encode() + ending + old, mode=mode)


@contextmanager
def _named_errors(path: Path, what: str) -> Iterator[None]:
    """Convert errors of the file system to `SshConfigError` with the name of the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SshConfigError(f"`{path}` cannot be {what}: it is not text", hint="rename it") from error
    except OSError as error:
        hint = "make it and its folder readable and writable"
        raise SshConfigError(f"`{path}` cannot be {what}: {error.strerror}", hint=hint) from error


# ssh's own limit [OpenSSH source, readconf.c].
_MAX_DEPTH = 16
_MACHINE_HOSTS = Path("/etc/hosts")
_LINE = re.compile(r"\s*(?P<keyword>[A-Za-z]+)(?:\s*=\s*|\s+)(?P<rest>\S.*)")
_BLOCK = re.compile(r"^# tpuctl \{.*?^# tpuctl end$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConfigLine:
    """A line of a configuration file, and its text. Line 0 stands in no file: it is the machine's own name."""

    path: Path
    line: int
    words: str

    def __str__(self) -> str:
        return f"`{self.words}` in line {self.line} of {self.path}" if self.line else f"`{self.words}` is this machine"


@dataclass(frozen=True, slots=True)
class UserHosts:
    """The host names that already mean another host: for the user's ssh, or for this machine.

    Names are compared as they are written, or hashed (`HashKnownHosts`): a pattern names no host. tpuctl's own entries do not
    count.
    """

    _places: Mapping[str, ConfigLine] = field(default_factory=dict, hash=False)

    @classmethod
    def read(cls, *paths: Path, folder: Path) -> UserHosts:
        """Read configuration files and the files that they include, the hosts whose keys ssh knows, and `/etc/hosts`.

        Relative names are below `folder`, the `~/.ssh`. A missing or unreadable file has no names; ssh itself reports it.
        """
        places: dict[str, ConfigLine] = {}
        configured = (found for path in paths for found in _configured_hosts(path, folder, depth=0))
        known = (found for name in ("known_hosts", "known_hosts2") for found in _listed_hosts(folder / name))
        for place, names in chain(configured, known, _listed_hosts(_MACHINE_HOSTS)):
            for name in names:
                places.setdefault(name if name.startswith("|") else name.lower(), place)
        places.setdefault("localhost", ConfigLine(_MACHINE_HOSTS, 0, "localhost"))
        return cls(places)

    def get(self, host: str) -> ConfigLine | None:
        """Return the line that names a host. None if there is none."""
        host = host.lower()
        hashed = (place for name, place in self._places.items() if name.startswith("|1|") and _is_hash_of(name, host))
        return self._places.get(host) or next(hashed, None)


def _is_hash_of(name: str, host: str) -> bool:
    try:
        salt, digest = (b64decode(part, validate=True) for part in name.removeprefix("|1|").split("|"))
    except ValueError:
        return False
    return hmac.digest(salt, host.encode(), "sha1") == digest


def config_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, keyword in lower case and arguments of each setting. Skips the entries of tpuctl."""
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _LINE.fullmatch(line.rstrip()):
            yield number, match["keyword"].lower(), match["rest"]


def config_words(text: str) -> list[str]:
    """Return the arguments of a line, without quotes as in ssh."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an unclosed quote: ssh will reject the line
        return text.split()


def included_files(text: str, folder: Path) -> list[Path]:
    """Return the files that an `Include` line matches, in the order of ssh."""
    found: list[Path] = []
    for word in config_words(text):
        pattern = folder.parent / word[2:] if word.startswith("~/") else folder / word
        found += [Path(path) for path in sorted(glob(str(pattern)))]  # noqa: PTH207  # the pattern may be absolute
    return found


def _configured_hosts(path: Path, folder: Path, *, depth: int) -> Iterator[tuple[ConfigLine, list[str]]]:
    try:
        text = read_user_bytes(path).decode("utf-8", errors="replace")
    except InvalidInputError:
        return
    for number, keyword, rest in config_lines(text):
        if keyword == "host":
            yield ConfigLine(path, number, f"Host {rest}"), config_words(rest)
        elif keyword == "include" and depth < _MAX_DEPTH:
            for file in included_files(rest, folder):
                yield from _configured_hosts(file, folder, depth=depth + 1)


def _listed_hosts(path: Path) -> Iterator[tuple[ConfigLine, list[str]]]:
    """Yield the names in each line of `/etc/hosts`, or of a file of host keys: `name,[name]:port`."""
    try:
        lines = read_user_bytes(path).decode("utf-8", errors="replace").split("\n")
    except InvalidInputError:
        return
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if path != _MACHINE_HOSTS:
            words = words[1:2] if line.startswith("@") else words[:1]
        if words:
            names = [name.removeprefix("[").partition("]")[0] for word in words for name in word.split(",")]
            yield ConfigLine(path, number, " ".join(words)), names

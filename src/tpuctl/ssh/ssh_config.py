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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from itertools import pairwise
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
        """Tell whether it is the entry of a node, also of a former node of that name."""
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
    """Tell whether a configuration includes a file for all hosts: before its first `Host` or `Match`."""
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
_SYSTEM_FOLDER = Path("/etc/ssh")
_HASHED = re.compile(r"\|1\|([A-Za-z0-9+/=]+)\|([A-Za-z0-9+/=]+)")
_WITH_PORT = re.compile(r"(?P<not>!?)(?:\[(?P<host>[^\]]*)\]:\d+|(?P<plain>.*))")
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
class _HostRule:
    """The patterns of one `Host` line, or of `host` in a `Match` line."""

    place: ConfigLine
    patterns: tuple[str, ...]

    def names(self, host: str) -> bool:
        """Tell whether the rule is for this host. Patterns of wildcards only are for all hosts, and do not count."""
        host = host.lower()
        if any(_matches(host, pattern[1:]) for pattern in self.patterns if pattern.startswith("!")):
            return False
        return any(_matches(host, pattern) and pattern.strip("*?.") != "" for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class _HashedHost:
    """A host of `known_hosts` whose name is hashed (`HashKnownHosts`)."""

    place: ConfigLine
    salt: bytes
    digest: bytes

    def names(self, host: str) -> bool:
        """Tell whether it is this host."""
        return hmac.digest(self.salt, host.lower().encode(), "sha1") == self.digest


@dataclass(frozen=True, slots=True)
class UserHosts:
    """The host names that already mean another host: for the user's ssh, or for this machine.

    tpuctl's own entries do not count, in any file.
    """

    _rules: tuple[_HostRule | _HashedHost, ...] = ()
    _known: dict[str, ConfigLine | None] = field(default_factory=dict, compare=False, hash=False)

    @classmethod
    def read(cls, *paths: Path, folder: Path) -> UserHosts:
        """Read configuration files and the files that they include, the hosts whose keys ssh knows, and `/etc/hosts`.

        Relative names are below `folder`, the `~/.ssh`. A missing or unreadable file has no names; ssh itself reports it.
        """
        configured = [rule for path in paths for rule in _rules_of(path, folder, depth=0)]
        system = _rules_of(_SYSTEM_FOLDER / "ssh_config", _SYSTEM_FOLDER, depth=0)
        known = (place / name for place, names in _known_hosts_files(folder) for name in names)
        return cls((*configured, *system, *(rule for path in known for rule in _known_hosts(path)), *_machine_hosts()))

    def get(self, host: str) -> ConfigLine | None:
        """Return the line that names a host. None if there is none."""
        if host not in self._known:
            self._known[host] = next((rule.place for rule in self._rules if rule.names(host)), None)
        return self._known[host]


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


def _rules_of(path: Path, folder: Path, *, depth: int) -> Iterator[_HostRule | _HashedHost]:
    try:
        text = read_user_bytes(path).decode("utf-8", errors="replace")
    except InvalidInputError:
        return
    for number, keyword, rest in config_lines(text):
        place = ConfigLine(path, number, f"{keyword.capitalize()} {rest}")
        if keyword == "host":
            yield _HostRule(place, tuple(word.lower() for word in config_words(rest)))
        elif keyword == "match":
            for criterion, argument in pairwise(config_words(rest)):
                if criterion.lower() in {"host", "originalhost"}:
                    yield _HostRule(place, tuple(argument.lower().split(",")))
        elif keyword in {"userknownhostsfile", "globalknownhostsfile"}:
            for word in config_words(rest):
                yield from _known_hosts(folder.parent / word.removeprefix("~/"))
        elif keyword == "include" and depth < _MAX_DEPTH:
            for file in included_files(rest, folder):
                yield from _rules_of(file, folder, depth=depth + 1)


def _known_hosts_files(folder: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    # The defaults of UserKnownHostsFile and GlobalKnownHostsFile (ssh_config(5)).
    yield folder, ("known_hosts", "known_hosts2")
    yield _SYSTEM_FOLDER, ("ssh_known_hosts", "ssh_known_hosts2")


def _known_hosts(path: Path) -> Iterator[_HostRule | _HashedHost]:
    """Yield the hosts of a file of host keys (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")."""
    for number, words in _word_lines(path):
        names = words[1] if words[0].startswith("@") and len(words) > 1 else words[0]
        place = ConfigLine(path, number, names)
        if hashed := _HASHED.fullmatch(names):
            with suppress(ValueError):
                yield _HashedHost(place, *(b64decode(part, validate=True) for part in hashed.groups()))
            continue
        ports = (_WITH_PORT.fullmatch(name.lower()) for name in names.split(","))
        yield _HostRule(place, tuple(f"{match['not']}{match['host'] or match['plain']}" for match in ports if match))


def _machine_hosts() -> Iterator[_HostRule]:
    """Yield the names that this machine resolves without a request."""
    path = Path("/etc/hosts")
    for number, words in _word_lines(path):
        yield _HostRule(ConfigLine(path, number, " ".join(words)), tuple(word.lower() for word in words))
    # Always the machine itself (RFC 6761).
    yield _HostRule(ConfigLine(path, 0, "localhost"), ("localhost", "*.localhost"))


def _word_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        lines = read_user_bytes(path).decode("utf-8", errors="replace").split("\n")
    except InvalidInputError:
        return
    for number, line in enumerate(lines, start=1):
        if words := line.partition("#")[0].split():
            yield number, words


def _matches(host: str, pattern: str) -> bool:
    # Patterns of ssh have `*` and `?` only.
    return fnmatchcase(host, pattern.replace("[", "[[]"))

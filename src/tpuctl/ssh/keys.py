"""The ssh key that tpuctl shares with gcloud, and where it is registered for workers.

The key pair on this machine is gcloud's (created if missing), one that the user named, or one in an ssh agent. Its public key
is a line of the metadata value `ssh-keys` of a node or a project, or belongs to an account with OS Login.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.command_text import command_word, fill_text
from tpuctl.decoding import parse_json
from tpuctl.durations import format_timestamp, parse_timestamp
from tpuctl.errors import AccessError, TpuctlError
from tpuctl.files import make_private_folder, read_json_cache, write_json_cache
from tpuctl.models.node_changes import changed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.clock import Clock
    from tpuctl.models.node import Node


_PUBLIC_KEY = re.compile(r"(?P<key>(?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+=*)(?: [^\n]*)?\n?")
# The largest RSA keys have about 13 kB.
_MAX_KEY_SIZE = 64 * 1024


class SshKeyError(TpuctlError):
    """The ssh key cannot be created, read or used."""

    kind = "ssh_key"


class SshProgramMissingError(TpuctlError):
    """A program of OpenSSH's client is not installed."""

    kind = "ssh_missing"

    def __init__(self, program: str) -> None:
        hint = "install OpenSSH's client (Debian and Ubuntu: `sudo apt-get install openssh-client`)"
        super().__init__(f"`{program}` is not on PATH", hint=hint)


@dataclass(frozen=True, slots=True)
class SshKey:
    """A key pair."""

    # The file for ssh's `-i`: the private key, or the public key if the private key is only in an agent.
    path: Path
    # The public key as one line: `TYPE BASE64 [COMMENT]`.
    public: str

    @property
    def is_in_agent(self) -> bool:
        """Return whether the private key is only in an agent."""
        return self.path.suffix == ".pub"


def run_program(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program without a terminal and return its result. Raises `SshProgramMissingError`."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SshProgramMissingError(argv[0]) from error


def ensure_key(home: Path, *, key: Path | None = None, login: str = "", makes: bool = True) -> SshKey:
    """Return the key pair for logins: `key`, else `~/.ssh/google_compute_engine` as gcloud does.

    Creates gcloud's pair if it is missing (ed25519, no passphrase, comment `login`); if several processes try at the same time,
    one succeeds. Never creates a named `key`, and creates none without `makes`. `key` may be the public key of a pair in an
    agent (a security key, a password manager) without a private key file. Writes a missing public key file. Raises
    `SshKeyError`, also for a private key that others may read, which ssh would ignore, and `SshProgramMissingError`.
    """
    path = key or default_key_path(home)
    try:
        if key is not None:
            path = key.with_suffix("") if key.suffix == ".pub" else key
            if not path.exists():
                return _find_in_agent(key)
        elif not path.exists():
            if not makes:
                hint = "the first `tpuctl up` or `tpuctl ssh` creates it; `tpuctl ssh-key renew` creates it now"
                raise SshKeyError(f"ssh key `{path}` does not exist yet", hint=hint)
            _create_key(path, comment=login or login_name(os.environ))
        _check_private_key(path)
        return SshKey(path, _read_public_key(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = f"make `{path}` readable and its folder writable, or use another key"
        raise SshKeyError(f"the ssh key `{path}` cannot be used: {reason}", hint=hint) from error


def default_key_path(home: Path) -> Path:
    """Return the path of the key that gcloud and tpuctl share."""
    return home / ".ssh" / "google_compute_engine"


def is_held_by_agent(key: SshKey) -> bool:
    """Return whether an ssh agent has this key. Raises `SshProgramMissingError`."""
    blob = key.public.split()[1]
    return any(blob in line.split() for line in run_program(["ssh-add", "-L"]).stdout.splitlines())


def _find_in_agent(named: Path) -> SshKey:
    """Return a key without a private key file. Raises `SshKeyError` without a public key, or if no agent has it."""
    public = named if named.suffix == ".pub" else public_key_path(named)
    if not public.is_file():
        private = named.with_suffix("") if named == public else named
        hint = f"check the path, or create the key with `ssh-keygen -t ed25519 -f {command_word('path', private)}`"
        raise SshKeyError(f"ssh key `{named}` does not exist", hint=hint)
    match = _PUBLIC_KEY.fullmatch(_read(public))
    if match is None:
        raise SshKeyError(f"`{public}` is not a public key", hint="use another key")
    key = SshKey(public, match[0].strip())
    if not is_held_by_agent(key):
        hint = "start the agent that has it (`SSH_AUTH_SOCK`; `ssh-add -L` lists its keys), or use another key"
        raise SshKeyError(f"the private key of `{public}` is neither in a file nor in an ssh agent", hint=hint)
    return key


def _create_key(path: Path, *, comment: str) -> None:
    make_private_folder(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tpuctl-key-") as scratch:
        made = Path(scratch) / "key"
        done = run_program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(made)])
        if done.returncode != 0:
            raise SshKeyError(f"`ssh-keygen` created no key: {done.stderr.strip()}", hint=f"check `{path.parent}`")
        try:
            # Creating a link is atomic, and the first of several processes wins.
            path.hardlink_to(made)
        except FileExistsError:
            return
        made.with_suffix(".pub").replace(public_key_path(path))


def _check_private_key(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_key(path, "it is not a regular file")
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        hint = f"run `chmod 600 {command_word('path', path)}`"
        raise SshKeyError(f"the ssh key `{path}` is readable by other users, so ssh would ignore it", hint=hint)
    if not _read(path).lstrip().startswith("-----BEGIN"):
        raise _not_a_key(path, "it has no PEM header")


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_KEY_SIZE).decode()


def _read_public_key(path: Path) -> str:
    public = public_key_path(path)
    if public.is_file() and (match := _PUBLIC_KEY.fullmatch(_read(public))):
        return match[0].strip()
    done = run_program(["ssh-keygen", "-y", "-P", "", "-f", str(path)])
    match = _PUBLIC_KEY.fullmatch(done.stdout)
    if done.returncode != 0 or match is None:
        if "incorrect passphrase" in done.stderr:
            create = "create it with `ssh-keygen -y -f {key} > {file}`, and add the key to an agent: `ssh-add {key}`"
            hint = fill_text(create, {"key": path, "file": f"{path}.pub"})
            raise SshKeyError(f"the ssh key `{path}` has a passphrase, and its public key file is missing", hint=hint)
        raise _not_a_key(path, done.stderr.strip() or "ssh-keygen printed no public key")
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".tpuctl-key-", delete=False) as file:
        file.write(match[0])
    Path(file.name).replace(public)
    return match[0].strip()


def public_key_path(path: Path) -> Path:
    """Return the path of the public key that belongs to a private key."""
    return path.with_name(path.name + ".pub")


def _not_a_key(path: Path, reason: str) -> SshKeyError:
    hint = f"rename it (`tpuctl ssh-key renew` does that for gcloud's key), or use another key than `{path}`"
    return SshKeyError(f"`{path}` is not a usable private key: {reason}", hint=hint)


_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")


def login_name(environ: Mapping[str, str]) -> str:
    """Return the login name: the local user name, as gcloud does, converted to a valid name for Linux.

    The order of the variables is that of Python's getpass, which gcloud uses [gcloud 528 source].
    """
    names = (environ.get(variable) for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    name = next((name for name in names if name), None)
    if name is None:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container may run with a user id that has no account
            name = f"user{os.getuid()}"
    if _LOGIN.fullmatch(name):
        return name
    # Remove a Windows domain, or the host of an e-mail address.
    short = name.rpartition("\\")[2].partition("@")[0]
    valid = re.sub(r"[^a-z0-9_-]", "_", short.lower()).lstrip("-")
    return valid if _LOGIN.fullmatch(valid) else f"u_{valid}"


def renew_key(home: Path, *, login: str) -> tuple[SshKey, Path | None]:
    """Rename gcloud's key pair, create a new one, and return it with the new path of the old private key.

    `google_compute_engine` becomes `old-google_compute_engine`, `old-2-…`, …; no file is overwritten. The path is None if there
    was no old pair. The troubleshooting guides of Cloud TPU advise this for a key that workers refuse; other machines may still
    accept only the old pair. Raises `SshKeyError` and `SshProgramMissingError`; if no key can be created, the old pair is
    restored.
    """
    path = default_key_path(home)
    try:
        moved = None
        if path.exists() or public_key_path(path).exists():
            names = (f"old-{path.name}" if number == 1 else f"old-{number}-{path.name}" for number in count(1))
            candidates = (path.with_name(name) for name in names)
            moved = next(one for one in candidates if not one.exists() and not public_key_path(one).exists())
            _move_pair(path, moved)
    except OSError as error:
        hint = f"make the folder `{path.parent}` writable"
        raise SshKeyError(f"cannot rename `{path}`: {error.strerror}", hint=hint) from error
    try:
        key = ensure_key(home, login=login)
    except BaseException:
        if moved is not None:
            _move_pair(moved, path)
        raise
    return key, moved


def key_fingerprint(key: SshKey) -> str:
    """Return the fingerprint of a key, `SHA256:…`, as ssh prints it. Raises `SshKeyError` and `SshProgramMissingError`."""
    path = key.path if key.is_in_agent else public_key_path(key.path)
    done = run_program(["ssh-keygen", "-l", "-f", str(path)])
    words = done.stdout.split()
    if done.returncode != 0 or len(words) < 2:
        raise SshKeyError(
            f"cannot read the fingerprint of `{path}`: {done.stderr.strip()}",
            hint="create a new key: `tpuctl ssh-key renew`",
        )
    return words[1]


def _move_pair(source: Path, target: Path) -> None:
    for old, new in ((source, target), (public_key_path(source), public_key_path(target))):
        if old.exists():
            old.rename(new)


# A line is `LOGIN:TYPE BASE64 COMMENT`, or `LOGIN:TYPE BASE64 google-ssh {"userName":"NAME","expireOn":"TIME"}`, which expires
# at that time [Compute Engine documentation; gcloud 528 source: compute/ssh_utils.py].
_LINE = re.compile(r"(?P<login>[^:\s]+):(?P<kind>\S+)\s+(?P<blob>\S+)(?:\s+(?P<comment>.*))?")
_GOOGLE = "google-ssh"
# A line that expires sooner is replaced if the caller wants no expiry, because a session may reconnect for a while.
_MIN_VALIDITY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _MetadataKey:
    """A parsed line. `is_google`: it has the form that may expire; `expires` is None if it never does."""

    login: str
    kind: str
    blob: str
    is_google: bool
    expires: datetime | None

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

    def is_same(self, other: _MetadataKey) -> bool:
        return (self.login, self.kind, self.blob) == (other.login, other.kind, other.blob)


def metadata_key_line(login: str, key: SshKey, *, expires: datetime | None = None) -> str:
    """Return the line that authorizes a key for `login`, as gcloud writes it. `expires` is rounded to seconds.

    The console rejects JSON with spaces, so it has none [gcloud 528 source].
    """
    kind, blob = key.public.split()[:2]
    if expires is None:
        return f"{login}:{kind} {blob} {login}"
    until = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")
    words = json.dumps({"userName": login, "expireOn": until}, separators=(",", ":"))
    return f"{login}:{kind} {blob} {_GOOGLE} {words}"


def has_metadata_key(existing: str, entry: str, *, now: datetime | None = None) -> bool:
    """Return whether a value authorizes the login and key of `entry`. Comments do not matter.

    A line that expires counts if it has half the remaining validity of `entry` at `now`, or an hour if `entry` never expires.
    Without `now` only lines that never expire count, and a line equal to `entry`.
    """
    wanted = _parse(entry)
    lines = [line.strip() for line in existing.splitlines()]
    if wanted is None or (now is None and entry in lines):
        return entry in lines
    found = (one for one in map(_parse, lines) if one is not None and one.is_same(wanted))
    return any(_is_valid_long_enough(one, wanted, now) for one in found)


def find_key_expiry(existing: str, entry: str) -> tuple[bool, datetime | None]:
    """Return whether a value has the login and key of `entry`, and when the last of its lines expires (None: never)."""
    wanted = _parse(entry)
    found = [one for one in map(_parse, existing.splitlines()) if one and wanted and one.is_same(wanted)]
    ends = [one.expires for one in found if one.expires is not None]
    return bool(found), max(ends) if found and len(ends) == len(found) else None


def add_metadata_key(existing: str, entry: str, *, now: datetime | None = None) -> str:
    """Return the value with `entry` added, unchanged if it has that key already (`has_metadata_key`).

    Replaces a line of the same login and key that expires. With `now`, removes expired lines of the same login in Google's
    form. All other lines stay unchanged, also lines that cannot be parsed.
    """
    if has_metadata_key(existing, entry, now=now):
        return existing
    wanted = _parse(entry)
    kept = []
    for line in filter(str.strip, existing.splitlines()):
        found = _parse(line)
        if found is not None and wanted is not None and found.is_google and found.login == wanted.login:
            is_expired = now is not None and found.is_expired(now)
            if found.is_same(wanted) or is_expired:
                continue
        kept.append(line)
    return "\n".join([*kept, entry])


def with_metadata_key(node: Node, entry: str, *, now: datetime | None = None) -> dict[str, Any]:
    """Return the fields to write so that the node's metadata has the entry, as `add_metadata_key` adds it."""
    present = node.metadata.get("ssh-keys", "")
    return changed_fields(node, {"metadata": {**node.metadata, "ssh-keys": add_metadata_key(present, entry, now=now)}})


def _is_valid_long_enough(found: _MetadataKey, wanted: _MetadataKey, now: datetime | None) -> bool:
    if found.expires is None:
        return not found.is_google
    if now is None:
        return False
    least = (wanted.expires - now) / 2 if wanted.expires else _MIN_VALIDITY
    return found.expires - now >= least


def _parse(line: str) -> _MetadataKey | None:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    form, _, words = (match["comment"] or "").partition(" ")
    expires = None
    if words:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            expires = parse_timestamp(parse_json(words)["expireOn"])
    return _MetadataKey(match["login"], match["kind"], match["blob"], form == _GOOGLE, expires)


# Names of the switches and their order: gcloud 528 source (util/ssh/ssh.py) and Google's guest agent. A value of the node
# overrides that of the project, FALSE too.
OS_LOGIN_ENABLED = "enable-oslogin"
_SECOND_FACTOR = "enable-oslogin-2fa"
_SECURITY_KEY = "enable-oslogin-sk"
_CERTIFICATES = "enable-oslogin-certificates"
OS_LOGIN_SWITCHES = (OS_LOGIN_ENABLED, _SECOND_FACTOR, _SECURITY_KEY, _CERTIFICATES)


class OsLoginError(AccessError):
    """OS Login denies the login, or requires what tpuctl cannot provide."""

    kind = "os_login"


def is_switch_on(switch: str, metadata: Mapping[str, str], project_metadata: Mapping[str, str]) -> bool:
    """Return whether a switch is on for a node with this metadata. The case of its value does not matter."""
    return metadata.get(switch, project_metadata.get(switch, "")).strip().lower() == "true"


def check_os_login_requirements(
    node: str, account: str, metadata: Mapping[str, str], project_metadata: Mapping[str, str]
) -> None:
    """Raise `OsLoginError` if OS Login requires more than a key of this account, so that no login is attempted.

    Service accounts need no second factor [Compute Engine documentation]. For TPU VMs gcloud supports a second factor, but
    neither certificates nor security keys (528 source).
    """
    if is_switch_on(_CERTIFICATES, metadata, project_metadata):
        raise _requirement_error(node, "a certificate signed by OS Login", _CERTIFICATES)
    if is_switch_on(_SECURITY_KEY, metadata, project_metadata):
        raise _requirement_error(node, "a security key registered with the account", _SECURITY_KEY)
    if is_switch_on(_SECOND_FACTOR, metadata, project_metadata) and not account.endswith(".gserviceaccount.com"):
        ways = (
            f"log in with gcloud, which asks for it: `gcloud compute tpus tpu-vm ssh {node}`",
            "or use a service account, which needs none: `--impersonate-service-account`",
        )
        raise _requirement_error(node, f"a second factor of `{account}`", _SECOND_FACTOR, *ways)


def _requirement_error(node: str, what: str, switch: str, *ways: str) -> OsLoginError:
    off = f"if your organization allows it, disable it for this node: `tpuctl update {node} --metadata {switch}=FALSE`"
    message = f"OS Login on `{node}` requires {what} (`{switch}`)"
    return OsLoginError(message, hint="\n".join((*ways, off)))


# After a change of OS Login in a project, every tpuctl notices within this time.
OS_LOGIN_CACHE_LIFETIME = timedelta(minutes=10)


class OsLoginCache:
    """A file of the projects' OS Login switches, and of no other metadata, which may contain secrets.

    If it cannot be read or written, they are fetched each time.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock

    def of(self, project: str) -> Mapping[str, str] | None:
        """Return the cached switches of a project. None if there are none or they are expired."""
        entry = read_json_cache(self._path, dict[str, str]).get(project, {})
        fetched_at = parse_timestamp(entry.get("at"))
        if fetched_at is None or not timedelta() <= self._clock.now() - fetched_at < OS_LOGIN_CACHE_LIFETIME:
            return None
        return {str(name): str(value) for name, value in entry.items() if name in OS_LOGIN_SWITCHES}

    def remember(self, project: str, metadata: Mapping[str, str]) -> Mapping[str, str]:
        """Store the switches of a project's metadata, and return them."""
        found = {name: metadata[name] for name in OS_LOGIN_SWITCHES if name in metadata}
        entry = {"at": format_timestamp(self._clock.now()), **found}
        write_json_cache(self._path, {**read_json_cache(self._path, dict[str, str]), project: entry})
        return found

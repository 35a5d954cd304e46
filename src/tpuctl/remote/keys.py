"""The ssh key that tpuctl shares with gcloud, and the metadata value through which workers learn of it."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Runner = Callable[[list[str]], "subprocess.CompletedProcess[str]"]

_PUBLIC = re.compile(r"(?P<key>(?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+=*)(?: [^\n]*)?\n?")
_ENTRY = re.compile(r"(?P<login>[^:\s]+):(?P<key>\S+\s+\S+).*")
_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")


class SshKeyError(TpuctlError):
    """The ssh key cannot be made, read or used."""

    kind = "ssh_key"


class SshProgramMissingError(TpuctlError):
    """A program of OpenSSH's client is not installed."""

    kind = "ssh_missing"

    def __init__(self, program: str) -> None:
        hint = "install OpenSSH's client (Debian and Ubuntu: `sudo apt-get install openssh-client`)"
        super().__init__(f"`{program}` is not on PATH", hint=hint)


@dataclass(frozen=True, slots=True)
class SshKey:
    """A key pair: the file of its private half, and its public half as one line `TYPE BASE64 [COMMENT]`."""

    path: Path
    public: str


def run_program(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program without a terminal and return what it said. Raises `SshProgramMissingError`."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SshProgramMissingError(argv[0]) from error


def ensure_key(home: Path, *, key: Path | None = None, login: str = "", runner: Runner = run_program) -> SshKey:
    """Return the key pair to log in with: `key`, else `~/.ssh/google_compute_engine` as gcloud does.

    gcloud's is made (ed25519, no passphrase, comment `login`) when it is missing, by one of the processes that try at once;
    a key that the user named is never made. A missing public half is written again. Raises `SshKeyError`, also for a
    private key that others may read, which ssh would ignore, and `SshProgramMissingError`.
    """
    path = key or home / ".ssh" / "google_compute_engine"
    try:
        if not path.exists():
            if key is not None:
                hint = f"check the path, or make the key with `ssh-keygen -t ed25519 -f {path}`"
                raise SshKeyError(f"there is no ssh key `{path}`", hint=hint)
            _make(path, comment=login or login_name(os.environ), runner=runner)
        _check(path)
        return SshKey(path, _public_half(path, runner=runner))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = f"make `{path}` readable and its folder writable for you, or name another key"
        raise SshKeyError(f"the ssh key `{path}` cannot be used: {reason}", hint=hint) from error


def metadata_entry(login: str, key: SshKey) -> str:
    """Return the line of the metadata value `ssh-keys` that lets `login` in, as gcloud writes it (observed: gcloud 528)."""
    kind, blob = key.public.split()[:2]
    return f"{login}:{kind} {blob} {login}"


def with_key(existing: str, entry: str) -> str:
    """Return a `ssh-keys` value with a line added, unless the same user already has the same key, whatever its comment.

    All other lines stay as they are, those that are not understood too.
    """
    lines = [line for line in existing.splitlines() if line.strip()]
    if any(_identity(line) == _identity(entry) for line in lines):
        return existing
    return "\n".join([*lines, entry])


def login_name(environ: Mapping[str, str]) -> str:
    """Return the user name to log in with: the local one, as gcloud does, made valid for Linux where it is not.

    The order of the variables is that of Python's getpass, which gcloud asks [gcloud 528 source].
    """
    names = (environ.get(variable) for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    name = next((name for name in names if name), None) or _account()
    if _LOGIN.fullmatch(name):
        return name
    # A Windows domain is no part of the name, an address's host neither.
    short = name.rpartition("\\")[2].partition("@")[0]
    valid = re.sub(r"[^a-z0-9_-]", "_", short.lower()).lstrip("-")
    return valid if _LOGIN.fullmatch(valid) else f"u_{valid}"


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run with a user id that has no account
        return f"user{os.getuid()}"


def _identity(line: str) -> tuple[str, ...]:
    match = _ENTRY.fullmatch(line.strip())
    return (match["login"], *match["key"].split()) if match else (line,)


def _make(path: Path, *, comment: str, runner: Runner) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tpuctl-key-") as scratch:
        made = Path(scratch) / "key"
        done = runner(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(made)])
        if done.returncode != 0:
            raise SshKeyError(f"`ssh-keygen` made no key: {done.stderr.strip()}", hint=f"look at `{path.parent}`")
        try:
            # A link appears whole or not at all, and the first of several processes wins.
            path.hardlink_to(made)
        except FileExistsError:
            return
        made.with_suffix(".pub").replace(_public_path(path))


def _check(path: Path) -> None:
    status = path.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        hint = f"run `chmod 600 {path}`"
        raise SshKeyError(f"the ssh key `{path}` can be read by others, so ssh would not use it", hint=hint)
    if not path.read_text("utf-8").lstrip().startswith("-----BEGIN"):
        raise _not_a_key(path, "it does not begin like one")


def _public_half(path: Path, *, runner: Runner) -> str:
    public = _public_path(path)
    if public.is_file() and (match := _PUBLIC.fullmatch(public.read_text("utf-8"))):
        return match[0].strip()
    done = runner(["ssh-keygen", "-y", "-P", "", "-f", str(path)])
    match = _PUBLIC.fullmatch(done.stdout)
    if done.returncode != 0 or match is None:
        raise _not_a_key(path, done.stderr.strip() or "ssh-keygen printed no public key")
    _write_public(public, match[0])
    return match[0].strip()


def _write_public(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".tpuctl-key-", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def _public_path(path: Path) -> Path:
    return path.with_name(path.name + ".pub")


def _not_a_key(path: Path, reason: str) -> SshKeyError:
    hint = (
        f"if it has a passphrase, write its public half with `ssh-keygen -y -f {path} > {path}.pub`; "
        "otherwise move it away or name another key"
    )
    return SshKeyError(f"`{path}` is not a private key that can be used: {reason}", hint=hint)

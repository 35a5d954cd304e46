"""The key pair on this machine: gcloud's (created if missing), one that the user named, or one in an ssh agent."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.private import make_private
from tpuctl.remote.keys.login import login_name

if TYPE_CHECKING:
    from collections.abc import Callable

    Runner = Callable[[list[str]], "subprocess.CompletedProcess[str]"]

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
        """Tell whether the private key is only in an agent."""
        return self.path.suffix == ".pub"


def run_program(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program without a terminal and return its result. Raises `SshProgramMissingError`."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SshProgramMissingError(argv[0]) from error


def ensure_key(
    home: Path, *, key: Path | None = None, login: str = "", makes: bool = True, runner: Runner = run_program
) -> SshKey:
    """Return the key pair for logins: `key`, else `~/.ssh/google_compute_engine` as gcloud does.

    Creates gcloud's pair if it is missing (ed25519, no passphrase, comment `login`); if several processes try at the same time,
    one succeeds. Never creates a named `key`, and creates none without `makes`. `key` may be the public key of a pair in an
    agent (a security key, a password manager) without a private key file. Writes a missing public key file. Raises
    `SshKeyError`, also for a private key that others may read, which ssh would ignore, and `SshProgramMissingError`.
    """
    path = key or default_path(home)
    try:
        if key is not None:
            path = key.with_suffix("") if key.suffix == ".pub" else key
            if not path.exists():
                return _find_in_agent(key, runner=runner)
        elif not path.exists():
            if not makes:
                hint = "the first `tpuctl up` or `tpuctl ssh` creates it; `tpuctl ssh-key renew` creates it now"
                raise SshKeyError(f"ssh key `{path}` does not exist yet", hint=hint)
            _create_key(path, comment=login or login_name(os.environ), runner=runner)
        _check_private_key(path)
        return SshKey(path, _read_public_key(path, runner=runner))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = f"make `{path}` readable and its folder writable, or use another key"
        raise SshKeyError(f"the ssh key `{path}` cannot be used: {reason}", hint=hint) from error


def default_path(home: Path) -> Path:
    """Return the path of the key that gcloud and tpuctl share."""
    return home / ".ssh" / "google_compute_engine"


def is_held_by_agent(key: SshKey, *, runner: Runner = run_program) -> bool:
    """Tell whether an ssh agent has this key. Raises `SshProgramMissingError`."""
    blob = key.public.split()[1]
    return any(blob in line.split() for line in runner(["ssh-add", "-L"]).stdout.splitlines())


def _find_in_agent(named: Path, *, runner: Runner) -> SshKey:
    """Return a key without a private key file. Raises `SshKeyError` without a public key, or if no agent has it."""
    public = named if named.suffix == ".pub" else public_path(named)
    if not public.is_file():
        private = named.with_suffix("") if named == public else named
        hint = f"check the path, or create the key with `ssh-keygen -t ed25519 -f {private}`"
        raise SshKeyError(f"ssh key `{named}` does not exist", hint=hint)
    match = _PUBLIC_KEY.fullmatch(_read(public))
    if match is None:
        raise SshKeyError(f"`{public}` is not a public key", hint="use another key")
    key = SshKey(public, match[0].strip())
    if not is_held_by_agent(key, runner=runner):
        hint = "start the agent that has it (`SSH_AUTH_SOCK`; `ssh-add -L` lists its keys), or use another key"
        raise SshKeyError(f"the private key of `{public}` is neither in a file nor in an ssh agent", hint=hint)
    return key


def _create_key(path: Path, *, comment: str, runner: Runner) -> None:
    make_private(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tpuctl-key-") as scratch:
        made = Path(scratch) / "key"
        done = runner(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(made)])
        if done.returncode != 0:
            raise SshKeyError(f"`ssh-keygen` created no key: {done.stderr.strip()}", hint=f"check `{path.parent}`")
        try:
            # Creating a link is atomic, and the first of several processes wins.
            path.hardlink_to(made)
        except FileExistsError:
            return
        made.with_suffix(".pub").replace(public_path(path))


def _check_private_key(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_key(path, "it is not a regular file")
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        hint = f"run `chmod 600 {path}`"
        raise SshKeyError(f"the ssh key `{path}` is readable by other users, so ssh would ignore it", hint=hint)
    if not _read(path).lstrip().startswith("-----BEGIN"):
        raise _not_a_key(path, "it has no PEM header")


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_KEY_SIZE).decode()


def _read_public_key(path: Path, *, runner: Runner) -> str:
    public = public_path(path)
    if public.is_file() and (match := _PUBLIC_KEY.fullmatch(_read(public))):
        return match[0].strip()
    done = runner(["ssh-keygen", "-y", "-P", "", "-f", str(path)])
    match = _PUBLIC_KEY.fullmatch(done.stdout)
    if done.returncode != 0 or match is None:
        if "incorrect passphrase" in done.stderr:
            hint = (
                f"create it with `ssh-keygen -y -f {path} > {path}.pub`, and add the key to an agent: `ssh-add {path}`"
            )
            raise SshKeyError(f"the ssh key `{path}` has a passphrase, and its public key file is missing", hint=hint)
        raise _not_a_key(path, done.stderr.strip() or "ssh-keygen printed no public key")
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".tpuctl-key-", delete=False) as file:
        file.write(match[0])
    Path(file.name).replace(public)
    return match[0].strip()


def public_path(path: Path) -> Path:
    """Return the path of the public key that belongs to a private key."""
    return path.with_name(path.name + ".pub")


def _not_a_key(path: Path, reason: str) -> SshKeyError:
    hint = f"rename it (`tpuctl ssh-key renew` does that for gcloud's key), or use another key than `{path}`"
    return SshKeyError(f"`{path}` is not a usable private key: {reason}", hint=hint)

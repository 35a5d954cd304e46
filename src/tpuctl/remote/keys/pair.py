"""The key pair on this machine: gcloud's, made when it is missing, or one that the user named, or one that an agent holds."""

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

_PUBLIC = re.compile(r"(?P<key>(?:ssh|ecdsa|sk)-[\w@.-]+ [A-Za-z0-9+/]+=*)(?: [^\n]*)?\n?")
# The longest RSA keys have some 13 kB.
_LONGEST = 64 * 1024


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
    """A key pair: the file for ssh's `-i`, and its public half as one line `TYPE BASE64 [COMMENT]`.

    The file is that of the private half; of the public half where only an agent has the private one.
    """

    path: Path
    public: str

    @property
    def is_in_agent(self) -> bool:
        """Tell whether only an agent has the private half."""
        return self.path.suffix == ".pub"


def run_program(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program without a terminal and return what it said. Raises `SshProgramMissingError`."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SshProgramMissingError(argv[0]) from error


def ensure_key(
    home: Path, *, key: Path | None = None, login: str = "", makes: bool = True, runner: Runner = run_program
) -> SshKey:
    """Return the key pair to log in with: `key`, else `~/.ssh/google_compute_engine` as gcloud does.

    gcloud's is made (ed25519, no passphrase, comment `login`) when it is missing, by one of the processes that try at once;
    a key that the user named is never made, and none without `makes`. `key` may be the public half of what an agent holds (a
    security key, a password manager's), where the private one is no file. A missing public half is written again. Raises
    `SshKeyError`, also for a private key that others may read, which ssh would ignore, and `SshProgramMissingError`.
    """
    path = key or default_path(home)
    try:
        if key is not None:
            path = key.with_suffix("") if key.suffix == ".pub" else key
            if not path.exists():
                return _held_by_agent(key, runner=runner)
        elif not path.exists():
            if not makes:
                hint = "the first `tpuctl up` or `tpuctl ssh` makes it; `tpuctl ssh-key renew` makes it now"
                raise SshKeyError(f"there is no ssh key `{path}` yet", hint=hint)
            _make(path, comment=login or login_name(os.environ), runner=runner)
        _check(path)
        return SshKey(path, _public_half(path, runner=runner))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = f"make `{path}` readable and its folder writable for you, or name another key"
        raise SshKeyError(f"the ssh key `{path}` cannot be used: {reason}", hint=hint) from error


def default_path(home: Path) -> Path:
    """Return where gcloud and tpuctl keep the key that they share."""
    return home / ".ssh" / "google_compute_engine"


def is_held_by_agent(key: SshKey, *, runner: Runner = run_program) -> bool:
    """Tell whether an ssh agent offers this very key. Raises `SshProgramMissingError`."""
    blob = key.public.split()[1]
    return any(blob in line.split() for line in runner(["ssh-add", "-L"]).stdout.splitlines())


def _held_by_agent(named: Path, *, runner: Runner) -> SshKey:
    """Return the key whose private half is in no file. Raises where there is no public one, or no agent has it."""
    public = named if named.suffix == ".pub" else public_path(named)
    if not public.is_file():
        private = named.with_suffix("") if named == public else named
        hint = f"check the path, or make the key with `ssh-keygen -t ed25519 -f {private}`"
        raise SshKeyError(f"there is no ssh key `{named}`", hint=hint)
    match = _PUBLIC.fullmatch(_read(public))
    if match is None:
        raise SshKeyError(f"`{public}` is not a public key", hint="name another key")
    key = SshKey(public, match[0].strip())
    if not is_held_by_agent(key, runner=runner):
        hint = "start the agent that has it (`SSH_AUTH_SOCK`; `ssh-add -L` lists what it holds), or name another key"
        raise SshKeyError(f"`{public}` has no private half beside it, and no ssh agent holds it", hint=hint)
    return key


def _make(path: Path, *, comment: str, runner: Runner) -> None:
    make_private(path.parent)
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
        made.with_suffix(".pub").replace(public_path(path))


def _check(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_key(path, "it is not a regular file")
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        hint = f"run `chmod 600 {path}`"
        raise SshKeyError(f"the ssh key `{path}` can be read by others, so ssh would not use it", hint=hint)
    if not _read(path).lstrip().startswith("-----BEGIN"):
        raise _not_a_key(path, "it does not begin like one")


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LONGEST).decode()


def _public_half(path: Path, *, runner: Runner) -> str:
    public = public_path(path)
    if public.is_file() and (match := _PUBLIC.fullmatch(_read(public))):
        return match[0].strip()
    done = runner(["ssh-keygen", "-y", "-P", "", "-f", str(path)])
    match = _PUBLIC.fullmatch(done.stdout)
    if done.returncode != 0 or match is None:
        if "incorrect passphrase" in done.stderr:
            raise _locked(path)
        raise _not_a_key(path, done.stderr.strip() or "ssh-keygen printed no public key")
    _write_public(public, match[0])
    return match[0].strip()


def _write_public(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".tpuctl-key-", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def public_path(path: Path) -> Path:
    """Return where the public half of a private key lies."""
    return path.with_name(path.name + ".pub")


def _locked(path: Path) -> SshKeyError:
    hint = f"write it once with `ssh-keygen -y -f {path} > {path}.pub`, and let an agent hold the key: `ssh-add {path}`"
    return SshKeyError(f"the ssh key `{path}` has a passphrase, and its public half is not there", hint=hint)


def _not_a_key(path: Path, reason: str) -> SshKeyError:
    hint = f"move it away (`tpuctl ssh-key renew` does that with gcloud's), or name another key than `{path}`"
    return SshKeyError(f"`{path}` is not a private key that can be used: {reason}", hint=hint)

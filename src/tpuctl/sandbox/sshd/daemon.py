"""OpenSSH's sshd for one connection to one sandbox worker: its programs, configuration, folders and host key.

A worker has a home and, beside it, the folder of its sshd; the workers of one node incarnation share an ed25519 host key.
"""

from __future__ import annotations

import base64
import fcntl
import grp
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl import platforms
from tpuctl.durations import parse_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.files import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

_KEY_LINE = re.compile(r"(?P<login>[^:\s]+):(?P<key>(?:ssh|ecdsa|sk)-[\w@.-]+ +[A-Za-z0-9+/]+=*)(?: (?P<comment>.*))?")


def find_sshd(folders: Iterable[str] = platforms.SSHD_FOLDERS) -> str:
    """Return the path of sshd. Raises `SshdUnavailableError` naming its package."""
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    program = _find_program("sshd", path)
    if program is None:
        hint = "install it (Debian and Ubuntu: `sudo apt-get install openssh-server`; no service needs to run)"
        raise SshdUnavailableError("ssh to sandbox workers needs OpenSSH's `sshd`, which was not found", hint=hint)
    return str(Path(program).absolute())  # sshd cannot re-execute itself under a relative name


def _find_program(name: str, path: str) -> str | None:
    """Return the path of a program as `shutil.which` does; one that was found is only looked at again."""
    program = _FOUND.get((name, path))
    if program is None or not os.access(program, os.X_OK):
        program = shutil.which(name, path=path)
        if program is not None:
            _FOUND[name, path] = program
    return program


# Programs by their name and the path that was searched.
_FOUND: dict[tuple[str, str], str] = {}


def authorized_keys(login: str, *key_lists: str, now: datetime | None = None) -> str:
    """Return the authorized keys of one user from metadata values (`ssh-keys`: lines `LOGIN:TYPE BASE64 comment`).

    Omitted are lines of other users, lines that are not plain keys (sshd would obey options), and with `now` expired keys in
    Google's form.
    """
    lines = [line for value in key_lists for line in value.splitlines()]
    matches = (_KEY_LINE.fullmatch(line.strip()) for line in lines)
    keys = dict.fromkeys(
        match["key"]
        for match in matches
        if match and match["login"] == login and not _is_expired(match["comment"], now)
    )
    return "".join(f"{key}\n" for key in keys)


def _is_expired(comment: str | None, now: datetime | None) -> bool:
    """Return whether a key expired: its comment is `google-ssh {"userName":…,"expireOn":…}` [Compute Engine documentation].

    A key with an invalid time does not expire [guest agent's tests].
    """
    form, _, words = (comment or "").partition(" ")
    if form != "google-ssh" or now is None:
        return False
    try:
        end = parse_timestamp(json.loads(words)["expireOn"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return end is not None and end <= now


def configure_sshd(folders: WorkerFolders, session: Path, keys: str, *, login: str) -> Path:
    """Write the files of sshd for one worker and return its configuration file."""
    write_private_file(folders.control / "authorized_keys", keys)
    path = folders.control / "sshd_config"
    settings = {
        "HostKey": f'"{folders.node / HOST_KEY_FILE}"',
        "AuthorizedKeysFile": '"{}"'.format(str(folders.control / "authorized_keys").replace("%", "%%")),
        "AllowUsers": login,
        # A session runs as the user who runs ssh, who owns the worker's home; that may be root.
        "PermitRootLogin": "prohibit-password",
        "ForceCommand": shlex.quote(str(session)),
        "StrictModes": "no",
        "UsePAM": "yes" if _needs_pam(login) else "no",
        "PidFile": "none",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UseDNS": "no",
        "PrintMotd": "no",
        "PrintLastLog": "no",
        "AcceptEnv": "LANG LC_*",
        # Else Debian's bash, which starts the session, reads ~/.bashrc of this machine first: it may print, and be slow.
        "SetEnv": "SHLVL=1",
        "LogLevel": "ERROR",
        # No one can listen to this pipe, and without assembler it takes a client 30 ms: OpenSSH 9.0 to 9.9 prefers it.
        "KexAlgorithms": "-sntrup761*",
    }
    if server := next((path for path in platforms.SFTP_SERVERS if os.access(path, os.X_OK)), None):
        # internal-sftp would run in sshd itself, bypass the session program, and use the real home.
        settings["Subsystem"] = f"sftp {server}"
    write_private_file(path, "".join(f"{key} {value}\n" for key, value in settings.items()))
    return path


def _needs_pam(login: str) -> bool:
    """Return whether sshd would reject this account for its lock (`!`) unless PAM decides."""
    if os.geteuid() != 0 or not Path("/etc/pam.d/sshd").exists():
        return False
    try:
        lines = Path("/etc/shadow").read_text("utf-8").splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{login}:!") for line in lines)


def become_sshd(sshd: str, configuration: Path) -> None:
    """Replace this process with an sshd that serves one connection on stdin and stdout. Does not return."""
    if os.geteuid() == 0 and (needed := platforms.sshd_privilege_separation()):
        try:
            needed.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot create `{needed}`, which sshd needs when root runs it: {error.strerror}"
            raise SshdUnavailableError(text, hint=f"create it with `sudo mkdir -p {needed}`") from error
    log = configuration.parent / "log"
    # The log goes to a file: stderr of a ProxyCommand appears on the user's terminal.
    os.execv(sshd, [sshd, "-i", "-f", str(configuration), "-E", str(log)])  # noqa: S606  # an argv, no shell


def run_in_background(act: Callable[[], None]) -> None:
    """Call a function in a process of its own, which holds none of this one's streams and outlives it."""
    if os.fork():
        return
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        act()
    finally:
        os._exit(0)


def drop_connection_after(seconds: float) -> None:
    """Let the sshd that this process becomes be killed after this time, with all of its connection."""
    sshd = os.getpid()
    os.setpgid(0, 0)

    def kill() -> None:
        time.sleep(seconds)
        if os.getppid() == sshd:
            os.killpg(sshd, signal.SIGKILL)

    run_in_background(kill)


def own_login() -> str:
    """Return the name of the user who runs this process: the only one that can log in to a sandbox worker."""
    return pwd.getpwuid(os.geteuid()).pw_name


HOST_KEY_FILE = "ssh_host_ed25519_key"
_MAGIC = b"openssh-key-v1\0"


class SshdUnavailableError(TpuctlError):
    """An OpenSSH program that sandbox workers need is not installed, or cannot be used."""

    kind = "sshd_unavailable"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        install = "install it (Debian and Ubuntu: `sudo apt-get install openssh-server openssh-client`)"
        super().__init__(message, hint=hint or install)


def host_key(directory: Path) -> str:
    """Return the base64 text of the ed25519 public host key in `directory`; create the key if there is none.

    Several processes may do so at once: all get the same key. Raises `SshdUnavailableError` without ssh-keygen.
    """
    path = directory / HOST_KEY_FILE
    if path.exists():
        return _public_half(path.read_text("ascii"))
    program = shutil.which("ssh-keygen")
    if program is None:
        raise SshdUnavailableError("sandbox workers need `ssh-keygen`, which is not on PATH")
    import subprocess  # noqa: PLC0415  # 3 ms, and most connections find the key
    import tempfile  # noqa: PLC0415  # 1 ms

    make_private_folder(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".host-key-") as scratch:
        created = Path(scratch) / "key"
        argv = [program, "-q", "-t", "ed25519", "-N", "", "-C", "tpuctl sandbox", "-f", str(created)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SshdUnavailableError(f"`ssh-keygen` failed: {done.stderr.strip()}")
        with suppress(FileExistsError):  # a link is atomic, and the first of several processes wins
            path.hardlink_to(created)
    return _public_half(path.read_text("ascii"))


def _public_half(private: str) -> str:
    """Return the public key that OpenSSH's private key format contains unencrypted [OpenSSH PROTOCOL.key]."""
    lines = private.strip().splitlines()
    raw = base64.b64decode("".join(lines[1:-1]))
    rest = raw[len(_MAGIC) :]
    for _ in range(3):  # cipher, key derivation and its options
        _, rest = _read_string(rest)
    public, _ = _read_string(rest[4:])  # the number of keys is always 1
    return base64.b64encode(public).decode("ascii")


def _read_string(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "big")
    return data[4 : 4 + length], data[4 + length :]


@dataclass(frozen=True, slots=True)
class WorkerFolders:
    """The folders of one worker. `node` is shared by the workers of one incarnation of a node."""

    node: Path
    index: int

    @property
    def home(self) -> Path:
        """Return the worker's home folder, the only one that its user sees."""
        return self.node / str(self.index)

    @property
    def control(self) -> Path:
        """Return the folder of the worker's sshd: configuration, authorized keys, log, programs, time of last reboot."""
        return self.node / f"{self.index}.sshd"

    @property
    def programs(self) -> Path:
        """Return the folder of programs that replace those of a TPU VM (`hostname`, `sudo`, `reboot`, …)."""
        return self.control / "bin"

    @property
    def metadata(self) -> Path:
        """Return the folder of the metadata server's values, by their paths."""
        return self.control / "metadata"

    @property
    def devices(self) -> Path:
        """Return the folder that stands for `/` when device files are counted: a hidden folder in the home."""
        return self.home / ".tpu"

    @property
    def temporary(self) -> Path:
        """Return the folder that stands for `/tmp` when libtpu's lock file is searched. A reboot empties it."""
        return self.devices / "tmp"

    @property
    def service_lock(self) -> Path:
        """Return the file that the worker's service locks while it runs; it holds the pid."""
        return self.control / "service"

    @property
    def is_service_running(self) -> bool:
        """Return whether the worker's service runs."""
        try:
            with self.service_lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def last_reboot(self) -> Path:
        """Return the file with the sandbox time of the last reboot in the guest; it is missing before the first."""
        return self.control / "rebooted"


def write_private_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file atomically; one that already holds the text is not changed."""
    if path.is_file() and path.read_text("utf-8") == text:
        return
    import tempfile  # noqa: PLC0415  # 1 ms, and most connections change no file

    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    Path(scratch).replace(path)


def terminal_obstacle() -> str | None:
    """Return why sshd would end a session with a terminal. None if it would not.

    sshd gives the terminal to the group `tty` and ends if it may not (OpenSSH source, sshpty.c). root always may; other
    users need `/dev/pts` mounted with `gid=` of that group, which containers often lack.
    """
    if os.geteuid() == 0:
        return None
    try:
        tty_group = grp.getgrnam("tty").gr_gid
        ours, theirs = os.openpty()
    except (KeyError, OSError):
        return None  # without that group sshd uses the user's own
    try:
        group = os.fstat(theirs).st_gid
    finally:
        os.close(ours)
        os.close(theirs)
    if group == tty_group or tty_group in os.getgroups():
        return None
    return f"sshd cannot open a terminal for this user: /dev/pts is mounted without gid={tty_group}"

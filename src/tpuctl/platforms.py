"""Differences between Linux and macOS, with an implementation for each; the rest of tpuctl is POSIX.

Worker programs are Linux programs. The sandbox runs them on this machine: on macOS, without /proc, they report less.
docs/platforms.md lists what was tested on which system.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The longest socket path in bytes: `sun_path` holds 104 with its final NUL on macOS, 108 on Linux. Folders may be shared.
MAX_SOCKET_PATH_BYTES = 103
# The number of file descriptors that every system allows a process: macOS 256, most Linux systems 1024.
GUARANTEED_OPEN_FILES = 256
# sshd is seldom on the PATH of an ordinary user: Debian, macOS; Homebrew. sftp-server: Debian, Fedora, Arch, macOS; Homebrew.
SSHD_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/opt/homebrew/opt/openssh/sbin", "/usr/bin")
SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
    "/opt/homebrew/opt/openssh/libexec/sftp-server",
    "/usr/local/libexec/sftp-server",
)
_PROC = Path("/proc")
# macOS: all processes, with their environment, each on one line.
_PS = ("ps", "-A", "-E", "-ww", "-o", "pid=,command=")
_PS_SECONDS = 10
# The longest wait for a process that starts a program.
_START_SECONDS = 0.5
# The index of `env_end` [proc(5): field 51] among the fields after the command of /proc/PID/stat, which may have spaces.
_ENV_END = 48


def sshd_privilege_separation(system: str = sys.platform) -> Path | None:
    """Return the folder that sshd needs under root and that a reboot removes. None if it is permanent on this system."""
    return Path("/run/sshd") if system == "linux" else None


def flush_to_disk(file: int) -> None:
    """Flush the contents of a descriptor to the disk itself. Raises `OSError`.

    `fsync` of macOS leaves them in the cache of the disk [fcntl(2) of macOS]; not all of its file systems support more.
    """
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(file, full)
            return
    os.fsync(file)


def find_processes_with_variable(variable: str, *values: str, proc: Path = _PROC) -> Iterator[int]:
    """Yield the processes of this user that were started with one of these values of an environment variable."""
    wanted = {f"{variable}={value}".encode(errors="surrogateescape") for value in values}
    if not (proc / "self").exists():
        import subprocess  # noqa: PLC0415  # 3 ms for each ssh connection to a sandbox worker

        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(
                _PS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PS_SECONDS, check=True
            )
            for one in wanted:
                yield from parse_process_list(one, listed.stdout)
        return
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if not wanted.isdisjoint(_read_environment(folder).split(b"\0")):
                yield int(folder.name)


def _read_environment(process: Path) -> bytes:
    """Return the environment of a process below /proc. Waits for one that starts a program. Raises `OSError`.

    The kernel lets the parent continue, and shows an empty environment, before it has copied the environment to the new
    program: `env_end` of proc(5) is 0 for so long. This took up to 24 ms on a busy machine.
    """
    environment = (process / "environ").read_bytes()
    if environment:
        return environment
    (process / "exe").readlink()  # threads of the kernel, and processes that have ended, have none: OSError
    end = time.monotonic() + _START_SECONDS
    while (process / "stat").read_bytes().rpartition(b")")[2].split()[_ENV_END] == b"0" and time.monotonic() < end:
        time.sleep(0.001)
    return (process / "environ").read_bytes()


def parse_process_list(wanted: bytes, listing: bytes) -> Iterator[int]:
    """Yield the process ids in the output of `ps -E` that have `NAME=value` after their command. Pure."""
    for line in listing.splitlines():
        process, _, words = line.strip().partition(b" ")
        if process.isdigit() and b" %s " % wanted in b"%s " % words:
            yield int(process)

"""The home of a sandbox worker: its programs, the progress of its startup scripts, and its reboots.

`data/guest` has the programs that replace those of a TPU VM, or that would affect this machine. Startup scripts do not run:
the worker's programs report their progress. After a reboot in the guest the worker does not answer for `REBOOT_DURATION`, and
its processes have ended.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import tpuctl
from tpuctl.clock import SystemClock
from tpuctl.durations import parse_timestamp
from tpuctl.files import make_private_folder
from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox.lifecycle import state_since
from tpuctl.sandbox.sshd.daemon import WorkerFolders, write_private_file
from tpuctl.sandbox.worker_lookup import worker_host_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.sandbox.worker_lookup import SandboxWorker

# Processes of a worker carry this variable with the worker's folder, so that a reboot finds them all.
WORKER_MARK = "TPUCTL_SANDBOX_WORKER"

_PROGRAMS = Path(tpuctl.__file__).parent / "data" / "guest"
_FRAMEWORKS = _PROGRAMS / "frameworks"
_PROFILES = (".profile", ".zprofile")


def prepare_home(folders: WorkerFolders, worker: SandboxWorker, startup: StartupProgress, *, state_path: Path) -> Path:
    """Create or update a worker's folders, programs, devices and metadata; return the program that starts a session."""
    for folder in (folders.home, folders.temporary, folders.programs):
        make_private_folder(folder)
    runs_until = int(SystemClock().now().timestamp()) + startup.runs_for if startup.runs_for else 0
    progress = {"TPUCTL_STARTUP": startup.ends_as, "TPUCTL_STARTUP_RUNS_UNTIL": str(runs_until)}
    write_private_file(folders.control / "startup", _assignments(progress, "export "))
    # All else seldom changes: an identity takes 20 ms.
    tmux = shutil.which("tmux")
    programs = [path for path in (_PROGRAMS / "bin").iterdir() if tmux or path.name != "tmux"]
    sources = [*programs, *(_PROGRAMS / name for name in ("session", "progress", "profile"))]
    changed = max(path.stat().st_mtime_ns for path in sources)
    version = (tpuctl.__version__, len(sources), changed)
    phase = worker.phase
    faults = (phase.lacks_chip, phase.straggler, phase.hanging_worker)
    facts = repr((str(state_path), sys.executable, tmux, *faults, *version))
    session, prepared = folders.control / "session", folders.control / "prepared"
    is_prepared = prepared.is_file() and prepared.read_text("utf-8") == facts
    in_home = (folders.devices / "dev", *(folders.home / name for name in _PROFILES))
    if is_prepared and all(path.exists() for path in in_home):  # its user may remove these
        return session
    _write_identity(folders, worker, state_path=state_path, tmux=tmux)
    for path in programs:
        write_private_file(folders.programs / path.name, path.read_text("utf-8"), mode=0o700)
    for name in ("session", "progress"):
        write_private_file(folders.control / name, (_PROGRAMS / name).read_text("utf-8"), mode=0o700)
    for name in _PROFILES:
        if not (folders.home / name).exists():
            write_private_file(folders.home / name, (_PROGRAMS / "profile").read_text("utf-8"))
    write_private_file(prepared, facts)
    return session


def _write_identity(folders: WorkerFolders, worker: SandboxWorker, *, state_path: Path, tmux: str | None) -> None:
    """Write the values by which the programs of a worker differ from those of others, its metadata and its devices."""
    import hashlib  # noqa: PLC0415  # 3 ms

    from tpuctl.sandbox.sshd.worker_identity import identify_worker  # noqa: PLC0415  # 20 ms, with the accelerators' table

    name = worker_host_name(worker.node.number, worker.index)
    identity = identify_worker(worker, name)
    exported = {
        "HOME": str(folders.home),
        WORKER_MARK: str(folders.control),
        "HOSTNAME": name,
        "TPUCTL_DEVICE_ROOT": str(folders.devices),
        "TPUCTL_METADATA_ROOT": str(folders.metadata),
        "TPUCTL_SANDBOX_NETWORK": loopback_network(state_path),
        "PYTHONPATH": f"{_FRAMEWORKS / identity.framework}:{_FRAMEWORKS / 'chips'}",
        **identity.environment,
    }
    for_programs = {
        "address": worker.addresses[worker.index],
        "domain": f"{worker.node.zone}.c.{worker.node.project}.internal",
        "python": sys.executable,
        "state_path": str(state_path),
        "tmux": tmux or "",
        "tmux_server": "tpuctl-" + hashlib.sha256(str(folders.control).encode()).hexdigest()[:16],
    }
    environment = _assignments(exported, "export ") + _assignments(for_programs)
    write_private_file(folders.control / "environment", environment)
    _keep_files(folders.metadata, identity.metadata)
    _keep_files(folders.devices / "dev", {device.partition("/")[2]: "" for device in identity.devices})
    logins = folders.devices / "var" / "log" / "wtmp"
    if not logins.exists():  # a machine has a record of logins, which is empty at first
        make_private_folder(logins.parent)
        write_private_file(logins, "")


def _assignments(values: Mapping[str, str], word: str = "") -> str:
    """Return the lines of a shell program that set variables."""
    return "".join(f"{word}{name}={shlex.quote(value)}\n" for name, value in values.items())


def _keep_files(root: Path, files: Mapping[str, str]) -> None:
    """Write these files, by path, into a folder and remove all others."""
    make_private_folder(root)
    for path in root.rglob("*"):
        # A name that begins with a dot may be the temporary file of another session.
        if not path.name.startswith(".") and not path.is_dir() and str(path.relative_to(root)) not in files:
            path.unlink(missing_ok=True)
    for name, text in files.items():
        make_private_folder((root / name).parent)
        write_private_file(root / name, text)


# The sandbox's own choice, in sandbox time.
STARTUP_LENGTH = timedelta(seconds=20)
_LONG_AGO = timedelta(days=365)
_FOR_EVER = 10 * _LONG_AGO


@dataclass(frozen=True, slots=True)
class StartupProgress:
    """The progress at the start of a session: `runs_for` more seconds of real time (0: finished), then `done` or `failed`."""

    runs_for: int
    ends_as: str


def startup_progress(worker: SandboxWorker, rebooted: datetime | None, now: datetime, speed: float) -> StartupProgress:
    """Return the progress of a worker's startup. `rebooted` is when it last came up after a reboot from inside, if ever."""
    ends_as = "failed" if worker.phase.startup_fails else "done"
    delay = worker.phase.startup_delay
    length = STARTUP_LENGTH + timedelta(seconds=delay) if delay >= 0 else _FOR_EVER
    boots = (boot for boot in (state_since(worker.node.timeline, now), rebooted) if boot is not None)
    began = max(boots, default=now - _LONG_AGO)
    left = max(timedelta(), began + length - now)
    return StartupProgress(ceil(left.total_seconds() / speed), ends_as)


# Unverified: a plausible time for a VM to boot, in sandbox time.
REBOOT_DURATION = timedelta(seconds=40)


def note_reboot(folders: WorkerFolders, now: datetime) -> None:
    """Record that the worker reboots now, in sandbox time."""
    write_private_file(folders.last_reboot, now.isoformat())


def last_reboot(folders: WorkerFolders) -> datetime | None:
    """Return the sandbox time of the last reboot from inside. None if there was none."""
    try:
        return parse_timestamp(folders.last_reboot.read_text("utf-8"))
    except FileNotFoundError:
        return None


def is_rebooting(folders: WorkerFolders, now: datetime) -> bool:
    """Return whether the worker reboots at this sandbox time."""
    since = last_reboot(folders)
    return since is not None and since <= now < since + REBOOT_DURATION


SERVICE_UNIT = "etc/systemd/system/tpuctl-guard.service"
_ENABLED = "etc/systemd/system/multi-user.target.wants/tpuctl-guard.service"


def start_enabled_service(folders: WorkerFolders, state_path: Path, address: str) -> None:
    """Start the service of a worker that was enabled, as systemd does at boot: here the first connection after it does."""
    if not (folders.devices / _ENABLED).exists() or folders.is_service_running:
        return
    import subprocess  # noqa: PLC0415  # 3 ms, and few workers have a service

    argv = [sys.executable, "-P", "-m", "tpuctl.sandbox.sshd", "--service", str(state_path), address]
    environ = {**os.environ, WORKER_MARK: str(folders.control)}
    null = subprocess.DEVNULL
    subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, env=environ, start_new_session=True)


def end_processes(*workers: WorkerFolders) -> None:
    """Kill the processes of workers, the caller's own session last; empty their `/tmp`.

    Does not return when called on one of them.
    """
    for folders in workers:
        for file in folders.temporary.glob("*"):
            if file.is_file():
                file.unlink(missing_ok=True)
    marks = [str(folders.control) for folders in workers]
    for process in find_processes_with_variable(WORKER_MARK, *marks):
        if process != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
    if os.environ.get(WORKER_MARK) in marks:
        os.killpg(os.getpgid(0), signal.SIGKILL)


def loopback_network(state_path: Path) -> str:
    """Return the first two bytes of the loopback addresses that stand for those of a sandbox's network.

    All workers share a machine. The last two bytes of both addresses are the same.
    """
    return f"127.{1 + crc32(str(state_path).encode()) % 254}"


# Longer than a test, or a try of a user, takes.
_BLOCKED_SECONDS = "3600"


def block_ports(folders: WorkerFolders, worker: SandboxWorker, *, state_path: Path) -> None:
    """Let connections from other workers to the blocked ports of a worker time out, until its processes end, or for an hour.

    A socket whose queue is full drops them, as a firewall does. A process of the worker holds it.
    """
    import socket  # noqa: PLC0415  # 3 ms, and few workers have a blocked port
    import subprocess  # noqa: PLC0415  # as above

    last = worker.addresses[worker.index].split(".")[2:]
    address = ".".join((loopback_network(state_path), *last))
    for port in filter(None, worker.phase.blocked_ports.split(",")):
        # It cannot be bound again while it is blocked.
        with suppress(OSError), socket.socket() as server, socket.socket() as first, socket.socket() as second:
            # Connections of a moment ago do not keep it from that.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, int(port)))
            server.listen(0)
            for waiting in (first, second):
                waiting.settimeout(0)
                waiting.connect_ex((address, int(port)))
            subprocess.Popen(
                ["sleep", _BLOCKED_SECONDS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, WORKER_MARK: str(folders.control)},
                pass_fds=(server.fileno(), first.fileno(), second.fileno()),
                start_new_session=True,
            )

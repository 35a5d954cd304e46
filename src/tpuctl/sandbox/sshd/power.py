"""What ends the processes of a worker whose virtual machine was powered off: stopped, preempted, restarted or deleted.

A stop and a deletion shut the guest down, a preemption powers it off after its notice [Compute Engine documentation]: no
process survives. Here the state of a node follows from the time, and nothing runs at the moment of a change: each request to
an API and each connection looks, and while any worker has a process, one of ours looks each second. The folder `boots` beside
the state has a file for each worker that had a connection since it was booted.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock
from tpuctl.durations import parse_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.files import make_private_folder
from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox.lifecycle import has_run_since
from tpuctl.sandbox.sshd.daemon import WorkerFolders, run_in_background, write_private_file
from tpuctl.sandbox.sshd.worker_home import WORKER_MARK, end_processes
from tpuctl.sandbox.worker_lookup import boots_folder, incarnation_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path
    from typing import BinaryIO

    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.state_session import StateSession
    from tpuctl.sandbox.worker_lookup import SandboxWorker

# The file of a worker's control folder that has the faults of its chips.
CHIP_FAULTS = "chip-faults"
# The value of the metadata server, and how long before the end it changes [Compute Engine documentation].
PREEMPTED = "instance/preempted"
PREEMPTION_NOTICE = timedelta(seconds=30)
_SEPARATOR = "~"  # in no name of a project, a zone or a node


def note_connection(state_path: Path, worker: SandboxWorker, folders: WorkerFolders, now: datetime) -> None:
    """End what is left from before the last boot of a worker that is being connected to."""
    node = worker.node
    folder = boots_folder(state_path)
    make_private_folder(folder)
    words = (node.project, node.zone, node.node_id, str(node.number), str(worker.index))
    path = folder / _SEPARATOR.join(words)
    with _locked(folder):  # of several connections at once the first one ends what is left
        since = _read_time(path)
        if since is not None and has_run_since(node.timeline, since, now):
            path.touch()
            return
        if since is not None:
            end_processes(folders)
        write_private_file(path, now.isoformat())


_LOOK_INTERVAL = timedelta(seconds=1)
# A connection needs less time until its session has a process.
_RECENT = timedelta(seconds=10)


def watch_power(state_path: Path, open_state: Callable[[Path], SandboxState]) -> None:
    """Let a process of its own look while any worker has a process: a single client may send no request meanwhile."""
    folder = boots_folder(state_path)
    with (folder / ".watch").open("a+b") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run_in_background(lambda: _look_while_used(state_path, open_state, folder, lock))


def _look_while_used(
    state_path: Path, open_state: Callable[[Path], SandboxState], folder: Path, lock: BinaryIO
) -> None:
    with suppress(OSError, TpuctlError):  # the sandbox was reset
        while state_path.exists():  # opening would create it
            with open_state(state_path) as sandbox:
                end_processes_of_powered_off(sandbox)
            # A connection is noted before it looks for this process, under the same lock.
            with _locked(folder):
                if not _has_processes(state_path, folder):
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    return
            SystemClock().sleep(_LOOK_INTERVAL)


def _has_processes(state_path: Path, folder: Path) -> bool:
    """Return whether a worker has a process, or just had a connection."""
    noted = [path for path in folder.iterdir() if not path.name.startswith(".")]
    now = SystemClock().now().timestamp()
    if any(now - path.stat().st_mtime < _RECENT.total_seconds() for path in noted):
        return True
    marks = [str(_folders(state_path, path).control) for path in noted]
    return any(True for _ in find_processes_with_variable(WORKER_MARK, *marks))


def end_processes_of_powered_off(sandbox: SandboxState) -> None:
    """End the processes of all workers whose virtual machine has not run since their connection."""
    folder = boots_folder(sandbox.path)
    if not folder.is_dir():  # no worker had a connection
        return
    with _locked(folder):
        with sandbox.read() as session:
            noted = [path for path in folder.iterdir() if not path.name.startswith(".")]
            over = [path for path in noted if not _still_runs(session, path)]
            left = [path for path in noted if path not in over]
            faults = {path: _chip_faults(session, path) for path in left}
            preempted = [path for path in left if _has_notice(session, path)]
        for path in over:
            path.unlink()
        if over:
            end_processes(*(_folders(sandbox.path, path) for path in over))
    for path, text in faults.items():
        folders = _folders(sandbox.path, path)
        _write_changed(folders.control / CHIP_FAULTS, text)
        if path in preempted:
            _write_changed(folders.metadata / PREEMPTED, "TRUE")


def _write_changed(place: Path, text: str) -> None:
    with suppress(FileNotFoundError):  # the worker has no home yet
        if (place.read_text("utf-8") if place.exists() else "") != text:
            write_private_file(place, text)


def _has_notice(session: StateSession, path: Path) -> bool:
    """Return whether a worker is powered off by a preemption within the time of its notice."""
    project, zone, node_id, _, _ = path.name.split(_SEPARATOR)
    node = session.node(project, zone, node_id)
    ahead = node.phase(session.now + PREEMPTION_NOTICE) if node else None
    return ahead is not None and (ahead.state == "PREEMPTED" or ahead.initiator == "SERVICE")


def _chip_faults(session: StateSession, path: Path) -> str:
    """Return the faults of the chips of a worker, for the programs that run there: a word on each line."""
    project, zone, node_id, _, index = path.name.split(_SEPARATOR)
    node = session.node(project, zone, node_id)
    phase = node.phase(session.now) if node else None
    if phase is None:
        return ""
    words = {"straggler": phase.straggler, "duty-zero": phase.hanging_worker}
    return "".join(f"{word}\n" for word, worker in words.items() if worker == int(index))


def end_all_processes(state_path: Path) -> None:
    """End the processes of all workers of a sandbox."""
    controls = (state_path.absolute().parent / "workers").glob("*/*/*/*.sshd")
    if workers := [WorkerFolders(path.parent, int(path.stem)) for path in controls if path.stem.isdecimal()]:
        end_processes(*workers)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _still_runs(session: StateSession, path: Path) -> bool:
    project, zone, node_id, number, _ = path.name.split(_SEPARATOR)
    node, since = session.node(project, zone, node_id), _read_time(path)
    is_same = node is not None and str(node.number) == number
    return is_same and node is not None and since is not None and has_run_since(node.timeline, since, session.now)


def _folders(state_path: Path, path: Path) -> WorkerFolders:
    project, zone, node_id, number, index = path.name.split(_SEPARATOR)
    return WorkerFolders(incarnation_directory(state_path.absolute(), project, zone, node_id, number), int(index))


def _read_time(path: Path) -> datetime | None:
    try:
        return parse_timestamp(path.read_text("utf-8"))
    except FileNotFoundError:
        return None

"""What ends the processes of a worker whose virtual machine was powered off: stopped, preempted, restarted or deleted.

A stop and a deletion shut the guest down, a preemption powers it off after its notice [Compute Engine documentation]: no
process survives. Here the state of a node follows from the time, and nothing runs at the moment of a change: each request to
an API and each connection looks. The folder `boots` beside the state has a file for each worker that had a connection since
it was booted.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.durations import parse_timestamp
from tpuctl.files import make_private_folder
from tpuctl.sandbox.guests import boots_folder, incarnation_directory
from tpuctl.sandbox.lifecycle import has_run_since
from tpuctl.sandbox.sshd.daemon import WorkerFolders, write_private_file
from tpuctl.sandbox.sshd.guest import end_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from tpuctl.sandbox.guests import GuestWorker
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.state_session import StateSession

_SEPARATOR = "~"  # in no name of a project, a zone or a node


def note_connection(state_path: Path, worker: GuestWorker, folders: WorkerFolders, now: datetime) -> None:
    """End what is left from before the last boot of a worker that is being connected to."""
    node = worker.node
    folder = boots_folder(state_path)
    make_private_folder(folder)
    words = (node.project, node.zone, node.node_id, str(node.number), str(worker.index))
    path = folder / _SEPARATOR.join(words)
    with _locked(folder):  # of several connections at once the first one ends what is left
        since = _read_time(path)
        if since is not None and has_run_since(node.timeline, since, now):
            return
        if since is not None:
            end_processes(folders)
        write_private_file(path, now.isoformat())


def end_processes_of_powered_off(sandbox: SandboxState) -> None:
    """End the processes of all workers whose virtual machine has not run since their connection."""
    folder = boots_folder(sandbox.path)
    if not folder.is_dir():  # no worker had a connection
        return
    with _locked(folder):
        with sandbox.read() as session:
            noted = [path for path in folder.iterdir() if not path.name.startswith(".")]
            over = [path for path in noted if not _still_runs(session, path)]
        for path in over:
            path.unlink()
        if over:
            end_processes(*(_folders(sandbox.path, path) for path in over))


def end_all_processes(state_path: Path) -> None:
    """End the processes of all workers of a sandbox."""
    controls = (state_path.absolute().parent / "workers").glob("*/*/*/*.sshd")
    if found := [WorkerFolders(path.parent, int(path.stem)) for path in controls if path.stem.isdecimal()]:
        end_processes(*found)


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

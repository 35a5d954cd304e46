"""`python -m tpuctl.sandbox.sshd [--reboot | --service] STATE_FILE ADDRESS`: serve one ssh connection of a worker.

With `--reboot` it reboots the worker from inside, with `--service` it runs the worker's service.

Exits with 255 and a line on stderr, as ssh does, if the worker is unreachable.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock
from tpuctl.errors import TpuctlError
from tpuctl.sandbox.sshd import daemon
from tpuctl.sandbox.sshd.daemon import WorkerFolders, configure_sshd, host_key
from tpuctl.sandbox.sshd.power import note_connection, watch_power
from tpuctl.sandbox.sshd.worker_home import (
    REBOOT_DURATION,
    block_ports,
    end_processes,
    is_rebooting,
    last_reboot,
    note_reboot,
    prepare_home,
    start_enabled_service,
    startup_progress,
)
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import (
    find_worker,
    is_os_login_enforced,
    os_login_keys,
    worker_directory,
)

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.worker_lookup import SandboxWorker

_UNREACHABLE = 255


class _UnreachableError(Exception):
    """The worker does not answer; the message is ssh's."""


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; a successful connection replaces the process with sshd."""
    *options, state_path, address = arguments
    try:
        if options == ["--reboot"]:
            worker, now, *_ = _look_up(Path(state_path), address)
            folders = _worker_folders(Path(state_path), worker)
            note_reboot(folders, now)
            end_processes(folders)
        elif options == ["--service"]:
            from tpuctl.sandbox.sshd.guard_service import run_service  # noqa: PLC0415  # 60 ms, with the whole API

            worker, *_ = _look_up(Path(state_path), address)
            run_service(Path(state_path), worker, _worker_folders(Path(state_path), worker))
            return 0
        else:
            _connect(Path(state_path), address)
    except _UnreachableError as error:
        sys.stderr.write(f"ssh: connect to host {address} port 22: {error}\n")
    except TpuctlError as error:
        sys.stderr.write(f"tpuctl sandbox: {error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))
    return _UNREACHABLE


def _connect(state_path: Path, address: str) -> None:
    worker, now, speed, profile_keys, has_faults = _look_up(state_path, address)
    folders = _worker_folders(state_path, worker)
    if worker.phase.state != "READY" or is_rebooting(folders, now):
        raise _UnreachableError("Connection refused")
    # The API reports TIMEOUT for a worker that does not respond.
    if worker.phase.health == "TIMEOUT":
        raise _UnreachableError("Connection timed out")
    if has_faults:
        _meet_ssh_fault(state_path, worker, speed)
    sshd = daemon.find_sshd()
    host_key(folders.node)
    note_connection(state_path, worker, folders, now)
    watch_power(state_path.absolute(), SandboxState.open)
    rebooted = last_reboot(folders)
    startup = startup_progress(worker, rebooted + REBOOT_DURATION if rebooted else None, now, speed)
    session = prepare_home(folders, worker, startup, state_path=state_path.absolute())
    login = daemon.own_login()
    if is_os_login_enforced(worker.metadata, worker.project_metadata):
        # Keys of OS Login override those of the metadata. None is accepted if a second factor, a certificate or a security key
        # is required: this sshd cannot ask for them.
        more = ("enable-oslogin-2fa", "enable-oslogin-certificates", "enable-oslogin-sk")
        needs_more = any(is_os_login_enforced(worker.metadata, worker.project_metadata, key) for key in more)
        keys = "" if needs_more else "".join(f"{key}\n" for key in profile_keys)
    else:
        # Keys of the node, and of its project unless the node blocks those [Compute Engine documentation].
        lists = [worker.metadata.get("ssh-keys", "")]
        if worker.metadata.get("block-project-ssh-keys", "").lower() != "true":
            lists.append(worker.project_metadata.get("ssh-keys", ""))
        keys = daemon.authorized_keys(login, *lists, now=now)
    start_enabled_service(folders, state_path.absolute(), address)
    block_ports(folders, worker, state_path=state_path.absolute())
    daemon.become_sshd(sshd, configure_sshd(folders, session, keys, login=login))


def _meet_ssh_fault(state_path: Path, worker: SandboxWorker, speed: float) -> None:
    """Refuse, delay or later drop the connection if a fault says so."""
    from tpuctl.sandbox.faults import FaultKind, fault_duration, take_ssh_fault  # noqa: PLC0415  # 8 ms

    with SandboxState.open(state_path) as sandbox, sandbox.write() as session:
        fault = take_ssh_fault(session, worker.node, worker.index)
    if fault is None:
        return
    if fault.kind is FaultKind.SSH_REFUSED:
        raise _UnreachableError("Connection refused")
    length = (fault_duration(fault) or timedelta()) / speed
    if fault.kind is FaultKind.SSH_SLOW:
        SystemClock().sleep(length)
    else:
        daemon.drop_connection_after(length.total_seconds())


def _look_up(state_path: Path, address: str) -> tuple[SandboxWorker, datetime, float, list[str], bool]:
    """Return the worker, the sandbox time and speed, the keys in the OS Login profile of the user, and whether faults wait."""
    if not state_path.exists():  # opening would create it
        raise _UnreachableError("No route to host")
    with SandboxState.open(state_path) as sandbox, sandbox.read() as session:
        worker = find_worker(session, address)
        if worker is None:
            raise _UnreachableError("No route to host")
        has_faults = any(True for _ in session.faults())
        return worker, session.now, sandbox.speed, os_login_keys(session, session.now), has_faults


def _worker_folders(state_path: Path, worker: SandboxWorker) -> WorkerFolders:
    return WorkerFolders(worker_directory(state_path.absolute(), worker), worker.index)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Reboots in the guest: for a short time the worker does not answer, and its processes have ended."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.platforms import processes_with
from tpuctl.sandbox.sshd.folders import Folders, write_private_file
from tpuctl.sandbox.sshd.guest import MARK

if TYPE_CHECKING:
    from datetime import datetime

# Unverified: a plausible time for a VM to boot, in sandbox time.
DURATION = timedelta(seconds=40)


def note_reboot(folders: Folders, now: datetime) -> None:
    """Record that the worker reboots now, in sandbox time."""
    write_private_file(folders.last_reboot, now.isoformat())


def last_reboot(folders: Folders) -> datetime | None:
    """Return the sandbox time of the last reboot from inside. None if there was none."""
    try:
        return parse_timestamp(folders.last_reboot.read_text("utf-8"))
    except FileNotFoundError:
        return None


def is_rebooting(folders: Folders, now: datetime) -> bool:
    """Return whether the worker reboots at this sandbox time."""
    since = last_reboot(folders)
    return since is not None and since <= now < since + DURATION


def end_processes(folders: Folders) -> None:
    """Kill the worker's processes, the caller's own session last; empty its `/tmp`.

    Does not return when called on the worker.
    """
    for file in folders.temporary.glob("*"):
        if file.is_file():
            file.unlink(missing_ok=True)
    for process in processes_with(MARK, str(folders.control)):
        if process != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
    if os.environ.get(MARK) == str(folders.control):
        os.killpg(os.getpgid(0), signal.SIGKILL)

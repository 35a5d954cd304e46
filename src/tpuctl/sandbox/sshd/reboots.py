"""Reboots in the guest: for a short while nothing answers, and what ran on the worker has ended."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.platforms import processes_with
from tpuctl.sandbox.sshd.folders import Folders, write_private_file
from tpuctl.sandbox.sshd.guest import MARK

if TYPE_CHECKING:
    from datetime import datetime

# Unverified: a plausible time for a VM to boot, in the sandbox's time.
DURATION = timedelta(seconds=40)


def note_reboot(folders: Folders, now: datetime) -> None:
    """Write down that the worker reboots now, in the sandbox's time."""
    write_private_file(folders.last_reboot, now.isoformat())


def last_reboot(folders: Folders) -> datetime | None:
    """Return when the worker was last rebooted from inside, in the sandbox's time; nothing when it never was."""
    try:
        return parse_timestamp(folders.last_reboot.read_text("utf-8"))
    except FileNotFoundError:
        return None


def is_rebooting(folders: Folders, now: datetime) -> bool:
    """Return whether the worker is on its way down or up at this time of the sandbox."""
    since = last_reboot(folders)
    return since is not None and since <= now < since + DURATION


def end_processes(folders: Folders) -> None:
    """Kill what runs on the worker, the caller's own session last; empty its `/tmp`.

    Does not return when called on the worker.
    """
    for file in folders.temporary.glob("*"):
        if file.is_file():
            file.unlink(missing_ok=True)
    for process in processes_with(MARK, str(folders.control)):
        if process != os.getpid():
            _kill(process)
    if os.environ.get(MARK) == str(folders.control):
        os.killpg(os.getpgid(0), signal.SIGKILL)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return

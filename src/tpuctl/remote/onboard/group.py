"""Runs on a worker: the processes of a command's group, and those that can still print when the command itself has ended."""

from __future__ import annotations

import os
import time

from tpuctl.remote.onboard.small_files import read

# How long, in seconds, to wait after the end of a command for output of processes that it left behind.
AFTERWARDS = 5.0


class Rest:
    """The processes of a command's group that outlive it with its output open. ssh waits for those, too.

    `prints`: whether there were any at the last check.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.prints = False
        self.since: float | None = None
        self.is_final = False

    def is_over(self) -> bool:
        """Return whether no more output can come, after the end of the command."""
        if not self.is_final:
            now = time.monotonic()
            if self.since is None:
                self.since = now
            self.prints = can_print(self.folder)
            self.is_final = not self.prints or now - self.since >= AFTERWARDS or self.ended_ago() >= AFTERWARDS
        return self.is_final

    def ended_ago(self) -> float:
        """Return how many seconds ago the command ended, so that a later connection does not wait again."""
        try:
            return time.time() - os.stat(self.folder + "/exit").st_mtime
        except FileNotFoundError:  # the job was removed
            return AFTERWARDS


def can_print(folder: str) -> bool:
    """Return whether processes of a command's group, other than its leader, have its output open."""
    words = (read(folder + "/pid") or b"").split()
    if not words:
        return False
    group = int(words[0])
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # they belong to another user
        pass
    files = []
    for name in ("/out", "/err"):
        try:
            files.append(os.stat(folder + name))
        except FileNotFoundError:
            pass
    return any(has_open(pid, files) for pid in others(group))


def others(group: int) -> list[str]:
    """Return the running processes of a group, without its leader."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    found = []
    for entry in entries:
        if entry.isdigit() and int(entry) != group:
            try:
                text = read("/proc/%s/stat" % entry) or b""
            except OSError:  # it has just ended
                continue
            # After the name, which may hold any character: state, parent, group.
            words = text[text.rfind(b")") + 2 :].split(None, 3)
            if len(words) > 2 and int(words[2]) == group and words[0] not in {b"Z", b"X"}:
                found.append(entry)
    return found


def has_open(pid: str, files: list[os.stat_result]) -> bool:
    """Return whether a process has one of these files open; true if that cannot be determined."""
    handles = "/proc/%s/fd" % pid
    try:
        names = os.listdir(handles)
    except PermissionError:  # it belongs to another user, as with sudo
        return True
    except OSError:  # it has just ended
        return False
    for name in names:
        try:
            status = os.stat("%s/%s" % (handles, name))
        except OSError:
            continue
        if any(os.path.samestat(status, file) for file in files):
            return True
    return False

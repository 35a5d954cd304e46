"""Runs on a worker: the processes of a command's group, and those that can still print when the command itself has ended."""

from __future__ import annotations

import os
import time

from tpuctl.remote.onboard.small_files import read

# So long after its end a command's output is waited for from processes that it has left behind.
AFTERWARDS = 5.0


class Rest:
    """What a command has left behind: processes of its group that have its output open. ssh waits for those, too.

    `prints` tells whether there were any at the last look.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.prints = False
        self.since: float | None = None
        self.is_final = False

    def is_over(self) -> bool:
        """Tell, of a command that has ended, whether nothing more is to be waited for."""
        if not self.is_final:
            now = time.monotonic()
            if self.since is None:
                self.since = now
            self.prints = can_print(self.folder)
            self.is_final = not self.prints or now - self.since >= AFTERWARDS or self.ended_ago() >= AFTERWARDS
        return self.is_final

    def ended_ago(self) -> float:
        """Return how many seconds ago the command ended: a later connection need not wait again."""
        try:
            return time.time() - os.stat(self.folder + "/exit").st_mtime
        except FileNotFoundError:  # somebody has removed the job
            return AFTERWARDS


def can_print(folder: str) -> bool:
    """Tell whether processes of a command's group, beside its first, have its output open."""
    words = (read(folder + "/pid") or b"").split()
    if not words:
        return False
    group = int(words[0])
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # they are another user's
        pass
    files = []
    for name in ("/out", "/err"):
        try:
            files.append(os.stat(folder + name))
        except FileNotFoundError:
            pass
    return any(has_open(pid, files) for pid in others(group))


def others(group: int) -> list[str]:
    """Return the processes of a group that still run, without its first."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    found = []
    for entry in entries:
        if entry.isdigit() and int(entry) != group:
            try:
                text = read("/proc/%s/stat" % entry) or b""
            except OSError:  # it has ended this moment
                continue
            # After the name, which may hold any character: state, parent, group.
            words = text[text.rfind(b")") + 2 :].split(None, 3)
            if len(words) > 2 and int(words[2]) == group and words[0] not in {b"Z", b"X"}:
                found.append(entry)
    return found


def has_open(pid: str, files: list[os.stat_result]) -> bool:
    """Tell whether a process has one of these files open, as far as that can be seen."""
    handles = "/proc/%s/fd" % pid
    try:
        names = os.listdir(handles)
    except PermissionError:  # another user's, as with sudo
        return True
    except OSError:  # it has ended this moment
        return False
    for name in names:
        try:
            status = os.stat("%s/%s" % (handles, name))
        except OSError:
            continue
        if any(os.path.samestat(status, file) for file in files):
            return True
    return False

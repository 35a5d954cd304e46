"""Runs on a worker: finds the processes that hold its TPU, terminates those that are requested, removes an unused lock file.

A process holds the TPU if it has a device file open or mapped, or libtpu's lock file open: libtpu locks it by `lockf` for the
life of the process (TensorFlow's source), other programs by `flock`. One that has only mapped the library is reported, too,
although it holds nothing. /proc also shows the processes of containers, under the pids of the machine.

A pid may be reused between two checks, so a process is identified by pid and start, in clock ticks of the kernel since boot. It
must run under Python 3.8, and terminates no process that was not requested.
"""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import pwd
import re
import signal
import stat
import sys
import time

from tpuctl.ssh.agent.link import ClientLink
from tpuctl.ssh.agent.tpu_devices import DEVICE_FILES, LOCK_FILE, device_root

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HOLDERS_MARK = "tpuctl-holders "
LONGEST_COMMAND = 300
POLL_INTERVAL = 0.05
# Seconds after KILL: only a process blocked inside the kernel needs more.
AFTER_KILL = 5.0
PROTECTED_NAMES = {"init", "systemd", "sshd", "sshd-session", "sshd-auth"}


def serve_holders(link: ClientLink, request: dict[str, Any]) -> None:
    """Send a report; first terminate the processes of the request, if it names any."""
    link.send(b"x", json.dumps(examine_tpu(request.get("end"))).encode())


def examine_tpu(request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Execute the request, if any, and return what holds the TPU."""
    root = device_root()
    lock_file = root + LOCK_FILE
    report: dict[str, Any] = {}
    if request is not None:
        report["outcomes"] = end(request)
        report["lockOutcome"] = remove_lock_file(lock_file)
    holders, hidden = find_holders(root)
    report.update(holders=holders, hidden=hidden, lockFile=describe_lock(lock_file), isRoot=os.geteuid() == 0)
    return report


def print_holders() -> None:
    """Print the report, for a program on the same worker."""
    sys.stdout.write("\n" + HOLDERS_MARK + json.dumps(examine_tpu()) + "\n")
    sys.stdout.flush()


def find_holders(root: str) -> tuple[list[dict[str, Any]], int]:
    """Return the processes that hold the TPU below a root, and the number of processes that cannot be examined."""
    found, hidden, family = [], 0, ancestors()
    patterns, lock_file = [root + pattern for pattern in DEVICE_FILES], root + LOCK_FILE
    lock = identity(lock_file)
    for pid in processes():
        try:
            opened = list(descriptors(pid))
            paths = {path for _, path in opened}.union(mapped(pid))
            has_lock = lock is not None and any(
                identity("/proc/%d/fd/%s" % (pid, number)) == lock
                for number, path in opened
                if os.path.basename(path) == os.path.basename(lock_file)
            )
        except PermissionError:
            hidden += 1
            continue
        except OSError:  # it has ended
            continue
        held = [path for path in paths if any(fnmatch.fnmatch(path, pattern) for pattern in patterns)]
        has_library = any(os.path.basename(path) == "libtpu.so" for path in paths)
        if not (held or has_lock or has_library):
            continue
        about = describe(pid)
        if about is not None:
            about["devices"] = sorted(path[len(root) + len("/dev/") :] for path in held)
            about["hasLockFile"], about["mapsLibrary"] = has_lock, has_library
            about["isProtected"] = pid in family or about["name"] in PROTECTED_NAMES
            found.append(about)
    return found, hidden


def processes() -> list[int]:
    """Return the processes of this machine; none on macOS, where sandbox workers run without /proc."""
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except FileNotFoundError:
        return []


def descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """Yield number and path of each file that a process has open. Raises `OSError`."""
    for number in os.listdir("/proc/%d/fd" % pid):
        try:
            yield number, without_deleted_mark(os.readlink("/proc/%d/fd/%s" % (pid, number)))
        except FileNotFoundError:  # closed since
            continue


def mapped(pid: int) -> Iterator[str]:
    """Yield the paths of the files that a process has mapped. Raises `OSError`."""
    with open("/proc/%d/maps" % pid, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            path = line.rstrip("\n").split(maxsplit=5)[5:]
            if path and path[0].startswith("/"):
                yield without_deleted_mark(path[0])


def without_deleted_mark(path: str) -> str:
    """Return a path without the suffix that the kernel adds after the file was removed."""
    gone = " (deleted)"
    return path[: -len(gone)] if path.endswith(gone) else path


def describe(pid: int) -> dict[str, Any] | None:
    """Return the description of a process, None if it has ended."""
    facts = status(pid)
    try:
        owner = os.stat("/proc/%d" % pid).st_uid
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read(64 * LONGEST_COMMAND)
        with open("/proc/%d/cgroup" % pid, encoding="utf-8", errors="replace") as file:
            container = re.search(r"[0-9a-f]{64}", file.read())
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
    except OSError:
        return None
    if facts is None:
        return None
    text = words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace") or facts["name"]
    plain = printable(text)
    return {
        "pid": pid,
        "start": facts["start"],
        "state": facts["state"],
        "name": printable(facts["name"]),
        "user": user_name(owner),
        "age": max(0.0, up - facts["start"] / os.sysconf("SC_CLK_TCK")),
        "command": plain if len(plain) <= LONGEST_COMMAND else plain[: LONGEST_COMMAND - 1] + "…",
        "container": container.group()[:12] if container else None,
    }


def printable(text: str) -> str:
    """Return a text without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def status(pid: int) -> dict[str, Any] | None:
    """Return name, state, parent, session and start of a process, None if it has ended."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The name is in parentheses and may contain any character, including these.
    begin, end_of_name = text.find("("), text.rfind(")")
    fields = text[end_of_name + 2 :].split()
    return {
        "name": text[begin + 1 : end_of_name],
        "state": fields[0],
        "parent": int(fields[1]),
        "session": int(fields[3]),
        "start": int(fields[19]),
    }


def ancestors() -> set[int]:
    """Return this process and its ancestors: the session that started it."""
    family, pid = {1}, os.getpid()
    while pid > 1 and pid not in family:
        family.add(pid)
        facts = status(pid)
        pid = facts["parent"] if facts else 0
    return family


def end(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Send TERM to processes, KILL to those that remain after the grace period, and return the outcomes.

    `ended` by TERM, `killed`, `survives`, `refused` (it belongs to another user), or `gone` before the signal.
    """
    family = ancestors()
    outcomes = {}
    for pid, start in request["processes"]:
        outcomes[pid, start] = "gone" if pid in family else send(pid, start, signal.SIGTERM)
    waiting = [key for key, outcome in outcomes.items() if outcome == "sent"]
    for key in wait_for(waiting, request["grace"]):
        outcomes[key] = "killed" if send(key[0], key[1], signal.SIGKILL) == "sent" else "ended"
    for key in wait_for([key for key in waiting if outcomes[key] == "killed"], AFTER_KILL):
        outcomes[key] = "survives"
    return [
        {"pid": pid, "start": start, "outcome": "ended" if outcome == "sent" else outcome}
        for (pid, start), outcome in outcomes.items()
    ]


def send(pid: int, start: int, number: int) -> str:
    """Send a signal to a process if it still has the pid; return `sent`, `gone` or `refused`."""
    handle = None
    try:
        # From here on the handle identifies one process, even if its pid is reused. Python 3.8 and old kernels have none.
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return "gone"
            except OSError:
                handle = None
        if not is_alive(pid, start):
            return "gone"
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return "refused"
    finally:
        if handle is not None:
            os.close(handle)
    return "sent"


def wait_for(processes: list[tuple[int, int]], seconds: float) -> list[tuple[int, int]]:
    """Wait until these have ended; return those that still run after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        processes = [key for key in processes if is_alive(key[0], key[1])]
        if not processes or time.monotonic() >= until:
            return processes
        time.sleep(POLL_INTERVAL)


def is_alive(pid: int, start: int) -> bool:
    """Return whether this process still runs; a zombie does not."""
    facts = status(pid)
    return facts is not None and facts["start"] == start and facts["state"] not in "ZXx"


def identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file, None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def describe_lock(path: str) -> dict[str, Any] | None:
    """Return path, owner and age of the lock file, None if it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return {"path": path, "user": user_name(found.st_uid), "age": max(0.0, time.time() - found.st_mtime)}


def remove_lock_file(path: str) -> str:
    """Remove the lock file while holding its lock: `removed`, `absent`, `held` by another process, or `refused`."""
    try:
        # A link or a pipe of another user in /tmp must be neither followed nor waited for.
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "refused"
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return "refused"
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if identity(path) != identity("/proc/self/fd/%d" % handle):
            return "held"  # it was just recreated
        os.unlink(path)
    except BlockingIOError:
        return "held"
    except OSError:
        return "refused"
    finally:
        os.close(handle)
    return "removed"


def user_name(number: int) -> str:
    """Return the name of a user, or the number if it has none here, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)

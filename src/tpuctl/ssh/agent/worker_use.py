"""Runs on a worker: reports what uses it now, and what it was last used for, and when. It changes nothing.

In use: a process holds the TPU, a job of tpuctl runs, or an ssh session other than this one is open. Traces of past use: the
boot, the files of jobs, logins and logouts (/var/log/wtmp), libtpu's logs and its lock file. What cannot be examined is
reported as unknown, and never as idle. It must run under Python 3.8.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import time

from tpuctl.ssh.agent.holders import (
    LONGEST_COMMAND,
    ancestors,
    examine_tpu,
    printable,
    processes,
    status,
    user_name,
)
from tpuctl.ssh.agent.job_files import LONGEST_SMALL_FILE
from tpuctl.ssh.agent.link import ClientLink
from tpuctl.ssh.agent.tpu_devices import LOCK_FILE, LOG_FOLDER, device_root
from tpuctl.ssh.agent.user_files import open_below, open_entry

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

MOST_FILES = 20000
# Reported to the client; of more it needs only the number.
MOST_USES = 32
SESSION = re.compile(rb"sshd(-session)?: [^ ]+@")


def serve_worker_use(link: ClientLink, request: dict[str, Any]) -> None:
    """Send the report."""
    report = examine_use(has_programs=request["programs"], has_logins=request["logins"])
    link.send(b"x", json.dumps(report).encode("ascii"))


def examine_use(*, has_programs: bool, has_logins: bool) -> dict[str, Any]:
    """Return what uses the worker, what is unknown, and the last trace of use with its age in seconds.

    Traces of libtpu count with `has_programs` only, those of logins with `has_logins`.
    """
    root = device_root()
    uses, unknown = find_uses()
    traces = [(booted_at(root), "it booted")]
    # A followed job is removed at its end, which changes the folder that it was in.
    traces += [(newest_job(home), "a job ended") for home in user_homes(root)]
    if has_programs:
        traces += [(newest_change(root + LOG_FOLDER), "a program wrote to libtpu's log")]
        traces += [(modified_at(root + LOCK_FILE), "a program took libtpu's lock file")]
    if has_logins:
        login = last_login(root + "/var/log/wtmp")
        if login is None:
            unknown.append("the record of logins (/var/log/wtmp) cannot be read")
        else:
            traces.append((login, "a user logged in or out"))
    at, what = max(traces)
    return {
        "inUse": describe_uses(uses),
        "unknown": unknown,
        "uses": uses[:MOST_USES],
        "age": max(0.0, time.time() - at),
        "last": what,
    }


def examine_present_use() -> tuple[list[str], list[str]]:
    """Return what uses the worker now, and what cannot be examined: it is idle if both are empty."""
    uses, unknown = find_uses()
    return describe_uses(uses), unknown


def describe_uses(uses: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of the first processes that hold the TPU, one for the jobs, and one for the ssh sessions."""
    holders = [one for one in uses if one["pid"]]
    lines = ["process %d (%s) holds the TPU" % (one["pid"], one["name"]) for one in holders[:3]]
    for kind, one_is, several_are in (
        ("job", "a job runs", "%d jobs run"),
        ("session", "an ssh session is open", "%d ssh sessions are open"),
    ):
        count = sum(one["kind"] == kind for one in uses)
        if count:
            lines.append(several_are % count if count > 1 else one_is)
    return lines


def find_uses() -> tuple[list[dict[str, Any]], list[str]]:
    """Return what uses the worker now, jobs first, and what cannot be examined: it is idle if both are empty.

    A use is a `job`, a `process` that holds the TPU, `of-job` if it belongs to one of the jobs, or an ssh `session`. It has the
    name of the job or process, its command, its user, and its age in seconds.
    """
    root = device_root()
    unknown = []
    report = examine_tpu()
    holders = [one for one in report["holders"] if one["devices"] or one["hasLockFile"]]
    # Processes of other users cannot belong to a sandbox worker.
    if report["hidden"] and not root:
        unknown.append("%d processes cannot be examined without root" % report["hidden"])
    if not processes():
        unknown.append("there is no /proc")
    uses, groups = [], set()
    for home in user_homes(root):
        jobs, leaders, why = running_jobs_of(home)
        uses += jobs
        groups |= leaders
        unknown += why
    for one in holders:
        # The command of a job is the leader of a session.
        facts = status(one["pid"])
        kind = "of-job" if facts is not None and facts["session"] in groups else "process"
        uses.append(dict(use(kind, one["name"], one["command"], one["user"], one["age"]), pid=one["pid"]))
    return uses + [use("session", "", "", "", 0.0)] * count_other_sessions(root), unknown


def use(kind: str, name: str, command: str, user: str, age: float) -> dict[str, Any]:
    """Return a use of the worker."""
    return {"kind": kind, "pid": 0, "name": name, "command": command, "user": user, "age": max(0.0, age)}


def running_jobs_of(home: str) -> tuple[list[dict[str, Any]], set[int], list[str]]:
    """Return the jobs of a user that run now, as uses, the processes that lead them, and what cannot be examined."""
    uses, leaders = [], set()
    try:
        jobs = open_jobs(home)
    except OSError as error:
        return [], set(), ["the jobs below %s cannot be examined: %s" % (printable(home), error.strerror)]
    if jobs is None:
        return [], set(), []
    try:
        for name in os.listdir(jobs):
            job, is_running = examine_job(jobs, name)
            if is_running:
                uses.append(describe_job(name, job))
                words = read_small(job, "pid").split()[:1]
                leaders |= {int(word) for word in words if word.isdigit() and len(word) < 12}
            if job is not None:
                os.close(job)
    finally:
        os.close(jobs)
    return uses, leaders, []


def open_jobs(home: str) -> int | None:
    """Open the folder of a user's jobs; None if there is none, or if only root may see it. Raises `OSError`."""
    try:
        return open_below(home, ".tpuctl", "jobs")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        if os.geteuid() == 0:
            raise
        return None


def examine_job(jobs: int, name: str) -> tuple[int | None, bool]:
    """Return the opened folder of a job, if it can be, and whether the job runs: also if that is hidden."""
    try:
        job = open_entry(jobs, name)
    except FileNotFoundError:
        return None, False
    except OSError:
        return None, True
    try:
        lock = open_entry(job, "lock")
    except (FileNotFoundError, NotADirectoryError):
        return job, False
    except OSError:
        return job, True
    try:
        # Unlike an exclusive lock, a shared one needs no file that is open for writing, on NFS either.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return job, True
    finally:
        os.close(lock)
    return job, False


def describe_job(folder: str, job: int | None) -> dict[str, Any]:
    """Return a job that runs as a use of the worker, as far as its files can be read."""
    name = printable(folder.rpartition(".")[0] or folder)
    try:
        about = json.loads(read_small(job, "about"))
        command = printable(str(about["command"]))[:LONGEST_COMMAND]
    except (ValueError, TypeError, KeyError, RecursionError):  # any user can write such a file
        command = ""
    try:
        facts = os.stat("token", dir_fd=job, follow_symlinks=False) if job is not None else None
    except OSError:
        facts = None
    if facts is None:
        return use("job", name, command, "", 0.0)
    return use("job", name, command, user_name(facts.st_uid), time.time() - facts.st_mtime)


def read_small(job: int | None, name: str) -> str:
    """Return the text of a small file of a job, empty if it cannot be read."""
    if job is None:
        return ""
    try:
        file = open_entry(job, name)
    except OSError:
        return ""
    try:
        return os.read(file, LONGEST_SMALL_FILE).decode("utf-8", "replace")
    except OSError:  # a folder
        return ""
    finally:
        os.close(file)


def job_ended_since(at: float) -> bool:
    """Return whether a job ended or wrote at this time or later: one that runs shortly is seen by no look at processes."""
    return any(newest_job(home) >= at for home in user_homes(device_root()))


def user_homes(root: str) -> list[str]:
    """Return the homes of all users; with a `root` this one only."""
    return sorted({os.path.expanduser("~"), *([] if root else ["/root", *glob.glob("/home/*")])})


def count_other_sessions(root: str) -> int:
    """Return the number of open ssh sessions besides this one; with a `root` of those of its worker.

    A session that shares the connection of this one counts by its processes.
    """
    family, found = ancestors(), set()
    mark = ("TPUCTL_DEVICE_ROOT=" + root).encode()
    sessions = {pid for pid in processes() if SESSION.match(read_process(pid, "cmdline"))}
    for pid in processes():
        facts = status(pid)
        if facts is None or facts["parent"] not in sessions or pid in family:
            continue
        if not root or mark in read_process(pid, "environ").split(b"\0"):
            found.add(facts["parent"])
    # One that only forwards ports has no process.
    return len(found if root else found | (sessions - family))


def read_process(pid: int, name: str) -> bytes:
    """Return a file of a process, empty if it has ended or belongs to another user."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read(256 * 1024)
    except OSError:
        return b""


def booted_at(root: str) -> float:
    """Return the time of the boot; now if it is unknown, 0 for a sandbox worker, which has no kernel of its own."""
    if root:
        return 0.0
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return time.time() - float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()


def last_login(path: str) -> float | None:
    """Return when the record of logins was written: at a login, at a logout, at a boot. None without a record."""
    # The older file: the newer one may have been begun a moment ago.
    return max(modified_at(path), modified_at(path + ".1")) if os.path.isfile(path) else None


def newest_job(home: str) -> float:
    """Return when a file of a user's jobs was changed last, 0 without any; now if that cannot be examined."""
    try:
        jobs = open_jobs(home)
    except OSError:
        return time.time()
    if jobs is None:
        return 0.0
    try:
        return newest_below(jobs)
    finally:
        os.close(jobs)


def newest_change(path: str) -> float:
    """Return when a file below a folder was changed last, 0 without any; now if that cannot be examined, as for a link."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0.0
    except OSError:
        return time.time()
    try:
        return newest_below(folder)
    finally:
        os.close(folder)


def newest_below(folder: int) -> float:
    """Return when an open folder, or a file below it, was changed last; now if there are too many. No link is followed."""
    newest, count = os.fstat(folder).st_mtime, 0
    for _, folders, names, opened in os.fwalk(".", dir_fd=folder):
        count += len(folders) + len(names)
        if count >= MOST_FILES:
            return time.time()
        for name in names:
            newest = max(newest, modified_at(name, opened))
    return newest


def modified_at(path: str, folder: int | None = None) -> float:
    """Return when a file was modified, 0 if it does not exist. No link is followed."""
    try:
        return os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0

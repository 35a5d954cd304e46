"""Runs on a worker: finds out whether the machine is used, by a process that holds the TPU, by a job or by an ssh session.

What cannot be examined counts as use. It must run under Python 3.8.
"""

from __future__ import annotations

import glob
import json
import os
import re

from tpuctl.ssh.agent.holders import ancestors, examine_tpu, processes, status
from tpuctl.ssh.agent.job_files import is_locked
from tpuctl.ssh.agent.link import ClientLink

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any


def serve_activity(link: ClientLink, request: dict[str, Any]) -> None:
    """Send what uses this machine."""
    link.send(b"x", json.dumps({"activity": list_activity(request["devices"], request["lockFile"])}).encode())


def list_activity(devices: list[str], lock_file: str) -> list[str]:
    """Return what uses this machine, or what cannot be examined: empty only if it is idle."""
    root = os.environ.get("TPUCTL_DEVICE_ROOT") or ""
    found = []
    report = examine_tpu(devices, lock_file)
    holders = [one for one in report["holders"] if one["devices"] or one["hasLockFile"]]
    if holders:
        found.append("%d processes hold the TPU" % len(holders))
    # Processes of other users cannot belong to a sandbox worker.
    if report["hidden"] and not root:
        found.append("%d processes cannot be examined" % report["hidden"])
    if not processes():
        found.append("there is no /proc")
    homes = [os.path.expanduser("~")] + ([] if root else ["/root", *glob.glob("/home/*")])
    jobs = {path for home in homes for path in glob.glob(home + "/.tpuctl/jobs/*/lock")}
    running = sum(is_locked(path) for path in jobs)
    if running:
        found.append("%d jobs run" % running)
    sessions = count_ssh_sessions(root)
    if sessions:
        found.append("%d ssh sessions are open" % sessions)
    return found


def count_ssh_sessions(root: str) -> int:
    """Return the number of open ssh sessions; without that of this program.

    With a `root`: of those whose processes have it in their environment.
    """
    sessions = {pid for pid in processes() if re.match(rb"sshd(-session)?: [^ ]+@", read_process(pid, "cmdline"))}
    if not root:
        return len(sessions - ancestors())
    mark = ("TPUCTL_DEVICE_ROOT=" + root).encode()
    inside: set[int] = set()
    for pid in processes():
        facts = status(pid)
        if facts and facts["parent"] in sessions and mark in read_process(pid, "environ").split(b"\0"):
            inside.add(facts["parent"])
    return len(inside - ancestors())


def read_process(pid: int, name: str) -> bytes:
    """Return a file of a process, empty if it has ended or belongs to another user."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read(256 * 1024)
    except OSError:
        return b""

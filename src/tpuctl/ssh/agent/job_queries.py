"""Runs on a worker: lists jobs, reads their output, signals them, removes and renames those that have ended.

A job is a folder, `~/.tpuctl/jobs/NAME.WORKER` (job.py describes its files). A home may be shared, so the jobs of other workers
may lie beside it; they are ignored. An answer is one frame: `x` with JSON; output is
sent as `o` and `e` frames before `x`, or `m` if the job does not exist.
It must run under Python 3.8 and import little.
"""

from __future__ import annotations

import json
import os
import time

from tpuctl.ssh.agent.job_files import (
    OutputStreamer,
    is_locked,
    job_folder,
    jobs_here,
    process_group,
    read,
    remove_job,
    signal_group,
    size_of,
    sizes_at,
    trimmed,
)
from tpuctl.ssh.agent.link import FRAME_BLOCK, ClientLink

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

POLL_INTERVAL = 0.02
FILES = ((b"o", "/out"), (b"e", "/err"))


def serve_job_queries(link: ClientLink, request: dict[str, Any]) -> None:
    """Execute a request, and answer."""
    do = {
        "list": list_jobs,
        "read": read_output,
        "signal": signal_one,
        "remove": remove_some,
        "rename": rename_one,
    }[request["do"]]
    do(link, request)


def folder_of(request: dict[str, Any], name: str) -> str:
    """Return a job's folder. The client has validated the name."""
    return job_folder("%s.%d" % (name, request["worker"]))


def list_jobs(link: ClientLink, request: dict[str, Any]) -> None:
    """Send the newest jobs, or those that are named."""
    found = jobs_here(request["worker"])
    if request["names"]:
        found = [one for one in found if one[1] in request["names"]]
    tail, since = request["tail"], request.get("since")
    jobs = [describe(folder_of(request, name), name, tail, since) for _, name in found[: request["limit"]]]
    send_value(link, {"total": len(found), "jobs": [one for one in jobs if one is not None]})


def describe(folder: str, name: str, tail: int | None, since: float | None = None) -> dict[str, Any] | None:
    """Return the description of a job, None if it is gone. Times are in seconds, `since` is a time that ago."""
    try:
        began = os.stat(folder + "/token").st_mtime
        about = read(folder + "/about") or b""
        end = read(folder + "/exit")
        is_running = end is None and is_locked(folder + "/lock")
        if end is None and not is_running:
            # It may have ended between the two checks.
            end = read(folder + "/exit")
        sizes = [size_of(folder + file) for _, file in FILES]
        starts = [
            0 if tail is None else tail_of(folder + file, floor, size, tail)
            for (_, file), floor, size in zip(FILES, trimmed(folder), sizes)
        ]
        is_timed = True
        if since is not None:
            then = time.time() - since
            known = [0, 0] if began >= then else sizes_at(folder, then)
            is_timed = known is not None
            for index, (_, file) in enumerate(FILES):
                at = min(known[index] if known is not None else 0, sizes[index])
                starts[index] = max(starts[index], line_begin(folder + file, trimmed(folder)[index], at))
        return {
            "name": name,
            "began": began,
            "age": time.time() - began,
            "state": "running" if is_running else "ended" if end is not None else "lost",
            "end": (end or b"").decode("utf-8", "replace"),
            "about": about.decode("utf-8", "replace"),
            "followed": is_locked(folder + "/attached"),
            "sizes": sizes,
            "starts": starts,
            "timed": is_timed,
        }
    except (FileNotFoundError, NotADirectoryError):
        return None


def tail_of(path: str, floor: int, size: int, lines: int) -> int:
    """Return the offset of the last lines of a file, not below `floor`. Reads from the end, as little as possible."""
    if size <= floor or not lines:
        return size
    file = os.open(path, os.O_RDONLY)
    try:
        # A newline at the end begins no line.
        at = size - 1
        while at > floor:
            begin = max(floor, at - FRAME_BLOCK)
            block = os.pread(file, at - begin, begin)
            found = len(block)
            while lines and found >= 0:
                found = block.rfind(b"\n", 0, found)
                lines -= found >= 0
            if not lines:
                return begin + found + 1
            at = begin
        return floor
    finally:
        os.close(file)


def line_begin(path: str, floor: int, at: int) -> int:
    """Return the offset of the line that a position is in."""
    if at <= floor:
        return floor
    file = os.open(path, os.O_RDONLY)
    try:
        is_begin = os.pread(file, 1, at - 1) == b"\n"
    finally:
        os.close(file)
    return at if is_begin else tail_of(path, floor, at, 1)


def read_output(link: ClientLink, request: dict[str, Any]) -> None:
    """Send parts of the output of a job: `o` and `e` frames, then `x`."""
    folder = folder_of(request, request["name"])
    if read(folder + "/token") is None:
        link.send(b"m")
        return
    for (kind, _), (at, end) in zip(FILES, request["parts"]):
        part = OutputStreamer(link, folder, kind, at, end)
        while part.pump():
            pass
    link.send(b"x")


def signal_one(link: ClientLink, request: dict[str, Any]) -> None:
    """Send a signal to a job's processes if it runs, and send its state afterwards."""
    folder = folder_of(request, request["name"])
    before = describe(folder, request["name"], None)
    if before is None:
        send_value(link, None)
        return
    sent = before["state"] == "running" and send_signal(folder, request["number"])
    until = time.monotonic() + request["wait"]
    while sent and read(folder + "/exit") is None and time.monotonic() < until:
        time.sleep(POLL_INTERVAL)
    send_value(link, {"sent": sent, "job": describe(folder, request["name"], None) or before})


def send_signal(folder: str, number: int) -> bool:
    """Send a signal to a job that runs; return whether any process received it."""
    pids = process_group(folder)
    if pids is None or read(folder + "/exit") is not None:
        return False
    if not is_child(*pids):
        raise OSError("its processes are not on this machine")
    return signal_group(folder, pids[0], number)


def is_child(pid: int, parent: int) -> bool:
    """Return whether a pid still belongs to the same process: pids are reused, and homes may be shared."""
    text = read("/proc/%d/stat" % pid)
    if text is None:
        return not os.path.exists("/proc/self/stat")  # macOS: no way to know
    # The name is in parentheses and may contain any character, including these.
    return int(text[text.rfind(b")") + 2 :].split()[1]) == parent


def remove_some(link: ClientLink, request: dict[str, Any]) -> None:
    """Remove the jobs that are named, or all that ended long enough ago, except those that run or are followed.

    With `only_looks` only report: the client asks all workers before the first removes anything.
    """
    outcomes = {}
    if request["names"]:
        names: Iterable[str] = request["names"]
    else:
        names = [name for _, name in jobs_here(request["worker"])]
    for name in names:
        folder = folder_of(request, name)
        about = describe(folder, name, None)
        if about is None:
            outcomes[name] = "missing"
        elif about["state"] == "running" or about["followed"]:
            outcomes[name] = "running" if about["state"] == "running" else "followed"
        elif request["names"] or ended_ago(folder) >= request["older"]:
            if not request["only_looks"]:
                remove_job(folder)
            outcomes[name] = "ended" if request["only_looks"] else "removed"
    send_value(link, outcomes)


def rename_one(link: ClientLink, request: dict[str, Any]) -> None:
    """Give a job that has ended another name, so that the next one can have its name. Send what it was."""
    folder, target = folder_of(request, request["name"]), folder_of(request, request["to"])
    about = describe(folder, request["name"], None)
    if about is None:
        send_value(link, "missing")
    elif about["state"] == "running":
        send_value(link, "running")
    else:
        remove_job(target)
        os.rename(folder, target)
        send_value(link, "renamed")


def ended_ago(folder: str) -> float:
    """Return how many seconds ago a job ended, or for a lost job, last printed."""
    try:
        return time.time() - os.stat(folder + "/exit").st_mtime
    except FileNotFoundError:
        return time.time() - os.stat(folder + "/out").st_mtime


def send_value(link: ClientLink, value: Any) -> None:
    """Answer with JSON."""
    link.send(b"x", json.dumps(value).encode())

"""Runs on a worker: sends what support needs. It changes nothing, and follows no link.

First facts about the machine, then the output of tpuctl's jobs, then libtpu's logs, the newest first, as long as there is room.
Paths begin at $TPUCTL_DEVICE_ROOT, which is empty on a real worker. Python 3.8, the standard library.
"""

from __future__ import annotations

import os
import stat
import time

from tpuctl.remote.onboard.evidence_frames import Report, put_frame, tell_file
from tpuctl.remote.onboard.evidence_machine import (
    tell_devices,
    tell_holders,
    tell_machine,
    tell_processes,
    tell_versions,
)
from tpuctl.remote.onboard.trimming import trimmed

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

JOBS = 5
FILES = 300
LOOKED_AT = 20000
DEEPEST = 6
SMALL = 64 * 1024


def gather(order: dict[str, Any]) -> None:
    """Send all of it, within `room` bytes and `seconds`; at most `each` bytes of a file; `since`: seconds, or None."""
    report = Report(order["room"], order["seconds"])
    root = os.environ.get("TPUCTL_DEVICE_ROOT", "")
    try:
        tell_machine(report, order["since"], is_sandbox=bool(root))
        tell_processes(report, root)
        tell_devices(report, root, order["devices"])
        tell_holders(report, order["holders"])
        tell_versions(report)
        tell_jobs(report, order)
        tell_logs(report, order, root)
    except Exception as error:  # noqa: BLE001  # keep what was sent by then
        report.lacks("", "%s: %s" % (type(error).__name__, error))
    put_frame(b"z", b"")


def tell_jobs(report: Report, order: dict[str, Any]) -> None:
    """Send the newest jobs of this worker, how they ended, and their output, in half of the room."""
    place = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".tpuctl", "jobs")
    end = ".%d" % order["worker"]
    try:
        names = [name for name in os.listdir(place) if name.endswith(end) and not name.startswith(".")]
    except OSError:
        return
    dated = sorted(((changed(os.path.join(place, name, "token")), name) for name in names), reverse=True)
    recent = [(at, name) for at, name in dated if not order["since"] or time.time() - at <= order["since"] or not at]
    if len(recent) > JOBS:
        report.lacks("jobs", "%d older jobs are left out" % (len(recent) - JOBS))
    floor = report.room // 2
    for _, name in recent[:JOBS]:
        folder = os.path.join(place, name)
        starts = dict(zip(("out", "err"), trimmed(folder)))
        for part in ("about", "exit", "out", "err"):
            source = os.path.join(folder, part)
            if not os.path.lexists(source):
                continue
            most = SMALL if part in ("about", "exit") else min(order["each"], report.room - floor)
            tell_if_possible(
                report, "jobs/%s/%s" % (name[: -len(end)], part), os.fsencode(source), most, starts.get(part, 0)
            )


def tell_logs(report: Report, order: dict[str, Any], root: str) -> None:
    """Send libtpu's logs, the newest first."""
    named = os.environ.get("TPU_LOG_DIR", "")
    folders = [root + order["logs"]] + ([named] if os.path.isabs(named) else [])
    for number, folder in enumerate(dict.fromkeys(os.path.normpath(folder) for folder in folders)):
        name = "tpu_logs" if not number else "tpu_log_dir"
        if os.path.islink(folder) or not os.path.isdir(folder):
            is_there = os.path.lexists(folder)
            report.lacks(name, "%s %s" % (folder, "is not a plain folder" if is_there else "does not exist"))
            continue
        sent, left_out, odd = 0, 0, 0
        files = []
        for path, about in below(os.fsencode(folder)):
            if about is None:
                odd += 1
            elif not order["since"] or time.time() - about.st_mtime <= order["since"]:
                files.append((about.st_mtime, path))
        for _, path in sorted(files, reverse=True):
            if sent >= FILES or report.room < SMALL or not report.time_left():
                left_out += 1
                continue
            inside = os.path.relpath(os.fsdecode(path), folder)
            tell_if_possible(report, name + "/" + inside, path, min(order["each"], report.room), 0)
            sent += 1
        if left_out:
            report.lacks(name, "%d older files are left out: the limit of size or time was reached" % left_out)
        if odd:
            report.lacks(name, "%d links, pipes or devices are left out" % odd)


def tell_if_possible(report: Report, path: str, source: bytes, most: int, start: int) -> None:
    """Send a file, or why that failed."""
    try:
        tell_file(report, path, source, most, start)
    except OSError as error:
        report.lacks(path, (error.strerror or str(error)).lower())


def below(
    folder: bytes, depth: int = 0, budget: list[int] | None = None
) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Yield the plain files below a folder with their status, and None for other entries. No link is followed."""
    left = [LOOKED_AT] if budget is None else budget
    try:
        with os.scandir(folder) as entries:
            found = []
            for entry in entries:
                left[0] -= 1
                if left[0] < 0:
                    break
                found.append(entry)
    except OSError:
        return
    for entry in found:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode):
            yield entry.path, about
        elif stat.S_ISDIR(about.st_mode):
            if depth < DEEPEST:
                yield from below(entry.path, depth + 1, left)
        else:
            yield entry.path, None


def changed(path: str) -> float:
    """Return when a file was modified, 0 if it does not exist."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0

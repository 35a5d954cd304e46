"""Runs on a worker: sends what support needs. It changes nothing, and follows no link.

First facts about the machine (from /proc, which keeps the words of a command line apart, and from programs with a time limit,
as root only if sudo needs no password), then the output of tpuctl's jobs, then libtpu's logs, the newest first, as long as
there is room. Paths begin at $TPUCTL_DEVICE_ROOT, which is empty on a real worker. Python 3.8, the standard library.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import stat
import time

from tpuctl.ssh.agent.guard_place import installed_guard
from tpuctl.ssh.agent.holders import HOLDERS_MARK, status, user_name
from tpuctl.ssh.agent.job_files import job_folder, jobs_here, trimmed
from tpuctl.ssh.agent.link import ClientLink
from tpuctl.ssh.agent.programs import MISSING_PROGRAM, as_root, own_program, run_programs
from tpuctl.ssh.agent.tpu_devices import DEVICE_FILES, LOG_FOLDER, device_files, device_root

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

JOBS = 5
FILES = 300
MOST_ENTRIES = 20000
DEEPEST = 6
SMALL = 64 * 1024


def serve_worker_evidence(link: ClientLink, request: dict[str, Any]) -> None:
    """Send all of it, within `room` bytes and `seconds`; at most `each` bytes of a file; `since`: seconds, or None."""
    report = EvidenceReport(link, request["room"], request["seconds"])
    root = device_root()
    try:
        report_programs(report, request, is_sandbox=bool(root))
        report_processes(report, root)
        report_devices(report, root)
        report_jobs(report, request)
        report_guard(report)
        report_logs(report, request, root)
    except Exception as error:  # noqa: BLE001  # keep what was sent by then
        report.missing("", "%s: %s" % (type(error).__name__, error))
    link.send(b"x")


def report_jobs(report: EvidenceReport, request: dict[str, Any]) -> None:
    """Send the newest jobs of this worker, how they ended, and their output, in half of the room."""
    since = time.time() - request["since"] if request["since"] else 0.0
    recent = [name for began, name in jobs_here(request["worker"]) if began >= since]
    if len(recent) > JOBS:
        report.missing("jobs", "%d older jobs are left out" % (len(recent) - JOBS))
    floor = report.byte_budget // 2
    for name in recent[:JOBS]:
        folder = job_folder("%s.%d" % (name, request["worker"]))
        starts = dict(zip(("out", "err"), trimmed(folder)))
        for part in ("about", "exit", "out", "err"):
            source = os.path.join(folder, part)
            if not os.path.lexists(source):
                continue
            most = SMALL if part in ("about", "exit") else min(request["each"], report.byte_budget - floor)
            report.file("jobs/%s/%s" % (name, part), os.fsencode(source), most, starts.get(part, 0))


def report_guard(report: EvidenceReport) -> None:
    """Send the log and the status of the guard, which deletes the node at the end of its time."""
    folder = installed_guard()
    for name in ("log", "status"):
        source = os.path.join(folder, name)
        if os.path.lexists(source):
            report.file("guard/" + name, os.fsencode(source), SMALL)


def report_logs(report: EvidenceReport, request: dict[str, Any], root: str) -> None:
    """Send libtpu's logs, the newest first."""
    named = os.environ.get("TPU_LOG_DIR", "")
    folders = [root + LOG_FOLDER] + ([named] if os.path.isabs(named) else [])
    for number, folder in enumerate(dict.fromkeys(os.path.normpath(folder) for folder in folders)):
        name = "tpu_logs" if not number else "tpu_log_dir"
        if os.path.islink(folder) or not os.path.isdir(folder):
            is_there = os.path.lexists(folder)
            report.missing(name, "%s %s" % (folder, "is not a plain folder" if is_there else "does not exist"))
            continue
        sent, left_out, odd = 0, 0, 0
        files = []
        for path, about in below(os.fsencode(folder), DEEPEST, [MOST_ENTRIES]):
            if about is None:
                odd += 1
            elif not request["since"] or time.time() - about.st_mtime <= request["since"]:
                files.append((about.st_mtime, path))
        for _, path in sorted(files, reverse=True):
            if sent >= FILES or report.byte_budget < SMALL or not report.time_left():
                left_out += 1
                continue
            inside = os.path.relpath(os.fsdecode(path), folder)
            report.file(name + "/" + inside, path, min(request["each"], report.byte_budget))
            sent += 1
        if left_out:
            report.missing(name, "%d older files are left out: the limit of size or time was reached" % left_out)
        if odd:
            report.missing(name, "%d links, pipes or devices are left out" % odd)


def below(folder: bytes, depth: int, left: list[int]) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Yield the plain files below a folder with their status, and None for other entries. No link is followed.

    `left` has the number of entries that may still be read.
    """
    try:
        with os.scandir(folder) as entries:
            found = list(itertools.islice(entries, left[0]))
    except OSError:
        return
    left[0] -= len(found)
    for entry in found:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode):
            yield entry.path, about
        elif not stat.S_ISDIR(about.st_mode):
            yield entry.path, None
        elif depth > 0:
            yield from below(entry.path, depth - 1, left)


# The client stores a file when the next one begins (ssh/channel.py: `WorkerFrame`).
PIECE = 64 * 1024
# If a part begins in the middle of a file, the rest of its line is left out: it may be the end of a secret.
LONGEST_REST = 64 * 1024


class EvidenceReport:
    """Sends evidence within the limits of size and time."""

    def __init__(self, link: ClientLink, byte_budget: int, seconds: float) -> None:
        self.link, self.byte_budget = link, byte_budget
        self.until = time.monotonic() + seconds

    def time_left(self) -> float:
        """Return the remaining seconds, 0 after the deadline."""
        return max(0.0, self.until - time.monotonic())

    def missing(self, what: str, why: str) -> None:
        """Report what is missing."""
        self.send_json(b"m", {"path": what, "why": why[:500]})

    def text(self, path: str, source: str, text: str | bytes, most: int) -> None:
        """Send a text, like the output of programs."""
        data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        self.send_json(b"f", {"path": path, "source": source, "size": len(data), "modified": None})
        self.parts(lambda at, size: data[at : at + size], 0, len(data), min(most, self.byte_budget))

    def file(self, path: str, source: bytes, most: int, start: int = 0) -> None:
        """Send a plain file from `start` on while there is time, or why that failed."""
        try:
            # Follow no link, wait for no pipe.
            file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode):
                    raise OSError(0, "not a plain file")
                size, modified = about.st_size, about.st_mtime
                self.send_json(b"f", {"path": path, "source": os.fsdecode(source), "size": size, "modified": modified})
                self.parts(
                    lambda at, size: os.pread(file, size, at) if self.time_left() else b"",
                    start,
                    max(start, size),
                    most,
                )
            finally:
                os.close(file)
        except OSError as error:
            self.missing(path, (error.strerror or str(error)).lower())

    def parts(self, read: Callable[[int, int], bytes], start: int, end: int, most: int) -> None:
        """Send the bytes from `start` to `end`; of more than `most` the beginning and the end."""
        if end - start > most:
            head = read(start, most // 4)
            head = head[: head.rfind(b"\n") + 1] or head
            self.put(head)
            tail = end - (most - most // 4)
            rest = read(tail, LONGEST_REST)
            tail += len(rest) - len(after_break(rest))
            self.skip(tail - start - len(head))
            start = tail
        while start < end:
            data = read(start, min(PIECE, end - start))
            if not data:  # the time is over, or the file is shorter now
                self.skip(end - start)
                break
            self.put(data)
            start += len(data)

    def put(self, data: bytes) -> None:
        """Send bytes of the current file."""
        self.byte_budget -= len(data)
        for at in range(0, len(data), PIECE):
            self.link.send(b"o", data[at : at + PIECE])

    def send_json(self, kind: bytes, value: dict[str, Any]) -> None:
        """Send a frame of JSON."""
        self.link.send(kind, json.dumps(value).encode("ascii"))

    def skip(self, size: int) -> None:
        """Say that bytes of the current file are left out here."""
        self.link.send(b"O", b"%d" % size)


def after_break(data: bytes) -> bytes:
    """Return what follows the first newline, or else the first blank or quote; empty without any."""
    end = data.find(b"\n", 0, LONGEST_REST)
    if end < 0:
        found = [at for at in (data.find(mark, 0, LONGEST_REST) for mark in (b" ", b'"', b"'", b",")) if at >= 0]
        end = min(found) if found else len(data[:LONGEST_REST]) - 1
    return data[end + 1 :]


PROGRAM_TIMEOUT = 10.0
PRINTED = 256 * 1024
PROCESSES = 2000
LONGEST_LINE = 4096
UNIT = "google-startup-scripts.service"
# Prints the packages that a Python finds.
VERSIONS = """
import sys
print("#", sys.executable, sys.version.split()[0])
try:
    from importlib.metadata import distributions
except ImportError:
    sys.exit("it has no importlib.metadata")
found = {(d.metadata["Name"] or "?", d.version) for d in distributions()}
for name, version in sorted(found, key=lambda one: (str(one[0]).lower(), str(one[1]))):
    print(name + "==" + str(version))
"""


def report_programs(report: EvidenceReport, request: dict[str, Any], *, is_sandbox: bool) -> None:
    """Send disk, memory, kernel, system, startup, packages and what holds the TPU, as programs print them.

    A sandbox worker has no kernel of its own.
    """
    journal = ["journalctl", "-u", UNIT, "-b", "-o", "short-iso", "-n", "2000", "--no-pager"]
    pythons = {os.path.realpath(path): path for path in ("/usr/bin/python3", shutil.which("python3")) if path}
    parts = {
        "system.txt": [["uname", "-a"], ["cat", "/etc/os-release"]],
        "uptime.txt": [["uptime"]],
        "disk.txt": [["df", "-h"], ["df", "-i"]],
        "memory.txt": [["free", "-m"]],
        "cloud-init.txt": [["cloud-init", "status", "--long"]],
        "startup-script.txt": [["systemctl", "show", UNIT, "-p", "LoadState,ActiveState,Result,ExecMainStatus"]],
        "startup-script.log": [journal + (["--since", "-%ds" % request["since"]] if request["since"] else [])],
        "dmesg.txt": [["dmesg", "-T"]],
        "packages.txt": [[path, "-c", VERSIONS] for path in pythons.values()],
    }
    if is_sandbox:
        del parts["dmesg.txt"]
        report.missing("dmesg.txt", "a sandbox's worker has no kernel of its own")
    programs = {shlex.join(words): words for commands in parts.values() for words in commands if shutil.which(words[0])}
    for name, words in programs.items():
        programs[name] = as_root(words) if words[0] in ("journalctl", "dmesg") else words
    programs["holders"] = as_root(own_program("print_holders()"))
    patience = min(PROGRAM_TIMEOUT, report.time_left())
    outputs = run_programs(programs, patience)
    for path, commands in parts.items():
        printed = []
        for words in commands:
            name, shown = shlex.join(words), words[0] if VERSIONS in words else shlex.join(words)
            code, text = outputs.get(name, (MISSING_PROGRAM, ""))
            if code is None:
                report.missing(path, "`%s` timed out after %d s" % (shown, patience))
            elif name not in programs:
                report.missing(path, "`%s` is not installed" % shown)
            elif code and not text.strip():
                report.missing(path, "`%s` ended with %d" % (shown, code))
            printed.append("$ %s\n%s" % (shown, text) if text and len(commands) > 1 else text)
        if any(printed):
            source = "; ".join(words[0] if VERSIONS in words else shlex.join(words) for words in commands)
            report.text(path, source, "".join(printed), PRINTED)
    code, text = outputs["holders"]
    reports = [line for line in text.splitlines() if line.startswith(HOLDERS_MARK)]
    if reports:
        report.text("holders.json", "/proc", reports[-1][len(HOLDERS_MARK) :] + "\n", PRINTED)
    else:
        why = "timed out after %d s" % patience if code is None else "ended with %d" % code
        report.missing("holders.json", "examination failed: the program " + why)


def report_processes(report: EvidenceReport, root: str) -> None:
    """Send the processes with their memory and age; of a sandbox worker only its own."""
    lines, ticks, page = [], os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    form = "%-12s %7s %7s %s %8s %9s  %s\n"
    mark = b"TPUCTL_DEVICE_ROOT=" + os.fsencode(root)
    try:
        up = float(kernel_file("uptime").split()[0])
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError as error:
        report.missing("processes.txt", (error.strerror or str(error)).lower())
        return
    for pid in pids:
        try:
            facts = status(pid)
            # Empty for kernel threads.
            words = kernel_file("%d/cmdline" % pid)[: 64 * 1024].rstrip(b"\0").decode("utf-8", "replace").split("\0")
            if facts is None or words == [""] or (root and mark not in kernel_file("%d/environ" % pid).split(b"\0")):
                continue
            owner = user_name(os.stat("/proc/%d" % pid).st_uid)
            memory = int(kernel_file("%d/statm" % pid).split()[1]) * page >> 20
        except (OSError, ValueError, IndexError):  # it has ended, or belongs to another user
            continue
        line = "".join(char if char.isprintable() else " " for char in shlex.join(words))
        cut = line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"
        age = max(0, int(up - facts["start"] / ticks))
        lines.append(form % (owner, pid, facts["parent"], facts["state"], memory, age, cut))
    if len(lines) > PROCESSES:
        report.missing("processes.txt", "%d processes are left out" % (len(lines) - PROCESSES))
    head = form % ("USER", "PID", "PARENT", "S", "RSS/MiB", "AGE/s", "COMMAND")
    report.text("processes.txt", "/proc", head + "".join(lines[-PROCESSES:]), 4 * PRINTED)


def kernel_file(path: str) -> bytes:
    """Return the content of a file of /proc."""
    with open("/proc/" + path, "rb") as file:
        return file.read()


def report_devices(report: EvidenceReport, root: str) -> None:
    """Send the device files with their owner and mode."""
    lines = []
    for path in device_files(root):
        about = os.lstat(path)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(about.st_mtime))
        lines.append("%s %s %s %s\n" % (stat.filemode(about.st_mode), user_name(about.st_uid), when, path[len(root) :]))
    if lines:
        report.text("devices.txt", " ".join(DEVICE_FILES), "".join(lines), PRINTED)
    else:
        report.missing("devices.txt", "no device files of a TPU")

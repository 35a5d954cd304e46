"""Runs on a worker: sends facts about the machine. Programs run with a time limit, and as root only if sudo needs no password.

Processes are read from /proc, which keeps the words of a command line apart. Python 3.8, the standard library.
"""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time

from tpuctl.remote.onboard.evidence_frames import Report
from tpuctl.remote.onboard.holders import MARK, status, user_name

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


def tell_machine(report: Report, since: float | None, *, is_sandbox: bool) -> None:
    """Send disk, memory, kernel, system and startup. A sandbox worker has no kernel of its own."""
    sudo = as_root()
    after = ["--since", "-%ds" % since] if since else []
    programs = [
        ("system.txt", [["uname", "-a"], ["cat", "/etc/os-release"]]),
        ("uptime.txt", [["uptime"]]),
        ("disk.txt", [["df", "-h"], ["df", "-i"]]),
        ("memory.txt", [["free", "-m"]]),
        ("cloud-init.txt", [["cloud-init", "status", "--long"]]),
        ("startup-script.txt", [["systemctl", "show", UNIT, "-p", "LoadState,ActiveState,Result,ExecMainStatus"]]),
        (
            "startup-script.log",
            [[*sudo, "journalctl", "-u", UNIT, "-b", "-o", "short-iso", "-n", "2000", "--no-pager", *after]],
        ),
    ]
    if is_sandbox:
        report.lacks("dmesg.txt", "a sandbox's worker has no kernel of its own")
    else:
        programs.append(("dmesg.txt", [[*sudo, "dmesg", "-T"]]))
    for path, commands in programs:
        tell_printed(report, path, commands)


def tell_printed(report: Report, path: str, commands: list[list[str]]) -> None:
    """Send the output of programs, one after the other."""
    printed, source = [], "; ".join(shlex.join(words) for words in commands)
    for words in commands:
        output, why = output_of(report, words)
        if why:
            report.lacks(path, "`%s` %s" % (shlex.join(words), why))
        if output and len(commands) > 1:
            printed.append(b"$ " + shlex.join(words).encode("utf-8", "replace") + b"\n")
        printed.append(output)
    if any(printed):
        report.text(path, source, b"".join(printed), PRINTED)


def output_of(report: Report, words: list[str]) -> tuple[bytes, str]:
    """Return the output of a program, and why it is incomplete, empty if it is complete."""
    if shutil.which(words[0]) is None:
        return b"", "is not installed"
    patience = min(PROGRAM_TIMEOUT, report.time_left())
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience, check=False,
            env=dict(os.environ, LC_ALL="C"),
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return late.stdout or b"", "timed out after %d s" % patience
    except OSError as error:
        return b"", "could not be run: %s" % error.strerror
    if done.returncode and not done.stdout.strip():
        return b"", "ended with %d" % done.returncode
    return done.stdout, ""


def as_root() -> list[str]:
    """Return the prefix that runs a program as root, empty if that needs a password."""
    return ["sudo", "-n"] if is_quiet(["sudo", "-n", "true"]) else []


def is_quiet(words: list[str]) -> bool:
    """Return whether a program succeeds without input."""
    try:
        null = subprocess.DEVNULL
        done = subprocess.run(words, stdin=null, stdout=null, stderr=null, timeout=PROGRAM_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def tell_processes(report: Report, root: str) -> None:
    """Send the processes with their memory and age; of a sandbox worker only its own."""
    lines, ticks = [], os.sysconf("SC_CLK_TCK")
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError as error:
        report.lacks("processes.txt", (error.strerror or str(error)).lower())
        return
    for pid in pids:
        facts = status(pid)
        words = words_of(pid)
        if facts is None or not words or (root and not belongs(pid, root)):
            continue
        try:
            owner = user_name(os.stat("/proc/%d" % pid).st_uid)
            with open("/proc/%d/statm" % pid, encoding="ascii") as file:
                memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)
        except (OSError, ValueError, IndexError):
            continue
        line = shlex.join(words)
        line = "".join(char if char.isprintable() else " " for char in line)
        cut = line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"
        age = max(0, int(up - facts["start"] / ticks))
        lines.append("%-12s %7d %7d %s %8d %9d  %s\n" % (owner, pid, facts["parent"], facts["state"], memory, age, cut))
    if len(lines) > PROCESSES:
        report.lacks("processes.txt", "%d processes are left out" % (len(lines) - PROCESSES))
    head = "%-12s %7s %7s %s %8s %9s  %s\n" % ("USER", "PID", "PARENT", "S", "RSS/MiB", "AGE/s", "COMMAND")
    report.text("processes.txt", "/proc", (head + "".join(lines[-PROCESSES:])).encode("utf-8", "replace"), 4 * PRINTED)


def words_of(pid: int) -> list[str]:
    """Return the command line of a process, empty for kernel threads and after its end."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read(64 * 1024).rstrip(b"\0").decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def belongs(pid: int, root: str) -> bool:
    """Return whether a process was started on this sandbox worker."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return b"TPUCTL_DEVICE_ROOT=" + os.fsencode(root) in file.read().split(b"\0")
    except OSError:
        return False


def tell_devices(report: Report, root: str, patterns: list[str]) -> None:
    """Send the device files with their owner and mode."""
    lines = []
    for path in sorted(path for pattern in patterns for path in glob.glob(glob.escape(root) + pattern)):
        about = os.lstat(path)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(about.st_mtime))
        lines.append("%s %s %s %s\n" % (stat.filemode(about.st_mode), user_name(about.st_uid), when, path[len(root) :]))
    if lines:
        report.text("devices.txt", " ".join(patterns), "".join(lines).encode("utf-8", "replace"), PRINTED)
    else:
        report.lacks("devices.txt", "no device files of a TPU")


def tell_holders(report: Report, program: str) -> None:
    """Send what holds the TPU, as reported by the program of `holders`."""
    root = os.environ.get("TPUCTL_DEVICE_ROOT", "")
    words = [*as_root(), "env", "TPUCTL_DEVICE_ROOT=" + root, sys.executable, "-ISc", program]
    output, why = output_of(report, words)
    reports = [line for line in output.splitlines() if line.startswith(MARK.encode())]
    if reports:
        report.text("holders.json", "/proc", reports[-1][len(MARK) :] + b"\n", PRINTED)
    else:
        report.lacks("holders.json", "examination failed: the program " + (why or "printed nothing"))


def tell_versions(report: Report) -> None:
    """Send the packages of each Python that a user may have started."""
    found: dict[str, str] = {}
    for path in (shutil.which("python3"), "/usr/bin/python3"):
        if path and os.path.exists(path):
            found.setdefault(os.path.realpath(path), path)
    printed = []
    for path in found.values():
        output, why = output_of(report, [path, "-c", VERSIONS])
        printed.append(output)
        if why:
            report.lacks("packages.txt", "%s %s" % (path, why))
    if any(printed):
        report.text("packages.txt", " ".join(found.values()), b"\n".join(printed), PRINTED)

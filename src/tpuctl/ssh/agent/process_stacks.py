"""Runs on a worker: reports where the processes that hold its TPU, or those of a job, are, without changing anything.

The sources, in this order: py-spy, where it is installed; the output of `faulthandler`, if the user names the signal for which
the program has registered it; what the kernel knows of each thread. A signal without a handler would terminate the process, so
one is sent only if the process has a handler. It must run under Python 3.8.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import subprocess
import time

from tpuctl.ssh.agent.holders import describe, find_holders, send
from tpuctl.ssh.agent.job import others
from tpuctl.ssh.agent.job_files import process_group
from tpuctl.ssh.agent.link import ClientLink
from tpuctl.ssh.agent.tpu_devices import device_root
from tpuctl.ssh.agent.user_files import is_trusted

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MOST_PROCESSES, MOST_THREADS, MOST_FRAMES = 16, 100, 100
LONGEST_TEXT = 300
# Seconds for py-spy, which stops the process for a moment; for all of a dump by faulthandler; of silence that ends a dump.
SPY_TIMEOUT, DUMP_TIMEOUT, DUMP_PAUSE = 20.0, 3.0, 0.3
LONGEST_DUMP = 1 << 20
THREAD_LINE = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):$")
FRAME_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def serve_process_stacks(link: ClientLink, request: dict[str, Any]) -> None:
    """Send the report."""
    link.send(b"x", json.dumps(examine_processes(request)).encode("ascii"))


def examine_processes(request: dict[str, Any]) -> dict[str, Any]:
    """Return the stacks of the processes; `found` is false if there is no such job, or if it has ended."""
    hidden = 0
    if request["job"] is None:
        holders, hidden = find_holders(device_root())
        chosen = [one for one in holders if (one["devices"] or one["hasLockFile"]) and not one["isProtected"]]
    else:
        name = "%s.%d" % (request["job"], request["worker"])
        folder = os.path.join(login_home(), ".tpuctl", "jobs", name)
        group = process_group(folder) if os.path.isdir(folder) else None
        pids = [group[0], *map(int, others(group[0]))] if group else []
        chosen = [one for one in map(describe, pids) if one is not None]
    return {
        "processes": [describe_stacks(one, request["signal"]) for one in chosen[:MOST_PROCESSES]],
        "hidden": hidden,
        "isRoot": os.geteuid() == 0,
        "found": request["job"] is None or bool(chosen),
    }


def login_home() -> str:
    """Return the home of the user who has logged in, also under sudo."""
    try:
        return pwd.getpwuid(int(os.environ["SUDO_UID"])).pw_dir
    except (KeyError, ValueError):
        return os.path.expanduser("~")


def describe_stacks(process: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return a process with its threads, their source, and why a better source was not used."""
    pid, notes = process["pid"], []
    spy = find_spy(pid)
    threads: list[dict[str, Any]] | None = None
    source = "py-spy"
    if spy is not None:
        threads, note = ask_spy(spy, pid)
        notes.append(note)
    if threads is None and number is not None:
        source = "faulthandler"
        threads, note = ask_faulthandler(process, number)
        notes.append(note)
    if threads is None:
        source = "kernel"
        threads = ask_kernel(pid)
    return {
        "pid": pid,
        "user": process["user"],
        "age": process["age"],
        "command": process["command"],
        "source": source,
        "hasSpy": spy is not None,
        "note": "; ".join(filter(None, notes))[:LONGEST_TEXT],
        "threads": threads,
    }


def find_spy(pid: int) -> str | None:
    """Return the path of py-spy: on PATH, in the home of the user, or beside the Python of the process."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), login_home() + "/.local/bin"]
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            folders.append(os.path.dirname(os.fsdecode(file.read(4096).split(b"\0")[0])))
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read(1 << 18).split(b"\0")]
        folders += [
            os.fsdecode(value) + "/bin" for name, _, value in pairs if name in (b"VIRTUAL_ENV", b"CONDA_PREFIX")
        ]
    except OSError:
        pass
    # Without links, which another user could change between the check and the start.
    paths = [os.path.realpath(folder + "/py-spy") for folder in folders if folder.startswith("/")]
    trusted = {0, os.geteuid(), int(os.environ.get("SUDO_UID", "0"))}
    return next((path for path in paths if os.access(path, os.X_OK) and is_trusted(path, trusted)), None)


def ask_spy(spy: str, pid: int) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the threads that py-spy reports; None, and why, if it fails."""
    words = [spy, "dump", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SPY_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return None, "py-spy: %s" % error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return None, "py-spy: %s" % (lines[-1] if lines else "exit %d" % done.returncode)
    try:
        return merge(
            (
                str(thread["thread_name"] or "thread"),
                [(str(one["name"]), str(one["filename"]), int(one["line"])) for one in thread["frames"][:MOST_FRAMES]],
            )
            for thread in sorted(json.loads(done.stdout), key=lambda one: bool(one["thread_name"] != "MainThread"))
        ), ""
    except (ValueError, KeyError, TypeError):
        return None, "py-spy: no JSON"


def ask_faulthandler(process: dict[str, Any], number: int) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the threads that faulthandler writes to the stderr of the process; None, and why, if it cannot."""
    pid, path = process["pid"], "/proc/%d/fd/2" % process["pid"]
    if not has_handler(pid, number):
        return None, "no handler for that signal, so it was not sent"
    try:
        # Opened is the file that was examined, and not a device that the process puts in its place meanwhile.
        examined = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            before = os.fstat(examined)
            if not stat.S_ISREG(before.st_mode):
                return None, "its stderr is no file, so the signal was not sent"
            file = os.open("/proc/self/fd/%d" % examined, os.O_RDONLY)
        finally:
            os.close(examined)
    except OSError as error:
        return None, "its stderr cannot be read: %s" % error.strerror
    try:
        if send(pid, process["start"], number) != "sent":
            return None, "the signal could not be sent"
        until, size, since = time.monotonic() + DUMP_TIMEOUT, before.st_size, time.monotonic()
        while time.monotonic() < until and (size == before.st_size or time.monotonic() - since < DUMP_PAUSE):
            time.sleep(0.02)
            now = os.fstat(file).st_size
            if now != size:
                size, since = now, time.monotonic()
        text = os.pread(file, min(size - before.st_size, LONGEST_DUMP), before.st_size).decode("utf-8", "replace")
    finally:
        os.close(file)
    threads = parse_dump(text)
    return (threads, "") if threads else (None, "the signal was sent, and faulthandler wrote nothing to its stderr")


def has_handler(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        with open("/proc/%d/status" % pid, encoding="utf-8", errors="replace") as file:
            caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", file.read(), re.MULTILINE)
    except OSError:
        return False
    return caught is not None and bool(int(caught.group(1), 16) >> (number - 1) & 1)


def parse_dump(text: str) -> list[dict[str, Any]]:
    """Return the threads in the output of faulthandler, the current one first."""
    found: list[tuple[str, list[tuple[str, str, int]]]] = []
    frames: list[tuple[str, str, int]] = []
    for line in text.splitlines():
        thread, frame = THREAD_LINE.match(line), FRAME_LINE.match(line)
        if thread:
            is_current, frames = line.startswith("Current"), []
            name = thread.group(2) or ("current thread" if is_current else "thread")
            found.insert(0 if is_current else len(found), (name, frames))
        elif frame and found and len(frames) < MOST_FRAMES:
            frames.append((frame.group(3), frame.group(1), int(frame.group(2)[:9])))
    return merge(found)


def ask_kernel(pid: int) -> list[dict[str, Any]]:
    """Return the threads of a process with what they wait for in the kernel, as far as this user may know."""
    folder = "/proc/%d/task" % pid
    found = []
    try:
        tasks = sorted(os.listdir(folder), key=int)
    except OSError:
        return []
    for task in tasks[:2000]:
        stack = read_text("%s/%s/stack" % (folder, task))
        # The last calls are the same for all.
        functions = re.findall(r"^\[<\w+>\] (?!do_syscall|entry_)([\w.]+)", stack, re.MULTILINE)
        waiting = read_text("%s/%s/wchan" % (folder, task)).strip()
        if not functions:
            functions = [waiting] if waiting and waiting != "0" else ["(running)"]
        name = read_text("%s/%s/comm" % (folder, task)).strip()
        found.append((name, [(function, "", 0) for function in functions[:MOST_FRAMES]]))
    return merge(found)


def merge(threads: Iterable[tuple[str, list[tuple[str, str, int]]]]) -> list[dict[str, Any]]:
    """Return threads for the report: those with the same name and stack as one with their number."""
    # Homes may differ between workers that are at the same place.
    home = login_home() + "/"
    counts: dict[tuple[str, tuple[tuple[str, str, int], ...]], int] = {}
    for name, frames in threads:
        key = (
            name,
            tuple(
                (one, "~/" + path[len(home) :] if path.startswith(home) else path, line) for one, path, line in frames
            ),
        )
        counts[key] = counts.get(key, 0) + 1
    return [
        {
            "name": name[:LONGEST_TEXT],
            "count": count,
            "frames": [
                {"function": function[:LONGEST_TEXT], "file": path[-LONGEST_TEXT:], "line": max(0, line)}
                for function, path, line in frames
            ],
        }
        for (name, frames), count in list(counts.items())[:MOST_THREADS]
    ]


def read_text(path: str) -> str:
    """Return a file of /proc, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""

"""Runs on a worker: tells of the jobs that are there, reads what they printed, signals them, removes those that have ended.

A job is a folder, `~/.tpuctl/jobs/NAME.WORKER` (remote/onboard/job.py says what is in it). Other workers' jobs may lie beside
it, for a home may be shared; they are left alone. Answers are one frame: `x` with JSON, `m` where there is no such job, `!`
with what went wrong. It must run under Python 3.8 and import little.
"""

from __future__ import annotations

import os
import time

from tpuctl.remote.onboard.link import BLOCK, Link
from tpuctl.remote.onboard.small_files import is_locked, mark, read, remove
from tpuctl.remote.onboard.trimming import trimmed

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LOOK_AGAIN = 0.02
FILES = ((b"o", "/out"), (b"e", "/err"))
TERM = 15


def answer(order: dict[str, Any]) -> None:
    """Do what an order says, and answer."""
    link = Link()
    do = {"list": tell, "read": show, "signal": signal_one, "remove": remove_some}[order["do"]]
    try:
        do(link, order)
    except OSError as error:
        text = "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)
        link.send(b"!", text.encode("utf-8", "replace"))


def place() -> str:
    """Return the folder of all jobs."""
    return os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".tpuctl", "jobs")


def folder_of(order: dict[str, Any], name: str) -> str:
    """Return a job's folder. The client has looked at the name."""
    return os.path.join(place(), "%s.%d" % (name, order["worker"]))


def tell(link: Link, order: dict[str, Any]) -> None:
    """Tell of the newest jobs, or of those that are named."""
    found = jobs_here(order["worker"])
    if order["names"]:
        found = [one for one in found if one[1] in order["names"]]
    told = [describe(folder_of(order, name), name, order["tail"]) for _, name in found[: order["limit"]]]
    send_value(link, {"total": len(found), "jobs": [one for one in told if one is not None]})


def jobs_here(worker: int) -> list[tuple[float, str]]:
    """Return when each job of this worker began, and its name, the newest first."""
    try:
        entries = os.listdir(place())
    except FileNotFoundError:
        return []
    end = ".%d" % worker
    found = []
    for entry in entries:
        if entry.endswith(end) and not entry.startswith("."):
            try:
                # Written before the command began, and never again.
                began = os.stat(os.path.join(place(), entry, "token")).st_mtime
            except OSError:  # no job, or one that has gone this moment
                continue
            found.append((began, entry[: -len(end)]))
    return sorted(found, reverse=True)


def describe(folder: str, name: str, tail: int | None) -> dict[str, Any] | None:
    """Return what there is to know of a job; nothing where it is gone. Times are seconds."""
    try:
        began = os.stat(folder + "/token").st_mtime
        about = read(folder + "/about") or b""
        end = read(folder + "/exit")
        is_running = end is None and is_locked(folder + "/lock")
        if end is None and not is_running:
            # It may have ended between the two looks.
            end = read(folder + "/exit")
        sizes = [size_of(folder + file) for _, file in FILES]
        starts = [
            0 if tail is None else tail_of(folder + file, floor, size, tail)
            for (_, file), floor, size in zip(FILES, trimmed(folder), sizes)
        ]
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
        }
    except (FileNotFoundError, NotADirectoryError):
        return None


def size_of(path: str) -> int:
    """Return how long a file is; one that is not there is empty."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def tail_of(path: str, floor: int, size: int, lines: int) -> int:
    """Return where the last lines of a file begin, not below `floor`. It is read from its end, no further than needed."""
    if size <= floor or not lines:
        return size
    file = os.open(path, os.O_RDONLY)
    try:
        # A newline at the very end begins no line.
        at = size - 1
        while at > floor:
            begin = max(floor, at - BLOCK)
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


def show(link: Link, order: dict[str, Any]) -> None:
    """Send parts of what a job has printed: `o` and `e` frames, then `x`."""
    folder = folder_of(order, order["name"])
    if read(folder + "/token") is None:
        link.send(b"m")
        return
    for (kind, _), (at, end) in zip(FILES, order["parts"]):
        if at < end:
            show_part(link, folder, kind, at, end)
    link.send(b"x")


def show_part(link: Link, folder: str, kind: bytes, at: int, end: int) -> None:
    """Send a part of a file; where its beginning is not kept any more, how much that is."""
    file = os.open(folder + dict(FILES)[kind], os.O_RDONLY)
    try:
        while at < end:
            data = os.pread(file, min(BLOCK, end - at), at)
            # Looked at after the data was read: where there was a hole by then, this says so.
            kept_from = min(end, trimmed(folder)[kind == b"e"])
            if kept_from > at:
                link.send(kind.upper(), b"%d" % (kept_from - at))
                at = kept_from
            elif data:
                link.send(kind, data)
                at += len(data)
            else:
                break
    finally:
        os.close(file)


def signal_one(link: Link, order: dict[str, Any]) -> None:
    """Send a signal to a job's processes if it runs, and tell how it was before and how it is now."""
    folder = folder_of(order, order["name"])
    before = describe(folder, order["name"], None)
    if before is None:
        link.send(b"m")
        return
    sent = before["state"] == "running" and send(folder, order["number"])
    until = time.monotonic() + order["wait"]
    while sent and read(folder + "/exit") is None and time.monotonic() < until:
        time.sleep(LOOK_AGAIN)
    send_value(link, {"sent": sent, "job": describe(folder, order["name"], None) or before})


def send(folder: str, number: int) -> bool:
    """Send a signal to all processes of a job's group; return whether there were any."""
    words: list[bytes] = []
    # The file is written a moment after the command has begun.
    for _ in range(200):
        words = (read(folder + "/pid") or b"").split()
        if len(words) == 2 or read(folder + "/exit") is not None:
            break
        time.sleep(0.005)
    if len(words) != 2 or read(folder + "/exit") is not None:
        return False
    group, supervisor = map(int, words)
    if not is_child(group, supervisor):
        raise OSError("its processes are not on this machine")
    if number == TERM:
        # All of it is to end, also what outlives the shell that was started: the supervisor sees to that.
        mark(folder + "/ending")
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def is_child(pid: int, parent: int) -> bool:
    """Tell whether a number still means the same process: numbers are given again, and homes may be shared."""
    text = read("/proc/%d/stat" % pid)
    if text is None:
        return not os.path.exists("/proc/self/stat")  # nothing can be told there
    # The name stands in parentheses and may hold any character, these too.
    return int(text[text.rfind(b")") + 2 :].split()[1]) == parent


def remove_some(link: Link, order: dict[str, Any]) -> None:
    """Remove the jobs that are named, or all that ended so long ago; what runs, or is being read, is left alone.

    With `only_looks` nothing is removed yet: the client asks all workers before the first removes anything.
    """
    outcomes = {}
    if order["names"]:
        names: Iterable[str] = order["names"]
    else:
        names = [name for _, name in jobs_here(order["worker"])]
    for name in names:
        folder = folder_of(order, name)
        about = describe(folder, name, None)
        if about is None:
            outcomes[name] = "missing"
        elif about["state"] == "running" or about["followed"]:
            outcomes[name] = "running" if about["state"] == "running" else "followed"
        elif order["names"] or ended_ago(folder) >= order["older"]:
            if not order["only_looks"]:
                remove(folder)
            outcomes[name] = "ended" if order["only_looks"] else "removed"
    send_value(link, outcomes)


def ended_ago(folder: str) -> float:
    """Return how many seconds ago a job ended; of a lost one, how long ago it last printed something."""
    try:
        return time.time() - os.stat(folder + "/exit").st_mtime
    except FileNotFoundError:
        return time.time() - os.stat(folder + "/out").st_mtime


def send_value(link: Link, value: Any) -> None:
    """Answer with JSON."""
    link.send(b"x", to_json(value).encode())


def to_json(value: Any) -> str:
    """Return JSON, in ASCII. The standard library's module costs more to import than all else here."""
    if isinstance(value, str):
        return '"%s"' % "".join(map(escaped, value))
    if isinstance(value, dict):
        return "{%s}" % ",".join("%s:%s" % (to_json(name), to_json(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return "[%s]" % ",".join(map(to_json, value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    return repr(value)


def escaped(char: str) -> str:
    """Return a character as it stands in a JSON string."""
    if " " <= char <= "~" and char not in '"\\':
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4))

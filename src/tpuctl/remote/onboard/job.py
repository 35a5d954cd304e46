"""Runs on a worker: starts a command at most once, streams what it prints, and does so again after the link broke.

A job is a folder, `~/.tpuctl/jobs/NAME`, that appears whole, by a rename, or not at all: of all connections that bring the
same order, one starts the command and the others join it. In it:

    token    whose order it was                     out, err   what the command has printed (out alone: both)
    about    what the client wants to remember      in         a FIFO, where the command reads what the client sends
    lock     held while somebody waits for the      fed        how much of that it was given
             command                                attached   held, shared, by whoever streams
    pid      the command's process group            exit       how it ended: `exit CODE SECONDS` or `signal NUMBER SECONDS`

The command is the child of a supervisor in a session of its own, which outlives the connection. Frames go both ways: a
letter, four bytes of length, the payload (remote/running/frames.py has the other end). It must run under Python 3.8, import
little, for 64 of these may start on one machine, and leave nothing behind that the client did not ask for.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from tpuctl.remote.onboard.link import Link
from tpuctl.remote.onboard.small_files import is_locked, read, remove
from tpuctl.remote.onboard.streams import Feed, Stream
from tpuctl.remote.onboard.supervisor import launch

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

QUICK, SLOW = 0.004, 0.1


def serve(order: dict[str, Any]) -> None:
    """Do what an order says, for as long as its client is there."""
    link = Link()
    folder = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".tpuctl", "jobs", order["name"])
    known = read(folder + "/token")
    if known is None and order["must_exist"]:
        link.send(b"m")
        return
    if known is not None and order["token"] not in (known, b""):
        link.send(b"c")
        return
    link.send(b"h", b"known" if known is not None else b"new")
    ended = None
    if known is None:
        if not order["go"] and not link.waits_for_go():
            return
        try:
            ended = launch(folder, order)
        except OSError as error:
            link.send(b"!", str(error).encode("utf-8", "replace"))
            return
    link.send(b"s")
    if not order["detach"]:
        stream(link, folder, order, ended)


def stream(link: Link, folder: str, order: dict[str, Any], ended: int | None) -> None:
    """Send what the command prints, from the client's offsets on, and pass on what the client sends, until either ends."""
    attached = os.open(folder + "/attached", os.O_RDONLY)
    fcntl.flock(attached, fcntl.LOCK_SH)
    streams = [Stream(link, folder, kind, offset) for kind, offset in zip((b"o", b"e"), order["offsets"])]
    feed = Feed(link, folder) if order["stdin"] else None
    delay = QUICK
    while link.is_open:
        # First how it ended, then what it printed: what was printed before the end is then complete.
        end = read(folder + "/exit")
        moved = [one.pump() for one in streams]
        if any(moved):
            delay = QUICK
        elif end is not None:
            link.send(b"x", end)
            say_goodbye(link, folder)
            return
        elif delay >= SLOW and not is_locked(folder + "/lock") and read(folder + "/exit") is None:
            link.send(b"l")
            return
        else:
            delay = min(delay * 1.5, SLOW)
        ended = wait_a_little(link, folder, feed, ended, 0 if any(moved) else delay)


def wait_a_little(link: Link, folder: str, feed: Feed | None, ended: int | None, delay: float) -> int | None:
    """Wait until the client says something, the command reads or ends, or the time is up; return `ended` while it is open."""
    reading = [0] if ended is None else [0, ended]
    writing = [feed.pipe] if feed is not None and feed.pending and feed.pipe >= 0 else []
    ready, takes, _ = select.select(reading, writing, [], delay)
    if 0 in ready:
        for kind, payload in link.frames():
            obey(folder, kind, payload, feed)
    if takes and feed is not None:
        feed.give()
    return None if ended in ready else ended


def obey(folder: str, kind: bytes, payload: bytes, feed: Feed | None) -> None:
    """Do what a frame of the client's says."""
    if kind == b"k":
        signal_group(folder, int(payload))
    elif kind in {b"i", b"f"} and feed is not None:
        feed.take(kind, payload)
    elif kind == b"b":
        remove(folder)


def signal_group(folder: str, number: int) -> None:
    """Send a signal to all processes of the command's group, unless it has ended."""
    # The file is written a moment after the command has begun.
    for _ in range(200):
        group = read(folder + "/pid")
        if group is not None or read(folder + "/exit") is not None:
            break
        time.sleep(0.005)
    if group is not None and read(folder + "/exit") is None:
        try:
            os.killpg(int(group.split()[0]), number)
        except ProcessLookupError:
            pass


def say_goodbye(link: Link, folder: str) -> None:
    """Keep everything until the client has all of it and says so; what it has not taken it may ask for again."""
    while link.is_open:
        for kind, payload in link.frames():
            obey(folder, kind, payload, None)

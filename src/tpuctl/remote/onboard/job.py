"""Runs on a worker: starts a command at most once, streams what it prints, and does so again after the link broke.

A job is a folder, `~/.tpuctl/jobs/NAME`, that appears whole, by a rename, or not at all: of all connections that bring the
same order, one starts the command and the others join it. In it:

    token    whose order it was                     out, err   what the command has printed (out alone: both)
    about    what the client wants to remember      in         a FIFO, where the command reads what the client sends
    lock     held while somebody waits for the      fed        who gives it that, how much it was given, and `end`
             command                                attached   held, shared, by whoever streams
    pid      the command's process group            exit       how it ended: `exit CODE SECONDS` or `signal NUMBER SECONDS`,
                                                               and what else happened: `abandoned`, `late`, `full`
    trimmed  from where on out and err are kept     ending     it was told TERM, and all of it is to end
    detached all of it is kept until somebody removes it; what is left of other commands goes a day after their end

The command is the child of a supervisor in a session of its own, which outlives the connection. Frames go both ways: a
letter, four bytes of length, the payload (remote/running/frames.py has the other end). It must run under Python 3.8, import
little, for 64 of these may start on one machine, and leave nothing behind that the client did not ask for.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from tpuctl.remote.onboard.group import Rest, can_print
from tpuctl.remote.onboard.link import Link
from tpuctl.remote.onboard.small_files import is_locked, mark, read, remove
from tpuctl.remote.onboard.streams import Feed, Stream
from tpuctl.remote.onboard.supervisor import TERM, Prepared
from tpuctl.remote.onboard.trimming import trim

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

QUICK, SLOW = 0.004, 0.1
FORGOTTEN = 24 * 3600.0


def serve(order: dict[str, Any]) -> None:
    """Do what an order says, for as long as its client is there."""
    link = Link()
    folder = os.path.join(os.environ.get("HOME") or os.path.expanduser("~"), ".tpuctl", "jobs", order["name"])
    try:
        if not order["must_exist"]:
            tidy(folder, order["token"])
        known = read(folder + "/token")
        if known is None and order["must_exist"]:
            link.send(b"m")
        elif known is not None and order["token"] not in (known, b""):
            link.send(b"c")
        elif known is not None:
            link.send(b"h", b"known")
            link.send(b"s")
            if not order["detach"]:
                stream(link, folder, order, None)
        else:
            begin(link, Prepared(folder, order))
    except OSError as error:
        text = "%s: %s" % (error.filename or folder, (error.strerror or str(error)).lower())
        link.send(b"!", text.encode("utf-8", "replace"))


def tidy(folder: str, token: bytes) -> None:
    """Remove what earlier connections for the same order have prepared: what they may still be told is out of date.

    Also what followed commands have left whose clients never came back for it.
    """
    parent, name = os.path.split(folder)
    try:
        entries = os.listdir(parent)
    except FileNotFoundError:
        return
    for entry in entries:
        path = os.path.join(parent, entry)
        if entry.startswith(".%s.%s." % (name, token[:8].decode())) or is_forgotten(path):
            remove(path)


def is_forgotten(path: str) -> bool:
    """Tell whether something is left of a command that was followed, or never started, and that ended long ago."""
    end = path if os.path.basename(path).startswith(".") else path + "/exit"
    try:
        return time.time() - os.stat(end).st_mtime > FORGOTTEN and not os.path.exists(path + "/detached")
    except OSError:
        return False


def begin(link: Link, prepared: Prepared) -> None:
    """Start the command when the client says so, and follow it."""
    folder, order = prepared.folder, prepared.order
    ended = None
    try:
        link.send(b"h", b"new")
        said = link.wait_for_go()
        if said is None:
            return
        try:
            ended = prepared.launch()
        except FileNotFoundError:  # a later connection has withdrawn this one
            return
        except OSError:
            known = read(folder + "/token")
            if known != order["token"]:
                link.send(b"c" if known is not None else b"!", b"its folder cannot be made")
                return
    finally:
        remove(prepared.scratch)
    link.send(b"s")
    for kind, payload in said:
        obey(folder, kind, payload, None)
    if not order["detach"]:
        stream(link, folder, order, ended)


def stream(link: Link, folder: str, order: dict[str, Any], ended: int | None) -> None:
    """Send what the command prints, from the client's offsets on, and pass on what the client sends, until either ends."""
    attached = os.open(folder + "/attached", os.O_RDONLY)
    fcntl.flock(attached, fcntl.LOCK_SH)
    streams = [Stream(link, folder, kind, offset) for kind, offset in zip((b"o", b"e"), order["offsets"])]
    feed = Feed(link, folder) if order["stdin"] else None
    rest = Rest(folder)
    delay = QUICK
    while link.is_open:
        # First how it ended and who can still print, then what was printed: what was printed before is then complete.
        end = read(folder + "/exit")
        is_over = end is not None and rest.is_over()
        if is_over and rest.prints:
            for one in streams:
                one.stop_here()
        moved = [one.pump() for one in streams]
        if any(moved):
            delay = QUICK
        elif end is not None and is_over:
            link.send(b"x", end + b" outlived" * rest.prints)
            say_goodbye(link, folder)
            return
        elif end is None and delay >= SLOW and not is_locked(folder + "/lock") and read(folder + "/exit") is None:
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
    elif kind == b"t":
        out, err = payload.split()
        trim(folder, (int(out), int(err)))
    elif kind == b"b":
        remove(folder)


def signal_group(folder: str, number: int) -> None:
    """Send a signal to all processes of the command's group, unless it has ended and left nothing behind that prints."""
    # The file is written a moment after the command has begun.
    for _ in range(200):
        group = read(folder + "/pid")
        if group is not None or read(folder + "/exit") is not None:
            break
        time.sleep(0.005)
    if group is not None and (read(folder + "/exit") is None or can_print(folder)):
        if number == TERM:
            # All of it is to end, also what outlives the shell that was started.
            mark(folder + "/ending")
        try:
            os.killpg(int(group.split()[0]), number)
        except ProcessLookupError:
            pass


def say_goodbye(link: Link, folder: str) -> None:
    """Keep everything until the client has all of it and says so; what it has not taken it may ask for again."""
    while link.is_open:
        for kind, payload in link.frames():
            obey(folder, kind, payload, None)

"""Runs on a worker: starts a command at most once, streams its output, and continues after a broken connection.

A job is a folder, `~/.tpuctl/jobs/NAME`, that appears atomically, by a rename: of all connections with the same request, one
starts the command and the others join it. Its files:

    token    identifies the request                 out, err   output of the command (out alone: both)
    about    stored for the client                  in         FIFO: the stdin of the command, with data from the client
    lock     held while a supervisor waits for      fed        pid of its writer, number of bytes written, and `end`
             the command                            attached   held, shared, by each client that streams
    pid      the command's process group            exit       how it ended: `exit CODE SECONDS` or `signal NUMBER SECONDS`,
                                                               and remarks: `abandoned`, `late`, `full`
    trimmed  first stored bytes of out and err      ending     TERM was sent: all its processes must end
    detached the job is kept until it is removed; other jobs are removed one day after their end

The command is the child of a supervisor in its own session, which outlives the connection. Frames go both ways: a letter, four
bytes of length, the payload (the client's end: workers/worker_session.py). The program must run under Python 3.8, import
little, since 64 of these may start on one machine, and leave nothing behind that the client did not request.
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
    """Execute a request, as long as its client is connected."""
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
    """Remove what earlier connections prepared for the same request: a GO that they still receive is outdated.

    Remove also the jobs of followed commands whose clients never returned.
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
    """Return whether a folder belongs to a followed or never started command that ended more than a day ago."""
    end = path if os.path.basename(path).startswith(".") else path + "/exit"
    try:
        return time.time() - os.stat(end).st_mtime > FORGOTTEN and not os.path.exists(path + "/detached")
    except OSError:
        return False


def begin(link: Link, prepared: Prepared) -> None:
    """Start the command after GO, and follow it."""
    folder, order = prepared.folder, prepared.order
    ended = None
    try:
        link.send(b"h", b"new")
        frames = link.wait_for_go()
        if frames is None:
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
    for kind, payload in frames:
        obey(folder, kind, payload, None)
    if not order["detach"]:
        stream(link, folder, order, ended)


def stream(link: Link, folder: str, order: dict[str, Any], ended: int | None) -> None:
    """Send output from the client's offsets on, and obey the client's frames, until either side ends."""
    attached = os.open(folder + "/attached", os.O_RDONLY)
    fcntl.flock(attached, fcntl.LOCK_SH)
    streams = [Stream(link, folder, kind, offset) for kind, offset in zip((b"o", b"e"), order["offsets"])]
    feed = Feed(link, folder) if order["stdin"] else None
    rest = Rest(folder)
    delay = QUICK
    while link.is_open:
        # Read the end first, then the output: the output is then complete.
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
    """Wait for the client, the command or the delay, and serve the client; return `ended` while it is open."""
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
    """Obey a frame of the client."""
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
    """Send a signal to all processes of the command's group, if any of them can still print."""
    # The file is written just after the start of the command.
    for _ in range(200):
        group = read(folder + "/pid")
        if group is not None or read(folder + "/exit") is not None:
            break
        time.sleep(0.005)
    if group is not None and (read(folder + "/exit") is None or can_print(folder)):
        if number == TERM:
            # All processes must end, also those that outlive the shell.
            mark(folder + "/ending")
        try:
            os.killpg(int(group.split()[0]), number)
        except ProcessLookupError:
            pass


def say_goodbye(link: Link, folder: str) -> None:
    """Keep the job until the client confirms that it has received everything, or disconnects."""
    while link.is_open:
        for kind, payload in link.frames():
            obey(folder, kind, payload, None)

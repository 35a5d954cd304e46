"""Runs on a worker: starts a command at most once, streams its output, and continues after a broken connection.

A job is a folder, `~/.tpuctl/jobs/NAME`, that appears atomically, by a rename: of all connections with the same request, one
starts the command and the others join it. Its files:

    token    identifies the request                 out, err   output of the command (out alone: both)
    about    stored for the client                  in         FIFO: the stdin of the command, with data from the client
    lock     held while a supervisor waits for      fed        pid of its writer, number of bytes written, and `end`
             the command                            attached   held, shared, by each client that streams
    pid      the command's process group            exit       how it ended: `exit CODE SECONDS` or `signal NUMBER SECONDS`,
                                                               and remarks: `abandoned`, `late`, `full`, `preempted`
    trimmed  first stored bytes of out and err      ending     TERM was sent: all its processes must end
    notice   seconds that are left of a node that is being preempted: the job got its signal
    times    how much output there was at a time, one line each: seconds, bytes of out, bytes of err
    detached the job is kept until it is removed; other jobs are removed one day after their end

The command is the child of a supervisor in its own session, which outlives the connection. Frames go both ways (link.py; the
client's end: workers/worker_session.py). The program must run under Python 3.8, import little, since 64 of these may start on
one machine, and leave nothing behind that the client did not request.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]  # of CPython

from tpuctl.ssh.agent.job_files import (
    KILL,
    RESERVED,
    TERM,
    OutputStreamer,
    OutputTimes,
    fill_reserved,
    is_full,
    is_locked,
    job_folder,
    jobs_here,
    process_group,
    read,
    remove_job,
    reserve,
    signal_group,
    trim,
    write,
)
from tpuctl.ssh.agent.link import ClientLink, own_folder
from tpuctl.ssh.agent.preemption_notice import NOTICE, start_waiting

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, NoReturn

# Delays while something is polled.
QUICK, SLOW = 0.004, 0.1
FORGOTTEN = 24 * 3600.0
# The client needs only some names of the jobs that run already.
MOST_REPORTED = 8


def serve_job(link: ClientLink, request: dict[str, Any]) -> None:
    """Execute a request, as long as its client is connected."""
    folder = job_folder(request["name"])
    if not request["must_exist"]:
        tidy(folder, request["token"])
    known = read(folder + "/token")
    if known is None and request["must_exist"]:
        link.send(b"m")
    elif known is not None and request["token"] not in (known, b""):
        link.send(b"c")
    elif known is not None:
        link.send(b"h", b"known")
        link.send(b"s")
        if not request["detach"]:
            stream(link, folder, request, None)
    else:
        begin(link, PreparedJob(folder, request))


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
            remove_job(path)


def is_forgotten(path: str) -> bool:
    """Return whether a folder belongs to a followed or never started command that ended more than a day ago."""
    end = path if os.path.basename(path).startswith(".") else path + "/exit"
    try:
        return time.time() - os.stat(end).st_mtime > FORGOTTEN and not os.path.exists(path + "/detached")
    except OSError:
        return False


def begin(link: ClientLink, prepared: PreparedJob) -> None:
    """Start the command after GO, and follow it."""
    folder, request = prepared.folder, prepared.request
    ended = None
    try:
        report_jobs(link, request["name"])
        link.send(b"h", b"new")
        frames = wait_for_go(link)
        if frames is None:
            return
        try:
            ended = prepared.launch()
        except FileNotFoundError:  # a later connection has withdrawn this one
            return
        except OSError:
            known = read(folder + "/token")
            if known != request["token"]:
                link.send(b"c" if known is not None else b"!", b"its folder cannot be made")
                return
    finally:
        remove_job(prepared.scratch)
    link.send(b"s")
    for kind, payload in frames:
        handle_frame(folder, kind, payload, None)
    if not request["detach"]:
        stream(link, folder, request, ended)


def report_jobs(link: ClientLink, name: str) -> None:
    """Send the jobs of this user that run on the worker of a job: seconds, name and what the client stored, between NULs."""
    reported, worker = 0, int(name.rpartition(".")[2])
    for began, other in jobs_here(worker):
        folder = job_folder("%s.%d" % (other, worker))
        try:
            if reported < MOST_REPORTED and not os.path.exists(folder + "/exit") and is_locked(folder + "/lock"):
                age = b"%d" % max(0.0, time.time() - began)
                link.send(b"u", b"\0".join((age, os.fsencode(other), read(folder + "/about") or b"")))
                reported += 1
        except OSError:  # just removed
            continue


def wait_for_go(link: ClientLink) -> list[tuple[bytes, bytes]] | None:
    """Wait for GO; return the frames that arrived with it. None: the client has gone, and nothing may start."""
    while link.is_open:
        frames = link.frames()
        if any(kind == b"g" for kind, _ in frames):
            return frames
    return None


def stream(link: ClientLink, folder: str, request: dict[str, Any], ended: int | None) -> None:
    """Send output from the client's offsets on, and handle the client's frames, until either side ends."""
    attached = os.open(folder + "/attached", os.O_RDONLY)
    fcntl.flock(attached, fcntl.LOCK_SH)
    streams = [OutputStreamer(link, folder, kind, offset) for kind, offset in zip((b"o", b"e"), request["offsets"])]
    feed = StdinFeed(link, folder) if request["stdin"] else None
    rest = LeftoverProcesses(folder)
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
            wait_for_bye(link, folder)
            return
        elif end is None and delay >= SLOW and not is_locked(folder + "/lock") and read(folder + "/exit") is None:
            link.send(b"l")
            return
        else:
            delay = min(delay * 1.5, SLOW)
        ended = wait_a_little(link, folder, feed, ended, 0 if any(moved) else delay)


def wait_a_little(link: ClientLink, folder: str, feed: StdinFeed | None, ended: int | None, delay: float) -> int | None:
    """Wait for the client, the command or the delay, and serve the client; return `ended` while it is open."""
    reading = [0] if ended is None else [0, ended]
    writing = [feed.pipe] if feed is not None and feed.pending and feed.pipe >= 0 else []
    ready, takes, _ = select.select(reading, writing, [], delay)
    if 0 in ready:
        for kind, payload in link.frames():
            handle_frame(folder, kind, payload, feed)
    if takes and feed is not None:
        feed.give()
    return None if ended in ready else ended


def handle_frame(folder: str, kind: bytes, payload: bytes, feed: StdinFeed | None) -> None:
    """Do what a frame of the client requests."""
    if kind == b"k":
        pids = process_group(folder)
        if pids is not None and (read(folder + "/exit") is None or can_print(folder)):
            signal_group(folder, pids[0], int(payload))
    elif kind in {b"i", b"f"} and feed is not None:
        feed.take(kind, payload)
    elif kind == b"t":
        out, err = payload.split()
        trim(folder, (int(out), int(err)))
    elif kind == b"b":
        remove_job(folder)


def wait_for_bye(link: ClientLink, folder: str) -> None:
    """Keep the job until the client confirms that it has received everything, or disconnects."""
    while link.is_open:
        for kind, payload in link.frames():
            handle_frame(folder, kind, payload, None)


CHECK_INTERVAL = 3.0
# The signals for a command without a client, and for one that timed out, and the time between them.
ENDING = {b"abandoned": (2, TERM, KILL), b"late": (TERM, KILL)}
SIGNAL_INTERVAL = 10.0
# macOS, where the sandbox has its workers, lacks it before Python 3.13. A process that has ended loses its pid there.
WAITID = getattr(os, "waitid", None)


class PreparedJob:
    """A job's folder under a temporary name, with all that the command needs: errors happen before the start.

    Raises `OSError`.
    """

    def __init__(self, folder: str, request: dict[str, Any]) -> None:
        parent, name = os.path.split(folder)
        self.folder, self.request = folder, request
        self.scratch = os.path.join(parent, ".%s.%s.%d" % (name, request["token"][:8].decode(), os.getpid()))
        self.feeding: int | None = None
        if request["folder"]:
            os.chdir(os.path.expanduser(request["folder"]))
        own_folder("jobs")
        os.mkdir(self.scratch, 0o700)
        try:
            self.fill()
        except OSError as error:
            remove_job(self.scratch)
            error.filename = folder
            raise

    def fill(self) -> None:
        """Create all files that the command needs."""
        request = self.request
        for file, text in (("about", request["about"]), ("token", request["token"]), ("out", b""), ("attached", b"")):
            write(os.path.join(self.scratch, file), text)
        for file in ("pid", "exit"):
            reserve(self.scratch, file)
        if request["detach"]:
            write(self.scratch + "/detached", b"")
        if not request["merged"]:
            write(self.scratch + "/err", b"")
        if request["stdin"]:
            write(self.scratch + "/fed", b"0 0".ljust(RESERVED))
            os.mkfifo(self.scratch + "/in", 0o600)
            # Opened for both, it accepts data from now on, and does not end before the supervisor closes it.
            self.feeding = os.open(self.scratch + "/in", os.O_RDWR)
        self.lock = os.open(self.scratch + "/lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def launch(self) -> int:
        """Start the command; return a descriptor that becomes readable when it has ended.

        Raises `OSError` if the folder exists, and `FileNotFoundError` if another connection has taken the request over.
        """
        os.rename(self.scratch, self.folder)
        ended, writer = os.pipe()
        if os.fork() == 0:
            os.close(ended)
            try:
                supervise(self.folder, self.request, self.feeding)
            finally:
                os._exit(1)
        for handle in (self.lock, writer, self.feeding):
            if handle is not None:
                os.close(handle)
        return ended


def supervise(folder: str, request: dict[str, Any], feeding: int | None) -> NoReturn:
    """Run the command and record how it ended, with or without a client."""
    os.setsid()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            become_command(folder, request)
        except OSError as error:
            os.write(2, b"tpuctl: %s\n" % str(error).encode("utf-8", "replace"))
        finally:
            os._exit(126)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    # Written last: its readers may signal the group.
    fill_reserved(folder, "pid", b"%d %d" % (child, os.getpid()))
    notice = start_waiting(folder, child, request["notice"]) if request["notice"] else 0
    watch = CommandWatch(child, folder, request, began)
    # The process stays a zombie until its end is recorded, so that no other process gets its pid.
    how, number = watch.wait(feeding)
    watch.times.note(is_last=True)
    seconds = time.monotonic() - began
    if notice:
        os.kill(notice, KILL)
        os.waitpid(notice, 0)
    if watch.why or os.path.exists(folder + "/ending"):
        wait_for_others(child)
    words = [how, b"%d %.3f" % (number, seconds)]
    words += [watch.why] * bool(watch.why) + [b"full"] * (watch.is_full or is_full(folder))
    words += [b"preempted"] * os.path.exists(os.path.join(folder, NOTICE))
    fill_reserved(folder, "exit", b" ".join(words))
    if WAITID is not None:
        os.waitpid(child, 0)
    os._exit(0)


def end_of(child: int, waitid: Any = WAITID) -> tuple[bytes, int] | None:
    """Return how a process ended, `exit` or `signal`, and the number; None while it runs. It stays a zombie."""
    if waitid is not None:
        status = waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return status and (b"exit" if status.si_code == os.CLD_EXITED else b"signal", status.si_status)
    ended, code = os.waitpid(child, os.WNOHANG)
    if not ended:
        return None
    return (b"exit", os.WEXITSTATUS(code)) if os.WIFEXITED(code) else (b"signal", os.WTERMSIG(code))


def become_command(folder: str, request: dict[str, Any]) -> NoReturn:
    """Become the shell that runs the line, as sshd would start it."""
    os.setsid()
    out = os.open(folder + "/out", os.O_WRONLY | os.O_APPEND)
    err = out if request["merged"] else os.open(folder + "/err", os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(err, 2)
    # The supervisor has the FIFO open for writing, so this does not wait.
    os.dup2(os.open(folder + "/in" if request["stdin"] else os.devnull, os.O_RDONLY), 0)
    # Python ignores these, and a new program inherits that.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    environment = environment_of_login()
    environment.update(request["environment"])
    if request["notice"]:
        environment[b"TPUCTL_PREEMPTION_NOTICE"] = os.fsencode(os.path.join(folder, NOTICE))
    shell = os.environ.get("SHELL") or "/bin/sh"
    os.execve(shell, [os.path.basename(shell).encode(), b"-c", request["line"]], environment)


def environment_of_login() -> dict[bytes, bytes]:
    """Return the environment of the login shell: Python adds LC_CTYPE if there is no locale."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {name: value for name, found, value in (pair.partition(b"=") for pair in pairs) if found}


class CommandWatch:
    """A running command and its limits. `why`: why it was terminated, if it was; `is_full`: its disk was full once."""

    def __init__(self, child: int, folder: str, request: dict[str, Any], began: float) -> None:
        self.child, self.folder = child, folder
        self.linger, self.limit = request["linger"], request["limit"]
        self.began = self.followed = began
        self.why = b""
        self.is_full = False
        self.signals: list[int] = []
        self.due = 0.0
        self.times = OutputTimes(folder)

    def wait(self, feeding: int | None) -> tuple[bytes, int]:
        """Wait until it has ended, and return how.

        `feeding` keeps its stdin open until the file `fed` says that all data was written.
        """
        handle = os.pidfd_open(self.child) if hasattr(os, "pidfd_open") else None
        delay = QUICK
        while (end := end_of(self.child)) is None:
            if feeding is not None and b"end" in (read(self.folder + "/fed") or b""):
                os.close(feeding)
                feeding = None
            pause = self.check(time.monotonic())
            # Without a pidfd, or while its stdin is written, polling is the only way.
            idle = handle is None or feeding is not None
            delay = min(delay * 1.5, SLOW) if idle else CHECK_INTERVAL
            select.select([] if handle is None else [handle], [], [], min(delay, pause))
        return end

    def check(self, now: float) -> float:
        """Check the limits, send the signals that are due, and return the seconds until the next check."""
        self.is_full = self.is_full or is_full(self.folder)
        self.times.note()
        if self.linger and is_locked(self.folder + "/attached"):
            self.followed = now
            if self.why == b"abandoned":  # a client has returned
                self.due = now + self.linger
        if self.why != b"late" and self.limit and now - self.began >= self.limit:
            self.terminate(b"late", now)
        elif not self.why and self.linger and now - self.followed > self.linger:
            self.terminate(b"abandoned", now)
        if self.signals and now >= self.due:
            signal_processes(self.child, self.signals.pop(0))
            self.due = now + SIGNAL_INTERVAL
        pause = min(CHECK_INTERVAL, self.linger or CHECK_INTERVAL)
        if self.limit and self.why != b"late":
            pause = min(pause, self.began + self.limit - now)
        return max(0.0, min(pause, self.due - now) if self.signals else pause)

    def terminate(self, why: bytes, now: float) -> None:
        """Start to send the signals for this reason."""
        self.why, self.signals, self.due = why, list(ENDING[why]), now


def wait_for_others(group: int) -> None:
    """Wait until the rest of a terminated group has ended; kill it after a while."""
    for _ in range(2):
        until = time.monotonic() + SIGNAL_INTERVAL
        while time.monotonic() < until:
            if not others(group):
                return
            time.sleep(SLOW)
        signal_processes(group, KILL)


def signal_processes(group: int, number: int) -> None:
    """Send a signal to a group; processes that now belong to another user must not fail the supervisor."""
    try:
        os.killpg(group, number)
    except OSError:
        pass


# How long, in seconds, to wait after the end of a command for output of processes that it left behind.
AFTERWARDS = 5.0


class LeftoverProcesses:
    """The processes of a command's group that outlive it with its output open. ssh waits for those, too.

    `prints`: whether there were any at the last check.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.prints = False
        self.since: float | None = None
        self.is_final = False

    def is_over(self) -> bool:
        """Return whether no more output can come, after the end of the command."""
        if not self.is_final:
            now = time.monotonic()
            if self.since is None:
                self.since = now
            self.prints = can_print(self.folder)
            self.is_final = not self.prints or now - self.since >= AFTERWARDS or self.ended_ago() >= AFTERWARDS
        return self.is_final

    def ended_ago(self) -> float:
        """Return how many seconds ago the command ended, so that a later connection does not wait again."""
        try:
            return time.time() - os.stat(self.folder + "/exit").st_mtime
        except FileNotFoundError:  # the job was removed
            return AFTERWARDS


def can_print(folder: str) -> bool:
    """Return whether processes of a command's group, other than its leader, have its output open."""
    words = (read(folder + "/pid") or b"").split()
    if not words:
        return False
    group = int(words[0])
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # they belong to another user
        pass
    files = []
    for name in ("/out", "/err"):
        try:
            files.append(os.stat(folder + name))
        except FileNotFoundError:
            pass
    return any(has_open(pid, files) for pid in others(group))


def others(group: int) -> list[str]:
    """Return the running processes of a group, without its leader."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    found = []
    for entry in entries:
        if entry.isdigit() and int(entry) != group:
            try:
                text = read("/proc/%s/stat" % entry) or b""
            except OSError:  # it has just ended
                continue
            # After the name, which may hold any character: state, parent, group.
            words = text[text.rfind(b")") + 2 :].split(None, 3)
            if len(words) > 2 and int(words[2]) == group and words[0] not in {b"Z", b"X"}:
                found.append(entry)
    return found


def has_open(pid: str, files: list[os.stat_result]) -> bool:
    """Return whether a process has one of these files open; true if that cannot be determined."""
    handles = "/proc/%s/fd" % pid
    try:
        names = os.listdir(handles)
    except PermissionError:  # it belongs to another user, as with sudo
        return True
    except OSError:  # it has just ended
        return False
    for name in names:
        try:
            status = os.stat("%s/%s" % (handles, name))
        except OSError:
            continue
        if any(os.path.samestat(status, file) for file in files):
            return True
    return False


class StdinFeed:
    """The command's stdin. The number of bytes written to it is recorded, for the next connection to continue there.

    Nothing here blocks: a command that does not read must not delay its output or a signal. Only the latest connection writes
    to it: data that still arrives over an earlier one was sent again over the latest.
    """

    def __init__(self, link: ClientLink, folder: str) -> None:
        self.link = link
        self.pending = b""
        self.is_whole = False
        self.book = os.open(folder + "/fed", os.O_RDWR)
        try:
            self.pipe = os.open(folder + "/in", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # the command has ended, or has received all of it
            self.pipe = -1
        fcntl.flock(self.book, fcntl.LOCK_EX)
        _, given, *rest = os.pread(self.book, RESERVED, 0).split()
        self.given = int(given)
        self.note(b" ".join(rest))
        fcntl.flock(self.book, fcntl.LOCK_UN)
        link.send(b"a", b"%d" % self.given)

    def take(self, kind: bytes, payload: bytes) -> None:
        """Receive data from the client, or its end."""
        self.pending += payload
        self.is_whole = self.is_whole or kind == b"f"
        self.give()

    def give(self) -> None:
        """Write as much as the command accepts now."""
        # Nothing blocks while the lock is held.
        fcntl.flock(self.book, fcntl.LOCK_EX)
        try:
            if int(os.pread(self.book, RESERVED, 0).split()[0]) != os.getpid():
                self.pending = b""
                return
            self.pass_on()
        finally:
            fcntl.flock(self.book, fcntl.LOCK_UN)
        self.link.send(b"a", b"%d" % self.given)

    def pass_on(self) -> None:
        """Write as much as the command accepts now, and record the number of bytes."""
        before = len(self.pending)
        try:
            while self.pending and self.pipe >= 0:
                self.pending = self.pending[os.write(self.pipe, self.pending) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the command no longer reads
            os.close(self.pipe)
            self.pipe = -1
        if self.pipe < 0:
            self.pending = b""
        self.given += before - len(self.pending)
        end = self.is_whole and not self.pending
        if end and self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
        self.note(b"end" if end else b"")

    def note(self, end: bytes) -> None:
        """Record this process, the number of bytes written, and whether that is all; in place, as the disk may be full."""
        os.pwrite(self.book, (b"%d %d %s" % (os.getpid(), self.given, end)).ljust(RESERVED), 0)

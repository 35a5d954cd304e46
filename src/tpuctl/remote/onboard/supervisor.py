"""Runs on a worker: starts a command, once, waits for its end, and records how it ended."""

from __future__ import annotations

import fcntl
import os
import select
import time

# `signal` makes enums of all its names, which costs more than the rest of this program.
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]  # of CPython

from tpuctl.remote.onboard.group import others
from tpuctl.remote.onboard.small_files import RESERVED, is_full, is_locked, read, remove, reserve, settle, write

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

SOON, LATER = 0.004, 0.1
LOOK_AROUND = 3.0
TERM, KILL = 15, 9
# The signals for a command without a client, and for one that timed out, and the time between them.
ENDING = {b"abandoned": (2, TERM, KILL), b"late": (TERM, KILL)}
PATIENCE = 10.0
# macOS, where the sandbox has its workers, lacks it before Python 3.13. A process that has ended loses its pid there.
WAITID = getattr(os, "waitid", None)


class Prepared:
    """A job's folder under a temporary name, with all that the command needs: errors happen before the start.

    Raises `OSError`.
    """

    def __init__(self, folder: str, order: dict[str, Any]) -> None:
        parent, name = os.path.split(folder)
        self.folder, self.order = folder, order
        self.scratch = os.path.join(parent, ".%s.%s.%d" % (name, order["token"][:8].decode(), os.getpid()))
        self.feeding: int | None = None
        if order["folder"]:
            os.chdir(os.path.expanduser(order["folder"]))
        os.makedirs(parent, 0o700, exist_ok=True)
        os.mkdir(self.scratch, 0o700)
        try:
            self.fill()
        except OSError:
            remove(self.scratch)
            raise

    def fill(self) -> None:
        """Create all files that the command needs."""
        order = self.order
        for file, text in (("about", order["about"]), ("token", order["token"]), ("out", b""), ("attached", b"")):
            write(os.path.join(self.scratch, file), text)
        for file in ("pid", "exit"):
            reserve(self.scratch, file)
        if order["detach"]:
            write(self.scratch + "/detached", b"")
        if not order["merged"]:
            write(self.scratch + "/err", b"")
        if order["stdin"]:
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
                supervise(self.folder, self.order, self.feeding)
            finally:
                os._exit(1)
        for handle in (self.lock, writer, self.feeding):
            if handle is not None:
                os.close(handle)
        return ended


def supervise(folder: str, order: dict[str, Any], feeding: int | None) -> NoReturn:
    """Run the command and record how it ended, with or without a client."""
    os.setsid()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            become_command(folder, order)
        except OSError as error:
            os.write(2, b"tpuctl: %s\n" % str(error).encode("utf-8", "replace"))
        finally:
            os._exit(126)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    # Written last: its readers may signal the group.
    settle(folder, "pid", b"%d %d" % (child, os.getpid()))
    watch = Watch(child, folder, order, began)
    # The process stays a zombie until its end is recorded, so that no other process gets its pid.
    how, number = watch.wait(feeding)
    seconds = time.monotonic() - began
    if watch.why or os.path.exists(folder + "/ending"):
        wait_for_others(child)
    words = [how, b"%d %.3f" % (number, seconds)]
    words += [watch.why] * bool(watch.why) + [b"full"] * (watch.is_full or is_full(folder))
    settle(folder, "exit", b" ".join(words))
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


def become_command(folder: str, order: dict[str, Any]) -> NoReturn:
    """Become the shell that runs the line, as sshd would start it."""
    os.setsid()
    out = os.open(folder + "/out", os.O_WRONLY | os.O_APPEND)
    err = out if order["merged"] else os.open(folder + "/err", os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(err, 2)
    # The supervisor has the FIFO open for writing, so this does not wait.
    os.dup2(os.open(folder + "/in" if order["stdin"] else os.devnull, os.O_RDONLY), 0)
    # Python ignores these, and a new program inherits that.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    environment = environment_of_login()
    environment.update(order["environment"])
    shell = os.environ.get("SHELL") or "/bin/sh"
    os.execve(shell, [os.path.basename(shell).encode(), b"-c", order["line"]], environment)


def environment_of_login() -> dict[bytes, bytes]:
    """Return the environment of the login shell: Python adds LC_CTYPE if there is no locale."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {name: value for name, found, value in (pair.partition(b"=") for pair in pairs) if found}


class Watch:
    """A running command and its limits. `why`: why it was terminated, if it was; `is_full`: its disk was full once."""

    def __init__(self, child: int, folder: str, order: dict[str, Any], began: float) -> None:
        self.child, self.folder = child, folder
        self.linger, self.limit = order["linger"], order["limit"]
        self.began = self.followed = began
        self.why = b""
        self.is_full = False
        self.signals: list[int] = []
        self.due = 0.0

    def wait(self, feeding: int | None) -> tuple[bytes, int]:
        """Wait until it has ended, and return how.

        `feeding` keeps its stdin open until the file `fed` says that all data was written.
        """
        handle = os.pidfd_open(self.child) if hasattr(os, "pidfd_open") else None
        delay = SOON
        while (end := end_of(self.child)) is None:
            if feeding is not None and b"end" in (read(self.folder + "/fed") or b""):
                os.close(feeding)
                feeding = None
            pause = self.check(time.monotonic())
            # Without a pidfd, or while its stdin is written, polling is the only way.
            idle = handle is None or feeding is not None
            delay = min(delay * 1.5, LATER) if idle else LOOK_AROUND
            select.select([] if handle is None else [handle], [], [], min(delay, pause))
        return end

    def check(self, now: float) -> float:
        """Check the limits, send the signals that are due, and return the seconds until the next check."""
        self.is_full = self.is_full or is_full(self.folder)
        if self.linger and is_locked(self.folder + "/attached"):
            self.followed = now
            if self.why == b"abandoned":  # a client has returned
                self.due = now + self.linger
        if self.why != b"late" and self.limit and now - self.began >= self.limit:
            self.terminate(b"late", now)
        elif not self.why and self.linger and now - self.followed > self.linger:
            self.terminate(b"abandoned", now)
        if self.signals and now >= self.due:
            send(self.child, self.signals.pop(0))
            self.due = now + PATIENCE
        pause = min(LOOK_AROUND, self.linger or LOOK_AROUND)
        if self.limit and self.why != b"late":
            pause = min(pause, self.began + self.limit - now)
        return max(0.0, min(pause, self.due - now) if self.signals else pause)

    def terminate(self, why: bytes, now: float) -> None:
        """Start to send the signals for this reason."""
        self.why, self.signals, self.due = why, list(ENDING[why]), now


def wait_for_others(group: int) -> None:
    """Wait until the rest of a terminated group has ended; kill it after a while."""
    for _ in range(2):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if not others(group):
                return
            time.sleep(LATER)
        send(group, KILL)


def send(group: int, number: int) -> None:
    """Send a signal to a group; processes that now belong to another user must not fail the supervisor."""
    try:
        os.killpg(group, number)
    except OSError:
        pass

"""Runs on a worker: starts the command of an order, once, and waits for its end, which it writes down."""

from __future__ import annotations

import fcntl
import os
import select
import time

# `signal` makes enums of all its names, which costs more than the rest of this program.
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]  # of CPython

from tpuctl.remote.onboard.small_files import RESERVED, is_locked, read, remove, reserve, settle, write

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

SOON, LATER = 0.004, 0.1
LOOK_AROUND = 3.0
TERM, KILL = 15, 9
# What ends a command that nobody follows any more: INT, TERM, KILL, and the time between them.
ABANDONED = (2, TERM, KILL)
PATIENCE = 10.0


class Prepared:
    """A job's folder under another name, with all in it that the command needs: what could go wrong has gone wrong here.

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
        """Make all that the command needs."""
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
            # Open for both, it can be written to from now on, and has no end before the supervisor closes it.
            self.feeding = os.open(self.scratch + "/in", os.O_RDWR)
        self.lock = os.open(self.scratch + "/lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def launch(self) -> int:
        """Start the command; return what becomes readable when it has ended.

        Raises `OSError` where the folder is there already, and `FileNotFoundError` where the order is another connection's now.
        """
        os.rename(self.scratch, self.folder)
        ended, told = os.pipe()
        if os.fork() == 0:
            os.close(ended)
            try:
                supervise(self.folder, self.order, self.feeding)
            finally:
                os._exit(1)
        for handle in (self.lock, told, self.feeding):
            if handle is not None:
                os.close(handle)
        return ended


def supervise(folder: str, order: dict[str, Any], feeding: int | None) -> NoReturn:
    """Run the command and write down how it ended, whoever follows it."""
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
    # Written last: whoever reads it may signal the group.
    settle(folder, "pid", b"%d %d" % (child, os.getpid()))
    abandoned = wait_for(child, folder, feeding, order["linger"])
    # The process is kept as a zombie until its end is written down, so that its number is nobody else's.
    status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert status is not None  # noqa: S101  # without WNOHANG there is one
    seconds = time.monotonic() - began
    if abandoned or os.path.exists(folder + "/ending"):
        wait_for_others(child)
    word = b"exit" if status.si_code == os.CLD_EXITED else b"signal"
    settle(folder, "exit", b"%s %d %.3f%s" % (word, status.si_status, seconds, b" abandoned" if abandoned else b""))
    os.waitpid(child, 0)
    os._exit(0)


def become_command(folder: str, order: dict[str, Any]) -> NoReturn:
    """Become the shell that runs the line, as sshd would start it."""
    os.setsid()
    out = os.open(folder + "/out", os.O_WRONLY | os.O_APPEND)
    err = out if order["merged"] else os.open(folder + "/err", os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(err, 2)
    # The supervisor has the FIFO open for writing, so this does not wait.
    os.dup2(os.open(folder + "/in" if order["stdin"] else os.devnull, os.O_RDONLY), 0)
    # Python ignores these, and what is ignored stays so.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    environment = environment_of_login()
    environment.update(order["environment"])
    shell = os.environ.get("SHELL") or "/bin/sh"
    os.execve(shell, [os.path.basename(shell).encode(), b"-c", order["line"]], environment)


def environment_of_login() -> dict[bytes, bytes]:
    """Return the environment as the login shell left it: Python sets LC_CTYPE where there is no locale."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {name: value for name, found, value in (pair.partition(b"=") for pair in pairs) if found}


def wait_for(child: int, folder: str, feeding: int | None, linger: float) -> bool:
    """Wait until the command has ended; return whether it was ended because nobody followed it for `linger` seconds.

    `feeding` keeps the command's stdin open until the file `fed` says that all was given.
    """
    handle = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    followed = time.monotonic()
    signals = list(ABANDONED)
    delay = SOON
    while True:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return len(signals) < len(ABANDONED)
        if feeding is not None and b"end" in (read(folder + "/fed") or b""):
            os.close(feeding)
            feeding = None
        now = time.monotonic()
        if linger and is_locked(folder + "/attached"):
            followed = now
        if linger and signals and now - followed > linger:
            os.killpg(child, signals.pop(0))
            followed = now - linger + PATIENCE
        # Without a handle on the process, or while its stdin is being fed, there is nothing to wait for but time.
        idle = handle is None or feeding is not None
        delay = min(delay * 1.5, LATER) if idle else min(LOOK_AROUND, linger or LOOK_AROUND)
        select.select([] if handle is None else [handle], [], [], delay)


def wait_for_others(group: int) -> None:
    """Wait until the rest of a group that was told to end has done so; what takes too long is killed."""
    for _ in range(2):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if not has_others(group):
                return
            time.sleep(LATER)
        os.killpg(group, KILL)


def has_others(group: int) -> bool:
    """Tell whether processes of a group still run, beside its first."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return False
    for entry in entries:
        if entry.isdigit() and int(entry) != group:
            try:
                text = read("/proc/%s/stat" % entry) or b""
            except OSError:  # it has ended this moment
                continue
            # After the name, which may hold any character: state, parent, group.
            words = text[text.rfind(b")") + 2 :].split(None, 3)
            if len(words) > 2 and int(words[2]) == group and words[0] not in {b"Z", b"X"}:
                return True
    return False

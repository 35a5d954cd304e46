"""Runs on a worker: starts the command of an order, once, and waits for its end, which it writes down."""

from __future__ import annotations

import fcntl
import os
import select
import time

# `signal` makes enums of all its names, which costs more than the rest of this program.
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]  # of CPython

from tpuctl.remote.onboard.small_files import is_locked, read, remove, write

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

SOON, LATER = 0.004, 0.1
LOOK_AROUND = 3.0
# What ends a command that nobody follows any more: INT, TERM, KILL, and the time between them.
ABANDONED = (2, 15, 9)
PATIENCE = 10.0


def launch(folder: str, order: dict[str, Any]) -> int | None:
    """Start the command, unless another connection just did; return what becomes readable when it has ended."""
    parent, name = os.path.split(folder)
    os.makedirs(parent, 0o700, exist_ok=True)
    scratch = os.path.join(parent, ".%s.%d" % (name, os.getpid()))
    os.mkdir(scratch, 0o700)
    for file, text in (("about", order["about"]), ("token", order["token"]), ("out", b""), ("attached", b"")):
        write(os.path.join(scratch, file), text)
    if not order["merged"]:
        write(scratch + "/err", b"")
    feeding = None
    if order["stdin"]:
        os.mkfifo(scratch + "/in", 0o600)
        # Open for both, it can be written to from now on, and has no end before the supervisor closes it.
        feeding = os.open(scratch + "/in", os.O_RDWR)
    lock = os.open(scratch + "/lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        os.rename(scratch, folder)
    except OSError:
        remove(scratch)
        if read(folder + "/token") != order["token"]:
            raise
        return None
    ended, told = os.pipe()
    if os.fork() == 0:
        os.close(ended)
        try:
            supervise(folder, order, feeding)
        finally:
            os._exit(1)
    for handle in (lock, told, feeding):
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
    write(folder + "/pid", b"%d %d" % (child, os.getpid()))
    abandoned = wait_for(child, folder, feeding, order["linger"])
    # The process is kept as a zombie until its end is written down, so that its number is nobody else's.
    status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert status is not None  # noqa: S101  # without WNOHANG there is one
    word = b"exit" if status.si_code == os.CLD_EXITED else b"signal"
    line = b"%s %d %.3f%s" % (word, status.si_status, time.monotonic() - began, b" abandoned" if abandoned else b"")
    write(folder + "/exit.new", line)
    os.rename(folder + "/exit.new", folder + "/exit")
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
    if order["folder"]:
        os.chdir(os.path.expanduser(order["folder"]))
    # Python ignores these, and what is ignored stays so.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    environment = dict(os.environb)
    environment.update(order["environment"])
    shell = os.environ.get("SHELL") or "/bin/sh"
    os.execve(shell, [os.path.basename(shell).encode(), b"-c", order["line"]], environment)


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
        if feeding is not None and (read(folder + "/fed") or b"").endswith(b"end"):
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
        delay = min(delay * 1.5, LATER) if idle else LOOK_AROUND
        select.select([] if handle is None else [handle], [], [], delay)

"""One ssh session with a command, what it reads and an end: nothing in it waits longer than it may, or asks anything.

Of what a worker sends no more is kept than a limit, however much and however long it sends.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.pipes import Kept, end, exchange
from tpuctl.remote.ssh import FRESH, argv

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.remote.ssh import Connection

SSH_FAILED = 255
# Of what a long command prints, and of ssh's stderr, so much of the beginning and of the end is kept.
_KEPT = 64 * 1024
# The longest answer, with all that a login prints before it.
_LONGEST_ANSWER = 4 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended. `code` is ssh's, nothing where the time was up; 255 is ssh's own failure."""

    code: int | None
    output: str
    errors: str


def run(connection: Connection, command: str, *, text: str = "", timeout: timedelta) -> Ended:
    """Run a shell line that reads `text`, and return all that it printed, also when the time is up.

    Raises `SshProgramMissingError`, and `UnexpectedAnswerError` as soon as it has printed more than 4 MiB.
    """
    process = _start(connection, command, timeout)
    output = Kept(head=_LONGEST_ANSWER, tail=0)
    return _end_of(process, text, output, timeout, most=_LONGEST_ANSWER)


def run_long(connection: Connection, command: str, *, text: str, timeout: timedelta) -> Ended:
    """Do as `run` does for what may print much: of stdout the first and the last 64 KiB are kept. stderr is ssh's alone.

    Raises `SshProgramMissingError`.
    """
    return _end_of(_start(connection, command), text, Kept(head=_KEPT, tail=_KEPT), timeout)


def _end_of(
    process: subprocess.Popen[bytes], text: str, output: Kept, timeout: timedelta, *, most: int | None = None
) -> Ended:
    errors = Kept(head=_KEPT, tail=_KEPT)
    with process:
        try:
            has_ended = exchange(process, text.encode(), output, errors, timeout, most=most)
        finally:
            end(process)
    code = _code(process.returncode) if has_ended else None
    return Ended(code, _text(output), _text(errors))


def _start(connection: Connection, command: str, patience: timedelta | None = None) -> subprocess.Popen[bytes]:
    connecting = ("-o", f"ConnectTimeout={max(1, round(patience.total_seconds()))}") if patience else ()
    words = argv(connection, (command,), options=(*FRESH, "-o", "BatchMode=yes", *connecting))
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(words, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _text(kept: Kept) -> str:
    return bytes(kept).decode(errors="replace")

"""Run one command on a worker through ssh, with a timeout and without prompts.

The output that is kept is bounded, however much a worker sends.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.pipes import Kept, end, exchange
from tpuctl.remote.ssh import FRESH, argv
from tpuctl.remote.ssh import SSH_FAILED as SSH_FAILED  # noqa: PLC0414  # imported from here too

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.remote.ssh import Connection

# How many bytes of the start and of the end are kept of a long command's output, and of ssh's stderr.
_KEPT_OUTPUT = 64 * 1024
# The longest answer, including what a login shell prints before it.
_MAX_OUTPUT = 4 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command. `code` is the exit code of ssh, None after a timeout; 255 is a failure of ssh itself."""

    code: int | None
    output: str
    errors: str


def run(connection: Connection, command: str, *, text: str = "", timeout: timedelta) -> Ended:
    """Run a shell line with `text` as stdin, and return all its output, also after a timeout.

    Raises `SshProgramMissingError`, and `UnexpectedAnswerError` once it has printed more than 4 MiB.
    """
    process = _start(connection, command, connect_timeout=timeout)
    output = Kept(head=_MAX_OUTPUT, tail=0)
    return _finish(process, text, output, timeout, most=_MAX_OUTPUT)


def run_long(connection: Connection, command: str, *, text: str, timeout: timedelta) -> Ended:
    """Run a shell line that may print much: of stdout only the first and the last 64 KiB are kept. stderr is that of ssh.

    Raises `SshProgramMissingError`.
    """
    return _finish(_start(connection, command), text, Kept(head=_KEPT_OUTPUT, tail=_KEPT_OUTPUT), timeout)


def _finish(
    process: subprocess.Popen[bytes], text: str, output: Kept, timeout: timedelta, *, most: int | None = None
) -> Ended:
    errors = Kept(head=_KEPT_OUTPUT, tail=_KEPT_OUTPUT)
    with process:
        try:
            has_ended = exchange(process, text.encode(), output, errors, timeout, most=most)
        finally:
            end(process)
    code = process.returncode
    if code < 0:  # a signal
        code = 128 - code
    texts = (bytes(kept).decode(errors="replace") for kept in (output, errors))
    return Ended(code if has_ended else None, *texts)


def _start(
    connection: Connection, command: str, *, connect_timeout: timedelta | None = None
) -> subprocess.Popen[bytes]:
    seconds = max(1, round(connect_timeout.total_seconds())) if connect_timeout else None
    connecting = ("-o", f"ConnectTimeout={seconds}") if seconds else ()
    words = argv(connection, (command,), options=(*FRESH, "-o", "BatchMode=yes", *connecting))
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(words, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error

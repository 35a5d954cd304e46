"""Shell lines that are to run once on a worker: how they get there whole, and what their end means."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.remote.session import SSH_FAILED, Ended, run_long
from tpuctl.remote.ssh import ProbeOutcome, classify

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.remote.ssh import Connection

_BEGUN = "tpuctl-set-up-begins"
_END = "# tpuctl-set-up-ends"
_TRIES = 4
_TIMED_OUT = 124
_LINES = 20

# All is read before the first line runs: a link that breaks leaves no half of it, and no line can eat the next.
_LOADER = f"""\
text=$(cat)
case $text in *"{_END}") ;; *) exit 255 ;; esac
echo; echo {_BEGUN}
exec </dev/null 2>&1
eval "$text"
"""
_CHOICE = 'command -v bash >/dev/null 2>&1 && exec bash -c "$1"; exec sh -c "$1"'


@dataclass(frozen=True, slots=True)
class SetUpResult:
    """How the lines ended on one worker: the exit code, and the last 20 lines of what they printed.

    255 is ssh's own failure, before they began or in their midst; 124 that the time was up. `tail` then ends with why.
    """

    worker: int
    code: int
    tail: str


def run_on(way: Connection, script: str, *, worker: int, node: str, timeout: timedelta) -> SetUpResult:
    """Run shell lines on one worker, by bash where there is one, else by sh.

    A session that fails before the first line is tried up to three times more; never one that has begun.
    """
    text = f"{script}\n{_END}\n"
    for _ in range(_TRIES):
        ended = run_long(way, command(worker, node), text=text, timeout=timeout)
        if not _may_be_repeated(ended):
            break
    return _result(worker, ended, timeout)


def command(worker: int, node: str) -> str:
    """Return the line that makes ready for the script, which follows on stdin."""
    environment = (f"TPUCTL_WORKER={worker}", f"TPUCTL_NODE={node}")
    return "exec " + shlex.join(["env", *environment, "sh", "-c", _CHOICE, "sh", _LOADER])


def _may_be_repeated(ended: Ended) -> bool:
    if ended.code != SSH_FAILED or _has_begun(ended):
        return False
    return classify(SSH_FAILED, ended.errors).outcome is ProbeOutcome.UNREACHABLE


def _has_begun(ended: Ended) -> bool:
    return f"{_BEGUN}\n" in ended.output


def _result(worker: int, ended: Ended, timeout: timedelta) -> SetUpResult:
    lines = ended.output.rpartition(f"{_BEGUN}\n")[2].splitlines()
    if ended.code is None:
        code, why = _TIMED_OUT, f"no end within {timeout.total_seconds():g} s"
    elif not _has_begun(ended):
        # A login shell that leaves at once ends well without having run a line.
        code, why = SSH_FAILED, classify(SSH_FAILED, ended.errors).detail or "the session ended before the set-up began"
    else:
        code, why = ended.code, classify(ended.code, ended.errors).detail if ended.code == SSH_FAILED else ""
    return SetUpResult(worker, code, "\n".join([*lines, *([why] if why else [])][-_LINES:]))

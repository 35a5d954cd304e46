"""Run the set-up script once on a worker: send it completely, and interpret its exit code."""

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

# The script is read completely before its first line runs: a broken connection never runs a half of it, and no line can
# read the next from stdin.
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
    """The exit code of the set-up on one worker, and the last 20 lines of its output.

    Code 255 means that ssh failed, 124 that the set-up timed out. The reason is then the last line of `tail`.
    """

    worker: int
    code: int
    tail: str


def run_on(way: Connection, script: str, *, worker: int, node: str, timeout: timedelta) -> SetUpResult:
    """Run shell lines on one worker, with bash if it is installed, else with sh.

    A session that fails before the first line is retried up to three times; one that has begun is never retried.
    """
    text = f"{script}\n{_END}\n"
    for _ in range(_TRIES):
        ended = run_long(way, command(worker, node), text=text, timeout=timeout)
        if ended.code != SSH_FAILED or _has_begun(ended):
            break
        if classify(SSH_FAILED, ended.errors).outcome is not ProbeOutcome.UNREACHABLE:
            break
    lines = ended.output.rpartition(f"{_BEGUN}\n")[2].splitlines()
    if ended.code is None:
        code, why = _TIMED_OUT, f"timed out after {timeout.total_seconds():g} s"
    elif not _has_begun(ended):
        # A login shell that exits at once ends with 0 and runs no line.
        code, why = SSH_FAILED, classify(SSH_FAILED, ended.errors).detail or "the session ended before the set-up began"
    else:
        code, why = ended.code, classify(ended.code, ended.errors).detail if ended.code == SSH_FAILED else ""
    return SetUpResult(worker, code, "\n".join([*lines, *([why] if why else [])][-_LINES:]))


def command(worker: int, node: str) -> str:
    """Return the command that reads the script from stdin and runs it."""
    environment = (f"TPUCTL_WORKER={worker}", f"TPUCTL_NODE={node}")
    return "exec " + shlex.join(["env", *environment, "sh", "-c", _CHOICE, "sh", _LOADER])


def _has_begun(ended: Ended) -> bool:
    return f"{_BEGUN}\n" in ended.output

"""Runs on a worker: starts programs in parallel, with a limit of time and of output. One that hangs is abandoned."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from tpuctl.ssh.agent.link import AS_ROOT

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    # The exit code of each program, None if it did not end in time, and its output.
    Outputs = Mapping[str, tuple[int | None, str]]

MOST_PRINTED = 1 << 20
MISSING_PROGRAM = 127


def as_root(words: list[str]) -> list[str]:
    """Return the words that run a program as root, if that needs no password."""
    return ["sh", "-c", AS_ROOT, "tpuctl", *words]


def own_program(call: str) -> list[str]:
    """Return the words that run this program with another last line."""
    # The text of this program, with the line that started it [channel.py].
    program: str = globals()["PROGRAM"].rstrip().rpartition(b"\n")[0].decode("utf-8")
    return [sys.executable or "python3", "-ISc", "%s\n%s\n" % (program, call)]


def run_programs(programs: Mapping[str, list[str]], seconds: float) -> dict[str, tuple[int | None, str]]:
    """Return the exit code and the output of each program; no exit code after a timeout, 127 if it could not be started."""
    return collect_output(start_programs(programs), seconds)


def start_programs(programs: Mapping[str, list[str]], **variables: str) -> dict[str, Any]:
    """Start programs with additional variables; return for each its process, or an error message."""
    null, pipe, out = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    environ = dict(os.environ, LC_ALL="C", **variables)
    started: dict[str, Any] = {}
    for name, words in programs.items():
        try:
            started[name] = subprocess.Popen(
                words, stdin=null, stdout=pipe, stderr=out, env=environ, start_new_session=True
            )
        except OSError as error:
            started[name] = str(error.strerror)
    return started


def collect_output(started: Mapping[str, Any], seconds: float) -> dict[str, tuple[int | None, str]]:
    """Read from all programs until they end."""
    until = time.monotonic() + seconds
    printed = dict.fromkeys(started, b"")
    waiting = {one.stdout.fileno(): name for name, one in started.items() if not isinstance(one, str)}
    while waiting and time.monotonic() < until:
        for file in select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))[0]:
            name = waiting[file]
            data = os.read(file, 1 << 16)
            printed[name] += data
            if not data or len(printed[name]) > MOST_PRINTED:
                del waiting[file]
    outputs: dict[str, tuple[int | None, str]] = {}
    for name, one in started.items():
        if isinstance(one, str):
            outputs[name] = MISSING_PROGRAM, one
            continue
        is_whole = name not in waiting.values() and len(printed[name]) <= MOST_PRINTED
        text = printed[name][:MOST_PRINTED].decode("utf-8", "replace")
        outputs[name] = end_program(one, is_whole=is_whole), text
    return outputs


def end_program(process: Any, *, is_whole: bool) -> int | None:
    """Return the exit code of a program that has closed its output; kill another one and its children.

    One that runs as root can only be abandoned; it ends with its pipe.
    """
    try:
        if is_whole:
            return int(process.wait(1))
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(1)
    except (OSError, subprocess.TimeoutExpired):
        pass
    return None

"""A command on workers, from the request to what is shown: for `run`, and for `ssh` with several workers."""

from __future__ import annotations

import fcntl
import io
import os
import shlex
import stat
import struct
import termios
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tpuctl.actions.run_diagnosis import LastWords, diagnose
from tpuctl.actions.run_report import causes, problem, to_json, warnings
from tpuctl.actions.running import Command, job_name, run_on_workers
from tpuctl.cli.keeping import keeping
from tpuctl.clock import SystemClock
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError
from tpuctl.output.streams import Streams
from tpuctl.output.terminal import Format
from tpuctl.remote.environment import EnvironmentWish, caution, variables
from tpuctl.remote.running.feeding import Source
from tpuctl.remote.running.stopping import Reason
from tpuctl.remote.running.values import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tpuctl.actions.run_diagnosis import Diagnosis
    from tpuctl.actions.running import Result
    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.remote.member import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user wants to run. `line` goes to the workers' login shells unchanged."""

    line: str
    limits: Limits = field(default_factory=Limits)
    environment: EnvironmentWish = field(default_factory=lambda: EnvironmentWish({}))
    job: str | None = None
    folder: str | None = None
    log_folder: Path | None = None
    detach: bool = False
    takes_stdin: bool = True
    passes_signals: bool = True


def line_of(words: Sequence[str]) -> str:
    """Return the shell line for the words after `--`: one word unchanged, several as an argument vector."""
    return words[0] if len(words) == 1 else shlex.join(words)


def run_on(app: App, members: Sequence[Member], wish: Wish) -> int:
    """Run a command on workers, show its output, then its results; return the exit code."""
    return show_result(app, carry_out(app, members, wish), detached=wish.detach)


def carry_out(app: App, members: Sequence[Member], wish: Wish) -> Result:
    """Run a command on workers, show its output, and return the results."""
    # Connections and commands live in real time, although the clock of the cloud may be the sandbox's.
    clock = SystemClock()
    warn_of_environment(app, wish.environment, [member.node for member in members])
    source = _stdin_source(app, members, wish)
    to_stderr = app.format in {Format.JSON, Format.YAML}
    with Streams(app.terminal, members, to_stderr=to_stderr, folder=wish.log_folder) as streams:
        tail = LastWords(streams, len(members))
        result = run_on_workers(
            members,
            Command(
                line=wish.line,
                folder=wish.folder,
                detach=wish.detach,
                source=source,
                passes_signals=wish.passes_signals,
            ),
            wish.limits,
            job=wish.job or job_name(clock.now()),
            environment=lambda member: variables(wish.environment, member.node, member.worker, member.node.workers),
            clock=clock,
            audience=tail,
            inquire=lambda member: why_gone(app, member),
            ssh_options=keeping(app),
        )
    return diagnosed(result, tail)


def warn_of_environment(app: App, wish: EnvironmentWish, nodes: Sequence[Node]) -> None:
    """Warn once, before commands run on these nodes, about an effect of their environment on TPU libraries."""
    largest = max(nodes, key=lambda node: node.workers)
    if text := caution(variables(wish, largest, 0, largest.workers), largest.workers):
        app.terminal.warn(text)


def diagnosed(result: Result, said: LastWords) -> Result:
    """Return the result with the diagnosis of the failed command's output; Ctrl-C and TERM need no diagnosis."""
    if result.stopped in {Reason.INTERRUPTED, Reason.TERMINATED}:
        return result
    return replace(result, diagnosis=diagnose(result.endings, said))


def show_result(app: App, result: Result, *, detached: bool = False) -> int:
    """Show the results of a run, failures last. Return the exit code."""
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data({**to_json(result), **({"sandbox": True} if app.is_sandbox else {})}, app.format)
    elif detached and any(ending.is_good for ending in result.endings):
        app.terminal.write(result.job)
        nodes = " ".join(dict.fromkeys(ending.member.node.name.node_id for ending in result.endings))
        if app.terminal.is_interactive:
            app.terminal.note(f"the job continues: `tpuctl logs {nodes} {result.job} -f`, `tpuctl jobs {nodes}`")
    for text in warnings(result.endings):
        app.terminal.warn(text)
    reasons = causes(result)
    if reasons and len(result.endings) == 1:
        raise reasons[0]
    for reason in reasons:
        app.show_error(reason)
    if error := problem(result):
        app.show_error(error)
        tell_diagnosis(app, result.diagnosis)
        return error.exit_code
    if result.stopped in {Reason.INTERRUPTED, Reason.TERMINATED}:
        app.terminal.note(str(result.stopped))
    return result.exit_code if result.stopped else ExitCode.OK


def tell_diagnosis(app: App, diagnosis: Diagnosis | None) -> None:
    """Show a diagnosis in one line, unless it is part of the JSON."""
    if diagnosis is not None and app.format not in {Format.JSON, Format.YAML}:
        app.terminal.note(diagnosis.line)


def why_gone(app: App, member: Member) -> str | None:
    """Return why a worker cannot be running any more according to the API; None if it may, or if the API fails."""
    from tpuctl.remote.gate import check_state  # noqa: PLC0415  # only when a connection is down

    try:
        node = app.client.find_node(member.node.name)
    except TpuctlError:
        return None
    if node is None or node.id != member.node.id:
        return "the node is gone"
    try:
        check_state(node)
    except TpuctlError as error:
        return error.message
    return None


def check_detached(app: App, options: Mapping[str, Any]) -> None:
    """Raise `InvalidInputError` for options that `--detach` excludes, and for data on stdin."""
    for name in ("batch", "fail_fast", "log_dir"):
        if options[name]:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInputError(
                f"`{flag}` needs a followed command, and `--detach` leaves it running",
                hint="leave one of them out; `tpuctl logs NODE JOB` shows the output, `tpuctl kill NODE JOB` ends the job",
            )
    found = None if options["no_stdin"] else _stdin(app)
    if found is not None and _has_something(*found):
        raise InvalidInputError(
            "a detached command cannot read stdin",
            hint="ignore stdin with `--no-stdin`; `tpuctl scp` copies a file to all workers",
        )


def _stdin_source(app: App, members: Sequence[Member], wish: Wish) -> Source | None:
    """Return stdin for the command of a single worker, which ssh passes on too; None if it reads none.

    Raises `InvalidInputError` if there is data on stdin and several workers.
    """
    found = _stdin(app) if wish.takes_stdin and not wish.detach else None
    if found is None:
        return None
    if len(members) == 1:
        return Source(found[0])
    if _has_something(*found):
        raise InvalidInputError(
            f"stdin can be passed to one worker, not to {len(members)}",
            hint="choose one with `--worker`, or ignore stdin with `--no-stdin`; `tpuctl scp` copies a file to all",
        )
    return None


def _stdin(app: App) -> tuple[int, int] | None:
    """Return descriptor and mode of stdin; None for a terminal, a device or a closed stdin."""
    streams = app.terminal.streams
    if streams.stdin_is_terminal:
        return None
    try:
        file = streams.stdin.fileno()
        mode = os.fstat(file).st_mode
    except (io.UnsupportedOperation, ValueError, OSError):  # there is none, or it is closed
        return None
    return None if stat.S_ISCHR(mode) else (file, mode)


def _has_something(file: int, mode: int) -> bool:
    if stat.S_ISREG(mode):
        return os.fstat(file).st_size > os.lseek(file, 0, os.SEEK_CUR)
    try:
        return bool(struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0\0\0\0"))[0])
    except OSError:
        return False

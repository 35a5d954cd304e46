"""`tpuctl run`: one command on many workers, at most once on each, and its results."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode
from tpuctl.remote.running.crew import Crew
from tpuctl.remote.running.hearing import Hearing
from tpuctl.remote.running.interrupts import passed_on
from tpuctl.remote.running.post import Post
from tpuctl.remote.running.stopping import Reason
from tpuctl.remote.running.values import Ending, Limits, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tpuctl.actions.run_diagnosis import Diagnosis
    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.feeding import Source
    from tpuctl.remote.running.values import Audience
    from tpuctl.remote.ssh import Connection

# Long enough for a laptop that changes networks, short enough for the next run to find the TPU free.
LINGER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line for the login shells, its working directory and its stdin; `detach`: it outlives this process.

    `passes_signals`: SIGINT and SIGTERM are forwarded to the command, and this process waits until the command has ended.
    """

    line: str
    folder: str | None = None
    detach: bool = False
    source: Source | None = None
    passes_signals: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """The result on each worker, and why the run was stopped, if it was. `diagnosis`: what its output means."""

    job: str
    endings: tuple[Ending, ...]
    stopped: Reason | None
    diagnosis: Diagnosis | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the run (docs/reference/exit-codes.md)."""
        match self.stopped:
            case Reason.INTERRUPTED:
                return ExitCode.INTERRUPTED
            case Reason.TERMINATED:
                return ExitCode.TERMINATED
            case Reason.TIMED_OUT:
                return ExitCode.TIMED_OUT
            case _:
                return ExitCode.OK if all(ending.is_good for ending in self.endings) else ExitCode.REMOTE_FAILED


def run_on_workers(
    members: Sequence[Member],
    command: Command,
    limits: Limits,
    *,
    job: str,
    environment: Callable[[Member], Mapping[str, str]],
    clock: Clock,
    audience: Audience,
    inquire: Callable[[Member], str | None],
    ssh_options: Callable[[Connection], tuple[str, ...]],
    linger: timedelta = LINGER,
) -> Result:
    """Run a command on workers.

    `inquire` returns why a node cannot be running any more, or None. `ssh_options` returns additional options of ssh for a
    connection. `linger`: how long the command continues after its last client has gone.

    Raises `SshProgramMissingError`, and the `OSError` of a sink that failed: `BrokenPipeError` if its reader has gone. The
    command has been terminated then, like a local one whose pipe closes.
    """
    sink = Hearing(audience)
    request = Order(
        job=job,
        token=secrets.token_hex(16),
        line=command.line,
        folder=command.folder,
        detach=command.detach,
        merged=command.detach,
        stdin=command.source is not None,
        linger=None if command.detach else linger,
        # This process enforces the limit of a command that it follows, counted from the beginning of the run.
        limit=limits.timeout if command.detach else None,
        about=json.dumps({"command": command.line, "detached": command.detach}),
    )
    if command.detach:
        limits = replace(limits, timeout=None)
    sessions = [
        Post(member, replace(request, environment=environment(member)), sink, options=ssh_options(member.way))
        for member in members
    ]
    with passed_on(catch=command.passes_signals) as interrupts:
        runner = Crew(
            sessions,
            limits,
            sink,
            clock,
            interrupts=interrupts,
            inquire=inquire,
            source=command.source,
            is_unheard=lambda: sink.failure is not None,
        )
        endings = runner.work()
    if sink.failure is not None:
        raise sink.failure
    return Result(job, endings, runner.stopping.reason)


def job_name(now: datetime) -> str:
    """Return a unique name for a job: the time of its start and four random letters."""
    return f"{now:%m%d-%H%M%S}-{secrets.token_hex(2)}"

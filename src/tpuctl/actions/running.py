"""`tpuctl run`: one command on many workers, each at most once, and what came of it."""

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
    """What is to run: a line for the login shells, the folder it runs in, and what it reads; `detach` outlives this process.

    `passes_signals`: SIGINT and SIGTERM are for the command, and this process goes on until that has ended.
    """

    line: str
    folder: str | None = None
    detach: bool = False
    source: Source | None = None
    passes_signals: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended everywhere, and why it was stopped, if it was. `diagnosis` is what failed commands' own words mean."""

    job: str
    endings: tuple[Ending, ...]
    stopped: Reason | None
    diagnosis: Diagnosis | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the whole (docs/reference/exit-codes.md)."""
        match self.stopped:
            case Reason.INTERRUPTED:
                return ExitCode.INTERRUPTED
            case Reason.TERMINATED:
                return ExitCode.TERMINATED
            case Reason.TIMED_OUT:
                return ExitCode.TIMED_OUT
            case _:
                return ExitCode.OK if all(ending.is_good for ending in self.endings) else ExitCode.REMOTE_FAILED


class Runner:
    """Runs commands on workers. `ssh_options` gives what else ssh is passed for a connection.

    `linger` is how long a command goes on that nobody follows any more.
    """

    def __init__(
        self,
        clock: Clock,
        audience: Audience,
        *,
        inquire: Callable[[Member], str | None],
        ssh_options: Callable[[Connection], tuple[str, ...]],
        linger: timedelta = LINGER,
    ) -> None:
        self._clock, self._hearing = clock, Hearing(audience)
        self._inquire, self._ssh_options, self._linger = inquire, ssh_options, linger

    def run(
        self,
        members: Sequence[Member],
        command: Command,
        limits: Limits,
        *,
        job: str,
        environment: Callable[[Member], Mapping[str, str]],
    ) -> Result:
        """Run a command on workers.

        Raises `SshProgramMissingError`, and the `OSError` with which the audience stopped taking output: `BrokenPipeError`
        where its reader went away. The command was then ended, as a local one is when the pipe that it writes to closes.
        """
        order = Order(
            job=job,
            token=secrets.token_hex(16),
            line=command.line,
            folder=command.folder,
            detach=command.detach,
            merged=command.detach,
            stdin=command.source is not None,
            linger=None if command.detach else self._linger,
            # Of one that we follow we see to it ourselves, and the time counts from our beginning.
            limit=limits.timeout if command.detach else None,
            about=json.dumps({"command": command.line, "detached": command.detach}),
        )
        if command.detach:
            limits = replace(limits, timeout=None)
        orders = [replace(order, environment=environment(member)) for member in members]
        return self._work(members, orders, limits, command)

    def _work(self, members: Sequence[Member], orders: Sequence[Order], limits: Limits, command: Command) -> Result:
        posts = [
            Post(member, order, self._hearing, options=self._ssh_options(member.way))
            for member, order in zip(members, orders, strict=True)
        ]
        with passed_on(catch=command.passes_signals) as interrupts:
            crew = Crew(
                posts,
                limits,
                self._hearing,
                self._clock,
                interrupts=interrupts,
                inquire=self._inquire,
                source=command.source,
                is_unheard=lambda: self._hearing.failure is not None,
            )
            endings = crew.work()
        if self._hearing.failure is not None:
            raise self._hearing.failure
        return Result(orders[0].job, endings, crew.stopping.reason)


def job_name(now: datetime) -> str:
    """Return a name for a job that no other has: when it began, and four letters of chance."""
    return f"{now:%m%d-%H%M%S}-{secrets.token_hex(2)}"

"""`tpuctl stacks`: the stacks of processes on workers: ask, parse, group workers that are at the same place, show."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.decoding import Line, Most, OneOf, Pid, Range
from tpuctl.durations import format_duration
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.output.terminal import View
from tpuctl.ssh.answers import decode_answer
from tpuctl.ssh.channel import explain_agent_errors, on_each_worker, open_agent
from tpuctl.workers.execution import label_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.device_stacks import DeviceStacks
    from tpuctl.workers.worker_jobs import JobScope

# A worker asks py-spy about each of up to 16 processes; most answer within a second.
_TIMEOUT = timedelta(seconds=90)
_MOST = 100
_MOST_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A call. `file` is empty and `line` 0 for one in the kernel."""

    function: Annotated[str, Line(300)]
    file: Annotated[str, Line(300)]
    line: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The calls of `count` threads, the innermost first."""

    name: Annotated[str, Line(300)]
    count: Pid
    frames: Annotated[tuple[StackFrame, ...], Most(_MOST)]


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """A process and its threads. Two are equal if they are at the same place: how they were started does not count.

    `source`: `py-spy`, `faulthandler` or `kernel`. `note`: why a better source was of no use.
    """

    source: Annotated[str, OneOf(("py-spy", "faulthandler", "kernel"))]
    threads: Annotated[tuple[ThreadStack, ...], Most(_MOST)]
    pid: Pid = field(compare=False)
    user: Annotated[str, Line(100)] = field(compare=False)
    age: timedelta = field(compare=False)
    command: str = field(compare=False)
    has_spy: bool = field(compare=False)
    note: Annotated[str, Line(300)] = field(compare=False)


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    """What a worker reports. `processes_hidden`: number of processes that cannot be examined without root.

    `has_job`: the worker has the job that was asked for.
    """

    target: Target
    processes: Annotated[tuple[ProcessStacks, ...], Most(_MOST_PROCESSES)]
    processes_hidden: Annotated[int, Range(0, 2**22)] = field(metadata={"key": "hidden"})
    is_root: bool
    has_job: bool = field(metadata={"key": "found"})

    @property
    def hidden(self) -> int:
        """The number of processes that were not examined."""
        return 0 if self.is_root else self.processes_hidden


@dataclass(frozen=True, slots=True)
class StackListing:
    """What the workers report, and why others did not."""

    scope: JobScope
    workers: tuple[WorkerStacks, ...]
    errors: Sequence[TpuctlError]

    @property
    def groups(self) -> list[list[WorkerStacks]]:
        """The workers whose processes are at the same place, the largest group first, those without processes last."""
        found: dict[tuple[ProcessStacks, ...], list[WorkerStacks]] = {}
        for worker in self.workers:
            found.setdefault(worker.processes, []).append(worker)
        return sorted(found.values(), key=lambda group: (not group[0].processes, -len(group)))

    @property
    def notes(self) -> Iterator[str]:
        """What the user has to know beside the stacks."""
        nodes = self.scope.nodes
        processes = [one for worker in self.workers for one in worker.processes]
        if not processes and not self.errors:
            yield f"no process holds the TPU of `{nodes}`; name a job: `--job JOB`"
        if any(not one.has_spy for one in processes):
            yield f"for Python stacks install py-spy: `tpuctl run {nodes} -- 'python3 -m pip install py-spy'`"
        yield from dict.fromkeys(one.note for one in processes if one.note)
        if blind := [one.target.label for one in self.workers if one.hidden]:
            yield f"cannot examine processes of other users on worker {label_ranges(blind)}: `sudo -n` does not work there"


def list_stacks(scope: JobScope, *, signal: int | None) -> StackListing:
    """Ask all workers for the stacks of what holds their TPU, or of the job of the scope.

    `signal`: that for which the programs have registered `faulthandler`. Raises `SshProgramMissingError`, and `NotFoundError`
    if no worker has a process of the job.
    """
    request = {"job": scope.job, "signal": signal}

    def ask(target: Target) -> WorkerStacks:
        shared = scope.ssh_options(target.connection)
        with open_agent(target, "process_stacks", request, shared=shared, as_root=True) as channel:
            return decode_answer(WorkerStacks, channel.read(_TIMEOUT), target=target)

    outcomes = on_each_worker(ask, scope.targets)
    errors = explain_agent_errors(one.error for one in outcomes if one.error is not None)
    workers = tuple(one.get() for one in outcomes if one.error is None)
    if scope.job is not None and not errors and not any(one.has_job for one in workers):
        text = f"no process of job `{scope.job}` runs on `{scope.nodes}`"
        raise NotFoundError(text, hint=f"list the jobs: `tpuctl jobs {scope.nodes}`")
    return StackListing(scope, workers, errors)


def stacks_view(listing: StackListing, devices: DeviceStacks | None = None) -> View:
    """Return the view of the stacks, below what the cores run."""

    def show(terminal: Terminal) -> None:
        for text in stack_lines(listing, devices):
            terminal.write(text)

    of_devices = {"devices": devices.to_json()} if devices else {}
    return View(value=lambda: {**_stacks_json(listing), **of_devices}, text=show)


def stack_lines(listing: StackListing, devices: DeviceStacks | None = None) -> Iterator[str]:
    """Yield the lines for people: each place once, with the workers that are there, below what the cores run."""
    yield from devices.lines if devices else ()
    total = len(listing.workers)
    for group in listing.groups:
        first = group[0]
        where = f"worker {label_ranges([one.target.label for one in group])} ({len(group)} of {total})"
        if not first.processes:
            yield f"{where}: no process"
        for process in first.processes:
            yield (
                f"{where}, by {process.source}: {process.command} (pid {process.pid} on worker {first.target.label}, "
                f"for {format_duration(process.age)})"
            )
            for thread in process.threads:
                yield f"  {thread.name}" + (f" ({thread.count} threads)" if thread.count > 1 else "")
                for frame in thread.frames:
                    yield f"    {frame.function}" + (f" ({frame.file}:{frame.line})" if frame.file else "")


def _stacks_json(listing: StackListing) -> dict[str, Any]:
    """Return the form for scripts. A place is a group of workers; pids and ages are those of each worker."""
    return {
        "groups": [
            {
                "workers": [
                    {
                        "nodeId": one.target.node.name.node_id,
                        "zone": one.target.node.name.zone,
                        "worker": one.target.worker,
                        "processes": [
                            {
                                "pid": process.pid,
                                "user": process.user,
                                "ageSeconds": round(process.age.total_seconds()),
                                "command": process.command,
                                "note": process.note or None,
                            }
                            for process in one.processes
                        ],
                    }
                    for one in group
                ],
                "stacks": [
                    {
                        "source": process.source,
                        "threads": [
                            {
                                "name": thread.name,
                                "count": thread.count,
                                "frames": [
                                    {"function": one.function, "file": one.file or None, "line": one.line or None}
                                    for one in thread.frames
                                ],
                            }
                            for thread in process.threads
                        ],
                    }
                    for process in group[0].processes
                ],
            }
            for group in listing.groups
        ],
        "errors": [error.message for error in listing.errors],
    }

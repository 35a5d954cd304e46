"""`tpuctl unstick`: the processes that hold the TPU of each worker, their termination, what is still wrong, its display."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration
from tpuctl.errors import AccessError, BrokenNodeError, ConflictError, RemoteCommandError, TpuctlError
from tpuctl.nodes.usage import NodeUse, UseKind, WorkerUse, describe_worker_uses
from tpuctl.output.terminal import Cell, View
from tpuctl.ssh.answers import UnexpectedAnswerError
from tpuctl.ssh.channel import AgentError, explain_agent_errors, on_each_worker
from tpuctl.ssh.tpu_holders import HolderProcess, HoldersFound, end_holders, fetch_holders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.connection import Target


@dataclass(frozen=True, slots=True)
class HolderReport:
    """A worker, its first report or why there is none, and its report after the termination, if there was one.

    `only` is the pid of the one process that may be terminated; None: all that hold the TPU. Younger ones than `min_age` are
    left alone.
    """

    target: Target
    before: HoldersFound | TpuctlError
    after: HoldersFound | TpuctlError | None = None
    only: int | None = None
    min_age: timedelta = timedelta()

    @property
    def holders(self) -> tuple[HolderProcess, ...]:
        """The processes of the first report."""
        return self.before.holders if isinstance(self.before, HoldersFound) else ()

    @property
    def to_end(self) -> tuple[HolderProcess, ...]:
        """The processes to terminate: those that hold the TPU and are not protected."""
        return tuple(one for one in self.named if one.age >= self.min_age and not one.is_protected)

    @property
    def named(self) -> tuple[HolderProcess, ...]:
        """The processes that hold the TPU, or of these the one that the user named."""
        return tuple(one for one in self.holders if one.holds and self.only in {None, one.pid})

    @property
    def has_lock_file(self) -> bool:
        """Whether there is a lock file."""
        return isinstance(self.before, HoldersFound) and self.before.lock_file is not None

    @property
    def is_stuck(self) -> bool:
        """Whether there is a process to terminate or a lock file to remove."""
        return bool(self.to_end) or (self.has_lock_file and self.only is None)

    @property
    def lock_outcome(self) -> str | None:
        """What happened to the lock file, None if nothing was tried."""
        return self.after.lock_outcome if isinstance(self.after, HoldersFound) else None

    def outcome(self, holder: HolderProcess) -> str | None:
        """Return what happened to a process, None if nothing was tried."""
        return self.after.outcomes.get((holder.pid, holder.start)) if isinstance(self.after, HoldersFound) else None


# The clocks of this machine and of a worker may differ by this.
_CLOCK_TOLERANCE = timedelta(seconds=5)


def find_holders(
    targets: Sequence[Target], *, only: int | None = None, started_before: datetime | None = None
) -> list[HolderReport]:
    """Ask all workers what holds their TPU, in parallel. Later processes than `started_before` are not terminated."""
    answers = on_each_worker(fetch_holders, targets)
    min_age = timedelta()
    if started_before is not None:
        min_age = max(min_age, SystemClock().now() - started_before - _CLOCK_TOLERANCE)
    return [HolderReport(one.item, one.error or one.get(), only=only, min_age=min_age) for one in answers]


def holders_use(node: Node, reports: Sequence[HolderReport]) -> NodeUse:
    """Return what would be terminated as the use of a node; a worker without a report makes the rest unknown."""
    uses = (
        (report.target.worker, WorkerUse(UseKind.PROCESS, one.name, one.command, one.user, one.age))
        for report in reports
        for one in report.to_end
    )
    silent = ", ".join(report.target.label for report in reports if not isinstance(report.before, HoldersFound))
    unknown = f"worker {silent} did not report what holds its TPU" if silent else None
    return NodeUse(describe_worker_uses(uses, node.workers), unknown)


def release_question(node_id: str, reports: Sequence[HolderReport]) -> str:
    """Return the question to confirm before anything is terminated."""
    count = sum(len(report.to_end) for report in reports)
    locks = sum(report.has_lock_file for report in reports)
    files = "the lock file" if locks == 1 else "the lock files"
    if not count:
        return f"remove {files} of `{node_id}`?"
    workers = sum(bool(report.to_end) for report in reports)
    where = "a worker" if workers == 1 else f"{workers} workers"
    what = "the process" if count == 1 else f"the {count} processes"
    return f"terminate {what} on {where} of `{node_id}`{f', and remove {files}' if locks else ''}?"


def release_tpu(reports: Sequence[HolderReport], *, grace: timedelta) -> list[HolderReport]:
    """Terminate the processes that hold the TPU, on all workers in parallel, and remove lock files without a holder."""

    def release(report: HolderReport) -> HoldersFound:
        return end_holders(report.target, report.to_end, grace=grace)

    answers = on_each_worker(release, [report for report in reports if report.is_stuck])
    after = {one.item.target.worker: one.error or one.get() for one in answers}
    return [replace(report, after=after.get(report.target.worker)) for report in reports]


def release_notes(node_id: str, reports: Sequence[HolderReport]) -> Iterator[str]:
    """Yield one line for each action, for each process left alone, and for what cannot be examined."""
    blind = []
    for report in reports:
        if isinstance(report.before, HoldersFound) and report.before.hidden and not report.before.is_root:
            blind.append(report.target.label)
        for holder in report.holders:
            who, outcome = f"{holder.pid} {holder.name} on worker {report.target.label}", report.outcome(holder)
            if outcome == "ended":
                yield f"terminated {who}"
            elif outcome == "killed":
                yield f"killed {who}: it ignored TERM"
            elif holder.holds and holder.is_protected:
                yield f"left {who} alone: a system process"
            elif holder in report.named and holder.age < report.min_age:
                yield f"left {who} alone: it started later"
        if report.lock_outcome == "removed":
            yield f"removed the lock file on worker {report.target.label}"
    if blind:
        yield f"cannot examine processes of other users on worker {', '.join(blind)}: `sudo -n` does not work there"
    examined = [report.before for report in reports if isinstance(report.before, HoldersFound)]
    if examined and all(seen.is_free for seen in examined):
        yield f"no {'visible ' if blind else ''}process holds the TPU of `{node_id}`"


def release_errors(node_id: str, reports: Sequence[HolderReport]) -> list[TpuctlError]:
    """Return what is still wrong, one error for each kind of problem, with the workers that have it."""
    young = [(report, one) for report in reports for one in report.named if one.age < report.min_age]
    if not any(report.to_end for report in reports) and (only := next((report.only for report in reports), None)):
        what = (
            f"{_describe_holders(young)} started later"
            if young
            else f"process {only} does not hold the TPU of `{node_id}`"
        )
        hint = f"list what holds it: `tpuctl unstick {node_id} --dry-run`; no process was terminated"
        return [ConflictError(what, hint=hint), *_no_answer_errors(node_id, reports)]
    reboot = f"reboot all workers: `tpuctl reset {node_id} --mode reboot`"
    found: list[TpuctlError] = []
    if refused := _holders_with_outcome(reports, "refused"):
        hint = "log in as their owner with `--user`, or allow this login to use sudo without a password"
        found.append(AccessError(f"no permission to terminate, and `sudo -n` does not work: {refused}", hint=hint))
    if locks := _locks_with_outcome(reports, "refused"):
        found.append(AccessError(f"no permission to remove the lock file: {locks}", hint=reboot))
    if survivors := _holders_with_outcome(reports, "survives"):
        found.append(BrokenNodeError(f"no signal terminates {survivors}", hint=reboot))
    if returned := _describe_holders(_new_holders(reports)):
        hint = "end what starts it: a service, a container's restart policy, or a loop in a shell"
        found.append(ConflictError(f"the TPU is held again, by {returned}", hint=hint))
    if locks := _locks_with_outcome(reports, "held"):
        hint = f"check again: `tpuctl unstick {node_id} --dry-run`"
        found.append(ConflictError(f"the lock file is held, and was not removed: {locks}", hint=hint))
    return [*found, *_no_answer_errors(node_id, reports)]


def _holders_with_outcome(reports: Sequence[HolderReport], outcome: str) -> str:
    """Return the processes with this outcome, as they were reported last."""
    found: list[tuple[HolderReport, HolderProcess]] = []
    for report in reports:
        last = report.after.holders if isinstance(report.after, HoldersFound) else ()
        known = {(holder.pid, holder.start): holder for holder in last}
        ended = [holder for holder in report.to_end if report.outcome(holder) == outcome]
        found += [(report, known.get((holder.pid, holder.start), holder)) for holder in ended]
    return _describe_holders(found)


def _new_holders(reports: Sequence[HolderReport]) -> Iterator[tuple[HolderReport, HolderProcess]]:
    """Yield the processes that hold the TPU after the termination, and did not before."""
    for report in reports:
        known = {(holder.pid, holder.start) for holder in report.holders}
        for holder in report.after.holders if isinstance(report.after, HoldersFound) else ():
            if holder.holds and (holder.pid, holder.start) not in known:
                yield report, holder


def _describe_holders(named: Iterable[tuple[HolderReport, HolderProcess]]) -> str:
    return ", ".join(
        f"{holder.pid} {holder.name} of {holder.user} on worker {report.target.label}"
        + (" (blocked inside the kernel)" if holder.state == "D" else "")
        for report, holder in named
    )


def _locks_with_outcome(reports: Sequence[HolderReport], outcome: str) -> str:
    """Return the workers whose lock file had this outcome, without those where a surviving process explains it."""
    return ", ".join(
        f"worker {report.target.label}"
        for report in reports
        if report.lock_outcome == outcome
        and not {"survives", "refused"}.intersection(map(report.outcome, report.to_end))
        and not any(_new_holders([report]))
    )


def _no_answer_errors(node_id: str, reports: Sequence[HolderReport]) -> Iterator[TpuctlError]:
    """Yield one error for each reason why workers did not answer, at first or after the termination."""
    failed = [one.before for one in reports if isinstance(one.before, AgentError) and one.before.ssh_stderr is not None]
    yield from explain_agent_errors(failed, accepted_elsewhere=len(failed) < len(reports))
    hint = f"check again: `tpuctl unstick {node_id} --dry-run`"
    for report in reports:
        where = f"worker {report.target.label} of `{node_id}`"
        for error, what in ((report.before, "what holds its TPU"), (report.after, "the result of the termination")):
            if isinstance(error, UnexpectedAnswerError):
                yield error.of(report.target.label, hint=hint)
            elif isinstance(error, AgentError) and error not in failed:
                yield RemoteCommandError(f"{where} did not report {what}: {error.what}", hint=hint)


def holders_view(node_id: str, reports: Sequence[HolderReport]) -> View:
    """Return the view of what holds the TPU on each worker; people see no empty list."""

    def show(terminal: Terminal) -> None:
        if rows := [row for report in reports for row in holder_rows(report)]:
            terminal.table(("WORKER", "PID", "USER", "AGE", "HOLDS", "COMMAND"), rows)

    return View(
        value=lambda: {"node": node_id, "workers": [holders_json(report) for report in reports]},
        text=show,
        names=lambda: (str(one.pid) for report in reports for one in report.to_end),
    )


def holder_rows(report: HolderReport) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each process, and one for a lock file that no known process has open."""
    label = Cell(report.target.label)
    for one in report.holders:
        where = f"[container {one.container}] " if one.container else ""
        style = "" if one.holds and not one.is_protected else "dim"
        held = ",".join([*one.devices, *(["lock file"] if one.has_lock_file else [])]) or "nothing (has loaded libtpu)"
        yield (
            label,
            Cell(str(one.pid)),
            Cell(one.user),
            _age(one.age),
            Cell(held),
            Cell(where + one.command, style=style),
        )
    lock = report.before.lock_file if isinstance(report.before, HoldersFound) else None
    if lock is not None and not any(one.has_lock_file for one in report.holders):
        yield label, Cell("-"), Cell(lock.user), _age(lock.age), Cell("lock file"), Cell(lock.path)


def holders_json(report: HolderReport) -> dict[str, Any]:
    """Return a worker, what holds its TPU, and the outcome of the termination. Ages are in seconds."""
    seen, worker = report.before, report.target.worker
    if not isinstance(seen, HoldersFound):
        return {"worker": worker, "error": _what(seen)}
    lock = seen.lock_file
    body: dict[str, Any] = {
        "worker": worker,
        "holders": [
            {
                "pid": one.pid,
                "user": one.user,
                "age": round(one.age.total_seconds()),
                "state": one.state,
                "command": one.command,
                "devices": [f"/dev/{device}" for device in one.devices],
                "lockFile": one.has_lock_file,
                "library": one.maps_library,
                "container": one.container,
                **({"outcome": outcome} if (outcome := report.outcome(one)) else {}),
            }
            for one in seen.holders
        ],
        "lockFile": {"path": lock.path, "user": lock.user, "age": round(lock.age.total_seconds())} if lock else None,
        "hiddenProcesses": 0 if seen.is_root else seen.hidden,
    }
    if lock is not None and isinstance(report.after, HoldersFound):
        body["lockFile"]["outcome"] = report.lock_outcome
    if isinstance(report.after, TpuctlError):
        body["error"] = _what(report.after)
    return body


def _what(error: TpuctlError) -> str:
    return error.what if isinstance(error, AgentError | UnexpectedAnswerError) else error.message


def _age(age: timedelta) -> Cell:
    return Cell(f"{format_duration(age)}", plain=str(round(age.total_seconds())))

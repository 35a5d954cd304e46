"""`tpuctl unstick`: the processes that hold the TPU of each worker, their termination, what is still wrong, its display."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration
from tpuctl.errors import AccessError, BrokenNodeError, ConflictError, RemoteCommandError, TpuctlError
from tpuctl.output.terminal import Cell
from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failures
from tpuctl.ssh.tpu_holders import (
    HolderProcess,
    HoldersFound,
    NoHoldersAnswer,
    end_holders,
    fetch_holders,
    on_each_target,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from tpuctl.ssh.connection import Target


@dataclass(frozen=True, slots=True)
class HolderReport:
    """A worker, its first report, and its report after the termination, if there was one.

    `only` is the pid of the one process that may be terminated; None: all that hold the TPU.
    """

    target: Target
    seen: HoldersFound | NoHoldersAnswer
    after: HoldersFound | NoHoldersAnswer | None = None
    only: int | None = None

    @property
    def to_end(self) -> tuple[HolderProcess, ...]:
        """The processes to terminate: those that hold the TPU and are not protected."""
        if isinstance(self.seen, NoHoldersAnswer):
            return ()
        holding = (holder for holder in self.seen.holders if holder.holds and not holder.is_protected)
        return tuple(holder for holder in holding if self.only in {None, holder.pid})

    @property
    def is_stuck(self) -> bool:
        """Whether there is a process to terminate or a lock file to remove."""
        has_lock_file = isinstance(self.seen, HoldersFound) and self.seen.lock_file is not None
        return bool(self.to_end) or (has_lock_file and self.only is None)

    def outcome(self, holder: HolderProcess) -> str | None:
        """Return what happened to a process, None if nothing was tried."""
        return self.after.outcomes.get((holder.pid, holder.start)) if isinstance(self.after, HoldersFound) else None


def find_holders(targets: Sequence[Target], *, only: int | None = None) -> list[HolderReport]:
    """Ask all workers what holds their TPU, in parallel."""
    reports = zip(targets, on_each_target(targets, fetch_holders), strict=True)
    return [HolderReport(target, seen, only=only) for target, seen in reports]


def release_question(node_id: str, sites: Sequence[HolderReport]) -> str:
    """Return the question to confirm before anything is terminated."""
    count = sum(len(site.to_end) for site in sites)
    locks = sum(isinstance(site.seen, HoldersFound) and site.seen.lock_file is not None for site in sites)
    files = "the lock file" if locks == 1 else "the lock files"
    if not count:
        return f"remove {files} of `{node_id}`?"
    workers = sum(bool(site.to_end) for site in sites)
    where = "a worker" if workers == 1 else f"{workers} workers"
    what = "the process" if count == 1 else f"the {count} processes"
    return f"terminate {what} on {where} of `{node_id}`{f', and remove {files}' if locks else ''}?"


def release_tpu(sites: Sequence[HolderReport], *, signal: str, grace: timedelta) -> list[HolderReport]:
    """Terminate the processes that hold the TPU, on all workers in parallel, and remove lock files without a holder."""
    stuck = {site.target.worker: site for site in sites if site.is_stuck}
    targets = [site.target for site in stuck.values()]
    reports = on_each_target(
        targets, lambda target: end_holders(target, stuck[target.worker].to_end, signal=signal, grace=grace)
    )
    after = dict(zip(stuck, reports, strict=True))
    return [replace(site, after=after.get(site.target.worker)) for site in sites]


def release_notes(node_id: str, sites: Sequence[HolderReport], *, signal: str) -> Iterator[str]:
    """Yield one line for each action, for each process left alone, and for what cannot be examined."""
    blind = []
    for site in sites:
        if isinstance(site.seen, NoHoldersAnswer):
            continue
        if site.seen.hidden and not site.seen.is_root:
            blind.append(site.target.label)
        for holder in site.seen.holders:
            who, outcome = f"{holder.pid} {holder.name} on worker {site.target.label}", site.outcome(holder)
            if outcome == "ended":
                yield f"terminated {who}"
            elif outcome == "killed":
                yield f"killed {who}: it ignored {signal}"
            elif holder.holds and holder.is_protected:
                yield f"left {who} alone: a system process"
        if isinstance(site.after, HoldersFound) and site.after.lock_outcome == "removed":
            yield f"removed the lock file on worker {site.target.label}"
    if blind:
        yield f"cannot examine processes of other users on worker {', '.join(blind)}: `sudo -n` does not work there"
    examined = [site.seen for site in sites if isinstance(site.seen, HoldersFound)]
    if examined and all(seen.is_free for seen in examined):
        yield f"no {'visible ' if blind else ''}process holds the TPU of `{node_id}`"


def release_errors(node_id: str, sites: Sequence[HolderReport]) -> list[TpuctlError]:
    """Return what is still wrong, one error for each kind of problem, with the workers that have it."""
    if (only := next((site.only for site in sites), None)) and not any(site.to_end for site in sites):
        hint = f"list what does: `tpuctl unstick {node_id} --dry-run`; no process was terminated"
        return [
            ConflictError(f"process {only} does not hold the TPU of `{node_id}`", hint=hint),
            *_no_answer_errors(node_id, sites),
        ]
    reboot = f"reboot all workers: `tpuctl reset {node_id} --mode reboot`"
    found: list[TpuctlError] = []
    if refused := _holders_with_outcome(sites, "refused"):
        hint = "log in as their owner with `--user`, or allow this login to use sudo without a password"
        found.append(AccessError(f"no permission to terminate, and `sudo -n` does not work: {refused}", hint=hint))
    if locks := _locks_with_outcome(sites, "refused"):
        found.append(AccessError(f"no permission to remove the lock file: {locks}", hint=reboot))
    if survivors := _holders_with_outcome(sites, "survives"):
        found.append(BrokenNodeError(f"no signal terminates {survivors}", hint=reboot))
    if returned := _describe_holders(_new_holders(sites)):
        hint = "end what starts it: a service, a container's restart policy, or a loop in a shell"
        found.append(ConflictError(f"the TPU is held again, by {returned}", hint=hint))
    if locks := _locks_with_outcome(sites, "held"):
        hint = f"check again: `tpuctl unstick {node_id} --dry-run`"
        found.append(ConflictError(f"the lock file is held, and was not removed: {locks}", hint=hint))
    return [*found, *_no_answer_errors(node_id, sites)]


def _holders_with_outcome(sites: Sequence[HolderReport], outcome: str) -> str:
    """Return the processes with this outcome, as they were reported last."""
    return _describe_holders(
        (
            site,
            next(
                (
                    one
                    for one in (site.after.holders if isinstance(site.after, HoldersFound) else ())
                    if (one.pid, one.start) == (holder.pid, holder.start)
                ),
                holder,
            ),
        )
        for site in sites
        for holder in site.to_end
        if site.outcome(holder) == outcome
    )


def _new_holders(sites: Sequence[HolderReport]) -> Iterator[tuple[HolderReport, HolderProcess]]:
    """Yield the processes that hold the TPU after the termination, and did not before."""
    for site in sites:
        if isinstance(site.after, HoldersFound) and isinstance(site.seen, HoldersFound):
            known = {(holder.pid, holder.start) for holder in site.seen.holders}
            for holder in site.after.holders:
                if holder.holds and (holder.pid, holder.start) not in known:
                    yield site, holder


def _describe_holders(named: Iterator[tuple[HolderReport, HolderProcess]]) -> str:
    return ", ".join(
        f"{holder.pid} {holder.name} of {holder.user} on worker {site.target.label}"
        + (" (blocked inside the kernel)" if holder.state == "D" else "")
        for site, holder in named
    )


def _locks_with_outcome(sites: Sequence[HolderReport], outcome: str) -> str:
    """Return the workers whose lock file had this outcome, without those where a surviving process explains it."""
    return ", ".join(
        f"worker {site.target.label}"
        for site in sites
        if isinstance(site.after, HoldersFound)
        and site.after.lock_outcome == outcome
        and not ({"survives", "refused"} & {*site.after.outcomes.values()})
        and not any(True for _ in _new_holders([site]))
    )


def _no_answer_errors(node_id: str, sites: Sequence[HolderReport]) -> Iterator[TpuctlError]:
    """Yield one error for each reason why workers did not answer, at first or after the termination."""
    shut_out = [
        (site.target, site.seen.ssh_stderr)
        for site in sites
        if isinstance(site.seen, NoHoldersAnswer) and site.seen.ssh_stderr is not None
    ]
    if shut_out:
        got_in = any(isinstance(site.seen, HoldersFound) for site in sites)
        yield from explain_ssh_failures(shut_out, collect_failure_context(shut_out[0][0], accepted_elsewhere=got_in))
    for site in sites:
        where, hint = f"worker {site.target.label} of `{node_id}`", f"check again: `tpuctl unstick {node_id} --dry-run`"
        for silence in (site.seen, site.after):
            if isinstance(silence, NoHoldersAnswer) and silence.error is not None:
                yield silence.error.of(site.target.label, hint=hint)
        if isinstance(site.seen, NoHoldersAnswer) and site.seen.ssh_stderr is None and site.seen.error is None:
            yield RemoteCommandError(f"{where} did not report what holds its TPU: {site.seen.why}", hint=hint)
        if isinstance(site.after, NoHoldersAnswer) and site.after.error is None:
            yield RemoteCommandError(
                f"{where} did not report the result of the termination: {site.after.why}", hint=hint
            )


HOLDER_HEADER = ("WORKER", "PID", "USER", "AGE", "HOLDS", "COMMAND")


def holder_rows(label: str, seen: HoldersFound | NoHoldersAnswer) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each process, and one for a lock file that no known process has open."""
    if isinstance(seen, NoHoldersAnswer):
        return
    for one in seen.holders:
        where = f"[container {one.container}] " if one.container else ""
        style = "" if one.holds and not one.is_protected else "dim"
        held = ",".join([*one.devices, *(["lock file"] if one.has_lock_file else [])]) or "nothing (has loaded libtpu)"
        cells = (Cell(label), Cell(str(one.pid)), Cell(one.user), _age(one.age), Cell(held))
        yield (*cells, Cell(where + one.command, style=style))
    lock = seen.lock_file
    if lock is not None and not any(one.has_lock_file for one in seen.holders):
        yield (Cell(label), Cell("-"), Cell(lock.user), _age(lock.age), Cell("lock file"), Cell(lock.path))


def holders_json(
    worker: int, seen: HoldersFound | NoHoldersAnswer, after: HoldersFound | NoHoldersAnswer | None
) -> dict[str, Any]:
    """Return a worker, what holds its TPU, and the outcome of the termination. Ages are in seconds."""
    if isinstance(seen, NoHoldersAnswer):
        return {"worker": worker, "error": seen.why}
    outcomes = after.outcomes if isinstance(after, HoldersFound) else {}
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
                **({"outcome": outcome} if (outcome := outcomes.get((one.pid, one.start))) else {}),
            }
            for one in seen.holders
        ],
        "lockFile": {"path": lock.path, "user": lock.user, "age": round(lock.age.total_seconds())} if lock else None,
        "hiddenProcesses": 0 if seen.is_root else seen.hidden,
    }
    if lock is not None and isinstance(after, HoldersFound):
        body["lockFile"]["outcome"] = after.lock_outcome
    if isinstance(after, NoHoldersAnswer):
        body["error"] = after.why
    return body


def _age(age: timedelta) -> Cell:
    return Cell(f"{format_duration(age)}", plain=str(round(age.total_seconds())))

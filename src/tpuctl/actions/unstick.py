"""`tpuctl unstick`: the processes that hold the TPU of each worker, their termination, and what is wrong afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.errors import AccessError, BrokenNodeError, ConflictError, RemoteCommandError, TpuctlError
from tpuctl.remote.failures import explain_failures, look_around
from tpuctl.remote.holders import Found, Holder, Silence, end, everywhere, look

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from tpuctl.remote.member import Member


@dataclass(frozen=True, slots=True)
class Site:
    """A worker, its first report, and its report after the termination, if there was one.

    `only` is the pid of the one process that may be terminated; None: all that hold the TPU.
    """

    member: Member
    seen: Found | Silence
    after: Found | Silence | None = None
    only: int | None = None

    @property
    def to_end(self) -> tuple[Holder, ...]:
        """The processes to terminate: those that hold the TPU and are not protected."""
        if isinstance(self.seen, Silence):
            return ()
        holding = (holder for holder in self.seen.holders if holder.holds and not holder.is_protected)
        return tuple(holder for holder in holding if self.only in {None, holder.pid})

    @property
    def is_stuck(self) -> bool:
        """Whether there is a process to terminate or a lock file to remove."""
        has_lock_file = isinstance(self.seen, Found) and self.seen.lock_file is not None
        return bool(self.to_end) or (has_lock_file and self.only is None)

    def outcome(self, holder: Holder) -> str | None:
        """Return what happened to a process, None if nothing was tried."""
        return self.after.outcomes.get((holder.pid, holder.start)) if isinstance(self.after, Found) else None


def survey(members: Sequence[Member], *, only: int | None = None) -> list[Site]:
    """Ask all workers what holds their TPU, in parallel."""
    reports = zip(members, everywhere(members, look), strict=True)
    return [Site(member, seen, only=only) for member, seen in reports]


def question(node_id: str, sites: Sequence[Site]) -> str:
    """Return the question to confirm before anything is terminated."""
    count = sum(len(site.to_end) for site in sites)
    locks = sum(isinstance(site.seen, Found) and site.seen.lock_file is not None for site in sites)
    files = "the lock file" if locks == 1 else "the lock files"
    if not count:
        return f"remove {files} of `{node_id}`?"
    workers = sum(bool(site.to_end) for site in sites)
    where = "a worker" if workers == 1 else f"{workers} workers"
    what = "the process" if count == 1 else f"the {count} processes"
    return f"terminate {what} on {where} of `{node_id}`{f', and remove {files}' if locks else ''}?"


def release(sites: Sequence[Site], *, signal: str, grace: timedelta) -> list[Site]:
    """Terminate the processes that hold the TPU, on all workers in parallel, and remove lock files without a holder."""
    stuck = {site.member.worker: site for site in sites if site.is_stuck}
    members = [site.member for site in stuck.values()]
    reports = everywhere(members, lambda member: end(member, stuck[member.worker].to_end, signal=signal, grace=grace))
    after = dict(zip(stuck, reports, strict=True))
    return [replace(site, after=after.get(site.member.worker)) for site in sites]


def notes(node_id: str, sites: Sequence[Site], *, signal: str) -> Iterator[str]:
    """Yield one line for each action, for each process left alone, and for what cannot be examined."""
    blind = []
    for site in sites:
        if isinstance(site.seen, Silence):
            continue
        if site.seen.hidden and not site.seen.is_root:
            blind.append(site.member.label)
        for holder in site.seen.holders:
            who, outcome = f"{holder.pid} {holder.name} on worker {site.member.label}", site.outcome(holder)
            if outcome == "ended":
                yield f"terminated {who}"
            elif outcome == "killed":
                yield f"killed {who}: it ignored {signal}"
            elif holder.holds and holder.is_protected:
                yield f"left {who} alone: a system process"
        if isinstance(site.after, Found) and site.after.lock_outcome == "removed":
            yield f"removed the lock file on worker {site.member.label}"
    if blind:
        yield f"cannot examine processes of other users on worker {', '.join(blind)}: `sudo -n` does not work there"
    examined = [site.seen for site in sites if isinstance(site.seen, Found)]
    if examined and all(seen.is_free for seen in examined):
        yield f"no {'visible ' if blind else ''}process holds the TPU of `{node_id}`"


def problems(node_id: str, sites: Sequence[Site]) -> list[TpuctlError]:
    """Return what is still wrong, one error for each kind of problem, with the workers that have it."""
    if (only := next((site.only for site in sites), None)) and not any(site.to_end for site in sites):
        hint = f"list what does: `tpuctl unstick {node_id} --dry-run`; no process was terminated"
        return [
            ConflictError(f"process {only} does not hold the TPU of `{node_id}`", hint=hint),
            *_silent(node_id, sites),
        ]
    reboot = f"reboot all workers: `tpuctl reset {node_id} --mode reboot`"
    found: list[TpuctlError] = []
    if refused := _named(sites, "refused"):
        hint = "log in as their owner with `--user`, or allow this login to use sudo without a password"
        found.append(AccessError(f"no permission to terminate, and `sudo -n` does not work: {refused}", hint=hint))
    if locks := _locks(sites, "refused"):
        found.append(AccessError(f"no permission to remove the lock file: {locks}", hint=reboot))
    if survivors := _named(sites, "survives"):
        found.append(BrokenNodeError(f"no signal terminates {survivors}", hint=reboot))
    if returned := _join(_new_holders(sites)):
        hint = "end what starts it: a service, a container's restart policy, or a loop in a shell"
        found.append(ConflictError(f"the TPU is held again, by {returned}", hint=hint))
    if locks := _locks(sites, "held"):
        hint = f"check again: `tpuctl unstick {node_id} --dry-run`"
        found.append(ConflictError(f"the lock file is held, and was not removed: {locks}", hint=hint))
    return [*found, *_silent(node_id, sites)]


def _named(sites: Sequence[Site], outcome: str) -> str:
    """Return the processes with this outcome, as they were reported last."""
    return _join(
        (
            site,
            next(
                (
                    one
                    for one in (site.after.holders if isinstance(site.after, Found) else ())
                    if (one.pid, one.start) == (holder.pid, holder.start)
                ),
                holder,
            ),
        )
        for site in sites
        for holder in site.to_end
        if site.outcome(holder) == outcome
    )


def _new_holders(sites: Sequence[Site]) -> Iterator[tuple[Site, Holder]]:
    """Yield the processes that hold the TPU after the termination, and did not before."""
    for site in sites:
        if isinstance(site.after, Found) and isinstance(site.seen, Found):
            known = {(holder.pid, holder.start) for holder in site.seen.holders}
            for holder in site.after.holders:
                if holder.holds and (holder.pid, holder.start) not in known:
                    yield site, holder


def _join(named: Iterator[tuple[Site, Holder]]) -> str:
    return ", ".join(
        f"{holder.pid} {holder.name} of {holder.user} on worker {site.member.label}"
        + (" (blocked inside the kernel)" if holder.state == "D" else "")
        for site, holder in named
    )


def _locks(sites: Sequence[Site], outcome: str) -> str:
    """Return the workers whose lock file had this outcome, without those where a surviving process explains it."""
    return ", ".join(
        f"worker {site.member.label}"
        for site in sites
        if isinstance(site.after, Found)
        and site.after.lock_outcome == outcome
        and not ({"survives", "refused"} & {*site.after.outcomes.values()})
        and not any(True for _ in _new_holders([site]))
    )


def _silent(node_id: str, sites: Sequence[Site]) -> Iterator[TpuctlError]:
    """Yield one error for each reason why workers did not answer, at first or after the termination."""
    shut_out = [
        (site.member, site.seen.ssh_said)
        for site in sites
        if isinstance(site.seen, Silence) and site.seen.ssh_said is not None
    ]
    if shut_out:
        got_in = any(isinstance(site.seen, Found) for site in sites)
        yield from explain_failures(shut_out, look_around(shut_out[0][0], accepted_elsewhere=got_in))
    for site in sites:
        where, hint = f"worker {site.member.label} of `{node_id}`", f"check again: `tpuctl unstick {node_id} --dry-run`"
        for silence in (site.seen, site.after):
            if isinstance(silence, Silence) and silence.error is not None:
                yield silence.error.of(site.member.label, hint=hint)
        if isinstance(site.seen, Silence) and site.seen.ssh_said is None and site.seen.error is None:
            yield RemoteCommandError(f"{where} did not report what holds its TPU: {site.seen.why}", hint=hint)
        if isinstance(site.after, Silence) and site.after.error is None:
            yield RemoteCommandError(
                f"{where} did not report the result of the termination: {site.after.why}", hint=hint
            )

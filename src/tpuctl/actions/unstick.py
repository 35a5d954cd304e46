"""`tpuctl unstick`: what holds the TPU on each worker, ending it, and what is wrong afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.errors import AccessError, BrokenNodeError, ConflictError, RemoteCommandError, TpuctlError
from tpuctl.remote import holders
from tpuctl.remote.failures import explain_failures, look_around
from tpuctl.remote.holders import Found, Holder, Silence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from tpuctl.remote.member import Member


@dataclass(frozen=True, slots=True)
class Site:
    """A worker, what it told first, and what it told after the order, if it got one."""

    member: Member
    seen: Found | Silence
    after: Found | Silence | None = None
    only: int | None = None

    @property
    def to_end(self) -> tuple[Holder, ...]:
        """Return the processes that are to be ended: those that hold the TPU, but no one who is protected.

        Where only one was named, by its process id, no other.
        """
        if isinstance(self.seen, Silence):
            return ()
        holding = (holder for holder in self.seen.holders if holder.holds and not holder.is_protected)
        return tuple(holder for holder in holding if self.only in {None, holder.pid})

    @property
    def is_stuck(self) -> bool:
        """Tell whether there is something to do here."""
        has_lock_file = isinstance(self.seen, Found) and self.seen.lock_file is not None
        return bool(self.to_end) or (has_lock_file and self.only is None)

    def outcome(self, holder: Holder) -> str | None:
        """Return what became of a process, or nothing where nothing was tried."""
        return self.after.outcomes.get((holder.pid, holder.start)) if isinstance(self.after, Found) else None


def survey(members: Sequence[Member], *, only: int | None = None) -> list[Site]:
    """Ask the workers what holds their TPU, all at once. `only` is the one process that may be ended."""
    told = zip(members, holders.everywhere(members, holders.look), strict=True)
    return [Site(member, seen, only=only) for member, seen in told]


def question(node_id: str, sites: Sequence[Site]) -> str:
    """Return what is to be asked before anything is ended."""
    count = sum(len(site.to_end) for site in sites)
    locks = sum(isinstance(site.seen, Found) and site.seen.lock_file is not None for site in sites)
    files = "the lock file" if locks == 1 else "the lock files"
    if not count:
        return f"remove {files} of `{node_id}`?"
    workers = sum(bool(site.to_end) for site in sites)
    where = "a worker" if workers == 1 else f"{workers} workers"
    what = "the process" if count == 1 else f"the {count} processes"
    return f"end {what} on {where} of `{node_id}`{f', and remove {files}' if locks else ''}?"


def release(sites: Sequence[Site], *, signal: str, grace: timedelta) -> list[Site]:
    """End what was seen to hold the TPU, on all workers at once, and remove lock files that nobody holds then."""
    stuck = {site.member.worker: site for site in sites if site.is_stuck}

    def end(member: Member) -> Found | Silence:
        return holders.end(member, stuck[member.worker].to_end, signal=signal, grace=grace)

    members = [site.member for site in stuck.values()]
    after = dict(zip(stuck, holders.everywhere(members, end), strict=True))
    return [replace(site, after=after.get(site.member.worker)) for site in sites]


def notes(node_id: str, sites: Sequence[Site], *, signal: str) -> Iterator[str]:
    """Yield what was done, what was left alone, and what could not be seen, a line for each."""
    blind = []
    for site in sites:
        if isinstance(site.seen, Silence):
            continue
        if site.seen.hidden and not site.seen.is_root:
            blind.append(site.member.label)
        for holder in site.seen.holders:
            who, outcome = f"{holder.pid} {holder.name} on worker {site.member.label}", site.outcome(holder)
            if outcome == "ended":
                yield f"ended {who}"
            elif outcome == "killed":
                yield f"killed {who}: it did not heed {signal}"
            elif holder.holds and holder.is_protected:
                yield f"left {who} alone: the machine needs it"
        if isinstance(site.after, Found) and site.after.lock_outcome == "removed":
            yield f"removed the lock file on worker {site.member.label}"
    if blind:
        yield f"processes of others cannot be seen on worker {', '.join(blind)}: `sudo -n` does not work there"
    told = [site.seen for site in sites if isinstance(site.seen, Found)]
    if told and all(seen.is_free for seen in told):
        yield f"nothing{' that can be seen' if blind else ''} holds the TPU of `{node_id}`"


def problems(node_id: str, sites: Sequence[Site]) -> list[TpuctlError]:
    """Return what is still wrong, one error for each kind, with the workers that it is about."""
    if (only := next((site.only for site in sites), None)) and not any(site.to_end for site in sites):
        hint = f"see what does: `tpuctl unstick {node_id} --dry-run`; nothing was ended"
        return [ConflictError(f"no process {only} holds the TPU of `{node_id}`", hint=hint), *_unheard(node_id, sites)]
    reboot = f"`tpuctl reset {node_id} --mode reboot` reboots all workers"
    found: list[TpuctlError] = []
    if refused := _named(sites, "refused"):
        hint = "log in as their owner with `--user`, or let this login use sudo without a password"
        found.append(AccessError(f"not yours to end, and `sudo -n` does not work: {refused}", hint=hint))
    if locks := _locks(sites, "refused"):
        found.append(AccessError(f"the lock file is not yours to remove: {locks}", hint=reboot))
    if survivors := _named(sites, "survives"):
        found.append(BrokenNodeError(f"no signal ends {survivors}", hint=reboot))
    if returned := _join(_returned(sites)):
        hint = "end what starts it: a service, a container's restart policy, or a loop in a shell"
        found.append(ConflictError(f"the TPU was taken again by {returned}", hint=hint))
    if locks := _locks(sites, "held"):
        hint = f"look again: `tpuctl unstick {node_id} --dry-run`"
        found.append(ConflictError(f"the lock file is held, and stays: {locks}", hint=hint))
    return [*found, *_unheard(node_id, sites)]


def _named(sites: Sequence[Site], outcome: str) -> str:
    return _join((site, _now(site, one)) for site in sites for one in site.to_end if site.outcome(one) == outcome)


def _now(site: Site, holder: Holder) -> Holder:
    """Return a process as it was seen last."""
    later = site.after.holders if isinstance(site.after, Found) else ()
    return next((one for one in later if (one.pid, one.start) == (holder.pid, holder.start)), holder)


def _returned(sites: Sequence[Site]) -> Iterator[tuple[Site, Holder]]:
    """Yield the processes that took the TPU after those that were ended."""
    for site in sites:
        if isinstance(site.after, Found) and isinstance(site.seen, Found):
            known = {(holder.pid, holder.start) for holder in site.seen.holders}
            for holder in site.after.holders:
                if holder.holds and (holder.pid, holder.start) not in known:
                    yield site, holder


def _join(named: Iterator[tuple[Site, Holder]]) -> str:
    return ", ".join(
        f"{holder.pid} {holder.name} of {holder.user} on worker {site.member.label}"
        + (" (it waits inside the kernel)" if holder.state == "D" else "")
        for site, holder in named
    )


def _locks(sites: Sequence[Site], outcome: str) -> str:
    """Return where the lock file met this end; not where one is named that survives and holds it."""
    return ", ".join(
        f"worker {site.member.label}"
        for site in sites
        if isinstance(site.after, Found)
        and site.after.lock_outcome == outcome
        and not ({"survives", "refused"} & {*site.after.outcomes.values()})
        and not any(True for _ in _returned([site]))
    )


def _unheard(node_id: str, sites: Sequence[Site]) -> Iterator[TpuctlError]:
    """Yield an error for each reason for which workers were not heard of, or not again."""
    shut_out = [
        (site.member, site.seen.ssh_said)
        for site in sites
        if isinstance(site.seen, Silence) and site.seen.ssh_said is not None
    ]
    if shut_out:
        got_in = any(isinstance(site.seen, Found) for site in sites)
        yield from explain_failures(shut_out, look_around(shut_out[0][0], accepted_elsewhere=got_in))
    for site in sites:
        where, hint = f"worker {site.member.label} of `{node_id}`", f"look again: `tpuctl unstick {node_id} --dry-run`"
        for silence in (site.seen, site.after):
            if isinstance(silence, Silence) and silence.error is not None:
                yield silence.error.of(site.member.label, hint=hint)
        if isinstance(site.seen, Silence) and site.seen.ssh_said is None and site.seen.error is None:
            yield RemoteCommandError(f"{where} did not tell what holds its TPU: {site.seen.why}", hint=hint)
        if isinstance(site.after, Silence) and site.after.error is None:
            yield RemoteCommandError(f"{where} did not tell what became of the order: {site.after.why}", hint=hint)

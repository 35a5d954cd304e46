"""Rules about quota of the Cloud TPU API: whether it is sufficient, and what dead records still hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.accelerators import find
from tpuctl.model.states import Tier
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.holdings import holdings
from tpuctl.preflight.quota_names import Pool, limits
from tpuctl.preflight.rules import addresses
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.holdings import Holding
    from tpuctl.preflight.quota_names import Limit

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Account:
    """One limit and what counts against it. `held` is None if the current usage is unknown."""

    limit: Limit
    unit: str
    needed: int
    held: tuple[Holding, ...] | None

    @property
    def amount(self) -> int:
        """The amount in use, as far as known."""
        return sum(holding.size for holding in self.held or ())

    @property
    def is_short(self) -> bool:
        """Return whether too little is left if everything held counts."""
        return self.limit.value is not None and self.amount + self.needed > self.limit.value

    @property
    def is_surely_short(self) -> bool:
        """Return whether too little is left even without what may not count."""
        counted = sum(holding.size for holding in self.held or () if holding.surely_counts)
        return self.limit.value is not None and counted + self.needed > self.limit.value

    @property
    def is_sure(self) -> bool:
        """Return whether the limit is known to be sufficient."""
        return self.limit.value is None or (self.held is not None and not self.is_short)

    @property
    def place(self) -> str:
        """The zone, region or project that the limit applies to."""
        return self.limit.place or "the project"


@rule("TPU401", "quota for the TPU")
def quota_is_enough(facts: Facts) -> Iterator[Found]:
    """Check that the node fits within the limits, together with existing nodes, queued resources and dead records.

    Limits of the zone and of its region both apply; each tier, and small v5e types, have limits of their own [observed]. They
    use the unit of the type's number: cores up to v4 and for v5p, chips for v5e and v6e. An error if a limit is 0 or too
    little is left. A warning for reserved capacity, which may not count, and if only stopped, waiting or deleting resources
    exceed the limit, as it is not documented whether these count. A note if no limit is shown. Limits are matched to types by
    the words of their names.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    if not wanted.creates or accelerator is None or facts.is_without_zone:
        return
    pool = Pool.of(accelerator, wanted.spec.tier)
    match facts.quotas:
        case Known():
            accounts = _accounts(facts, accelerator)
            if not accounts:
                yield _no_limit(facts, pool)
            yield from (_too_little(facts, account) for account in accounts if account.is_short)
            # If the current usage is unknown, TPU306 reports it.
            if accounts and all(account.is_sure for account in accounts):
                words = [
                    f"{account.place} has no limit"
                    if account.limit.value is None
                    else f"{account.amount + account.needed} of {account.limit.value} {account.unit} in {account.place}"
                    for account in accounts
                ]
                yield Found(
                    level=Level.OK,
                    subject=accounts[0].place,
                    text=f"the quota for {pool} is sufficient: {', '.join(words)}",
                    facts={"limits": [_facts(account) for account in accounts]},
                )
        case Absent():
            yield _no_limit(facts, pool)
        case Unknown() as unknown:
            what = "the TPU quota of the project"
            yield unread(unknown, wanted.region, what, permission="serviceusage.quotas.get", project=wanted.project)


@rule("TPU402", "quota held by dead records")
def dead_hold_quota(facts: Facts) -> Iterator[Found]:
    """Find dead records that hold the same quota: PREEMPTED and TERMINATED nodes, SUSPENDED and FAILED queued resources.

    They count until they are deleted [observed: marin#87, skypilot PR#1483]. A note; if quota is short, TPU401 names them.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    held = known(facts.held)
    if not wanted.creates or accelerator is None or held is None:
        return
    pool = Pool.of(accelerator, wanted.spec.tier)
    near = [one for one in holdings(held, wanted) if one.zone.rpartition("-")[0] == wanted.region and one.pool == pool]
    dead = [one for one in near if one.is_dead]
    if not dead:
        return
    unit, amount = accelerator.generation.unit, sum(one.size for one in dead)
    yield Found(
        level=Level.NOTE,
        subject=wanted.region,
        text=f"dead records hold {amount} {unit} of {pool} quota: {_who(dead)}",
        why="they count against the quota until they are deleted",
        remedies=tuple(Remedy(f"delete {one.label}", one.delete) for one in dead[:_SHOWN]),
        facts={
            "pool": str(pool),
            "unit": unit,
            "amount": amount,
            "records": [{"name": one.label.replace("`", ""), "state": one.state, "amount": one.size} for one in dead],
        },
    )


def _accounts(facts: Facts, accelerator: AcceleratorType) -> list[_Account]:
    wanted = facts.wanted
    pool, needed = Pool.of(accelerator, wanted.spec.tier), accelerator.size
    for spec in wanted.siblings:
        other = find(spec.accelerator_type)
        if other and Pool.of(other, spec.tier) == pool:
            needed += other.size
    held = known(facts.held)
    every = holdings(held, wanted) if held else ()
    unseen = held.unreachable if held else ()
    accounts = []
    for limit in limits(known(facts.quotas) or (), pool, wanted.zone):
        is_seen = held is not None and not any(limit.holds_in(zone) for zone in unseen)
        of_limit = tuple(one for one in every if one.pool == pool and limit.holds_in(one.zone))
        # A part of the usage can show that the limit is exceeded; only all of it shows that the limit is sufficient.
        account = _Account(limit, accelerator.generation.unit, needed, of_limit)
        if is_seen or account.is_short or limit.value is None:
            accounts.append(account)
        else:
            accounts.append(_Account(limit, accelerator.generation.unit, needed, None))
    return accounts


def _too_little(facts: Facts, account: _Account) -> Found:
    wanted, limit = facts.wanted, account.limit
    is_zero = limit.value == 0
    name = limit.name or limit.metric
    held = f", and {account.amount} are held by {_who(account.held)}" if account.held else ""
    left = max((limit.value or 0) - account.amount, 0)
    dead = [one for one in account.held or () if one.is_dead]
    is_reserved = wanted.spec.tier is Tier.RESERVED
    if is_reserved:
        why = "it is not documented whether reserved capacity counts against it"
    elif not account.is_surely_short:
        why = "it is not documented whether stopped, waiting or deleting resources count against it"
    elif is_zero:
        why = "waiting does not help: each tier and zone has its own quota, and a grant covers the zones that it names"
    else:
        why = "the service rejects what exceeds a limit of the zone or of its region; both apply"
    others = "use a zone and tier that a grant or a quota covers, or " if is_zero else ""
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={wanted.project}"
    return Found(
        level=Level.WARNING if is_reserved or not account.is_surely_short else Level.ERROR,
        subject=account.place,
        text=f"the quota `{name}` is 0 in {account.place}: the project was never given any"
        if is_zero
        else f"{account.needed} {account.unit} are needed in {account.place}, and {left} are left: "
        f"`{name}` is {limit.value}{held}",
        why=why,
        remedies=(
            *(Remedy(f"delete {one.label}, which is dead", one.delete) for one in dead[:_SHOWN]),
            Remedy(f"{others}request more of `{name}` in {account.place}: {page}"),
        ),
        facts={
            **_facts(account),
            "holders": [
                {"name": one.label.replace("`", ""), "state": one.state, "amount": one.size}
                for one in account.held or ()
            ],
        },
    )


def _no_limit(facts: Facts, pool: Pool) -> Found:
    return Found(
        level=Level.NOTE,
        subject=facts.wanted.region,
        text=f"the service shows no quota for {pool} in {facts.wanted.region}",
        why="it may be unlimited, or have another name than tpuctl expects; the service decides",
        facts={"pool": str(pool)},
    )


def _facts(account: _Account) -> dict[str, object]:
    return {
        "metric": account.limit.metric,
        "displayName": account.limit.name,
        "place": account.limit.place,
        "limit": account.limit.value,
        "held": account.amount,
        "needed": account.needed,
        "unit": account.unit,
    }


def _who(held: tuple[Holding, ...] | list[Holding]) -> str:
    most = sorted(held, key=lambda one: -one.size)
    words = [f"{one.label} ({one.state}, {one.size})" for one in most[:_SHOWN]]
    return ", ".join(words) + (f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else "")


RULES = (quota_is_enough, dead_hold_quota, addresses.addresses_are_enough, addresses.many_addresses)

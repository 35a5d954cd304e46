"""Rules about quota of the Cloud TPU API: whether there is enough, and what the dead still hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """One limit and what counts against it. `held` is nothing where what is held is not known."""

    limit: Limit
    unit: str
    needed: int
    held: tuple[Holding, ...] | None

    @property
    def amount(self) -> int:
        """What is held of it, as far as is known."""
        return sum(holding.size for holding in self.held or ())

    @property
    def is_short(self) -> bool:
        """Tell whether too little is left, if all that is held counts."""
        return self.limit.value is not None and self.amount + self.needed > self.limit.value

    @property
    def is_surely_short(self) -> bool:
        """Tell whether it is so without what is not known to count."""
        counted = sum(holding.size for holding in self.held or () if holding.surely_counts)
        return self.limit.value is not None and counted + self.needed > self.limit.value

    @property
    def is_sure(self) -> bool:
        """Tell whether it is known to be enough."""
        return self.limit.value is None or (self.held is not None and not self.is_short)

    @property
    def place(self) -> str:
        """Where it holds, in words."""
        return self.limit.place or "the project"


@rule("TPU401", "quota for the TPU")
def quota_is_enough(facts: Facts) -> Iterator[Found]:
    """Check that what is asked for, with what nodes, queued resources and dead records hold, is within the limits.

    Limits of the zone and of its region both count, and tiers and small v5e types have limits of their own [observed]. They
    count what the number of the type counts: cores up to v4 and for v5p, chips for v5e and v6e. An error where a limit is 0
    or too little is left; a warning for reserved capacity, which may not count, and where it is short only by what is stopped,
    waits or is being deleted, of which that is not documented. A note where no limit is shown. Limits are matched to types by
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
            short = [account for account in accounts if account.is_short]
            yield from (_too_little(facts, account) for account in short)
            # Where what is held is not known, TPU306 says so.
            if accounts and all(account.is_sure for account in accounts):
                yield _enough(accounts, pool)
        case Absent():
            yield _no_limit(facts, pool)
        case Unknown() as unknown:
            what = "the TPU quota of the project"
            yield unread(unknown, wanted.region, what, permission="serviceusage.quotas.get", project=wanted.project)


@rule("TPU402", "quota held by the dead")
def dead_hold_quota(facts: Facts) -> Iterator[Found]:
    """Look for dead records that hold the same quota: PREEMPTED and TERMINATED nodes, SUSPENDED and FAILED queued resources.

    They count until they are deleted [observed: marin#87, skypilot PR#1483]. A note: where quota is short TPU401 names them.
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
    pool = Pool.of(accelerator, wanted.spec.tier)
    needed = accelerator.size + sum(other.size for other in _siblings(facts, pool))
    held = known(facts.held)
    every = holdings(held, wanted) if held else ()
    unseen = held.unreachable if held else ()
    accounts = []
    for limit in limits(known(facts.quotas) or (), pool, wanted.zone):
        is_seen = held is not None and not any(limit.holds_in(zone) for zone in unseen)
        of_limit = tuple(one for one in every if one.pool == pool and limit.holds_in(one.zone))
        # What is held for sure may make it short; that it is enough takes all of it.
        account = _Account(limit, accelerator.generation.unit, needed, of_limit)
        if is_seen or account.is_short or limit.value is None:
            accounts.append(account)
        else:
            accounts.append(_Account(limit, accelerator.generation.unit, needed, None))
    return accounts


def _siblings(facts: Facts, pool: Pool) -> Iterator[AcceleratorType]:
    from tpuctl.accelerators import find  # noqa: PLC0415  # beside its use

    for spec in facts.wanted.siblings:
        accelerator = find(spec.accelerator_type)
        if accelerator and Pool.of(accelerator, spec.tier) == pool:
            yield accelerator


def _too_little(facts: Facts, account: _Account) -> Found:
    wanted, limit = facts.wanted, account.limit
    is_zero = limit.value == 0
    name = _shown(limit)
    held = f", and {account.amount} held by {_who(account.held)}" if account.held else ""
    left = max((limit.value or 0) - account.amount, 0)
    dead = [one for one in account.held or () if one.is_dead]
    is_reserved = wanted.spec.tier is Tier.RESERVED
    return Found(
        level=Level.WARNING if is_reserved or not account.is_surely_short else Level.ERROR,
        subject=account.place,
        text=f"the quota `{name}` is 0 in {account.place}: the project was never given any"
        if is_zero
        else f"{account.needed} {account.unit} are needed in {account.place}, and {left} are left: "
        f"`{name}` is {limit.value}{held}",
        why=_why(account, is_reserved=is_reserved),
        remedies=(
            *(Remedy(f"delete {one.label}, which is dead", one.delete) for one in dead[:_SHOWN]),
            *_elsewhere(account, wanted.project),
        ),
        facts={
            **_facts(account),
            "holders": [
                {"name": one.label.replace("`", ""), "state": one.state, "amount": one.size}
                for one in account.held or ()
            ],
        },
    )


def _why(account: _Account, *, is_reserved: bool) -> str:
    if is_reserved:
        return "whether reserved capacity counts against it is not documented"
    if not account.is_surely_short:
        return "whether what is stopped, waits or is being deleted counts against it is not documented"
    if account.limit.value == 0:
        return "waiting does not help: tiers and zones have quotas of their own, and a grant covers the zones that it names"
    return "the service refuses what goes beyond a limit of the zone or of its region, and both count"


def _elsewhere(account: _Account, project: str) -> Iterator[Remedy]:
    others = "take a zone and tier that a grant or a quota covers, or " if account.limit.value == 0 else ""
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
    yield Remedy(f"{others}ask for more of `{_shown(account.limit)}` in {account.place}: {page}")


def _enough(accounts: list[_Account], pool: Pool) -> Found:
    words = [
        f"{account.place} has no limit"
        if account.limit.value is None
        else f"{account.amount + account.needed} of {account.limit.value} {account.unit} in {account.place}"
        for account in accounts
    ]
    return Found(
        level=Level.OK,
        subject=accounts[0].place,
        text=f"the quota for {pool} is enough: {', '.join(words)}",
        facts={"limits": [_facts(account) for account in accounts]},
    )


def _no_limit(facts: Facts, pool: Pool) -> Found:
    return Found(
        level=Level.NOTE,
        subject=facts.wanted.region,
        text=f"the service shows no quota for {pool} in {facts.wanted.region}",
        why="what is not shown may be unlimited, or called otherwise than tpuctl expects; the service decides",
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


def _shown(limit: Limit) -> str:
    return limit.name or limit.metric


def _who(held: tuple[Holding, ...] | list[Holding]) -> str:
    most = sorted(held, key=lambda one: -one.size)
    words = [f"{one.label} ({one.state}, {one.size})" for one in most[:_SHOWN]]
    return ", ".join(words) + (f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else "")


RULES = (quota_is_enough, dead_hold_quota, addresses.addresses_are_enough, addresses.many_addresses)

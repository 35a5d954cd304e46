"""Rules about capacity: TPU quota, external addresses, reservations, and grants of free capacity."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.accelerators import find_accelerator_type, load_accelerators
from tpuctl.check.facts import Absent, Known, Unknown, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    create_or_check_command,
    delete_queued_resource_command,
    unread_result,
)
from tpuctl.check.quotas import (
    QuotaPool,
    effective_limits,
    grant_alternative,
    grant_coverage,
    grant_differences,
    held_capacity,
    matching_grants,
    nearest_grant,
)
from tpuctl.models.grants import capacity_pool
from tpuctl.models.node import Tier
from tpuctl.names import parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.check.facts import CheckFacts, WantedNode
    from tpuctl.check.quotas import EffectiveLimit, GrantCoverage, HeldCapacity
    from tpuctl.models.grants import Grant
    from tpuctl.models.project import Reservation


ADDRESS_METRIC = "IN_USE_ADDRESSES"
# The default of a region [observed: users' logs].
MANY_ADDRESSES = 8


@check_rule("TPU403", "external addresses")
def address_quota_is_enough(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the region's quota of external addresses (IN_USE_ADDRESSES) has one left for each worker.

    A warning if it has not: a slice is never created in part. It is not an error, because only observations of users show that
    workers count against this quota, and because slices were seen with fewer workers than documented. Not checked for nodes
    without external addresses.
    """
    wanted, needed = facts.wanted, _addresses_needed(facts.wanted)
    if not wanted.creates or not needed or facts.region_quotas is None or facts.is_without_zone:
        return
    match facts.region_quotas:
        case Known(quotas) if ADDRESS_METRIC in quotas:
            # The node that is replaced frees its addresses.
            freed = sum(1 for endpoint in wanted.replaces.endpoints if endpoint.external) if wanted.replaces else 0
            limit = round(quotas[ADDRESS_METRIC].limit)
            used = max(round(quotas[ADDRESS_METRIC].usage) - freed, 0)
            values = {"metric": ADDRESS_METRIC, "region": wanted.region, "limit": limit, "held": used, "needed": needed}
            if used + needed <= limit:
                text = f"{used + needed} of {limit} external addresses in {wanted.region}"
                yield RuleResult(Level.OK, wanted.region, text, facts=values)
                return
            left = max(limit - used, 0)
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={wanted.project}"
            yield RuleResult(
                Level.WARNING,
                wanted.region,
                f"{_count_addresses(needed)} needed in {wanted.region}, and {left} of {limit} are left",
                why="every worker uses one, and a slice is never created in part",
                remedies=(
                    _internal_ips_remedy(wanted),
                    Remedy(f"request more of {ADDRESS_METRIC} in {wanted.region}: {page}"),
                ),
                facts=values,
            )
        case Known() | Absent():
            text = f"{wanted.region} shows no quota of external addresses"
            values = {"metric": ADDRESS_METRIC, "region": wanted.region, "needed": needed}
            yield RuleResult(Level.NOTE, wanted.region, text, facts=values)
        case Unknown() as unknown:
            what = f"the external addresses left in {wanted.region}"
            yield unread_result(unknown, wanted.region, what, permission="compute.regions.get", project=wanted.project)


@check_rule("TPU404", "many external addresses")
def many_addresses(facts: CheckFacts) -> Iterator[RuleResult]:
    """Report nodes whose workers use eight or more external addresses: a note.

    Eight is the default of a region [observed: users' logs]; and every external address can be reached from outside.
    """
    wanted, needed = facts.wanted, _addresses_needed(facts.wanted)
    if wanted.creates and needed >= MANY_ADDRESSES:
        yield RuleResult(
            Level.NOTE,
            wanted.what.strip("`"),
            f"{_count_addresses(needed)} used, one by each worker",
            why=f"a region has {MANY_ADDRESSES} unless you request more, and every external address "
            "can be reached from outside",
            remedies=(_internal_ips_remedy(wanted),),
            facts={"needed": needed},
        )


def _internal_ips_remedy(wanted: WantedNode) -> Remedy:
    return Remedy(
        f"create it without: buckets are then reached by Private Google Access in {wanted.region}, all else by Cloud NAT",
        create_or_check_command(wanted, more=("--internal-ips",)),
    )


def _addresses_needed(wanted: WantedNode) -> int:
    """Return the number of external addresses that the new nodes use."""
    return sum(spec.workers for spec in (wanted.spec, *wanted.siblings) if not spec.internal_ips)


def _count_addresses(number: int) -> str:
    return f"{number} external address{'' if number == 1 else 'es'} {'is' if number == 1 else 'are'}"


_MAX_HOLDERS = 5


@dataclass(frozen=True, slots=True)
class _LimitUsage:
    """One limit and what counts against it. `holders` is None if the current usage is unknown."""

    limit: EffectiveLimit
    unit: str
    needed: int
    holders: tuple[HeldCapacity, ...] | None

    @property
    def amount(self) -> int:
        """The amount in use, as far as known."""
        return sum(holding.size for holding in self.holders or ())

    @property
    def is_short(self) -> bool:
        """Return whether too little is left if everything held counts."""
        return self.limit.value is not None and self.amount + self.needed > self.limit.value

    @property
    def is_surely_short(self) -> bool:
        """Return whether too little is left even without what may not count."""
        counted = sum(holding.size for holding in self.holders or () if holding.surely_counts)
        return self.limit.value is not None and counted + self.needed > self.limit.value

    @property
    def is_sure(self) -> bool:
        """Return whether the limit is known to be sufficient."""
        return self.limit.value is None or (self.holders is not None and not self.is_short)

    @property
    def place(self) -> str:
        """The zone, region or project that the limit applies to."""
        return self.limit.place or "the project"


@check_rule("TPU401", "quota for the TPU")
def quota_is_enough(facts: CheckFacts) -> Iterator[RuleResult]:
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
    pool = QuotaPool.of(accelerator, wanted.spec.tier)
    match facts.quotas:
        case Known():
            usages = _limit_usages(facts, accelerator)
            if not usages:
                yield _no_limit_result(facts, pool)
            yield from (_quota_exceeded_result(facts, usage) for usage in usages if usage.is_short)
            # If the current usage is unknown, TPU306 reports it.
            if usages and all(usage.is_sure for usage in usages):
                words = [
                    f"{usage.place} has no limit"
                    if usage.limit.value is None
                    else f"{usage.amount + usage.needed} of {usage.limit.value} {usage.unit} in {usage.place}"
                    for usage in usages
                ]
                yield RuleResult(
                    Level.OK,
                    usages[0].place,
                    f"the quota for {pool} is sufficient: {', '.join(words)}",
                    facts={"limits": [_limit_facts(usage) for usage in usages]},
                )
        case Absent():
            yield _no_limit_result(facts, pool)
        case Unknown() as unknown:
            what = "the TPU quota of the project"
            yield unread_result(
                unknown, wanted.region, what, permission="serviceusage.quotas.get", project=wanted.project
            )


@check_rule("TPU402", "quota held by dead records")
def dead_records_hold_quota(facts: CheckFacts) -> Iterator[RuleResult]:
    """Find dead records that hold the same quota: PREEMPTED and TERMINATED nodes, SUSPENDED and FAILED queued resources.

    They count until they are deleted [observed: marin#87, skypilot PR#1483]. A note; if quota is short, TPU401 names them.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    resources = value_or_none(facts.resources)
    if not wanted.creates or accelerator is None or resources is None:
        return
    pool = QuotaPool.of(accelerator, wanted.spec.tier)
    near = [
        one
        for one in held_capacity(resources, wanted)
        if one.zone.rpartition("-")[0] == wanted.region and one.pool == pool
    ]
    dead = [one for one in near if one.is_dead]
    if not dead:
        return
    unit, amount = accelerator.generation.unit, sum(one.size for one in dead)
    yield RuleResult(
        Level.NOTE,
        wanted.region,
        f"dead records hold {amount} {unit} of {pool} quota: {_holder_words(dead)}",
        why="they count against the quota until they are deleted",
        remedies=tuple(Remedy(f"delete {one.label}", one.delete) for one in dead[:_MAX_HOLDERS]),
        facts={
            "pool": str(pool),
            "unit": unit,
            "amount": amount,
            "records": [{"name": one.label.replace("`", ""), "state": one.state, "amount": one.size} for one in dead],
        },
    )


def _limit_usages(facts: CheckFacts, accelerator: AcceleratorType) -> list[_LimitUsage]:
    wanted = facts.wanted
    pool, needed = QuotaPool.of(accelerator, wanted.spec.tier), accelerator.size
    for spec in wanted.siblings:
        other = find_accelerator_type(spec.accelerator_type)
        if other and QuotaPool.of(other, spec.tier) == pool:
            needed += other.size
    resources = value_or_none(facts.resources)
    capacity = held_capacity(resources, wanted) if resources else ()
    unreachable = resources.unreachable if resources else ()
    usages = []
    for limit in effective_limits(value_or_none(facts.quotas) or (), pool, wanted.zone):
        is_known = resources is not None and not any(limit.holds_in(zone) for zone in unreachable)
        of_limit = tuple(one for one in capacity if one.pool == pool and limit.holds_in(one.zone))
        # A part of the usage can show that the limit is exceeded; only all of it shows that the limit is sufficient.
        usage = _LimitUsage(limit, accelerator.generation.unit, needed, of_limit)
        if is_known or usage.is_short or limit.value is None:
            usages.append(usage)
        else:
            usages.append(_LimitUsage(limit, accelerator.generation.unit, needed, None))
    return usages


def _quota_exceeded_result(facts: CheckFacts, usage: _LimitUsage) -> RuleResult:
    wanted, limit = facts.wanted, usage.limit
    is_zero = limit.value == 0
    name = limit.name or limit.metric
    holders = f", and {usage.amount} are held by {_holder_words(usage.holders)}" if usage.holders else ""
    left = max((limit.value or 0) - usage.amount, 0)
    dead = [one for one in usage.holders or () if one.is_dead]
    is_reserved = wanted.spec.tier is Tier.RESERVED
    if is_reserved:
        why = "it is not documented whether reserved capacity counts against it"
    elif not usage.is_surely_short:
        why = "it is not documented whether stopped, waiting or deleting resources count against it"
    elif is_zero:
        why = "waiting does not help: each tier and zone has its own quota, and a grant covers the zones that it names"
    else:
        why = "the service rejects what exceeds a limit of the zone or of its region; both apply"
    others = "use a zone and tier that a grant or a quota covers, or " if is_zero else ""
    page = f"https://console.cloud.google.com/iam-admin/quotas?project={wanted.project}"
    return RuleResult(
        Level.WARNING if is_reserved or not usage.is_surely_short else Level.ERROR,
        usage.place,
        f"the quota `{name}` is 0 in {usage.place}: the project was never given any"
        if is_zero
        else f"{usage.needed} {usage.unit} are needed in {usage.place}, and {left} are left: "
        f"`{name}` is {limit.value}{holders}",
        why=why,
        remedies=(
            *(Remedy(f"delete {one.label}, which is dead", one.delete) for one in dead[:_MAX_HOLDERS]),
            Remedy(f"{others}request more of `{name}` in {usage.place}: {page}"),
        ),
        facts={
            **_limit_facts(usage),
            "holders": [
                {"name": one.label.replace("`", ""), "state": one.state, "amount": one.size}
                for one in usage.holders or ()
            ],
        },
    )


def _no_limit_result(facts: CheckFacts, pool: QuotaPool) -> RuleResult:
    return RuleResult(
        Level.NOTE,
        facts.wanted.region,
        f"the service shows no quota for {pool} in {facts.wanted.region}",
        why="it may be unlimited, or have another name than tpuctl expects; the service decides",
        facts={"pool": str(pool)},
    )


def _limit_facts(usage: _LimitUsage) -> dict[str, object]:
    return {
        "metric": usage.limit.metric,
        "displayName": usage.limit.name,
        "place": usage.limit.place,
        "limit": usage.limit.value,
        "held": usage.amount,
        "needed": usage.needed,
        "unit": usage.unit,
    }


def _holder_words(holders: tuple[HeldCapacity, ...] | list[HeldCapacity]) -> str:
    largest = sorted(holders, key=lambda one: -one.size)
    words = [f"{one.label} ({one.state}, {one.size})" for one in largest[:_MAX_HOLDERS]]
    return ", ".join(words) + (f" and {len(holders) - _MAX_HOLDERS} more" if len(holders) > _MAX_HOLDERS else "")


# Reservation.state [API v2alpha1]: ended or failed, and not active yet.
_ENDED_STATES = frozenset({"EXPIRED", "FAILED", "DEPROVISIONING"})
_PENDING_STATES = frozenset({"APPROVED", "PROVISIONING"})


@check_rule("TPU407", "reservation for reserved capacity")
def reservation_exists(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the project has a reservation in the zone if reserved capacity is requested.

    A warning if no reservation is, or will be, active [API v2alpha1, reservations.list], if a reservation has too little left,
    or if it is not active yet. It is never an error: the list may lack reservations that another project shares (not
    documented), and a node that cannot be created costs nothing. The TPU type of a reservation is shown but not compared, as
    its format is not documented.
    """
    wanted = facts.wanted
    if not wanted.creates or wanted.spec.tier is not Tier.RESERVED or facts.reservations is None:
        return
    match facts.reservations:
        case Known(reservations):
            here = [one for one in reservations if one.zone in {wanted.zone, ""}]
            living = [one for one in here if one.raw.get("state") not in _ENDED_STATES]
            yield from (_judge_reservation(wanted, one) for one in living)
            if not living:
                names = ", ".join(f"`{one.name}` ({one.raw.get('state')})" for one in here)
                place = (f"--zone={wanted.zone}", f"--project={wanted.project}")
                listing = shlex.join(["gcloud", "alpha", "compute", "tpus", "reservations", "list", *place])
                yield RuleResult(
                    Level.WARNING,
                    wanted.zone,
                    f"the project has no {'active ' if names else ''}reservation in {wanted.zone}"
                    + (f"; ended: {names}" if names else ""),
                    why="reserved capacity needs a reservation; the list may lack one that another project shares",
                    remedies=(
                        Remedy("use another tier", create_or_check_command(wanted, tier=Tier.ON_DEMAND)),
                        Remedy("list the reservations of the zone", listing),
                    ),
                    facts={"zone": wanted.zone, "over": [one.name for one in here]},
                )
        case Absent() | Unknown() as fact:
            what = f"the reservations in {wanted.zone}"
            yield unread_result(fact, wanted.zone, what, permission="tpu.nodes.list", project=wanted.project)


def _judge_reservation(wanted: WantedNode, reservation: Reservation) -> RuleResult:
    standard, state = reservation.raw.get("standard") or {}, reservation.raw.get("state")
    unit = {"CHIPS": "chips", "CORES": "cores"}.get(str(standard.get("capacityUnits")))
    size = parse_whole_number(str(standard.get("size")))
    used = parse_whole_number(str((standard.get("usage") or {}).get("total"))) or 0
    needed, accelerator = None, wanted.accelerator
    if accelerator is not None and unit is not None:
        # Generations that count chips have one core in each, by the table.
        needed = accelerator.chips * (1 if unit == "chips" else accelerator.generation.cores_per_chip)
    doubts = [f"its state is {state}"] if state in _PENDING_STATES else []
    if size is not None and needed is not None and size - used < needed:
        doubts.append(f"{needed} {unit} are needed")
    amount = f", {used} of {size}{f' {unit}' if unit else ''} used" if size is not None else ""
    kind = f" for {standard['resourceType']}" if standard.get("resourceType") else ""
    doubt = f": {', and '.join(doubts)}" if doubts else ""
    return RuleResult(
        Level.WARNING if doubts else Level.OK,
        reservation.name,
        f"`{reservation.name}` is a reservation in {wanted.zone}{kind}{amount}{doubt}",
        why="the service answers that there is not enough reserved capacity" if doubts else None,
        remedies=(Remedy("wait until it is active, request less, or use another tier"),) if doubts else (),
        facts={"reservation": reservation.name, "zone": wanted.zone, "state": state, "size": size, "held": used},
    )


GRANT_ENDS_SOON = timedelta(days=7)


@check_rule("TPU405", "covered by a grant")
def grant_covers(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a grant in the settings (`grants`) covers the new node in addition to everything that is held.

    Zone, type, tier, count and last day are compared. Spot and preemptible are one pool; dead resources are not billed. If no
    grant covers the node, it will be billed: a warning. With `no_billing_outside_grants` it is an error, also if no grant is
    configured or the current usage of the grant is unknown. Grants are what the user has entered; the service is not asked.
    """
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    is_strict = wanted.no_billing_outside_grants
    if not wanted.creates or not (wanted.grants or is_strict):
        return
    if not wanted.grants:
        yield _no_grants_result(facts)
        return
    level = Level.ERROR if is_strict else Level.WARNING
    why = (
        "`no_billing_outside_grants` is set: nothing that is billed may be created"
        if is_strict
        else "what no grant covers is billed; `--no-billing-outside-grants` prevents that"
    )
    if accelerator is None:
        name = wanted.spec.accelerator_type
        yield RuleResult(
            level,
            wanted.zone,
            f"unknown whether a grant covers {name}: tpuctl does not know the type",
            why=why,
            facts={"acceleratorType": name, "grants": [str(grant) for grant in wanted.grants]},
        )
        return
    coverage = grant_coverage(wanted, accelerator, _known_capacity(facts), facts.now.date())
    resources = value_or_none(facts.resources)
    if not coverage.is_enough:
        yield _not_covered_result(facts, accelerator, coverage, level=level, why=why)
    elif resources is not None and wanted.zone not in resources.unreachable:
        grants = " and ".join(f"`{grant}`" for grant in coverage.grants)
        yield RuleResult(
            Level.OK,
            wanted.zone,
            f"covered by the grant {grants}: {coverage.used + coverage.needed} of {coverage.granted} chips",
            facts=_coverage_facts(coverage),
        )
    elif is_strict:
        yield RuleResult(
            Level.ERROR,
            wanted.zone,
            f"the current usage of the grant `{coverage.grants[0]}` is unknown; it may be used up",
            why=why,
            remedies=(Remedy("check again when the nodes of the project can be listed"),),
            facts=_coverage_facts(coverage),
            is_passing=True,
        )


@check_rule("TPU406", "days that a grant has left")
def grant_lasts(facts: CheckFacts) -> Iterator[RuleResult]:
    """Warn about grants for the node that end within 7 days and, for an existing node, about a grant that has ended.

    What runs after the last day is billed. A note for the zone of the TPU Research Cloud, where only holders of grants get
    capacity [reported by users; unverified].
    """
    wanted, accelerator, today = facts.wanted, facts.wanted.accelerator, facts.now.date()
    grants = matching_grants(wanted, accelerator) if accelerator else ()
    lasting = [grant for grant in grants if not grant.has_ended(today)]
    ending = [grant for grant in lasting if grant.until and grant.until - today <= GRANT_ENDS_SOON]
    for grant in ending if len(ending) == len(lasting) else ():
        days = (grant.until - today).days if grant.until else 0
        when = "today" if days == 0 else f"in {days} day{'' if days == 1 else 's'}"
        yield RuleResult(
            Level.WARNING,
            grant.zone,
            f"the grant `{grant}` ends {when}",
            why="what runs after its last day is billed",
            remedies=(Remedy(f"delete the node by the end of {grant.until}, or ask for a longer grant"),),
            facts={"grant": str(grant), "until": str(grant.until), "days": days},
        )
    if grants and not lasting and not wanted.creates:
        last = max(grants, key=lambda grant: grant.until or today)
        command = (
            delete_queued_resource_command(wanted.project, wanted.zone, wanted.name.node_id) if wanted.name else None
        )
        yield RuleResult(
            Level.WARNING,
            last.zone,
            f"the grant `{last}` has ended; {wanted.what} is billed since then",
            why="what runs after the last day of a grant is billed",
            remedies=(Remedy("delete it if you no longer need it", command),),
            facts={"grant": str(last), "until": str(last.until)},
        )
    if wanted.creates and wanted.zone == load_accelerators().research_zone:
        yield RuleResult(
            Level.NOTE,
            wanted.zone,
            f"{wanted.zone} is for grants of the TPU Research Cloud",
            why="its quota exists while a grant lasts, and is removed afterwards",
            facts={"zone": wanted.zone, "isGranted": bool(lasting)},
        )


def _no_grants_result(facts: CheckFacts) -> RuleResult:
    wanted, accelerator = facts.wanted, facts.wanted.accelerator
    kind = accelerator.generation.name if accelerator else wanted.spec.accelerator_type
    # Only the holder knows count and last day.
    grant = f"zone={wanted.zone},type={kind},tier={wanted.spec.tier or Tier.ON_DEMAND},count=COUNT,until=DATE"
    return RuleResult(
        Level.ERROR,
        wanted.zone,
        "`no_billing_outside_grants` is set, but no grants are configured: nothing may be created",
        why="everything created without a grant is billed",
        remedies=(
            Remedy(
                f"if you have a grant, add it to your own settings with `tpuctl config set grants '{grant}'`, with the chips "
                "and the last day of the grant; this replaces the configured grants"
            ),
            Remedy(
                "or turn it off where it was set: a flag, the environment (`TPUCTL_NO_BILLING_OUTSIDE_GRANTS`) or a file; "
                "`tpuctl config show` says where"
            ),
        ),
        facts={"grants": []},
    )


def _not_covered_result(
    facts: CheckFacts, accelerator: AcceleratorType, coverage: GrantCoverage, *, level: Level, why: str
) -> RuleResult:
    wanted, today = facts.wanted, facts.now.date()
    grant = coverage.grants[0] if coverage.grants else nearest_grant(wanted, accelerator, today)
    reasons = list(grant_differences(grant, wanted, accelerator)) if grant else []
    if grant and grant.has_ended(today):
        reasons.append(f"it ended on {grant.until}")
    if coverage.grants:
        reasons.append(
            f"{coverage.needed} chips are needed, and {coverage.left} of {coverage.granted} are left"
            + (f" ({coverage.used} are in use)" if coverage.used else "")
        )
    return RuleResult(
        level,
        wanted.zone,
        f"no grant covers {wanted.what}: it will be billed"
        + (f"; the nearest is `{grant}`: {', '.join(reasons)}" if grant else ""),
        why=why,
        remedies=tuple(_grant_remedies(facts, accelerator, grant)) if grant else (),
        facts={**_coverage_facts(coverage), "nearest": str(grant) if grant else None, "differences": reasons},
    )


def _grant_remedies(facts: CheckFacts, accelerator: AcceleratorType, grant: Grant) -> Iterator[Remedy]:
    """Yield what the grant would cover. If that is this very node, only its siblings exceed the grant."""
    wanted = facts.wanted
    free = grant_alternative(grant, accelerator, _known_capacity(facts), facts.now.date())
    if free is None:
        return
    tier = capacity_pool(wanted.spec.tier)
    if (free.zone, free.accelerator_type, capacity_pool(free.tier)) == (wanted.zone, accelerator.name, tier):
        if wanted.siblings:
            count = 1 + len(wanted.siblings)
            yield Remedy(f"the grant covers this node alone, not all {count} of the command: create fewer at once")
        return
    command = create_or_check_command(wanted, zone=free.zone, accelerator_type=free.accelerator_type, tier=free.tier)
    article = "an" if free.tier is Tier.ON_DEMAND else "a"
    yield Remedy(f"covered by that grant: {article} {free.tier} {free.accelerator_type} in {free.zone}", command)


def _known_capacity(facts: CheckFacts) -> tuple[HeldCapacity, ...]:
    resources = value_or_none(facts.resources)
    return held_capacity(resources, facts.wanted) if resources else ()


def _coverage_facts(coverage: GrantCoverage) -> dict[str, object]:
    return {
        "grants": [str(grant) for grant in coverage.grants],
        "grantedChips": coverage.granted,
        "heldChips": coverage.used,
        "neededChips": coverage.needed,
    }


QUOTA_RULES = (quota_is_enough, dead_records_hold_quota, address_quota_is_enough, many_addresses)
GRANT_RULES = (grant_covers, grant_lasts, reservation_exists)

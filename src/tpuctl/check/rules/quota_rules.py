"""Rules about capacity: TPU quota, external addresses, reservations, grants of free capacity, price limit and budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tpuctl.accelerators import AcceleratorType, load_accelerators
from tpuctl.check.facts import Absent, CheckFacts, Fact, Known, ProjectResources, Unknown, WantedNode, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    clean_up_command,
    create_or_check_command,
    delete_queued_resource_command,
    error,
    gcloud_command,
    note,
    some_of,
    tpuctl_command,
    unread_result,
    warning,
)
from tpuctl.check.quotas import (
    GrantCoverage,
    HeldCapacity,
    LimitUsage,
    QuotaPool,
    grant_alternative,
    grant_coverage,
    grant_differences,
    held_capacity,
    limit_usages,
    matching_grants,
    nearest_grant,
)
from tpuctl.command_text import quote_word
from tpuctl.models.billing import billed_tier, bills_or_will, covering_grants
from tpuctl.models.grants import Grant, capacity_pool
from tpuctl.models.node import Tier
from tpuctl.models.project import Reservation
from tpuctl.names import region_of_zone
from tpuctl.prices import Price, budget_words, within_budget

ADDRESS_METRIC = "IN_USE_ADDRESSES"
# The default of a region [observed: users' logs].
MANY_ADDRESSES = 8
GRANT_ENDS_SOON = timedelta(days=7)
_MAX_HOLDERS = 5


@check_rule("TPU403", "external addresses")
def address_quota_is_enough(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the region's quota of external addresses (IN_USE_ADDRESSES) has one left for each worker.

    A warning if it has not: a slice is never created in part. It is not an error, because only observations of users show that
    workers count against this quota, and because slices were seen with fewer workers than documented. Not checked for nodes
    without external addresses.
    """
    wanted, needed, region = facts.wanted, _addresses_needed(facts.wanted), facts.wanted.region
    if not wanted.creates or not needed or facts.region_quotas is None or facts.is_without_zone:
        return
    values: dict[str, Any] = {"metric": ADDRESS_METRIC, "region": region}
    match facts.region_quotas:
        case Known(quotas) if ADDRESS_METRIC in quotas:
            # The node that is replaced frees its addresses.
            freed = sum(1 for endpoint in wanted.replaces.endpoints if endpoint.external) if wanted.replaces else 0
            limit = round(quotas[ADDRESS_METRIC].limit)
            used = max(round(quotas[ADDRESS_METRIC].usage) - freed, 0)
            values |= {"limit": limit, "held": used, "needed": needed}
            if used + needed <= limit:
                return
            left = f"{max(limit - used, 0)} of {limit} are left"
            yield warning(
                region,
                f"{_count_addresses(needed)} needed in {region}, and {left}",
                _internal_ips_remedy(wanted),
                f"request more of {ADDRESS_METRIC} in {region}: {_quota_page(wanted)}",
                why="every worker uses one, and a slice is never created in part",
                facts=values,
            )
        case Known() | Absent():
            text = f"{region} shows no quota of external addresses"
            yield note(region, text, facts=values | {"needed": needed})
        case Unknown() as fact:
            what, permission = f"the external addresses left in {region}", "compute.regions.get"
            yield unread_result(fact, region, what, permission=permission, project=wanted.project)


@check_rule("TPU404", "many external addresses")
def many_addresses(facts: CheckFacts) -> Iterator[RuleResult]:
    """Report nodes whose workers use eight or more external addresses: a note.

    Eight is the default of a region [observed: users' logs]; and every external address can be reached from outside.
    """
    wanted, needed = facts.wanted, _addresses_needed(facts.wanted)
    if wanted.creates and needed >= MANY_ADDRESSES:
        yield note(
            wanted.what.strip("`"),
            f"{_count_addresses(needed)} used, one by each worker",
            _internal_ips_remedy(wanted),
            why=f"a region has {MANY_ADDRESSES} unless you request more, and every external address "
            "can be reached from outside",
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


def _quota_page(wanted: WantedNode) -> str:
    return f"https://console.cloud.google.com/iam-admin/quotas?project={wanted.project}"


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
    if not wanted.creates or accelerator is None or facts.quotas is None or facts.is_without_zone:
        return
    if isinstance(facts.quotas, Unknown):
        what, permission = "the TPU quota of the project", "serviceusage.quotas.get"
        yield unread_result(facts.quotas, wanted.region, what, permission=permission, project=wanted.project)
        return
    pool = QuotaPool.of(accelerator, wanted.spec.tier)
    usages = limit_usages(wanted, value_or_none(facts.quotas) or (), value_or_none(facts.resources))
    if not usages:
        text = f"the service shows no quota for {pool} in {wanted.region}"
        why = "it may be unlimited, or have another name than tpuctl expects; the service decides"
        yield note(wanted.region, text, why=why, facts={"pool": str(pool)})
    # If the current usage is unknown, TPU306 reports it.
    yield from (_quota_exceeded_result(wanted, usage, facts.now) for usage in usages if usage.is_short)


@check_rule("TPU402", "quota held by dead records")
def dead_records_hold_quota(facts: CheckFacts) -> Iterator[RuleResult]:
    """Find dead records that hold the same quota: PREEMPTED and TERMINATED nodes, SUSPENDED and FAILED queued resources.

    They count until they are deleted [observed: marin#87, skypilot PR#1483]. A note; if quota is short, TPU401 names them.
    """
    wanted, accelerator, resources = facts.wanted, facts.wanted.accelerator, value_or_none(facts.resources)
    if not wanted.creates or accelerator is None or resources is None:
        return
    pool, unit = QuotaPool.of(accelerator, wanted.spec.tier), accelerator.generation.unit
    dead = [
        one
        for one in held_capacity(resources, wanted)
        if one.is_dead and one.pool == pool and region_of_zone(one.zone) == wanted.region
    ]
    if dead:
        amount = sum(one.size for one in dead)
        yield note(
            wanted.region,
            f"dead records hold {amount} {unit} of {pool} quota: {_holder_words(dead)}",
            *(Remedy(f"delete {one.label}", one.delete) for one in dead[:_MAX_HOLDERS]),
            why="they count against the quota until they are deleted",
            facts={"pool": str(pool), "unit": unit, "amount": amount, "records": _holder_facts(dead)},
        )


def _quota_exceeded_result(wanted: WantedNode, usage: LimitUsage, now: datetime) -> RuleResult:
    limit, name, is_zero = usage.limit, usage.limit.name or usage.limit.metric, usage.limit.value == 0
    left = max((limit.value or 0) - usage.amount, 0)
    text = f"{usage.needed} {usage.unit} are needed in {usage.place}, and {left} are left: `{name}` is {limit.value}"
    text += f", and {usage.amount} are held by {_holder_words(usage.holders)}" if usage.holders else ""
    advice = f"request more of `{name}` in {usage.place}: {_quota_page(wanted)}"
    elsewhere = "use a zone and tier that a grant or quota covers: `up` tries them (`--zone any --tier spot,on-demand`)"
    if is_zero:
        text = f"the quota `{name}` is 0 in {usage.place}: the project was never given any"
    level = Level.WARNING
    if wanted.spec.tier is Tier.RESERVED:
        why = "it is not documented whether reserved capacity counts against it"
    elif not usage.is_surely_short:
        why = "it is not documented whether stopped, waiting or deleting resources count against it"
    else:
        level, why = Level.ERROR, "the service rejects what exceeds a limit of the zone or of its region; both apply"
        if is_zero:
            why = "waiting does not help: each tier and zone has its own quota, and a grant covers the zones that it names"
    dead = [one for one in usage.holders if one.is_dead][:_MAX_HOLDERS]
    return RuleResult.of(
        level,
        usage.place,
        text,
        *_clean_up(wanted, usage, now),
        *(Remedy(f"delete {one.label}, which is dead", one.delete) for one in dead),
        *((elsewhere, advice) if is_zero else (advice, elsewhere)),
        why=why,
        facts={**_limit_facts(usage), "holders": _holder_facts(usage.holders)},
    )


def _clean_up(wanted: WantedNode, usage: LimitUsage, now: datetime) -> Iterator[Remedy]:
    """Yield the `tpuctl gc` that would free enough, unless the deletion of a single dead record is named anyway."""
    found = usage.clean_up(now)
    if found is None or (len(found[1]) == 1 and found[1][0].is_dead):
        return
    options, freed = found
    amount, zones = sum(one.size for one in freed), ",".join(sorted({one.zone for one in freed}))
    what = "what is dead or has expired" if options else "the dead records"
    yield Remedy(
        f"see what would free {amount} {usage.unit}, and delete it with `--yes`: {what}",
        clean_up_command(wanted.project, zones, options),
    )


def _limit_facts(usage: LimitUsage) -> dict[str, object]:
    return {
        "metric": usage.limit.metric,
        "displayName": usage.limit.name,
        "place": usage.limit.place,
        "limit": usage.limit.value,
        "held": usage.amount,
        "needed": usage.needed,
        "unit": usage.unit,
    }


def _holder_facts(holders: Sequence[HeldCapacity]) -> list[dict[str, object]]:
    return [{"name": one.label.replace("`", ""), "state": one.state, "amount": one.size} for one in holders]


def _holder_words(holders: Sequence[HeldCapacity]) -> str:
    largest = sorted(holders, key=lambda one: -one.size)
    return some_of([f"{one.label} ({one.state}, {one.size})" for one in largest], _MAX_HOLDERS)


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
    wanted, zone = facts.wanted, facts.wanted.zone
    if not wanted.creates or wanted.spec.tier is not Tier.RESERVED or facts.reservations is None:
        return
    if not isinstance(facts.reservations, Known):
        what, permission = f"the reservations in {zone}", "tpu.nodes.list"
        yield unread_result(facts.reservations, zone, what, permission=permission, project=wanted.project)
        return
    here = [one for one in facts.reservations.value if one.zone in {zone, ""}]
    living = [one for one in here if one.state not in _ENDED_STATES]
    yield from filter(None, (_judge_reservation(wanted, one) for one in living))
    if not living:
        text = f"the project has no reservation in {zone}"
        if here:
            names = ", ".join(f"`{one.name}` ({one.state})" for one in here)
            text = f"the project has no active reservation in {zone}; ended: {names}"
        listing = gcloud_command("alpha compute tpus reservations list", zone=zone, project=wanted.project)
        yield warning(
            zone,
            text,
            Remedy("use another tier", create_or_check_command(wanted, tier=Tier.ON_DEMAND)),
            Remedy("list the reservations of the zone", listing),
            why="reserved capacity needs a reservation; the list may lack one that another project shares",
            facts={"zone": zone, "over": [one.name for one in here]},
        )


def _judge_reservation(wanted: WantedNode, reservation: Reservation) -> RuleResult | None:
    state, size, used = reservation.state or None, reservation.size, reservation.used
    unit = {"CHIPS": "chips", "CORES": "cores"}.get(reservation.capacity_units)
    needed, accelerator = None, wanted.accelerator
    if accelerator is not None and unit is not None:
        # Generations that count chips have one core in each, by the table.
        needed = accelerator.chips * (1 if unit == "chips" else accelerator.generation.cores_per_chip)
    doubts = [f"its state is {state}"] if state in _PENDING_STATES else []
    if size is not None and needed is not None and size - used < needed:
        doubts.append(f"{needed} {unit} are needed")
    name, zone = reservation.name, wanted.zone
    kind = f" for {reservation.resource_type}" if reservation.resource_type else ""
    amount = f", {used} of {size}{f' {unit}' if unit else ''} used" if size is not None else ""
    text = f"`{name}` is a reservation in {zone}{kind}{amount}"
    values = {"reservation": name, "zone": zone, "state": state, "size": size, "held": used}
    if not doubts:
        return None
    why = "the service answers that there is not enough reserved capacity"
    advice = "wait until it is active, request less, or use another tier"
    return warning(name, f"{text}: {', and '.join(doubts)}", advice, why=why, facts=values)


@check_rule("TPU405", "covered by a grant")
def grant_covers(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that a grant in the settings (`grants`) covers the new node in addition to everything that is held.

    Zone, type, tier, count and last day are compared. Spot and preemptible are one pool; dead resources are not billed. If no
    grant covers the node, it will be billed: a warning. With `no_billing_outside_grants` it is an error, also if no grant is
    configured or the current usage of the grant is unknown. Grants are what the user has entered; the service is not asked.
    """
    wanted, accelerator, zone = facts.wanted, facts.wanted.accelerator, facts.wanted.zone
    is_strict = wanted.no_billing_outside_grants
    if not wanted.creates or not (wanted.grants or is_strict):
        return
    if not wanted.grants:
        yield _no_grants_result(wanted)
        return
    level, why = Level.WARNING, "what no grant covers is billed; `--no-billing-outside-grants` prevents that"
    if is_strict:
        level, why = Level.ERROR, "`no_billing_outside_grants` is set: nothing that is billed may be created"
    if accelerator is None:
        name = wanted.spec.accelerator_type
        text = f"unknown whether a grant covers {name}: tpuctl does not know the type"
        values = {"acceleratorType": name, "grants": [str(grant) for grant in wanted.grants]}
        yield RuleResult.of(level, zone, text, why=why, facts=values)
        return
    coverage = grant_coverage(wanted, accelerator, _known_capacity(facts), facts.now.date())
    resources = value_or_none(facts.resources)
    if not coverage.is_enough:
        yield _not_covered_result(facts, accelerator, coverage, level=level, why=why)
    elif is_strict and (resources is None or zone in resources.unreachable):
        yield RuleResult(
            Level.ERROR,
            zone,
            f"the current usage of the grant `{coverage.grants[0]}` is unknown; it may be used up",
            why,
            (Remedy("check again when the nodes of the project can be listed"),),
            _coverage_facts(coverage),
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
    # Without end, or for longer than this, is long enough if any of them is.
    ending = [(grant, grant.until) for grant in lasting if grant.until and grant.until - today <= GRANT_ENDS_SOON]
    for grant, until in ending if len(ending) == len(lasting) else ():
        days = (until - today).days
        when = "today" if days == 0 else f"in {days} day{'' if days == 1 else 's'}"
        yield warning(
            grant.zone,
            f"the grant `{grant}` ends {when}",
            f"delete the node by the end of {until}, or ask for a longer grant",
            why="what runs after its last day is billed",
            facts={"grant": str(grant), "until": str(until), "days": days},
        )
    if grants and not lasting and not wanted.creates:
        last = max(grants, key=lambda grant: grant.until or today)
        name = wanted.name
        delete = delete_queued_resource_command(wanted.project, wanted.zone, name.node_id) if name else None
        yield warning(
            last.zone,
            f"the grant `{last}` has ended; {wanted.what} is billed since then",
            Remedy("delete it if you no longer need it", delete),
            why="what runs after the last day of a grant is billed",
            facts={"grant": str(last), "until": str(last.until)},
        )
    if wanted.creates and wanted.zone == load_accelerators().research_zone:
        yield note(
            wanted.zone,
            f"{wanted.zone} is for grants of the TPU Research Cloud",
            why="its quota exists while a grant lasts, and is removed afterwards",
            facts={"zone": wanted.zone, "isGranted": bool(lasting)},
        )


def _no_grants_result(wanted: WantedNode) -> RuleResult:
    kind = wanted.accelerator.generation.name if wanted.accelerator else wanted.spec.accelerator_type
    # Only the holder knows count and last day.
    grant = f"zone={wanted.zone},type={kind},tier={wanted.spec.tier or Tier.ON_DEMAND},count=COUNT,until=DATE"
    return error(
        wanted.zone,
        "`no_billing_outside_grants` is set, but no grants are configured: nothing may be created",
        f"if you have a grant, add it to your own settings with `tpuctl config set grants {quote_word(grant)}`, with the chips "
        "and the last day of the grant; this replaces the configured grants",
        "or turn it off where it was set: a flag, the environment (`TPUCTL_NO_BILLING_OUTSIDE_GRANTS`) or a file; "
        "`tpuctl config show` says where",
        why="everything created without a grant is billed",
        facts={"grants": []},
    )


def _not_covered_result(
    facts: CheckFacts, accelerator: AcceleratorType, coverage: GrantCoverage, *, level: Level, why: str
) -> RuleResult:
    wanted, today = facts.wanted, facts.now.date()
    grant = coverage.grants[0] if coverage.grants else nearest_grant(wanted, accelerator, today)
    text, remedies = f"no grant covers {wanted.what}: it will be billed", list[Remedy]()
    reasons: list[str] = []
    if grant:
        reasons += grant_differences(grant, wanted, accelerator)
        reasons += [f"it ended on {grant.until}"] if grant.has_ended(today) else []
        if coverage.grants:
            in_use = f" ({coverage.used} are in use)" if coverage.used else ""
            left = f"{coverage.left} of {coverage.granted} are left"
            reasons.append(f"{coverage.needed} chips are needed, and {left}{in_use}")
        text += f"; the nearest is `{grant}`: {', '.join(reasons)}"
        remedies = list(_grant_remedies(facts, accelerator, grant))
    values = {"nearest": str(grant) if grant else None, "differences": reasons}
    return RuleResult.of(level, wanted.zone, text, *remedies, why=why, facts=_coverage_facts(coverage) | values)


def _grant_remedies(facts: CheckFacts, accelerator: AcceleratorType, grant: Grant) -> Iterator[Remedy]:
    """Yield what the grant would cover. If that is this very node, only its siblings exceed the grant."""
    wanted, tier = facts.wanted, Tier(grant.tier)
    covered = grant_alternative(grant, accelerator, _known_capacity(facts), facts.now.date())
    if covered is None:
        return
    asked = (wanted.zone, accelerator.name, capacity_pool(wanted.spec.tier))
    if (grant.zone, covered.name, capacity_pool(tier)) == asked:
        if wanted.siblings:
            count = 1 + len(wanted.siblings)
            yield Remedy(f"the grant covers this node alone, not all {count} of the command: create fewer at once")
        return
    command = create_or_check_command(wanted, zone=grant.zone, accelerator_type=covered.name, tier=tier)
    article = "an" if tier is Tier.ON_DEMAND else "a"
    yield Remedy(f"covered by that grant: {article} {tier} {covered.name} in {grant.zone}", command)


def _known_capacity(facts: CheckFacts) -> tuple[HeldCapacity, ...]:
    resources = value_or_none(facts.resources)
    return held_capacity(resources, facts.wanted) if resources else ()


def _coverage_facts(coverage: GrantCoverage) -> dict[str, Any]:
    return {
        "grants": [str(grant) for grant in coverage.grants],
        "grantedChips": coverage.granted,
        "heldChips": coverage.used,
        "neededChips": coverage.needed,
    }


QUOTA_RULES = (quota_is_enough, dead_records_hold_quota, address_quota_is_enough, many_addresses)


PRICE_CHECK = "TPU408"


@check_rule(PRICE_CHECK, "price within the limit")
def price_is_within_limit(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the new node, or all slices of its group together, cost at most `max_price` dollars per hour.

    An error if it costs more, and if its price is unknown, unless `allow_unknown_price` is set. Prices are from a table of
    list prices with a date; spot prices change often, and prices of reserved, flex-start and best-effort capacity are unknown.
    """
    wanted, limit = facts.wanted, facts.wanted.max_price
    if not wanted.creates or limit is None:
        return
    spec, tier = wanted.spec, wanted.spec.tier or Tier.ON_DEMAND
    price, what = wanted.hourly_price(spec.accelerator_type, wanted.zone, tier), f"a {spec.accelerator_type} ({tier})"
    if spec.slices:
        price, what = price.times(spec.slices), f"a group of {spec.slices} slices, each {what},"
    values = {"maxPrice": float(limit), "price": price.to_json()}
    if within_budget(price, limit, allow_unknown=wanted.allow_unknown_price):
        return
    remedy = f"choose another type, zone or tier, or raise `max_price`; the price list is of {price.as_of}"
    if price.per_hour is None:
        remedy = "choose a zone and tier with a known price, or allow it with `--allow-unknown-price`"
    yield error(
        wanted.zone,
        f"{what} {budget_words(price, limit)}",
        remedy,
        why="`max_price` is set: no node may be created that costs more",
        facts=values,
    )


BUDGET_CHECK = "TPU409"


@dataclass(frozen=True, slots=True)
class _BilledNode:
    """A node that is billed, or will be, and its price."""

    label: str
    price: Price

    def __str__(self) -> str:
        return f"{self.label} ({self.price})"


@check_rule(BUDGET_CHECK, "cost of all nodes within the budget")
def project_is_within_budget(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that all nodes of the project, with the new ones, cost at most `budget` dollars per hour.

    Nodes that are READY count, and those that will be without another request, such as CREATING ones; nodes that a grant covers
    are free; queued resources that wait do not count. An error if the sum is more, and unless `allow_unknown_price` is set also
    if a price is unknown or a zone did not answer.
    """
    wanted, limit = facts.wanted, facts.wanted.budget
    if not wanted.creates or limit is None:
        return
    if not isinstance(facts.resources, Known):
        what, permission = "the nodes of the project, and what they cost,", "tpu.nodes.list"
        if facts.resources is not None and not wanted.allow_unknown_price:
            unread = unread_result(facts.resources, wanted.project, what, permission=permission, project=wanted.project)
            yield replace(unread, level=Level.ERROR)
        return
    resources = facts.resources.value
    running, new = _billed_nodes(wanted, resources, facts.now.date()), _new_nodes(facts)
    amounts = [one.price.per_hour for one in (*running, *new)]
    total = sum((amount for amount in amounts if amount is not None), Decimal(0))
    unknown = [str(one) for one in (*running, *new) if one.price.per_hour is None]
    unknown += [f"the nodes in {zone}, which did not answer" for zone in resources.unreachable]
    others = len(wanted.siblings)
    created = wanted.what + (f" and {others} other new node{'s' * (others > 1)}" if others else "")
    now = f"now: {some_of([str(one) for one in running], _MAX_HOLDERS)}" if running else "now nothing is billed"
    values: dict[str, Any] = {
        "budget": float(limit),
        "perHour": float(total),
        "running": [{"name": one.label.replace("`", ""), "price": one.price.to_json()} for one in running],
        "unreachable": list(resources.unreachable),
    }
    if total <= limit and (not unknown or wanted.allow_unknown_price):
        return
    if total > limit:
        text = f"all nodes with {created} would cost ${total:,}/h, more than the budget of ${limit:,}/h; {now}"
        advice = "delete or stop nodes that you no longer need, choose another type or tier, or raise `budget`"
    else:
        text = f"unknown prices, and the budget is ${limit:,}/h: {some_of(unknown, _MAX_HOLDERS)}; {now}"
        advice = "choose a type, zone and tier with a known price, or allow unknown ones with `--allow-unknown-price`"
    yield RuleResult.of(
        Level.ERROR,
        wanted.project,
        text,
        Remedy("see what each node costs", tpuctl_command("cost", project=wanted.project)),
        advice,
        why="`budget` is set: all nodes of the project together may not cost more",
        facts=values,
    )


def budget_excess(wanted: WantedNode, resources: Fact[ProjectResources], now: datetime) -> str:
    """Return in words by what all nodes, with one that was just created, exceed the budget; empty if they do not."""
    limit = wanted.budget
    if limit is None or not isinstance(resources, Known):
        return ""
    facts = CheckFacts(now=now, wanted=wanted, project=Unknown("not needed"), resources=resources)
    running = _billed_nodes(wanted, resources.value, now.date())
    total = sum((one.price.per_hour or Decimal(0) for one in (*running, *_new_nodes(facts))), Decimal(0))
    if total <= limit:
        return ""
    others = some_of([str(one) for one in running], _MAX_HOLDERS)
    return (
        f"all nodes cost ${total:,}/h now, more than the budget of ${limit:,}/h: another run created some at the same time; "
        f"besides this one: {others}"
    )


def _billed_nodes(wanted: WantedNode, resources: ProjectResources, today: date) -> list[_BilledNode]:
    """Return the nodes of the project that are billed or will be, the most expensive first, without the replaced one."""
    own = {wanted.name, wanted.replaces.name if wanted.replaces else None}
    nodes = [node for node in resources.nodes if node.name not in own]
    tiers = {node.name: billed_tier(node, resources.requests) for node in nodes}
    free = covering_grants(nodes, tiers, wanted.grants, today)
    found = [
        _BilledNode(
            f"`{node.name.zone}/{node.name.node_id}`",
            wanted.hourly_price(node.accelerator_type, node.name.zone, tiers[node.name]),
        )
        for node in nodes
        if bills_or_will(node) and node.name not in free
    ]
    return sorted(found, key=lambda one: (one.price.per_hour is not None, -(one.price.per_hour or 0)))


def _new_nodes(facts: CheckFacts) -> list[_BilledNode]:
    """Return the nodes that the command creates; none if a grant surely covers them."""
    wanted, accelerator, resources = facts.wanted, facts.wanted.accelerator, value_or_none(facts.resources)
    if accelerator and resources and wanted.zone not in resources.unreachable:
        coverage = grant_coverage(wanted, accelerator, _known_capacity(facts), facts.now.date())
        if coverage.is_enough:
            return []
    specs = (wanted.spec, *wanted.siblings)
    return [
        _BilledNode(
            f"the new {spec.accelerator_type}", wanted.hourly_price(spec.accelerator_type, wanted.zone, spec.tier)
        )
        for spec in specs
    ]


GRANT_RULES = (grant_covers, grant_lasts, reservation_exists, price_is_within_limit, project_is_within_budget)

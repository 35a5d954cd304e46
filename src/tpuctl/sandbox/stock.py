"""The stock of the zones: how many nodes fit there, by type and tier, from a time on; and what reservations hold.

Without an entry the stock is unlimited. The unit is the node, not the chip: the service hands out whole slices, and free chips
that are not adjacent serve none; "one v6e-8 in us-east5-b" is what a user sees and a test says. A stock-out is a stock of 0.
Reservations are a stock of their own, in the cores or chips in which the API counts them.

Nothing is booked: a node holds capacity by its timeline (`lifecycle.capacity_intervals`), so a deletion, a preemption, a stop
and a failed creation give it back at their time. Waiting queued resources get it in the order of their creation, before any
node that is created later; `plan_turns` says when, and runs after each transaction that changes the stock or its use.

The effect of a stock-out is observed: create and start fail in their operation, a queued resource waits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.accelerators import parse_accelerator_type
from tpuctl.durations import parse_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.names import closest_match
from tpuctl.sandbox import api_calls
from tpuctl.sandbox.api_calls import (
    ApiError,
    answers,
    failed_precondition,
    invalid_field,
    list_response,
    not_found,
    parse_resource_name,
)
from tpuctl.sandbox.capacity import CapacityTier, Demand, describe_shortage, node_demand
from tpuctl.sandbox.catalog import offers_type, zone_names
from tpuctl.sandbox.lifecycle import capacity_intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

STOCK_SETTING = "stockouts"  # its first version had stock-outs only, which have no `nodes`
_RESERVATIONS_SETTING = "reservations"


@dataclass(frozen=True, slots=True)
class StockLevel:
    """How many nodes fit where `zone`, `accelerator_type`, `project` (globs) and `tier` (or `*`) match, used ones included.

    It holds from `begin` on (seconds since 1970), until a later level of the same scope replaces it. With an `end` it holds
    until then, in addition to other levels.
    """

    begin: float
    end: float | None = None
    zone: str = "*"
    accelerator_type: str = "*"
    tier: str = "*"
    project: str = "*"
    nodes: int = 0

    @property
    def scope(self) -> tuple[str, str, str, str]:
        """What it counts: zone, accelerator type, tier, project."""
        return self.zone, self.accelerator_type, self.tier, self.project


def put_level(
    session: StateSession,
    *,
    nodes: int,
    zone: str = "*",
    accelerator_type: str = "*",
    tier: str = "*",
    project: str = "*",
    after: timedelta | None = None,
    duration: timedelta | None = None,
) -> StockLevel:
    """Store a level that begins `after` from now and lasts `duration` (None: until the next) of sandbox time, and return it.

    Raises `InvalidInputError` for a zone or a type that does not exist, an unknown tier, a negative number, or a duration that
    is not positive.
    """
    if nodes < 0:
        raise InvalidInputError(f"the stock cannot be {nodes} nodes", hint="give 0 or more")
    seconds = after.total_seconds() if after else 0.0
    if seconds < 0 or (duration is not None and duration.total_seconds() <= 0):
        raise InvalidInputError("a stock or a stock-out cannot end before it starts", hint="give durations such as 10m")
    if not any(fnmatchcase(name, zone) for name in zone_names()):
        near = closest_match(zone, zone_names())
        raise InvalidInputError(
            f"`{zone}` is not a zone with TPUs", hint=f"did you mean `{near}`?" if near else "run `tpuctl types`"
        )
    if not offers_type(accelerator_type):
        raise InvalidInputError(f"no zone offers `{accelerator_type}`", hint="run `tpuctl types`")
    tier = tier if tier == "*" else str(CapacityTier.named(tier))
    now = session.now.timestamp()
    begin = now + seconds
    end = begin + duration.total_seconds() if duration else None
    level = StockLevel(begin, end, zone, accelerator_type, tier, project, nodes)
    _store_levels(session, [*list_levels(session), level])
    return level


def _store_levels(session: StateSession, levels: Iterable[StockLevel]) -> None:
    session.set_setting(STOCK_SETTING, [asdict(level) for level in levels] or None)


def remove_levels(session: StateSession, *, only_stockouts: bool = False, **scope: str) -> int:
    """Remove the levels of a scope, as `show_stock` finds them, or only its stock-outs, and return their number."""
    known = list_levels(session)
    globs = _parse_scope(**scope)
    kept = [
        level for level in known if (only_stockouts and level.nodes) or not all(map(fnmatchcase, level.scope, globs))
    ]
    _store_levels(session, kept)
    return len(known) - len(kept)


def _parse_scope(
    *, zone: str = "*", accelerator_type: str = "*", tier: str = "*", project: str = "*"
) -> tuple[str, str, str, str]:
    """Return the globs of a scope. Raises `InvalidInputError` for an unknown tier."""
    return zone, accelerator_type, tier if tier == "*" else str(CapacityTier.named(tier)), project


def list_levels(session: StateSession) -> list[StockLevel]:
    """Return the levels that hold now or later, in the order in which they were added."""
    now = session.now.timestamp()
    known = [StockLevel(**entry) for entry in session.setting(STOCK_SETTING, [])]
    known = [replace(level, tier="spot") if level.tier == "preemptible" else level for level in known]  # stored earlier
    current = {level.scope: level for level in sorted(known, key=_by_begin) if level.end is None and level.begin <= now}
    return [
        level
        for level in known
        if level.begin > now or (level.end > now if level.end is not None else current[level.scope] is level)
    ]


def _by_begin(level: StockLevel) -> float:
    return level.begin


class StockEntry(NamedTuple):
    """A level, as it is shown: `used` and `free` nodes, None if it does not hold now."""

    level: StockLevel
    used: int | None
    free: int | None


def show_stock(session: StateSession, **scope: str) -> list[StockEntry]:
    """Return the levels, by scope and time, with their use; those whose scope matches `zone`, `accelerator_type`, … (globs).

    Raises `InvalidInputError` for an unknown tier.
    """
    now = session.now.timestamp()
    globs = _parse_scope(**scope)
    held = [holding.demand for holding in _holdings(session) if holding.begin <= now < holding.end]
    found = []
    known = [level for level in list_levels(session) if all(map(fnmatchcase, level.scope, globs))]
    for level in sorted(known, key=lambda level: (level.scope, level.begin)):
        if level.begin > now:
            found.append(StockEntry(level, None, None))
            continue
        used = sum(_Pool(*level.scope).matches(demand) for demand in held)
        found.append(StockEntry(level, used, max(level.nodes - used, 0)))
    return found


def describe_level(level: StockLevel) -> str:
    """Describe a level: `1 node of v6e-8 in us-east5-b (spot)`."""
    count = f"{level.nodes} node{'' if level.nodes == 1 else 's'}"
    words = "every type" if level.accelerator_type == "*" else level.accelerator_type
    zone = "every zone" if level.zone == "*" else level.zone
    project = "" if level.project == "*" else f" for {level.project}"
    tier = "all tiers together" if level.tier == "*" else level.tier
    return f"{count} of {words} in {zone}{project} ({tier})"


@dataclass(frozen=True, slots=True)
class _Pool:
    """The demands that share one stock: those that match the globs, or that use a reservation.

    `unit`: what a node takes of it: 1, its cores, or its chips.
    """

    zone: str = "*"
    accelerator_type: str = "*"
    tier: str = "*"
    project: str = "*"
    reservation: str = ""
    unit: str = ""
    levels: tuple[StockLevel, ...] = ()

    def matches(self, demand: Demand) -> bool:
        """Return whether a demand is met from this stock."""
        if self.reservation:
            return demand.reservation == self.reservation
        return (
            self.tier in {"*", demand.tier}
            and fnmatchcase(demand.zone, self.zone)
            and fnmatchcase(demand.accelerator_type, self.accelerator_type)
            and fnmatchcase(demand.project, self.project)
        )

    def total(self, demands: Iterable[Demand]) -> int:
        """Return what demands take of it."""
        return sum(_weight(demand, self.unit) for demand in demands if self.matches(demand))

    def limit(self, at: float) -> float:
        """Return how much there is at a time, used or not."""
        endless = [level for level in self.levels if level.end is None and level.begin <= at]
        last = max(reversed(endless), key=_by_begin).nodes if endless else inf
        return min([last, *(level.nodes for level in self.levels if level.end and level.begin <= at < level.end)])


def _weight(demand: Demand, unit: str) -> int:
    if not unit:
        return 1
    accelerator = parse_accelerator_type(demand.accelerator_type)
    return accelerator.chips if unit == "CHIPS" else accelerator.size


def _pools(session: StateSession) -> list[_Pool]:
    """Return all stocks that are limited, now or later."""
    by_scope: dict[tuple[str, str, str, str], list[StockLevel]] = {}
    for level in list_levels(session):
        by_scope.setdefault(level.scope, []).append(level)
    pools = [_Pool(*scope, levels=tuple(levels)) for scope, levels in by_scope.items()]
    for entry in session.setting(_RESERVATIONS_SETTING, []):
        standard = entry.get("standard") or {}
        if "size" in standard:
            # What others use of it is part of its stored usage.
            size = int(standard["size"]) - int((standard.get("usage") or {}).get("total") or 0)
            unit = str(standard.get("capacityUnits") or "CHIPS")
            pools.append(_Pool(reservation=entry["name"], unit=unit, levels=(StockLevel(0.0, nodes=max(size, 0)),)))
    return pools


class _Holding(NamedTuple):
    """Capacity that is held from `begin` to `end`, in seconds since 1970."""

    demand: Demand
    begin: float
    end: float


def _holdings(session: StateSession, *, without: frozenset[str] = frozenset()) -> Iterator[_Holding]:
    """Yield what all nodes hold, except those of the queued resources `without`, given by their full names."""
    for node in session.nodes():
        if node.queued_resource in without:
            continue
        demand = node_demand(node.project, node.zone, node.document)
        for begin, end in capacity_intervals(node.timeline):
            yield _Holding(demand, begin, end)


def find_shortage(session: StateSession, demand: Demand) -> Json | None:
    """Return the google.rpc.Status of an operation that needs capacity now. None if there is capacity."""
    now = session.now.timestamp()
    limits = [(pool, pool.limit(now)) for pool in _pools(session) if pool.matches(demand)]
    short = any(limit < pool.total([demand]) for pool, limit in limits)
    if not short and any(limit < inf for _, limit in limits):
        held = [holding.demand for holding in _holdings(session) if holding.begin <= now < holding.end]
        short = any(pool.total(held) + pool.total([demand]) > limit for pool, limit in limits)
    if not short:
        return None
    return {"code": 8, "message": describe_shortage(demand.zone, demand.tier)}


class Wait(NamedTuple):
    """A queued resource that waits: its nodes' demands, and the times between which it may be provisioned."""

    name: str
    demands: Sequence[Demand]
    not_before: float
    not_after: float


def plan_turns(session: StateSession, waits: Sequence[Wait]) -> dict[str, float]:
    """Return when each waiting request gets capacity for all of its nodes, by name; without those that never get it.

    The requests are in the order of their creation. One that fits does not wait for an earlier one that needs more
    (unverified).
    """
    now = session.now.timestamp()
    pools = [pool for pool in _pools(session) if any(pool.matches(demand) for wait in waits for demand in wait.demands)]
    if not pools:
        return {wait.name: max(wait.not_before, now) for wait in waits if max(wait.not_before, now) <= wait.not_after}
    others = _holdings(session, without=frozenset(wait.name for wait in waits))
    # What each node takes of each stock.
    held = [([pool.total([holding.demand]) for pool in pools], holding.begin, holding.end) for holding in others]
    held = [(amounts, begin, end) for amounts, begin, end in held if any(amounts)]
    needs = {wait.name: [pool.total(wait.demands) for pool in pools] for wait in waits}
    times = {now, *(wait.not_before for wait in waits), *(end for _, _, end in held)}
    times |= {at for pool in pools for level in pool.levels for at in (level.begin, level.end or inf)}
    turns: dict[str, float] = {}
    for at in sorted(at for at in times if now <= at < inf):
        limits = [pool.limit(at) for pool in pools]
        used = [sum(amounts[i] for amounts, begin, end in held if begin <= at < end) for i in range(len(pools))]
        for wait in waits:
            if wait.name in turns or not wait.not_before <= at <= wait.not_after:
                continue
            after = [amount + need for amount, need in zip(used, needs[wait.name], strict=True)]
            if all(not need or end <= limit for need, end, limit in zip(needs[wait.name], after, limits, strict=True)):
                turns[wait.name], used = at, after
                held.append((needs[wait.name], at, inf))
        if len(turns) == len(waits):
            break
    return turns


@answers("tpu.projects.locations.reservations.list")
def _list_reservations(session: StateSession, call: Call) -> Json:
    """List the reservations (v2alpha1), with their state and use at this time."""
    where = parse_resource_name(call["parent"])
    now = session.now.timestamp()
    held = [holding.demand for holding in _holdings(session) if holding.begin <= now < holding.end]
    reservations = []
    for entry in session.setting(_RESERVATIONS_SETTING, []):
        name = parse_resource_name(entry["name"])
        if name.project != where.project or where.zone not in {api_calls.ANYWHERE, name.zone}:
            continue
        shown = {**entry, **({"state": state} if (state := _reservation_state(entry, session.now)) else {})}
        if standard := entry.get("standard"):
            pool = _Pool(reservation=entry["name"], unit=str(standard.get("capacityUnits") or "CHIPS"))
            others = int((standard.get("usage") or {}).get("total") or 0)
            shown["standard"] = {**standard, "usage": {"total": str(others + pool.total(held))}}
        reservations.append(shown)
    return list_response(call, "reservations", reservations)


def _reservation_state(entry: Json, now: datetime) -> str:
    """Return the state of a reservation, empty if it has none: EXPIRED after its end (API field text)."""
    end = parse_timestamp(((entry.get("standard") or {}).get("interval") or {}).get("endTime"))
    return "EXPIRED" if end and end <= now else str(entry.get("state") or "")


def put_reservation(session: StateSession, /, *, name: str, **fields: object) -> None:
    """Store a reservation by its full name, replacing an earlier one; `fields` are the API's of v2alpha1."""
    _check_reservation_name(name)
    others = [entry for entry in session.setting(_RESERVATIONS_SETTING, []) if entry["name"] != name]
    session.set_setting(_RESERVATIONS_SETTING, [*others, {"name": name, **fields}])


def _check_reservation_name(name: str) -> None:
    try:
        is_complete = bool(parse_resource_name(name).resource_id) and name.split("/")[4] == "reservations"
    except ApiError:
        is_complete = False
    if not is_complete:
        raise InvalidInputError(
            f"`{name}` is not the name of a reservation", hint="write it like projects/P/locations/Z/reservations/R"
        )


# A reservation that is approved or being provisioned gets its capacity later: a request waits for it (unverified).
_DEAD_RESERVATIONS = frozenset({"EXPIRED", "FAILED", "DEPROVISIONING"})


def check_reservation(session: StateSession, name: str, zone: str) -> None:
    """Raise `ApiError` unless nodes of a zone may use a reservation: all codes and words are unverified.

    404 for one that does not exist, 400 for one that has ended, or is of another zone. A sandbox without reservations accepts
    every name, and each accepts `…/reservations/-`, any reservation of a project (gcloud 528).
    """
    known = session.setting(_RESERVATIONS_SETTING)
    if not name or name.endswith("/-"):
        return
    parts = name.split("/")
    if len(parts) != 6 or parts[0] != "projects" or parts[2] != "locations" or parts[4] != "reservations":
        raise invalid_field("ReservationName", name)
    if parts[3] != zone:
        raise invalid_field("ReservationName", name)
    if known is None:
        return
    entry = next((entry for entry in known if entry["name"] == name), None)
    if entry is None:
        raise not_found(name)
    if (state := _reservation_state(entry, session.now)) in _DEAD_RESERVATIONS:
        raise failed_precondition(f"The reservation {name} is in state {state}.")

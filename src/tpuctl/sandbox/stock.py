"""The stock of the zones: how many nodes fit there, by type and tier, from a time on; and what reservations hold.

Without an entry the stock is unlimited. The unit is the node, not the chip: the service hands out whole slices, and free chips
that are not adjacent serve none; "one v6e-8 in us-east5-b" is what a user sees and a test says. An entry for a narrower scope
replaces a wider one there: nothing anywhere, but one node here. An entry with an end holds beside the others; a stock-out is
such an entry of 0 nodes. Reservations are a stock of their own, in the cores or chips in which the API counts them.

Nothing is booked: a node holds capacity by its timeline (`lifecycle.capacity_intervals`), so a deletion, a preemption, a stop
and a failed creation give it back at their time. Waiting queued resources get it in the order of their creation, before any
node that is created later (`tpu_queued_resources.schedule`).

The effect of a stock-out is observed: create and start fail in their operation, a queued resource waits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tpuctl.decoding import By, ShapeError, Text, decode, json_field
from tpuctl.durations import parse_timestamp
from tpuctl.errors import InvalidInputError
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
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

STOCK_SETTING = "stock"
_RESERVATIONS_SETTING = "reservations"


_FOREVER = timedelta(days=36_500)  # the length of a stock-out without an end
_END_OF_TIME = 10**11  # seconds since 1970: later times exceed the range of `datetime`
_NO_GLOB = frozenset("*?[").isdisjoint


@dataclass(frozen=True, slots=True)
class StockLevel:
    """How many nodes fit where `zone`, `accelerator_type`, `project` (globs) and `tier` (or `*`) match, used ones included.

    It holds from `begin` on (seconds since 1970), until a later level of the same scope replaces it. With an `end` it holds
    until then, beside all others.
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

    @property
    def is_stockout(self) -> bool:
        """Whether it is a stock-out, which holds beside all stock."""
        return self.nodes == 0 and self.end is not None

    @property
    def until(self) -> float | None:
        """Its end; None if there is none, or none in sight."""
        return None if self.end is None or self.end - self.begin >= _FOREVER.total_seconds() else self.end

    def matches(self, demand: Demand) -> bool:
        """Return whether a demand is of its scope."""
        words = (demand.zone, demand.accelerator_type, str(demand.tier), demand.project)
        return all(map(fnmatchcase, words, self.scope))

    def holds(self, at: float) -> bool:
        """Return whether it has begun at a time, and not ended."""
        return self.begin <= at and (self.end is None or at < self.end)

    @property
    def precedence(self) -> tuple[int, int, float]:
        """The order of levels without an end: of all that hold, the one that names most is in force; of a scope, the last."""
        return sum(part != "*" for part in self.scope), sum(map(_NO_GLOB, self.scope)), self.begin


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


def put_stockout(session: StateSession, *, duration: timedelta | None = None, **what: Any) -> StockLevel:
    """Store a stock-out, as `put_level` does a level, and return it; with None it lasts until it is removed."""
    return put_level(session, nodes=0, duration=duration or _FOREVER, **what)


def _store_levels(session: StateSession, levels: Iterable[StockLevel]) -> None:
    session.set_setting(STOCK_SETTING, [asdict(level) for level in levels] or None)


def remove_levels(session: StateSession, *, only_stockouts: bool = False, **scope: str) -> int:
    """Remove the levels of a scope, as `show_stock` finds them, or only its stock-outs, and return their number."""
    known = list_levels(session)
    globs = _parse_scope(**scope)
    kept = [
        level
        for level in known
        if (only_stockouts and not level.is_stockout) or not all(map(fnmatchcase, level.scope, globs))
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
    current = {level.scope: level for level in sorted(known, key=_by_begin) if level.end is None and level.begin <= now}
    return [
        level
        for level in known
        if level.begin > now or (current[level.scope] is level if level.end is None else level.end > now)
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
    used = _use(list_levels(session), _demands_at(session, now), now)
    entries = []
    for level in sorted(list_levels(session), key=lambda level: (level.scope, level.begin)):
        if not all(map(fnmatchcase, level.scope, globs)):
            continue
        count = used[level] if level.holds(now) else None
        entries.append(StockEntry(level, count, None if count is None else max(level.nodes - count, 0)))
    return entries


def describe_level(level: StockLevel) -> str:
    """Describe a level: `1 node of v6e-8 in us-east5-b (spot)`."""
    count = f"{level.nodes} node{'' if level.nodes == 1 else 's'}"
    words = "every type" if level.accelerator_type == "*" else level.accelerator_type
    zone = "every zone" if level.zone == "*" else level.zone
    project = "" if level.project == "*" else f" for {level.project}"
    tier = "all tiers together" if level.tier == "*" else level.tier
    return f"{count} of {words} in {zone}{project} ({tier})"


def _limits(levels: Iterable[StockLevel], demand: Demand, at: float) -> list[StockLevel]:
    """Return what limits a demand at a time: the level in force, and each level with an end."""
    holding = [level for level in levels if level.holds(at) and level.matches(demand)]
    lasting = [level for level in holding if level.end is None]
    limits = [level for level in holding if level.end is not None]
    return [*limits, max(reversed(lasting), key=lambda level: level.precedence)] if lasting else limits


def _use(levels: Iterable[StockLevel], demands: Iterable[Demand], at: float) -> Counter[StockLevel]:
    """Return how many nodes demands take of each level at a time."""
    used: Counter[StockLevel] = Counter()
    for demand, count in Counter(demands).items():
        for limit in _limits(levels, demand, at):
            used[limit] += count
    return used


class _Holding(NamedTuple):
    """Capacity that is held from `begin` to `end`, in seconds since 1970."""

    demand: Demand
    begin: float
    end: float

    def holds(self, at: float) -> bool:
        """Return whether it is held at a time."""
        return self.begin <= at < self.end


def _holdings(session: StateSession) -> Iterator[_Holding]:
    """Yield what all nodes hold, now and later."""
    for node in session.nodes():
        demand = node_demand(node.project, node.zone, node.document)
        for begin, end in capacity_intervals(node.timeline):
            yield _Holding(demand, begin, end)


def _demands_at(session: StateSession, at: float) -> Iterator[Demand]:
    return (holding.demand for holding in _holdings(session) if holding.holds(at))


def find_shortage(session: StateSession, *demands: Demand) -> Json | None:
    """Return the google.rpc.Status of an operation that needs capacity now. None if there is capacity for all demands."""
    now = session.now.timestamp()
    levels = list_levels(session)
    needed = _use(levels, demands, now)
    short = any(amount > level.nodes for level, amount in needed.items())
    if needed and not short:
        used = _use(levels, _demands_at(session, now), now)
        short = any(used[level] + amount > level.nodes for level, amount in needed.items())
    return {"code": 8, "message": describe_shortage(demands[0].zone, demands[0].tier)} if short else None


def release_times(session: StateSession) -> list[datetime]:
    """Return when the stock changes, and when a node gives back what it holds."""
    levels = (at for level in list_levels(session) for at in (level.begin, level.end))
    times = [*(holding.end for holding in _holdings(session)), *levels]
    return [datetime.fromtimestamp(at, UTC) for at in times if at is not None and at < _END_OF_TIME]


@answers("tpu.projects.locations.reservations.list")
def _list_reservations(session: StateSession, call: Call) -> Json:
    """List the reservations (v2alpha1), with their state at this time; their use is what was stored."""
    where = parse_resource_name(call["parent"])
    reservations = []
    for entry in session.setting(_RESERVATIONS_SETTING, []):
        name = parse_resource_name(entry["name"])
        if name.project == where.project and where.zone in {api_calls.ANYWHERE, name.zone}:
            state = _reservation_state(entry, session.now)
            reservations.append({**entry, **({"state": state} if state else {})})
    return list_response(call, "reservations", reservations)


def _reservation_state(entry: Json, now: datetime) -> str:
    """Return the state of a reservation, empty if it has none: EXPIRED after its end (API field text)."""
    end = parse_timestamp(((entry.get("standard") or {}).get("interval") or {}).get("endTime"))
    return "EXPIRED" if end and end <= now else str(entry.get("state") or "")


def _count(value: Any) -> int:
    if str(value).isdecimal() and len(str(value)) < 10:
        return int(value)
    raise ShapeError("expected a number of cores or chips")


_Count = Annotated[int, By(_count)]


@dataclass(frozen=True, slots=True)
class _Reservation:
    name: Annotated[str, Text()]
    state: str = ""
    capacity_units: str = json_field("standard.capacityUnits", default="")
    size: _Count = json_field("standard.size", default=0)
    used: _Count = json_field("standard.usage.total", default=0)
    start: str = json_field("standard.interval.startTime", default="")
    end: str = json_field("standard.interval.endTime", default="")


def put_reservation(session: StateSession, /, **fields: object) -> None:
    """Store a reservation, replacing one of its full name; `fields` are the API's of v2alpha1.

    Raises `InvalidInputError` if they are not.
    """
    try:
        name = decode(_Reservation, fields).name
        is_complete = bool(parse_resource_name(name).resource_id) and name.split("/")[4] == "reservations"
    except ShapeError as error:
        raise InvalidInputError(f"invalid reservation: {error}") from error
    except ApiError:
        is_complete = False
    if not is_complete:
        raise InvalidInputError(
            f"`{name}` is not the name of a reservation", hint="write it like projects/P/locations/Z/reservations/R"
        )
    others = [entry for entry in session.setting(_RESERVATIONS_SETTING, []) if entry["name"] != name]
    session.set_setting(_RESERVATIONS_SETTING, [*others, fields])


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

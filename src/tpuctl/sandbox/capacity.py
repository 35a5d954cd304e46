"""What a zone has left: stock-outs that end or do not, and reservations. Kept in the world; none until somebody sets them.

What a stock-out does is observed: create and start fail in their operation, a queued resource waits for its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import paging, resource_names
from tpuctl.sandbox.refusals import error_id, no_capacity

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

_SETTING = "stockouts"
_FAR = timedelta(days=36_500)  # an end that nobody waits for


class Tier(StrEnum):
    """How capacity is asked for. Spot and preemptible nodes come from the same pool and the same quota (documentation)."""

    ON_DEMAND = "on-demand"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"

    @classmethod
    def of(cls, scheduling: Json) -> Tier:
        """Return the tier of a node's `schedulingConfig`; flex-start counts as preemptible (documentation)."""
        if scheduling.get("reserved") or scheduling.get("reservationName"):
            return cls.RESERVED
        if scheduling.get("provisioningModel") == "RESERVATION_BOUND":
            return cls.RESERVED
        if scheduling.get("spot") or scheduling.get("preemptible"):
            return cls.PREEMPTIBLE
        is_cheap = scheduling.get("provisioningModel") in {"SPOT", "FLEX_START"}
        return cls.PREEMPTIBLE if is_cheap else cls.ON_DEMAND

    @classmethod
    def named(cls, word: str) -> Tier:
        """Return the tier that a word means, `spot` among them. Raises `InvalidInputError`."""
        try:
            return cls("preemptible" if word == "spot" else word)
        except ValueError:
            raise InvalidInputError(f"`{word}` is not a tier", hint=f"use spot or one of {', '.join(cls)}") from None


@dataclass(frozen=True, slots=True)
class Stockout:
    """No capacity from `begin` until `end` where `zone`, `accelerator_type`, `project` (globs) and `tier` (or `*`) match."""

    begin: datetime
    end: datetime
    zone: str = "*"
    accelerator_type: str = "*"
    tier: str = "*"
    project: str = "*"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one node asks of a zone."""

    project: str
    zone: str
    accelerator_type: str
    tier: Tier


def put_stockout(
    session: Session,
    *,
    zone: str = "*",
    accelerator_type: str = "*",
    tier: str = "*",
    project: str = "*",
    after: timedelta = timedelta(),  # immutable
    duration: timedelta | None = None,
) -> Stockout:
    """Keep a stock-out that begins `after` from now and lasts for `duration` (for ever without), in world time, and return it.

    Raises `InvalidInputError` for an unknown tier or a duration that is not positive.
    """
    if after < timedelta() or (duration is not None and duration <= timedelta()):
        raise InvalidInputError("a stock-out cannot end before it begins")
    tier = tier if tier == "*" else Tier.named(tier)
    begin = session.now + after
    end = begin + min(duration or _FAR, _FAR)
    stockout = Stockout(begin, end, zone, accelerator_type, tier, project)
    session.set_setting(_SETTING, [*map(_dump, list_stockouts(session)), _dump(stockout)])
    return stockout


def remove_stockouts(session: Session) -> int:
    """Forget all stock-outs, also those to come, and return how many there were."""
    known = list_stockouts(session)
    session.set_setting(_SETTING, None)
    return len(known)


def list_stockouts(session: Session) -> list[Stockout]:
    """Return the stock-outs that have not ended, in the order in which they were set."""
    known = [_load(entry) for entry in session.setting(_SETTING, [])]
    return [stockout for stockout in known if stockout.end > session.now]


def available_at(session: Session, demand: Demand, at: datetime) -> datetime:
    """Return when, at a time or after, there is capacity; about a hundred years later when no end is in sight."""
    found = [stockout for stockout in list_stockouts(session) if _matches(stockout, demand)]
    for stockout in sorted(found, key=lambda stockout: stockout.begin):
        if stockout.begin <= at < stockout.end:
            at = stockout.end
    return at


def shortage(session: Session, demand: Demand) -> Json | None:
    """Return the google.rpc.Status of an operation that needs capacity now; nothing when there is some."""
    if available_at(session, demand, session.now) == session.now:
        return None
    return {"code": 8, "message": shortage_text(demand.zone, demand.tier)}


def shortage_text(zone: str, tier: Tier) -> str:
    """Return the service's words for no capacity (observed; for reservations: skypilot#4579)."""
    if tier is not Tier.RESERVED:
        return no_capacity(zone)
    text = "Insufficient reserved capacity. Contact customer support to increase your reservation."
    return f"{text} {error_id(text)}"


def list_reservations(session: Session, call: Call) -> Json:
    """Answer reservations.list (v2alpha1): what the world setting `reservations` has, a list of the API's own objects."""
    where = resource_names.parse(str(call.params["parent"]))
    known = [dict(entry) for entry in session.setting("reservations", [])]
    shown, following = paging.page(call, [entry for entry in known if _is_in(str(entry.get("name")), where)])
    answer: Json = {"reservations": list(shown)} if shown else {}
    return {**answer, "nextPageToken": following} if following else answer


def _is_in(name: str, where: resource_names.ResourceName) -> bool:
    found = resource_names.parse(name)
    return found.project == where.project and where.zone in {resource_names.ANYWHERE, found.zone}


def _matches(stockout: Stockout, demand: Demand) -> bool:
    return (
        stockout.tier in {"*", demand.tier}
        and fnmatchcase(demand.zone, stockout.zone)
        and fnmatchcase(demand.accelerator_type, stockout.accelerator_type)
        and fnmatchcase(demand.project, stockout.project)
    )


def _dump(stockout: Stockout) -> Json:
    values: Json = {name: str(getattr(stockout, name)) for name in Stockout.__slots__}
    return {**values, "begin": stockout.begin.timestamp(), "end": stockout.end.timestamp()}


def _load(values: Json) -> Stockout:
    times = {name: datetime.fromtimestamp(values[name], UTC) for name in ("begin", "end")}
    return Stockout(**{**values, **times})

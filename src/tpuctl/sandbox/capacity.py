"""The capacity of a zone: stock-outs, with or without an end, reservations, and the demands of nodes and queued resources.

There are no stock-outs and no reservations by default.

The effect of a stock-out is observed: create and start fail in their operation, a queued resource waits for its end.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import paging, resource_names
from tpuctl.sandbox.refusals import error_id, invalid, invalid_field, no_capacity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

_SETTING = "stockouts"
_FAR = timedelta(days=36_500)  # stands for "no end"


class Tier(StrEnum):
    """The provisioning tier. Spot and preemptible nodes share one pool and one quota (documentation)."""

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
        """Return the tier of a name; `spot` is an alias. Raises `InvalidInputError`."""
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
    """The capacity that one node needs in a zone."""

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
    """Store a stock-out that begins `after` from now and lasts `duration` (None: forever) of sandbox time, and return it.

    Raises `InvalidInputError` for an unknown tier or a duration that is not positive.
    """
    if after < timedelta() or (duration is not None and duration <= timedelta()):
        raise InvalidInputError("a stock-out cannot end before it starts")
    tier = tier if tier == "*" else Tier.named(tier)
    begin = session.now + after
    end = begin + min(duration or _FAR, _FAR)
    stockout = Stockout(begin, end, zone, accelerator_type, tier, project)
    session.set_setting(_SETTING, [*map(_dump, list_stockouts(session)), _dump(stockout)])
    return stockout


def remove_stockouts(session: Session) -> int:
    """Remove all stock-outs, planned ones too, and return their number."""
    known = list_stockouts(session)
    session.set_setting(_SETTING, None)
    return len(known)


def list_stockouts(session: Session) -> list[Stockout]:
    """Return the stock-outs that have not ended, in the order in which they were added."""
    stockouts = []
    for entry in session.setting(_SETTING, []):
        times = {name: datetime.fromtimestamp(entry[name], UTC) for name in ("begin", "end")}
        stockouts.append(Stockout(**{**entry, **times}))
    return [stockout for stockout in stockouts if stockout.end > session.now]


def available_at(session: Session, demand: Demand, at: datetime) -> datetime:
    """Return the first time, from `at` on, with capacity; about a hundred years later if no end is known."""
    found = [
        stockout
        for stockout in list_stockouts(session)
        if stockout.tier in {"*", demand.tier}
        and fnmatchcase(demand.zone, stockout.zone)
        and fnmatchcase(demand.accelerator_type, stockout.accelerator_type)
        and fnmatchcase(demand.project, stockout.project)
    ]
    for stockout in sorted(found, key=lambda stockout: stockout.begin):
        if stockout.begin <= at < stockout.end:
            at = stockout.end
    return at


def shortage(session: Session, demand: Demand) -> Json | None:
    """Return the google.rpc.Status of an operation that needs capacity now. None if there is capacity."""
    if available_at(session, demand, session.now) == session.now:
        return None
    return {"code": 8, "message": shortage_text(demand.zone, demand.tier)}


def shortage_text(zone: str, tier: Tier) -> str:
    """Return the service's message for no capacity (observed; for reservations: skypilot#4579)."""
    if tier is not Tier.RESERVED:
        return no_capacity(zone)
    text = "Insufficient reserved capacity. Contact customer support to increase your reservation."
    return f"{text} {error_id(text)}"


def list_reservations(session: Session, call: Call) -> Json:
    """Answer reservations.list (v2alpha1) with the sandbox setting `reservations`, a list of the API's own objects."""
    where = resource_names.parse(str(call.params["parent"]))
    reservations = []
    for entry in session.setting("reservations", []):
        name = resource_names.parse(str(entry.get("name")))
        if name.project == where.project and where.zone in {resource_names.ANYWHERE, name.zone}:
            reservations.append(dict(entry))
    shown, next_token = paging.page(call, reservations)
    answer: Json = {"reservations": list(shown)} if shown else {}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def _dump(stockout: Stockout) -> Json:
    values: Json = {name: str(getattr(stockout, name)) for name in Stockout.__slots__}
    return {**values, "begin": stockout.begin.timestamp(), "end": stockout.end.timestamp()}


def node_demand(project: str, zone: str, body: Json) -> Demand:
    """Return the demand of a node, given by a body or a document."""
    config = body.get("acceleratorConfig") or {}
    name = str(body.get("acceleratorType") or "")
    if not name:
        name = accelerators.from_config(str(config.get("type", "")), str(config.get("topology", ""))).name
    return Demand(project, zone, name, Tier.of(body.get("schedulingConfig") or {}))


def requested_nodes(document: Json) -> dict[str, Json]:
    """Return the requested nodes, by node id, as bodies of nodes.create.

    Raises `ApiError` 400 for a spec that names both one node and several, or neither (API field text, words unverified).
    """
    specs = (document.get("tpu") or {}).get("nodeSpec") or []
    if not specs:
        raise invalid_field("Tpu", "")
    # The tier of the request is part of its nodes' scheduling.
    tier: Json = {}
    if "spot" in document or document.get("provisioningModel") == "SPOT":
        tier = {"spot": True}
    elif document.get("provisioningModel") == "FLEX_START":
        tier = {"provisioningModel": "FLEX_START"}
    elif "bestEffort" in document:
        tier = {"preemptible": True}
    elif (document.get("guaranteed") or {}).get("reserved") or document.get("reservationName"):
        tier = {"reserved": True}
    nodes: dict[str, Json] = {}
    for spec in specs:
        several = spec.get("multisliceParams") or spec.get("multiNodeParams")
        if bool(several) == bool(spec.get("nodeId")):
            raise invalid("Exactly one of node_id and multislice_params must be set.")
        body = copy.deepcopy(spec.get("node") or {})
        body["schedulingConfig"] = {**(body.get("schedulingConfig") or {}), **tier}
        if not several:
            node_ids = [str(spec["nodeId"])]
        else:
            count = int(several.get("nodeCount") or 0)
            if not 1 < count <= 1000:  # API field text: above one
                raise invalid_field("NodeCount", str(count))
            prefix = str(several.get("nodeIdPrefix") or "node")
            node_ids = [f"{prefix}-{index}" for index in range(count)]
        for node_id in node_ids:
            if node_id in nodes:
                raise invalid_field("NodeId", node_id)  # unverified
            nodes[node_id] = body
    return nodes


def node_demands(project: str, zone: str, nodes: Iterable[Json]) -> list[Demand]:
    """Return the demands of nodes in a zone."""
    return [node_demand(project, zone, body) for body in nodes]

"""What nodes need of a zone, by tier, and how much of it a project may hold: quotas. `stock` has what the zone offers.

By default there are no quotas. A quota is the number of cores or chips that a project may hold in a region or in a zone; both
limits count (observed).
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.accelerators import accelerator_type_from_topology, parse_accelerator_type
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox.api_calls import ApiError, error_id, invalid, invalid_field, no_capacity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state_session import StateSession


class CapacityTier(StrEnum):
    """The provisioning tier. Spot and preemptible nodes share one stock and one quota (documentation)."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"
    BEST_EFFORT = "best-effort"
    FLEX_START = "flex-start"

    @classmethod
    def of(cls, scheduling: Json) -> CapacityTier:
        """Return the tier of a stored `schedulingConfig`; its model may be `BEST_EFFORT` or `FLEX_START`, unlike the API's."""
        model = scheduling.get("provisioningModel")
        if model in {"BEST_EFFORT", "FLEX_START"}:
            return cls(model.lower().replace("_", "-"))
        if scheduling.get("reserved") or scheduling.get("reservationName") or model == "RESERVATION_BOUND":
            return cls.RESERVED
        if scheduling.get("spot") or scheduling.get("preemptible") or model == "SPOT":
            return cls.SPOT
        return cls.ON_DEMAND

    @classmethod
    def named(cls, word: str) -> CapacityTier:
        """Return the tier of a name; `preemptible` is an alias of `spot`. Raises `InvalidInputError`."""
        try:
            return cls("spot" if word == "preemptible" else word)
        except ValueError:
            raise InvalidInputError(f"`{word}` is not a tier", hint=f"use one of {', '.join(cls)}") from None


# The tiers that use the preemptible quota: documented for spot and flex-start, unverified for best-effort.
_PREEMPTIBLE_TIERS = frozenset({CapacityTier.SPOT, CapacityTier.BEST_EFFORT, CapacityTier.FLEX_START})


@dataclass(frozen=True, slots=True)
class Demand:
    """The capacity that one node needs in a zone. `reservation` is the full name of the one that it uses, if any."""

    project: str
    zone: str
    accelerator_type: str
    tier: CapacityTier
    reservation: str = ""


def describe_shortage(zone: str, tier: CapacityTier) -> str:
    """Return the service's message for no capacity (observed; for reservations: skypilot#4579)."""
    if tier is not CapacityTier.RESERVED:
        return no_capacity(zone)
    text = "Insufficient reserved capacity. Contact customer support to increase your reservation."
    return f"{text} {error_id(text)}"


def node_demand(project: str, zone: str, body: Json) -> Demand:
    """Return the demand of a node, given by a body or a document."""
    config = body.get("acceleratorConfig") or {}
    name = str(body.get("acceleratorType") or "")
    if not name:
        name = accelerator_type_from_topology(str(config.get("type", "")), str(config.get("topology", ""))).name
    scheduling = body.get("schedulingConfig") or {}
    return Demand(project, zone, name, CapacityTier.of(scheduling), str(scheduling.get("reservationName") or ""))


def requested_nodes(document: Json) -> dict[str, Json]:
    """Return the requested nodes, by node id, as bodies of nodes.create.

    Raises `ApiError` 400 for a spec that names both one node and several, or neither (API field text, words unverified).
    """
    specs = (document.get("tpu") or {}).get("nodeSpec") or []
    if not specs:
        raise invalid_field("Tpu", "")
    scheduling = _scheduling_of(document)
    nodes: dict[str, Json] = {}
    for spec in specs:
        several = spec.get("multisliceParams") or spec.get("multiNodeParams")
        if bool(several) == bool(spec.get("nodeId")):
            raise invalid("Exactly one of node_id and multislice_params must be set.")
        body = copy.deepcopy(spec.get("node") or {})
        body["schedulingConfig"] = {**(body.get("schedulingConfig") or {}), **scheduling}
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


def _scheduling_of(document: Json) -> Json:
    """Return what the tier of a request adds to the scheduling of its nodes.

    The fields of the tier come before the provisioning model: `gcloud alpha … --spot` sends STANDARD with it (gcloud 528).
    That the nodes of best-effort requests are preemptible is unverified.
    """
    model = document.get("provisioningModel")
    if "spot" in document or model == "SPOT":
        return {"spot": True}
    if "bestEffort" in document:
        return {"preemptible": True, "provisioningModel": "BEST_EFFORT"}
    if model == "FLEX_START":
        return {"provisioningModel": "FLEX_START"}
    reservation = str(document.get("reservationName") or "")
    if not (reservation or model == "RESERVATION_BOUND" or (document.get("guaranteed") or {}).get("reserved")):
        return {}
    bound: Json = {"provisioningModel": model} if model == "RESERVATION_BOUND" else {}
    return {"reserved": True, **bound, **({"reservationName": reservation} if reservation else {})}


def node_demands(project: str, zone: str, nodes: Iterable[Json]) -> list[Demand]:
    """Return the demands of nodes in a zone."""
    return [node_demand(project, zone, body) for body in nodes]


_QUOTAS_SETTING = "quotas"
_REGION, _ZONE = "PerProjectPerRegionForTPUAPI", "PerProjectPerZoneForTPUAPI"
# On demand (and reserved: unverified) and preemptible, by generation. Observed unless marked.
_STEMS = {
    "v2": ("TPUV2s", "TPUV2sPreemptible"),  # unverified for a single worker
    "v2 pod": ("TPUV2sPod", "TPUV2sPreemptiblePod"),  # the second observed: skypilot source
    "v3": ("TPUV3s", "TPUV3sPreemptible"),  # unverified
    "v3 pod": ("TPUV3sPod", "TPUV3sPreemptiblePod"),  # unverified
    "v4": ("TPUV4sPod", "TPUV4sPreemptiblePod"),  # the second observed: marin#87
    "v5e": ("TPUV5sLitepod", "TPUV5sPreemptibleLitepod"),  # observed: marin#87, published quota lists
    "v5e serving": ("TPUV5sLitepodServing", "TPUV5sPreemptibleLitepodServing"),  # the second unverified
    "v5p": ("TPUV5P", "TPUV5PPreemptible"),  # observed: users' logs
    "v6e": ("TPUV6E", "TPUV6EPreemptible"),  # observed: marin#1612
}


@dataclass(frozen=True, slots=True)
class TpuQuota:
    """A limit, in the unit of the number in type names: cores up to v4 and for v5p, chips for v5e and v6e.

    `place` is a region or a zone, as the metric says, or `*` for each.
    """

    metric: str
    place: str
    limit: int
    project: str


def put_quota(
    session: StateSession,
    *,
    limit: int,
    metric: str = "",
    generation: str = "",
    tier: str = CapacityTier.ON_DEMAND,
    region: str = "",
    zone: str = "",
    project: str = "sandbox",
) -> TpuQuota:
    """Store a limit, replacing an earlier one for the same metric and place, and return it.

    The subject is given by the service's `metric`, or by a `generation` with a `tier`: `v6e`, …, `v2 pod` and `v3 pod` for
    slices, `v5e serving` for v5litepod-1, -4 and -8. With neither region nor zone it applies to each region (or zone, as the
    metric says). Raises `InvalidInputError` for an unknown metric, generation or tier.
    """
    if limit < 0:
        raise InvalidInputError(f"the limit of a quota cannot be {limit}", hint="give 0 or more")
    if region and zone:
        raise InvalidInputError("a quota is for a region or for a zone, not for both", hint="set two quotas")
    if not metric:
        metric = _metric_stem(generation, CapacityTier.named(tier)) + (_ZONE if zone else _REGION)
    if metric not in _known_metrics():
        raise InvalidInputError(
            f"`{metric}` is not a quota of the TPU API", hint=f"use a metric such as {_known_metrics()[-1]}"
        )
    if (zone and metric.endswith(_REGION)) or (region and metric.endswith(_ZONE)):
        raise InvalidInputError(f"`{metric}` is not counted in `{zone or region}`")
    quota = TpuQuota(metric, region or zone or "*", limit, project)
    others = [known for known in list_quotas(session) if _quota_key(known) != _quota_key(quota)]
    session.set_setting(_QUOTAS_SETTING, [asdict(known) for known in (*others, quota)])
    return quota


def list_quotas(session: StateSession) -> list[TpuQuota]:
    """Return the limits of all projects."""
    return [TpuQuota(**entry) for entry in session.setting(_QUOTAS_SETTING, [])]


def check_quotas(session: StateSession, demands: Iterable[Demand], *, is_queued: bool = False) -> None:
    """Raise `ApiError` 429 if the demands and the usage together exceed a limit; regions first (unverified)."""
    quotas = {_quota_key(quota): quota for quota in list_quotas(session)}
    if not quotas:
        return
    needed = _total_demand(demands)
    used = _total_demand(_demands_in_use(session, {project for project, _, _ in needed}))
    for (project, metric, place), amount in sorted(needed.items(), key=lambda item: item[0][1].endswith(_ZONE)):
        quota = quotas.get((project, metric, place)) or quotas.get((project, metric, "*"))
        if quota and used[project, metric, place] + amount > quota.limit:
            raise quota_refusal(metric, place, limit=quota.limit, is_queued=is_queued)


def quota_refusal(metric: str, place: str, *, limit: int, is_queued: bool = False) -> ApiError:
    """Return the 429 of the service (observed: marin#1612 for nodes, marin#87 for queued resources)."""
    where = f"{'zone' if metric.endswith(_ZONE) else 'region'} {place}"
    if not is_queued:
        text = f"Quota limit '{metric}' has been exceeded. Limit: {limit} in {where}."
        return ApiError(429, "RESOURCE_EXHAUSTED", text)
    text = f"Quota '{metric}' exhausted. Limit {limit} in {where}"
    # The detail is observed (skypilot source), its subject unverified.
    violations = [{"subject": metric, "description": text}]
    detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}
    return ApiError(429, "RESOURCE_EXHAUSTED", text, detail)


def quota_usage(session: StateSession, project: str) -> dict[tuple[str, str], int]:
    """Return the usage of a project, by metric and place."""
    total = _total_demand(_demands_in_use(session, {project}))
    return {(metric, place): amount for (_, metric, place), amount in total.items()}


def quota_metrics(demand: Demand) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the metric and place that a node counts against, in the region and in the zone."""
    accelerator = parse_accelerator_type(demand.accelerator_type)
    generation = accelerator.generation.name
    if generation in {"v2", "v3"} and accelerator.is_slice:
        generation += " pod"
    elif generation == "v5e" and accelerator.size in accelerator.generation.single_worker_sizes:
        generation += " serving"  # observed: users' logs; pull request marin#6198
    stem = _metric_stem(generation, demand.tier)
    return (stem + _REGION, demand.zone.rpartition("-")[0]), (stem + _ZONE, demand.zone)


def _metric_stem(generation: str, tier: CapacityTier) -> str:
    if generation not in _STEMS:
        raise InvalidInputError(f"`{generation}` has no quota", hint=f"use one of {', '.join(_STEMS)}")
    return _STEMS[generation][tier in _PREEMPTIBLE_TIERS]


def _known_metrics() -> tuple[str, ...]:
    return tuple(stem + scope for stems in _STEMS.values() for stem in stems for scope in (_REGION, _ZONE))


def _quota_key(quota: TpuQuota) -> tuple[str, str, str]:
    return quota.project, quota.metric, quota.place


def _total_demand(demands: Iterable[Demand]) -> Counter[tuple[str, str, str]]:
    total: Counter[tuple[str, str, str]] = Counter()
    for demand in demands:
        for metric, place in quota_metrics(demand):
            total[demand.project, metric, place] += parse_accelerator_type(demand.accelerator_type).size
    return total


def _demands_in_use(session: StateSession, projects: set[str]) -> Iterator[Demand]:
    """Yield the demand of every record: of a queued resource its nodes, and of each other node itself.

    Dead records (PREEMPTED nodes, SUSPENDED and FAILED queued resources) count until they are deleted (observed).
    """
    for project in projects:
        requests = session.queued_resources(project)
        owners = {record.name for record in requests}
        for record in requests:
            yield from node_demands(record.project, record.zone, requested_nodes(record.document).values())
        for node in session.nodes(project):
            if session.exists(node) and node.queued_resource not in owners:
                yield node_demand(node.project, node.zone, node.document)

"""Quotas: the number of cores or chips that a project may hold in a region and in a zone. There is no limit by default.

Observed: the names below without a mark; that region and zone limits both count; that dead records (PREEMPTED nodes,
SUSPENDED and FAILED queued resources) count until they are deleted; and the error messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.capacity import Tier, node_demand, node_demands, requested_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.sandbox.capacity import Demand
    from tpuctl.sandbox.world import Session

_SETTING = "quotas"
_REGION, _ZONE = "PerProjectPerRegionForTPUAPI", "PerProjectPerZoneForTPUAPI"
# On demand (and reserved: unverified) and preemptible, by generation.
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
class Quota:
    """A limit, in the unit of the number in type names: cores up to v4 and for v5p, chips for v5e and v6e.

    `place` is a region or a zone, as the metric says, or `*` for each.
    """

    metric: str
    place: str
    limit: int
    project: str


def set_quota(
    session: Session,
    *,
    limit: int,
    metric: str = "",
    generation: str = "",
    tier: str = Tier.ON_DEMAND,
    region: str = "",
    zone: str = "",
    project: str = "sandbox",
) -> Quota:
    """Store a limit, replacing an earlier one for the same metric and place, and return it.

    The subject is given by the service's `metric`, or by a `generation` with a `tier`: `v6e`, …, `v2 pod` and `v3 pod` for
    slices, `v5e serving` for v5litepod-1, -4 and -8. With neither region nor zone it applies to each region (or zone, as the
    metric says). Raises `InvalidInputError` for an unknown metric, generation or tier.
    """
    if limit < 0:
        raise InvalidInputError(f"the limit of a quota cannot be {limit}", hint="give 0 or more")
    if region and zone:
        raise InvalidInputError("a quota is for a region or for a zone", hint="set two")
    if not metric:
        metric = _stem(generation, Tier.named(tier)) + (_ZONE if zone else _REGION)
    if metric not in _metrics():
        raise InvalidInputError(f"`{metric}` is not a quota of the TPU API", hint=f"such as {_metrics()[-1]}")
    if (zone and metric.endswith(_REGION)) or (region and metric.endswith(_ZONE)):
        raise InvalidInputError(f"`{metric}` is not counted in `{zone or region}`")
    quota = Quota(metric, region or zone or "*", limit, project)
    others = [known for known in list_quotas(session) if _key(known) != _key(quota)]
    session.set_setting(_SETTING, [asdict(known) for known in (*others, quota)])
    return quota


def list_quotas(session: Session) -> list[Quota]:
    """Return the limits of all projects."""
    return [Quota(**entry) for entry in session.setting(_SETTING, [])]


def check(session: Session, demands: Iterable[Demand], *, is_queued: bool = False) -> None:
    """Raise `ApiError` 429 if the demands and the usage together exceed a limit; regions first (unverified)."""
    quotas = {_key(quota): quota for quota in list_quotas(session)}
    if not quotas:
        return
    wanted = _total(demands)
    held = _total(_held(session, {project for project, _, _ in wanted}))
    for (project, metric, place), amount in sorted(wanted.items(), key=lambda item: item[0][1].endswith(_ZONE)):
        quota = quotas.get((project, metric, place)) or quotas.get((project, metric, "*"))
        if quota and held[project, metric, place] + amount > quota.limit:
            raise refusal(metric, place, limit=quota.limit, is_queued=is_queued)


def refusal(metric: str, place: str, *, limit: int, is_queued: bool = False) -> ApiError:
    """Return the 429 of the service (observed: marin#1612 for nodes, marin#87 for queued resources)."""
    where = f"{'zone' if metric.endswith(_ZONE) else 'region'} {place}"
    if not is_queued:
        text = f"Quota limit '{metric}' has been exceeded. Limit: {limit} in {where}."
        return ApiError(429, "RESOURCE_EXHAUSTED", text)
    text = f"Quota '{metric}' exhausted. Limit {limit} in {where}"
    violation = {
        "subject": metric,
        "description": text,
    }  # the detail is observed (skypilot source), its subject unverified
    detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
    return ApiError(429, "RESOURCE_EXHAUSTED", text, detail)


def usage(session: Session, project: str) -> dict[tuple[str, str], int]:
    """Return the usage of a project, by metric and place."""
    return {(metric, place): amount for (_, metric, place), amount in _total(_held(session, {project})).items()}


def metrics(demand: Demand) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the metric and place that a node counts against, in the region and in the zone."""
    accelerator = accelerators.parse(demand.accelerator_type)
    generation = accelerator.generation.name
    if generation in {"v2", "v3"} and accelerator.is_slice:
        generation += " pod"
    elif generation == "v5e" and accelerator.size in accelerator.generation.single:
        generation += " serving"  # observed: users' logs; pull request marin#6198
    stem = _stem(generation, demand.tier)
    return (stem + _REGION, demand.zone.rpartition("-")[0]), (stem + _ZONE, demand.zone)


def _stem(generation: str, tier: Tier) -> str:
    if generation not in _STEMS:
        raise InvalidInputError(f"`{generation}` has no quota", hint=f"use one of {', '.join(_STEMS)}")
    return _STEMS[generation][tier is Tier.PREEMPTIBLE]


def _metrics() -> tuple[str, ...]:
    return tuple(stem + scope for stems in _STEMS.values() for stem in stems for scope in (_REGION, _ZONE))


def _key(quota: Quota) -> tuple[str, str, str]:
    return quota.project, quota.metric, quota.place


def _total(demands: Iterable[Demand]) -> Counter[tuple[str, str, str]]:
    total: Counter[tuple[str, str, str]] = Counter()
    for demand in demands:
        for metric, place in metrics(demand):
            total[demand.project, metric, place] += accelerators.parse(demand.accelerator_type).size
    return total


def _held(session: Session, projects: set[str]) -> Iterator[Demand]:
    """Yield the demand of every record: of a queued resource its nodes, in any state, and of each other node itself."""
    for project in projects:
        requests = session.queued_resources(project)
        owners = {record.name for record in requests}
        for record in requests:
            yield from node_demands(record.project, record.zone, requested_nodes(record.document).values())
        for node in session.nodes(project):
            if session.exists(node) and node.queued_resource not in owners:
                yield node_demand(node.project, node.zone, node.document)

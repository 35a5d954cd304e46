"""Service Usage v1beta1: the quotas of the TPU API as metrics with limits, each with the places that differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from tpuctl.sandbox import catalog, paging, quotas, serviceusage

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.quotas import Quota
    from tpuctl.sandbox.world import Session

_SERVICE = "tpu.googleapis.com"
_ENDS = {"PerProjectPerRegionForTPUAPI": "region", "PerProjectPerZoneForTPUAPI": "zone"}
_UNLIMITED = "-1"  # API field text of QuotaOverride.overrideValue


def list_(session: Session, call: Call) -> Json:
    """Answer consumerQuotaMetrics.list: the limits that the world has; other services than the TPU API have none here.

    One metric's name was seen, `tpu-v5s-litepod-serving-preemptible` (observed: marin#6198); the others follow its form. That
    the display name is the limit's is unverified.
    """
    project, service = serviceusage.named(session, str(call.params["parent"]))
    found: dict[str, list[Quota]] = {}
    for quota in quotas.list_quotas(session) if service == _SERVICE else []:
        if quota.project == project:
            found.setdefault(quota.metric, []).append(quota)
    parent = f"projects/{catalog.project_number(project)}/services/{service}/consumerQuotaMetrics"
    shown, following = paging.page(call, [_metric(parent, name, limits) for name, limits in sorted(found.items())])
    answer: Json = {"metrics": list(shown)}
    return {**answer, "nextPageToken": following} if following else answer


def _metric(parent: str, limit_name: str, limits: list[Quota]) -> Json:
    dimension = next(word for end, word in _ENDS.items() if limit_name.endswith(end))
    metric = f"{_SERVICE}/{_kebab(limit_name.partition('PerProject')[0])}"
    name = f"{parent}/{quote(metric, safe='')}"
    everywhere = next((str(quota.limit) for quota in limits if quota.place == "*"), _UNLIMITED)
    buckets: list[Json] = [{"effectiveLimit": everywhere, "defaultLimit": everywhere}]
    for quota in limits:
        if quota.place != "*":
            dimensions = {dimension: quota.place}
            buckets.append({"effectiveLimit": str(quota.limit), "defaultLimit": everywhere, "dimensions": dimensions})
    limit = {
        "name": f"{name}/limits/{quote(f'/project/{dimension}', safe='')}",
        "metric": metric,
        "unit": f"1/{{project}}/{{{dimension}}}",
        "quotaBuckets": buckets,
    }
    return {"name": name, "metric": metric, "displayName": limit_name, "consumerQuotaLimits": [limit], "unit": "1"}


def _kebab(stem: str) -> str:
    words = re.findall(r"TPU|V\d\w?(?![a-z])|[A-Z][a-z]+", stem.replace("Preemptible", ""))
    return "-".join([*(word.lower() for word in words), *(["preemptible"] if "Preemptible" in stem else [])])

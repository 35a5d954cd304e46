"""Service Usage v1beta1: the quotas of the TPU API as metrics with limits, each with the regions or zones that differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from tpuctl.sandbox import catalog, paging, quotas, serviceusage
from tpuctl.sandbox.compute import places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.quotas import Quota
    from tpuctl.sandbox.world import Session

_SERVICE = "tpu.googleapis.com"
_ENDS = {"PerProjectPerRegionForTPUAPI": "region", "PerProjectPerZoneForTPUAPI": "zone"}
_UNLIMITED = -1  # API field text of QuotaOverride.overrideValue


def list_(session: Session, call: Call) -> Json:
    """Answer consumerQuotaMetrics.list with the limits of the sandbox; services other than the TPU API have none here.

    Observed in code that reads this API: the metrics `tpu-v5s-litepod`, `tpu-v5s-litepod-serving` and `tpu-v6e`, these and
    `tpu-v5p` with the suffix `-preemptible`; the others follow their form (sources disagree on v4). Also observed: one metric
    has a limit by zone and one by region, and a limit of 0 is omitted, as a number that is 0 always is.
    """
    project, service = serviceusage.named(session, str(call.params["parent"]))
    found: dict[str, dict[str, list[Quota]]] = {}
    for quota in quotas.list_quotas(session) if service == _SERVICE else []:
        if quota.project == project:
            dimension = next(word for end, word in _ENDS.items() if quota.metric.endswith(end))
            stem = quota.metric.partition("PerProject")[0]
            words = re.findall(r"TPU|V\d\w?(?![a-z])|[A-Z][a-z]+", stem.replace("Preemptible", ""))
            suffix = ["preemptible"] if "Preemptible" in stem else []
            metric = f"{_SERVICE}/{'-'.join([*(word.lower() for word in words), *suffix])}"
            found.setdefault(metric, {}).setdefault(dimension, []).append(quota)
    parent = f"projects/{catalog.project_number(project)}/services/{service}/consumerQuotaMetrics"
    shown, next_token = paging.page(call, [_metric(parent, metric, limits) for metric, limits in sorted(found.items())])
    answer: Json = {"metrics": list(shown)}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def _metric(parent: str, metric: str, limits: Mapping[str, list[Quota]]) -> Json:
    name = f"{parent}/{quote(metric, safe='')}"
    return {
        "name": name,
        "metric": metric,
        # The real display names are unknown.
        "displayName": metric.rpartition("/")[2],
        "consumerQuotaLimits": [_limit(name, metric, word, limits[word]) for word in sorted(limits, reverse=True)],
        "unit": "1",
    }


def _limit(parent: str, metric: str, dimension: str, limits: list[Quota]) -> Json:
    everywhere = next((quota.limit for quota in limits if quota.place == "*"), _UNLIMITED)
    somewhere = [
        {**_bucket(quota.limit, everywhere), "dimensions": {dimension: quota.place}}
        for quota in limits
        if quota.place != "*"
    ]
    return {
        "name": f"{parent}/limits/{quote(f'/project/{dimension}', safe='')}",
        "metric": metric,
        "unit": f"1/{{project}}/{{{dimension}}}",
        "isPrecise": True,
        # API field text: the least specific comes first.
        "quotaBuckets": [_bucket(everywhere, everywhere), *somewhere],
        # API field text: all locations; here those of the sandbox.
        "supportedLocations": list(catalog.places() if dimension == "zone" else places.regions()),
    }


def _bucket(effective: int, default: int) -> Json:
    """Return the values of a bucket, without zeros."""
    values = {"effectiveLimit": effective, "defaultLimit": default}
    return {name: str(value) for name, value in values.items() if value}

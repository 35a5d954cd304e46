"""Service Usage: the enabled services of a project (v1), and its quotas of the TPU API as metrics with limits (v1beta1)."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from tpuctl.sandbox import capacity
from tpuctl.sandbox.api_calls import (
    DEFAULT_PROJECT,
    ApiError,
    answers,
    error_info,
    help_detail,
    invalid,
    list_response,
    not_found,
)
from tpuctl.sandbox.catalog import location_names, number_of_project
from tpuctl.sandbox.compute_engine import region_names
from tpuctl.sandbox.resource_manager import is_known_project, resolve_project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.capacity import TpuQuota
    from tpuctl.sandbox.state_session import StateSession

SERVICE_KIND = "serviceusage.service"
# The services that are enabled by default: the APIs that the sandbox serves.
SERVICE_TITLES = {
    "cloudbilling.googleapis.com": "Cloud Billing API",
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "compute.googleapis.com": "Compute Engine API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "orgpolicy.googleapis.com": "Organization Policy API",
    "oslogin.googleapis.com": "Cloud OS Login API",
    "serviceusage.googleapis.com": "Service Usage API",
    "storage.googleapis.com": "Cloud Storage API",
    "tpu.googleapis.com": "Cloud TPU API",
}
_READ_AT_ONCE = 30  # API field text of services.batchGet
_CONSOLE = "https://console.developers.google.com"


def put_service_states(
    session: StateSession, states: Mapping[str, str | bool], *, project: str = DEFAULT_PROJECT
) -> None:
    """Enable or disable services: `{"tpu.googleapis.com": "DISABLED"}`, or booleans."""
    for name, state in states.items():
        document = {"state": "ENABLED" if state in {True, "ENABLED"} else "DISABLED"}
        session.resources.put(SERVICE_KIND, project, name, document)


def is_service_enabled(session: StateSession, project: str, name: str) -> bool:
    """Return whether a service is enabled."""
    service = session.resources.get(SERVICE_KIND, project, name)
    return service["state"] == "ENABLED" if service else name in SERVICE_TITLES


def service_disabled_error(project: str, service: str) -> ApiError:
    """Return the error of a disabled service (observed: published error bodies of the Cloud TPU API)."""
    number = number_of_project(project)
    url = f"{_CONSOLE}/apis/api/{service}/overview?project={number}"
    message = (
        f"{SERVICE_TITLES.get(service, service)} has not been used in project {number} before or it is disabled. Enable it by "
        f"visiting {url} then retry. If you enabled this API recently, wait a few minutes for the action to propagate to "
        "our systems and retry."
    )
    info = error_info("SERVICE_DISABLED", {"service": service, "consumer": f"projects/{number}"})
    help_link = help_detail("Google developers console API activation", url)
    return ApiError(403, "PERMISSION_DENIED", message, help_link, info, reason="accessNotConfigured")


@answers("serviceusage.services.get")
def _get_service(session: StateSession, call: Call) -> Json:
    project, name = _parse_service_name(session, call["name"])
    return _service_document(session, project, name)


@answers("serviceusage.services.list")
def _list_services(session: StateSession, call: Call) -> Json:
    """List services; the supported filters are `state:ENABLED` and `state:DISABLED`."""
    project = _resolve_parent(session, call["parent"])
    filter_text = call["filter"].replace(" ", "").upper()
    if filter_text not in {"", "STATE:ENABLED", "STATE:DISABLED"}:
        raise invalid("Invalid filter string.")  # unverified
    names = sorted(
        {*SERVICE_TITLES, *(services.name for services in session.resources.list_records(SERVICE_KIND, project))}
    )
    services = [_service_document(session, project, name) for name in names]
    return list_response(
        call, "services", [service for service in services if filter_text in {"", f"STATE:{service['state']}"}]
    )


@answers("serviceusage.services.enable")
def _enable_service(session: StateSession, call: Call) -> Json:
    project, name = _parse_service_name(session, call["name"])
    put_service_states(session, {name: True}, project=project)
    count = session.next_incarnation("serviceusage.operation")
    digest = hashlib.blake2b(str((session.now, name)).encode(), digest_size=8).hexdigest()
    types = f"type.googleapis.com/google.api.serviceusage.{call.version}."
    operation: Json = {
        "name": f"operations/acf.p2-{count:08d}-{digest}",
        "metadata": {"@type": f"{types}OperationMetadata", "resourceNames": [f"services/{name}"]},
        "done": True,
        "response": {"@type": f"{types}EnableServiceResponse", "service": _service_document(session, project, name)},
    }
    session.resources.put("serviceusage.operation", "", operation["name"], operation)
    session.resources.trim("serviceusage.operation", "", keep=1000)
    return operation


@answers("serviceusage.services.batchGet")
def _batch_get_services(session: StateSession, call: Call) -> Json:
    project = _resolve_parent(session, call["parent"])
    names = [str(name) for name in call.params.get("names") or []]
    if not 0 < len(names) <= _READ_AT_ONCE:
        raise invalid(f"The number of services must be between 1 and {_READ_AT_ONCE}.")  # unverified words
    services = [_parse_service_name(session, name) for name in names]
    if any(parent != project for parent, _ in services):
        raise invalid("All services must have the same parent.")  # unverified words
    return {"services": [_service_document(session, project, name) for _, name in services]}


@answers("serviceusage.operations.get")
def _get_service_operation(session: StateSession, call: Call) -> Json:
    return session.resources.fetch("serviceusage.operation", "", call["name"], missing=not_found(call["name"]))


def _service_document(session: StateSession, project: str, name: str) -> Json:
    parent = f"projects/{number_of_project(project)}"
    return {
        "name": f"{parent}/services/{name}",
        "parent": parent,
        "config": {"name": name, "title": SERVICE_TITLES.get(name, name)},
        "state": "ENABLED" if is_service_enabled(session, project, name) else "DISABLED",
    }


def _parse_service_name(session: StateSession, full: str) -> tuple[str, str]:
    """Return project and service of a resource name. Raises `ApiError` if one is unknown."""
    parent, _, name = full.partition("/services/")
    _check_service_name(name)
    return _resolve_parent(session, parent), name


def _check_service_name(name: str) -> None:
    if not name.endswith(".googleapis.com"):
        # Observed: what `gcloud services enable` prints for a misspelt name.
        raise ApiError(404, "NOT_FOUND", f"Not found or permission denied for service(s): {name}.")


def _resolve_parent(session: StateSession, parent: str) -> str:
    project = resolve_project(session, parent)
    if not is_known_project(session, project):
        message = f"Project '{project}' not found or permission denied."  # observed: the catalogue of gcloud's messages
        raise ApiError(403, "PERMISSION_DENIED", message)
    return project


_SERVICE = "tpu.googleapis.com"
_ENDS = {"PerProjectPerRegionForTPUAPI": "region", "PerProjectPerZoneForTPUAPI": "zone"}
_UNLIMITED = -1  # API field text of QuotaOverride.overrideValue


@answers("serviceusage.services.consumerQuotaMetrics.list")
def _list_quota_metrics(session: StateSession, call: Call) -> Json:
    """List metrics with the limits of the sandbox; services other than the TPU API have none here.

    Observed in code that reads this API: the metrics `tpu-v5s-litepod`, `tpu-v5s-litepod-serving` and `tpu-v6e`, these and
    `tpu-v5p` with the suffix `-preemptible`; the others follow their form (sources disagree on v4). Also observed: one metric
    has a limit by zone and one by region, and a limit of 0 is omitted, as a number that is 0 always is.
    """
    project, service = _parse_service_name(session, call["parent"])
    limits_by_metric: dict[str, dict[str, list[TpuQuota]]] = {}
    for quota in capacity.list_quotas(session) if service == _SERVICE else []:
        if quota.project == project:
            dimension = next(word for end, word in _ENDS.items() if quota.metric.endswith(end))
            stem = quota.metric.partition("PerProject")[0]
            words = re.findall(r"TPU|V\d\w?(?![a-z])|[A-Z][a-z]+", stem.replace("Preemptible", ""))
            suffix = ["preemptible"] if "Preemptible" in stem else []
            metric = f"{_SERVICE}/{'-'.join([*(word.lower() for word in words), *suffix])}"
            limits_by_metric.setdefault(metric, {}).setdefault(dimension, []).append(quota)
    parent = f"projects/{number_of_project(project)}/services/{service}/consumerQuotaMetrics"
    metrics = []
    for metric, limits in sorted(limits_by_metric.items()):
        name = f"{parent}/{quote(metric, safe='')}"
        by_dimension = [_limit_document(name, metric, word, limits[word]) for word in sorted(limits, reverse=True)]
        metrics.append(
            {
                "name": name,
                "metric": metric,
                # The real display names are unknown.
                "displayName": metric.rpartition("/")[2],
                "consumerQuotaLimits": by_dimension,
                "unit": "1",
            }
        )
    return list_response(call, "metrics", metrics)


def _limit_document(parent: str, metric: str, dimension: str, limits: list[TpuQuota]) -> Json:
    everywhere = next((quota.limit for quota in limits if quota.place == "*"), _UNLIMITED)
    exceptions = [
        {**_quota_bucket(quota.limit, everywhere), "dimensions": {dimension: quota.place}}
        for quota in limits
        if quota.place != "*"
    ]
    return {
        "name": f"{parent}/limits/{quote(f'/project/{dimension}', safe='')}",
        "metric": metric,
        "unit": f"1/{{project}}/{{{dimension}}}",
        "isPrecise": True,
        # API field text: the least specific comes first.
        "quotaBuckets": [_quota_bucket(everywhere, everywhere), *exceptions],
        # API field text: all locations; here those of the sandbox.
        "supportedLocations": list(location_names() if dimension == "zone" else region_names()),
    }


def _quota_bucket(effective: int, default: int) -> Json:
    """Return the values of a bucket, without zeros."""
    values = {"effectiveLimit": effective, "defaultLimit": default}
    return {name: str(value) for name, value in values.items() if value}

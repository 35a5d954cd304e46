"""Service Usage: the enabled services of a project, and its quotas."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, paging, projects
from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.refusals import not_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "serviceusage.service"
# The services that are enabled by default: the APIs that the sandbox serves.
TITLES = {
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
_AT_ONCE = 20  # API field text of BatchEnableServicesRequest
_READ_AT_ONCE = 30  # API field text of services.batchGet
_CONSOLE = "https://console.developers.google.com"


def set_state(session: Session, project: str, name: str, *, enabled: bool) -> None:
    """Enable or disable a service."""
    session.resources.put(KIND, project, name, {"state": "ENABLED" if enabled else "DISABLED"})


def is_enabled(session: Session, project: str, name: str) -> bool:
    """Return whether a service is enabled."""
    found = session.resources.get(KIND, project, name)
    return found["state"] == "ENABLED" if found else name in TITLES


def disabled(project: str, service: str) -> ApiError:
    """Return the error of a disabled service (observed: published error bodies of the Cloud TPU API)."""
    number = catalog.project_number(project)
    url = f"{_CONSOLE}/apis/api/{service}/overview?project={number}"
    message = (
        f"{TITLES.get(service, service)} has not been used in project {number} before or it is disabled. Enable it by "
        f"visiting {url} then retry. If you enabled this API recently, wait a few minutes for the action to propagate to "
        "our systems and retry."
    )
    links = [{"description": "Google developers console API activation", "url": url}]
    metadata = {"service": service, "consumer": f"projects/{number}"}
    info: Json = {"reason": "SERVICE_DISABLED", "domain": "googleapis.com", "metadata": metadata}
    return ApiError(
        403,
        "PERMISSION_DENIED",
        message,
        {"@type": "type.googleapis.com/google.rpc.Help", "links": links},
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info},
        reason="accessNotConfigured",
    )


def get(session: Session, call: Call) -> Json:
    """Answer services.get."""
    project, name = named(session, str(call.params["name"]))
    return _service(session, project, name)


def list_(session: Session, call: Call) -> Json:
    """Answer services.list; the supported filters are `state:ENABLED` and `state:DISABLED`."""
    project = _project(session, str(call.params["parent"]))
    wanted = str(call.params.get("filter") or "").replace(" ", "").upper()
    if wanted not in {"", "STATE:ENABLED", "STATE:DISABLED"}:
        raise ApiError(400, "INVALID_ARGUMENT", "Invalid filter string.")  # unverified
    names = sorted({*TITLES, *(found.name for found in session.resources.list_records(KIND, project))})
    found = [_service(session, project, name) for name in names]
    found = [service for service in found if not wanted or wanted == f"STATE:{service['state']}"]
    shown, next_token = paging.page(call, found)
    answer: Json = {"services": list(shown)}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def enable(session: Session, call: Call) -> Json:
    """Answer services.enable with a finished operation."""
    project, name = named(session, str(call.params["name"]))
    session.log_request(call.method, str(call.params["name"]))
    set_state(session, project, name, enabled=True)
    response = {"service": _service(session, project, name)}
    return _operation(session, call.version, "EnableServiceResponse", response, names=[name])


def disable(session: Session, call: Call) -> Json:
    """Answer services.disable with a finished operation."""
    project, name = named(session, str(call.params["name"]))
    session.log_request(call.method, str(call.params["name"]))
    set_state(session, project, name, enabled=False)
    response = {"service": _service(session, project, name)}
    return _operation(session, call.version, "DisableServiceResponse", response, names=[name])


def batch_enable(session: Session, call: Call) -> Json:
    """Answer services.batchEnable: all or none."""
    project = _project(session, str(call.params["parent"]))
    session.log_request(call.method, str(call.params["parent"]))
    names = [str(name) for name in call.body.get("serviceIds", [])]
    if not 0 < len(names) <= _AT_ONCE:
        raise ApiError(400, "INVALID_ARGUMENT", f"A batch enables 1 to {_AT_ONCE} services.")  # unverified words
    for name in names:
        _check_name(name)
        set_state(session, project, name, enabled=True)
    response = {"services": [_service(session, project, name) for name in names]}
    return _operation(session, call.version, "BatchEnableServicesResponse", response, names=names)


def batch_get(session: Session, call: Call) -> Json:
    """Answer services.batchGet."""
    project = _project(session, str(call.params["parent"]))
    names = [str(name) for name in call.params.get("names") or []]
    if not 0 < len(names) <= _READ_AT_ONCE:
        message = f"The number of services must be between 1 and {_READ_AT_ONCE}."  # unverified words
        raise ApiError(400, "INVALID_ARGUMENT", message)
    found = []
    for full in names:
        parent, name = named(session, full)
        if parent != project:
            raise ApiError(400, "INVALID_ARGUMENT", "All services must have the same parent.")  # unverified words
        found.append(_service(session, project, name))
    return {"services": found}


def get_operation(session: Session, call: Call) -> Json:
    """Answer operations.get."""
    found = session.resources.get("serviceusage.operation", "", str(call.params["name"]))
    if found is None:
        raise not_found(str(call.params["name"]))
    return found


def _operation(session: Session, version: str, kind: str, response: Json, *, names: Sequence[str]) -> Json:
    digest = hashlib.blake2b(str((session.now, names)).encode(), digest_size=8).hexdigest()
    count = session.next_incarnation("serviceusage.operation")
    operation: Json = {
        "name": f"operations/acf.p2-{count:08d}-{digest}",
        "metadata": {
            "@type": f"type.googleapis.com/google.api.serviceusage.{version}.OperationMetadata",
            "resourceNames": [f"services/{name}" for name in names],
        },
        "done": True,
        "response": {"@type": f"type.googleapis.com/google.api.serviceusage.{version}.{kind}", **response},
    }
    session.resources.put("serviceusage.operation", "", operation["name"], operation)
    session.resources.trim("serviceusage.operation", "", keep=1000)
    return operation


def _service(session: Session, project: str, name: str) -> Json:
    parent = f"projects/{catalog.project_number(project)}"
    return {
        "name": f"{parent}/services/{name}",
        "parent": parent,
        "config": {"name": name, "title": TITLES.get(name, name)},
        "state": "ENABLED" if is_enabled(session, project, name) else "DISABLED",
    }


def named(session: Session, full: str) -> tuple[str, str]:
    """Return project and service of a resource name. Raises `ApiError` if one is unknown."""
    parent, _, name = full.partition("/services/")
    _check_name(name)
    return _project(session, parent), name


def _check_name(name: str) -> None:
    if not name.endswith(".googleapis.com"):
        # Observed: what `gcloud services enable` prints for a misspelt name.
        raise ApiError(404, "NOT_FOUND", f"Not found or permission denied for service(s): {name}.")


def _project(session: Session, parent: str) -> str:
    project = projects.named(session, parent.partition("/")[2])
    if not projects.is_known(session, project):
        message = f"Project '{project}' not found or permission denied."  # observed: the catalogue of gcloud's messages
        raise ApiError(403, "PERMISSION_DENIED", message)
    return project

"""The little of Compute Engine that TPU clients touch: a project's metadata, and the zones."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, paging, rendering
from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.refusals import not_found

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

_BASE = "https://www.googleapis.com/compute/v1/projects"


def get_project(session: Session, call: Call) -> Json:
    """Answer projects.get."""
    project = str(call.params["project"])
    metadata = session.project(project)
    shown: Json = {"kind": "compute#metadata", "fingerprint": _fingerprint(metadata)}
    if metadata.get("items"):
        shown["items"] = metadata["items"]
    return {
        "kind": "compute#project",
        "id": str(catalog.project_number(project)),
        "name": project,
        "selfLink": f"{_BASE}/{project}",
        "commonInstanceMetadata": shown,
        "defaultServiceAccount": f"{catalog.project_number(project)}-compute@developer.gserviceaccount.com",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def set_common_instance_metadata(session: Session, call: Call) -> Json:
    """Answer projects.setCommonInstanceMetadata: 412 unless the fingerprint is that of the metadata as it is."""
    project = str(call.params["project"])
    session.log_request(call.method, project)
    given = call.body.get("fingerprint")
    if given and given != _fingerprint(session.project(project)):
        message = "Supplied fingerprint does not match current metadata fingerprint."
        raise ApiError(412, "FAILED_PRECONDITION", message)
    session.put_project(project, {"items": call.body.get("items", [])})
    return _operation(project, f"operation-{int(session.now.timestamp() * 1e6)}", session.now)


def get_operation(session: Session, call: Call) -> Json:
    """Answer globalOperations.get and wait: what the sandbox begins here is done at once."""
    name, project = str(call.params["operation"]), str(call.params["project"])
    if not name.startswith("operation-"):
        raise not_found(f"projects/{project}/global/operations/{name}")
    return _operation(project, name, session.now)


def list_zones(session: Session, call: Call) -> Json:
    """Answer zones.list with the zones that host TPUs."""
    del session
    project = str(call.params["project"])
    params = {"pageSize": call.params.get("maxResults"), "pageToken": call.params.get("pageToken")}
    shown, following = paging.page(type(call)(call.version, call.method, params, {}), catalog.zones())
    answer: Json = {
        "kind": "compute#zoneList",
        "id": f"projects/{project}/zones",
        "selfLink": f"{_BASE}/{project}/zones",
    }
    answer["items"] = [_zone(project, zone) for zone in shown]
    return {**answer, "nextPageToken": following} if following else answer


def _zone(project: str, zone: str) -> Json:
    region = zone.rpartition("-")[0]
    return {
        "kind": "compute#zone",
        "name": zone,
        "status": "UP",
        "region": f"{_BASE}/{project}/regions/{region}",
        "selfLink": f"{_BASE}/{project}/zones/{zone}",
    }


def _fingerprint(metadata: Json) -> str:
    digest = hashlib.blake2b(json.dumps(metadata.get("items", [])).encode(), digest_size=8).digest()
    return base64.b64encode(digest).decode()


def _operation(project: str, name: str, now: datetime) -> Json:
    return {
        "kind": "compute#operation",
        "id": str(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())),
        "name": name,
        "operationType": "compute.projects.setCommonInstanceMetadata",
        "status": "DONE",
        "progress": 100,
        "insertTime": rendering.timestamp(now),
        "endTime": rendering.timestamp(now),
        "targetLink": f"{_BASE}/{project}",
        "selfLink": f"{_BASE}/{project}/global/operations/{name}",
    }

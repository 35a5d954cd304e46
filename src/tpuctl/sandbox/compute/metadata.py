"""A project in Compute Engine, with the metadata of all its machines."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog
from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.compute import operations
from tpuctl.sandbox.compute.documents import BASE

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session


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
        "creationTimestamp": "2026-01-01T00:00:00.000-08:00",
        "name": project,
        "selfLink": f"{BASE}projects/{project}",
        "commonInstanceMetadata": shown,
        "defaultServiceAccount": f"{catalog.project_number(project)}-compute@developer.gserviceaccount.com",
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def set_common_instance_metadata(session: Session, call: Call) -> Json:
    """Answer projects.setCommonInstanceMetadata: 412 if the fingerprint is not the current one."""
    project = str(call.params["project"])
    session.log_request(call.method, project)
    before = session.project(project)
    given = call.body.get("fingerprint")
    if given and given != _fingerprint(before):
        # Observed: the message that gcloud prints after a concurrent change.
        message = "Supplied fingerprint does not match current metadata fingerprint."
        raise ApiError(412, "FAILED_PRECONDITION", message)
    session.put_project(project, {**before, "items": call.body.get("items", [])})
    return operations.begin(session, call, "compute.projects.setCommonInstanceMetadata", target=f"projects/{project}")


def _fingerprint(metadata: Json) -> str:
    digest = hashlib.blake2b(json.dumps(metadata.get("items", [])).encode(), digest_size=8).digest()
    return base64.b64encode(digest).decode()

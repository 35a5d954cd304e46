"""The permission that each call needs on its project, and each API's error if the caller lacks it.

The caller has every permission except those that a project denies. Cloud Storage and Resource Manager check permissions
themselves: Cloud Storage also checks buckets, Resource Manager has its own errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, iam, projects
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

# Permissions that are not named after the method. Source: the API's documentation of each method. The reference of
# Organization Policy v2 names `orgpolicy.policies.get`, which IAM's list of permissions does not have. The reference of Service
# Usage does not mention `batchGet` (unverified), and has `serviceusage.quota.get` in one table and `serviceusage.quotas.get` in
# another: IAM has the second.
_NAMED: Mapping[str, str] = {
    "cloudbilling.projects.getBillingInfo": "resourcemanager.projects.get",
    "iam.projects.roles.get": "iam.roles.get",
    "orgpolicy.projects.policies.create": "orgpolicy.policies.create",
    "orgpolicy.projects.policies.delete": "orgpolicy.policies.delete",
    "orgpolicy.projects.policies.get": "orgpolicy.policy.get",
    "orgpolicy.projects.policies.getEffectivePolicy": "orgpolicy.policy.get",
    "orgpolicy.projects.policies.list": "orgpolicy.policies.list",
    "orgpolicy.projects.policies.patch": "orgpolicy.policies.update",
    "serviceusage.services.batchEnable": "serviceusage.services.enable",
    "serviceusage.services.batchGet": "serviceusage.services.get",
    "serviceusage.services.consumerQuotaMetrics.list": "serviceusage.quotas.get",
    # Unknown: IAM's list has no permission for these.
    "tpu.projects.locations.generateServiceIdentity": "",
    "tpu.projects.locations.operations.cancel": "",
    "tpu.projects.locations.operations.delete": "",
}
_VERBS = {"aggregatedList": "list", "insert": "create", "patch": "update", "wait": "get"}
# IAM's list of permissions (documentation: the role TPU Admin has all of them) has none for queued resources, reservations
# and guest attributes; that those of nodes apply is unverified.
_OF_NODES = frozenset({"queuedresources", "reservations"})
_TPU_VERBS = {
    **_VERBS,
    "getGuestAttributes": "get",
    "getMaintenanceInfo": "get",
    "performMaintenanceQueuedResource": "performMaintenance",
}


def check(session: Session, call: Call, project: str) -> None:
    """Raise `ApiError` 403 if the caller lacks the permission that a call needs on a project."""
    denied = projects.denied(session, project)
    permission = needed(call.method) if denied else ""
    if not permission or not iam.is_denied(permission, denied):
        return
    match call.method.partition(".")[0]:
        case "compute":
            raise _compute(call, project, permission)
        case "orgpolicy":
            # Observed for a create: terraform-google-org-policy#101.
            resource = f"//cloudresourcemanager.googleapis.com/projects/{project}"
            message = f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
            info = _info(permission, project, "orgpolicy.googleapis.com")
            raise ApiError(403, "PERMISSION_DENIED", message, info)
        case "serviceusage":
            raise _serviceusage(call, project, permission)
        case "tpu":
            # Observed: tensorflow/tpu#296.
            name = str(call.params.get("name") or call.params.get("parent") or f"projects/{project}")
            node = f"/nodes/{call.params['nodeId']}" if call.params.get("nodeId") else ""
            raise ApiError(403, "PERMISSION_DENIED", f"Permission '{permission}' denied on '{name}{node}'")
        case "iam":
            message = f"You don't have permission to get the role at {call.params['name']}."  # unverified words
            raise ApiError(403, "PERMISSION_DENIED", message)
        case "cloudbilling":
            raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")  # observed: users of gcloud
        case api:
            raise AssertionError(f"no permission check for {api}")


def needed(method: str) -> str:
    """Return the permission that a method needs on its project.

    It is empty if the API itself checks permissions, and if none is needed or known.
    """
    if method in _NAMED:
        return _NAMED[method]
    api, *collections, verb = method.split(".")
    match api:
        case "compute":
            return f"compute.{collections[-1]}.{_VERBS.get(verb, verb)}"
        case "tpu":
            kind = collections[-1].lower()
            return f"tpu.{'nodes' if kind in _OF_NODES else kind}.{_TPU_VERBS.get(verb, verb)}"
        case "serviceusage" if collections[-1] == "services":
            return f"serviceusage.services.{verb}"
        case _:
            return ""


def _compute(call: Call, project: str, permission: str) -> ApiError:
    """Return the error of Compute Engine (observed: alexandarp/terraform-gke#2, hashicorp/terraform#18873)."""
    collection = call.method.split(".")[-2]
    name = str(call.params.get(collection.removesuffix("s")) or call.body.get("name") or "")
    path = f"projects/{project}"  # lists need the permission on the project
    if name and collection in {"zones", "regions"}:
        path += f"/{collection}/{name}"
    elif name and collection != "projects":
        scope = next((f"{word}s/{call.params[word]}" for word in ("zone", "region") if word in call.params), "global")
        path += f"/{scope}/{collection}/{name}"
    return ApiError(403, "PERMISSION_DENIED", f"Required '{permission}' permission for '{path}'")


def _serviceusage(call: Call, project: str, permission: str) -> ApiError:
    """Return the error of Service Usage (observed for a list: aquasecurity/cloudsploit#1606; the others unverified)."""
    container = f"consumer container [projects/{catalog.project_number(project)}]"
    name = str(call.params.get("name") or "").rpartition("/services/")[2]
    verb = call.method.rpartition(".")[2]
    if permission == "serviceusage.quotas.get":
        message = f"Permission denied to get quota information for {container}"
    elif name:
        message = f"Permission denied to {verb} service [{name}]"
    else:
        message = f"Permission denied to {'enable' if verb == 'batchEnable' else 'list'} services for {container}"
    info = {**_info(permission, project, "serviceusage.googleapis.com"), "reason": "AUTH_PERMISSION_DENIED"}
    return ApiError(403, "PERMISSION_DENIED", message, info)


def _info(permission: str, project: str, domain: str) -> Json:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "IAM_PERMISSION_DENIED",
        "domain": domain,
        "metadata": {"permission": permission, "resource": f"projects/{project}"},
    }

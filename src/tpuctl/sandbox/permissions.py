"""Which permission a call needs on its project, and how each API words that the caller lacks it.

The caller has every permission but those that a project was made without (`denied`). Cloud Storage and Resource Manager look
for themselves: the one asks buckets too, the other has words of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, iam, projects
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

# Where a permission is not called after the method. Source: the API's documentation of each method. The reference of
# Organization Policy v2 writes `orgpolicy.policies.get`, which IAM's list of permissions does not have; that of Service Usage
# is silent about `batchGet` (unverified), and writes `serviceusage.quota.get` in one table and `serviceusage.quotas.get` in the
# other: the second is IAM's.
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
    # What these take is not known: IAM's list has nothing of the kind.
    "tpu.projects.locations.generateServiceIdentity": "",
    "tpu.projects.locations.operations.cancel": "",
    "tpu.projects.locations.operations.delete": "",
}
_VERBS = {"aggregatedList": "list", "insert": "create", "patch": "update", "wait": "get"}
# IAM's list of permissions (documentation: the role TPU Admin has all that there are) has none of queued resources,
# reservations and guest attributes; that those of nodes stand for them is unverified.
_OF_NODES = frozenset({"queuedresources", "reservations"})
_TPU_VERBS = {
    **_VERBS,
    "getGuestAttributes": "get",
    "getMaintenanceInfo": "get",
    "performMaintenanceQueuedResource": "performMaintenance",
}


def check(session: Session, call: Call, project: str) -> None:
    """Raise `ApiError` 403 when the caller lacks on a project what a call needs."""
    denied = projects.denied(session, project)
    permission = needed(call.method) if denied else ""
    if permission and iam.is_denied(permission, denied):
        raise _WORDS[call.method.partition(".")[0]](call, project, permission)


def needed(method: str) -> str:
    """Return the permission that a method needs on its project.

    It is empty where the API itself looks, and where none is needed or known.
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
    """Return the refusal of Compute Engine (observed: alexandarp/terraform-gke#2, hashicorp/terraform#18873)."""
    return ApiError(403, "PERMISSION_DENIED", f"Required '{permission}' permission for '{_path(call, project)}'")


def _path(call: Call, project: str) -> str:
    """Return the resource that a call of compute is about: the project itself for what is listed."""
    collection = call.method.split(".")[-2]
    name = str(call.params.get(collection.removesuffix("s")) or call.body.get("name") or "")
    if collection == "projects" or not name:
        return f"projects/{project}"
    if collection in {"zones", "regions"}:
        return f"projects/{project}/{collection}/{name}"
    scope = next((f"{word}s/{call.params[word]}" for word in ("zone", "region") if word in call.params), "global")
    return f"projects/{project}/{scope}/{collection}/{name}"


def _tpu(call: Call, project: str, permission: str) -> ApiError:
    """Return the refusal of the TPU API (observed: tensorflow/tpu#296)."""
    name = str(call.params.get("name") or call.params.get("parent") or f"projects/{project}")
    node = call.params.get("nodeId")
    return ApiError(
        403, "PERMISSION_DENIED", f"Permission '{permission}' denied on '{name}{f'/nodes/{node}' if node else ''}'"
    )


def _orgpolicy(call: Call, project: str, permission: str) -> ApiError:
    """Return the refusal of Organization Policy (observed for a create: terraform-google-org-policy#101)."""
    del call
    resource = f"//cloudresourcemanager.googleapis.com/projects/{project}"
    message = f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
    return ApiError(403, "PERMISSION_DENIED", message, _info(permission, project, "orgpolicy.googleapis.com"))


def _serviceusage(call: Call, project: str, permission: str) -> ApiError:
    """Return the refusal of Service Usage (observed for a list: aquasecurity/cloudsploit#1606; the others unverified)."""
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


def _billing(call: Call, project: str, permission: str) -> ApiError:
    del call, project, permission
    return ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")  # observed: users of gcloud


def _iam(call: Call, project: str, permission: str) -> ApiError:
    del project, permission
    message = f"You don't have permission to get the role at {call.params['name']}."  # unverified words
    return ApiError(403, "PERMISSION_DENIED", message)


def _info(permission: str, project: str, domain: str) -> Json:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "IAM_PERMISSION_DENIED",
        "domain": domain,
        "metadata": {"permission": permission, "resource": f"projects/{project}"},
    }


_WORDS: Mapping[str, Callable[[Call, str, str], ApiError]] = {
    "cloudbilling": _billing,
    "compute": _compute,
    "iam": _iam,
    "orgpolicy": _orgpolicy,
    "serviceusage": _serviceusage,
    "tpu": _tpu,
}

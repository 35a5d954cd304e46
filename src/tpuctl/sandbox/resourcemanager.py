"""Cloud Resource Manager v1 and v3: projects and their IAM policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, iam, paging, projects
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

_MADE = "2026-01-01T00:00:00.000Z"


def get(session: Session, call: Call) -> Json:
    """Answer projects.get."""
    return _shown(session, _project(session, call, permission="resourcemanager.projects.get"), call.version)


def list_(session: Session, call: Call) -> Json:
    """Answer projects.list with the caller's projects: those that were added, by default `sandbox`. Filters are ignored."""
    found = projects.listed(session) or ("sandbox",)
    mine = [
        _shown(session, project, call.version)
        for project in found
        if not iam.is_denied("resourcemanager.projects.get", projects.denied(session, project))
    ]
    shown, next_token = paging.page(call, mine)
    answer: Json = {"projects": list(shown)} if shown else {}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def undelete(session: Session, call: Call) -> Json:
    """Answer projects.undelete."""
    project = _project(session, call, permission="resourcemanager.projects.undelete")
    session.log_request(call.method, f"projects/{project}")
    denied = projects.denied(session, project)
    projects.add(session, project, fields={**projects.described(session, project), "state": "ACTIVE"}, denied=denied)
    return {} if call.version == "v1" else {"done": True, "response": _shown(session, project, call.version)}


def _shown(session: Session, project: str, version: str) -> Json:
    about = projects.described(session, project)
    number, created = str(catalog.project_number(project)), about.get("createTime", _MADE)
    if version == "v1":
        shown: Json = {"projectNumber": number, "projectId": project, "name": about.get("displayName", project)}
        shown |= {"lifecycleState": about.get("state", "ACTIVE"), "createTime": created}
    else:
        shown = {"name": f"projects/{number}", "projectId": project, "displayName": about.get("displayName", project)}
        shown |= {"state": about.get("state", "ACTIVE"), "createTime": created, "etag": 'W/"0123456789abcdef"'}
        if parent := about.get("parent"):
            shown["parent"] = parent
    return {**shown, "labels": about["labels"]} if about.get("labels") else shown


def get_iam_policy(session: Session, call: Call) -> Json:
    """Answer projects.getIamPolicy."""
    project = _project(session, call, permission="resourcemanager.projects.getIamPolicy")
    asked = int((call.body.get("options") or {}).get("requestedPolicyVersion") or 1)
    return iam.shown(iam.policy(session, "project", project, default=default_policy(project), version=asked))


def set_iam_policy(session: Session, call: Call) -> Json:
    """Answer projects.setIamPolicy: 409 if the etag is not the current one."""
    project = _project(session, call, permission="resourcemanager.projects.setIamPolicy")
    session.log_request(call.method, f"projects/{project}")
    wanted = call.body.get("policy") or {}
    kept = iam.set_policy(session, "project", project, wanted, default=default_policy(project))
    if kept is None:
        # Observed: the words that terraform and gcloud users quote.
        message = (
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
        )
        raise ApiError(409, "ABORTED", message)
    return iam.shown(kept)


def test_iam_permissions(session: Session, call: Call) -> Json:
    """Answer projects.testIamPermissions with the requested permissions that the caller has."""
    project = projects.named(session, str(call.params["resource"]).removeprefix("projects/"))
    lacking = projects.denied(session, project) if projects.is_known(session, project) else ("*",)
    granted = iam.allowed(call.body.get("permissions", []), lacking)
    return {"permissions": granted} if granted else {}


def default_policy(project: str) -> Json:
    """Return the initial policy of a project: its owner, the default service account as editor, the TPU service agent."""
    number = catalog.project_number(project)
    return {
        "bindings": [
            {"role": "roles/editor", "members": [f"serviceAccount:{number}-compute@developer.gserviceaccount.com"]},
            {"role": "roles/owner", "members": ["user:owner@example.com"]},
            {
                "role": "roles/tpu.serviceAgent",
                "members": [f"serviceAccount:service-{number}@cloud-tpu.iam.gserviceaccount.com"],
            },
        ]
    }


def _project(session: Session, call: Call, *, permission: str) -> str:
    given = str(call.params.get("projectId") or call.params.get("resource") or call.params.get("name"))
    project = projects.named(session, given.removeprefix("projects/"))
    if projects.is_known(session, project) and not iam.is_denied(permission, projects.denied(session, project)):
        return project
    if call.version == "v1":
        raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")  # observed, for v1
    resource = f"//cloudresourcemanager.googleapis.com/projects/{project}"
    # Observed: falcon-integration-gateway#98.
    message = f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
    info: Json = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "IAM_PERMISSION_DENIED",
        "domain": "cloudresourcemanager.googleapis.com",
        "metadata": {"permission": permission, "resource": f"projects/{project}"},
    }
    raise ApiError(403, "PERMISSION_DENIED", message, info)

"""Reject calls that the real service rejects before its API sees them: unknown project, disabled service, no billing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import cloudbilling, permissions, projects, serviceusage
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call
    from tpuctl.sandbox.world import Session

# These APIs manage projects, or most of their calls name none. They answer calls about unknown projects themselves, with
# their own errors, and they work without billing.
_FREE = frozenset(
    {"serviceusage", "cloudresourcemanager", "cloudbilling", "iam", "oslogin", "iamcredentials", "storage"}
)
_UNPAID = _FREE | {"orgpolicy"}
# These calls must work while Service Usage itself is disabled, or no call could enable it. The real service checks the project
# that the caller bills; for gcloud that is gcloud's own.
_ALWAYS = frozenset({"serviceusage.services.enable", "serviceusage.services.batchEnable"})


def check(session: Session, call: Call) -> None:
    """Raise `ApiError` if a call may not reach its project.

    The project is unknown, has disabled the called service, has no billing, or denies the caller the needed permission.
    The APIs that manage projects reject unknown projects themselves.
    """
    api = call.method.partition(".")[0]
    params = call.params
    resource = str(params.get("name") or params.get("parent") or params.get("resource") or "")
    named = (
        resource.split("/")[1] if resource.startswith("projects/") else params.get("project") or params.get("projectId")
    )
    project = projects.named(session, str(named or ""))
    if not project or project == "-":
        return
    if not projects.is_known(session, project):
        if api in _FREE:
            return
        if api == "compute":
            # Compute answers before its frontends check the owner (observed: errors that gcloud and terraform users quote).
            raise ApiError(404, "NOT_FOUND", f"The resource 'projects/{project}' was not found")
        raise permission_denied(project, api)
    service = f"{api}.googleapis.com"
    if call.method not in _ALWAYS and api != "storage" and not serviceusage.is_enabled(session, project, service):
        raise serviceusage.disabled(project, service)
    if api not in _UNPAID and not cloudbilling.is_enabled(session, project):
        raise cloudbilling.disabled(project, service)
    permissions.check(session, call, project)


def permission_denied(project: str, api: str) -> ApiError:
    """Return the error for a project that does not exist or is not the caller's (observed: gemini-cli#1808)."""
    message = f"Permission denied on resource project {project}."
    metadata = {"service": f"{api}.googleapis.com", "consumer": f"projects/{project}", "containerInfo": project}
    return ApiError(
        403,
        "PERMISSION_DENIED",
        message,
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "CONSUMER_INVALID",
            "domain": "googleapis.com",
            "metadata": metadata,
        },
        {"@type": "type.googleapis.com/google.rpc.LocalizedMessage", "locale": "en-US", "message": message},
        {
            "@type": "type.googleapis.com/google.rpc.Help",
            "links": [{"description": "Google developers console", "url": "https://console.developers.google.com"}],
        },
    )

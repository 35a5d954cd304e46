"""What keeps a call from its project before the API sees it: the project is unknown, its service disabled, nobody pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import cloudbilling, permissions, projects, serviceusage
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call
    from tpuctl.sandbox.world import Session

# They manage projects, or name none in most calls: they answer about unknown ones where they are served, in words of their
# own, and none of them is refused where nobody pays.
_FREE = frozenset(
    {"serviceusage", "cloudresourcemanager", "cloudbilling", "iam", "oslogin", "iamcredentials", "storage"}
)
_UNPAID = _FREE | {"orgpolicy"}
# What must go on when Service Usage itself is disabled, or nothing could enable it again. The real one looks at the project
# that the caller bills, which for gcloud is gcloud's own.
_ALWAYS = frozenset({"serviceusage.services.enable", "serviceusage.services.batchEnable"})


def check(session: Session, call: Call) -> None:
    """Raise `ApiError` when a call may not reach its project.

    The project is unknown, has disabled the service that is called, has no billing, or denies the caller what the call needs.
    The APIs that manage projects answer about unknown ones in their own words, where they are served.
    """
    api = call.method.partition(".")[0]
    project = projects.named(session, _project_of(call))
    if not project or project == "-":
        return
    if not projects.is_known(session, project):
        if api in _FREE:
            return
        raise _compute_unknown(project) if api == "compute" else permission_denied(project, api)
    service = f"{api}.googleapis.com"
    if call.method not in _ALWAYS and api != "storage" and not serviceusage.is_enabled(session, project, service):
        raise serviceusage.disabled(project, service)
    if api not in _UNPAID and not cloudbilling.is_enabled(session, project):
        raise cloudbilling.disabled(project, service)
    permissions.check(session, call, project)


def permission_denied(project: str, api: str) -> ApiError:
    """Return the answer about a project that does not exist or is not the caller's (observed: gemini-cli#1808)."""
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


def _compute_unknown(project: str) -> ApiError:
    # Compute answers before its frontends ask whose project it is (observed: the words of gcloud and terraform users).
    return ApiError(404, "NOT_FOUND", f"The resource 'projects/{project}' was not found")


def _project_of(call: Call) -> str:
    params = call.params
    name = str(params.get("name") or params.get("parent") or params.get("resource") or "")
    if name.startswith("projects/"):
        return name.split("/")[1]
    return str(params.get("project") or params.get("projectId") or "")

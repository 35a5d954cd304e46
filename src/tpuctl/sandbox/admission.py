"""What keeps a call from its project before the API sees it: the project is unknown, its service disabled, nobody pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import cloudbilling, projects, serviceusage
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call
    from tpuctl.sandbox.world import Session

# They manage projects, or name none in most calls: they answer about unknown ones where they are served, in words of their own.
_FREE = frozenset(
    {"serviceusage", "cloudresourcemanager", "cloudbilling", "iam", "oslogin", "iamcredentials", "storage"}
)


def check(session: Session, call: Call) -> None:
    """Raise `ApiError` when a call's project is unknown, has disabled the service that is called, or has no billing.

    The APIs that manage projects answer about unknown ones in their own words, where they are served.
    """
    api = call.method.partition(".")[0]
    project = _project_of(call)
    if api in _FREE or not project or project == "-":
        return
    if not projects.is_known(session, project):
        raise _compute_unknown(project) if api == "compute" else permission_denied(project, api)
    if not serviceusage.is_enabled(session, project, f"{api}.googleapis.com"):
        raise serviceusage.disabled(project, f"{api}.googleapis.com")
    if not cloudbilling.is_enabled(session, project):
        raise cloudbilling.disabled(project, f"{api}.googleapis.com")


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
    name = str(call.params.get("name") or call.params.get("parent") or "")
    return name.split("/")[1] if name.startswith("projects/") else str(call.params.get("project") or "")

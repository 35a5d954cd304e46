"""The projects of a sandbox.

Every project is known once it is used. If projects were added (`add`), only those are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, rendering

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.world import Session

KIND = "cloudresourcemanager.project"


def add(session: Session, project: str, *, fields: Json, denied: tuple[str, ...]) -> Json:
    """Store a project, with the permissions that the caller lacks on it. Return it as cloudresourcemanager v3 shows it."""
    fields = {key: value for key, value in fields.items() if key not in {"projectNumber", "projectId"}}
    created = rendering.milliseconds(session.now)
    session.resources.put(KIND, "", project, {"fields": {"createTime": created, **fields}, "denied": list(denied)})
    return {"name": f"projects/{catalog.project_number(project)}", "projectId": project, "state": "ACTIVE", **fields}


def described(session: Session, project: str) -> Json:
    """Return the fields that were given when a project was added; empty for a project that is known by use."""
    found = session.resources.get(KIND, "", project)
    return dict(found["fields"]) if found else {}


def denied(session: Session, project: str) -> tuple[str, ...]:
    """Return the permissions that the caller lacks on a project."""
    found = session.resources.get(KIND, "", project)
    return tuple(found["denied"]) if found else ()


def listed(session: Session) -> tuple[str, ...]:
    """Return the projects that were added."""
    return tuple(found.name for found in session.resources.list_records(KIND, ""))


def is_known(session: Session, project: str) -> bool:
    """Return whether a project exists."""
    return not (names := listed(session)) or project in names


def named(session: Session, text: str) -> str:
    """Return the id of a project given by id or number; the number itself if no project in use has it."""
    if not text.isdecimal():
        return text
    used = {*listed(session), "sandbox", *(node.project for node in session.nodes())}
    used |= {bucket.parent for bucket in session.resources.list_records("storage.bucket")}
    return next((project for project in used if str(catalog.project_number(project)) == text), text)

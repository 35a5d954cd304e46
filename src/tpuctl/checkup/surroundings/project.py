"""The project: whether one is named, and what its caller may do there. What it is itself `preflight` judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.findings import Rule

# What commands need, and how bad it is without [IAM's list of permissions; roles/tpu.admin has those of the TPU API].
NEEDED = {
    "tpu.nodes.list": (Level.ERROR, "no node can be found"),
    "tpu.nodes.get": (Level.ERROR, "no node can be looked at"),
    "tpu.nodes.create": (Level.WARNING, "`up` and `create` are refused"),
    "tpu.nodes.delete": (Level.WARNING, "`down` and `delete` are refused"),
    "tpu.nodes.start": (Level.WARNING, "a stopped node cannot be started"),
    "tpu.nodes.stop": (Level.WARNING, "`stop` and repair by a restart are refused"),
    "tpu.nodes.update": (Level.WARNING, "the ssh key cannot be put into a node's metadata"),
    "tpu.operations.get": (Level.WARNING, "what became of a change cannot be looked up"),
    "tpu.acceleratortypes.list": (Level.NOTE, "`tpuctl types` and a part of the checks are refused"),
    "compute.projects.get": (Level.NOTE, "keys and OS Login of the whole project are not known"),
    "serviceusage.services.get": (Level.NOTE, "which APIs are enabled is not known"),
}


@rule("TPU940", "a project is named")
def named(seen: Surroundings) -> Iterator[Found]:
    """Look whether a project is set, by whatever of `tpuctl config show`.

    Without one nearly every command ends: a warning, and an error where a node is to be looked at.
    """
    node = seen.cloud.node
    match seen.cloud.project:
        case Known(name):
            yield Found(level=Level.OK, subject="project", text=f"the project is `{name}`", facts={"project": name})
        case Unknown(reason):
            text = f"which project is meant is not known: {reason}"
            yield Found(level=Level.UNKNOWN, subject="project", text=text, facts={"project": None})
        case Absent():
            yield Found(
                level=Level.ERROR if node else Level.WARNING,
                subject="project",
                text="no project is set",
                why=f"`{node}` cannot be looked for" if node else "commands need `--project` each time",
                remedies=(
                    Remedy("set it", "tpuctl config set project PROJECT"),
                    Remedy("where PROJECT is one of these", commands.list_projects()),
                ),
                facts={"project": None},
            )


@rule("TPU941", "permissions")
def permissions(seen: Surroundings) -> Iterator[Found]:
    """Ask which of the permissions that commands use the caller has on the project (`testIamPermissions`).

    Without those to list and to look at nodes it is an error, without one that changes nodes a warning, else a note. Source:
    method text of Resource Manager v3, which needs no permission itself.
    """
    name = seen.cloud.project.value if isinstance(seen.cloud.project, Known) else ""
    subject = f"project {name}" if name else "project"
    if seen.cloud.unasked:
        text = f"its APIs, its billing and what you may do in it were not looked at: {seen.cloud.unasked}"
        yield Found(level=Level.UNKNOWN, subject=subject, text=text, is_passing=True)
        return
    match seen.cloud.permissions:
        case None:
            return
        case Unknown() | Absent() as fact:
            text = f"what you may do in the project is not known: {fact.reason}"
            is_passing = isinstance(fact, Unknown) and fact.is_passing
            yield Found(level=Level.UNKNOWN, subject=subject, text=text, is_passing=is_passing)
        case Known(held):
            lacking = [one for one in seen.cloud.wanted_permissions if one not in held]
            for level in (Level.ERROR, Level.WARNING, Level.NOTE):
                if missing := [one for one in lacking if NEEDED[one][0] is level]:
                    yield _lacking(subject, name, level, missing, member=_member(seen))
            if not lacking:
                text = "you have the permissions that commands use"
                yield Found(level=Level.OK, subject=subject, text=text, facts={"missingPermissions": []})


def _lacking(subject: str, project: str, level: Level, missing: list[str], *, member: str) -> Found:
    ticked = ", ".join(f"`{one}`" for one in missing)
    is_of_tpu = any(one.startswith("tpu.") for one in missing)
    role = "roles/tpu.admin" if is_of_tpu else "roles/viewer"
    grant = f"gcloud projects add-iam-policy-binding {project} --member={member} --role={role} --condition=None"
    return Found(
        level=level,
        subject=subject,
        text=f"you lack {ticked} in project `{project}`",
        why="; ".join(NEEDED[one][1] for one in missing),
        remedies=(Remedy(f"have an owner of the project give you `{role}`", grant),),
        facts={"missingPermissions": missing, "role": role},
    )


def _member(seen: Surroundings) -> str:
    """Return the account that calls are made as, as IAM writes it."""
    account = seen.identity.impersonated or seen.identity.account or "EMAIL"
    return f"{'serviceAccount' if account.endswith('.gserviceaccount.com') else 'user'}:{account}"


RULES: tuple[Rule[Surroundings], ...] = (named, permissions)

"""Rules about the project: whether one is set, and the permissions of the caller. `check` judges the project itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.findings import Rule

# The permissions that commands use, and the effect of a missing one [IAM's list; roles/tpu.admin has those of the TPU API].
NEEDED = {
    "tpu.nodes.list": (Level.ERROR, "nodes cannot be listed"),
    "tpu.nodes.get": (Level.ERROR, "nodes cannot be read"),
    "tpu.nodes.create": (Level.WARNING, "`up` and `create` are refused"),
    "tpu.nodes.delete": (Level.WARNING, "`down` and `delete` are refused"),
    "tpu.nodes.start": (Level.WARNING, "a stopped node cannot be started"),
    "tpu.nodes.stop": (Level.WARNING, "`stop` and repair by a restart are refused"),
    "tpu.nodes.update": (Level.WARNING, "the ssh key cannot be put into a node's metadata"),
    "tpu.operations.get": (Level.WARNING, "the outcome of a change cannot be read"),
    "tpu.acceleratortypes.list": (Level.NOTE, "`tpuctl types` and some checks are refused"),
    "compute.projects.get": (Level.NOTE, "project-wide ssh keys and OS Login are unknown"),
    "serviceusage.services.get": (Level.NOTE, "it is unknown which APIs are enabled"),
}


@rule("TPU940", "project is set")
def named(environment: Surroundings) -> Iterator[Found]:
    """Check that a project is set, by any source that `tpuctl config show` lists.

    Most commands fail without one: a warning, and an error if a NODE is named.
    """
    node = environment.cloud.node
    match environment.cloud.project:
        case Known(name):
            yield Found(level=Level.OK, subject="project", text=f"the project is `{name}`", facts={"project": name})
        case Unknown(reason):
            text = f"the project could not be read from the settings: {reason}"
            yield Found(level=Level.UNKNOWN, subject="project", text=text, facts={"project": None})
        case Absent():
            yield Found(
                level=Level.ERROR if node else Level.WARNING,
                subject="project",
                text="no project is set",
                why=f"`{node}` cannot be searched for" if node else "commands need `--project` each time",
                remedies=(
                    Remedy("set it", "tpuctl config set project PROJECT"),
                    Remedy("list your projects", commands.list_projects()),
                ),
                facts={"project": None},
            )


@rule("TPU941", "permissions")
def permissions(environment: Surroundings) -> Iterator[Found]:
    """Check which of the permissions that commands use the caller has on the project (`testIamPermissions`).

    An error without those to list and get nodes, a warning without one that changes nodes, else a note. Source: method text of
    Resource Manager v3; the method itself needs no permission.
    """
    name = environment.cloud.project.value if isinstance(environment.cloud.project, Known) else ""
    subject = f"project {name}" if name else "project"
    if environment.cloud.skip_reason:
        text = f"its APIs, its billing and your permissions were not checked: {environment.cloud.skip_reason}"
        yield Found(level=Level.UNKNOWN, subject=subject, text=text, is_passing=True)
        return
    match environment.cloud.permissions:
        case None:
            return
        case Unknown() | Absent() as fact:
            text = f"your permissions in the project are unknown: {fact.reason}"
            is_passing = isinstance(fact, Unknown) and fact.is_passing
            yield Found(level=Level.UNKNOWN, subject=subject, text=text, is_passing=is_passing)
        case Known(held):
            account = environment.identity.impersonated or environment.identity.account or "EMAIL"
            lacking = [one for one in environment.cloud.wanted_permissions if one not in held]
            for level in (Level.ERROR, Level.WARNING, Level.NOTE):
                if missing := [one for one in lacking if NEEDED[one][0] is level]:
                    yield _missing_permissions(subject, name, level, missing, account=account)
            if not lacking:
                text = "you have the permissions that commands use"
                yield Found(level=Level.OK, subject=subject, text=text, facts={"missingPermissions": []})


def _missing_permissions(subject: str, project: str, level: Level, missing: list[str], *, account: str) -> Found:
    member = f"{'serviceAccount' if account.endswith('.gserviceaccount.com') else 'user'}:{account}"
    ticked = ", ".join(f"`{one}`" for one in missing)
    is_of_tpu = any(one.startswith("tpu.") for one in missing)
    role = "roles/tpu.admin" if is_of_tpu else "roles/viewer"
    grant = f"gcloud projects add-iam-policy-binding {project} --member={member} --role={role} --condition=None"
    return Found(
        level=level,
        subject=subject,
        text=f"you lack {ticked} in project `{project}`",
        why="; ".join(NEEDED[one][1] for one in missing),
        remedies=(Remedy(f"ask an owner of the project to grant you `{role}`", grant),),
        facts={"missingPermissions": missing, "role": role},
    )


RULES: tuple[Rule[Surroundings], ...] = (named, permissions)

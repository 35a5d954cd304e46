"""The project: whether it is there and billed, its APIs, and what its organisation forbids.

What could not be read is reported once: the project by TPU506, its APIs by TPU501, billing by TPU502, all policies of the
organisation together by TPU503.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.facts import COMPUTE, EXTERNAL_IPS, IAP, OS_LOGIN, SHIELDED_VM, STORAGE, TPU
from tpuctl.preflight.findings import EnableService, Found, Level, Remedy, rule
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.project import OrgPolicy
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule
    from tpuctl.preflight.wanted import Wanted

_WORDS = {
    EXTERNAL_IPS: "external addresses",
    OS_LOGIN: "OS Login",
    SHIELDED_VM: "Secure Boot",
}
_GOING = frozenset({"DELETE_REQUESTED", "DELETE_IN_PROGRESS"})


@rule("TPU501", "the APIs are enabled")
def services(facts: Facts) -> Iterator[Found]:
    """Check whether the project has the APIs enabled that the node needs.

    It is an error where `tpu.googleapis.com` is not, which makes nodes, or `compute.googleapis.com`, which has their
    network, firewall, disks and default account [documentation]. It is a warning where `storage.googleapis.com` is not and
    buckets are used, or `iap.googleapis.com` and ssh goes through Identity-Aware Proxy: both are documented as prerequisites,
    but that nothing works without them is unverified. An API that has answered is enabled, whatever the list says.
    """
    subject, answered = _subject(facts), _answered(facts)
    needed = _needed_services(facts.wanted)
    match facts.services:
        case None:
            return
        case Unknown() | Absent() as fact:
            names = " and ".join(f"`{name}`" for name in answered)
            what = "which APIs are enabled" + (f" beside {names}, which answered," if answered else "")
            yield unread(fact, subject, what, permission="serviceusage.services.get", project=facts.wanted.project)
            fine = answered
        case Known(enabled):
            fine = [name for name in needed if enabled.get(name) or name in answered]
            for name in needed:
                if name not in fine and name in enabled:
                    yield _disabled(facts, name, *needed[name])
    if fine:
        words = ", ".join(f"`{name}`" for name in fine)
        text = f"{words} {'are' if len(fine) > 1 else 'is'} enabled"
        yield Found(level=Level.OK, subject=subject, text=text, facts={"services": fine})


@rule("TPU502", "the project is billed")
def billing(facts: Facts) -> Iterator[Found]:
    """Check whether the project has an open billing account.

    Without one it is an error: the API refuses to make nodes (BILLING_DISABLED), also under a grant that makes them free.
    Source: API field `billingEnabled` of Cloud Billing.
    """
    project, subject = facts.wanted.project, _subject(facts)
    match facts.billing:
        case None:
            return
        case Unknown() | Absent() as fact:
            yield unread(
                fact, subject, "whether it is billed", permission="resourcemanager.projects.get", project=project
            )
        case Known(True):
            yield Found(level=Level.OK, subject=subject, text="billing is on")
        case Known(_):
            page = f"https://console.cloud.google.com/billing/linkedaccount?project={project}"
            link = f"`gcloud billing projects link {project} --billing-account=ACCOUNT`"
            yield Found(
                level=Level.ERROR,
                subject=subject,
                text=f"billing is off in project `{project}`",
                why="no node can be created without an open billing account",
                remedies=(
                    Remedy(
                        f"link a billing account at {page}, or with {link}, where ACCOUNT is one of this list",
                        commands.list_billing_accounts(),
                    ),
                ),
                facts={"billingEnabled": False},
            )


@rule("TPU503", "the organisation allows external addresses")
def external_addresses(facts: Facts) -> Iterator[Found]:
    """Check whether the organisation policy `compute.vmExternalIpAccess` lets a new node have external addresses.

    It is an error where the policy denies them all and the node asks for them. It is a warning where only named instances
    may have them, or none of some: the names of TPU workers are not known before they exist; and where the policy has a
    condition, which is not evaluated. This rule also reports where the policies could not be read. Source: documentation of
    organisation policy constraints.
    """
    if gap := _unread_policies(facts):
        yield gap
    policy, subject = known(facts.org_policies.get(EXTERNAL_IPS)), _subject(facts)
    wants = facts.wanted.creates and Interface.of(facts.wanted).has_external_addresses
    if policy is None or not wants:
        if isinstance(facts.org_policies.get(EXTERNAL_IPS), Absent) and wants:
            yield _no_policy(subject, EXTERNAL_IPS)
        return
    level, text = _external_addresses(policy)
    remedy = Remedy("create it with `--internal-ips`, and reach it from inside its network or with `--iap`")
    yield Found(
        level=level,
        subject=subject,
        text=text,
        why=None
        if level is Level.OK
        else "the service refuses a node whose workers may not have the addresses it asks for",
        remedies=() if level is Level.OK else (remedy,),
        facts={"constraint": EXTERNAL_IPS, "allowedValues": [*policy.allowed], "deniedValues": [*policy.denied]},
    )


@rule("TPU504", "OS Login")
def os_login(facts: Facts) -> Iterator[Found]:
    """Check whether the organisation policy `compute.requireOsLogin` is in force.

    It is a note: workers then ignore keys in metadata, and tpuctl adds the key to the profile of OS Login instead. Source:
    documentation of OS Login; that the policy reaches TPU workers is unverified.
    """
    policy, subject = known(facts.org_policies.get(OS_LOGIN)), _subject(facts)
    if isinstance(facts.org_policies.get(OS_LOGIN), Absent):
        yield _no_policy(subject, OS_LOGIN)
    elif policy is not None and (policy.enforced or policy.is_conditional):
        condition = ", under a condition" if policy.is_conditional else ""
        yield Found(
            level=Level.NOTE,
            subject=subject,
            text=f"the organisation requires OS Login (`{OS_LOGIN}`{condition}); tpuctl uses it",
            why="workers ignore keys in metadata, and whoever logs in needs a role for it",
            remedies=(Remedy("give who logs in `roles/compute.osLogin` and `roles/iam.serviceAccountUser`"),),
            facts={"constraint": OS_LOGIN, "conditional": policy.is_conditional},
        )
    elif policy is not None:
        yield Found(level=Level.OK, subject=subject, text=f"`{OS_LOGIN}` is not in force")


@rule("TPU505", "Secure Boot where it is required")
def secure_boot(facts: Facts) -> Iterator[Found]:
    """Check whether the organisation policy `compute.requireShieldedVm` is met by a node that is to be created.

    It is an error where the policy is in force and the node does not ask for Secure Boot: the API answers with
    `Constraint constraints/compute.requireShieldedVm violated` (observed by users). It is a warning where the policy has a
    condition, which is not evaluated.
    """
    policy, subject = known(facts.org_policies.get(SHIELDED_VM)), _subject(facts)
    if not facts.wanted.creates:
        return
    if isinstance(facts.org_policies.get(SHIELDED_VM), Absent):
        yield _no_policy(subject, SHIELDED_VM)
    elif policy is None:
        return
    elif facts.wanted.spec.shielded_secure_boot or not (policy.enforced or policy.is_conditional):
        text = f"`{SHIELDED_VM}` is {'met: the node has Secure Boot' if policy.enforced else 'not in the way'}"
        yield Found(level=Level.OK, subject=subject, text=text)
    else:
        condition = " under a condition, which is not evaluated here" if policy.is_conditional else ""
        yield Found(
            level=Level.WARNING if policy.is_conditional else Level.ERROR,
            subject=subject,
            text=f"the organisation requires Secure Boot{condition} (`{SHIELDED_VM}`), and the node does not ask for it",
            why="the service refuses a node that breaks the policy",
            remedies=(Remedy("create it with `--shielded-secure-boot`"),),
            facts={"constraint": SHIELDED_VM, "conditional": policy.is_conditional},
        )


@rule("TPU506", "the project is there")
def project(facts: Facts) -> Iterator[Found]:
    """Check whether the project exists and is active.

    It is an error where it does not exist, or is to be deleted, and unknown in a state that this version does not know. Where
    it could not be read, its number is not known, and with it the default account of the workers and which buckets are the
    project's own. Source: API field text of Project (Resource Manager v3), which answers 403 also for a project that does not
    exist.
    """
    name, subject = facts.wanted.project, _subject(facts)
    match facts.project:
        case Unknown() as fact:
            what = "the project, and with it its default account and whether buckets are its own,"
            yield unread(fact, subject, what, permission="resourcemanager.projects.get", project=name)
        case Absent():
            yield Found(
                level=Level.ERROR,
                subject=subject,
                text=f"there is no project `{name}`",
                remedies=(Remedy("take the PROJECT_ID, not the name, of one of these", commands.list_projects()),),
            )
        case Known(value) if value.state in {"ACTIVE", ""}:
            yield Found(
                level=Level.OK, subject=subject, text="the project is active", facts={"projectNumber": value.number}
            )
        case Known(value):
            is_going = value.state in _GOING
            restore = Remedy("call its deletion back", commands.restore_project(name))
            other = Remedy("look whether it is active, or use another: `--project`", commands.list_projects())
            yield Found(
                level=Level.ERROR if is_going else Level.UNKNOWN,
                subject=subject,
                text=f"project `{name}` is not active, but {value.state}"
                if is_going
                else f"project `{name}` is {value.state}, a state that this version does not know",
                why="nothing can be created in it, and all that it has will be deleted" if is_going else None,
                remedies=(restore if is_going else other,),
                facts={"state": value.state, "projectNumber": value.number},
            )


def _subject(facts: Facts) -> str:
    return f"project {facts.wanted.project}"


def _answered(facts: Facts) -> list[str]:
    """Return the APIs that answered for the project itself."""
    has_network = isinstance(facts.network, Known) and Interface.of(facts.wanted).project == facts.wanted.project
    answers = {TPU: isinstance(facts.types, Known), COMPUTE: has_network or isinstance(facts.region_quotas, Known)}
    return [name for name, has_answered in answers.items() if has_answered]


def _needed_services(wanted: Wanted) -> dict[str, tuple[Level, str]]:
    """Return the APIs, how bad it is without each, and why."""
    needed = {
        TPU: (Level.ERROR, "nodes are made through this API"),
        COMPUTE: (Level.ERROR, "the network, the disks and the default account of the workers are Compute Engine's"),
    }
    if wanted.buckets:
        needed[STORAGE] = (Level.WARNING, "buckets are used through this API")
    if wanted.iap:
        needed[IAP] = (Level.WARNING, "ssh is to go through Identity-Aware Proxy")
    return needed


def _disabled(facts: Facts, service: str, level: Level, why: str) -> Found:
    change = EnableService(facts.wanted.project, service)
    return Found(
        level=level,
        subject=_subject(facts),
        text=f"`{service}` is not enabled in project `{facts.wanted.project}`",
        why=why,
        remedies=(Remedy.by(change, "enable it; this may take a few minutes to take effect"),),
        facts={"service": service, "enabled": False},
    )


def _external_addresses(policy: OrgPolicy) -> tuple[Level, str]:
    name = f"`{EXTERNAL_IPS}`"
    if policy.is_conditional:
        return (
            Level.WARNING,
            f"the organisation limits external addresses under a condition, not evaluated here ({name})",
        )
    if policy.denies_all:
        return Level.ERROR, f"the organisation forbids external addresses ({name}), and the node asks for them"
    if policy.allowed and not policy.allows_all:
        return (
            Level.WARNING,
            f"the organisation allows external addresses to named instances only ({name}), not to workers yet to come",
        )
    if policy.denied:
        return Level.WARNING, f"the organisation denies external addresses to some instances ({name})"
    return Level.OK, f"external addresses are allowed ({name})"


def _no_policy(subject: str, constraint: str) -> Found:
    return Found(level=Level.OK, subject=subject, text=f"no organisation policy `{constraint}`")


def _unread_policies(facts: Facts) -> Found | None:
    """Return one finding for all policies that could not be read."""
    gaps = {name: fact for name, fact in facts.org_policies.items() if isinstance(fact, Unknown)}
    if not gaps:
        return None
    # What may be answered later is told as that; else any of them, as they are refused for the same reason.
    fact = next((fact for fact in gaps.values() if fact.is_passing), next(iter(gaps.values())))
    words = ", ".join(_WORDS.get(name, f"`{name}`") for name in gaps)
    what = f"whether an organisation policy stands in the way ({words})"
    return unread(fact, _subject(facts), what, permission="orgpolicy.policy.get", project=facts.wanted.project)


RULES: tuple[Rule[Facts], ...] = (services, billing, external_addresses, os_login, secure_boot, project)

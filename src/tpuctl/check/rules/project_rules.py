"""The project: whether it exists and is billed, its APIs, and what its organisation forbids.

Each unreadable fact is reported once: the project by TPU506, its APIs by TPU501, billing by TPU502, and all policies of the
organisation together by TPU503.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.check.facts import (
    COMPUTE_API,
    EXTERNAL_IPS,
    IAP_API,
    OS_LOGIN,
    SHIELDED_VM,
    STORAGE_API,
    TPU_API,
    Absent,
    CheckFacts,
    Known,
    NetworkInterface,
    Unknown,
    value_or_none,
)
from tpuctl.check.findings import (
    CheckRule,
    EnableService,
    Level,
    Remedy,
    RuleResult,
    check_rule,
    error,
    gcloud_command,
    list_projects_command,
    note,
    ticked,
    unread_result,
)
from tpuctl.command_text import command_word, fitting
from tpuctl.models.project import OrgPolicy

_CONSTRAINT_WORDS = {EXTERNAL_IPS: "external addresses", OS_LOGIN: "OS Login", SHIELDED_VM: "Secure Boot"}
_DELETION_STATES = frozenset({"DELETE_REQUESTED", "DELETE_IN_PROGRESS"})


@check_rule("TPU501", "the APIs are enabled")
def apis_are_enabled(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the project has the APIs enabled that the node needs.

    It is an error if `tpu.googleapis.com`, which creates nodes, or `compute.googleapis.com`, which has their network, firewall,
    disks and default account [documentation], is not enabled. It is a warning if `storage.googleapis.com` is not enabled and
    buckets are used, or `iap.googleapis.com` and ssh goes through Identity-Aware Proxy: both are documented prerequisites;
    whether they are strictly required is unverified. An API that has answered is enabled, even if the list disagrees.
    """
    wanted, subject = facts.wanted, _project_subject(facts)
    has_network = isinstance(facts.network, Known) and NetworkInterface.of(wanted).project == wanted.project
    answered = [TPU_API] if isinstance(facts.types, Known) else []
    answered += [COMPUTE_API] if has_network or isinstance(facts.region_quotas, Known) else []
    # Each with the level if it is disabled, and why.
    needed = {
        TPU_API: (Level.ERROR, "nodes are created through this API"),
        COMPUTE_API: (
            Level.ERROR,
            "the network, the disks and the default account of the workers belong to Compute Engine",
        ),
    }
    if wanted.buckets:
        needed[STORAGE_API] = (Level.WARNING, "buckets are used through this API")
    if wanted.iap:
        needed[IAP_API] = (Level.WARNING, "ssh goes through Identity-Aware Proxy")
    match facts.services:
        case Unknown() | Absent() as fact:
            names = " and ".join(ticked(answered))
            what = "the list of enabled APIs" + (f" except {names}, which answered," if answered else "")
            yield unread_result(fact, subject, what, permission="serviceusage.services.get", project=wanted.project)
        case Known(enabled):
            for name, (level, why) in needed.items():
                if name in enabled and not enabled[name] and name not in answered:
                    text = f"`{name}` is not enabled in project `{wanted.project}`"
                    change = EnableService(wanted.project, name)
                    remedy = Remedy.by(change, "enable it; this may take a few minutes to take effect")
                    yield RuleResult.of(
                        level, subject, text, remedy, why=why, facts={"service": name, "enabled": False}
                    )


@check_rule("TPU502", "the project is billed")
def project_is_billed(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the project has an open billing account.

    Without one it is an error: the API refuses to create nodes (BILLING_DISABLED), even under a grant that makes them free.
    Source: API field `billingEnabled` of Cloud Billing.
    """
    project, subject = facts.wanted.project, _project_subject(facts)
    match facts.billing:
        case Unknown() | Absent() as fact:
            permission = "resourcemanager.projects.get"
            yield unread_result(fact, subject, "whether it is billed", permission=permission, project=project)
        case Known(False):
            page = f"https://console.cloud.google.com/billing/linkedaccount?project={project}"
            link = f"`gcloud billing projects link {command_word('project', project)} --billing-account=ACCOUNT`"
            advice = f"link a billing account at {page}, or with {link}, where ACCOUNT is one of this list"
            yield error(
                subject,
                f"billing is off in project `{project}`",
                Remedy(advice, gcloud_command("billing accounts list")),
                why="no node can be created without an open billing account",
                facts={"billingEnabled": False},
            )


@check_rule("TPU503", "the organisation allows external addresses")
def external_addresses_allowed(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the organisation policy `compute.vmExternalIpAccess` allows external addresses for a new node.

    It is an error if the policy denies all of them and the node requests them. It is a warning if the policy allows or denies
    named instances only, as the names of TPU workers are unknown before they exist; and if the policy has a condition, which
    is not evaluated. This rule also reports policies that could not be read. Source: documentation of organisation policy
    constraints.
    """
    subject = _project_subject(facts)
    unread = {name: fact for name, fact in facts.org_policies.items() if isinstance(fact, Unknown)}
    if unread:
        # One finding for all of them, as they are refused for the same reason; preferably one that may be readable later.
        fact = next((fact for fact in unread.values() if fact.is_passing), next(iter(unread.values())))
        what = f"whether an organisation policy forbids it ({', '.join(_CONSTRAINT_WORDS[name] for name in unread)})"
        yield unread_result(fact, subject, what, permission="orgpolicy.policy.get", project=facts.wanted.project)
    if not facts.wanted.creates or not NetworkInterface.of(facts.wanted).has_external_addresses:
        return
    policy = value_or_none(facts.org_policies.get(EXTERNAL_IPS))
    if policy is not None and (judged := _judge_address_policy(policy)):
        level, text = judged
        values = {"allowedValues": [*policy.allowed], "deniedValues": [*policy.denied]}
        yield RuleResult.of(
            level,
            subject,
            text,
            "create it with `--internal-ips`, and connect from inside its network or with `--iap`",
            why="the service rejects a node whose workers may not have external addresses",
            facts={"constraint": EXTERNAL_IPS, **values},
        )


@check_rule("TPU504", "OS Login")
def os_login_required(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the organisation policy `compute.requireOsLogin` is enforced.

    It is a note: workers then ignore keys in metadata, and tpuctl adds the key to the OS Login profile instead. Source:
    documentation of OS Login; whether the policy applies to TPU workers is unverified.
    """
    policy = value_or_none(facts.org_policies.get(OS_LOGIN))
    if policy is not None and (policy.enforced or policy.is_conditional):
        condition = ", under a condition" if policy.is_conditional else ""
        yield note(
            _project_subject(facts),
            f"the organisation requires OS Login (`{OS_LOGIN}`{condition}); tpuctl uses it",
            "grant users `roles/compute.osLogin` and `roles/iam.serviceAccountUser`",
            why="workers ignore keys in metadata, and users need a role to log in",
            facts={"constraint": OS_LOGIN, "conditional": policy.is_conditional},
        )


@check_rule("TPU505", "Secure Boot if required")
def secure_boot_satisfied(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether a new node satisfies the organisation policy `compute.requireShieldedVm`.

    It is an error if the policy is enforced and the node does not request Secure Boot: the API answers with
    `Constraint constraints/compute.requireShieldedVm violated` (observed by users). It is a warning if the policy has a
    condition, which is not evaluated.
    """
    policy = value_or_none(facts.org_policies.get(SHIELDED_VM))
    if policy is None or not facts.wanted.creates or facts.wanted.spec.shielded_secure_boot:
        return
    if policy.enforced or policy.is_conditional:
        condition = " under a condition, which is not evaluated" if policy.is_conditional else ""
        requires = f"the organisation requires Secure Boot{condition} (`{SHIELDED_VM}`)"
        yield RuleResult.of(
            Level.WARNING if policy.is_conditional else Level.ERROR,
            _project_subject(facts),
            f"{requires}, but the node does not request it",
            "create it with `--shielded-secure-boot`",
            why="the service rejects a node that violates the policy",
            facts={"constraint": SHIELDED_VM, "conditional": policy.is_conditional},
        )


@check_rule("TPU506", "the project exists")
def project_is_active(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the project exists and is active.

    It is an error if it does not exist or is being deleted, and unknown in a state that this version does not know. If it
    could not be read, its number is unknown, and so are the default account of the workers and the owner of the buckets.
    Source: API field text of Project (Resource Manager v3), which also answers 403 for a project that does not exist.
    """
    name, subject = facts.wanted.project, _project_subject(facts)
    listing = list_projects_command()
    match facts.project:
        case Unknown() as fact:
            what = "the project, with its default account and its number,"
            yield unread_result(fact, subject, what, permission="resourcemanager.projects.get", project=name)
        case Absent():
            remedy = Remedy("use the PROJECT_ID, not the name, of one of these", listing)
            yield error(subject, f"there is no project `{name}`", remedy)
        case Known(value) if value.state not in {"ACTIVE", ""}:
            level, why = Level.UNKNOWN, None
            text = f"project `{name}` is {value.state}, a state that this version does not know"
            remedy = Remedy("check whether it is active, or use another: `--project`", listing)
            if value.state in _DELETION_STATES:
                level, text = Level.ERROR, f"project `{name}` is not active, but {value.state}"
                why = "nothing can be created in it, and everything in it will be deleted"
                remedy = Remedy("cancel its deletion", gcloud_command("projects undelete", fitting("project", name)))
            values = {"state": value.state, "projectNumber": value.number}
            yield RuleResult.of(level, subject, text, remedy, why=why, facts=values)


def _project_subject(facts: CheckFacts) -> str:
    return f"project {facts.wanted.project}"


def _judge_address_policy(policy: OrgPolicy) -> tuple[Level, str] | None:
    name = f"`{EXTERNAL_IPS}`"
    if policy.is_conditional:
        words = "the organisation limits external addresses under a condition, which is not evaluated"
        return Level.WARNING, f"{words} ({name})"
    if policy.denies_all:
        return Level.ERROR, f"the organisation forbids external addresses ({name}), and the node requests them"
    if policy.allowed and not policy.allows_all:
        words = "the organisation allows external addresses only for named instances"
        return Level.WARNING, f"{words} ({name}), not for new workers"
    if policy.denied:
        return Level.WARNING, f"the organisation forbids external addresses for some instances ({name})"
    return None


PROJECT_RULES: tuple[CheckRule[CheckFacts], ...] = (
    apis_are_enabled,
    project_is_billed,
    external_addresses_allowed,
    os_login_required,
    secure_boot_satisfied,
    project_is_active,
)

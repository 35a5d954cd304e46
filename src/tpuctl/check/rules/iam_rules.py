"""Whether the account that the node runs as may read and write the buckets, by its roles and by the scopes of the node.

Each unreadable policy is reported once: policies of buckets and of projects, and roles, are reported here, the policy of a
project once for all buckets. An unreadable project, whose number the default account needs, is reported by TPU506.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tpuctl.check.facts import BucketFacts, CheckFacts, Unknown, WantedNode, value_or_none
from tpuctl.check.findings import (
    CheckRule,
    GrantBucketRole,
    Level,
    Remedy,
    RuleResult,
    check_rule,
    error,
    gcloud_command,
    join_words,
    note,
    ticked,
    warning,
)
from tpuctl.check.iam import (
    READ_PERMISSIONS,
    WRITE_PERMISSIONS,
    BucketPolicies,
    Caveat,
    NotGranted,
    PermissionAccess,
    Uncertain,
    needed_permissions,
    resolve_access,
    roles_of_deleted_account,
)

SCOPE_PREFIX = "https://www.googleapis.com/auth/"
_ALL_APIS = f"{SCOPE_PREFIX}cloud-platform"
# Which scopes let programs read objects, and which write them [documentation of Cloud Storage: OAuth scopes].
READING_SCOPES = {"cloud-platform", "cloud-platform.read-only"} | {
    f"devstorage.{kind}" for kind in ("read_only", "read_write", "full_control")
}
_WRITING_SCOPES = {"cloud-platform", "devstorage.read_write", "devstorage.full_control", "devstorage.write_only"}
# Short names of `gcloud compute instances`; `gcloud compute tpus` sends them as they are [gcloud 528 source].
_SHORT_SCOPE_NAMES = {
    "storage-full": "devstorage.full_control",
    "storage-rw": "devstorage.read_write",
    "storage-ro": "devstorage.read_only",
    "cloud-platform": "cloud-platform",
    "default": "devstorage.read_only",
    "gke-default": "devstorage.read_only",
}
_PROJECT_ACCOUNT_END = ".iam.gserviceaccount.com"
_DEFAULT_ACCOUNT_END = "-compute@developer.gserviceaccount.com"
_APP_ENGINE_ACCOUNT_END = "@appspot.gserviceaccount.com"
_CROSS_PROJECT = "iam.disableCrossProjectServiceAccountUsage"


@check_rule("TPU203", "the node's scopes let it use the buckets")
def scopes_allow_buckets(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the scopes of the node's account include Cloud Storage, for writing if the node writes.

    Scopes limit programs on the node in addition to the account's roles, and the scopes of a node cannot be changed. An empty
    list allows all Cloud APIs. It is an error if scopes are named and none of them covers the buckets, a note if no bucket is
    named, and a warning if a new node has short names that only `gcloud compute instances` knows. Source: API field text;
    documentation of Cloud Storage; whether the service rejects short names is unverified.
    """
    wanted, scopes = facts.wanted, facts.wanted.spec.scopes
    subject = _node_subject(wanted)
    short = [scope for scope in scopes if scope in _SHORT_SCOPE_NAMES]
    if short and wanted.creates:
        full = [SCOPE_PREFIX + _SHORT_SCOPE_NAMES[scope] for scope in short]
        are = "is a short scope name" if len(short) == 1 else "are short scope names"
        yield warning(
            subject,
            f"{', '.join(ticked(short))} {are}, which the Cloud TPU API is not known to accept",
            f"write the full name: {', '.join(ticked(full))}",
            why="`gcloud compute instances` expands short names, `gcloud compute tpus` does not",
            facts={"scope": short, "fullNames": full},
        )
    needs = {name for bucket in facts.buckets for name in needed_permissions(wanted, bucket.use)}
    covered = {_SHORT_SCOPE_NAMES.get(scope, scope.removeprefix(SCOPE_PREFIX)) for scope in scopes}
    can_read, can_write = not scopes or bool(covered & READING_SCOPES), not scopes or bool(covered & _WRITING_SCOPES)
    lacks = ["read"] if needs & set(READ_PERMISSIONS) and not can_read else []
    lacks += ["write"] if needs & set(WRITE_PERMISSIONS) and not can_write else []
    values = {"scope": list(scopes), "canRead": can_read, "canWrite": can_write}
    if lacks:
        advice = f"omit `--scopes`, which allows all Cloud APIs, or name `{_ALL_APIS}`; then only roles decide"
        if wanted.node is not None and wanted.name is not None:
            advice = (
                f"recreate it, which deletes its disk: `tpuctl up {wanted.name.node_id} --replace` with all of its options "
                f"and `--scopes {_ALL_APIS}`; then only roles decide"
            )
        remedies = [advice]
        uses = dict.fromkeys(bucket.use for bucket in facts.buckets)
        if "read" not in lacks and all(use.reads for use in uses):
            flags = " ".join(f"--data-bucket={use.url}" for use in uses if use.writes)
            remedies.append(f"or declare what is read-only: `{flags}` instead of `--bucket`")
        text = f"its scopes do not allow it to {' and '.join(lacks)} objects: {', '.join(ticked(scopes))}"
        why = "programs on the node fail with 403, whichever roles the account has; scopes cannot be changed later"
        yield error(subject, text, *remedies, why=why, facts=values)
    elif not (needs or can_read or can_write):
        yield note(subject, "its scopes allow no bucket access", facts=values)


@check_rule("TPU204", "the account that the node runs as")
def account_of_node(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the account of the node belongs to the node's own project.

    It is the Compute Engine default account unless another is named. It is a warning if a new node uses an account of another
    project: that takes `iam.serviceAccounts.actAs` there, and fails unless that project's organisation allows it
    (`iam.disableCrossProjectServiceAccountUsage`). If the project could not be read, the default account is unknown; TPU506
    reports that. Source: API field text; documentation of IAM.
    """
    wanted, account, subject = facts.wanted, facts.account, _node_subject(facts.wanted)
    if account is None or not wanted.creates or not is_of_another_project(facts):
        return
    home, is_default = project_of_account(account), account.endswith(_DEFAULT_ACCOUNT_END)
    values = {"account": account, "isDefault": is_default, "project": home}
    show = gcloud_command("org-policies describe", _CROSS_PROJECT, project=home, effective=True)
    yield warning(
        subject,
        f"it runs as `{account}`, an account of another project (`{home}`)",
        Remedy(f"check whether `{home}` allows it: `enforce` must not be true", show),
        f"ask for `roles/iam.serviceAccountUser` on `{account}`, or use an account of `{wanted.project}`",
        why=f"creating the node fails unless you may act as the account, and `{_CROSS_PROJECT}` is off in `{home}`",
        facts=values,
    )


def is_of_another_project(facts: CheckFacts) -> bool:
    """Return whether the node's account is known to belong to another project than the node."""
    wanted, project = facts.wanted, value_or_none(facts.project)
    home = project_of_account(facts.account) if facts.account else None
    if home is None or home == wanted.project:
        return False
    if project is not None:
        return home not in {project.id, project.number}
    # A number cannot be compared with an id.
    return home.isdigit() == wanted.project.isdigit()


def _node_subject(wanted: WantedNode) -> str:
    return wanted.name.node_id if wanted.name else wanted.spec.accelerator_type


def project_of_account(account: str) -> str | None:
    """Return the project of an account, by id or number; None if its address does not contain it."""
    name, _, domain = account.lower().rpartition("@")
    if domain.endswith(_PROJECT_ACCOUNT_END):
        # Of the domain-scoped project example.com:p the domain is p.example.com.iam.gserviceaccount.com.
        project, _, organisation = domain.removesuffix(_PROJECT_ACCOUNT_END).partition(".")
        return f"{organisation}:{project}" if organisation else project
    if account.endswith(_DEFAULT_ACCOUNT_END):
        return account.removesuffix(_DEFAULT_ACCOUNT_END)
    return name if account.endswith(_APP_ENGINE_ACCOUNT_END) else None


_IS_NO_EDITOR = (
    "the default account is an editor of its project only if no organisation policy "
    "(`iam.automaticIamGrantsForDefaultServiceAccounts`) prevents it"
)
_UNSEEN = "grants of managed folders are not read; if one of them is enough, continue with"
# A line with more reasons is hard to read; JSON has the permissions that would answer all of them.
_MAX_REASONS = 4
_PERMISSION_VERBS = {"read": READ_PERMISSIONS, "write to": WRITE_PERMISSIONS}


@check_rule("TPU201", "the node's account may read the buckets")
def account_may_read(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the account that the node runs as may get and list the objects of every bucket that is read.

    The node's account reads the data, not the user's own account: what works on a laptop can fail on the node, which is
    billed by then. Roles on the bucket and on its project are resolved, including custom roles and the members that stand for
    a project's owners, editors and viewers. If no policy grants access, it is an error for a project without parent, and a
    warning for a project below a folder or an organisation, because inherited roles are not read. It is unknown if the access
    depends on a condition, a group, another project's policy or access lists of objects. If reading and writing fail alike,
    one finding reports both. Deny policies are not read. Source: documentation of Cloud Storage and of IAM.
    """
    yield from _results_of_rule(facts, "TPU201")


@check_rule("TPU202", "the node's account may write to the buckets")
def account_may_write(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check that the account that the node runs as may create and delete objects in every bucket that training writes to.

    Without it the first checkpoint fails, and all work before it is lost. Writing a checkpoint again replaces an object, which
    takes the permission to delete. Error, warning and unknown are used as in TPU201. Not checked for a node that serves.
    Source: documentation of Cloud Storage and of IAM.
    """
    yield from _results_of_rule(facts, "TPU202")


def _results_of_rule(facts: CheckFacts, rule_id: str) -> Iterator[RuleResult]:
    judged = [entry for entry in _judge_buckets(facts) if entry.rule == rule_id]
    yield from (_refused_result(entry) for entry in judged if entry.lacking)
    # What only the policy of a project leaves unknown is one finding for all of its buckets.
    shared: dict[tuple[Caveat, ...], list[_BucketJudgement]] = {}
    for entry in judged:
        if entry.level is Level.UNKNOWN and all(doubt.project for doubt in entry.doubts):
            shared.setdefault(entry.doubts, []).append(entry)
        elif entry.level is Level.UNKNOWN:
            yield _undecided_result(entry.url, [entry])
    for doubts, entries in shared.items():
        yield _undecided_result(f"project {doubts[0].project}", entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketJudgement:
    """The judgement of one rule about one bucket: the access found for each of the permissions that it needs.

    `above` names the folder or organisation whose roles may grant what is lacking; None if there is none. `is_foreign`: the
    account belongs to another project.
    """

    rule: str
    facts: BucketFacts
    policies: BucketPolicies
    account: str
    access: Mapping[str, PermissionAccess]
    user_project: str | None
    above: str | None
    is_foreign: bool

    @property
    def url(self) -> str:
        return f"gs://{self.facts.use.bucket}"

    @property
    def lacking(self) -> list[str]:
        """The permissions that are certainly not granted."""
        return [name for name, access in self.access.items() if isinstance(access, NotGranted)]

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """Why some of the access is unknown."""
        found = (doubt for access in self.access.values() if isinstance(access, Uncertain) for doubt in access.doubts)
        return tuple(dict.fromkeys(found))

    @property
    def level(self) -> Level | None:
        """None if the access is sufficient."""
        if self.lacking:
            return Level.WARNING if self.above else Level.ERROR
        return Level.UNKNOWN if self.doubts else None

    @property
    def verbs(self) -> list[str]:
        """The permissions as text."""
        return [word for word, names in _PERMISSION_VERBS.items() if set(names) & set(self.access)]

    @property
    def grant(self) -> GrantBucketRole:
        """The role that is sufficient [documentation of Cloud Storage: objectUser reads, lists, creates and deletes]."""
        role = "roles/storage.objectUser" if set(WRITE_PERMISSIONS) & set(self.access) else "roles/storage.objectViewer"
        return GrantBucketRole(self.facts.use.bucket, role, f"serviceAccount:{self.account}", self.user_project)


def _judge_buckets(facts: CheckFacts) -> Iterator[_BucketJudgement]:
    """Yield the judgement of each rule: reading and writing separately, or both by TPU201 if they fail alike."""
    account, project, wanted = facts.account, value_or_none(facts.project), facts.wanted
    if account is None:
        return
    # Each bucket once, with the permissions needed below all of its prefixes.
    buckets: dict[str, tuple[BucketFacts, set[str]]] = {}
    for bucket in facts.buckets:
        needed = buckets.setdefault(bucket.use.bucket, (bucket, set()))[1]
        needed.update(needed_permissions(wanted, bucket.use))
    above = f"`{project.parent}`, above project `{project.id}`," if project and project.parent else None
    if project is None:
        above = f"a folder or organisation above project `{wanted.project}`"
    for bucket, needed in buckets.values():
        policies, known = BucketPolicies.of(bucket, facts), value_or_none(bucket.bucket)
        if policies is None or bucket.is_unpaid:
            continue
        whole = _BucketJudgement(
            rule="TPU201",
            facts=bucket,
            policies=policies,
            account=account,
            access={name: access for name, access in resolve_access(account, policies).items() if name in needed},
            user_project=wanted.billing_project if known and known.requester_pays else None,
            above=above,
            is_foreign=is_of_another_project(facts),
        )
        parts = []
        for rule, names in (("TPU201", READ_PERMISSIONS), ("TPU202", WRITE_PERMISSIONS)):
            if access := {name: access for name, access in whole.access.items() if name in names}:
                parts.append(replace(whole, rule=rule, access=access))
        fail_alike = len(parts) > 1 and parts[0].level is parts[1].level is not None
        yield from [whole] if fail_alike else parts


def _refused_result(judged: _BucketJudgement) -> RuleResult:
    account, grant, use, reads = judged.account, judged.grant, judged.facts.use, READ_PERMISSIONS[0] in judged.access
    lacks = join_words(ticked(judged.lacking))
    text = f"the node's account `{account}` may not {' or '.join(judged.verbs)} it: it lacks {lacks}"
    why = ["writing the first checkpoint fails with 403, and the work before it is lost"]
    if reads:
        why = ["reads by the node's programs fail with 403, and the node is billed by then"]
    if reads and account.endswith(_DEFAULT_ACCOUNT_END):
        why.append(_IS_NO_EDITOR)
    if roles := roles_of_deleted_account(account, judged.policies):
        why.append(
            f"{join_words(ticked(roles))} on the bucket is for a deleted account of that name, not for the new one"
        )
    if judged.above:
        text += f", unless {judged.above} grants it"
        why.append("roles inherited from folders and organisations are not read")
    else:
        why.append(f"{_UNSEEN} `--skip-check {judged.rule}`")
    remedies = [Remedy.by(grant, f"grant it `{grant.role}` on the bucket")]
    if judged.is_foreign:
        # Not by `--fix`: the account of another project may be a mistyped name.
        advice = f"check that you mean the account `{account}` of another project, then grant it `{grant.role}`"
        remedies = [Remedy(advice, grant.command)]
    if use.reads and use.writes and not set(judged.lacking) & set(READ_PERMISSIONS):
        remedies.append(Remedy(f"or declare it as read-only: `--data-bucket={use.url}` instead of `--bucket`"))
    values = {"account": account, "missingPermissions": judged.lacking, "role": grant.role}
    level = Level.WARNING if judged.above else Level.ERROR
    return RuleResult.of(level, judged.url, text, *remedies, why="; ".join(why), facts=values)


def _undecided_result(subject: str, entries: list[_BucketJudgement]) -> RuleResult:
    """Return one finding for what leaves the access to one bucket, or to several buckets, unknown."""
    first = entries[0]
    whole = "it" if subject == first.url else join_words(entry.url for entry in entries)
    verbs = join_words(word for word in _PERMISSION_VERBS if any(word in entry.verbs for entry in entries))
    reasons = [doubt.reason.removesuffix(".") for doubt in first.doubts]  # messages of the service end with a full stop
    if len(reasons) > _MAX_REASONS + 1:
        reasons[_MAX_REASONS:] = [f"and {len(reasons) - _MAX_REASONS} more reasons"]
    callers = value_or_none(first.facts.caller)
    if callers is not None and isinstance(first.facts.policy, Unknown):
        words = join_words(sorted(name.rpartition(".")[2] for name in callers))
        can = f"may {words} objects there" if words else "may not use its objects"
        reasons.append(f"your own account {can}, which says nothing certain about the node's account")
    remedies = []
    for doubt in first.doubts:
        needs = f"the permission `{doubt.permission}` on {doubt.place}"
        if doubt.permission is None:
            continue
        if doubt.is_passing:
            remedies.append(Remedy(f"check again; reading it takes {needs}"))
        elif doubt.is_denied:
            remedies.append(Remedy(f"ask for {needs}, and check again"))
        else:
            remedies.append(Remedy(f"fix that and check again; reading it takes {needs}"))
    for entry in entries:
        # Not by `--fix`, as the grant may be needless.
        advice = f"or grant it `{entry.grant.role}` on {entry.url}, which settles it"
        remedies.append(Remedy(advice, entry.grant.command))
    return RuleResult(
        Level.UNKNOWN,
        subject,
        f"unknown whether the node's account `{first.account}` may {verbs} {whole}: {'; '.join(reasons)}",
        remedies=tuple(remedies),
        facts={
            "account": first.account,
            "buckets": [entry.facts.use.bucket for entry in entries],
            "undecidedPermissions": sorted({name for entry in entries for name in entry.access}),
            "permission": next((doubt.permission for doubt in first.doubts if doubt.permission), None),
            "callerPermissions": None if callers is None else sorted(callers),
        },
        is_passing=any(doubt.is_passing for doubt in first.doubts),
    )


IDENTITY_RULES: tuple[CheckRule[CheckFacts], ...] = (scopes_allow_buckets, account_of_node)
IAM_RULES: tuple[CheckRule[CheckFacts], ...] = (account_may_read, account_may_write, *IDENTITY_RULES)

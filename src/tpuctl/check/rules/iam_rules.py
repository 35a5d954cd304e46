"""Whether the account that the node runs as may read and write the buckets, by its roles and by the scopes of the node.

Each unreadable policy is reported once: policies of buckets and of projects, and roles, are reported here, the policy of a
project once for all buckets. An unreadable project, whose number the default account needs, is reported by TPU506.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.check.facts import Unknown, value_or_none
from tpuctl.check.findings import GrantBucketRole, Level, Remedy, RuleResult, check_rule
from tpuctl.check.iam import (
    READ_PERMISSIONS,
    WRITE_PERMISSIONS,
    BucketPolicies,
    Caveat,
    Granted,
    NotGranted,
    Uncertain,
    needed_permissions,
    resolve_access,
    roles_of_deleted_account,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tpuctl.check.facts import BucketFacts, CheckFacts, WantedNode
    from tpuctl.check.findings import CheckRule
    from tpuctl.check.iam import PermissionAccess


_SCOPE_PREFIX = "https://www.googleapis.com/auth/"
ALL_APIS = f"{_SCOPE_PREFIX}cloud-platform"
# Which scopes let programs read objects, and which write them [documentation of Cloud Storage: OAuth scopes].
_READING_SCOPES = {"cloud-platform", "cloud-platform.read-only"} | {
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
    wanted = facts.wanted
    scopes = wanted.spec.scopes
    short = [scope for scope in scopes if scope in _SHORT_SCOPE_NAMES]
    if short and wanted.creates:
        full = [_SCOPE_PREFIX + _SHORT_SCOPE_NAMES[scope] for scope in short]
        yield RuleResult(
            Level.WARNING,
            _node_subject(wanted),
            f"{_ticked_list(short)} {'is a short scope name' if len(short) == 1 else 'are short scope names'}, which the "
            "Cloud TPU API is not known to accept",
            why="`gcloud compute instances` expands short names, `gcloud compute tpus` does not",
            remedies=(Remedy(f"write the full name: {_ticked_list(full)}"),),
            facts={"scope": short, "fullNames": full},
        )
    needs = {name for bucket in facts.buckets for name in needed_permissions(wanted, bucket.use)}
    covered = {_SHORT_SCOPE_NAMES.get(scope, scope.removeprefix(_SCOPE_PREFIX)) for scope in scopes}
    can_read, can_write = bool(covered & _READING_SCOPES) or not scopes, bool(covered & _WRITING_SCOPES) or not scopes
    lacks = [
        word
        for word, names, can in (("read", READ_PERMISSIONS, can_read), ("write", WRITE_PERMISSIONS, can_write))
        if needs & set(names) and not can
    ]
    values = {"scope": list(scopes), "canRead": can_read, "canWrite": can_write}
    if lacks:
        if wanted.node is None or wanted.name is None:
            advice = f"omit `--scopes`, which allows all Cloud APIs, or name `{ALL_APIS}`; then only roles decide"
        else:
            advice = (
                f"recreate it, which deletes its disk: `tpuctl up {wanted.name.node_id} --replace` with all of its options "
                f"and `--scopes {ALL_APIS}`; then only roles decide"
            )
        remedies = [Remedy(advice)]
        uses = dict.fromkeys(bucket.use for bucket in facts.buckets)
        if "read" not in lacks and all(use.reads for use in uses):
            flags = " ".join(f"--data-bucket={use.url}" for use in uses if use.writes)
            remedies.append(Remedy(f"or declare what is read-only: `{flags}` instead of `--bucket`"))
        yield RuleResult(
            Level.ERROR,
            _node_subject(wanted),
            f"its scopes do not allow it to {' and '.join(lacks)} objects: {_ticked_list(scopes)}",
            why="programs on the node fail with 403, whichever roles the account has; scopes cannot be changed later",
            remedies=tuple(remedies),
            facts=values,
        )
    elif not (needs or can_read or can_write):
        yield RuleResult(Level.NOTE, _node_subject(wanted), "its scopes allow no bucket access", facts=values)
    else:
        words = "all Cloud APIs" if not scopes else "reading and writing objects" if can_write else "reading objects"
        yield RuleResult(Level.OK, _node_subject(wanted), f"its scopes allow {words}", facts=values)


@check_rule("TPU204", "the account that the node runs as")
def account_of_node(facts: CheckFacts) -> Iterator[RuleResult]:
    """Report the account of the node, and check that it belongs to the node's own project.

    It is the Compute Engine default account unless another is named. It is a warning if a new node uses an account of another
    project: that takes `iam.serviceAccounts.actAs` there, and fails unless that project's organisation allows it
    (`iam.disableCrossProjectServiceAccountUsage`). If the project could not be read, the default account is unknown; TPU506
    reports that. Source: API field text; documentation of IAM.
    """
    wanted, account = facts.wanted, facts.account
    if account is None:
        return
    home, is_default, is_elsewhere = (
        project_of_account(account),
        account.endswith(_DEFAULT_ACCOUNT_END),
        is_of_another_project(facts),
    )
    values = {"account": account, "isDefault": is_default, "project": home}
    if not is_elsewhere or not wanted.creates:
        named = "the Compute Engine default account" if is_default else "a named account"
        text = f"it runs as `{account}`, {named}" + (f" of project `{home}`" if is_elsewhere else "")
        yield RuleResult(Level.OK, _node_subject(wanted), text, facts=values)
        return
    show = ["gcloud", "org-policies", "describe", _CROSS_PROJECT, f"--project={home}", "--effective"]
    yield RuleResult(
        Level.WARNING,
        _node_subject(wanted),
        f"it runs as `{account}`, an account of another project (`{home}`)",
        why=f"creating the node fails unless you may act as the account, and `{_CROSS_PROJECT}` is off in `{home}`",
        remedies=(
            Remedy(f"check whether `{home}` allows it: `enforce` must not be true", shlex.join(show)),
            Remedy(f"ask for `roles/iam.serviceAccountUser` on `{account}`, or use an account of `{wanted.project}`"),
        ),
        facts=values,
    )


def is_of_another_project(facts: CheckFacts) -> bool:
    """Return whether the node's account is known to belong to another project than the node."""
    account, wanted, project = facts.account, facts.wanted, value_or_none(facts.project)
    home = project_of_account(account) if account else None
    own = {wanted.project, *((project.id, project.number) if project else ())}
    # A number cannot be compared with an id.
    is_comparable = project is not None or (home is not None and home.isdigit() == wanted.project.isdigit())
    return home is not None and home not in own and is_comparable


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


def _ticked_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_IS_NO_EDITOR = (
    "the default account is an editor of its project only if no organisation policy "
    "(`iam.automaticIamGrantsForDefaultServiceAccounts`) prevents it"
)
_UNSEEN = "grants of managed folders are not read; if one of them is enough, continue with"
# A line with more reasons is hard to read; JSON has the permissions that would answer all of them.
_MAX_REASONS = 4


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
    judged = [entry for entry in judge_buckets(facts) if entry.rule == rule_id]
    for entry in judged:
        if entry.level is not Level.OK:
            continue
        granted = {name: access for name, access in entry.access.items() if isinstance(access, Granted)}
        roles: dict[str, None] = {}
        for access in granted.values():
            is_own = access.member.partition(":")[2].lower() == entry.account.lower()
            roles[f"`{access.role}` on {access.place}" + ("" if is_own else f" for `{access.member}`")] = None
        yield RuleResult(
            Level.OK,
            entry.url,
            f"`{entry.account}` may {_join_and(entry.verbs)} it, by {_join_and(roles)}",
            facts={
                "account": entry.account,
                "grantedBy": [
                    {"permission": name, "role": access.role, "member": access.member}
                    for name, access in granted.items()
                ],
            },
        )
    yield from (_refused_result(entry) for entry in judged if entry.lacking)
    unknown = [entry for entry in judged if entry.level is Level.UNKNOWN]
    shared: dict[tuple[Caveat, ...], list[BucketJudgement]] = {}
    for entry in unknown:
        if all(doubt.project for doubt in entry.doubts):
            shared.setdefault(entry.doubts, []).append(entry)
        else:
            yield _undecided_result(entry.url, [entry])
    for doubts, entries in shared.items():
        yield _undecided_result(f"project {doubts[0].project}", entries)


def _refused_result(judged: BucketJudgement) -> RuleResult:
    why = [
        "reads by the node's programs fail with 403, and the node is billed by then"
        if READ_PERMISSIONS[0] in judged.access
        else "writing the first checkpoint fails with 403, and the work before it is lost"
    ]
    if READ_PERMISSIONS[0] in judged.access and judged.account.endswith(_DEFAULT_ACCOUNT_END):
        why.append(_IS_NO_EDITOR)
    if roles := roles_of_deleted_account(judged.account, judged.policies):
        why.append(f"{_ticked_and(roles)} on the bucket is for a deleted account of that name, not for the new one")
    grant, verbs = judged.grant, " or ".join(judged.verbs)
    text = f"the node's account `{judged.account}` may not {verbs} it: it lacks {_ticked_and(judged.lacking)}"
    if judged.above:
        text += f", unless {judged.above} grants it"
        why.append("roles inherited from folders and organisations are not read")
    else:
        why.append(f"{_UNSEEN} `--skip-check {judged.rule}`")
    if judged.is_foreign:
        # Not by `--fix`: the account of another project may be a mistyped name.
        advice = f"check that you mean the account `{judged.account}` of another project, then grant it `{grant.role}`"
        remedies = [Remedy(advice, grant.command)]
    else:
        remedies = [Remedy.by(grant, f"grant it `{grant.role}` on the bucket")]
    use = judged.facts.use
    if use.reads and use.writes and not set(judged.lacking) & set(READ_PERMISSIONS):
        remedies.append(Remedy(f"or declare it as read-only: `--data-bucket={use.url}` instead of `--bucket`"))
    return RuleResult(
        judged.level,
        judged.url,
        text,
        why="; ".join(why),
        remedies=tuple(remedies),
        facts={"account": judged.account, "missingPermissions": list(judged.lacking), "role": grant.role},
    )


def _undecided_result(subject: str, entries: list[BucketJudgement]) -> RuleResult:
    """Return one finding for what leaves the access to one bucket, or to several buckets, unknown."""
    first = entries[0]
    whole = "it" if subject == first.url else _join_and(entry.url for entry in entries)
    verbs = _join_and(word for word in PERMISSION_VERBS if any(word in entry.verbs for entry in entries))
    reasons = [doubt.reason.removesuffix(".") for doubt in first.doubts]  # messages of the service end with a full stop
    rest = (
        [f"and {len(reasons) - _MAX_REASONS} more reasons"]
        if len(reasons) > _MAX_REASONS + 1
        else reasons[_MAX_REASONS:]
    )
    shown = [*reasons[:_MAX_REASONS], *rest]
    callers = value_or_none(first.facts.caller)
    if callers is not None and isinstance(first.facts.policy, Unknown):
        words = _join_and(sorted(name.rpartition(".")[2] for name in callers))
        can = f"may {words} objects there" if words else "may not use its objects"
        shown.append(f"your own account {can}, which says nothing certain about the node's account")
    remedies = []
    for doubt in first.doubts:
        needs = f"`{doubt.permission}` on {doubt.place}"
        if doubt.permission is None:
            continue
        if doubt.is_passing:
            remedies.append(Remedy(f"check again; reading it takes the permission {needs}"))
        elif doubt.is_denied:
            remedies.append(Remedy(f"ask for the permission {needs}, and check again"))
        else:
            remedies.append(Remedy(f"fix that and check again; reading it takes the permission {needs}"))
    text = f"unknown whether the node's account `{first.account}` may {verbs} {whole}: "
    return RuleResult(
        Level.UNKNOWN,
        subject,
        text + "; ".join(shown),
        remedies=(
            *remedies,
            # Not by `--fix`, as the grant may be needless.
            *(
                Remedy(f"or grant it `{entry.grant.role}` on {entry.url}, which settles it", entry.grant.command)
                for entry in entries
            ),
        ),
        facts={
            "account": first.account,
            "buckets": [entry.facts.use.bucket for entry in entries],
            "undecidedPermissions": sorted({name for entry in entries for name in entry.access}),
            "permission": next((doubt.permission for doubt in first.doubts if doubt.permission), None),
            "callerPermissions": None if callers is None else sorted(callers),
        },
        is_passing=any(doubt.is_passing for doubt in first.doubts),
    )


def _ticked_and(names: Iterable[str]) -> str:
    return _join_and(f"`{name}`" for name in names)


def _join_and(words: Iterable[str]) -> str:
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


PERMISSION_VERBS = {"read": READ_PERMISSIONS, "write to": WRITE_PERMISSIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketJudgement:
    """The judgement of one rule about one bucket: the permissions that it needs, and the access found for each.

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
        """`gs://bucket`."""
        return f"gs://{self.facts.use.bucket}"

    @property
    def lacking(self) -> tuple[str, ...]:
        """The permissions that are certainly not granted."""
        return tuple(name for name, access in self.access.items() if isinstance(access, NotGranted))

    @property
    def doubts(self) -> tuple[Caveat, ...]:
        """Why some of the access is unknown."""
        found = (doubt for access in self.access.values() if isinstance(access, Uncertain) for doubt in access.doubts)
        return tuple(dict.fromkeys(found))

    @property
    def level(self) -> Level:
        """The level of the finding."""
        if self.lacking:
            return Level.WARNING if self.above else Level.ERROR
        return Level.UNKNOWN if self.doubts else Level.OK

    @property
    def verbs(self) -> tuple[str, ...]:
        """The permissions as text."""
        return tuple(word for word, names in PERMISSION_VERBS.items() if set(names) & set(self.access))

    def part(self, rule_id: str, names: Collection[str]) -> BucketJudgement:
        """Return the part of the judgement that is about some of the permissions."""
        access = {name: access for name, access in self.access.items() if name in names}
        return replace(self, rule=rule_id, access=access)

    @property
    def grant(self) -> GrantBucketRole:
        """The role that is sufficient [documentation of Cloud Storage: objectUser reads, lists, creates and deletes]."""
        role = "roles/storage.objectUser" if set(WRITE_PERMISSIONS) & set(self.access) else "roles/storage.objectViewer"
        return GrantBucketRole(self.facts.use.bucket, role, f"serviceAccount:{self.account}", self.user_project)


def judge_buckets(facts: CheckFacts) -> Iterator[BucketJudgement]:
    """Yield the judgement of each rule: reading and writing separately, or both by TPU201 if they fail alike."""
    account = facts.account
    if account is None:
        return
    # Each bucket once, with the permissions needed below all of its prefixes.
    buckets: dict[str, tuple[BucketFacts, set[str]]] = {}
    for use in facts.buckets:
        buckets.setdefault(use.use.bucket, (use, set()))[1].update(needed_permissions(facts.wanted, use.use))
    project = value_or_none(facts.project)
    above = f"`{project.parent}`, above project `{project.id}`," if project and project.parent else None
    if project is None:
        above = f"a folder or organisation above project `{facts.wanted.project}`"
    for bucket, names in buckets.values():
        policies = BucketPolicies.of(bucket, facts)
        if policies is None or bucket.is_unpaid:
            continue
        known_bucket = value_or_none(bucket.bucket)
        whole = BucketJudgement(
            rule="TPU201",
            facts=bucket,
            policies=policies,
            account=account,
            access={name: access for name, access in resolve_access(account, policies).items() if name in names},
            user_project=facts.wanted.billing_project if known_bucket and known_bucket.requester_pays else None,
            above=above,
            is_foreign=is_of_another_project(facts),
        )
        parts = [
            part
            for part in (whole.part("TPU201", READ_PERMISSIONS), whole.part("TPU202", WRITE_PERMISSIONS))
            if part.access
        ]
        fail_alike = len(parts) > 1 and parts[0].level is parts[1].level is not Level.OK
        yield from [whole] if fail_alike else parts


IDENTITY_RULES: tuple[CheckRule[CheckFacts], ...] = (scopes_allow_buckets, account_of_node)
IAM_RULES: tuple[CheckRule[CheckFacts], ...] = (account_may_read, account_may_write, *IDENTITY_RULES)

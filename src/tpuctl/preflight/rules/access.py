"""Whether the account that the node runs as may read and write the buckets, according to its roles.

Each unreadable policy is reported once: policies of buckets and of projects, and roles, are reported here, the policy of a
project once for all buckets. An unreadable project, whose number the default account needs, is reported by TPU506.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight.access import READ, Granted, deleted_roles
from tpuctl.preflight.fact import Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules import identity
from tpuctl.preflight.rules.judged import VERBS, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.preflight.access import Doubt
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule
    from tpuctl.preflight.rules.judged import Judged

_DEFAULT_ACCOUNT = "-compute@developer.gserviceaccount.com"
_IS_NO_EDITOR = (
    "the default account is an editor of its project only if no organisation policy "
    "(`iam.automaticIamGrantsForDefaultServiceAccounts`) prevents it"
)
_UNSEEN = "grants of managed folders are not read; if one of them is enough, continue with"
# A line with more reasons is hard to read; JSON has the permissions that would answer all of them.
_REASONS = 4


@rule("TPU201", "the node's account may read the buckets")
def may_read(facts: Facts) -> Iterator[Found]:
    """Check that the account that the node runs as may get and list the objects of every bucket that is read.

    The node's account reads the data, not the user's own account: what works on a laptop can fail on the node, which is
    billed by then. Roles on the bucket and on its project are resolved, including custom roles and the members that stand for
    a project's owners, editors and viewers. If no policy grants access, it is an error for a project without parent, and a
    warning for a project below a folder or an organisation, because inherited roles are not read. It is unknown if the access
    depends on a condition, a group, another project's policy or access lists of objects. If reading and writing fail alike,
    one finding reports both. Deny policies are not read. Source: documentation of Cloud Storage and of IAM.
    """
    yield from _found(facts, "TPU201")


@rule("TPU202", "the node's account may write to the buckets")
def may_write(facts: Facts) -> Iterator[Found]:
    """Check that the account that the node runs as may create and delete objects in every bucket that training writes to.

    Without it the first checkpoint fails, and all work before it is lost. Writing a checkpoint again replaces an object, which
    takes the permission to delete. Error, warning and unknown are used as in TPU201. Not checked for a node that serves.
    Source: documentation of Cloud Storage and of IAM.
    """
    yield from _found(facts, "TPU202")


def _found(facts: Facts, rule_id: str) -> Iterator[Found]:
    judged = [entry for entry in judge(facts) if entry.rule == rule_id]
    for entry in judged:
        if entry.level is not Level.OK:
            continue
        granted = {name: access for name, access in entry.access.items() if isinstance(access, Granted)}
        roles: dict[str, None] = {}
        for access in granted.values():
            is_own = access.member.partition(":")[2].lower() == entry.account.lower()
            roles[f"`{access.role}` on {access.place}" + ("" if is_own else f" for `{access.member}`")] = None
        yield Found(
            level=Level.OK,
            subject=entry.url,
            text=f"`{entry.account}` may {_and(entry.verbs)} it, by {_and(roles)}",
            facts={
                "account": entry.account,
                "grantedBy": [
                    {"permission": name, "role": access.role, "member": access.member}
                    for name, access in granted.items()
                ],
            },
        )
    yield from (_refused(entry) for entry in judged if entry.lacking)
    unknown = [entry for entry in judged if entry.level is Level.UNKNOWN]
    shared: dict[tuple[Doubt, ...], list[Judged]] = {}
    for entry in unknown:
        if all(doubt.project for doubt in entry.doubts):
            shared.setdefault(entry.doubts, []).append(entry)
        else:
            yield _undecided(entry.url, [entry])
    for doubts, entries in shared.items():
        yield _undecided(f"project {doubts[0].project}", entries)


def _refused(judged: Judged) -> Found:
    why = [
        "reads by the node's programs fail with 403, and the node is billed by then"
        if READ[0] in judged.access
        else "writing the first checkpoint fails with 403, and the work before it is lost"
    ]
    if READ[0] in judged.access and judged.account.endswith(_DEFAULT_ACCOUNT):
        why.append(_IS_NO_EDITOR)
    if roles := deleted_roles(judged.account, judged.policies):
        why.append(f"{_ticked(roles)} on the bucket is for a deleted account of that name, not for the new one")
    grant, verbs = judged.grant, " or ".join(judged.verbs)
    text = f"the node's account `{judged.account}` may not {verbs} it: it lacks {_ticked(judged.lacking)}"
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
    if use.reads and use.writes and not set(judged.lacking) & set(READ):
        remedies.append(Remedy(f"or declare it as read-only: `--data-bucket={use.url}` instead of `--bucket`"))
    return Found(
        level=judged.level,
        subject=judged.url,
        text=text,
        why="; ".join(why),
        remedies=tuple(remedies),
        facts={"account": judged.account, "missingPermissions": list(judged.lacking), "role": grant.role},
    )


def _undecided(subject: str, entries: list[Judged]) -> Found:
    """Return one finding for what leaves the access to one bucket, or to several buckets, unknown."""
    first = entries[0]
    whole = "it" if subject == first.url else _and(entry.url for entry in entries)
    verbs = _and(word for word in VERBS if any(word in entry.verbs for entry in entries))
    reasons = [doubt.reason.removesuffix(".") for doubt in first.doubts]  # messages of the service end with a full stop
    rest = [f"and {len(reasons) - _REASONS} more reasons"] if len(reasons) > _REASONS + 1 else reasons[_REASONS:]
    shown = [*reasons[:_REASONS], *rest]
    callers = known(first.facts.caller)
    if callers is not None and isinstance(first.facts.policy, Unknown):
        words = _and(sorted(name.rpartition(".")[2] for name in callers))
        can = f"may {words} objects there" if words else "may not use its objects"
        shown.append(f"your own account {can}, which says nothing certain about the node's account")
    text = f"unknown whether the node's account `{first.account}` may {verbs} {whole}: "
    return Found(
        level=Level.UNKNOWN,
        subject=subject,
        text=text + "; ".join(shown),
        remedies=(
            *_answers(first.doubts),
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


def _answers(doubts: Iterable[Doubt]) -> Iterator[Remedy]:
    """Yield what it takes to read the missing policies."""
    for doubt in doubts:
        if doubt.permission is None:
            continue
        needs = f"`{doubt.permission}` on {doubt.place}"
        if doubt.is_passing:
            yield Remedy(f"check again; reading it takes the permission {needs}")
        elif doubt.is_denied:
            yield Remedy(f"ask for the permission {needs}, and check again")
        else:
            yield Remedy(f"fix that and check again; reading it takes the permission {needs}")


def _ticked(names: Iterable[str]) -> str:
    return _and(f"`{name}`" for name in names)


def _and(words: Iterable[str]) -> str:
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


RULES: tuple[Rule[Facts], ...] = (may_read, may_write, *identity.RULES)

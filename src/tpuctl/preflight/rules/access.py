"""Whether the account that the node runs as may read and write the buckets, by its roles and by the node's scopes.

Who reports what could not be read: a bucket's policy, the project's policy and roles are reported here, the policy of a
project once for all buckets; the project itself, from whose number the default account follows, is reported with the project.
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
    "the default account is an editor of its project only where no organisation policy "
    "(`iam.automaticIamGrantsForDefaultServiceAccounts`) keeps it from that"
)
_UNSEEN = "what a managed folder grants is not seen here: where that is enough, go on with"
# Who reads a line can take in so many reasons; JSON has the permissions that would answer all of them.
_REASONS = 4


@rule("TPU201", "the node's account may read the buckets")
def may_read(facts: Facts) -> Iterator[Found]:
    """Check that the account that the node runs as may get and list the objects of every bucket that is read.

    The account of the node reads, not the user's own: what works from a laptop can still fail on the node, which is paid
    for by then. Roles on the bucket and on its project are resolved, with custom roles and the members that stand for a
    project's owners, editors and viewers. Where no policy grants it, it is an error for a project of its own, and a warning
    for one below a folder or an organisation: roles are inherited from there, and those are not read. It is unknown where a
    condition, a group, another project's policy or objects with access lists of their own decide. Where reading and writing
    fail alike, one finding speaks for both. Deny policies are not seen. Source: documentation of Cloud Storage and of IAM.
    """
    yield from _found(facts, "TPU201")


@rule("TPU202", "the node's account may write to the buckets")
def may_write(facts: Facts) -> Iterator[Found]:
    """Check that the account that the node runs as may create and delete objects in every bucket that training writes to.

    Otherwise the first checkpoint fails, after all work up to it. A checkpoint that is written again replaces an object,
    which takes the permission to delete. It is an error, a warning or unknown as in TPU201. Who serves writes nothing and is
    not asked. Source: documentation of Cloud Storage and of IAM.
    """
    yield from _found(facts, "TPU202")


def _found(facts: Facts, rule_id: str) -> Iterator[Found]:
    judged = [entry for entry in judge(facts) if entry.rule == rule_id]
    yield from (_granted(entry) for entry in judged if entry.level is Level.OK)
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


def _granted(judged: Judged) -> Found:
    granted = {name: access for name, access in judged.access.items() if isinstance(access, Granted)}
    by = dict.fromkeys(_by(access, judged.account) for access in granted.values())
    return Found(
        level=Level.OK,
        subject=judged.url,
        text=f"`{judged.account}` may {_and(judged.verbs)} it, by {_and(by)}",
        facts={
            "account": judged.account,
            "grantedBy": [
                {"permission": name, "role": access.role, "member": access.member} for name, access in granted.items()
            ],
        },
    )


def _by(access: Granted, account: str) -> str:
    is_own = access.member.partition(":")[2].lower() == account.lower()
    return f"`{access.role}` on {access.place}" + ("" if is_own else f" for `{access.member}`")


def _refused(judged: Judged) -> Found:
    why = [
        "the node's programs are refused with 403 when they read, and the node is paid for by then"
        if READ[0] in judged.access
        else "the first checkpoint is refused with 403, and the work up to it is lost"
    ]
    if READ[0] in judged.access and judged.account.endswith(_DEFAULT_ACCOUNT):
        why.append(_IS_NO_EDITOR)
    if roles := deleted_roles(judged.account, judged.policies):
        why.append(f"{_ticked(roles)} on the bucket is for a deleted account of that name, not for the one made anew")
    grant, verbs = judged.grant, " or ".join(judged.verbs)
    text = f"`{judged.account}`, as which the node runs, may not {verbs} it: it lacks {_ticked(judged.lacking)}"
    if judged.above:
        text += f", unless {judged.above} grants it"
        why.append("roles of folders and organisations are inherited, and are not read here")
    else:
        why.append(f"{_UNSEEN} `--skip-check {judged.rule}`")
    remedies = [_granting(judged)]
    use = judged.facts.use
    if use.reads and use.writes and not set(judged.lacking) & set(READ):
        remedies.append(Remedy(f"or say that it is only read: `--data-bucket={use.url}` instead of `--bucket`"))
    return Found(
        level=judged.level,
        subject=judged.url,
        text=text,
        why="; ".join(why),
        remedies=tuple(remedies),
        facts={"account": judged.account, "missingPermissions": list(judged.lacking), "role": grant.role},
    )


def _granting(judged: Judged) -> Remedy:
    """Return the grant. One to an account of another project is nothing that `--fix` does: it may be a mistyped name."""
    grant = judged.grant
    if judged.is_foreign:
        text = f"make sure that `{judged.account}`, of another project, is the account you mean; grant it `{grant.role}` then"
        return Remedy(text, grant.command)
    return Remedy.by(grant, f"grant it `{grant.role}` on the bucket")


def _undecided(subject: str, entries: list[Judged]) -> Found:
    """Return one finding for what keeps one bucket, or several of them, from being judged."""
    first = entries[0]
    whole = "it" if subject == first.url else _and(entry.url for entry in entries)
    verbs = _and(word for word in VERBS if any(word in entry.verbs for entry in entries))
    reasons = [doubt.reason.removesuffix(".") for doubt in first.doubts]  # the service's own words end with one
    rest = [f"and {len(reasons) - _REASONS} more reasons"] if len(reasons) > _REASONS + 1 else reasons[_REASONS:]
    text = f"whether `{first.account}`, as which the node runs, may {verbs} {whole} cannot be told: "
    return Found(
        level=Level.UNKNOWN,
        subject=subject,
        text=text + "; ".join((*reasons[:_REASONS], *rest, *_caller(first))),
        remedies=(*_answers(first.doubts), *(_settling(entry) for entry in entries)),
        facts={
            "account": first.account,
            "buckets": [entry.facts.use.bucket for entry in entries],
            "undecidedPermissions": sorted({name for entry in entries for name in entry.access}),
            "permission": next((doubt.permission for doubt in first.doubts if doubt.permission), None),
            "callerPermissions": _callers(first),
        },
        is_passing=any(doubt.is_passing for doubt in first.doubts),
    )


def _settling(judged: Judged) -> Remedy:
    """Return what makes the answer certain. It may be needless, so that `--fix` does not do it."""
    return Remedy(f"grant it `{judged.grant.role}` on {judged.url}, which settles it", judged.grant.command)


def _answers(doubts: Iterable[Doubt]) -> Iterator[Remedy]:
    """Yield what it takes to be told the next time."""
    for doubt in doubts:
        if doubt.permission is None:
            continue
        needs = f"`{doubt.permission}` on {doubt.place}"
        if doubt.is_passing:
            yield Remedy(f"check again; reading it takes the permission {needs}")
        elif doubt.is_denied:
            yield Remedy(f"ask for the permission {needs}, and check again")
        else:
            yield Remedy(f"mend that and check again; reading it takes the permission {needs}")


def _callers(judged: Judged) -> list[str] | None:
    """Return what the caller may do, where that was asked for."""
    permissions = known(judged.facts.caller)
    return None if permissions is None else sorted(permissions)


def _caller(judged: Judged) -> Iterator[str]:
    """Yield what the caller may do, as what it is: no answer for the node's account."""
    permissions = _callers(judged)
    if permissions is not None and isinstance(judged.facts.policy, Unknown):
        words = _and(name.rpartition(".")[2] for name in permissions)
        can = f"may {words} objects there" if words else "may not use its objects at all"
        yield f"your own account {can}, which says nothing certain of the node's"


def _ticked(names: Iterable[str]) -> str:
    return _and(f"`{name}`" for name in names)


def _and(words: Iterable[str]) -> str:
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


RULES: tuple[Rule[Facts], ...] = (may_read, may_write, *identity.RULES)

"""What a rule says of a fact that could not be read: what, why, and who may read it. Never that it is in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import Absent, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.preflight.fact import Fact

# Of these the service writes paragraphs, each time the same, which TPU501 and TPU502 tell once.
_TOLD_ELSEWHERE = frozenset({"api-disabled", "billing-disabled"})


def reason(fact: Unknown) -> str:
    """Return why it could not be read, in short where another finding says the rest."""
    return fact.reason.partition(". ")[0] if fact.error_id in _TOLD_ELSEWHERE else fact.reason


def beside(fact: Unknown, told: Fact[Any], rule_id: str) -> Unknown:
    """Return a refusal that points to the rule that tells of another one of the same place, and has its whole text."""
    if not isinstance(told, Unknown) or fact.permission is None or told.permission is None:
        return fact
    return replace(fact, reason=f"see {rule_id}")


def unread(
    fact: Unknown | Absent, subject: str, what: str, *, permission: str, project: str, also: Sequence[str] = ()
) -> Found:
    """Return the finding that `what` is not known. `permission`, held on the project, is what reading it takes.

    An `Absent` is one where there should have been an answer: the API does not know the project itself. `also` are further
    remedies, in words.
    """
    unknown = fact if isinstance(fact, Unknown) else Unknown(fact.reason or f"the API knows no project `{project}`")
    needed = unknown.permission or permission
    if unknown.is_passing:
        advice = f"check again; reading it takes the permission `{needed}` on project `{project}`"
    elif unknown.permission:
        advice = f"ask for the permission `{needed}` on project `{project}`"
    else:
        advice = f"mend that and check again; reading it takes the permission `{needed}` on project `{project}`"
    return Found(
        level=Level.UNKNOWN,
        subject=subject,
        text=f"{what} could not be read: {reason(unknown)}",
        remedies=(Remedy(advice), *map(Remedy, also)),
        facts={"permission": needed},
        is_passing=unknown.is_passing,
    )

"""The result of a rule for a fact that could not be read: what, why, and which permission it takes. It is never `ok`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import Absent, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.preflight.fact import Fact

# The service explains these errors in long paragraphs, which TPU501 and TPU502 show once.
_REPORTED_ELSEWHERE = frozenset({"api-disabled", "billing-disabled"})


def reason(fact: Unknown) -> str:
    """Return why the fact could not be read; shortened if another finding has the full text."""
    return fact.reason.partition(". ")[0] if fact.error_id in _REPORTED_ELSEWHERE else fact.reason


def beside(fact: Unknown, other: Fact[Any], rule_id: str) -> Unknown:
    """Return a refusal that points to the rule with the full text, if `other` was refused for the same place."""
    if not isinstance(other, Unknown) or fact.permission is None or other.permission is None:
        return fact
    return replace(fact, reason=f"see {rule_id}")


def unread(
    fact: Unknown | Absent, subject: str, what: str, *, permission: str, project: str, also: Sequence[str] = ()
) -> Found:
    """Return the result that `what` is unknown. Reading it takes `permission` on the project.

    An `Absent` here means that the API does not know the project itself. `also` are further remedies, as text.
    """
    unknown = fact if isinstance(fact, Unknown) else Unknown(fact.reason or f"the API knows no project `{project}`")
    needed = unknown.permission or permission
    if unknown.is_passing:
        advice = f"check again; reading it takes the permission `{needed}` on project `{project}`"
    elif unknown.permission:
        advice = f"ask for the permission `{needed}` on project `{project}`"
    else:
        advice = f"fix that and check again; reading it takes the permission `{needed}` on project `{project}`"
    return Found(
        level=Level.UNKNOWN,
        subject=subject,
        text=f"{what} could not be read: {reason(unknown)}",
        remedies=(Remedy(advice), *map(Remedy, also)),
        facts={"permission": needed},
        is_passing=unknown.is_passing,
    )

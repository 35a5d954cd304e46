"""A finding as one line, for commands that do something else than checking."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.preflight.findings import Finding

ACCEPTED = "(accepted)"
_LONGEST = 120


def warning_line(finding: Finding) -> str:
    """Return one line: what was found, and why that matters in short. What was accepted says so."""
    why = f" ({_short(finding.found.why)})" if finding.found.why else ""
    end = f" {ACCEPTED}" if is_milder(finding) else ""
    return " ".join(f"{head(finding)}{why}{end}".split())


def head(finding: Finding) -> str:
    """Return the id and what was found; the subject only where the words do not name it."""
    found = finding.found
    name = found.subject.rpartition(" ")[2]
    return f"{finding.id} {found.text}" if f"`{name}`" in found.text else f"{finding.id} {found.subject}: {found.text}"


def is_milder(finding: Finding) -> bool:
    """Tell whether accepting it has changed anything; what is ok anyway need not be accepted."""
    return finding.level is not finding.found.level


def _short(why: str) -> str:
    """Return the first part of a reason, cut where even that is long."""
    part = why.partition("; ")[0]
    return part if len(part) <= _LONGEST else part[: _LONGEST - 1].rpartition(" ")[0] + "…"

"""A finding as one line, for commands that do something else than checking."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.preflight.findings import Finding

ACCEPTED = "(accepted)"
_LONGEST = 120


def warning_line(finding: Finding) -> str:
    """Return one line: what was found, why that matters in short, and how to do without the check.

    What was accepted says so in place of the latter.
    """
    found = finding.found
    why = f" ({_short(found.why)})" if found.why else ""
    end = f" {ACCEPTED}" if is_milder(finding) else f"; skip: `--skip-check {finding.id}`"
    return " ".join(f"{finding.id} {found.subject}: {found.text}{why}{end}".split())


def is_milder(finding: Finding) -> bool:
    """Tell whether accepting it has changed anything; what is ok anyway need not be accepted."""
    return finding.level is not finding.found.level


def _short(why: str) -> str:
    """Return the first part of a reason, cut where even that is long."""
    part = why.partition("; ")[0]
    return part if len(part) <= _LONGEST else part[: _LONGEST - 1].rpartition(" ")[0] + "…"

"""A finding as one line, for commands other than `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.preflight.findings import Finding

ACCEPTED = "(accepted)"
_LONGEST = 120


def warning_line(finding: Finding) -> str:
    """Return one line: what was found, a short reason, and a mark if the finding was accepted."""
    # The first part of the reason, shortened if it is long.
    reason = (finding.found.why or "").partition("; ")[0]
    if len(reason) > _LONGEST:
        reason = reason[: _LONGEST - 1].rpartition(" ")[0] + "…"
    why = f" ({reason})" if reason else ""
    end = f" {ACCEPTED}" if is_milder(finding) else ""
    return " ".join(f"{head(finding)}{why}{end}".split())


def head(finding: Finding) -> str:
    """Return the id and what was found; with the subject only if the text does not name it."""
    found = finding.found
    name = found.subject.rpartition(" ")[2]
    return f"{finding.id} {found.text}" if f"`{name}`" in found.text else f"{finding.id} {found.subject}: {found.text}"


def is_milder(finding: Finding) -> bool:
    """Return whether accepting the finding has changed its level."""
    return finding.level is not finding.found.level

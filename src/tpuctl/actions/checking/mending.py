"""Doing what mends a finding, where that is safe: nothing here makes, moves or deletes data."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from tpuctl.preflight.findings import EnableService, GrantBucketRole, Level, OpenFirewall

if TYPE_CHECKING:
    from tpuctl.actions.checking.sources import Sources
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.findings import Change


def changes(report: Report) -> tuple[Change, ...]:
    """Return what would mend errors, warnings and what could not be read, each change once, the worst first."""
    found = [
        remedy.change
        for finding in report.of(Level.ERROR, Level.WARNING, Level.UNKNOWN)
        for remedy in finding.found.remedies
        if remedy.change is not None
    ]
    return tuple(dict.fromkeys(found))


def carry_out(sources: Sources, change: Change) -> None:
    """Make one change; returns once it has taken effect as far as the API tells. Raises what the cloud raises."""
    match change:
        case EnableService(project, service):
            sources.projects.enable(project, service)
        case GrantBucketRole(bucket, role, member, user_project):
            sources.buckets.grant(bucket, role, member, user_project=user_project)
        case OpenFirewall(project, network, name, ranges, ports):
            sources.compute.open_firewall(project, network, name, ranges, ports)
        case _:
            assert_never(change)

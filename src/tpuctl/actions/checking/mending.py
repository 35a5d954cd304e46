"""Doing what mends a finding, where that is safe: nothing here makes, moves or deletes data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.preflight.findings import (
    AddToAgent,
    EnableService,
    GrantBucketRole,
    Level,
    LocalChange,
    MakeSshKey,
    OpenFirewall,
    SetMode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.actions.checking.sources import Sources
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.findings import Change, Finding


def changes(report: Report) -> tuple[Change, ...]:
    """Return what would mend errors, warnings and what could not be read, each change once, the worst first.

    Of notes only what changes this machine, unless the user has accepted them.
    """
    found = [
        remedy.change
        for finding in report.of(Level.ERROR, Level.WARNING, Level.UNKNOWN, Level.NOTE)
        for remedy in finding.found.remedies
        if remedy.change is not None and (finding.level is not Level.NOTE or _is_worth_it(finding, remedy.change))
    ]
    return tuple(dict.fromkeys(found))


def _is_worth_it(finding: Finding, change: Change) -> bool:
    return isinstance(change, LocalChange) and not finding.accepted


@dataclass(slots=True)
class Mending:
    """Changes on their way: those that are done, those that failed and why, those that wait, of which one may be begun."""

    waiting: list[Change]
    done: list[Change] = field(default_factory=list)
    failed: list[tuple[Change, TpuctlError]] = field(default_factory=list)

    def go_on(self, make: Callable[[Change], None], tell: Callable[[str], None]) -> None:
        """Make the changes that wait, one after the other, by `make`; one that fails keeps no other from being made.

        Raises `CredentialsError`: none of the others would be made either.
        """
        while self.waiting:
            change = self.waiting[0]
            try:
                make(change)
            except CredentialsError:
                raise
            except TpuctlError as error:
                self.failed.append((change, error))
                tell(f"failed: {change.command}: {error.message}")
            else:
                self.done.append(change)
                tell(f"done: {change.command}")
            del self.waiting[0]


def carry_out(sources: Sources, change: Change) -> None:
    """Make one change; returns once it has taken effect as far as the API tells. Raises what the cloud raises."""
    match change:
        case EnableService(project, service):
            sources.projects.enable(project, service)
        case GrantBucketRole(bucket, role, member, user_project):
            sources.buckets.grant(bucket, role, member, user_project=user_project)
        case OpenFirewall(project, network, name, ranges, ports):
            sources.compute.open_firewall(project, network, name, ranges, ports)
        case SetMode() | MakeSshKey() | AddToAgent():
            from tpuctl.actions.checkup.local_changes import carry_out_here  # noqa: PLC0415  # few are on this machine

            carry_out_here(change)
        case _:
            assert_never(change)

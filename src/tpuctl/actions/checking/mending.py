"""Apply the fixes of findings that are safe: none of them creates, moves or deletes data."""

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
    from tpuctl.preflight.findings import Change


def changes(report: Report) -> tuple[Change, ...]:
    """Return the fixes for errors, warnings and unknown findings, each once, the worst first.

    For notes only fixes that change this machine, unless the user has accepted the note.
    """
    found = [
        remedy.change
        for finding in report.of(Level.ERROR, Level.WARNING, Level.UNKNOWN, Level.NOTE)
        for remedy in finding.found.remedies
        if remedy.change is not None
        and (finding.level is not Level.NOTE or (isinstance(remedy.change, LocalChange) and not finding.accepted))
    ]
    return tuple(dict.fromkeys(found))


@dataclass(slots=True)
class Mending:
    """Applies changes. `waiting` are not applied yet; the first of them may have been started."""

    waiting: list[Change]
    done: list[Change] = field(default_factory=list)
    failed: list[tuple[Change, TpuctlError]] = field(default_factory=list)

    def run(self, apply: Callable[[Change], None], notify: Callable[[str], None]) -> None:
        """Apply the waiting changes one after the other with `apply`. A failure does not stop the others.

        Raises `CredentialsError`, as all others would fail too.
        """
        while self.waiting:
            change = self.waiting[0]
            try:
                apply(change)
            except CredentialsError:
                raise
            except TpuctlError as error:
                self.failed.append((change, error))
                notify(f"failed: {change.command}: {error.message}")
            else:
                self.done.append(change)
                notify(f"done: {change.command}")
            del self.waiting[0]


def carry_out(sources: Sources, change: Change) -> None:
    """Apply one change and wait until the API reports it as done. Raises the errors of the API."""
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

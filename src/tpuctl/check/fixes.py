"""`--fix` of `tpuctl check` and `tpuctl doctor`: show the fixes of the findings, ask, apply them, and report the result.

No fix creates, moves or deletes data.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from tpuctl.app.signals import signals_ignored
from tpuctl.check.findings import (
    AddKeyToSshAgent,
    CheckReport,
    CreateSshKey,
    EnableService,
    Fix,
    GrantBucketRole,
    Level,
    LocalFix,
    OpenFirewall,
    SetFileMode,
)
from tpuctl.check.preflight import check_sources
from tpuctl.errors import CredentialsError, ExitCode, TpuctlError, worst_exit_code
from tpuctl.output.terminal import OutputFormat
from tpuctl.ssh.keys import ensure_key, login_name

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.check.gathering import Sources


def check_and_fix(
    app: App, check: Callable[[], CheckReport], show: Callable[[CheckReport], None], *, yes: bool, form: OutputFormat
) -> tuple[CheckReport, ExitCode]:
    """Check, show the report, apply fixes, check again. Return the last report and the exit code of the fixes.

    A format for programs is written once, with the last report. Raises what `run_fixes` raises.
    """
    report = check()
    if form is OutputFormat.TABLE:
        show(report)
    fixes = run_fixes(app, report, yes=yes)
    if fixes is not None:
        report = check()
    if fixes is not None or form is not OutputFormat.TABLE:
        show(report)
    if fixes is None or not fixes.failed:
        return report, ExitCode.OK
    lines = [f"`--fix` did {len(fixes.done)} of {len(fixes.done) + len(fixes.failed)} changes"]
    lines += [f"  done: {change.command}" for change in fixes.done]
    for change, error in fixes.failed:
        lines += [f"  failed: {change.command}", f"    {error.message}"]
        lines += [f"    hint: {line}" for line in (error.hint or "").splitlines()]
    app.terminal.warn(*lines)
    return report, worst_exit_code(error.exit_code for _, error in fixes.failed)


@dataclass(slots=True)
class FixProgress:
    """What was applied so far. `waiting` are not applied yet; the first of them may have been started."""

    waiting: list[Fix]
    done: list[Fix] = field(default_factory=list)
    failed: list[tuple[Fix, TpuctlError]] = field(default_factory=list)


def run_fixes(app: App, report: CheckReport, *, yes: bool) -> FixProgress | None:
    """Apply the safe fixes after confirmation, one after the other. Return None if none was applied.

    A failure does not stop the others. Raises `CredentialsError`, as all others would fail too. If that or a signal
    interrupts it, the applied and the remaining fixes have been reported.
    """
    note, planned = app.terminal.note, available_fixes(report)
    if not planned:
        note("`--fix` has nothing to do")
        return None
    note("`--fix` would run:", *(f"  {change.command}" for change in planned))
    if not app.terminal.confirm(f"do {'this' if len(planned) == 1 else 'these'}?", yes=yes):
        note("nothing was changed")
        return None
    fixes = FixProgress(list(planned))
    try:
        # Changes of this machine alone need no cloud and no settings.
        sources = None if all(isinstance(change, LocalFix) for change in planned) else check_sources(app)
        for change in planned:
            try:
                apply_fix(sources, change)
            except CredentialsError:
                raise
            except TpuctlError as error:
                fixes.failed.append((change, error))
                note(f"failed: {change.command}: {error.message}")
            else:
                fixes.done.append(change)
                note(f"done: {change.command}")
            del fixes.waiting[0]
    except BaseException:  # also signals: the applied changes must be reported
        with signals_ignored():
            lines = ["`--fix` was interrupted"]
            lines += [f"  done: {change.command}" for change in fixes.done]
            lines += [f"  failed: {change.command}: {error.message}" for change, error in fixes.failed]
            lines += [f"  started, may be done: {change.command}" for change in fixes.waiting[:1]]
            lines += [f"  not done: {change.command}" for change in fixes.waiting[1:]]
            app.terminal.warn(*lines)
        raise
    return fixes


def available_fixes(report: CheckReport) -> tuple[Fix, ...]:
    """Return the fixes for errors, warnings and unknown findings, each once, the worst first.

    For notes only fixes that change this machine, unless the user has accepted the note.
    """
    found = [
        remedy.change
        for finding in report.of(Level.ERROR, Level.WARNING, Level.UNKNOWN, Level.NOTE)
        for remedy in finding.found.remedies
        if remedy.change is not None
        and (finding.level is not Level.NOTE or (isinstance(remedy.change, LocalFix) and not finding.accepted))
    ]
    return tuple(dict.fromkeys(found))


def apply_fix(sources: Sources | None, change: Fix) -> None:
    """Apply one change and wait until it is done; none removes anything. `sources` may be None for a `LocalFix`.

    Raises the errors of the API, and `TpuctlError` with the error of the system.
    """
    match change:
        case SetFileMode(path, mode):
            try:
                # Only bits are removed: a file that its owner may not write stays so.
                Path(path).chmod(Path(path).stat().st_mode & mode)
            except OSError as error:
                raise TpuctlError(f"the mode of `{path}` cannot be changed: {error.strerror}") from error
        case CreateSshKey(home):
            ensure_key(Path(home), login=login_name(os.environ))
        case AddKeyToSshAgent(path):
            try:
                # With the terminal, since it asks for the passphrase.
                code = subprocess.run(["ssh-add", path], check=False).returncode
            except OSError as error:
                raise TpuctlError(f"`ssh-add` cannot be started: {error.strerror}") from error
            if code != 0:
                hint = "run it yourself: it asks for the passphrase at a terminal, and needs a running agent"
                raise TpuctlError(f"`ssh-add` failed with exit code {code}", hint=hint)
        case _ if sources is None:
            raise ValueError(f"needs the cloud: {change.command}")
        case EnableService(project, service):
            sources.projects.enable(project, service)
        case GrantBucketRole(bucket, role, member, user_project):
            sources.buckets.grant(bucket, role, member, user_project=user_project)
        case OpenFirewall(project, network, name, ranges, ports):
            sources.compute.open_firewall(project, network, name, ranges, ports)
        case _:
            assert_never(change)

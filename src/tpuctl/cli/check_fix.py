"""`--fix` of `tpuctl check` and `tpuctl doctor`: show the fixes of the findings, ask, apply them, and report the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.actions.checking.mending import Mending, carry_out, changes
from tpuctl.cli.check_options import sources
from tpuctl.errors import ExitCode, worst
from tpuctl.output.terminal import Format
from tpuctl.preflight.findings import LocalChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpuctl.cli.app import App
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.findings import Change


def look_and_mend(
    app: App, check: Callable[[], Report], show: Callable[[Report], None], *, yes: bool, form: Format
) -> tuple[Report, ExitCode]:
    """Check, show the report, apply fixes, check again. Return the last report and the exit code of the fixes.

    A format for programs is written once, with the last report. Raises what `mend` raises.
    """
    report = check()
    if form is Format.TABLE:
        show(report)
    fixes = mend(app, report, yes=yes)
    if fixes is not None:
        report = check()
    if fixes is not None or form is not Format.TABLE:
        show(report)
    if fixes is None:
        return report, ExitCode.OK
    say_what_failed(app, fixes)
    return report, ending(fixes)


def mend(app: App, report: Report, *, yes: bool) -> Mending | None:
    """Apply the safe fixes after confirmation. Return None if none was applied; the result has the errors of the API.

    Raises `CredentialsError`. If that or a signal interrupts it, the applied and the remaining fixes have been reported.
    """
    planned = changes(report)
    if not planned:
        app.terminal.note("`--fix` has nothing to do")
        return None
    app.terminal.note("`--fix` would run:", *(f"  {change.command}" for change in planned))
    if not app.terminal.confirm(f"do {'this' if len(planned) == 1 else 'these'}?", yes=yes):
        app.terminal.note("nothing was changed")
        return None
    fixes = Mending(list(planned))
    try:
        fixes.run(_apply_function(app, planned), app.terminal.note)
    except BaseException:  # also signals: the applied changes must be reported
        from tpuctl.cli.signals import undisturbed  # noqa: PLC0415  # rarely needed

        with undisturbed():
            lines = ["`--fix` was interrupted"]
            lines += [f"  done: {change.command}" for change in fixes.done]
            lines += [f"  failed: {change.command}: {error.message}" for change, error in fixes.failed]
            lines += [f"  started, may be done: {change.command}" for change in fixes.waiting[:1]]
            lines += [f"  not done: {change.command}" for change in fixes.waiting[1:]]
            app.terminal.warn(*lines)
        raise
    return fixes


def _apply_function(app: App, planned: Iterable[Change]) -> Callable[[Change], None]:
    """Return the function that applies a change. If all are on this machine, it needs no cloud and no settings."""
    if all(isinstance(change, LocalChange) for change in planned):
        from tpuctl.actions.checkup.local_changes import carry_out_here  # noqa: PLC0415  # most are in the cloud

        return carry_out_here  # type: ignore[return-value]  # all are local
    cloud = sources(app)
    return lambda change: carry_out(cloud, change)


def say_what_failed(app: App, fixes: Mending) -> None:
    """Report which changes were applied and which failed, with their commands; nothing if none failed."""
    if not fixes.failed:
        return
    lines = [f"`--fix` did {len(fixes.done)} of {len(fixes.done) + len(fixes.failed)} changes"]
    lines += [f"  done: {change.command}" for change in fixes.done]
    for change, error in fixes.failed:
        lines += [f"  failed: {change.command}", f"    {error.message}"]
        lines += [f"    hint: {line}" for line in (error.hint or "").splitlines()]
    app.terminal.warn(*lines)


def ending(fixes: Mending) -> ExitCode:
    """Return the exit code of the failed changes, 0 if none failed."""
    return worst(error.exit_code for _, error in fixes.failed)

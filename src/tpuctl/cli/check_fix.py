"""What `--fix` of `tpuctl check` and `tpuctl doctor` does: show what mends the findings, ask, do it, and say how far it got."""

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
    app: App, look: Callable[[], Report], show: Callable[[Report], None], *, yes: bool, form: Format
) -> tuple[Report, ExitCode]:
    """Look, show what was found, mend it, look again; return what there is then, and how mending went.

    A format for programs is written once, as it is at the end. Raises what `mend` raises.
    """
    report = look()
    if form is Format.TABLE:
        show(report)
    mending = mend(app, report, yes=yes)
    if mending is not None:
        report = look()
    if mending is not None or form is not Format.TABLE:
        show(report)
    if mending is None:
        return report, ExitCode.OK
    say_what_failed(app, mending)
    return report, ending(mending)


def mend(app: App, report: Report, *, yes: bool) -> Mending | None:
    """Do what is safe to do, once it was agreed to; nothing where nothing was tried. What the cloud refuses is in the result.

    Raises `CredentialsError`. Where that or a signal ends it, what was done and what was not has been said.
    """
    planned = changes(report)
    if not planned:
        app.terminal.note("there is nothing that `--fix` could do")
        return None
    app.terminal.note("what `--fix` would do:", *(f"  {change.command}" for change in planned))
    if not app.terminal.confirm(f"do {'this' if len(planned) == 1 else 'these'}?", yes=yes):
        app.terminal.note("nothing was changed")
        return None
    mending = Mending(list(planned))
    try:
        mending.go_on(_maker(app, planned), app.terminal.note)
    except BaseException:  # a signal too: what was changed must not go unsaid
        _say_where_it_ended(app, mending)
        raise
    return mending


def _maker(app: App, planned: Iterable[Change]) -> Callable[[Change], None]:
    """Return what makes one change. Where all are on this machine no cloud is connected to, and no settings are needed."""
    if all(isinstance(change, LocalChange) for change in planned):
        from tpuctl.actions.checkup.local_changes import carry_out_here  # noqa: PLC0415  # most are in the cloud

        return carry_out_here  # type: ignore[return-value]  # all are local
    cloud = sources(app)
    return lambda change: carry_out(cloud, change)


def say_what_failed(app: App, mending: Mending) -> None:
    """Say at the end which changes were made and which failed, with their commands; nothing where all were made."""
    if not mending.failed:
        return
    lines = [f"`--fix` did {len(mending.done)} of {len(mending.done) + len(mending.failed)} changes"]
    lines += [f"  done: {change.command}" for change in mending.done]
    for change, error in mending.failed:
        lines += [f"  failed: {change.command}", f"    {error.message}"]
        lines += [f"    hint: {line}" for line in (error.hint or "").splitlines()]
    app.terminal.warn(*lines)


def ending(mending: Mending) -> ExitCode:
    """Return the exit code of what failed, 0 where nothing did."""
    return worst(error.exit_code for _, error in mending.failed)


def _say_where_it_ended(app: App, mending: Mending) -> None:
    from tpuctl.cli.signals import undisturbed  # noqa: PLC0415  # a rare way

    with undisturbed():
        lines = ["`--fix` has ended early"]
        lines += [f"  done: {change.command}" for change in mending.done]
        lines += [f"  failed: {change.command}: {error.message}" for change, error in mending.failed]
        lines += [f"  begun, perhaps done: {change.command}" for change in mending.waiting[:1]]
        lines += [f"  not done: {change.command}" for change in mending.waiting[1:]]
        app.terminal.warn(*lines)

"""A report that is made again every two seconds: on one screen, or as a line of JSON for each change."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import CLOUD_CALL_TIMEOUT, SystemClock, limit_cloud_calls
from tpuctl.durations import local_time
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError
from tpuctl.output.terminal import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App

_INTERVAL = timedelta(seconds=2)


def watch_view(app: App, show: Callable[[App], object]) -> int:
    """Let `show` make a report again and again, with an app for each, until the user ends it.

    An error of the first look is raised; later ones are shown, and the last report stays. Raises `InvalidInputError` where
    neither a screen nor JSON is asked for.
    """
    if app.format is OutputFormat.JSON:
        _stream(app, show)
    if app.format is not OutputFormat.TABLE or not app.terminal.is_interactive:
        raise InvalidInputError(
            "`--watch` needs a terminal, or `-o json`", hint="with `-o json` it prints a line for each change"
        )
    from tpuctl.output.screen import LiveTable  # noqa: PLC0415  # rich takes 40 ms

    text, error = _look(app, show, width=app.terminal.streams.width)
    if error is not None and not text:
        raise error
    with LiveTable(app.terminal) as screen:
        while True:
            when = local_time(SystemClock().now()).strftime("%H:%M:%S")
            failure = f"error: {error.lines[0]}   " if error else ""
            screen.show_lines(text.splitlines(), f"{failure}last look {when}, every {_INTERVAL.seconds} s")
            if screen.wait(_INTERVAL.total_seconds()):
                return ExitCode.OK
            latest, error = _look(app, show, width=screen.width)
            text = latest or text


def _look(app: App, show: Callable[[App], object], *, width: int | None) -> tuple[str, TpuctlError | None]:
    """Return what a report prints, in a window of that width or, without one, as to a pipe; and why it is not complete."""
    written, notes = io.StringIO(), io.StringIO()
    call = app.for_call()
    call.terminal = app.terminal.writing_to(written, notes, width=width)
    call.command_tree = app.command_tree
    try:
        with limit_cloud_calls(SystemClock(), CLOUD_CALL_TIMEOUT):
            show(call)
    except TpuctlError as error:
        app.name_node(error)
        # Notes without a report do not replace the last one.
        return written.getvalue() and written.getvalue() + notes.getvalue(), error
    finally:
        call.close()
    return written.getvalue() + notes.getvalue(), None


def _stream(app: App, show: Callable[[App], object]) -> None:
    """Print a line of JSON for each change, and errors after the first look as they appear."""
    printed, reported = "", ""
    while True:
        text, error = _look(app, show, width=None)
        if error is not None and not printed and not text:
            raise error
        if text and text != printed:
            app.terminal.page(text.splitlines())
            app.terminal.flush()
            printed = text
        if error is not None and error.message != reported:
            app.show_error(error)
        reported = error.message if error else ""
        SystemClock().sleep(_INTERVAL)

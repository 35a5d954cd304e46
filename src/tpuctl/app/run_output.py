"""What a run shows beside its result: the progress of long work, and the summary of a step in GitHub Actions."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.files import output_path
from tpuctl.output.progress import EventFile, Progress
from tpuctl.output.step_summary import StepSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.app.app import App


def open_summary(app: App, path: str) -> StepSummary:
    """Return the summary of this step, written to a file when the run ends."""
    summary = StepSummary(Path(path), app.command_line())

    def write() -> None:
        with suppress(TpuctlError, ValueError):  # broken settings
            summary.is_sandbox = app.is_sandbox
        try:
            summary.path = output_path(summary.path, app.invocation.folder)
            summary.write()
        except InvalidInputError as error:
            app.terminal.warn(f"no summary of this step: {error.message}")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            app.terminal.warn(f"cannot write the summary of this step to `{path}`: {reason}")

    app.on_close(write)
    return summary


@contextmanager
def show_progress(app: App, *, events: str | None, lasting: bool) -> Iterator[Progress]:
    """Show events during a block, as `App.progress` says."""
    app.shows_events = events == "-"
    stream: TextIO | EventFile | None = sys.stdout if app.shows_events else None
    if events is not None and not app.shows_events:
        try:
            stream = EventFile(output_path(Path(events), app.invocation.folder), events)
        except OSError as error:
            raise InvalidInputError(f"`--events {events}` cannot be written: {error.strerror}") from error
    match app.settings.text("timestamps"):
        case "auto":
            timestamps = not app.terminal.streams.stderr_is_terminal
        case text:
            timestamps = text == "on"
    with Progress(
        app.terminal, app.clock, events=stream, lasting=lasting, timestamps=timestamps, summary=app.summary
    ) as progress:
        yield progress

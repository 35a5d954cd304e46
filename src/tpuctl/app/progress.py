"""The progress of long work, for a person or as events for a program."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tpuctl.errors import InvalidInputError
from tpuctl.files import output_path
from tpuctl.output.progress import EventFile, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.app.app import App


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

"""Where the events of long work go: to the terminal, and where the user wants each as a line of JSON."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.output.progress import Progress
from tpuctl.output.progress.export import EventFile
from tpuctl.userfile import expand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.cli.app import App


@contextmanager
def showing(app: App, *, events: str | None, endings: bool) -> Iterator[Progress]:
    """Show events; also append them to the file `events`, or write them to stdout where that is `-`.

    With `endings` also that a node was given up, where no error will say so. Raises `InvalidInputError` for a file that cannot
    be written.
    """
    app.shows_events = events == "-"
    if events is None or events == "-":
        with Progress(app.terminal, app.clock, events=sys.stdout if events else None, endings=endings) as progress:
            yield progress
        return
    try:
        file = EventFile(app.invocation.folder / expand(Path(events)), events)
    except OSError as error:
        raise InvalidInputError(f"`--events {events}` cannot be written: {error.strerror}") from error
    with Progress(app.terminal, app.clock, events=file, endings=endings) as progress:
        yield progress

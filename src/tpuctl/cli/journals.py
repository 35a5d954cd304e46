"""Opening the journal: on this machine, or in a bucket."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.cli.places import journal_folder
from tpuctl.clock import SystemClock, limit_calls
from tpuctl.names import BucketPath

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.journal import Journal


# Time limit for writing the remaining lines at the end of a run, which may have been interrupted.
_AT_THE_END = timedelta(seconds=10)


def journal(app: App) -> Journal:
    """Return the journal; in a bucket if the setting `journal` names one. Nothing is read or written yet."""
    from tpuctl.journal import BucketStore, Journal  # noqa: PLC0415  # most commands use no journal

    warn = app.terminal.warn
    place = app.settings.text("journal")
    if place is None:
        return Journal(journal_folder(app.invocation.environ, sandbox=app.is_sandbox), warn=warn)
    # The client is created first, so that it is closed last: after the waiting lines were written.
    store = BucketStore(app.storage, BucketPath.parse(place), app.clock, warn=warn)
    opened = Journal(store, warn=warn)

    def flush() -> None:
        with limit_calls(SystemClock(), _AT_THE_END):
            opened.flush()

    app.on_close(flush)
    return opened

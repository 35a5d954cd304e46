"""Which journal a command uses: the one on this machine, or one in a bucket."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.cli.places import journal_folder
from tpuctl.clock import SystemClock, limit_calls
from tpuctl.journal import Journal

if TYPE_CHECKING:
    from tpuctl.cli.app import App


# How long the end of a run waits for the lines that are left to be written; the run may have been interrupted.
_AT_THE_END = timedelta(seconds=10)


def journal(app: App) -> Journal:
    """Return the journal; in a bucket where the setting `journal` names one. Nothing is read or written yet."""
    warn = app.terminal.warn
    place = app.settings.text("journal")
    if place is None:
        return Journal(journal_folder(app.invocation.environ, sandbox=app.is_sandbox), warn=warn)
    from tpuctl.journal import BucketStore  # noqa: PLC0415  # only for a bucket
    from tpuctl.names import BucketPath  # noqa: PLC0415  # as above

    # The client is made first, so that at the end it is closed after what waits has been written.
    store = BucketStore(app.storage, BucketPath.parse(place), app.clock, warn=warn)
    made = Journal(store, warn=warn)

    def flush() -> None:
        with limit_calls(SystemClock(), _AT_THE_END):
            made.flush()

    app.at_the_end(flush)
    return made

"""Wait for the end of an operation of the APIs other than the TPU API."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import TimedOutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.api.calls import Caller, Json

_INTERVAL = timedelta(seconds=1)
_PATIENCE = timedelta(minutes=3)


def until_done(caller: Caller, operation: Json, fetch: Callable[[], Json], *, what: str) -> Json:
    """Return an operation once it has ended, with or without an error; `fetch` reads it again.

    Raises `TimedOutError` after three minutes, and what `fetch` raises.
    """
    ends = caller.clock.monotonic() + _PATIENCE
    # Service Usage has `done`, Compute Engine has a status [API serviceusage v1, compute v1].
    while not (operation.get("done") or operation.get("status") == "DONE"):
        if caller.clock.monotonic() >= ends:
            hint = "it continues in the cloud; check again in a few minutes"
            raise TimedOutError(f"{what} has not ended after 3 minutes", hint=hint)
        caller.clock.sleep(_INTERVAL)
        operation = fetch()
    return operation

"""Wait until the workers accept a key that was just added to their node: the guest agent needs some seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.remote.ssh import ProbeOutcome, probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member

# "Wait up to 60 s after the metadata update" [Google's troubleshooting guide for Cloud TPU].
_PATIENCE = timedelta(seconds=60)
_INTERVAL = timedelta(seconds=2)
_KNOCK = timedelta(seconds=15)
_AT_ONCE = 32


def await_key(clock: Clock, members: Sequence[Member], tell: Callable[[str], None]) -> None:
    """Wait until no worker refuses our key, or for one minute. Only `true` is run on the workers.

    Unreachable workers are not awaited. Raises `SshProgramMissingError`.
    """
    deadline = clock.monotonic() + _PATIENCE
    refusing = _refusing(members)
    if refusing:
        tell(f"waiting up to {_PATIENCE.total_seconds():g} s until the workers accept the new ssh key")
    while refusing and clock.monotonic() < deadline:
        clock.sleep(_INTERVAL)
        refusing = _refusing(refusing)


def _refusing(members: Sequence[Member]) -> list[Member]:
    if len(members) == 1:
        results = [probe(members[0].way, _KNOCK)]
    else:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # only for several workers

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = list(pool.map(lambda one: probe(one.way, _KNOCK), members))
    return [one for one, result in zip(members, results, strict=True) if result.outcome is ProbeOutcome.KEY_REFUSED]

"""Wait until the workers know a key that was just put on their node: the guest agent takes some seconds to learn of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.remote.ssh import ProbeOutcome, ProbeResult, probe

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
    """Return once no worker refuses our key any more, or after a minute. Nothing but `true` is run on them.

    A worker that cannot be reached is not waited for. Raises `SshProgramMissingError`.
    """
    deadline = clock.monotonic() + _PATIENCE
    refusing = _refusing(members)
    if refusing:
        tell(f"waiting until our new key has reached the workers, {_PATIENCE.total_seconds():g} s at most")
    while refusing and clock.monotonic() < deadline:
        clock.sleep(_INTERVAL)
        refusing = _refusing(refusing)


def _refusing(members: Sequence[Member]) -> list[Member]:
    results = _ask(members)
    return [one for one, result in zip(members, results, strict=True) if result.outcome is ProbeOutcome.KEY_REFUSED]


def _ask(members: Sequence[Member]) -> list[ProbeResult]:
    if len(members) == 1:
        return [probe(members[0].way, _KNOCK)]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # only for several workers

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda one: probe(one.way, _KNOCK), members))

"""Run the copies of all workers in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.remote.copying.link import Links
from tpuctl.remote.copying.worker import copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.clock import Clock
    from tpuctl.remote.copying.values import Copied, Tally
    from tpuctl.remote.copying.worker import Transfer
    from tpuctl.remote.member import Member

# Parallel copies; the next starts when one of them ends.
_MAX_AT_ONCE = 64


def copy_everywhere(
    members: Sequence[Member],
    transfers: Sequence[Callable[[Tally], Transfer]],
    tallies: Sequence[Tally],
    *,
    fanout: int,
    clock: Clock,
) -> list[Copied]:
    """Copy to or from each member, and return the results in their order. A failure does not affect the other copies.

    At most `fanout` handshakes and 64 copies run in parallel. An exception terminates all links. Raises
    `SshProgramMissingError`.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms, and only here

    links = Links(fanout)
    pool = ThreadPoolExecutor(min(_MAX_AT_ONCE, len(members)), thread_name_prefix="copy")
    try:
        pending = [
            pool.submit(copy, member, transfer, tally, links=links, clock=clock)
            for member, transfer, tally in zip(members, transfers, tallies, strict=True)
        ]
        return [one.result() for one in pending]
    except BaseException:
        links.terminate_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)

"""The copies of all workers, at once."""

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

# So many copies share the line; the next begins when one of them has ended.
_AT_ONCE = 64


def copy_everywhere(
    members: Sequence[Member],
    transfers: Sequence[Callable[[Tally], Transfer]],
    tallies: Sequence[Tally],
    *,
    fanout: int,
    clock: Clock,
) -> list[Copied]:
    """Copy to or from each member, and return how each ended, in their order; one that fails holds up no other.

    At most `fanout` handshakes and 64 copies are under way at once. What ends this ends all links. Raises
    `SshProgramMissingError`.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms, and only here

    links = Links(fanout)
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(members)), thread_name_prefix="copy")
    try:
        pending = [
            pool.submit(copy, member, transfer, tally, links=links, clock=clock)
            for member, transfer, tally in zip(members, transfers, tallies, strict=True)
        ]
        return [one.result() for one in pending]
    except BaseException:
        links.cut_off()
        raise
    finally:
        pool.shutdown(cancel_futures=True)

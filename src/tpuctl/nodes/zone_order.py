"""The order in which `up` tries several zones, and which one is next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_timestamp
from tpuctl.errors import CheckFailedError, NoCapacityError, QuotaError, TpuctlError
from tpuctl.nodes.queueing import RequestExpiredError

if TYPE_CHECKING:
    from tpuctl.check.zone_ranking import ZoneRank
    from tpuctl.models.node import Tier
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.past import ZoneMemory
    from tpuctl.prices import Price


def order_zones(
    ranked: Iterable[ZoneRank], prices: Mapping[str, Price], memories: Mapping[str, ZoneMemory]
) -> tuple[str, ...]:
    """Return the zones, the best first.

    The ranking of `check` for the named buckets counts most. Among equals: the lower price, an unknown one last; what the
    journal remembers (`Journal.zone_memories`), the last success first and the last stock-out last; then the name. `prices`
    are those of the tier that is tried. Both mappings may lack zones.
    """

    def sort_key(zone: ZoneRank) -> tuple[object, ...]:
        price = prices.get(zone.zone)
        per_hour = price.per_hour if price else None
        return (zone.rank, per_hour is None, per_hour or 0, _memory_key(memories.get(zone.zone)), zone.zone)

    return tuple(zone.zone for zone in sorted(ranked, key=sort_key))


def _memory_key(memory: ZoneMemory | None) -> tuple[int, float]:
    """Return the key of the last event: successes, the most recent first; no memory; stock-outs, the most recent last."""
    success, stockout = (memory.success, memory.stockout) if memory else (None, None)
    if success is not None and (stockout is None or success >= stockout):
        return (0, -success.timestamp())
    return (1, 0) if stockout is None else (2, stockout.timestamp())


@dataclass(frozen=True, slots=True)
class Offer:
    """A zone that offers the type, and a capacity type. `tier` is None for the one that the spec has."""

    zone: str
    tier: Tier | None = None
    price: Price | None = None

    def __str__(self) -> str:
        return f"{self.zone} ({self.tier})" if self.tier else self.zone


@dataclass(frozen=True, slots=True)
class Attempt:
    """The answer of one zone, and when it came."""

    offer: Offer
    error: TpuctlError
    at: datetime

    @property
    def answer(self) -> str:
        """The answer in a few words."""
        match self.error:
            case RequestExpiredError():
                return "no capacity in its time in the queue"
            case NoCapacityError():
                return "no capacity"
            case QuotaError():
                return "no quota at all" if self.is_final else "the quota is used up"
            case _:
                return " ".join(map(str.strip, self.error.lines[:2]))

    @property
    def is_final(self) -> bool:
        """Return whether the same attempt would end in the same way: a quota of 0, or a check that failed."""
        return isinstance(self.error, CheckFailedError) or self.error.error_id == _NO_QUOTA_AT_ALL


# The id that `explain` gives to a quota of 0: waiting does not change it.
_NO_QUOTA_AT_ALL = "quota-limit-zero"


@dataclass(frozen=True, slots=True)
class TryNext:
    """Try this offer now."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class PauseSearch:
    """Begin the next round after this pause."""

    pause: timedelta


@dataclass(frozen=True, slots=True)
class EndSearch:
    """Stop: no zone can give the node in the time left."""

    error: TpuctlError


def choose_offer(
    offers: Sequence[Offer],
    attempts: Sequence[Attempt],
    policy: Policy,
    *,
    accelerator_type: str,
    left: timedelta | None,
    since_last: timedelta,
) -> TryNext | PauseSearch | EndSearch:
    """Return what to do next. `left` is the time until the deadline, `since_last` the time since the last answer.

    Every offer is tried once in each round, in order. Between rounds the pause doubles.
    """
    final = {attempt.offer for attempt in attempts if attempt.is_final}
    open_offers = [offer for offer in offers if offer not in final]
    if not open_offers:
        return EndSearch(search_error(accelerator_type, attempts))
    counts = [sum(attempt.offer == offer for attempt in attempts) for offer in open_offers]
    if left is not None and left <= timedelta() and attempts:
        return EndSearch(search_error(accelerator_type, attempts))
    done = min(counts)
    if done == 0 or max(counts) > done:
        return TryNext(open_offers[counts.index(done)])
    pause = min(policy.backoff * 2 ** min(done - 1, 10), policy.longest_backoff) - since_last
    if pause <= timedelta():
        return TryNext(open_offers[0])
    return PauseSearch(pause if left is None else min(pause, left))


def search_error(accelerator_type: str, attempts: Sequence[Attempt]) -> TpuctlError:
    """Return the error of a search: the last answer of each zone, and when it came."""
    last = {attempt.offer: attempt for attempt in attempts}
    if len(last) == 1:
        return next(iter(last.values())).error
    details = [f"  {offer}: {attempt.answer}, at {format_timestamp(attempt.at)}" for offer, attempt in last.items()]
    kinds = [attempt.error for attempt in last.values()]
    zones = len({offer.zone for offer in last})
    where = f"any of {zones} zones" if zones > 1 else next(iter(last)).zone
    if all(isinstance(error, CheckFailedError) for error in kinds):
        return CheckFailedError(
            f"no zone passes the checks for `{accelerator_type}`:", details=details, hint=kinds[0].hint
        )
    if all(isinstance(error, QuotaError | CheckFailedError) for error in kinds):
        return QuotaError(f"no quota for `{accelerator_type}` in {where}:", details=details, hint=kinds[-1].hint)
    return NoCapacityError(
        f"no capacity for `{accelerator_type}` in {where}:",
        details=details,
        hint="wait with `tpuctl up NODE --queue --timeout 12h`, or allow more zones (`--zone any`) "
        "or tiers (`--tier spot,on-demand`)",
    )

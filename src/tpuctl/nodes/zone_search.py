"""Bring a node up in the first zone and tier that has capacity: `choose_offer` decides (pure), `bring_up_somewhere` acts.

One attempt for each zone: an attempt without capacity leaves no record behind before the next begins. An error of access or of
the request ends the search, because each zone would answer the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import CheckFailedError, NoCapacityError, QuotaError, TpuctlError
from tpuctl.models.events import EventKind
from tpuctl.names import NodeName
from tpuctl.nodes.actions import bring_up_nodes
from tpuctl.nodes.queueing import RequestExpiredError

if TYPE_CHECKING:
    from tpuctl.models.node import Tier
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.tracker import ReconcileRequest


@dataclass(frozen=True, slots=True)
class Offer:
    """A zone that offers the type, and a capacity type. `tier` is None for the one that the spec has."""

    zone: str
    tier: Tier | None = None

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
        hint="wait with `--queue --timeout 12h`, or allow more zones (`--zone any`) or tiers (`--tier spot,on-demand`)",
    )


def with_tier(spec: NodeSpec, tier: Tier | None) -> NodeSpec:
    """Return the spec with another capacity type."""
    return replace(spec, tier=tier, named=spec.named | {"tier"}) if tier else spec


# An answer after which the next zone is tried. Others end the search.
_MOVE_ON = (NoCapacityError, QuotaError, CheckFailedError, RequestExpiredError)


def bring_up_somewhere(
    context: ActionContext,
    offers: Sequence[Offer],
    task: ReconcileRequest,
    spec: NodeSpec,
    *,
    once: bool = False,
    announce: Callable[[NodeName], None],
) -> NodeResult:
    """Bring a node up in the first offer that has capacity; `announce` gets its name before each attempt.

    Raises the error of the search, or the first that no other zone can resolve.
    """
    clock = context.clock
    began = clock.monotonic() if task.since is None else task.since
    attempts: list[Attempt] = []
    last_answer = began
    while True:
        now = clock.monotonic()
        left = None if task.policy.timeout is None else task.policy.timeout - (now - began)
        step = choose_offer(
            offers,
            attempts,
            task.policy,
            accelerator_type=spec.accelerator_type,
            left=left,
            since_last=now - last_answer,
        )
        match step:
            case EndSearch(error):
                raise error
            case PauseSearch(pause):
                if once:
                    raise search_error(spec.accelerator_type, attempts)
                text = f"no zone has capacity: next round in {format_duration(pause)}"
                context.report(EventKind.WAIT, task.name, text, next_look=pause.total_seconds())
                clock.sleep(pause)
            case TryNext(offer):
                name = NodeName(task.name.project, offer.zone, task.name.node_id)
                wanted = with_tier(spec, offer.tier)
                policy = replace(task.policy, moves_on=True)
                if wanted.is_queued and policy.queue_for is None and left is not None:
                    # Each zone gets its share of the time.
                    untried = {other.zone for other in offers} - {attempt.offer.zone for attempt in attempts}
                    policy = replace(policy, queue_for=left / max(1, len(untried)))
                announce(name)
                number = f"{offers.index(offer) + 1} of {len(offers)}"
                context.report(EventKind.NOTE, name, f"trying {offer}, {number}", tried=str(offer))
                attempt = replace(task, name=name, spec=wanted, policy=policy, since=began)
                (result,) = bring_up_nodes(context, [attempt], once=once)
                if not isinstance(result, TpuctlError):
                    return result
                if not isinstance(result, _MOVE_ON):
                    raise result
                attempts.append(Attempt(offer, result, context.server_now()))
                context.report(EventKind.NOTE, name, f"{offer}: {attempts[-1].answer}", error=result.kind)
                last_answer = clock.monotonic()

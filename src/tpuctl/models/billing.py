"""What is billed: amounts of dollars that say how exact they are, the states in which a node is billed, and free nodes.

A node is billed for its chips while it is READY, a stopped node for its disk only [documentation: Cloud TPU pricing].
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.models.node import Node, NodeState, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpuctl.models.grants import Grant
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName

_CENT = Decimal("0.01")
# From this amount on, cents of an inexact amount are not shown.
_WHOLE_DOLLARS = Decimal(100)


class Precision(StrEnum):
    """How exact an amount is."""

    EXACT = "exact"
    ABOUT = "about"
    AT_LEAST = "at least"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Dollars:
    """An amount of dollars. `amount` is None if it is unknown.

    `is_about`: prices that change often, or times that are not known exactly. `at_least`: a part is unknown and not included.
    """

    amount: Decimal | None
    is_about: bool = False
    at_least: bool = False

    @property
    def precision(self) -> Precision:
        """How exact it is."""
        if self.amount is None:
            return Precision.UNKNOWN
        if self.at_least:
            return Precision.AT_LEAST
        return Precision.ABOUT if self.is_about else Precision.EXACT

    def __str__(self) -> str:
        if self.amount is None:
            return "?"
        cents = f"${self.amount.quantize(_CENT, ROUND_HALF_UP):,}"
        return cents if self.precision is Precision.EXACT else f"{self.precision} {cents}"

    @property
    def short(self) -> str:
        """The amount for a table or a sum: `$21.60`, `~$9.72`, `≥ $13,550`. What is not exact has four digits at most."""
        if self.amount is None:
            return "?"
        if self.precision is Precision.EXACT:
            return str(self)
        step = Decimal(1).scaleb(max(0, self.amount.adjusted() - 3)) if self.amount >= _WHOLE_DOLLARS else _CENT
        rounded = (self.amount / step).quantize(Decimal(1), ROUND_HALF_UP) * step
        return f"{'≥ ' if self.at_least else '~'}${rounded:,f}"

    @property
    def plain(self) -> str:
        """The number of dollars for scripts, `?` if it is unknown."""
        return "?" if self.amount is None else str(self.amount.quantize(_CENT, ROUND_HALF_UP))

    def to_json(self) -> dict[str, float | str | None]:
        """Return the amount for scripts; `dollars` is null if it is unknown."""
        cents = None if self.amount is None else float(self.amount.quantize(_CENT, ROUND_HALF_UP))
        return {"dollars": cents, "precision": str(self.precision)}


UNKNOWN_AMOUNT = Dollars(None)
NOTHING = Dollars(Decimal(0))


def sum_dollars(amounts: Iterable[Dollars]) -> Dollars:
    """Return the sum. An unknown amount makes it "at least"; it is unknown only if all are."""
    found = list(amounts)
    known = [one.amount for one in found if one.amount is not None]
    if found and not known:
        return UNKNOWN_AMOUNT
    return Dollars(
        sum(known, Decimal(0)),
        is_about=any(one.is_about for one in found),
        at_least=len(known) < len(found) or any(one.at_least for one in found),
    )


class Billing(StrEnum):
    """What is billed in a state of a node."""

    CHIPS = "chips"
    DISK = "disk"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


_BILLING = {
    NodeState.READY: Billing.CHIPS,
    NodeState.STOPPED: Billing.DISK,
    **dict.fromkeys(
        (
            *(NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING),
            *(NodeState.STOPPING, NodeState.DELETING, NodeState.PREEMPTED, NodeState.TERMINATED),
        ),
        Billing.NOTHING,
    ),
}
# From these a node becomes READY by itself.
_COMING = frozenset(
    {NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING}
)


def billing_in(state: NodeState) -> Billing:
    """Return what is billed in a state."""
    return _BILLING.get(state, Billing.UNKNOWN)


def bills_or_will(node: Node) -> bool:
    """Return whether the chips of a node are billed, soon will be, or may be."""
    return node.state in _COMING or billing_in(node.state) in {Billing.CHIPS, Billing.UNKNOWN}


def billed_tier(node: Node, requests: Sequence[QueuedResource]) -> Tier:
    """Return the tier of a node; if a queued resource owns it, that knows it better: a node shows no flex-start."""
    owner = (node.queued_resource or "").rpartition("/locations/")[2]
    of_owner = [request.tier for request in requests if owner and request.name.endswith(f"/locations/{owner}")]
    return node.tier if not of_owner or of_owner[0] is Tier.ON_DEMAND else of_owner[0]


def covering_grants(
    nodes: Sequence[Node], tiers: Mapping[NodeName, Tier], grants: Sequence[Grant], today: date
) -> dict[NodeName, Grant]:
    """Return the grant of each node that grants cover; a node that fits only in part is billed."""
    # Two equal grants are two: `left` is by their places in `grants`.
    left = {place: grant.chips for place, grant in enumerate(grants) if not grant.has_ended(today)}
    found: dict[NodeName, Grant] = {}
    if not left:
        return found
    for node in sorted(nodes, key=lambda node: node.created or datetime.max.replace(tzinfo=UTC)):
        kind, tier = node.accelerator, tiers[node.name]
        if kind is None or node.state.is_dead or node.is_preempted:
            continue
        fitting = [place for place in left if grants[place].covers(node.name.zone, kind, tier)]
        if sum(left[place] for place in fitting) < kind.chips:
            continue
        needed = kind.chips
        for place in fitting:
            used = min(left[place], needed)
            left[place], needed = left[place] - used, needed - used
        found[node.name] = min((grants[place] for place in fitting), key=_grant_end)
    return found


def _grant_end(grant: Grant) -> datetime:
    """Return the end of the last day of a grant; of one without end, the end of the calendar."""
    return datetime.combine(grant.until, time.max, UTC) if grant.until else datetime.max.replace(tzinfo=UTC)

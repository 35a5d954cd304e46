"""What one node shall become."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.nodes.idle_limit import IdleChange

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import RequestedChange
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.expiry import NodeEnd
    from tpuctl.nodes.lease_guard import LeaseGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """When a node ends."""

    # The end that the user named. A node that exists gets it too.
    end: NodeEnd | None = None
    # The end of a node is moved on, so that at least three quarters of this time are left.
    moves_end: timedelta | None = None
    # How long the node may be idle.
    idle: IdleChange = field(default_factory=IdleChange)
    # Whether these limits are for a node that the run finds: it may be that of another owner, or one that has more time.
    apply_to: Callable[[Node], bool] = lambda _: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What one node shall become: the policy has the condition to reach, and what may be done for that."""

    name: NodeName
    policy: Policy
    # Used to create the node; an existing node is compared with it.
    spec: NodeSpec | None = None
    # The purpose recorded in the lease. None: the run never changes the node.
    purpose: str | None = None
    # The set-up that the user named: it runs also on a node on which another one has succeeded.
    setup: str | None = None
    # The run only looks: it sends nothing, and writes nothing to the journal.
    only_looks: bool = False
    # Take the lease from another holder.
    force_lease: bool = False
    # A lease that the caller holds for longer than this run. None: the run takes its own.
    lease: LeaseGuard | None = None
    limits: NodeLimits = field(default_factory=NodeLimits)
    # A change that was requested before the run.
    pending: RequestedChange | None = None
    # A queued resource requests, or requested, the node: its state is shown while there is no node.
    is_queued: bool = False
    # When the timeout began to count, by the monotonic clock. None: now.
    since: timedelta | None = None

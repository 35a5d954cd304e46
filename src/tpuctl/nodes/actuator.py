"""The services of actions, and how a change is sent: announced in the lease, written to the journal, reported."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.errors import AlreadyExistsError, ConflictError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Node, NodeState
from tpuctl.models.operation import Operation
from tpuctl.models.spec import NodeSpec
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.expiry import stamp_spec
from tpuctl.prices import hourly_price

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from random import Random

    from tpuctl.check.gate import PreflightCheck
    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.names import NodeName
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.lease import LeaseKeeper
    from tpuctl.nodes.ssh_workers import SshWorkers

# A guest needs this long to shut down after `sudo reboot`; before that, the old system would still answer.
REBOOT_PAUSE = timedelta(seconds=30)
# States in which the service accepts a change of labels or metadata [observed: it refuses others].
PATCHABLE_STATES = frozenset({NodeState.READY, NodeState.STOPPED})


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The services of an action."""

    cloud: TpuClient
    clock: Clock
    journal: Journal
    workers: SshWorkers
    leases: LeaseKeeper
    # Receives each event.
    emit: Callable[[NodeEvent], None]
    # The time of the service's clock.
    server_now: Callable[[], datetime]
    random: Random
    # None: nothing is checked before a creation.
    preflight: PreflightCheck | None = None
    # The name of the project file, and the settings of the node that come from it.
    project_file: str = ""
    chosen_by_file: Mapping[str, str] = field(default_factory=dict)
    # Returns the label of who creates a node, empty without one.
    owner: Callable[[], str] = str

    def stamped(self, spec: NodeSpec) -> NodeSpec:
        """Return the spec of a node that is created now, with the labels of its end and its owner."""
        return stamp_spec(spec, owner=self.owner(), now=self.server_now())

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None = None) -> None:
        """Raise `CheckFailedError` if the node must not be created. `replaces` is the node that is deleted before."""
        if self.preflight is not None:
            self.preflight.check(name, spec, replaces=replaces, tell=self.emit)

    def look_again(self, name: NodeName, spec: NodeSpec) -> None:
        """Say if other runs created nodes at the same time as this one, so that all cost more than the budget."""
        if self.preflight is not None:
            self.preflight.look_again(name, spec, tell=self.emit)

    def report(self, kind: EventKind, name: NodeName, text: str, **data: object) -> None:
        """Report an event of a node."""
        self.emit(NodeEvent(kind, self.clock.now(), name, text, data))

    def record(self, name: NodeName, event: str, **data: Any) -> None:
        """Write a durable entry to the journal. Raises `JournalError`: the caller must not delete a node then."""
        self.journal.append(name, event, self.clock.now(), **data)

    @contextmanager
    def recorded(self, name: NodeName, event: str, **data: Any) -> Iterator[None]:
        """Write a durable entry before a change, and withdraw it if nothing of this change came to be.

        Raises `JournalError`: the caller must not delete a node then.
        """
        self.record(name, event, **data)
        try:
            yield
        except (NotSentError, AlreadyExistsError):
            self.journal.withdraw(name, event, self.clock.now())
            raise


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """A change that was requested and may not have ended."""

    verb: Verb
    operation: Operation
    # The id of the node that is changed; None for a node that is being created.
    node_id: str | None = None
    # The change is one of the node's queued resource.
    is_of_request: bool = False


class NotSentError(Exception):
    """The request of a change was not sent."""


class LeaseLostError(ConflictError, NotSentError):
    """Another client holds the lease of the node. Nothing was done."""

    def __init__(self, name: NodeName) -> None:
        super().__init__(f"`{name.node_id}` is being repaired by another client")


class NoLongerMeantError(ConflictError, NotSentError):
    """What would have been deleted or stopped changed right before, and must stay. Nothing was done to it."""


class NoLongerSelectedError(NoLongerMeantError):
    """What a selection matched has changed since, and does not match any more. Nothing was done to it."""

    def __init__(self, node_id: str, what: str) -> None:
        super().__init__(
            f"`{node_id}` {what} meanwhile: left alone", hint=f"see it with `tpuctl status {node_id}`, and select again"
        )


@contextmanager
def announced_change(
    context: ActionContext, name: NodeName, verb: Verb, event: str, **entry: Any
) -> Iterator[Callable[..., None]]:
    """Announce a change in the lease, which is ours, and write it to the journal.

    The yielded function reports the change and checks the lease again: call it right before the request. Raises
    `LeaseLostError` if another process holds the lease, and `JournalError` if the entry cannot be stored.
    """

    def check() -> None:
        if not context.leases.begin(name, str(verb)):
            raise LeaseLostError(name)

    def ready(text: str, **data: object) -> None:
        context.report(EventKind.ACTION, name, text, verb=str(verb), **data)
        check()

    check()
    try:
        with context.recorded(name, event, **entry):
            yield ready
    finally:
        context.leases.done(name)


def require_same(node: Node, current: Node) -> None:
    """Check what has the name of a node right before its deletion or stop. Raises `ConflictError` if it is another node."""
    if current.id != node.id:
        raise NoLongerMeantError(
            f"`{node.name.node_id}` changed meanwhile: another client recreated the node",
            hint=f"see the new node with `tpuctl status {node.name.node_id}`",
        )


def describe_file_choices(context: ActionContext, name: NodeName, spec: NodeSpec) -> str:
    """Return the settings of the node that come from a project file, in parentheses; empty if there are none."""
    settings = {
        "project": name.project,
        "zone": name.zone,
        "type": spec.accelerator_type,
        "version": spec.runtime_version,
        "tier": spec.tier,
        "network": spec.network,
        "subnetwork": spec.subnetwork,
        "service_account": spec.service_account,
    }
    chosen = [f"{key} {value}" for key, value in context.chosen_by_file.items() if settings.get(key) == value]
    return f" ({', '.join(chosen)}: from {context.project_file})" if chosen else ""


def describe_spec(context: ActionContext, spec: NodeSpec, zone: str) -> str:
    """Describe a spec and its price, if that is known: `v6e-8 with v2-alpha-tpuv6e, spot, about $4.35/h`.

    Of a type that a project file chose, also that the price is unknown: the file may be another one's.
    """
    shape = f" ({spec.topology})" if spec.topology else ""
    tier = f", {spec.tier}" if spec.tier else ""
    # The check before the creation has read the prices: nothing is read between the announcement and the request.
    price_of = context.preflight.settings.hourly_price if context.preflight else hourly_price
    price = price_of(spec.accelerator_type, zone, spec.tier)
    is_of_file = context.chosen_by_file.get("type") == spec.accelerator_type
    unknown = ", price unknown" if is_of_file else ""
    cost = unknown if price.per_hour is None else f", {price}"
    return f"{spec.accelerator_type}{shape} with {spec.runtime_version}{tier}{cost}"

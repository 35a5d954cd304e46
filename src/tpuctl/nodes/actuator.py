"""The services of actions, and how a change is sent: announced in the lease, written to the journal, reported, checked."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import AlreadyExistsError, ConflictError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Node, NodeState
from tpuctl.models.operation import Operation
from tpuctl.models.spec import FIELDS, RACE_LABEL, NodeSpec
from tpuctl.models.spec_fields import setting_key
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.expiry import stamp_spec
from tpuctl.prices import hourly_price

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime
    from random import Random

    from tpuctl.check.gate import PreflightCheck
    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import QueueWindow
    from tpuctl.names import NodeName
    from tpuctl.nodes.conditions import DeleteRequest, Restart
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

    def warn_if_over_budget(self, name: NodeName, spec: NodeSpec) -> None:
        """Warn if concurrent runs together exceed the budget."""
        if self.preflight is not None:
            self.preflight.warn_if_over_budget(name, spec, tell=self.emit)

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


class ChangedError(NotSentError):
    """What was observed changed right before the request, which is not sent: look again before the next decision."""


def require_unchanged(node: Node, current: Node) -> None:
    """Raise `ChangedError` unless a node that was just read is the one that was observed, as it was."""
    if (current.id, current.state, current.health) != (node.id, node.state, node.health):
        raise ChangedError


class Actuator:
    """Sends the changes that a run decides on for one node.

    What is stopped or deleted is the node or request that was observed: it is read again right before, and `ChangedError` is
    raised if it changed, or if another client is already ending it.
    """

    def __init__(self, context: ActionContext, name: NodeName) -> None:
        self._context, self._name = context, name

    def create(self, spec: NodeSpec, window: QueueWindow, reason: str, *, says_why: bool) -> RequestedChange | None:
        """Create the node, or request it through the queue. None if another client has just created it."""
        context, name = self._context, self._name
        race = {"race": spec.labels[RACE_LABEL]} if RACE_LABEL in spec.labels else {}
        # Each slice of the request has its spec in the journal.
        others = [other for other in spec.queued_slices(name) if other != name]
        entry: dict[str, Any] = {"reason": reason, "spec": spec.to_json()}
        with (
            self._announced(Verb.CREATE, "create", **entry, **race) as ready,
            ExitStack() as stack,
        ):
            for other in others:
                stack.enter_context(context.recorded(other, "create", **entry))
            chosen = describe_file_choices(context, name, spec)
            verb = "requesting" if spec.is_queued else "creating"
            why = f": {reason}" if says_why else ""
            ready(f"{verb} {describe_spec(context, spec, name.zone)}{chosen}{why}")
            try:
                if spec.is_queued:
                    self._note_window(spec, window)
                    operation = context.cloud.create_queued_resource(name, spec, window)
                else:
                    operation = context.cloud.create_node(name, spec)
            except AlreadyExistsError:
                # The next snapshot shows theirs: it is adopted, or the difference is reported.
                for one in (name, *others):
                    context.journal.withdraw(one, "create", context.clock.now())
                context.report(EventKind.NOTE, name, "another client has just created it", exists=True)
                return None
        if not spec.is_queued:  # a request waits, and bills nothing yet
            context.warn_if_over_budget(name, spec)
        return RequestedChange(Verb.CREATE, operation, is_of_request=spec.is_queued)

    def _note_window(self, spec: NodeSpec, window: QueueWindow) -> None:
        if spec.expires is not None:
            ends = f"its time ends {format_timestamp(spec.expires)}"
            text = f"{ends}: the limit counts from the request, not from the creation"
            self._context.report(EventKind.NOTE, self._name, text)
        if window.valid_until is None:
            text = "the request has no end: limit it with `--queue-for 6h` or `--timeout 6h`"
            self._context.report(EventKind.NOTE, self._name, text)

    def start(self, node: Node, reason: str) -> RequestedChange:
        """Start the node."""
        with self._announced(Verb.START, "start", reason=reason, id=node.id) as ready:
            ready(f"starting (was {node.state})")
            return RequestedChange(Verb.START, self._context.cloud.start_node(self._name), node.id)

    def stop(self, node: Node, decision: Restart, age: timedelta) -> RequestedChange:
        """Stop the node, in order to start it again; `age` is that of its defect."""
        reason = "; ".join((decision.reason, *decision.rejected))
        with self._announced(Verb.STOP, "restart", reason=reason, id=node.id) as ready:
            ready("restarting: " + "; ".join((describe_defect(decision.reason, age), *decision.rejected)))
            operation = self._context.cloud.stop_node(self._name, partial(require_unchanged, node))
            return self._sent(RequestedChange(Verb.STOP, operation, node.id))

    def reboot(self, node: Node, reason: str, age: timedelta) -> None:
        """Reboot every worker from inside; `age` is that of the defect."""
        with self._announced(Verb.REBOOT, "reboot", reason=reason, id=node.id) as ready:
            ready(f"rebooting every worker: {describe_defect(reason, age)}")
            self._context.workers.reboot(node)

    def delete(self, node: Node, spec: NodeSpec, reason: str, *, is_repair: bool) -> RequestedChange:
        """Delete the node; `spec` is what it is created from again."""
        # Checked before the deletion: a node that could not be created again is better kept.
        self._context.check(self._name, spec, replaces=node)
        entry = {"reason": reason, "id": node.id, "spec": spec.to_json(), "repair": is_repair}
        with self._announced(Verb.DELETE, "delete", **entry) as ready:
            ready(f"deleting it: {reason}", id=node.id)
            operation = self._context.cloud.delete_node(self._name, partial(require_unchanged, node))
            return self._sent(RequestedChange(Verb.DELETE, operation, node.id))

    def delete_request(
        self, request: QueuedResource, node: Node | None, spec: NodeSpec, decision: DeleteRequest
    ) -> RequestedChange:
        """Delete the queued resource with its node, if it has one."""

        def judge(current: QueuedResource, nodes: tuple[Node, ...]) -> None:
            if (current.state, current.created) != (request.state, request.created):
                raise ChangedError
            for one in nodes:
                if node is not None and one.name == self._name:
                    require_unchanged(node, one)

        entry = {"reason": decision.reason, "spec": spec.to_json(), "repair": decision.is_repair}
        with self._announced(Verb.DELETE, "delete", **entry) as ready:
            ready(f"deleting its queued resource `{request.queued_resource_id}`: {decision.reason}")
            operation = self._context.cloud.delete_queued_resource(decision.request_name, judge, force=decision.force)
            return self._sent(RequestedChange(Verb.DELETE, operation, is_of_request=True))

    def _announced(self, verb: Verb, event: str, **entry: Any) -> AbstractContextManager[Callable[..., None]]:
        return announced_change(self._context, self._name, verb, event, **entry)

    @staticmethod
    def _sent(change: RequestedChange) -> RequestedChange:
        if not change.operation.was_sent:
            raise ChangedError
        return change


def describe_defect(reason: str, age: timedelta) -> str:
    """Return the reason for a repair with the age of the defect: `READY but UNHEALTHY_TENSORFLOW for 5m`."""
    if reason.startswith("it has been "):
        return reason.removeprefix("it has been ")
    unit = timedelta(minutes=1) if age >= timedelta(minutes=1) else timedelta(seconds=10)
    return f"{reason.removeprefix('it is ')} for {format_duration(age - age % unit)}"


def describe_file_choices(context: ActionContext, name: NodeName, spec: NodeSpec) -> str:
    """Return the settings of the node that come from a project file, in parentheses; empty if there are none."""
    described = {setting_key(field): getattr(spec, field) for field in FIELDS}
    settings = {"project": name.project, "zone": name.zone, **described}
    chosen = [f"{key} {value}" for key, value in context.chosen_by_file.items() if settings.get(key) == value]
    return f" ({', '.join(chosen)}: from {context.project_file})" if chosen else ""


def describe_spec(context: ActionContext, spec: NodeSpec, zone: str) -> str:
    """Describe a spec and its price, if that is known: `v6e-8 (v2-alpha-tpuv6e, spot, about $4.35/h)`.

    Of a type that a project file chose, also that the price is unknown: the file may be another one's.
    """
    shape = f"{spec.topology}, " if spec.topology else ""
    tier = f", {spec.tier}" if spec.tier else ""
    # The check before the creation has read the prices: nothing is read between the announcement and the request.
    price_of = context.preflight.settings.hourly_price if context.preflight else hourly_price
    price = price_of(spec.accelerator_type, zone, spec.tier)
    is_of_file = context.chosen_by_file.get("type") == spec.accelerator_type
    unknown = ", price unknown" if is_of_file else ""
    cost = unknown if price.per_hour is None else f", {price}"
    return f"{spec.accelerator_type} ({shape}{spec.runtime_version}{tier}{cost})"

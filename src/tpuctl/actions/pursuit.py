"""What one run of the loop has seen and done, and the single steps that it can do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.actions.history import History
from tpuctl.clock import format_duration
from tpuctl.errors import AlreadyExistsError, ConflictError, NotFoundError, TpuctlError
from tpuctl.events import Event, EventKind
from tpuctl.model import Health, Node, NodeSpec, NodeState, Operation
from tpuctl.readiness import (
    Answer,
    Create,
    Delete,
    Goal,
    Policy,
    Reboot,
    Repair,
    Restart,
    Seen,
    Start,
    Verb,
    interval,
    unanswered,
)

if TYPE_CHECKING:
    from tpuctl.actions.cloud import Context
    from tpuctl.names import NodeName

# A guest takes this long to go down after `sudo reboot`; asked earlier, the old system would still answer.
REBOOT_PAUSE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Pending:
    """A change that was requested and may not have ended."""

    verb: Verb
    operation: Operation


class Pursuit:
    """One node on its way. Times are the clock's monotonic ones."""

    def __init__(
        self, context: Context, name: NodeName, policy: Policy, *, spec: NodeSpec | None, pending: Pending | None
    ) -> None:
        self._context, self._name, self._policy, self._spec, self._pending = context, name, policy, spec, pending
        self._started = self._since = self._answered = context.clock.monotonic()
        self._picture: object = ()
        self._was_alive = self._has_sent_key = False
        self._history = History(context.journal, name)
        self._may_change = policy.may_create or policy.may_start
        if self._may_change:
            self._history.read(context.clock.now())
        is_ours = pending is not None and pending.verb in {Verb.CREATE, Verb.START, Verb.STOP}
        self.seen = Seen(name=name, node=None, is_ours=is_ours)

    @property
    def took(self) -> timedelta:
        """How long it has been."""
        return self._context.clock.monotonic() - self._started

    def look(self) -> Seen:
        """Read what is there now. Raises what the cloud raises."""
        failure = self._settle()
        before, node = self.seen.node, self._context.cloud.find_node(self._name)
        answers = self._ask(node) if node else ()
        now = self._answered = self._context.clock.monotonic()
        picture = node and (node.id, node.state, node.health, answers, len(node.endpoints))
        if picture != self._picture:
            self._picture, self._since = picture, now
        if before and node and before.id != node.id and not self._pending:
            self.tell(EventKind.NOTE, "somebody has made it anew; following the new one", id=node.id)
            self.seen = replace(self.seen, is_ours=False, restarts=0)
        if node:
            self._recognise(node)
        if _shown(before) != _shown(node):
            self._tell_change(node)
        self.seen = replace(
            self.seen,
            node=node,
            differences=self._spec.differences(node) if self._spec and node else (),
            answers=answers,
            in_state=now - self._since,
            waited=now - self._started,
            was_there=self.seen.was_there or node is not None,
            has_vanished=self.seen.has_vanished or self._went_by_itself(before, node),
            pending=self._pending.verb if self._pending else None,
            # A creation that a deletion cut short: the end of the node says more than that of the operation.
            failure=None if isinstance(failure, ConflictError) and self._went_by_itself(before, node) else failure,
        )
        return self.seen

    def let_in(self) -> None:
        """Put our ssh key into the metadata of a node that was made elsewhere, once, where this run may change things."""
        from tpuctl.remote.keys import with_key  # noqa: PLC0415  # starts programs, which `down` does not need

        node, entry = self.seen.node, None
        if node and self._may_change and not self._has_sent_key and Answer.KEY_REFUSED in self.seen.answers:
            entry = self._context.workers.key_entry()
        if node is None or entry is None:
            return
        present = node.metadata.get("ssh-keys", "")
        if with_key(present, entry) != present:
            self.tell(EventKind.ACTION, "adding our ssh key to its metadata", verb="update")
            self._context.cloud.change_metadata(
                self._name, lambda found: {**found, "ssh-keys": with_key(found.get("ssh-keys", ""), entry)}
            )
        self._has_sent_key = True

    def arrive(self) -> None:
        """Remember that the node was handed over as usable."""
        if self.seen.node is not None and self._policy.goal.is_usable:
            self._history.finish(self.seen.node.id, self._context.clock.now())

    def leave(self) -> None:
        """Say what a creation that failed has left behind [observed: terraform-provider-google#16147]."""
        if self.seen.failure and self.seen.node and self.seen.node.state is NodeState.CREATING:
            self.tell(EventKind.NOTE, f"its record is still there: `tpuctl down {self._name.node_id}` deletes it")

    def act(self, decision: Create | Start | Restart | Reboot | Delete) -> None:
        """Do one step. What the service refuses is seen at the next look, or raised where no look can change it."""
        match decision:
            case Create(reason):
                self._create(reason)
            case Start(reason):
                self.tell(EventKind.ACTION, f"starting it: {reason}", verb="start")
                self._history.begin(self._node().id, self._context.clock.now())
                self.seen = replace(self.seen, is_ours=True)
                self._pending = Pending(Verb.START, self._context.cloud.start_node(self._name))
            case Restart(reason):
                self._stop(reason)
            case Reboot(reason):
                self.tell(EventKind.ACTION, f"rebooting every worker: {reason}", verb="reboot")
                self._context.workers.reboot(self._node())
                self.seen = replace(self.seen, restarts=self.seen.restarts + 1)
                self._context.clock.sleep(REBOOT_PAUSE)
                self._picture = ()
            case Delete(reason, node_id):
                self._delete(reason, node_id)
            case _:
                assert_never(decision)

    def ride_out(self, error: TpuctlError) -> None:
        """Wait after an answer that did not come. It says nothing about the node.

        Raises `TimedOutError` once the deadline has passed.
        """
        silent = self._context.clock.monotonic() - self._answered
        timeout = self._policy.timeout
        if timeout is not None and self.took >= timeout:
            raise unanswered(self._policy, self.seen, silent, error) from error
        delay = interval(silent)
        self.tell(EventKind.WAIT, f"the API has not answered for {format_duration(silent)}", error=error.message)
        self._context.clock.sleep(delay if timeout is None else min(delay, timeout - self.took))

    def wait(self, delay: timedelta, reason: str) -> None:
        """Say why, and sleep."""
        node = self.seen.node
        self.tell(
            EventKind.WAIT,
            reason,
            state=node and str(node.state),
            health=node and str(node.health),
            in_state=self.seen.in_state.total_seconds(),
            next_look=delay.total_seconds(),
        )
        self._context.clock.sleep(delay)

    def tell(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event."""
        self._context.tell(Event(kind, self._context.clock.now(), self._name, text, data))

    def _settle(self) -> TpuctlError | None:
        """See what has become of the change that was requested, and return its failure."""
        pending = self._pending
        if pending is None or pending.operation.name is None:
            self._pending = None
            return None
        try:
            operation = self._context.cloud.get_operation(pending.operation.name)
        except NotFoundError:
            # Operations are forgotten after a while; the node itself tells the rest.
            operation = Operation(pending.operation.name, done=True)
        if not operation.done:
            return None
        self._pending = None
        if operation.error is None:
            return None
        failure = self._context.cloud.operation_error(operation.error)
        if pending.verb is Verb.STOP and self._policy.goal.is_usable:
            self.seen = replace(self.seen, refused_stop=failure.message)
            return None
        return failure

    def _recognise(self, node: Node) -> None:
        """See whether the node is on its way up by our doing, or by an earlier run's that did not see the end of it."""
        now = self._context.clock.now()
        deleting = self._pending is not None and self._pending.verb is Verb.DELETE
        self._was_alive = self._was_alive or not (deleting or node.state is NodeState.DELETING)
        is_new = node.state is NodeState.CREATING and self._policy.may_create
        if self.seen.is_ours or is_new or self._history.is_unfinished(node.id):
            self.seen = replace(self.seen, is_ours=True)
            if self._may_change:
                self._history.begin(node.id, now)
        if node.state is NodeState.DELETING and self._policy.may_create and self._spec is None:
            self._spec = NodeSpec.from_node(node)  # `up` goes on where the deletion ends

    def _went_by_itself(self, before: Node | None, node: Node | None) -> bool:
        """Tell whether a node that this run has seen alive goes, or is gone, without our doing: somebody deleted it."""
        is_going = node is None or node.state is NodeState.DELETING
        if before is None or before.state.is_dead or (self._pending and self._pending.verb is Verb.DELETE):
            return False
        return is_going and self._was_alive

    def _ask(self, node: Node) -> tuple[Answer, ...]:
        """Ask the workers, where their answer can change the decision."""
        wanted = self._policy.goal is Goal.SSH or (
            self._policy.goal is Goal.HEALTHY
            and (node.health is Health.HEALTH_UNSPECIFIED or self._policy.repair is not Repair.NONE)
        )
        if node.state is not NodeState.READY or not wanted or self._pending is not None:
            return ()
        is_addressed = len(node.endpoints) >= node.workers
        return self._context.workers.ask(node) if is_addressed and self._context.workers.can_be_asked() else ()

    def _create(self, reason: str) -> None:
        if self._spec is None:
            raise NotFoundError(f"`{self._name.node_id}` is gone, and what it was is not known")
        self.tell(EventKind.ACTION, f"creating {describe(self._spec)}: {reason}", verb="create")
        self._context.journal.append(
            self._name, "create", self._context.clock.now(), reason=reason, spec=self._spec.to_json()
        )
        try:
            operation = self._context.cloud.create_node(self._name, self._spec)
        except AlreadyExistsError:
            # Somebody was quicker. The next look finds theirs and adopts it or says how it differs.
            self.tell(EventKind.NOTE, "somebody else has just created it")
            return
        self._pending = Pending(Verb.CREATE, operation)
        self._was_alive = False
        self.seen = replace(self.seen, is_ours=True)

    def _stop(self, reason: str) -> None:
        self.tell(EventKind.ACTION, f"restarting it: {reason}", verb="stop")
        node = self._node()
        self._context.journal.append(self._name, "restart", self._context.clock.now(), reason=reason, id=node.id)
        self.seen = replace(self.seen, restarts=self.seen.restarts + 1, is_ours=True)
        try:
            self._pending = Pending(Verb.STOP, self._context.cloud.stop_node(self._name))
        except ConflictError as error:
            self.seen = replace(self.seen, refused_stop=error.message)

    def _delete(self, reason: str, node_id: str) -> None:
        """Delete the node that was seen, and no other: its spec goes to the journal first, its id is checked again."""
        node = self._node()
        spec = self._spec or NodeSpec.from_node(node)
        now = self._context.clock.now()
        self._context.journal.append(self._name, "delete", now, reason=reason, id=node_id, spec=spec.to_json())
        there = self._context.cloud.find_node(self._name)
        if there is not None and there.id != node_id:
            return  # Not the node that the decision was about: look again.
        self.tell(EventKind.ACTION, f"deleting it: {reason}", verb="delete", id=node_id)
        self._spec = spec
        self._was_alive = False
        self._pending = Pending(Verb.DELETE, self._context.cloud.delete_node(self._name, expected_id=node_id))
        if not node.state.is_dead:
            self.seen = replace(self.seen, recreates=self.seen.recreates + 1)

    def _node(self) -> Node:
        if self.seen.node is None:
            raise AssertionError("this step needs a node that was seen")
        return self.seen.node

    def _tell_change(self, node: Node | None) -> None:
        if node is None:
            self.tell(EventKind.STATE, "gone", state=None)
            return
        health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
        text = f"{node.state} {health}".strip() if node.state is NodeState.READY else str(node.state)
        self.tell(EventKind.STATE, text, state=str(node.state), health=health or None, id=node.id)


def _shown(node: Node | None) -> object:
    """Return what of a node is worth a word when it changes."""
    return node and (node.id, node.state, node.health)


def describe(spec: NodeSpec) -> str:
    """Return a spec in a few words: `v4-8 with tpu-ubuntu2204-base, spot`."""
    shape = f" ({spec.topology})" if spec.topology else ""
    tier = f", {spec.tier}" if spec.tier else ""
    return f"{spec.accelerator_type}{shape} with {spec.runtime_version}{tier}"

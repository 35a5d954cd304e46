"""One node on its way: it is looked at, decided about, and changed, one step at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.actions.holding import Holding
from tpuctl.actions.observation import Observation, Task
from tpuctl.actions.sighting import Sight
from tpuctl.actions.steps import REBOOT_PAUSE, NotOursError, Steps
from tpuctl.clock import GRACE, limit_calls
from tpuctl.errors import (
    ConflictError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
    RemoteCommandError,
    ServiceUnavailableError,
)
from tpuctl.events import Event, EventKind
from tpuctl.model import NodeState
from tpuctl.readiness import (
    Create,
    Decision,
    Delete,
    GiveUp,
    Goal,
    Reached,
    Reboot,
    Restart,
    Seen,
    Start,
    Tried,
    Verb,
    Wait,
    decide,
)
from tpuctl.readiness.words import matrix
from tpuctl.remote.reach import NoWayError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tpuctl.actions.cloud import Context

_SLACK = 0.4


class Pursuit:
    """What is known of one node, and what can be done to it. `due` is when it is to be decided about again."""

    def __init__(self, context: Context, task: Task) -> None:
        self.task, self.name, self.policy = task, task.name, task.policy
        self._context = context
        self._steps = Steps(context, task.name)
        self._holding = Holding(context, task.name, task.purpose, steal=task.steal)
        self._observation = Observation(context, task)
        self._acted: timedelta | None = None
        self._usable: timedelta | None = None
        self._key_sent_to: str | None = None
        self.was_repaired = self.has_faltered = False
        self.due = context.clock.monotonic()
        # A look that is taken for others serves it too, this much before it is due.
        self.slack = timedelta()

    @property
    def seen(self) -> Seen:
        """What was seen last."""
        return self._observation.seen

    @property
    def took(self) -> timedelta:
        """How long it has been."""
        return self._observation.took

    def in_time(self) -> AbstractContextManager[None]:
        """Let the calls of a block end with the deadline, or soon after where it has passed already."""
        timeout = self.policy.timeout
        left = None if timeout is None else max(timeout - self.took, timedelta())
        return limit_calls(self._context.clock, left, grace=GRACE)

    @property
    def wants_request(self) -> bool:
        """Tell whether the queued resource of the node can tell more than the node."""
        return self._observation.wants_request

    @property
    def is_to_be_asked(self) -> bool:
        """Tell whether its workers are to be asked now, which takes a while."""
        return self._observation.is_to_be_asked(at_rest=self.is_usable)

    @property
    def is_usable(self) -> bool:
        """Tell whether it was usable when it was last decided about."""
        return self._usable is not None

    @property
    def was_stopped_by_us(self) -> bool:
        """Tell whether the node is STOPPED because tpuctl restarts it."""
        return self.seen.node is not None and self._observation.history.was_stopped(self.seen.node.id)

    def look(self, sight: Sight) -> None:
        """Take in what a look has shown. Raises an error that no further look can mend."""
        self._observation.look(sight)

    def look_again(self) -> None:
        """Look at this node alone. Raises what the cloud raises."""
        self.look(Sight(self._context.cloud.find_node(self.name)))

    def survey(self) -> None:
        """Ask the workers, where their answers can change the decision."""
        try:
            self._observation.survey(at_rest=self.is_usable)
        except NoWayError as error:
            if not self.task.takes_less or self.policy.goal is not Goal.SSH:
                raise
            self.policy = replace(self.policy, goal=Goal.HEALTHY)
            self._observation.aim_at(self.policy)
            self.tell(EventKind.NOTE, f"waiting until it is healthy, not until ssh answers: {error.message}")

    def decide(self) -> Decision:
        """Return the one thing to do next. Raises `EndedError` where somebody else has taken the node over."""
        self._holding.keep()
        now = self._context.clock.monotonic()
        since_action = None if self._acted is None else now - self._acted
        seen = self._observation.present(held_by=self._holding.held_by, since_action=since_action)
        decision = decide(self.policy, seen, self._context.server_now())
        if isinstance(decision, GiveUp) and self._holding.find_out():
            # Somebody else repairs it: what this run may not do, they may.
            seen = self._observation.present(held_by=self._holding.held_by, since_action=since_action)
            decision = decide(self.policy, seen, self._context.server_now())
        if not isinstance(decision, Reached) and not seen.silence:
            self._usable = None
        return decision

    def miss(self, error: ServiceUnavailableError) -> Wait | GiveUp:
        """Take in that what a step needs does not answer: wait for it, or give up at the deadline."""
        self._observation.miss(error)
        seen = self._observation.present(held_by=self._holding.held_by, since_action=None)
        decision = decide(self.policy, seen, self._context.server_now())
        assert isinstance(decision, Wait | GiveUp)  # noqa: S101  # guides mypy: nothing else follows from silence
        return decision

    def act(self, decision: Create | Start | Restart | Reboot | Delete) -> None:
        """Do one step. What the service refuses is seen at the next look, or raised where no look can change it."""
        if not self._holding.take():
            return
        try:
            self._act(decision)
        except NotOursError:
            self._holding.lose()
        except ServiceUnavailableError as error:
            # Whether it was carried out is seen at the next look.
            self._observation.miss(error)
        except (NoCapacityError, QuotaError) as error:
            if isinstance(decision, Create | Start):
                self._observation.fail(Verb.START if isinstance(decision, Start) else Verb.CREATE, error)
            else:
                # What frees capacity needs none: too many requests, which passes.
                self._observation.miss(error)
        except RemoteCommandError as error:
            # A reboot from inside that did not work: the next rung of the ladder may.
            self.tell(EventKind.NOTE, error.message)
        self._acted = self.due = self._context.clock.monotonic()
        self.slack = timedelta()
        if isinstance(decision, Reboot):
            timeout = self.policy.timeout
            self.due += REBOOT_PAUSE if timeout is None else max(timedelta(), min(REBOOT_PAUSE, timeout - self.took))

    def wait(self, decision: Wait) -> None:
        """Be due again after the wait, and say why."""
        self.due, self.slack = self._context.clock.monotonic() + decision.delay, decision.delay * _SLACK
        seen, timeout = self.seen, self.policy.timeout
        usual, node, follows = seen.pace.usual, seen.node, decision.next
        self.tell(
            EventKind.SILENT if seen.silence else EventKind.WAIT,
            decision.reason,
            state=str(node.state) if node else None,
            health=str(node.health) if node else None,
            in_state=seen.in_state.total_seconds(),
            usual=usual[len(usual) // 2].total_seconds() if usual else None,
            next=follows.what if follows else None,
            next_in=follows.after.total_seconds() if follows else None,
            next_look=decision.delay.total_seconds(),
            deadline_in=None if timeout is None else (timeout - seen.waited).total_seconds(),
            workers=matrix(self.policy, seen),
        )

    def let_in(self) -> None:
        """Put our ssh key into the metadata of a node that was made elsewhere, once, where this run may change things."""
        node, may_change = self.seen.node, self.task.purpose is not None and not self.seen.differences
        if node is None or node.id == self._key_sent_to or not may_change or not self._observation.is_refused():
            return
        if entry := self._context.workers.key_entry(node):
            self._steps.add_key(node, entry)
        self._key_sent_to = node.id

    def take(self) -> str | None:
        """Take the lease before it is needed. Returns who else has it; nothing when it is ours."""
        self._holding.take()
        return self._holding.held_by

    def arrive(self, level: Goal) -> None:
        """Remember that the node was handed over as usable; after long enough the budgets of repair are full again."""
        now, node = self._context.clock.monotonic(), self.seen.node
        if node is None or not level.is_usable:
            return
        self._observation.recovered()
        if self._usable is None:
            self._usable = now
            took = self.took.total_seconds()
            self._observation.history.finish(node.id, self._context.clock.now(), level=str(level), took=took)
        if now - self._usable >= self.policy.refill:
            self._observation.note(tried=Tried())

    def set_up(self) -> None:
        """Run the set-up on all workers of a node that tpuctl made, once. Raises `RemoteCommandError` naming who failed."""
        node = self.seen.node
        script = self._observation.history.setup_to_do(node) if node else None
        if node is None or script is None:
            return
        try:
            self._steps.set_up(node, script)
        except BaseException:
            self._observation.history.set_up(node, self._context.clock.now(), ok=False)
            raise
        self._observation.history.set_up(node, self._context.clock.now(), ok=True)

    def rest(self, duration: timedelta) -> None:
        """Be due again after that time, give or take a fifth."""
        pause = duration * (0.8 + 0.4 * self._context.random.random())
        self.due, self.slack = self._context.clock.monotonic() + pause, pause * _SLACK

    def falter(self) -> None:
        """Remember that a node that was usable is not any more, or needs a step to become so."""
        self.has_faltered = True

    def recover(self) -> None:
        """Forget what was wrong."""
        self.has_faltered = self.was_repaired = False

    def leave(self) -> None:
        """Let go of the node. Says what a creation that failed has left behind [observed: terraform-provider-google#16147]."""
        if self.seen.failure and self.seen.node and self.seen.node.state is NodeState.CREATING:
            self.tell(EventKind.NOTE, f"its record is still there: `tpuctl down {self.name.node_id}` deletes it")
        self._holding.release()

    def tell(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event."""
        self._context.tell(Event(kind, self._context.clock.now(), self.name, text, data))

    def note_down(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event, and write it to the journal."""
        if node := self.seen.node:
            data |= {"id": node.id, "state": str(node.state), "health": str(node.health)}
        self.tell(kind, text, **data)
        self._observation.history.write(str(kind), self._context.clock.now(), text=text, **data)

    def _act(self, decision: Create | Start | Restart | Reboot | Delete) -> None:
        observation, tried = self._observation, self.seen.tried
        match decision:
            case Create(reason):
                self._create(reason)
            case Start(reason):
                observation.history.begin(observation.node.id, self._context.clock.now())
                observation.note(is_ours=True)
                observation.requested.request(self._steps.start(observation.node, reason))
            case Restart(reason):
                observation.note(tried=Tried(tried.reboots, tried.restarts + 1, tried.recreates), is_ours=True)
                self._restart(reason)
            case Reboot(reason):
                observation.note(tried=Tried(tried.reboots + 1, tried.restarts, tried.recreates), is_ours=True)
                self.was_repaired = True
                self._steps.reboot(observation.node, reason)
                observation.rebooted()
            case Delete(reason, _, is_repair):
                observation.note(tried=Tried(tried.reboots, tried.restarts, tried.recreates + is_repair))
                self._delete(reason, is_repair=is_repair)
            case _:
                assert_never(decision)

    def _create(self, reason: str) -> None:
        spec = self._observation.spec
        if spec is None:
            raise NotFoundError(f"`{self.name.node_id}` is gone, and what it was is not known")
        self._context.check(self.name, spec)
        pending = self._steps.create(spec, reason)
        if pending is not None:
            self._observation.requested.request(pending)
            self._observation.created()

    def _restart(self, reason: str) -> None:
        self.was_repaired = True
        self._observation.stopping()
        self._observation.history.stopping(self._observation.node.id)
        try:
            self._observation.requested.request(self._steps.restart(self._observation.node, reason))
        except NotOursError:
            raise
        except ConflictError as error:
            self._observation.note(refused_stop=error.message)
            self._observation.history.refused(f"the stop was refused: {error.message}", self._context.clock.now())

    def _delete(self, reason: str, *, is_repair: bool) -> None:
        node = self._observation.node
        spec = self._observation.spec = self._observation.spec or self._observation.history.spec_as_it_is(node)
        # Before the deletion: what could not be made again is better kept.
        self._context.check(self.name, spec, replaces=node)
        pending = self._steps.delete(node, spec, reason, is_repair=is_repair)
        if pending is None:
            return  # Not the node that the decision was about: look again.
        self.was_repaired = self.was_repaired or is_repair
        self._observation.requested.request(pending)
        self._observation.deleted()

"""Race for a node: request it in several zones at once, keep the first that becomes ACTIVE, delete the other requests.

A race is a controller with one task for each zone. Its journal entries are in every zone: the race before its first request,
the winner before another request is deleted, and the end. So the next run continues a race that was killed at any moment, and
`down` and `gc` know what it requested. `race_rules` has the rules.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.cloud.tpu import queued_resource_name
from tpuctl.durations import format_duration
from tpuctl.errors import (
    AccessError,
    CredentialsError,
    InvalidInputError,
    InvalidRequestError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import OWNER_LABEL, NodeState, QueuedState
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import RACE_LABEL, NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.actions import spec_with_ssh_key
from tpuctl.nodes.actuator import LeaseLostError, NoLongerMeantError
from tpuctl.nodes.conditions import Condition, Policy, Repair, Verb
from tpuctl.nodes.controller import Controller, reconcile, report_failure
from tpuctl.nodes.deletion import Deletion, Ended, LeaseUse, ReplacedRequestError, delete
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.journal import JournalError
from tpuctl.nodes.lease import LeaseError
from tpuctl.nodes.lease_guard import DeletedByOtherError, LeaseGuard, TakenOverError, released_at_end
from tpuctl.nodes.lookup import only_node
from tpuctl.nodes.poll import Wait, poll
from tpuctl.nodes.queueing import CLEAN_UP_TIME, UNATTENDED_WAIT, UNDECIDED, different_request_error
from tpuctl.nodes.race_rules import (
    Race,
    ZoneRefusal,
    describe_race,
    first_active,
    is_abandoned,
    is_alive,
    is_living,
    left_error,
    other_race_error,
    race_id_of,
    refused_error,
    requested_already_error,
    timeout_error,
)
from tpuctl.nodes.request_steps import DeletionRefusedError
from tpuctl.nodes.resource_group import ResourceGroup, is_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from tpuctl.cloud.tpu import QueuedListing
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.reconciler import NodeReconciler
    from tpuctl.nodes.resource_group import StillMeant

# A request may show some time after its create was accepted [unverified].
_VISIBILITY_LAG = timedelta(seconds=20)
_MAX_ZONES = 200


def journaled_races(journal: Journal, names: Collection[NodeName]) -> dict[str, Race]:
    """Return the races that the journal of these names of a node has, by their ids."""
    races: dict[str, Race] = {}
    ended: set[str] = set()
    for name in names:
        for race_id, past in journal.past(name).races.items():
            race = races.get(race_id, Race(id=race_id))
            if past.sent_at is not None:
                last = max(filter(None, (race.last_sent, past.sent_at)))
                race = replace(race, sent=race.sent | {name}, last_sent=last)
            if past.begun is not None:
                asked = (*race.names, *(replace(name, zone=zone) for zone in past.zones[:_MAX_ZONES]))
                names_asked = tuple(dict.fromkeys(asked))
                race = replace(race, names=names_asked, begun=past.begun, spec=past.spec or race.spec, is_open=True)
            if past.winner is not None:
                race = replace(race, winner=(replace(name, zone=past.winner), past.created), lost=past.lost)
            if past.is_over:
                ended.add(race_id)
            races[race_id] = race
    return {race_id: replace(race, is_open=race.is_open and race_id not in ended) for race_id, race in races.items()}


def remembered_race(journal: Journal, names: Collection[NodeName]) -> Race | None:
    """Return the latest race of these nodes that has not ended according to the journal; None if there is none."""
    left = [race for race in journaled_races(journal, names).values() if race.is_open]
    if not left:
        return None
    latest = max(left, key=lambda race: str(race.begun))
    return replace(latest, names=tuple(dict.fromkeys(name for race in (latest, *left) for name in race.names)))


def find_race(context: ActionContext, name: NodeName, race_id: str, *, of_owner: bool) -> Race | None:
    """Return the race that the request of a node is one of, with what is left of it; None if nothing else is.

    Anyone can copy the label of a race. So of it are what this machine's journal requested for it, and with `of_owner` what
    this user owns, if `name` is one of these. A zone that does not answer may have a request, unless the journal has the race.
    """
    races = journaled_races(
        context.journal, dict.fromkeys((name, *context.journal.namesakes(name.project, name.node_id)))
    )
    race, owner = races.get(race_id, Race(id=race_id)), context.owner()
    listing = context.cloud.list_queued_resources(name.project)
    labelled = {
        replace(name, zone=request.zone): request
        for request in listing.queued_resources
        if race_id_of(request, name.node_id) == race_id
    }
    of_user = {other for other, request in labelled.items() if request.labels.get(OWNER_LABEL) == owner}
    own = race.sent | of_user if of_owner else race.sent
    blind = tuple(replace(name, zone=zone) for zone in listing.unreachable)
    silent = [other for other in blind if other in race.sent or (of_owner and not race.begun)]
    requests = {
        other: request for other, request in labelled.items() if other == name or (other in own and name in own)
    }
    known = [other for other in race.names if race.is_open and other not in labelled]
    names = tuple(dict.fromkeys((name, *requests, *silent, *known)))
    if not race.is_open and names == (name,):
        return None
    return replace(race, names=names, requests=requests, sent=frozenset(silent))


def is_race_alive(race: Race, listing: QueuedListing, *, now: datetime) -> bool:
    """Return whether a request of a race that the journal has may still get a TPU; one that was just sent may not show yet."""
    if race.last_sent is not None and now - race.last_sent < _VISIBILITY_LAG:
        return True
    node_id = race.names[0].node_id
    alive = {
        request.zone
        for request in listing.queued_resources
        if race_id_of(request, node_id) == race.id and not request.state.is_dead
    }
    return any(name.zone in alive or name.zone in listing.unreachable for name in race.names)


@dataclass(frozen=True, slots=True)
class LostRequests:
    """The requests of races that are over, as far as the journal knows."""

    # Those that lost according to the journal, by their nodes, each with the zone of the winner.
    lost: Mapping[NodeName, str]
    # Those that are labelled as of a race beside a usable node, and of which the journal does not know that they lost or won.
    unproven: frozenset[NodeName]


def find_lost_requests(
    journal: Journal,
    project: str,
    nodes: Sequence[Node],
    requests: Sequence[QueuedResource],
    *,
    now: datetime,
    sees_runs: bool,
) -> LostRequests:
    """Return the nodes of requests that lost a race whose run is over.

    A label says only which requests may belong together: anyone can copy it. A request has lost if the entry of the winner in
    the journal names it by its creation time, which a run writes for requests that it made, and if the winner of this entry
    still exists, ACTIVE with a READY node. A run that the journal has is over unless it holds a lease, which the caller checks,
    if this machine `sees_runs`: their leases. Any other run is over after the time of its requests, which end with it.
    """
    ready = {node.name for node in nodes if node.state is NodeState.READY}
    races: dict[tuple[str, str], dict[NodeName, QueuedResource]] = {}
    for request in requests:
        node_id = request.queued_resource_id
        if race_id := race_id_of(request, node_id):
            races.setdefault((node_id, race_id), {})[NodeName(project, request.zone, node_id)] = request
    lost: dict[NodeName, str] = {}
    unproven: set[NodeName] = set()
    for (_, race_id), members in races.items():
        usable = [name for name, one in members.items() if name in ready and one.state is QueuedState.ACTIVE]
        if len(members) < 2 or not usable:
            continue
        known = {name: journaled_races(journal, [name]).get(race_id, Race(id=race_id)) for name in members}
        is_known = any(race.begun or race.winner for race in known.values())
        # A run requests nothing without an end.
        ends = [request.valid_until for request in members.values() if request.valid_until is not None]
        if not (is_known and sees_runs) and any(now - end < CLEAN_UP_TIME for end in ends):
            continue
        for name, request in members.items():
            race = known[name]
            if request.state.is_dead or race.winner == (name, request.created):
                continue  # the record of one that is not alive, or the winner
            won = any(race.winner == (other, members[other].created) for other in usable)
            if race.winner and won and request.created is not None and race.lost.get(name.zone) == request.created:
                lost[name] = race.winner[0].zone
            else:
                unproven.add(name)
    return LostRequests(lost, frozenset(unproven))


def run_race(
    context: ActionContext,
    names: Sequence[NodeName],
    spec: NodeSpec,
    policy: Policy,
    *,
    force_lease: bool = False,
    since: timedelta | None = None,
) -> NodeName:
    """Request one node in several zones at once, and return the name of the first that is ACTIVE: the only one left.

    `names` differ only in their zone, the preferred one first. An existing node is returned as it is. `since` is when the
    timeout began to count, by the monotonic clock. Raises `ConflictError` if another client holds one of the leases, or has a
    request for the node; the error of the zone that dropped out first if all did; `TimedOutError` after the deadline. Then no
    request of this race is left, unless the error names it.
    """
    asked = tuple(dict.fromkeys(names))
    known = context.journal.namesakes(asked[0].project, asked[0].node_id)
    remembered = remembered_race(context.journal, dict.fromkeys((*asked, *known)))
    if remembered is not None:
        zones = ", ".join(name.zone for name in remembered.names)
        context.report(EventKind.NOTE, asked[0], f"continuing the race of an earlier run in {zones}")
    race = remembered or Race(id=f"{context.random.getrandbits(48):012x}", names=asked)
    zoned = sorted({*asked, *race.names})
    leases = {name: LeaseGuard(context, name, "up", force_lease=force_lease) for name in zoned}
    with released_at_end(leases):
        run = _RaceRun(context, race, policy, leases, asked=asked, spec=spec, since=since)
        run.require_leases()
        try:
            return run.run()
        except AccessError as error:
            if left := run.own():
                text = f"{describe_race(left)}; `tpuctl down {asked[0].node_id}` cancels them"
                error.hint = f"{error.hint}\n{text}" if error.hint else text
            raise


# A deletion with one of these errors was not sent, or has not ended: the request may still get a TPU.
_LEFT = (ServiceUnavailableError, QuotaError, TimedOutError, DeletionRefusedError)
# What ends a race at once: nothing can be known, or sent, after it.
_ENDS_THE_RACE = (CredentialsError, LeaseError, JournalError, TakenOverError, DeletedByOtherError)


class _RaceRun:
    """One run of a race."""

    def __init__(
        self,
        context: ActionContext,
        race: Race,
        policy: Policy,
        leases: Mapping[NodeName, LeaseGuard],
        *,
        asked: Sequence[NodeName],
        spec: NodeSpec,
        since: timedelta | None,
    ) -> None:
        self._context, self._race, self._policy, self._leases, self._asked = context, race, policy, leases, asked
        spec = spec_with_ssh_key(context, spec)
        self._spec = replace(spec, queue=True, labels={**spec.labels, RACE_LABEL: race.id})
        self.names = tuple(dict.fromkeys((*asked, *race.names)))
        self._is_journaled = race.is_open and {*asked} <= {*race.names}
        self._began = context.clock.monotonic() if since is None else since
        self._until = None if policy.timeout is None else self._began + policy.timeout
        # Where the journal has a request of this race, and where one may be now.
        self._sent, self._open = {*race.sent}, {*race.sent}
        # The requests that were seen last, of any client, and the zones that did not answer since.
        self._requests: dict[NodeName, QueuedResource] = {}
        self._silent: set[NodeName] = set()
        self._refusals: dict[NodeName, ZoneRefusal] = {}

    def require_leases(self) -> None:
        """Raise `ConflictError`, or why it was lost, unless this run has the lease of each zone."""
        for lease in self._leases.values():
            lease.require()

    def run(self) -> NodeName:
        """Race to the end, and return the winner."""
        winner = self._find_winner()
        self._delete([name for name in self.own() if name not in {*self._asked, winner}], "it cannot win")
        while True:
            if winner is None:
                if not self._is_journaled:
                    self._record(zones=[name.zone for name in self.names], spec=self._spec.to_json())
                    self._is_journaled = True
                winner = self._await_active()
            others = [name for name in self.own() if name != winner]
            if winner in self.own() and winner in self._requests:
                self._record_winner(winner, others)
            self._delete(others, f"{winner.zone} won the race")
            if self._is_still_there(winner):
                self._end()
                return winner
            winner = None

    def own(self) -> list[NodeName]:
        """Return the zones in which this race may have a request. A label that the journal does not confirm proves nothing."""
        return [name for name in self.names if name in self._open and self._is_own(name, self._requests.get(name))]

    def _is_own(self, name: NodeName, request: QueuedResource | None) -> bool:
        return name in self._sent and (request is None or race_id_of(request, name.node_id) == self._race.id)

    def _find_winner(self) -> NodeName | None:
        """Look at all zones once. Return the winner that an earlier run has recorded, or the zone that has the node already.

        Raises `ConflictError` if another client has requested the node, and if it exists several times.
        """
        queued, nodes = poll(
            self._context, self._asked[0], self._look, until=self._until, late=lambda *_: self._late_error()
        )
        node_id, owner = self._asked[0].node_id, self._context.owner()
        found = [(replace(self._asked[0], zone=request.zone), request) for request in queued]
        # Beside one of this race a zone may have another client's, for several nodes.
        self._requests = dict(sorted(found, key=lambda one: self._is_own(*one)))
        self._open &= {*self._requests, *self._silent}
        foreign = [(name, request) for name, request in found if is_alive(request) and not self._is_own(name, request)]
        for name, other in foreign:
            if not race_id_of(other, node_id) and name in self.names:
                raise requested_already_error(node_id, other)
        others = {name: other for name, other in foreign if race_id_of(other, node_id)}
        if others and (len(others) > 1 or self.own() or not self._may_adopt(*others.items())):
            ordered = {name: others[name] for name in self.names if name in others}
            raise other_race_error(node_id, others, first_active(ordered), owner=owner)
        if self._race.winner is not None:
            name, created = self._race.winner
            request = self._requests.get(name)
            if name in self.own() and request is not None and request.created == created and is_alive(request):
                return name
        alone = [node for node in nodes if node.name in self.names and node.name not in self.own()]
        node = only_node(filter(is_living, alone), node_id)
        return None if node is None else self._adopt(node.name)

    def _look(self) -> tuple[list[QueuedResource], tuple[Node, ...]] | Wait:
        """Return the requests and the nodes of the node's name in all zones."""
        cloud, project, node_id = self._context.cloud, self._asked[0].project, self._asked[0].node_id
        self._silent = {*self.names}
        try:
            queued, nodes = cloud.list_queued_resources(project), cloud.list_nodes(project)
        except (ServiceUnavailableError, QuotaError):
            return Wait("the API does not answer")
        except (NotFoundError, InvalidRequestError) as error:
            raise InvalidInputError(
                f"the API has no queued resources for project {project}, which a race needs: {error.lines[0]}",
                hint="leave out `--race` to try the zones in order",
            ) from error
        blind = {*queued.unreachable, *nodes.unreachable}
        self._silent = {name for name in self.names if name.zone in blind}
        for name in () if self._race.is_open else sorted(self._silent):
            # There would be two nodes.
            if self._context.journal.past(name).may_have_node:
                return Wait(f"{name.zone} does not answer, and may have the node")
        return [one for one in queued.queued_resources if one.owns(node_id)], nodes.nodes

    def _may_adopt(self, found: tuple[NodeName, QueuedResource]) -> bool:
        """Return whether an ACTIVE request that this race did not make may be taken: one of a race of this user."""
        name, request = found
        is_ours = race_id_of(request, name.node_id) and request.labels.get(OWNER_LABEL, "") == self._context.owner()
        return name in self._asked and bool(is_ours) and request.state is QueuedState.ACTIVE

    def _adopt(self, name: NodeName) -> NodeName:
        self._context.report(EventKind.NOTE, name, f"{name.zone} has the node already")
        return name

    def _await_active(self) -> NodeName:
        """Request the node in each zone that has not dropped out, and return the first that is ACTIVE."""
        zoned = replace(self._context, emit=self._emit)
        controller = Controller(zoned, [self._task(name) for name in self._asked if name not in self._refusals])
        try:
            while controller:
                if is_late := self._is_late:  # a last look
                    for node in controller:
                        node.due = self._context.clock.monotonic()
                with suppress(ServiceUnavailableError):  # each zone waits until its lease can be renewed
                    self.require_leases()
                due = list(controller.observe_due(survey=False))
                for node, _ in due:
                    self._note(node)
                if (winner := self._find_active(controller)) is not None:
                    return winner
                if is_late:
                    break
                for node, error in due:
                    self._step(controller, node, error)
                controller.sleep(until=self._until)
        finally:
            controller.close()
        self._delete(self.own(), "the race is over")
        self._end()
        raise self._late_error() if self._is_late else refused_error(self._asked, self._refusals)

    def _emit(self, event: NodeEvent) -> None:
        """Pass on what happens in one zone, with its name: several have a node of that name. Each state is that of a wait."""
        if event.kind is not EventKind.STATE:
            self._context.emit(replace(event, text=f"{event.node.zone}: {event.text}"))

    def _emit_lost(self, event: NodeEvent) -> None:
        """Pass on what happens to a request that lost: its end is no success of the node."""
        for kind in (EventKind.NOTE, EventKind.GAVE_UP) if event.kind is EventKind.REACHED else (event.kind,):
            self._emit(replace(event, kind=kind))

    @property
    def _is_late(self) -> bool:
        return self._until is not None and self._context.clock.monotonic() >= self._until

    def _late_error(self) -> TpuctlError:
        return timeout_error(self._asked, self._spec, self._refusals, self._silent)

    def _task(self, name: NodeName) -> Goal:
        """Return the task of one zone. Its request ends with the run: after it, no process deletes the losers."""
        limit, timeout = self._policy.queue_for, self._policy.timeout
        if timeout is None:
            limit = limit or UNATTENDED_WAIT
        elif limit is not None and limit >= timeout:
            limit = None
        policy = replace(
            self._policy,
            goal=Condition.READY,
            replace_request=self._policy.replace or self._policy.replace_request,
            repair=Repair.NONE,
            recreate_deleted=False,
            retries_without_capacity=False,
            queue_for=limit,
        )
        return Goal(
            name=name, policy=policy, spec=self._spec, purpose="up", lease=self._leases[name], since=self._began
        )

    def _note(self, node: NodeReconciler) -> None:
        """Note what a zone answered. Raises `ConflictError` for a request of this race for another spec, if that must stay."""
        name, request = node.name, node.seen.request
        if node.seen.outage:
            self._silent.add(name)
            return
        self._silent.discard(name)
        if request is not None:
            self._requests[name] = request
            self._open.add(name)
            may_replace = node.policy.replace_request and request.state in UNDECIDED
            if node.seen.request_differences and is_alive(request) and self._is_own(name, request) and not may_replace:
                raise different_request_error(node.seen, request, node.seen.request_differences)
        elif not node.requested.pending:
            self._requests.pop(name, None)
            self._open.discard(name)

    def _find_active(self, controller: Controller) -> NodeName | None:
        """Return the winner; None if no zone has the node. A node that the race has not requested is taken as it is."""
        seen = {node.name: node.seen for node in controller if node.name not in self._silent}
        requests = {name: one.request for name, one in seen.items() if one.request is not None}
        eligible = {found[0]: found[1] for found in requests.items() if self._is_own(*found) or self._may_adopt(found)}
        ready = [name for name, one in seen.items() if one.node is not None and one.node.state is NodeState.READY]
        # The node may show before the state of its request does.
        winner = first_active(eligible) or next((name for name in ready if name in eligible), None)
        if winner is not None:
            return winner
        alone = [one.node for name, one in seen.items() if one.node is not None and name not in requests]
        # That of a request which does not show yet is still being created.
        there = (node for node in alone if is_living(node) and (node.name in ready or not node.queued_resource))
        node = only_node(there, self._asked[0].node_id)
        return None if node is None else self._adopt(node.name)

    def _step(self, controller: Controller, node: NodeReconciler, error: TpuctlError | None) -> None:
        """Take the next step in one zone. A zone that cannot get the node drops out."""
        name, request, was_silent = node.name, node.seen.request, node.seen.outage is not None
        is_foreign = request is not None and not self._is_own(name, request)
        result: NodeResult | TpuctlError | None = error
        if error is None and request is not None and is_foreign and not is_abandoned(request):
            result = requested_already_error(name.node_id, request)
        elif error is None:
            result = reconcile(node)
            if isinstance(result, TpuctlError):
                report_failure(node, result)
            # A request that another client made at the same time is not of this race.
            if node.requested.verb is Verb.CREATE or (node.seen.outage and not was_silent):
                self._sent.add(name)
                self._open.add(name)
        if isinstance(error, AccessError):
            raise error
        if isinstance(result, _ENDS_THE_RACE):
            raise result
        if not isinstance(result, TpuctlError) or self._is_late:
            return
        self._refusals[name] = ZoneRefusal(result, self._context.server_now())
        self._context.report(EventKind.NOTE, name, f"{name.zone} drops out: {result.lines[0]}")
        controller.remove(node)

    def _record_winner(self, winner: NodeName, others: Collection[NodeName]) -> None:
        """Record the winner in the journal of every zone, before another request is deleted."""
        request = self._requests[winner]
        if self._race.winner == (winner, request.created):
            return
        self._race = replace(self._race, winner=(winner, request.created))
        # Whether a request lost is never decided by its label alone: another client can copy that.
        lost = {name.zone: self._requests[name].raw.get("createTime") for name in others if name in self._requests}
        self._record(winner=winner.zone, created=request.raw.get("createTime"), lost=lost)
        left = f"; cancelling {len(others)} other request{'s' * (len(others) > 1)}" if others else ""
        lasted = format_duration(self._context.clock.monotonic() - self._began)
        text = f"{winner.zone} wins: its queued resource is ACTIVE after {lasted}{left}"
        self._context.report(EventKind.NOTE, winner, text)

    def _delete(self, names: Sequence[NodeName], reason: str) -> None:
        """Delete what this race requested in these zones. Raises `ServiceUnavailableError` naming what is left."""
        if not names:
            return
        context = replace(self._context, emit=self._emit_lost)
        left = (
            None if self._until is None else max(self._until - context.clock.monotonic(), timedelta()) + CLEAN_UP_TIME
        )
        deletions = [_deletion(self._race.id, name, self._requests.get(name), why=reason) for name in names]
        ends = dict(zip(names, delete(context, deletions, leases=LeaseUse.HELD, by="up", timeout=left), strict=True))
        for name, end in ends.items():
            if isinstance(end, LeaseLostError):
                self._leases[name].raise_lost()
            # What has the name of a request that is gone is another client's.
            if isinstance(end, ReplacedRequestError) or (end is Ended.GONE and name in self._requests):
                context.report(EventKind.REACHED, name, "its queued resource is gone")
            elif isinstance(end, NoLongerMeantError):
                context.report(EventKind.NOTE, name, f"left alone: {end.lines[0]}")
        require_deleted({name: end for name, end in ends.items() if not isinstance(end, NoLongerMeantError)})
        self._open -= {*names}

    def _is_still_there(self, winner: NodeName) -> bool:
        """Return whether the winner is still alive now that the others are gone; if not, the race goes on."""
        if winner not in self._requests or winner not in self.own():
            return True  # a node that was there before
        try:
            request = self._context.cloud.find_queued_resource(winner)
        except (ServiceUnavailableError, QuotaError):
            return True
        if request is not None and is_alive(request):
            return True
        state = request.state if request else "gone"
        self._context.report(EventKind.NOTE, winner, f"{winner.zone}: its queued resource is {state}: the race goes on")
        return False

    def _end(self) -> None:
        if self._is_journaled:
            with suppress(JournalError):  # the next run finds the race as it is now
                self._record(over=True)

    def _record(self, **data: Any) -> None:  # JSON
        for name in self.names:
            self._context.record(name, "race", race=self._race.id, **data)


def race_deletions(
    context: ActionContext, race: Race, *, keep: NodeName, meant: StillMeant
) -> dict[NodeName, Deletion]:
    """Return the deletions of the requests of a race but that of `keep`, with their nodes, for a user who ends the race."""

    def still_meant(group: ResourceGroup) -> None:
        request = group.request
        is_known = race.begun or (request and replace(keep, zone=request.zone) in race.requests)
        if request and not is_known and request.labels.get(OWNER_LABEL) != context.owner():
            raise NoLongerMeantError(f"the queued resource {request.short_name} is another user's: left alone")
        meant(group)

    return {
        name: _deletion(race.id, name, race.requests.get(name), why="it is not needed any more", meant=still_meant)
        for name in race.names
        if name != keep and (name in race.requests or name in race.sent)
    }


def _deletion(
    race_id: str, name: NodeName, request: QueuedResource | None, *, why: str, meant: StillMeant = lambda _: None
) -> Deletion:
    """Return the deletion of a request of a race with its nodes. One that was not seen, None, may show later."""

    def judge(group: ResourceGroup) -> None:
        current = group.request
        if current is not None and race_id_of(current, name.node_id) != race_id:
            raise NoLongerMeantError(f"the queued resource {current.short_name} is not of this race")
        if current is not None and not current.state.is_dead:  # its nodes are deleted too
            for node in (*group.nodes, *group.foreign):
                if not is_of(node, current):
                    raise NoLongerMeantError(f"the node `{node.name.node_id}` is not from this request")
        meant(group)

    sent = {"nodeSpec": [{"nodeId": name.node_id, "node": {"labels": {RACE_LABEL: race_id}}}]}
    group = ResourceGroup(
        name.project, (), request or QueuedResource.from_api({"name": queued_resource_name(name), "tpu": sent})
    )
    return Deletion(
        group,
        reason="asked for",
        why=why,
        meant=judge,
        entry={"race": race_id, "text": why},
        shows_within=None if request else _VISIBILITY_LAG,
        ignores_refusals=True,
    )


def end_race(context: ActionContext, race: Race) -> None:
    """Record that a race is over, so that no later run continues it."""
    for name in race.names if race.is_open else ():
        with suppress(JournalError):  # the next run finds the race as it is now
            context.record(name, "race", race=race.id, over=True)


def require_deleted(ends: Mapping[NodeName, Ended | TpuctlError]) -> None:
    """Raise the first error of the deletions of a race; what a request that is left raised is named with all of these."""
    errors = {name: end for name, end in ends.items() if isinstance(end, TpuctlError)}
    left = {name: error for name, error in errors.items() if isinstance(error, _LEFT)}
    for error in [error for name, error in errors.items() if name not in left]:
        raise error
    if left:
        raise left_error(left)

"""Race for a node: request it in several zones at once, keep the first that becomes ACTIVE, cancel the others.

`race` decides. The journal of every zone has the race before its first request is sent, its winner before a request is
cancelled, and its end; each requested node has the label of the race. `run_race` continues a race that was killed at any
moment, `end_race` cancels it, `find_race` says what is left of one.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.durations import format_duration
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    CredentialsError,
    InvalidInputError,
    InvalidRequestError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.fan_out import fan_out
from tpuctl.models.events import EventKind
from tpuctl.models.node import OWNER_LABEL, NodeState, QueuedState
from tpuctl.models.spec import RACE_LABEL, REQUEST_LABEL, SHORTEST_QUEUE, NodeSpec, QueueWindow
from tpuctl.names import NodeName, last_segment
from tpuctl.nodes.actions import spec_with_ssh_key
from tpuctl.nodes.actuator import LeaseLostError, announced_change, describe_file_choices, describe_spec
from tpuctl.nodes.conditions import Policy, Verb
from tpuctl.nodes.journal import JournalError
from tpuctl.nodes.lease import LeaseGuard, end_lease, released_at_end
from tpuctl.nodes.lookup import only_node
from tpuctl.nodes.polling import poll_interval
from tpuctl.nodes.queueing import CLEAN_UP_TIME, UNATTENDED_WAIT, RequestExpiredError, request_failure
from tpuctl.nodes.race import (
    CancelRequest,
    ChooseWinner,
    EndRace,
    EnterZone,
    ObservedRace,
    RaceEntry,
    ZoneRefusal,
    decide_cancel,
    decide_race,
    describe_entry,
    is_being_deleted,
    left_error,
)
from tpuctl.nodes.request_steps import RequestChangedError
from tpuctl.nodes.resource_group import group_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from tpuctl.cloud.tpu import QueuedListing
    from tpuctl.models.node import Node
    from tpuctl.models.operation import Operation
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.journal import Journal
    from tpuctl.nodes.resource_group import StillMeant

# Requests that are sent at the same time.
_MOST_AT_ONCE = 8
# A request may show some time after its create was accepted [unverified].
_VISIBILITY_LAG = timedelta(seconds=20)
_SHORT_PAUSE = timedelta(seconds=2)
_MAX_ZONES = 200
# The ids that `explain` gives to the limits on requests per minute, which pass.
_RATE_LIMITS = frozenset({"quota-create-rate", "quota-rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A race that has not ended, as far as the journal and the API know it."""

    id: str
    names: tuple[NodeName, ...]
    spec: NodeSpec | None = None
    # The recorded winner, and the creation time of its request.
    winner: tuple[NodeName, datetime | None] | None = None
    # Where a request may have been sent, and when the last one was.
    sent: frozenset[NodeName] = frozenset()
    last_sent: datetime | None = None
    # Its requests that exist.
    requests: Mapping[NodeName, QueuedResource] = field(default_factory=dict)
    # The journal has its beginning and not its end.
    is_open: bool = False


def remembered_race(journal: Journal, names: Collection[NodeName]) -> Race | None:
    """Return the latest race of these nodes that has not ended according to the journal; None if there is none."""
    pasts = {name: journal.past(name) for name in names}
    seen = [(race_id, race) for past in pasts.values() for race_id, race in past.races.items()]
    ended = {race_id for race_id, race in seen if race.is_over}
    begun = {race_id: race for race_id, race in seen if race.begun is not None and race_id not in ended}
    if not begun:
        return None
    latest = max(begun, key=lambda race_id: str(begun[race_id].begun))
    winners = [race for race_id, race in seen if race_id == latest and race.winner]
    first, sent = next(iter(names)), {name: past.raced_at for name, past in pasts.items() if past.raced_at}
    zones = dict.fromkeys(zone for race_id in (latest, *begun) for zone in begun[race_id].zones[:_MAX_ZONES])
    return Race(
        id=latest,
        names=tuple(replace(first, zone=zone) for zone in zones),
        spec=begun[latest].spec,
        winner=(replace(first, zone=str(winners[-1].winner)), winners[-1].created) if winners else None,
        sent=frozenset(sent),
        last_sent=max(sent.values(), default=None),
        is_open=True,
    )


def find_race(
    context: ActionContext, project: str, node_id: str, *, names: Collection[NodeName] = (), race_id: str = ""
) -> Race | None:
    """Return what is left of a race for a node, by the journal and by the requests of all zones; None if nothing is.

    Without `race_id` it is the race of the journal, else the first that has a request. The winner of a race that has ended
    counts as a race with one request. A zone that does not answer may have a request, unless the journal has the race.
    """
    known = context.journal.namesakes(project, node_id)
    remembered = remembered_race(context.journal, dict.fromkeys((*names, *known)))
    if remembered is not None and race_id not in {"", remembered.id}:
        remembered = None
    listing = context.cloud.list_queued_resources(project)
    ids = {request.name: race_id_of(request, node_id) for request in listing.queued_resources}
    wanted = race_id or (remembered.id if remembered else next(filter(None, ids.values()), ""))
    requests = {
        NodeName(project, request.zone, node_id): request
        for request in listing.queued_resources
        if wanted and ids[request.name] == wanted
    }
    if remembered is None and not requests:
        return None
    race = remembered or Race(id=wanted, names=tuple(requests))
    blind: tuple[NodeName, ...] = ()
    if not any(wanted in context.journal.past(name).races for name in dict.fromkeys((*names, *known))):
        blind = tuple(NodeName(project, zone, node_id) for zone in listing.unreachable)
    names = tuple(dict.fromkeys((*race.names, *requests, *blind)))
    return replace(race, names=names, requests=requests, sent=race.sent | {*blind})


def race_id_of(request: QueuedResource, node_id: str) -> str:
    """Return the id of the race that a request for this node alone belongs to; empty if it belongs to none."""
    if request.queued_resource_id != node_id or request.node_ids != (node_id,):
        return ""
    return request.labels.get(RACE_LABEL, "")


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
        is_known = any(race_id in journal.past(name).races for name in members)
        # A run requests nothing without an end.
        ends = [request.valid_until for request in members.values() if request.valid_until is not None]
        if not (is_known and sees_runs) and any(now - end < CLEAN_UP_TIME for end in ends):
            continue
        for name, request in members.items():
            if request.state.is_dead:
                continue  # the record of one that is not alive
            verdict = _verdict(journal, name, race_id)
            if verdict is None:
                unproven.add(name)
                continue
            winner, lost_at = verdict
            if winner == (name, request.created):
                continue
            won = any(winner == (other, members[other].created) for other in usable)
            if won and request.created is not None and lost_at.get(name.zone) == request.created:
                lost[name] = winner[0].zone
            else:
                unproven.add(name)
    return LostRequests(lost, frozenset(unproven))


def _verdict(
    journal: Journal, name: NodeName, race_id: str
) -> tuple[tuple[NodeName, datetime | None], Mapping[str, datetime | None]] | None:
    """Return the recorded winner of a race with the creation time of its request, and these times of what lost, by zone."""
    race = journal.past(name).races.get(race_id)
    return None if race is None or race.winner is None else ((replace(name, zone=race.winner), race.created), race.lost)


def describe_race(names: Sequence[NodeName]) -> str:
    """Return what an interruption of a race leaves in the cloud, for `App.in_flight`."""
    zones = ", ".join(name.zone for name in names)
    return (
        f"the requests for `{names[0].node_id}` in {zones} still count against the quota, and bill when they get a TPU"
    )


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
    request is left, unless the error names it.
    """
    asked = tuple(dict.fromkeys(names))
    remembered = remembered_race(
        context.journal, dict.fromkeys((*asked, *context.journal.namesakes(asked[0].project, asked[0].node_id)))
    )
    if remembered is not None:
        zones = ", ".join(name.zone for name in remembered.names)
        context.report(EventKind.NOTE, asked[0], f"continuing the race of an earlier run in {zones}")
    race = remembered or Race(id="", names=asked)
    spec = replace(spec_with_ssh_key(context, spec), queue=True)
    run = _RaceRun(context, race, policy, wanted=asked, spec=spec, since=since)
    names = sorted({*asked, *race.names})
    run.leases = {name: LeaseGuard(context, name, "up", force_lease=force_lease) for name in names}
    with released_at_end(run.leases):
        winner = run.run()
    if winner is None:
        raise AssertionError("a race ends with a winner or with an error")
    return winner


def end_race(
    context: ActionContext,
    race: Race,
    *,
    by: str,
    timeout: timedelta | None = None,
    keep: NodeName | None = None,
    wait: bool = True,
    still_meant: StillMeant = lambda _: None,
) -> None:
    """Cancel all requests of a race but that of `keep`, with their nodes, and wait until the API says that they are gone.

    The lease of any other holder is ended first; `by` is the command that the holder's error names. Without `wait` each
    request is cancelled once. `still_meant` gets each request as it was read right before, and raises if it must stay.
    Raises `ServiceUnavailableError` naming the requests that are left after the timeout.
    """
    for name in race.names:
        if name != keep:
            end_lease(context, name, by)
    run = _RaceRun(context, race, Policy(timeout=timeout), wanted=(), spec=None, since=None)
    run.kept, run.is_ending, run.still_meant = keep, True, still_meant
    run.run(once=not wait)


def _made_by(request: QueuedResource) -> str:
    return f" by {request.labels.get(OWNER_LABEL) or 'an unknown user'}"


@dataclass(slots=True)
class _Zone:
    """What a run knows about one zone of its race."""

    name: NodeName
    was_sent: bool
    is_wanted: bool
    may_have_node: bool = False
    request: QueuedResource | None = None
    is_silent: bool = False
    # A list has said which nodes the zone had before the race.
    has_shown_nodes: bool = False
    # Requested by this run, and not visible yet.
    sent_at: timedelta | None = None
    operation: Operation | None = None
    # This run has sent a create.
    sent_by_us: bool = False
    # The deletion was begun, or the request is one of an earlier race or for another spec.
    is_leaving: bool = False
    cancelled_at: timedelta | None = None
    refusal: ZoneRefusal | None = None
    journaled_state: str = ""


class _RaceRun:
    """One run of a race: observe, decide, act, report, sleep."""

    def __init__(
        self,
        context: ActionContext,
        race: Race,
        policy: Policy,
        *,
        wanted: Sequence[NodeName],
        spec: NodeSpec | None,
        since: timedelta | None,
    ) -> None:
        self._context, self._policy, self._spec = context, policy, spec
        self._race = race
        self._is_journaled = race.is_open and set(wanted) <= set(race.names)
        self._started = self._changed_at = context.clock.monotonic() if since is None else since
        self._zones = {
            name: _Zone(name, was_sent=name in race.sent, is_wanted=name in wanted)
            for name in dict.fromkeys((*wanted, *race.names))
        }
        for name in () if race.is_open else wanted:
            self._zones[name].may_have_node = context.journal.past(name).may_have_node
        # Where this run, or an earlier one that the journal has, requested the node.
        self._made = set(race.sent)
        self._first = next(iter(self._zones))
        self._has_looked = False
        # An existing node is taken as it is.
        self._adopted: NodeName | None = None
        # None: the leases were ended for good, as `down` does it.
        self.leases: Mapping[NodeName, LeaseGuard] | None = None
        self.is_ending = False
        self.kept: NodeName | None = None
        self.still_meant: StillMeant = lambda _: None

    @property
    def _left(self) -> timedelta | None:
        timeout = self._policy.timeout
        return None if timeout is None else timeout - (self._context.clock.monotonic() - self._started)

    def run(self, *, once: bool = False) -> NodeName | None:
        """Race to the end. Return the winner; None if the race is ended without one."""
        timeout = None if self._policy.timeout is None else self._policy.timeout + CLEAN_UP_TIME
        while True:
            with limit_cloud_calls(self._context.clock, timeout, since=self._started, grace=DEADLINE_GRACE):
                end = None
                try:
                    end = self._step()
                except AccessError as error:
                    raise self._with_requests_left(error) from error
                except ServiceUnavailableError as error:
                    # The lease store does not answer: nothing is changed until it does.
                    if self._left is not None and -self._left >= CLEAN_UP_TIME:
                        raise
                    self._context.report(EventKind.SILENT, self._first, f"not answering: {error.lines[0]}")
                if end is not None:
                    return self._finish(end)
                if once:
                    self._check_all_cancelled()
                    return None
            self._sleep()

    def _step(self) -> EndRace | None:
        """Observe, and take the next steps. Return the end of the race, None to be called again."""
        for lease in (self.leases or {}).values():
            lease.require()
        self._observe()
        self._report_waits()
        actions = decide_race(self._seen())
        for action in actions:
            if isinstance(action, ChooseWinner):
                self._choose(action.name)
                actions = decide_race(self._seen())
        for action in actions:
            if isinstance(action, EndRace):
                return action
        self._enter([action.name for action in actions if isinstance(action, EnterZone)])
        self._cancel([action for action in actions if isinstance(action, CancelRequest)])
        return None

    def _seen(self) -> ObservedRace:
        entries = tuple(self._entry(zone) for zone in self._zones.values())
        return ObservedRace(entries=entries, left=self._left, is_ending=self.is_ending or self._adopted is not None)

    def _entry(self, zone: _Zone) -> RaceEntry:
        now, request = self._context.clock.monotonic(), zone.request
        identity = (zone.name, request.created) if request else None
        return RaceEntry(
            name=zone.name,
            request=request,
            is_silent=zone.is_silent,
            was_sent=zone.was_sent,
            may_have_node=zone.may_have_node,
            is_pending=zone.sent_at is not None and now - zone.sent_at < _VISIBILITY_LAG,
            is_wanted=zone.is_wanted,
            is_leaving=zone.is_leaving,
            since_cancel=None if zone.cancelled_at is None else now - zone.cancelled_at,
            refusal=zone.refusal,
            is_winner=identity is not None and (identity == self._race.winner or zone.name == self.kept),
        )

    def _observe(self) -> None:
        """Fetch the requests of all zones. A zone that does not answer keeps what is known of it."""
        cloud, project, node_id = self._context.cloud, self._first.project, self._first.node_id
        try:
            listing = cloud.list_queued_resources(project)
        except (ServiceUnavailableError, QuotaError):
            for zone in self._zones.values():
                zone.is_silent = True
            return
        except (NotFoundError, InvalidRequestError) as error:
            raise InvalidInputError(
                f"the API has no queued resources for project {project}, which a race needs: {error.lines[0]}",
                hint="leave out `--race` to try the zones in order",
            ) from error
        requests = [request for request in listing.queued_resources if request.owns(node_id)]
        if not self._has_looked and not self.is_ending:
            self._judge_others(requests)
        for zone in self._zones.values():
            if zone.name.zone in listing.unreachable:
                zone.is_silent = True
                continue
            here = [request for request in requests if request.zone == zone.name.zone]
            own = next((request for request in here if self._is_own(request)), None)
            self._see(zone, own)
            if other := next((request for request in here if request is not own), None):
                self._meet(zone, other)
        self._has_looked = True
        if not self.is_ending:
            self._adopt_node()

    def _judge_others(self, requests: Sequence[QueuedResource]) -> None:
        """Judge requests of a race that the journal does not have, or that has ended: their node may be in use.

        This run continues that race; its ACTIVE request wins. Raises `ConflictError` if there is more than one race or ACTIVE
        request, and for a request in a zone that the user does not name.
        """
        node_id = self._first.node_id
        alive = [request for request in requests if race_id_of(request, node_id) and not request.state.is_dead]
        others = {
            replace(self._first, zone=request.zone): request
            for request in alive
            if race_id_of(request, node_id) != self._race.id
        }
        if not others:
            return
        ids = {race_id_of(request, node_id) for request in others.values()}
        active = [name for name, request in others.items() if request.state is QueuedState.ACTIVE]
        owner = self._context.owner()
        is_foreign = any(request.labels.get(OWNER_LABEL, "") != owner for request in others.values())
        is_doubtful = is_foreign or len(ids) > 1 or len(active) > 1 or not others.keys() <= self._zones.keys()
        if len(others) < len(alive) or is_doubtful:
            named = ", ".join(
                f"{request.zone} ({request.state}{_made_by(request) if is_foreign else ''})"
                for request in others.values()
            )
            raise ConflictError(
                f"`{node_id}` is requested by another race already, in {named}",
                hint="choose another name; `tpuctl queue list` shows all requests"
                if is_foreign
                else self._choosing_hint([name for name in self._zones if name in active], others),
            )
        # The race of the journal, if there is one, has no request any more.
        winner = next(((name, others[name].created) for name in active), None)
        self._race, self._is_journaled = replace(self._race, id=ids.pop(), winner=winner), False

    def _choosing_hint(self, active: Sequence[NodeName], others: Collection[NodeName]) -> str:
        """Return the command that keeps the first ACTIVE request and ends the others. A `down` would end all of them."""
        node_id = self._first.node_id
        everything = f"cancel all with `{shlex.join(['tpuctl', 'down', node_id])}`"
        if not active:
            return f"name its zone to keep one, or {everything}"
        ended = [f"{name.zone}/{node_id}" for name in others if name != active[0]]
        return f"keep the one in {active[0].zone} with `{shlex.join(['tpuctl', 'queue', 'cancel', *ended])}`, or {everything}"

    def _is_own(self, request: QueuedResource) -> bool:
        """Return whether a request is one of this race; so is the record of a dead one that tpuctl sent for the node."""
        node_id = self._first.node_id
        if race_id := race_id_of(request, node_id):
            return race_id == self._race.id or (request.state.is_dead and not self.is_ending)
        is_single = request.queued_resource_id == node_id and request.node_ids == (node_id,)
        return is_single and REQUEST_LABEL in request.labels and request.state.is_dead and not self.is_ending

    def _see(self, zone: _Zone, request: QueuedResource | None) -> None:
        """Record the request of a zone that answered. One that is missing in the list is fetched by name before it is gone."""
        before = zone.request
        if request is None and before is not None:
            try:
                request = self._context.cloud.find_queued_resource(zone.name)
            except (ServiceUnavailableError, QuotaError):
                zone.is_silent = True
                return
        zone.is_silent = False
        if before is not None and (request is None or request.created != before.created):
            self._lose_sight(zone, before)
        zone.request = request
        if request is None:
            self._check_operation(zone)
            return
        zone.sent_at, zone.operation, zone.was_sent = None, None, True
        if before is None or before.state != request.state:
            self._changed_at = self._context.clock.monotonic()
        if self.is_ending:
            return
        was_alive = before is not None and before.created == request.created and not before.state.is_dead
        is_of_this_race = was_alive or race_id_of(request, zone.name.node_id) == self._race.id
        if request.state.is_dead:
            if is_of_this_race and not zone.is_leaving:
                self._judge_dead(zone, request, was_alive=was_alive)
            zone.is_leaving = True
        elif zone.is_wanted and not zone.is_leaving:
            self._compare(zone, request)

    def _lose_sight(self, zone: _Zone, before: QueuedResource) -> None:
        """Record that a request is gone: cancelled by this run, or deleted by another client."""
        zone.request, zone.cancelled_at = None, None
        self._changed_at = self._context.clock.monotonic()
        if zone.is_leaving or self.is_ending:
            zone.is_leaving = False
            text = f"{zone.name.zone}: the request is gone"
            self._context.report(EventKind.NOTE, zone.name, text)
            self._context.report(EventKind.GAVE_UP, zone.name, text)
            return
        other = f"another client deleted the queued resource `{before.queued_resource_id}` in {zone.name.zone}"
        self._refuse(zone, NotFoundError(other, hint=f"`tpuctl up {zone.name.node_id}` asks again"))

    def _judge_dead(self, zone: _Zone, request: QueuedResource, *, was_alive: bool) -> None:
        """Drop a zone out whose request FAILED, or was suspended by a user.

        One that was preempted asks again, and so does one whose time ended before this run has looked.
        """
        if request.state is QueuedState.FAILED:
            cause = self._context.cloud.operation_error(request.error) if request.error else None
            failure = request_failure(request, cause)
            if was_alive or zone.sent_by_us or not isinstance(failure, RequestExpiredError):
                self._refuse(zone, failure)
            else:
                self._context.report(EventKind.NOTE, zone.name, f"{zone.name.zone}: its time had ended; asking again")
        elif not request.was_suspended_by_service:
            text = f"the queued resource `{request.queued_resource_id}` in {zone.name.zone} was suspended by a user"
            self._refuse(zone, ConflictError(text))
        else:
            self._context.report(EventKind.NOTE, zone.name, f"{zone.name.zone}: the service preempted it; asking again")

    def _compare(self, zone: _Zone, request: QueuedResource) -> None:
        """Raise `ConflictError` for a request of the race for another spec, unless the run may replace it."""
        spec = self._spec
        differences = spec.differences(request.requested_node(zone.name.project)) if spec else ()
        if differences and not self._policy.replace:
            raise ConflictError(
                f"the queued resource `{request.queued_resource_id}` in {zone.name.zone} is {request.state} and differs from "
                "the requested spec:",
                details=[f"  {difference}" for difference in differences],
                hint=f"`tpuctl down {zone.name.node_id}` cancels the race for it; or add `--replace`",
            )
        zone.is_leaving = bool(differences)

    def _meet(self, zone: _Zone, other: QueuedResource) -> None:
        """Handle a request for the node that is not one of a race: it is never cancelled here."""
        if self.is_ending:
            return
        several = f" for {len(other.node_ids)} nodes" if len(other.node_ids) > 1 else ""
        error = ConflictError(
            f"`{zone.name.node_id}` is requested in {zone.name.zone} already: the queued resource "
            f"`{other.queued_resource_id}`{several} is {other.state}",
            hint=f"`tpuctl down {zone.name.zone}/{zone.name.node_id}` cancels it",
        )
        if not self._is_journaled and not self._has_looked:
            raise error  # it could become ACTIVE beside the winner
        self._refuse(zone, error)

    def _check_operation(self, zone: _Zone) -> None:
        """Fetch the operation of a create that does not show in time: it may have failed."""
        now, operation = self._context.clock.monotonic(), zone.operation
        if operation is None or operation.name is None or zone.sent_at is None or now - zone.sent_at < _VISIBILITY_LAG:
            return
        with suppress(ServiceUnavailableError, QuotaError, NotFoundError):
            zone.operation = self._context.cloud.get_operation(operation.name)
        if zone.operation is not None and zone.operation.error is not None:
            self._refuse(zone, self._context.cloud.operation_error(zone.operation.error))

    def _adopt_node(self) -> None:
        """Take a node that exists without a request of a race as the winner. Raises `ConflictError` if there are several.

        Until a zone has said once whether it has the node, it counts as silent: nothing is requested there.
        """
        unknown = [zone for zone in self._zones.values() if not zone.has_shown_nodes]
        if not unknown:
            return
        try:
            listing = self._context.cloud.list_nodes(self._first.project)
        except (ServiceUnavailableError, QuotaError):
            for zone in unknown:
                zone.is_silent = True
            return
        for zone in unknown:
            zone.has_shown_nodes = zone.name.zone not in listing.unreachable
            zone.is_silent = zone.is_silent or not zone.has_shown_nodes
        alone = {zone.name for zone in unknown if zone.request is None}
        living = [node for node in listing.nodes if node.name in alone and not _is_ending(node)]
        node = only_node(living, self._first.node_id)
        if node is not None:
            self._adopted = node.name
            self._context.report(EventKind.NOTE, node.name, f"{node.name.zone} has the node already")

    def _enter(self, names: Sequence[NodeName]) -> None:
        """Request the node in these zones at the same time. The journal has the race, and each create, before."""
        if not names or self._spec is None:
            return
        names = [name for name in names if self._passes_check(self._zones[name], self._spec)]
        if not names:
            return
        self._journal_race()
        spec = self._context.stamped(replace(self._spec, labels={**self._spec.labels, RACE_LABEL: self._race.id}))
        window = self._window().ended_by(spec.expires)
        with ExitStack() as announced:
            for name in names:
                entry = {"reason": "race", "race": self._race.id, "spec": spec.to_json()}
                ready = announced.enter_context(self._announced(name, Verb.CREATE, "create", **entry))
                chosen = describe_file_choices(self._context, name, spec)
                ready(f"requesting {describe_spec(self._context, spec, name.zone)} in {name.zone}{chosen}")
                self._zones[name].was_sent = self._zones[name].sent_by_us = True
            send = partial(self._context.cloud.create_queued_resource, spec=spec, window=window)
            outcomes = fan_out(send, names, limit=_MOST_AT_ONCE)
        now = self._context.clock.monotonic()
        for outcome in outcomes:
            zone = self._zones[outcome.item]
            zone.sent_at, zone.operation = now, outcome.value
            if not isinstance(outcome.error, AlreadyExistsError):
                self._made.add(outcome.item)
        for outcome in outcomes:
            if isinstance(outcome.error, CredentialsError):
                raise outcome.error
            if outcome.error is not None and not self._may_enter_again(self._zones[outcome.item], outcome.error):
                self._refuse(self._zones[outcome.item], outcome.error)

    def _may_enter_again(self, zone: _Zone, error: TpuctlError) -> bool:
        """Return whether the next look decides: the answer was lost, the request is there already, or a limit passes."""
        if isinstance(error, AlreadyExistsError):
            # The name may be taken by a node without a request, such as the record of a preempted one.
            with suppress(ServiceUnavailableError, QuotaError):
                node = self._context.cloud.find_node(zone.name)
                return node is None or bool(node.queued_resource)
        is_limit = isinstance(error, QuotaError) and error.error_id in _RATE_LIMITS
        return is_limit or isinstance(error, ServiceUnavailableError | AlreadyExistsError)

    def _passes_check(self, zone: _Zone, spec: NodeSpec) -> bool:
        try:
            self._context.check(zone.name, spec)
        except CredentialsError:
            raise
        except TpuctlError as error:
            if not isinstance(error, ServiceUnavailableError):
                self._refuse(zone, error)
            return False
        return True

    def _window(self) -> QueueWindow:
        """Return the validity of the requests. They end with the run: after it, no process cancels the losers."""
        limits = [limit for limit in (self._policy.queue_for, self._left) if limit is not None]
        valid = max(min(limits, default=UNATTENDED_WAIT), SHORTEST_QUEUE)
        return QueueWindow(now=self._context.server_now(), valid_until=valid, valid_after=self._policy.start_after)

    def _cancel(self, actions: Sequence[CancelRequest]) -> None:
        """Delete these requests at the same time. One that fails is deleted again after the next look."""
        if not actions:
            return
        reasons = {action.name: action.reason for action in actions}
        with ExitStack() as announced:
            for name, reason in reasons.items():
                entry = {"reason": "asked for", "race": self._race.id, "text": reason}
                ready = announced.enter_context(self._announced(name, Verb.DELETE, "delete", **entry))
                ready(f"cancelling the request in {name.zone}: {reason}")
                self._zones[name].is_leaving = True
            outcomes = fan_out(self._delete_if_unchanged, reasons, limit=_MOST_AT_ONCE)
        now = self._context.clock.monotonic()
        for outcome in outcomes:
            zone, error = self._zones[outcome.item], outcome.error
            if isinstance(error, AccessError):
                raise error
            if error is not None:
                text = f"{zone.name.zone}: not cancelled yet, and tried again: {error.lines[0]}"
                self._context.report(EventKind.NOTE, zone.name, text)
            elif outcome.value:
                zone.cancelled_at = now

    def _delete_if_unchanged(self, name: NodeName) -> bool:
        """Delete the request that was observed, and no other. Return whether a deletion was sent.

        Its state, and the owner of its node, are looked at right before.
        """
        seen = self._zones[name].request
        action = decide_cancel(RaceEntry(name=name, request=seen), "")
        if action is None or seen is None:
            return False

        def judge(current: QueuedResource, nodes: tuple[Node, ...]) -> None:
            if (current.created, current.state) != (seen.created, seen.state):
                raise RequestChangedError
            for node in nodes if action.force else ():
                if last_segment(node.queued_resource or "") != current.queued_resource_id:
                    raise ConflictError(f"the node `{name.node_id}` is not from this request")
            self.still_meant(group_of(name.project, current, nodes))

        try:
            self._context.cloud.delete_queued_resource(seen.name, judge, force=action.force)
        except RequestChangedError:
            return False
        return True

    def _choose(self, name: NodeName) -> None:
        """Record the winner in the journal of every zone, before another request is cancelled."""
        request = self._zones[name].request
        if request is None:
            raise AssertionError("only a request that was observed wins")
        self._race = replace(self._race, winner=(name, request.created))
        self._journal_race()
        others = sum(not self._entry(zone).is_settled for zone in self._zones.values()) - 1
        lasted = format_duration(self._context.clock.monotonic() - self._started)
        left = f"; cancelling {others} other request{'s' * (others > 1)}" if others else ""
        # Whether a request lost is never decided by its label alone: another client can copy that.
        lost = {
            zone.name.zone: zone.request.raw.get("createTime")
            for zone in self._zones.values()
            if zone.request is not None and zone.name != name and zone.name in self._made
        }
        self._record_everywhere(winner=name.zone, created=request.raw.get("createTime"), lost=lost)
        text = f"{name.zone} wins: its queued resource is ACTIVE after {lasted}{left}"
        self._context.report(EventKind.NOTE, name, text)

    def _check_all_cancelled(self) -> None:
        """Raise `ServiceUnavailableError` for requests whose deletion was not accepted."""
        rest = [zone for zone in self._zones.values() if zone.cancelled_at is None]
        entries = [entry for entry in map(self._entry, rest) if not (entry.is_settled or entry.is_winner)]
        if left := [entry for entry in entries if not is_being_deleted(entry)]:
            raise left_error(left)

    def _finish(self, end: EndRace) -> NodeName | None:
        """Write the end of the race. Return the winner, or raise the error."""
        if end.error is not None and any(not self._entry(zone).is_settled for zone in self._zones.values()):
            raise end.error  # the next run continues
        if self._is_journaled:
            with suppress(JournalError):  # the next run finds the race as it is now
                self._record_everywhere(over=True)
        if end.error is not None:
            raise end.error
        return end.winner or self._adopted

    def _announced(self, name: NodeName, verb: Verb, event: str, **entry: Any) -> AbstractContextManager[Any]:
        if self.leases is None:
            self._context.record(name, event, **entry)
            return nullcontext(partial(self._context.report, EventKind.ACTION, name, verb=str(verb)))
        return self._with_lease(name, announced_change(self._context, name, verb, event, **entry))

    @contextmanager
    def _with_lease(self, name: NodeName, change: AbstractContextManager[Any]) -> Iterator[Any]:
        try:
            with change as ready:
                yield ready
        except LeaseLostError:
            if self.leases is not None:
                self.leases[name].raise_lost()
            raise

    def _journal_race(self) -> None:
        """Write the race to the journal of every zone, before its first request is sent."""
        if self._is_journaled:
            return
        if not self._race.id:
            self._race = replace(self._race, id=f"{self._context.random.getrandbits(48):012x}")
        zones = [name.zone for name in self._zones]
        self._record_everywhere(zones=zones, spec=self._spec.to_json() if self._spec else None)
        self._is_journaled = True

    def _record_everywhere(self, **data: Any) -> None:  # JSON
        for name in self._zones:
            self._context.record(name, "race", race=self._race.id, **data)

    def _refuse(self, zone: _Zone, error: TpuctlError) -> None:
        if zone.refusal is not None:
            return
        zone.sent_at, zone.refusal = None, ZoneRefusal(error, self._context.server_now())
        text = f"{zone.name.zone} drops out: {error.lines[0]}"
        self._context.report(EventKind.NOTE, zone.name, text)
        self._context.report(EventKind.GAVE_UP, zone.name, text, error=error.kind, hint=error.hint)

    def _report_waits(self) -> None:
        """Report each zone that is waited for; the display shows a line for each change."""
        left, lasted = self._left, self._context.clock.monotonic() - self._started
        if self.is_ending:
            text = "its requests are being deleted"
            self._context.report(EventKind.WAIT, self._first, text, in_state=lasted.total_seconds())
            return
        for zone in self._zones.values():
            entry = self._entry(zone)
            if entry.is_winner or (entry.is_settled and not entry.is_silent):
                continue
            if zone.request is not None and zone.journaled_state != zone.request.state:
                zone.journaled_state = str(zone.request.state)
                with suppress(TpuctlError):  # needed only to say how long a state lasts
                    self._context.journal.append(
                        zone.name, "request", self._context.clock.now(), durable=False, state=zone.journaled_state
                    )
            self._context.report(
                EventKind.WAIT,
                zone.name,
                f"{describe_entry(entry)} for {format_duration(lasted)}",
                request=str(zone.request.state) if zone.request else None,
                in_state=lasted.total_seconds(),
                deadline_in=None if left is None else left.total_seconds(),
            )

    def _sleep(self) -> None:
        """Sleep until the next look: 2 to 15 seconds, a tenth of the time since the last change; 2 after the deadline."""
        context, left = self._context, self._left
        delay = poll_interval(context.clock.monotonic() - self._changed_at)
        delay *= 0.8 + 0.4 * context.random.random()
        context.clock.sleep(delay if left is None else min(delay, max(left, _SHORT_PAUSE)))

    def _with_requests_left(self, error: AccessError) -> AccessError:
        """Return the error with the requests that stay in the cloud, and the command that cancels them."""
        rest = [zone.name for zone in self._zones.values() if not self._entry(zone).is_settled]
        if rest:
            left = f"{describe_race(rest)}; `tpuctl down {self._first.node_id}` cancels them"
            error.hint = f"{error.hint}\n{left}" if error.hint else left
        return error


def _is_ending(node: Node) -> bool:
    return node.state.is_dead or node.state is NodeState.DELETING

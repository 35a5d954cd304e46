"""What the journal of a node says about its past: the only fold of journal entries. Pure.

`past_of` folds entries, oldest first. Each question about earlier runs is a field or a property of `Past`. Entries without a
time, and events and fields of other versions of tpuctl, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpuctl.durations import parse_timestamp
from tpuctl.errors import BrokenNodeError, NoCapacityError
from tpuctl.models.node import Node, Tier
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.nodes.kept_jobs import JOB_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.nodes.conditions import RepairAttempts

# After this time, a user may have begun to work on the node.
_RECENT = timedelta(hours=1)
# The maximum difference between the clocks of this machine and the service.
_SKEW = timedelta(minutes=5)
# Why a node was deleted that is not created again by the run that deleted it; `gc: …` is another.
FINAL_REASONS: Final = frozenset({"asked for", "expired", "given up", "idle"})

_READY = "READY"
# A run begins to make the node usable; from one of these, or from a creation, it counts how long that took.
_BEGINNINGS = frozenset({"bringing-up", "reboot", "restart", "start"})
# A guard looks each five minutes, and tries a failed request again after at most 15.
_GUARD_DELAY = timedelta(minutes=15)
_TIMED = frozenset({"create", "start", "restart", "bringing-up"})
_USABLE = frozenset({"usable", "recovered"})
_NOT_USABLE = frozenset(
    {"create", "delete", "stop", "start", "restart", "reboot", "bringing-up", "preempted", "gave-up"}
)
_REPAIRS = {"reboot": "reboots", "restart": "restarts", "delete": "recreates"}
_SUCCESSES = frozenset({"usable", "create", "restart", "start"})


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time. `end` is None while it has not ended."""

    start: datetime
    end: datetime | None = None

    def within(self, since: datetime, now: datetime) -> timedelta:
        """Return how much of the span lies between two times."""
        return max(min(self.end or now, now) - max(self.start, since), timedelta())


@dataclass(frozen=True, slots=True)
class PassedEnd:
    """An end of a node's time that has passed; `at` is that end, or when the node was seen after it.

    A guard cannot write to the journal. Without one, the node lives until a clean-up runs.
    """

    at: datetime
    has_guard: bool


@dataclass(frozen=True, slots=True)
class Creation:
    """A request of tpuctl for the node, and what came of it. `by` is the process that wrote it."""

    at: datetime
    spec: NodeSpec | None
    by: str
    # The node that was there before, and the one that was seen next.
    former_id: str | None = None
    node_id: str | None = None
    # When it was first seen READY or usable, and when it last failed for lack of capacity before that.
    success: datetime | None = None
    stockout: datetime | None = None
    # Since when it was being created, and how long until `by` saw it READY; a queued request counts from CREATING.
    begun: datetime | None = None
    took: timedelta | None = None
    has_ended: bool = False

    def is_for(self, accelerator_type: str) -> bool:
        """Return whether it asked for this type."""
        return self.spec is not None and self.spec.accelerator_type == accelerator_type

    def is_of_another(self, node: Node) -> bool:
        """Return whether it made another node. A queued resource may make several, one after another."""
        is_queued = self.spec is not None and self.spec.is_queued
        return bool(node.id and self.node_id and node.id != self.node_id) and not is_queued

    def after(self, at: datetime, entry: Mapping[str, Any]) -> Creation:
        """Return it with what the next entry says, while its outcome is open."""
        event, state, node_id = entry.get("event"), entry.get("state"), entry.get("id")
        is_first = node_id and self.node_id is None and event != "delete" and node_id != self.former_id
        new = replace(self, node_id=node_id) if is_first else self
        if new.success or new.has_ended:
            return new
        if event == "delete":
            return replace(new, has_ended=True)
        is_ready = event == "state" and state == _READY
        is_same = str(entry.get("by")) == new.by and node_id in {None, new.node_id}
        if event in _USABLE or is_ready:
            took = at - new.begun if is_ready and is_same and new.begun and at >= new.begun else None
            return replace(new, success=at, took=took)
        if event == "state" and state == "CREATING":
            return new if new.begun else replace(new, begun=at)
        if event == "state" and state is None and new.node_id:
            return replace(new, begun=None)
        return replace(new, stockout=at) if entry.get("error") == NoCapacityError.kind else new


class ZoneMemory(NamedTuple):
    """When a zone last had a node of some accelerator type and capacity type, and when it last had none."""

    success: datetime | None = None
    stockout: datetime | None = None


def zone_memory(creations: Iterable[Creation], accelerator_type: str, tier: str | None) -> ZoneMemory:
    """Return what these creations say about a type and a tier; None is on-demand."""
    asked = [
        one
        for one in creations
        if one.spec and one.is_for(accelerator_type) and (one.spec.tier or Tier.ON_DEMAND) == (tier or Tier.ON_DEMAND)
    ]
    return ZoneMemory(
        max((one.success for one in asked if one.success), default=None),
        max((one.stockout for one in asked if one.stockout), default=None),
    )


@dataclass(frozen=True, slots=True)
class GuardStart:
    """An attempt to start the guard of a node."""

    at: datetime
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure after the last success. `node_id` is empty if the entry names no node."""

    at: datetime
    text: str
    error: str
    node_id: str


@dataclass(frozen=True, slots=True)
class PastRace:
    """A race of `up --race` in which this zone took part."""

    # When it began, None if the beginning is not in the journal; in which zones and with which spec.
    begun: datetime | None = None
    zones: tuple[str, ...] = ()
    spec: NodeSpec | None = None
    # The zone that won, the creation time of its request, and those of the requests that lost, by zone.
    winner: str | None = None
    created: datetime | None = None
    lost: Mapping[str, datetime | None] = field(default_factory=dict)
    is_over: bool = False
    # When the last request of the race was sent in this zone; None if the journal has none.
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The past of the node of one zone."""

    zone: str = ""
    # The spec of the last creation, or the one recorded before the last deletion, and its time.
    spec: NodeSpec | None = None
    spec_at: datetime | None = None
    creations: tuple[Creation, ...] = ()
    # When a run requested the node, and which node a run began to make usable; None once it was usable, or given up as broken.
    requested: datetime | None = None
    unfinished: tuple[str, datetime] | None = None
    # The node that tpuctl stopped in order to start it again, and has not seen usable since.
    stopped: str | None = None
    # The nodes whose set-up has succeeded.
    setups: frozenset[str] = frozenset()
    # Whether the last thing that tpuctl did with the node was to delete it for good.
    is_ended: bool = False
    # Whether a run deleted the node in order to create it again, and ended before it did.
    is_being_recreated: bool = False
    # Whether tpuctl has requested or seen a node in this zone, and not seen or requested its end since.
    may_have_node: bool = False
    # When the node was usable; the last span may be open.
    usable: tuple[TimeSpan, ...] = ()
    # The steps that count against a budget, with their event.
    repairs: tuple[tuple[datetime, str], ...] = ()
    preemptions: tuple[datetime, ...] = ()
    # How long the node was on its way, by the time of its end.
    times_to_usable: Mapping[datetime, timedelta] = field(default_factory=dict)
    # When tpuctl last started each node.
    starts: Mapping[str, datetime] = field(default_factory=dict)
    guards: Mapping[str, GuardStart] = field(default_factory=dict)
    # The end of the node's time, the node whose guard works, the node of the last entry, and when it was last seen alive.
    ends: datetime | None = None
    guarded: str | None = None
    node_id: str | None = None
    alive_at: datetime | None = None
    # The state of the queued resource, and when it was seen in it.
    request_state: str | None = None
    request_seen: tuple[datetime, ...] = ()
    failures: tuple[Failure, ...] = ()
    # By id, the latest beginning last; and when this zone was last requested in one.
    races: Mapping[str, PastRace] = field(default_factory=dict)
    # Parts of answers: since the last creation, the zone that won, and whether it was given up, deleted, seen.
    winner: str | None = None
    gave_up: bool = False
    is_deleted: bool = False
    is_seen: bool = False
    # Of earlier nodes, those that were created after them.
    passed_ends: tuple[PassedEnd, ...] = ()
    # Since when the node is on its way to usable: since its first creation request, or its start, in any run, up to its
    # usability or deletion. The race that began last.
    way_begun: datetime | None = None
    race_id: str | None = None

    @property
    def created(self) -> Creation | None:
        """The last creation."""
        return self.creations[-1] if self.creations else None

    @property
    def former_spec(self) -> NodeSpec | None:
        """The spec of a node that tpuctl created and has not deleted for good."""
        return None if self.is_ended or self.has_failed_creation else self.spec

    @property
    def queued_spec(self) -> NodeSpec | None:
        """The spec of the last creation if it went through the queue."""
        spec = self.created.spec if self.created else None
        return spec if spec is not None and spec.is_queued else None

    @property
    def has_lost_race(self) -> bool:
        """Whether another zone won the last race for this node, and no node was created in this one since."""
        return self.winner not in {None, self.zone}

    @property
    def has_failed_creation(self) -> bool:
        """Whether the last attempt to create the node failed, for lack of capacity say, and left no node."""
        return self.gave_up and not self.is_seen

    def passed_end(self, now: datetime) -> PassedEnd | None:
        """Return the end of the node's time, None if it has none, or if the node was seen alive long after it."""
        end = self.ends
        alive_at = self.alive_at or end
        if end is None or alive_at is None or end > now or alive_at >= end + _GUARD_DELAY:
            return None
        return PassedEnd(max(end, alive_at), has_guard=self.guarded is not None and self.guarded == self.node_id)

    def made_as(self, node: Node, *, created: datetime | None = None) -> NodeSpec | None:
        """Return the spec that tpuctl created this node with; None if it is not the one of the last creation.

        `created` is the time of the creation of a node that is only requested.
        """
        last, at = self.created, node.created if created is None else created
        if last is None or REQUEST_LABEL not in node.labels or at is None:
            return None
        return last.spec if at >= last.at - _SKEW and not last.is_of_another(node) else None

    def spec_as_it_is(self, node: Node) -> NodeSpec:
        """Return the spec of an existing node, with the set-up of the last creation, which only the journal knows."""
        last = self.created
        setup = last.spec.setup if last and last.spec and not last.is_of_another(node) else None
        spec, made = replace(NodeSpec.from_node(node), setup=setup), self.made_as(node)
        return spec if made is None else spec.completed_from(made, node)

    def setup_to_do(self, node: Node) -> str | None:
        """Return the set-up that has not succeeded yet on a node that tpuctl created; None for any other node."""
        last = self.created
        if last is None or last.spec is None or node.id in self.setups or last.is_of_another(node):
            return None
        return last.spec.setup if node.created is not None and node.created >= last.at - _SKEW else None

    def is_unfinished(self, node_id: str, now: datetime) -> bool:
        """Return whether a run began within an hour to make this node usable, and it was not usable since."""
        return self.unfinished is not None and self.unfinished[0] == node_id and now - self.unfinished[1] < _RECENT

    def is_left(self, node: Node, now: datetime) -> bool:
        """Return whether a run requested or started this node within an hour, and ended before it was usable."""
        if self.is_unfinished(node.id, now):
            return True
        if REQUEST_LABEL not in node.labels or self.requested is None or node.created is None:
            return False
        return now - self.requested < _RECENT and node.created >= self.requested - _SKEW

    def attempts(self, *, refill: timedelta, now: datetime) -> RepairAttempts:
        """Return the repairs since the node was last usable for `refill` without interruption."""
        from tpuctl.nodes.conditions import RepairAttempts  # noqa: PLC0415  # a timeline needs none of the rules

        full = [span.start for span in self.usable if (span.end or now) - span.start >= refill]
        used = [_REPAIRS[event] for at, event in self.repairs if not full or at > full[-1]]
        return RepairAttempts(**{kind: used.count(kind) for kind in _REPAIRS.values()})

    def request_since(self, state: str, *, created: datetime | None) -> datetime | None:
        """Return when tpuctl first saw a queued resource in its present state, None if it did not.

        `created` is the creation of the queued resource: older entries are about another one.
        """
        seen = self.request_seen if self.request_state == state else ()
        return next((at for at in seen if created is None or at >= created), None)

    def after(self, entry: Mapping[str, Any]) -> Past:
        """Return the past with one more entry."""
        return replace(self, **_changes(self, entry))


def past_of(entries: Iterable[Mapping[str, Any]], zone: str = "") -> Past:
    """Fold the entries of a node of this zone, oldest first. A change that its process withdrew does not count."""
    sent: list[Mapping[str, Any]] = []
    for entry in entries:
        if withdrawn := entry.get("unsent"):
            for index in reversed(range(len(sent))):
                if (sent[index].get("event"), sent[index].get("by")) == (withdrawn, entry.get("by")):
                    del sent[index]
                    break
        sent.append(entry)
    past = Past(zone=zone)
    for entry in sent:
        # Not `after`: a copy for each of thousands of entries takes seconds.
        for name, value in _changes(past, entry).items():
            object.__setattr__(past, name, value)
    return past


def _changes(past: Past, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that change with an entry."""
    at, event = parse_timestamp(entry.get("at")), entry.get("event")
    if at is None or event is None or event in JOB_EVENTS:
        return {}
    changes = {**_CONSTANT.get(event, {}), **_usable_after(past, at, event, entry)}
    if past.creations and event != "create":
        *earlier, last = past.creations
        changes["creations"] = (*earlier, last.after(at, entry))
    if spec := _spec(entry):
        changes |= {"spec": spec, "spec_at": at}
    if event in _REPAIRS and entry.get("repair", event != "delete"):
        changes["repairs"] = (*past.repairs, (at, event))
    if node_id := entry.get("id"):
        changes["node_id"] = node_id
        if event in _BEGINNINGS:
            changes["unfinished"] = (node_id, at)
    if event != "state" or entry.get("state"):
        changes["alive_at"] = at
    if event in _SUCCESSES:
        changes["failures"] = ()
    elif error := entry.get("error"):
        text = str(entry.get("text") or entry.get("reason") or error)
        changes["failures"] = (*past.failures, Failure(at, text, error, node_id or ""))
    if event in _COMPUTED:
        changes |= _COMPUTED[event](past, at, entry)
    return changes


# What each event says by itself.
_CONSTANT: Final[Mapping[str, Mapping[str, Any]]] = {
    "create": {
        **dict.fromkeys(("is_ended", "gave_up", "is_deleted", "is_seen"), False),
        **dict.fromkeys(("winner", "ends", "guarded")),
        "may_have_node": True,
    },
    "bringing-up": {"is_ended": False, "is_being_recreated": False, "may_have_node": True},
    "usable": {
        **dict.fromkeys(("is_ended", "is_being_recreated"), False),
        **dict.fromkeys(("stopped", "unfinished", "requested")),
        "may_have_node": True,
    },
    "recovered": {"may_have_node": True},
    "gave-up": {"is_being_recreated": False},
    "delete": {"requested": None, "may_have_node": False, "is_deleted": True, "ends": None, "guarded": None},
}


def _usable_after(past: Past, at: datetime, event: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spans in which the node was usable, and the times until it was."""
    changes: dict[str, Any] = {}
    is_open = bool(past.usable) and past.usable[-1].end is None
    # A health that is not reported proves nothing.
    is_well = entry.get("state") == _READY and entry.get("health") in {None, "", "HEALTHY", "HEALTH_UNSPECIFIED"}
    passed = past.passed_end(at) if event == "create" else None
    if event in _USABLE and not is_open:
        changes["usable"] = (*past.usable, TimeSpan(at))
    elif is_open and (event in _NOT_USABLE or (event == "state" and not is_well)):
        end = passed.at if passed and passed.has_guard else at
        changes["usable"] = (*past.usable[:-1], replace(past.usable[-1], end=end))
    if passed:
        changes["passed_ends"] = (*past.passed_ends, passed)
    if event in _TIMED:
        is_new = event == "create" and (passed or past.has_failed_creation)
        changes["way_begun"] = at if is_new else past.way_begun or at
    elif event in {"usable", "stop", "delete"}:
        changes["way_begun"] = None
    if event == "usable":
        recorded = entry.get("took")
        took = timedelta(seconds=float(recorded)) if recorded is not None else past.way_begun and at - past.way_begun
        if took is not None:
            changes["times_to_usable"] = {**past.times_to_usable, at: took}
    return changes


def _creation(past: Past, at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    spec = _spec(entry)
    creation = Creation(at, spec, str(entry.get("by")), past.node_id, begun=None if spec and spec.is_queued else at)
    # `tpuctl create` gives no reason: it does not wait until the node is usable.
    changes: dict[str, Any] = {"requested": at if entry.get("reason") else None}
    changes["creations"] = (*past.creations, creation)
    if race_id := entry.get("race"):
        changes["races"] = {**past.races, race_id: replace(past.races.get(race_id, PastRace()), sent_at=at)}
    return changes


def _deletion(_past: Past, _at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    reason = str(entry.get("reason"))
    is_final = reason in FINAL_REASONS or reason.startswith("gc: ")
    return {"is_ended": is_final, "is_being_recreated": not is_final}


def _giving_up(past: Past, _at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    # A request that waits at the deadline is not deleted, and may still get a node.
    gave_up = {"gave_up": past.is_deleted or entry.get("error") != "timed_out"}
    # After any other end, such as a timeout, the next run continues with the node.
    return gave_up | ({"unfinished": None, "requested": None} if entry.get("error") == BrokenNodeError.kind else {})


def _start(past: Past, at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    node_id = str(entry.get("id"))
    return {"starts": {**past.starts, node_id: max(at, past.starts.get(node_id, at))}}


def _state(_past: Past, _at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(("may_have_node", "is_seen"), entry.get("state") is not None)


def _request(past: Past, at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    state = entry.get("state")
    return {"request_state": state, "request_seen": (*(past.request_seen if state == past.request_state else ()), at)}


def _guard(past: Past, at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    node_id, ok = str(entry.get("id")), bool(entry.get("ok"))
    guards = {**past.guards, node_id: GuardStart(at, ok, str(entry.get("text")))}
    return {"guards": guards, "guarded": node_id if ok else None, "ends": parse_timestamp(entry.get("until"))}


def _setup(past: Past, _at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nodes that are set up; a script that succeeded replaces the one that failed before."""
    if not entry.get("ok"):
        return {}
    changes: dict[str, Any] = {"setups": past.setups | {str(entry.get("id"))}}
    if (script := entry.get("script")) is not None and past.created and past.created.spec and past.spec:
        created = replace(past.created, spec=replace(past.created.spec, setup=script))
        changes |= {"spec": replace(past.spec, setup=script), "creations": (*past.creations[:-1], created)}
    return changes


def _race(past: Past, at: datetime, entry: Mapping[str, Any]) -> dict[str, Any]:
    race_id, winner = entry.get("race"), entry.get("winner")
    changes: dict[str, Any] = {"winner": winner} if winner else {}
    races = dict(past.races)
    if race_id:
        race = races.pop(race_id, PastRace())
        if zones := entry.get("zones"):
            race = replace(race, begun=at, zones=tuple(zones), spec=_spec(entry))
            changes["race_id"] = race_id
        elif winner:
            lost = entry.get("lost")
            times = lost if isinstance(lost, dict) else {}  # entries of earlier versions have none
            lost_at = {str(zone): parse_timestamp(time) for zone, time in times.items()}
            race = replace(race, winner=winner, created=parse_timestamp(entry.get("created")), lost=lost_at)
        races[race_id] = race
    if entry.get("over"):
        if past.race_id:
            races[past.race_id] = replace(races[past.race_id], is_over=True)
        changes["may_have_node"] = past.may_have_node and past.winner == past.zone
    return changes | {"races": races}


# What the fields of an entry say, by its event.
_COMPUTED: Final[Mapping[str, Callable[[Past, datetime, Mapping[str, Any]], dict[str, Any]]]] = {
    "create": _creation,
    "delete": _deletion,
    "gave-up": _giving_up,
    "restart": lambda _past, _at, entry: {"stopped": entry.get("id")},
    "start": _start,
    "note": lambda _past, _at, entry: {"stopped": None} if entry.get("refused") == "stop" else {},
    "state": _state,
    "preempted": lambda past, at, _entry: {"preemptions": (*past.preemptions, at)},
    "request": _request,
    "guard": _guard,
    # An extension to `never` has no time; the guard reads the new end from the node.
    "extend": lambda _past, _at, entry: {"ends": parse_timestamp(entry.get("until"))},
    "setup": _setup,
    "race": _race,
}


def _spec(entry: Mapping[str, Any]) -> NodeSpec | None:
    """Return the spec in an entry; None without one, or if another version of tpuctl wrote what this one cannot read."""
    try:
        return NodeSpec.from_json(entry["spec"]) if entry.get("spec") else None
    except (TypeError, ValueError, KeyError):
        return None

"""Races through the real client and the sandbox: what is requested, reported, kept and cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.nodes.race_bench import NODE, POLICY, PROJECT, SPEC, ZONES, Killed, RaceBench, name_in
from tests.nodes.simulation.stand_ins import MemoryStore
from tpuctl.clock import Clock
from tpuctl.errors import (
    AccessError,
    ConflictError,
    CredentialsError,
    InvalidInputError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import QueuedState
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import RACE_LABEL, QueueWindow
from tpuctl.names import NodeReference
from tpuctl.nodes.actuator import ActionContext, NoLongerSelectedError
from tpuctl.nodes.deletion import Ended
from tpuctl.nodes.group_lookup import find_group
from tpuctl.nodes.lease import LeaseKeeper, LeaseOwner, LocalLeaseStore
from tpuctl.nodes.lease_guard import DeletedByOtherError, TakenOverError
from tpuctl.nodes.lookup import SearchPlace
from tpuctl.nodes.race import journaled_races, remembered_race, run_race
from tpuctl.nodes.resource_group import ResourceGroup, StillMeant
from tpuctl.nodes.tear_down import tear_down
from tpuctl.sandbox import administration, faults
from tpuctl.sandbox.faults import Fault, FaultKind, store_queued_resource
from tpuctl.sandbox.lifecycle import LifecyclePhase

A, B, C = ZONES[0], ZONES[1], ZONES[2]
WAITING = ("WAITING_FOR_RESOURCES", "")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RaceBench]:
    bench = RaceBench(tmp_path)
    yield bench
    bench.close()


def fault(bench: RaceBench, kind: FaultKind, zone: str, **fields: int | str) -> int:
    with bench.state.write() as session:
        return faults.add_fault(session, replace(Fault(kind), zone=zone, **fields))  # type: ignore[arg-type]  # names of fields


def race(bench: RaceBench, *zones: str, timeout: timedelta = timedelta(hours=1), killed_at: int | None = None) -> str:
    """Race in these zones and return the winner's; the process may be killed at a request."""
    context = bench.context(killed_at=(killed_at, "after") if killed_at else None)
    return run_race(context, bench.names(zones), SPEC, replace(POLICY, timeout=timeout)).zone


def requests(bench: RaceBench) -> list[QueuedResource]:
    """Return the requests of the node that exist, in all zones."""
    listed = bench.context().cloud.list_queued_resources(PROJECT).queued_resources
    return [request for request in listed if request.state is not QueuedState.DELETING]


def down(context: ActionContext, *, wait: bool = True, still_meant: StillMeant | None = None) -> Ended | TpuctlError:
    """Delete the race as `down t` does."""
    group = find_group(context, SearchPlace(PROJECT), NodeReference(NODE))
    assert group is not None
    (result,) = tear_down(context, [group], by="down", timeout=timedelta(hours=1), wait=wait, still_meant=still_meant)
    return result


def test_first_active_zone_wins_and_the_others_are_cancelled_before(bench: RaceBench) -> None:
    bench.active_after = {B: 5 * MINUTE}

    assert race(bench, A, B, C) == B

    assert bench.found() == {B: ("ACTIVE", "READY")}
    created, deleted = bench.changes[:3], bench.changes[3:]
    assert sorted(created) == sorted(("create", zone, "", False) for zone in (A, B, C))
    assert sorted(deleted) == sorted(("delete", zone, WAITING[0], True) for zone in (A, C))
    what = "requesting v6e-8 (v2-alpha-tpuv6e, spot"
    changes = [event.text for event in bench.events if event.kind in {EventKind.ACTION, EventKind.NOTE}]
    first = [line.partition(", about")[0] for line in changes[:3]]
    assert first == [f"{zone}: {what}" for zone in (A, B, C)]
    assert sorted(changes[3:]) == sorted(
        [
            f"{B} wins: its queued resource is ACTIVE after 5m02s; cancelling 2 other requests",
            *(f"{zone}: deleting its queued resource `t` ({B} won the race)" for zone in (A, C)),
            *(f"{zone}: its queued resource `t` is gone" for zone in (A, C)),
        ]
    )


def test_requests_have_the_label_and_the_end_of_the_run(bench: RaceBench) -> None:
    with pytest.raises(Killed):
        race(bench, A, B, timeout=30 * MINUTE, killed_at=8)

    (begun,) = journaled_races(bench.context().journal, bench.names([A, B])).values()
    assert {request.labels[RACE_LABEL] for request in requests(bench)} == {begun.id}
    for request in requests(bench):
        assert request.created is not None
        assert request.valid_until is not None
        assert request.valid_until - request.created <= 30 * MINUTE


def test_journal_has_the_race_before_its_first_request(bench: RaceBench) -> None:
    def first_create(verb: str, zone: str) -> None:
        if verb == "create":
            raise Killed

    bench.before = first_create
    with pytest.raises(Killed):
        race(bench, A, B)

    found = remembered_race(bench.context().journal, bench.names([A]))
    assert found is not None
    assert (found.names, found.spec and found.spec.accelerator_type) == (tuple(bench.names([A, B])), "v6e-8")
    assert found.sent == {name_in(A)}
    assert bench.found() == {}


@pytest.mark.parametrize("killed_at", range(3, 24, 2))
def test_killed_race_is_continued_without_a_second_request(bench: RaceBench, killed_at: int) -> None:
    bench.active_after = {A: timedelta(seconds=20), C: timedelta(seconds=20)}
    with pytest.raises(Killed):
        race(bench, A, B, C, killed_at=killed_at)
    bench.clock.sleep(3 * MINUTE)

    assert race(bench, A, B, C) == A

    assert bench.found() == {A: ("ACTIVE", "READY")}
    assert [change[:2] for change in bench.changes].count(("create", A)) == 1
    assert remembered_race(bench.context().journal, bench.names()) is None


def test_loser_that_becomes_active_meanwhile_is_deleted_with_its_node(bench: RaceBench) -> None:
    bench.active_after = {A: MINUTE}

    def late(verb: str, zone: str) -> None:
        if (verb, zone) == ("delete", B):
            bench.activate(B, timedelta())

    bench.before = late

    assert race(bench, A, B) == A
    assert bench.found() == {A: ("ACTIVE", "READY")}
    assert ("delete", B, "ACTIVE", True) in bench.changes


def test_winner_that_is_suspended_at_once_lets_the_race_go_on(bench: RaceBench) -> None:
    bench.active_after = {A: MINUTE}

    def suspend(verb: str, zone: str) -> None:
        if (verb, zone) == ("delete", B) and bench.state_in(A) == "ACTIVE":
            bench.active_after = {B: MINUTE}
            with bench.state.write() as session:
                node = session.node(PROJECT, A, NODE)
                assert node is not None
                faults.add_fault(session, Fault(FaultKind.PREEMPT, zone=A))

    bench.before = suspend

    assert race(bench, A, B) == B
    assert bench.found() == {B: ("ACTIVE", "READY")}
    assert not [change for change in bench.changes if change[2] == "SUSPENDING"]
    assert any(
        f"{A}: deleting its queued resource `t`: it is SUSPENDED, by the service" in line for line in bench.lines
    )


def test_zone_that_refuses_drops_out_with_a_line(bench: RaceBench) -> None:
    fault(bench, FaultKind.QUOTA, A, count=0)
    bench.active_after = {B: MINUTE}

    assert race(bench, A, B) == B
    assert any(line.startswith(f"{A} drops out: ") for line in bench.lines)


def test_race_without_the_api_of_the_queue_is_a_usage_error(bench: RaceBench) -> None:
    fault(bench, FaultKind.HTTP_ERROR, "*", count=0, status=404, method="*.queuedResources.list")

    with pytest.raises(InvalidInputError, match="the API has no queued resources for project sandbox") as raised:
        race(bench, A, B)

    assert (raised.value.hint, bench.changes) == ("leave out `--race` to try the zones in order", [])


def test_race_while_the_api_does_not_answer_ends_at_its_deadline(bench: RaceBench) -> None:
    fault(bench, FaultKind.HTTP_ERROR, "*", count=0, status=503)

    with pytest.raises(TimedOutError, match="none of 2 zones had a TPU for `t` in time") as raised:
        race(bench, A, B, timeout=2 * MINUTE)

    assert (raised.value.lines[1:], bench.changes) == ((f"  {A} does not answer", f"  {B} does not answer"), [])


def test_race_in_which_all_zones_refuse_has_the_error_of_the_first(bench: RaceBench) -> None:
    fault(bench, FaultKind.QUOTA, A, count=0)
    fault(bench, FaultKind.HTTP_ERROR, B, count=0, status=403, method="*.queuedResources.create")

    with pytest.raises(TpuctlError, match="no zone is left in the race for `t`:") as raised:
        race(bench, A, B)

    assert isinstance(raised.value, QuotaError | AccessError)
    assert [line.split()[0] for line in raised.value.lines[1:]] == [A, B]
    assert bench.found() == {}


def test_failed_request_drops_out_and_its_record_is_deleted_without_force(bench: RaceBench) -> None:
    fault(bench, FaultKind.OPERATION_ERROR, A, method="*.queuedResources.create")
    bench.active_after = {B: 30 * MINUTE}

    def fail(verb: str, zone: str) -> None:
        if bench.state_in(A) == "WAITING_FOR_RESOURCES":
            with bench.state.write() as session:
                record = session.queued_resource(PROJECT, A, NODE)
                assert record is not None
                failed = LifecyclePhase(session.now, "FAILED", initiator="SERVICE")
                error = {"code": 8, "message": "There is no more capacity in the zone"}
                store_queued_resource(session, replace(record, error=error), (*record.timeline, failed))

    bench.before = fail

    assert race(bench, A, B) == B
    assert ("delete", A, "FAILED", False) in bench.changes
    assert [change[:2] for change in bench.changes].count(("create", A)) == 1


def test_deadline_cancels_every_request(bench: RaceBench) -> None:
    with pytest.raises(TimedOutError, match="none of 3 zones had a TPU for `t` in time; every request is cancelled"):
        race(bench, A, B, C, timeout=10 * MINUTE)

    assert bench.found() == {}
    assert bench.clock.monotonic() < 12 * MINUTE
    assert remembered_race(bench.context().journal, bench.names()) is None


@pytest.mark.parametrize("zones", [(A, B, C), ZONES], ids=["listed-one-by-one", "listed-at-once"])
def test_loser_in_a_silent_zone_is_cancelled_when_it_answers_again(bench: RaceBench, zones: tuple[str, ...]) -> None:
    bench.active_after = {A: MINUTE}
    bench.clock.after(timedelta(seconds=30), lambda: answers_again_after(bench, B, 10 * MINUTE))

    assert race(bench, *zones) == A
    assert bench.found() == {A: ("ACTIVE", "READY")}
    assert bench.clock.monotonic() > 10 * MINUTE


def test_loser_that_stays_silent_is_named_with_the_command_that_cancels_it(bench: RaceBench) -> None:
    bench.active_after = {A: MINUTE}
    bench.clock.after(timedelta(seconds=30), lambda: fault(bench, FaultKind.UNREACHABLE, B, count=0))

    with pytest.raises(ServiceUnavailableError, match="1 of the requests for `t` may still get a TPU") as raised:
        race(bench, A, B, timeout=10 * MINUTE)

    assert (raised.value.lines[1:], raised.value.hint) == ((f"  {B} does not answer",), "`tpuctl down t` cancels them")
    assert remembered_race(bench.context().journal, bench.names()) is not None


def test_expired_login_leaves_the_requests_and_names_them(bench: RaceBench) -> None:
    bench.clock.after(5 * MINUTE, lambda: fault(bench, FaultKind.UNAUTHENTICATED, "*", count=0))

    with pytest.raises(CredentialsError) as raised:
        race(bench, A, B)

    assert raised.value.hint is not None
    assert raised.value.hint.splitlines()[-1] == (
        f"the requests for `t` in {A}, {B} still count against the quota, and bill when they get a TPU; "
        "`tpuctl down t` cancels them"
    )
    assert bench.found() == {A: WAITING, B: WAITING}


def test_existing_node_is_taken_and_nothing_is_requested(bench: RaceBench) -> None:
    administration.add_node(bench.state, NODE, zone=B, project=PROJECT, acceleratorType="v6e-8")

    assert race(bench, A, B) == B
    assert bench.changes == []


def test_node_that_was_made_in_a_zone_of_a_killed_race_is_taken(bench: RaceBench) -> None:
    with pytest.raises(Killed):
        race(bench, A, B, C, killed_at=12)
    other = bench.context()
    (request,) = (request for request in requests(bench) if request.zone == B)
    other.cloud.delete_queued_resource(request.name, lambda *_: None, force=True)
    bench.clock.sleep(5 * MINUTE)
    administration.add_node(bench.state, NODE, zone=B, project=PROJECT, acceleratorType="v6e-8")

    assert race(bench, A, B, C) == B
    assert sorted(bench.found()) == [B]


def test_winner_of_an_earlier_race_is_kept(bench: RaceBench) -> None:
    bench.active_after = {B: MINUTE}
    race(bench, A, B)
    bench.changes.clear()

    assert race(bench, A, B, C) == B
    assert bench.changes == []


def test_node_of_another_race_in_another_zone_is_left_alone(bench: RaceBench) -> None:
    bench.active_after = {B: MINUTE}
    race(bench, A, B)
    bench.changes.clear()

    with pytest.raises(ConflictError, match="`t` is requested by another race already, in us-east1-d"):
        race(bench, A, C)
    assert bench.changes == []


def answers_again_after(bench: RaceBench, zone: str, duration: timedelta) -> None:
    """Let a zone be silent from now on, for this time."""
    number = fault(bench, FaultKind.UNREACHABLE, zone, count=0)

    def answer_again() -> None:
        with bench.state.write() as session:
            faults.remove_fault(session, number)

    bench.clock.after(duration, answer_again)


def test_zone_that_has_the_node_must_answer_before_another_is_asked(bench: RaceBench) -> None:
    bench.active_after = {B: MINUTE, A: 10 * MINUTE}
    race(bench, B, C)
    bench.changes.clear()
    answers_again_after(bench, B, 5 * MINUTE)

    assert race(bench, A, B) == B
    assert bench.changes == []


def test_node_that_the_journal_lacks_and_that_answers_late_is_taken(bench: RaceBench) -> None:
    """It may be in use: only requests of this race are cancelled."""
    bench.active_after = {B: MINUTE, A: 10 * MINUTE}
    race(bench, B, C)
    bench.changes.clear()
    bench.store = MemoryStore()
    answers_again_after(bench, B, 5 * MINUTE)

    assert race(bench, A, B) == B
    assert [change[:2] for change in bench.changes] == [("create", A), ("delete", A)]
    assert bench.found() == {B: ("ACTIVE", "READY")}


def test_two_races_for_the_node_are_a_conflict(bench: RaceBench) -> None:
    for zone in (A, C):
        spec = replace(SPEC, labels={RACE_LABEL: f"from-{zone}"})
        bench.context().cloud.create_queued_resource(name_in(zone), spec, _window(bench.clock))
    bench.changes.clear()

    with pytest.raises(ConflictError, match="`t` is requested by another race already, in ") as raised:
        race(bench, A, B, C)
    assert (A in raised.value.message, C in raised.value.message, bench.changes) == (True, True, [])


def test_down_without_waiting_names_what_it_could_not_cancel(bench: RaceBench) -> None:
    with pytest.raises(Killed):
        race(bench, A, B, killed_at=8)
    fault(bench, FaultKind.UNREACHABLE, B, count=0)

    result = down(bench.context(), wait=False)

    assert isinstance(result, ServiceUnavailableError)
    assert result.lines == ("1 of the requests for `t` may still get a TPU that bills:", f"  {B} does not answer")
    assert [change[:2] for change in bench.changes[2:]] == [("delete", A)]


def test_race_of_the_journal_without_requests_gives_way_to_another(bench: RaceBench) -> None:
    """Its requests were deleted, and another machine has raced meanwhile."""
    with pytest.raises(Killed):
        race(bench, A, B, killed_at=8)
    other = bench.context()
    for request in requests(bench):
        other.cloud.delete_queued_resource(request.name, lambda *_: None, force=True)
    bench.clock.sleep(5 * MINUTE)
    bench.active_after = {B: MINUTE}
    spec = replace(SPEC, labels={RACE_LABEL: "another"})
    other.cloud.create_queued_resource(name_in(B), spec, _window(bench.clock))
    bench.clock.sleep(5 * MINUTE)
    bench.changes.clear()

    assert race(bench, A, B) == B
    assert bench.changes == []


def test_request_that_is_no_part_of_the_race_is_left_alone(bench: RaceBench) -> None:
    context = bench.context()
    context.cloud.create_queued_resource(name_in(A), SPEC, _window(bench.clock))
    bench.changes.clear()

    with pytest.raises(ConflictError, match=f"`t` is requested in {A} already: the queued resource `t` is") as raised:
        race(bench, A, B)

    assert (raised.value.hint, bench.changes) == (f"`tpuctl down {A}/t` cancels it", [])


def test_label_that_another_client_copied_meanwhile_deletes_nothing(bench: RaceBench) -> None:
    """It was quicker in B: the creation that the journal has of that zone was refused."""
    other, copied = bench.context(), list[str]()

    def copy(verb: str, zone: str) -> None:
        if (verb, zone) == ("create", B) and not copied:
            (begun,) = journaled_races(other.journal, bench.names([A])).values()
            copied.append(begun.id)
            spec = replace(SPEC, labels={RACE_LABEL: begun.id})
            other.cloud.create_queued_resource(name_in(B), spec, _window(bench.clock))

    bench.before, bench.active_after = copy, {A: 5 * MINUTE}

    assert race(bench, A, B) == A
    assert [change[0] for change in bench.changes].count("delete") == 0
    assert bench.found() == {A: ("ACTIVE", "READY"), B: WAITING}
    refusal = f"`t` is requested in {B} already: the queued resource `t` is"
    assert any(line.startswith(f"{B} drops out: {refusal}") for line in bench.lines)


@pytest.mark.parametrize("zones", [(A, B), (A,)])
def test_race_that_the_journal_lacks_is_named_and_left_alone(bench: RaceBench, zones: tuple[str, ...]) -> None:
    with pytest.raises(Killed):
        race(bench, *zones, killed_at=8)
    bench.store = MemoryStore()
    bench.changes.clear()

    with pytest.raises(ConflictError, match="`t` is requested by another race already, in ") as raised:
        race(bench, A, B, C)

    assert all(f"{zone} (" in raised.value.message for zone in zones)
    assert (raised.value.hint, bench.changes) == (
        "name its zone to keep one, or cancel all with `tpuctl down t`",
        [],
    )


def test_older_of_two_active_requests_wins_after_a_kill(bench: RaceBench) -> None:
    """Both became ACTIVE after the kill, of which the zone that is preferred now was asked later."""

    def ask_later(verb: str, zone: str) -> None:
        if (verb, zone) == ("create", B):
            bench.clock.sleep(MINUTE)

    bench.before, bench.active_after = ask_later, {B: 3 * MINUTE, C: 3 * MINUTE}
    with pytest.raises(Killed):
        race(bench, C, B, killed_at=8)
    bench.clock.sleep(5 * MINUTE)
    assert bench.found() == {B: ("ACTIVE", "READY"), C: ("ACTIVE", "READY")}

    assert race(bench, B, C) == C
    assert bench.found() == {C: ("ACTIVE", "READY")}


def test_down_leaves_a_race_at_once_of_which_a_request_is_no_longer_meant(bench: RaceBench) -> None:
    with pytest.raises(Killed):
        race(bench, A, B, killed_at=8)
    began = bench.clock.monotonic()

    def judge(group: ResourceGroup) -> None:
        if group.request is not None and group.request.zone == B:
            raise NoLongerSelectedError(NODE, "is in use")

    result = down(bench.context(), still_meant=judge)

    assert isinstance(result, NoLongerSelectedError)
    assert ({*bench.found()}, bench.clock.monotonic() - began < 5 * MINUTE) == ({A, B}, True)


def test_race_for_another_spec_is_not_replaced_unasked(bench: RaceBench) -> None:
    with pytest.raises(Killed):
        race(bench, A, B, killed_at=8)
    bench.changes.clear()
    other = replace(SPEC, accelerator_type="v6e-4")

    with pytest.raises(ConflictError, match="differs from the requested spec:"):
        run_race(bench.context(), bench.names([A, B]), other, POLICY)
    assert bench.changes == []

    bench.active_after = {A: MINUTE}
    winner = run_race(bench.context(), bench.names([A, B]), other, replace(POLICY, replace=True))
    assert {request.zone: request.accelerator_type for request in requests(bench)} == {winner.zone: "v6e-4"}


def test_request_deleted_by_another_client_is_not_sent_again(bench: RaceBench) -> None:
    other = bench.context()

    def delete() -> None:
        for zone in (A, B):
            other.cloud.delete_queued_resource(
                f"projects/{PROJECT}/locations/{zone}/queuedResources/t", lambda *_: None, force=True
            )

    bench.clock.after(MINUTE, delete)

    with pytest.raises(NotFoundError, match="no zone is left in the race") as raised:
        race(bench, A, B)

    assert f"the queued resource `t` in {A} was deleted by another client" in raised.value.lines[1]
    assert [change[0] for change in bench.changes].count("create") == 2


def _keeper(folder: Path, clock: Clock, name: str) -> LeaseKeeper:
    return LeaseKeeper(LocalLeaseStore(folder, clock), clock, LeaseOwner(name, 1, name))


def test_second_race_for_the_node_is_refused_while_the_first_runs(bench: RaceBench, tmp_path: Path) -> None:
    first = _keeper(tmp_path / "leases", bench.clock, "first")
    assert first.acquire(name_in(B), "up") is None

    with pytest.raises(ConflictError, match=f"`t` in {B} is in use by up on first pid 1"):
        run_race(
            bench.context(leases=_keeper(tmp_path / "leases", bench.clock, "second")),
            bench.names([A, B]),
            SPEC,
            POLICY,
        )
    assert bench.changes == []


def test_loser_whose_lease_another_client_took_is_left_alone(bench: RaceBench, tmp_path: Path) -> None:
    bench.active_after = {B: MINUTE}
    folder = tmp_path / "leases"
    first, second = (_keeper(folder, bench.clock, name) for name in ("first", "second"))

    def take(event: NodeEvent) -> None:
        if " wins: " in event.text:
            second.acquire(name_in(A), "watch", force_lease=True)

    with pytest.raises(TakenOverError, match="`t` was taken over by watch on second"):
        run_race(replace(bench.context(leases=first), emit=take), bench.names([A, B]), SPEC, POLICY)

    assert [change[0] for change in bench.changes].count("delete") == 0


def test_loser_that_another_client_requested_again_is_left_alone(bench: RaceBench) -> None:
    bench.active_after = {B: MINUTE}

    def request_again(event: NodeEvent) -> None:
        if " wins: " in event.text:
            other = bench.context()
            name = f"projects/{PROJECT}/locations/{A}/queuedResources/t"
            other.cloud.delete_queued_resource(name, lambda *_: None, force=True)
            bench.clock.sleep(5 * MINUTE)
            other.cloud.create_queued_resource(name_in(A), SPEC, _window(bench.clock))

    winner = run_race(replace(bench.context(), emit=request_again), bench.names([A, B]), SPEC, POLICY)

    assert (winner.zone, {*bench.found()}) == (B, {A, B})
    assert [change[:2] for change in bench.changes].count(("delete", A)) == 1


def test_down_ends_a_race_that_another_process_runs(bench: RaceBench, tmp_path: Path) -> None:
    """The race loses its leases, and sends nothing after that."""
    second = bench.context(leases=_keeper(tmp_path / "leases", bench.clock, "second"))

    bench.clock.after(5 * MINUTE, lambda: down(second))

    with pytest.raises(DeletedByOtherError, match="`down` ended `t`"):
        run_race(
            bench.context(leases=_keeper(tmp_path / "leases", bench.clock, "first")), bench.names([A, B]), SPEC, POLICY
        )

    assert bench.found() == {}
    assert [change[0] for change in bench.changes] == ["create", "create", "delete", "delete"]


def _window(clock: Clock) -> QueueWindow:
    return QueueWindow(now=clock.now(), valid_until=timedelta(hours=1))

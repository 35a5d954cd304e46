"""What `decide` never does, in any state."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nodes.readiness_cases import AT_NOW, DIFFERENT, NAME, NOW, WAIT, node
from tpuctl.errors import AccessError, NoCapacityError, ServiceUnavailableError, TpuctlError
from tpuctl.models.node import Health, NodeState, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.conditions import (
    ApiOutage,
    Condition,
    Create,
    Delete,
    Done,
    Fail,
    FailedChange,
    ObservedState,
    Policy,
    PollState,
    Reboot,
    Repair,
    RepairAttempts,
    Requeue,
    Restart,
    SshAnswer,
    Start,
    StartupState,
    Thresholds,
    Verb,
    WorkerSnapshot,
    worker_matrix,
)
from tpuctl.nodes.decide import decide

_ACTS = (Create, Start, Restart, Reboot, Delete)
_durations = st.timedeltas(min_value=timedelta(), max_value=timedelta(hours=3))
_maybe = st.none() | _durations
_instants = _durations.map(lambda lasted: -lasted)  # now is 0
_errors = st.sampled_from([AccessError("no"), NoCapacityError("full"), ServiceUnavailableError("13"), TpuctlError("?")])
_few = st.integers(0, 3)
_ONGOING = {"maintenanceStatus": "ONGOING"}
_nodes = st.builds(
    node,
    st.sampled_from(["READY"] * 12 + [*map(str, NodeState), "BRAND_NEW"]),
    health=st.sampled_from([*map(str, Health), "BRAND_NEW", None]),
    acceleratorType=st.sampled_from(["v4-8", "v4-16", "v9-4"]),
    schedulingConfig=st.sampled_from([{}, {str(Tier.SPOT): True}]),
    queuedResource=st.sampled_from([None, None, "projects/p/locations/z/queuedResources/q1"]),
    upcomingMaintenance=st.sampled_from([None, None, _ONGOING]),
    id=st.sampled_from(["7", "8"]),
)
_policies = st.builds(
    Policy,
    goal=st.sampled_from(Condition),
    may_create=st.booleans(),
    may_start=st.booleans(),
    replace=st.booleans(),
    ignores_use=st.booleans(),
    retries_without_capacity=st.booleans(),
    recreate_deleted=st.booleans(),
    probe=st.sampled_from([None, "true"]),
    repair=st.sampled_from(Repair),
    max_reboots=_few,
    max_restarts=_few,
    max_recreates=_few,
    internal_retries=_few,
    backoff=_durations,
    longest_backoff=_durations,
    timeout=_maybe,
    thresholds=st.sampled_from([Thresholds(), Thresholds(unhealthy=timedelta(), unanswered=timedelta())]),
)
_workers = st.builds(
    WorkerSnapshot,
    answer=st.sampled_from([SshAnswer.YES, *SshAnswer]),
    startup=st.none() | st.sampled_from(StartupState),
    chips=st.sampled_from([None, 0, 3, 4]),
    failed=st.sampled_from([None, "exit 3"]),
    holders=st.sampled_from([(), (), ("1234 python3",)]),
)
_requests = st.sampled_from(["ACTIVE", "SUSPENDED", "BRAND_NEW"]).map(
    lambda state: QueuedResource("a/b/c/d/e/q1", {"state": {"state": state, "stateInitiator": "SERVICE"}})
)
_seen = st.builds(
    ObservedState,
    name=st.just(NAME),
    node=st.none() | _nodes | _nodes | _nodes,
    request=st.none() | _requests,
    differences=st.sampled_from([(), (), DIFFERENT]),
    unchanged_since=_instants,
    started=_instants,
    workers=st.lists(_workers, max_size=2).map(tuple),
    is_ours=st.booleans(),
    attempts=st.builds(RepairAttempts, _few, _few, _few),
    repaired_at=st.none() | _instants,
    was_there=st.booleans(),
    has_vanished=st.booleans(),
    last_alive=st.sampled_from([None, NOW]),
    refused_stop=st.sampled_from([None, None, "no"]),
    pending=st.none() | st.none() | st.sampled_from(Verb),
    failure=st.none()
    | st.none()
    | st.builds(
        FailedChange, st.sampled_from(Verb), _errors, _instants, st.integers(1, 5), st.sampled_from([None, "7"])
    ),
    held_by=st.sampled_from([None, None, "ann"]),
    outage=st.none() | st.none() | st.builds(ApiOutage, _instants, st.integers(1, 99), _errors),
    poll_state=st.builds(
        PollState,
        usual=st.none() | _durations,
        acted_at=st.none() | _instants,
        throttled=st.integers(0, 99),
        jitter=st.floats(0, 1, exclude_max=True),
    ),
)


@settings(max_examples=450, deadline=None)
@given(_policies, _seen)
def test_decisions_on_any_state_keep_the_limits(policy: Policy, seen: ObservedState) -> None:
    decision = decide(policy, seen, AT_NOW)
    there = seen.node

    if policy.timeout is not None and -seen.started >= policy.timeout:
        assert isinstance(decision, Done | Fail)
    if seen.outage:
        assert isinstance(decision, Requeue | Fail)
    if seen.held_by or (there is not None and not there.state.is_known) or not policy.goal.is_usable:
        assert not isinstance(decision, _ACTS)
    if there is None:
        assert not isinstance(decision, (Start, Restart, Reboot, Delete))
    if isinstance(decision, Create):
        assert (there, policy.may_create) == (None, True)
        assert policy.recreate_deleted or not seen.has_vanished
    if isinstance(decision, Requeue):
        assert timedelta() < decision.delay <= timedelta(seconds=15)
        assert policy.timeout is None or -seen.started + decision.delay <= policy.timeout
        assert decision.next is None or decision.next.after > timedelta()


@settings(max_examples=450, deadline=None)
@given(_policies, _seen)
def test_repairs_on_any_state_keep_the_budget_and_interrupt_no_work(policy: Policy, seen: ObservedState) -> None:
    seen = replace(seen, outage=None, held_by=None, started=timedelta())
    decision, there, tried = decide(policy, seen, AT_NOW), seen.node, seen.attempts
    is_recreation = isinstance(decision, Delete) and decision.is_repair and not seen.differences

    if isinstance(decision, Delete):
        assert there is not None
        assert decision.node_id == there.id
        assert there.queued_resource is None or (seen.failure and seen.failure.node_id == there.id)
        assert there.state is not NodeState.CREATING or (seen.failure and seen.failure.node_id == there.id)
        assert policy.may_create or policy.replace
    if isinstance(decision, Reboot):
        assert tried.reboots < policy.max_reboots
        assert policy.repair.allows(Repair.REBOOT)
        assert {worker.answer for worker in seen.workers} == {SshAnswer.YES}
    if isinstance(decision, Restart):
        assert there is not None
        assert (there.why_not_restartable(), seen.refused_stop) == (None, None)
        assert tried.restarts < policy.max_restarts
        assert policy.repair.allows(Repair.RESTART)
    if is_recreation:
        assert tried.recreates < policy.max_recreates
        assert policy.repair is Repair.RECREATE
        assert policy.ignores_use or all(worker.answer is not SshAnswer.YES for worker in seen.workers)
    if there is not None and (isinstance(decision, Reboot | Restart) or is_recreation):
        is_left_alone = any(worker.holders for worker in seen.workers) or there.upcoming_maintenance is not None
        assert policy.ignores_use or not is_left_alone
        assert there.health.is_known or there.state is not NodeState.READY
        assert there.health is not Health.UNHEALTHY_MAINTENANCE or there.state is not NodeState.READY


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(Condition), _seen)
def test_wait_on_any_state_changes_nothing(goal: Condition, seen: ObservedState) -> None:
    assert isinstance(decide(replace(WAIT, goal=goal, timeout=None), seen, AT_NOW), (Done, Fail, Requeue))


@settings(max_examples=120, deadline=None)
@given(_policies, _seen)
def test_worker_matrix_of_any_state_is_valid(policy: Policy, seen: ObservedState) -> None:
    assert len(worker_matrix(policy, seen)) in {0, len(seen.workers)}

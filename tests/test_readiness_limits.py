"""What `decide` never does, whatever is seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tpuctl.model import Health, NodeState, Tier
from tpuctl.readiness import (
    Answer,
    Create,
    Delete,
    GiveUp,
    Goal,
    Policy,
    Reached,
    Reboot,
    Repair,
    Restart,
    Seen,
    Start,
    Verb,
    Wait,
    decide,
)

from .readiness_cases import (
    DIFFERENT,
    NAME,
    WAIT,
    node,
)

_durations = st.timedeltas(min_value=timedelta(), max_value=timedelta(hours=3))
_nodes = st.builds(
    node,
    st.sampled_from([*map(str, NodeState), "BRAND_NEW"]),
    health=st.sampled_from([*map(str, Health), "BRAND_NEW", None]),
    acceleratorType=st.sampled_from(["v4-8", "v4-16", "v9-4"]),
    schedulingConfig=st.sampled_from([{}, {str(Tier.SPOT): True}]),
    queuedResource=st.sampled_from([None, "projects/p/locations/z/queuedResources/q1"]),
    id=st.sampled_from(["7", "8"]),
)
_policies = st.builds(
    Policy,
    goal=st.sampled_from(Goal),
    may_create=st.booleans(),
    may_start=st.booleans(),
    replace=st.booleans(),
    forced=st.booleans(),
    repair=st.sampled_from(Repair),
    max_restarts=st.integers(0, 3),
    max_recreates=st.integers(0, 3),
    timeout=st.none() | _durations,
)
_seen = st.builds(
    Seen,
    name=st.just(NAME),
    node=st.none() | _nodes,
    differences=st.sampled_from([(), DIFFERENT]),
    in_state=_durations,
    waited=_durations,
    answers=st.lists(st.sampled_from(Answer), max_size=2).map(tuple),
    is_ours=st.booleans(),
    restarts=st.integers(0, 4),
    recreates=st.integers(0, 4),
    refused_stop=st.sampled_from([None, "no"]),
    has_vanished=st.booleans(),
    pending=st.none() | st.sampled_from(Verb),
)


@settings(max_examples=700, deadline=None)
@given(_policies, _seen)
def test_whatever_is_seen_the_limits_are_kept(policy: Policy, seen: Seen) -> None:
    decision = decide(policy, seen)
    acts = isinstance(decision, (Create, Start, Restart, Reboot, Delete))
    there = seen.node

    if isinstance(decision, Delete):
        assert there is not None
        assert decision.node_id == there.id
        assert there.state is not NodeState.CREATING
        assert there.state.is_dead or policy.may_create or policy.replace
    if policy.repair is Repair.NONE and not seen.differences and there is not None and not there.state.is_dead:
        assert not isinstance(decision, (Delete, Restart, Reboot))
    if there is not None and not there.state.is_known:
        assert not acts
    if isinstance(decision, (Restart, Reboot)):
        assert seen.restarts < policy.max_restarts
    if isinstance(decision, Restart):
        assert there is not None
        assert there.why_not_restartable() is None
    if isinstance(decision, Create):
        assert (there, policy.may_create, seen.has_vanished) == (None, True, False)
    if isinstance(decision, Wait):
        assert timedelta() < decision.delay <= timedelta(seconds=15)
        assert policy.timeout is None or seen.waited + decision.delay <= policy.timeout


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(Goal), _seen)
def test_wait_only_waits(goal: Goal, seen: Seen) -> None:
    seen = replace(seen, waited=timedelta(hours=3))

    assert isinstance(decide(replace(WAIT, goal=goal), seen), (Reached, GiveUp))
    assert isinstance(decide(replace(WAIT, goal=goal, timeout=None), seen), (Reached, GiveUp, Wait))

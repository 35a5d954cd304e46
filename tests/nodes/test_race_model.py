"""Random races with the real client: killed at any request, with lost answers, silent zones, late and simultaneous winners.

The oracle knows only the sandbox: after the next `up` there is one usable node and no other request, after `down` nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.nodes.race_bench import NODE, POLICY, PROJECT, SPEC, Killed, RaceBench
from tpuctl.errors import ServiceUnavailableError, TpuctlError
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.actuator import ActionContext
from tpuctl.nodes.controller import reconcile_node
from tpuctl.nodes.group_lookup import find_group
from tpuctl.nodes.lookup import SearchPlace
from tpuctl.nodes.race import run_race
from tpuctl.nodes.tear_down import tear_down
from tpuctl.sandbox import faults
from tpuctl.sandbox.faults import Fault, FaultKind

ZONES = ("us-east5-b", "us-east1-d", "asia-northeast1-b")
TIMEOUT = timedelta(minutes=20)


@dataclass(frozen=True)
class Plan:
    """The fate of a race. `kills` are numbers of requests, and whether the request is still carried out."""

    active_after: tuple[int | None, ...]
    refusing: frozenset[str]
    lost_answers: tuple[tuple[str, str], ...]
    silent: tuple[tuple[str, int], ...]
    late: frozenset[str]
    kills: tuple[tuple[int, str], ...]
    kills_of_down: tuple[tuple[int, str], ...]


SECONDS = st.sampled_from([None, 5, 61, 61, 62, 75, 300])
KILLS = st.tuples(st.integers(1, 40), st.sampled_from(["before", "after"]))
PLANS = st.builds(
    Plan,
    active_after=st.tuples(SECONDS, SECONDS, SECONDS),
    refusing=st.frozensets(st.sampled_from(ZONES), max_size=1),
    lost_answers=st.lists(
        st.tuples(st.sampled_from(ZONES), st.sampled_from(["create", "delete", "get"])), max_size=2
    ).map(tuple),
    silent=st.lists(st.tuples(st.sampled_from(ZONES), st.sampled_from([0, 30, 60])), max_size=1).map(tuple),
    late=st.frozensets(st.sampled_from(ZONES), max_size=2),
    kills=st.lists(KILLS, max_size=3).map(tuple),
    kills_of_down=st.lists(KILLS.map(lambda kill: (kill[0] % 12 + 1, kill[1])), max_size=1).map(tuple),
)


def prepare(bench: RaceBench, plan: Plan) -> None:
    """Set the faults of a plan."""

    def add(kind: FaultKind, **fields: object) -> int:
        with bench.state.write() as session:
            return faults.add_fault(session, replace(Fault(kind), **fields))  # type: ignore[arg-type]  # names of fields

    def remove(number: int) -> None:
        with bench.state.write() as session:
            faults.remove_fault(session, number)

    for zone in plan.refusing:
        add(FaultKind.QUOTA, zone=zone, count=0)
    for zone, method in plan.lost_answers:
        add(FaultKind.DROP_AFTER, zone=zone, method=f"*.queuedResources.{method}")

    def fall_silent(zone: str) -> None:
        number = add(FaultKind.UNREACHABLE, zone=zone, count=0)
        bench.clock.after(timedelta(minutes=3), partial(remove, number))

    for zone, second in plan.silent:
        bench.clock.after(timedelta(seconds=second), partial(fall_silent, zone))

    def comes_true(verb: str, zone: str) -> None:
        if verb == "delete" and zone in plan.late and bench.state_in(zone) in {"WAITING_FOR_RESOURCES", "PROVISIONING"}:
            bench.activate(zone, timedelta())

    bench.before = comes_true


def until_not_killed(bench: RaceBench, kills: tuple[tuple[int, str], ...], act: Callable[..., None]) -> None:
    """Run a command as often as it is killed, and once more."""
    for kill in (*kills, None):
        try:
            act(bench.context(killed_at=kill))
        except Killed:
            bench.clock.sleep(timedelta(seconds=20))
        else:
            return


@settings(max_examples=25, deadline=None)
@given(PLANS)
@example(
    Plan(
        active_after=(5, None, 5),
        refusing=frozenset(),
        lost_answers=(),
        silent=((ZONES[0], 30),),
        late=frozenset(),
        kills=((4, "after"), (27, "before")),
        kills_of_down=(),
    )
)
def test_race_leaves_one_usable_node_and_down_leaves_nothing(plan: Plan) -> None:
    with tempfile.TemporaryDirectory(prefix="tpuctl-race-", dir="/dev/shm") as folder:
        after = {
            zone: timedelta(seconds=second) for zone, second in zip(ZONES, plan.active_after, strict=True) if second
        }
        bench = RaceBench(Path(folder), after)
        try:
            race_and_judge(bench, plan)
        finally:
            bench.close()


def race_and_judge(bench: RaceBench, plan: Plan) -> None:
    prepare(bench, plan)
    names, policy = bench.names(ZONES), replace(POLICY, timeout=TIMEOUT)
    winners: list[NodeName] = []

    def up(context: ActionContext) -> None:
        winner = run_race(context, names, SPEC, policy)
        reconcile_node(context, winner, policy, spec=SPEC, purpose="up")
        winners.append(winner)

    def down(context: ActionContext) -> None:
        """Delete the node as `down NODE` does, and again while a zone does not answer."""
        place = SearchPlace(PROJECT)
        while True:
            try:
                group = find_group(context, place, NodeReference(NODE))
            except ServiceUnavailableError:
                bench.clock.sleep(timedelta(minutes=1))
                continue
            results = tear_down(context, [group] if group else [], by="down", timeout=TIMEOUT)
            if not any(isinstance(result, ServiceUnavailableError) for result in results):
                return

    error: TpuctlError | None = None
    try:
        until_not_killed(bench, plan.kills, up)
    except TpuctlError as raised:
        error = raised
    left = bench.found()
    if error is None:
        assert left == {winners[0].zone: ("ACTIVE", "READY")}
    else:
        assert left == {}
        assert not isinstance(error, ServiceUnavailableError), error
        assert not {zone for zone, second in zip(ZONES, plan.active_after, strict=True) if second} - plan.refusing

    until_not_killed(bench, plan.kills_of_down, down)
    assert bench.found() == {}
    assert [
        change for change in bench.changes if change[0] == "delete" and change[2] == "SUSPENDING" and change[3]
    ] == []
    for zone in ZONES:
        verbs = [verb for verb, where, *_ in bench.changes if where == zone]
        assert "create create" not in " ".join(verbs)

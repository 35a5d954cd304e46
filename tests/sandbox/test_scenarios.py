"""Scenarios: each step happens at its time without a running process, in order, and is logged."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.sandbox.administration import read_status
from tpuctl.sandbox.api_calls import Request
from tpuctl.sandbox.embedding import Sandbox
from tpuctl.sandbox.faults import Fault, FaultKind, describe_fault
from tpuctl.sandbox.request_log import FULL_SIZE, follow_log, log_call, log_path, read_log
from tpuctl.sandbox.scenarios import play_scenario, read_scenario
from tpuctl.sandbox.seeding import SeedError
from tpuctl.sandbox.service import answer_request

if TYPE_CHECKING:
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "scenarios").glob("*.yaml"))
WRITTEN = "write it like 90s, 30m, 2h or 1h30m"
MINUTE = timedelta(minutes=1)
NIGHT = """
description: a night
steps:
  - at: 30m
    stockout: {zone: us-central2-b}
  - at: 10m
    preempt: trainer
  - seed: {nodes: [{name: trainer, zone: us-central2-b, schedulingConfig: {spot: true}}]}
  - at: 20m
    fault: http-error
    status: 500
    times: 0
  - at: 40m
    remove-fault: http-error
  - at: 50m
    end-stockouts:
"""


def log(sandbox_state: SandboxState) -> list[tuple[str, str, str, int]]:
    """Return the log as (time of day, method, path, status)."""
    found = read_log(sandbox_state.path)
    return [(f"{entry.at:%H:%M}", entry.method, entry.path, entry.status) for entry in found]


def test_scenario_without_requests_happens_at_its_times(
    sandbox_state: SandboxState, api: Any, clock: ManualClock
) -> None:
    scenario = read_scenario(NIGHT, "night.yaml")
    play_scenario(sandbox_state, scenario)
    before = api.state("trainer")

    clock.sleep(60 * MINUTE)

    with sandbox_state.read() as session:
        node = session.node("sandbox", "us-central2-b", "trainer")
    assert before == "READY"
    assert node is not None
    assert [(f"{phase.at:%H:%M}", phase.state) for phase in node.timeline][-1] == ("00:10", "PREEMPTED")
    assert read_status(sandbox_state).faults == ()
    assert log(sandbox_state) == [
        ("00:00", "EVENT", "added: nodes trainer", 0),
        ("00:10", "EVENT", "trainer is preempted, once", 0),
        ("00:20", "EVENT", "the next call is answered with 500, until it is removed", 0),
        ("00:30", "EVENT", "no capacity (us-central2-b)", 0),
        ("00:40", "EVENT", "faults of kind http-error are removed", 0),
        ("00:50", "EVENT", "all stock-outs end", 0),
    ]


def test_step_takes_effect_for_readers_at_its_time(sandbox_state: SandboxState, clock: ManualClock) -> None:
    play_scenario(
        sandbox_state, read_scenario("steps: [{at: 10m, fault: http-error, status: 500, times: 1}]", "s.yaml")
    )
    request = Request("GET", "/v2/projects/sandbox/locations/us-central2-b/nodes", headers={"user-agent": "curl/8 (x)"})
    statuses = []
    for _ in range(3):
        answer = answer_request(sandbox_state, request)
        statuses.append(getattr(answer, "status", 0))
        clock.sleep(6 * MINUTE)

    assert statuses == [200, 200, 500]
    assert [(method, status) for _, method, _, status in log(sandbox_state)] == [
        ("GET", 200), ("GET", 200), ("EVENT", 0), ("GET", 500),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint", "hint"),
    [
        ("steps:\n- at: 1m\n  preemt: a", "s.yaml line 3: unknown key `preemt`", "did you mean `preempt`?"),
        ("steps:\n- at: 1m\n  fault: preemt", "s.yaml line 3: unknown fault kind `preemt`", "did you mean `preempt`?"),
        ("steps:\n- at: 1m\n  fault: hang\n  stat: X", "s.yaml line 4: unknown key `stat`", "did you mean `state`?"),
        ("steps:\n- at: tonight\n  preempt: a", "s.yaml line 2: `at`: `tonight` is not a duration; " + WRITTEN, None),
        ("steps:\n- seed:\n    nodes: [{nam: a}]", "s.yaml line 3: unknown key `nam`", "did you mean `name`?"),
        ("steps:\n- at: 1m\n  stock: {zone: a}", "s.yaml line 3: `nodes` is missing", None),
        ("steps:\n- at: 1m\n  stock: [{nodes: 1}, {node: 2}]", "s.yaml line 3: unknown key `node`", "did you mean `nodes`?"),
        ("step: []", "s.yaml line 1: expected `steps:` with a list, each such as `- at: 10m`", None),
    ],
)  # fmt: skip
def test_invalid_scenario_is_an_error_with_its_line(text: str, complaint: str, hint: str | None) -> None:
    with pytest.raises(SeedError) as caught:
        read_scenario(text, "s.yaml")

    assert (caught.value.message, caught.value.hint) == (complaint, hint)


def test_scenario_with_a_rejected_step_plans_no_event(sandbox_state: SandboxState) -> None:
    text = "steps:\n- at: 1m\n  seed: {nodes: [{name: a, zone: us-central2-b, acceleratorType: v6e-8}]}\n- preempt: b"

    with pytest.raises(SeedError, match=r"s.yaml line 3: Cloud TPU received a bad request"):
        play_scenario(sandbox_state, read_scenario(text, "s.yaml"))

    with sandbox_state.read() as session:
        events = session.events()
    assert (events, read_status(sandbox_state).faults, log(sandbox_state)) == ([], (), [])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_without_failed_steps(path: Path) -> None:
    with Sandbox() as sandbox:
        sandbox.scenario(path)
        sandbox.advance("1d")
        assert [entry.path for entry in sandbox.requests() if entry.path.startswith("failed: ")] == []


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_fault_kind_has_a_description(kind: FaultKind) -> None:
    words = describe_fault(Fault(kind, node="trainer", count=3))

    assert words.endswith(", 3 times")
    assert kind is FaultKind.UNREACHABLE or "trainer" in words


def fill(sandbox_state: SandboxState) -> None:
    """Fill the log except for a line or two."""
    path = log_path(sandbox_state.path)
    path.write_bytes(b"torn\n" * (FULL_SIZE // 5))


def test_log_drops_the_oldest_entries_and_stores_no_token(sandbox_state: SandboxState) -> None:
    request = Request("GET", "/v2/x", (("access_token", "secret"), ("alt", "json")), {"user-agent": "curl/8.5.0"})
    for status in (200, 201):
        fill(sandbox_state)
        log_call(sandbox_state.path, request, status, sandbox_state.clock.now())
    log_call(sandbox_state.path, request, 202, sandbox_state.clock.now())

    kept = [(entry.path, entry.status, entry.client) for entry in read_log(sandbox_state.path)]

    assert kept == [("/v2/x?access_token=...&alt=json", status, "curl/8.5.0") for status in (201, 202)]


def test_follow_log_sees_all_entries_across_a_rotation(sandbox_state: SandboxState) -> None:
    fill(sandbox_state)
    coming, seen = follow_log(sandbox_state.path), []
    next(coming)

    for status in range(200, 240):
        log_call(sandbox_state.path, Request("GET", "/v2/x"), status, sandbox_state.clock.now())
        if status % 3 == 0:
            seen += [entry.status for entry in next(coming)]

    assert seen + [entry.status for entry in next(coming)] == list(range(200, 240))

"""`tpuctl watch`, stopped and started again: it continues from the journal, here or on another machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import ZONE, EventfulClock, put, two_machines
from tests.others import KilledError, another_machine, changes, errors, kill, somebody, story, watching
from tpuctl.sandbox import administration

# The lines of `--events -` for a created node.
MADE = [("state", "CREATING"), ("recovered", "usable (ssh)")]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def watch(tpuctl: Console, clock: EventfulClock) -> Callable[..., Result]:
    return watching(tpuctl, clock)


@pytest.mark.parametrize("moment", [15, 30])
def test_watch_killed_between_delete_and_create_continues(
    sandbox: Sandbox, clock: EventfulClock, watch: Callable[..., Result], moment: int
) -> None:
    put(sandbox, schedulingConfig={"spot": True}, labels={"team": "vision"})
    clock.after(2 * MINUTE + timedelta(seconds=moment), kill)

    with pytest.raises(KilledError):
        watch(happens=lambda: sandbox.fault("preempt"))
    assert sandbox.changes() == ["delete"]
    sandbox.advance(minutes=10)
    out, _, code = watch()

    assert story(out)[-3:] == [
        ("action", "creating v4-8 (tpu-ubuntu2204-base, spot)"),
        *MADE,
    ]
    assert (code, sandbox.changes()) == (0, ["delete", "create"])


@two_machines
def test_watch_on_another_machine_continues_from_the_bucket_journal(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    put(sandbox, schedulingConfig={"spot": True}, labels={"team": "vision"})
    administration.add_bucket(sandbox.state, "data")
    clock.after(2 * MINUTE, lambda: sandbox.fault("preempt"))
    clock.after(2 * MINUTE + timedelta(seconds=30), kill)
    command = ("watch", "demo", "--zone", ZONE, "--until", "8m", "--events", "-")
    places: Any = {"TPUCTL_JOURNAL": "gs://data/journal", "TPUCTL_LEASE": "gs://data/leases"}

    with pytest.raises(KilledError):
        tpuctl(*command, **places)
    sandbox.advance(minutes=10)
    out, _, code = another_machine(tpuctl)(*command, **places)

    assert story(out) == [("action", "creating v4-8 (tpu-ubuntu2204-base, spot)"), *MADE]
    assert (code, changes(sandbox)) == (0, ["delete", "create"])
    assert json.loads(tpuctl("status", "demo", "-o", "json")[0])[0]["labels"]["team"] == "vision"


@two_machines
@pytest.mark.parametrize("name", ["demo", f"{ZONE}/demo"])
def test_watch_follows_a_request_that_is_not_in_its_journal(tpuctl: Console, sandbox: Sandbox, name: str) -> None:
    other = another_machine(tpuctl)
    assert other("create", "demo", "--type", "v4-8", "--zone", ZONE, "--queue", "--no-wait")[2] == 0

    out, err, code = tpuctl("watch", name, "--until", "20m", "--events", "-")

    assert (story(out)[-1], code, sandbox.changes()) == (MADE[-1], 0, ["create"]), err


@pytest.mark.parametrize(("usable_for", "code", "again"), [(timedelta(), 10, 1), (timedelta(hours=3), 0, 2)])
def test_used_repairs_count_in_the_next_watch_until_the_refill(
    sandbox: Sandbox, watch: Callable[..., Result], usable_for: timedelta, code: int, again: int
) -> None:
    put(sandbox)
    once = ("--yes", "--max-reboots", "0", "--max-restarts", "1")

    first = watch(*once, happens=lambda: sandbox.fault("unhealthy"), TPUCTL_UNHEALTHY_AFTER="30s")
    sandbox.state.clock.sleep(usable_for)
    second = watch(*once, happens=lambda: sandbox.fault("unhealthy"), TPUCTL_UNHEALTHY_AFTER="30s")

    assert (first[2], second[2], sandbox.changes()) == (0, code, ["stop", "start"] * again)


@two_machines  # the embedded sandbox needs no journal that outlasts it
def test_watch_without_a_persistent_journal_needs_a_spec(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    administration.add_bucket(sandbox.state, "data")
    once = ("watch", "demo", "--until", "1m")

    _, err, code = tpuctl(*once, KUBERNETES_SERVICE_HOST="10.0.0.1")

    assert (code, errors(err)[0].partition(": the spec")[0]) == (2, "error: the journal does not outlive this machine")
    assert tpuctl(*once, "--type", "v4-8", KUBERNETES_SERVICE_HOST="10.0.0.1")[2] == 0
    assert tpuctl(*once, KUBERNETES_SERVICE_HOST="10.0.0.1", TPUCTL_JOURNAL="gs://data/journal")[2] == 0


def test_watch_recreates_a_deleted_node_from_the_spec_in_the_journal(
    tpuctl: Console, sandbox: Sandbox, watch: Callable[..., Result]
) -> None:
    """It was deleted before this watch began, so that only the journal knows what it was."""
    tpuctl("up", "demo", "--type", "v4-8", "--zone", ZONE)
    somebody(sandbox, "delete")
    sandbox.advance(minutes=10)

    out, _, code = watch("--recreate-deleted")

    assert story(out)[-2:] == MADE
    assert (code, sandbox.changes()) == (0, ["create", "delete", "create"])

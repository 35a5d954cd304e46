"""Two processes and one node: on one machine, on two machines with `lease: gs://…`, and `down` during a watch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import ZONE, EventfulClock, put, two_machines
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tests.others import another_machine, changes, errors, somebody, story
from tpuctl.sandbox import administration

MINUTE = timedelta(minutes=1)
WATCH = ("watch", "demo", "--zone", ZONE, "--until", "8m", "--events", "-")
LEASE = "gs://data/leases"


@pytest.fixture
def meanwhile(clock: EventfulClock) -> Callable[[Callable[[], Result]], list[Result]]:
    """Run a second command two minutes from now, and collect its result."""

    def plan(command: Callable[[], Result]) -> list[Result]:
        results: list[Result] = []
        clock.after(2 * MINUTE, lambda: results.append(command()))
        return results

    return plan


Meanwhile = Callable[[Callable[[], Result]], list[Result]]


def test_second_watch_on_one_machine_is_refused(tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile) -> None:
    put(sandbox)
    put(sandbox, "other")
    second = meanwhile(lambda: tpuctl("watch", "other", "demo"))

    first = tpuctl(*WATCH)

    ((_, err, code),) = second
    assert (first[2], code, sandbox.changes()) == (0, 8, [])
    assert errors(err)[0].startswith(f"error: `demo` in {ZONE} is in use by watch on ")
    assert "`--force-lease`" in err


def test_ended_watch_releases_its_lease(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    assert tpuctl(*WATCH)[2] == 0
    assert tpuctl(*WATCH)[2] == 0
    assert tpuctl("reset", "demo", "--yes")[2] == 0


@two_machines
def test_force_lease_ends_the_other_watch(tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile) -> None:
    put(sandbox, schedulingConfig={"spot": True})
    administration.add_bucket(sandbox.state, "data")

    def take_over() -> Result:
        sandbox.fault("preempt")
        return another_machine(tpuctl, TPUCTL_LEASE=LEASE)(*WATCH, "--force-lease", "--until", "5m")

    second = meanwhile(take_over)

    out, _, code = tpuctl(*WATCH, TPUCTL_LEASE=LEASE)

    assert [(story(out)[-1], ended) for out, _, ended in second] == [(("recovered", "usable (ssh)"), 0)]
    last, text = story(out)[-1]
    assert (last, text.partition(" was ")[0], code, changes(sandbox)) == ("gave-up", "`demo`", 8, ["delete", "create"])


@two_machines
@pytest.mark.parametrize("command", [("up",), ("reset", "--yes"), ("stop", "--yes"), ("down", "--yes")])
def test_commands_of_another_machine_on_a_watched_node(
    tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile, command: tuple[str, ...]
) -> None:
    """A repair waits for the watcher; `stop` and `down` have priority, and the watch ends."""
    put(sandbox, health="UNHEALTHY_TENSORFLOW")
    administration.add_bucket(sandbox.state, "data")
    verb, *options = command
    elsewhere = another_machine(tpuctl, TPUCTL_LEASE=LEASE)
    second = meanwhile(lambda: elsewhere(verb, "demo", *options, "--timeout", "2m"))

    out, _, code = tpuctl(*WATCH, "--yes", TPUCTL_LEASE=LEASE)

    expected: dict[str, tuple[int, int, list[str]]] = {
        "up": (5, 0, []),
        "reset": (8, 0, []),
        "stop": (0, 8, ["stop"]),
        "down": (0, 3, ["delete"]),
    }
    assert (second[0][2], code, changes(sandbox)) == expected[verb]
    assert bool(out)


def test_up_waits_for_the_watch_that_repairs_the_node(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")
    results: list[Result] = []

    def repair() -> None:
        results.append(tpuctl(*WATCH, "--yes", "--max-reboots", "0", TPUCTL_UNHEALTHY_AFTER="0"))

    clock.after(MINUTE, repair)

    out, _, code = tpuctl("up", "demo", "--yes")

    assert ([result[2] for result in results], out, code) == ([0], "demo\tREADY\n", 0)
    assert sandbox.changes() == ["stop", "start"]


@pytest.mark.parametrize("waits", [True, False])
def test_watch_creates_no_node_after_down(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, meanwhile: Meanwhile, *, waits: bool
) -> None:
    """Even if the watch was about to: the node had just been preempted."""
    put(sandbox, schedulingConfig={"spot": True})
    clock.after(2 * MINUTE - timedelta(seconds=1), lambda: sandbox.fault("preempt"))
    second = meanwhile(lambda: tpuctl("down", "demo", "--yes", *(() if waits else ("--no-wait",))))

    out, _, code = tpuctl(*WATCH, "--recreate-deleted")

    assert (second[0][::2], code, "create" in sandbox.changes()) == (("demo\n", 0), 3, False)
    assert story(out)[-1][1].startswith("`down` ended `demo` (down on ")


def test_down_during_a_recreation_ends_the_watch(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """The node does not exist at that moment, but the watch is about to create it."""
    put(sandbox, schedulingConfig={"spot": True})
    results: list[Result] = []
    clock.after(MINUTE, lambda: sandbox.fault("preempt"))
    sandbox.fault("operation-error", method="*.create", count=0)
    clock.after(4 * MINUTE, lambda: results.append(tpuctl("down", "demo", "--zone", ZONE, "--yes")))

    _, _, code = tpuctl(*WATCH)
    made = sandbox.changes().count("create")
    sandbox.advance(hours=1)

    assert (code, results[0][2], sandbox.changes().count("create")) == (3, 0, made)
    assert tpuctl("list")[0] == ""


def test_refused_down_does_not_end_the_watch_of_another_node(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """`demo` does not exist at that moment; `down` did nothing, so its watch continues."""
    put(sandbox, schedulingConfig={"spot": True})
    put(sandbox, "other")
    results: list[Result] = []
    clock.after(MINUTE, lambda: sandbox.fault("preempt", node="demo"))
    sandbox.fault("operation-error", method="*.create", count=0)
    clock.after(4 * MINUTE, lambda: results.append(tpuctl("down", "other", "demo", "--zone", ZONE, stdin="n\n")))

    _, _, code = tpuctl(*WATCH)

    assert (code, results[0][2], "cancelled" in results[0][1]) == (0, 1, True)


@two_machines
def test_two_machines_without_a_common_lease_create_one_node(
    tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile
) -> None:
    put(sandbox, schedulingConfig={"spot": True})

    def second_watch() -> Result:
        sandbox.fault("preempt")
        return another_machine(tpuctl)(*WATCH)

    second = meanwhile(second_watch)

    assert (tpuctl(*WATCH)[2], second[0][2], sandbox.changes()) == (0, 0, ["delete", "create"])


@two_machines
def test_unwritable_lease_prevents_changes(tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile) -> None:
    """An unreachable lease store is no permission."""
    put(sandbox, state="PREEMPTED")
    administration.add_bucket(sandbox.state, "theirs", denied=("*",))

    assert tpuctl("up", "demo", TPUCTL_LEASE="gs://theirs/x")[2] == 4
    assert tpuctl("up", "demo", TPUCTL_LEASE="gs://nowhere/x")[2] == 3
    assert changes(sandbox) == []


def test_second_create_is_refused_and_its_node_adopted(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    sandbox.fault("slow", method="*.nodes.create", duration=timedelta(seconds=30))
    clock.after(timedelta(seconds=5), lambda: somebody(sandbox, "create"))

    out, err, code = tpuctl("up", "demo", "--type", "v4-8", "--zone", ZONE)

    assert (out, code) == ("demo\tREADY\n", 0)
    assert "another client has just created it" in err

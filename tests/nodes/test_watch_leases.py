"""Two who want the same node: on one machine, on two machines with `lease: gs://…`, and a `down` while a watch runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import ZONE, EventfulClock, one_face, put
from tests.others import another_machine, changes, errors, somebody, story
from tpuctl.sandbox import administration

MINUTE = timedelta(minutes=1)
two_machines = pytest.mark.parametrize("face", ["http"], indirect=True)
WATCH = ("watch", "demo", "--zone", ZONE, "--until", "8m", "--events", "-")
LEASE = "gs://data/leases"


@pytest.fixture
def clock() -> EventfulClock:
    return EventfulClock()


@pytest.fixture
def meanwhile(clock: EventfulClock) -> Callable[[Callable[[], Result]], list[Result]]:
    """Let a second command run two minutes from now, and give what becomes of it."""

    def plan(command: Callable[[], Result]) -> list[Result]:
        results: list[Result] = []
        clock.after(2 * MINUTE, lambda: results.append(command()))
        return results

    return plan


Meanwhile = Callable[[Callable[[], Result]], list[Result]]


@one_face
def test_two_watches_of_one_machine(tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile) -> None:
    put(sandbox)
    put(sandbox, "other")
    second = meanwhile(lambda: tpuctl("watch", "other", "demo"))

    first = tpuctl(*WATCH)

    ((_, err, code),) = second
    assert (first[2], code, sandbox.changes()) == (0, 8, [])
    assert errors(err)[0].startswith("error: `demo` is in use by watch on ")
    assert "`--force-lease`" in err


@one_face
def test_a_watch_that_is_over_is_in_nobodys_way(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    assert tpuctl(*WATCH)[2] == 0
    assert tpuctl(*WATCH)[2] == 0
    assert tpuctl("reset", "demo", "--yes")[2] == 0


@two_machines
def test_a_lease_in_a_bucket_keeps_another_machine_away(
    tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile
) -> None:
    put(sandbox)
    administration.add_bucket(sandbox.state, "data")
    second = meanwhile(lambda: another_machine(tpuctl, TPUCTL_LEASE=LEASE)(*WATCH))

    first = tpuctl(*WATCH, TPUCTL_LEASE=LEASE)

    ((_, err, code),) = second
    assert (first[2], code, changes(sandbox)) == (0, 8, [])
    assert errors(err)[0].startswith("error: `demo` is in use by watch on ")


@two_machines
def test_who_steals_goes_on_and_the_other_ends(tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile) -> None:
    put(sandbox, schedulingConfig={"spot": True})
    administration.add_bucket(sandbox.state, "data")

    def steal() -> Result:
        sandbox.fault("preempt")
        return another_machine(tpuctl, TPUCTL_LEASE=LEASE)(*WATCH, "--force-lease", "--until", "5m")

    second = meanwhile(steal)

    out, _, code = tpuctl(*WATCH, TPUCTL_LEASE=LEASE)

    assert [(story(out)[-1], ended) for out, _, ended in second] == [(("recovered", "usable, ssh answers"), 0)]
    last, text = story(out)[-1]
    assert (last, text.partition(" was ")[0], code, changes(sandbox)) == ("gave-up", "`demo`", 8, ["delete", "create"])


@two_machines
@pytest.mark.parametrize("command", [("up",), ("reset", "--yes"), ("stop",), ("down", "--yes")])
def test_what_another_machine_does_to_a_watched_node(
    tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile, command: tuple[str, ...]
) -> None:
    """A repair leaves it to its watcher; `stop` and `down` come first, and the watch ends."""
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


@one_face
def test_an_up_waits_for_the_watch_that_repairs_the_node(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")
    results: list[Result] = []

    def repair() -> None:
        results.append(tpuctl(*WATCH, "--yes", "--max-reboots", "0", "--unhealthy-after", "0"))

    clock.after(MINUTE, repair)

    out, _, code = tpuctl("up", "demo", "--yes")

    assert ([result[2] for result in results], out, code) == ([0], "demo\tREADY\n", 0)
    assert sandbox.changes() == ["stop", "start"]


@one_face
@pytest.mark.parametrize("waits", [True, False])
def test_after_a_down_nothing_is_created(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, meanwhile: Meanwhile, *, waits: bool
) -> None:
    """Even where the watch was about to: the node had just been preempted."""
    put(sandbox, schedulingConfig={"spot": True})
    clock.after(2 * MINUTE - timedelta(seconds=1), lambda: sandbox.fault("preempt"))
    second = meanwhile(lambda: tpuctl("down", "demo", "--yes", *(() if waits else ("--no-wait",))))

    out, _, code = tpuctl(*WATCH, "--recreate-deleted")

    assert (second[0][::2], code, "create" in sandbox.changes()) == (("demo\n", 0), 3, False)
    assert story(out)[-1][1].startswith("`down` ended `demo` (down on ")


@one_face
def test_a_down_while_the_watch_is_making_it_anew(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """There is no node at that moment, but there would be one."""
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


@one_face
def test_a_no_to_down_leaves_the_watch_of_another_name_alone(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """`demo` is not there at that moment; nothing was done, so its watch goes on trying."""
    put(sandbox, schedulingConfig={"spot": True})
    put(sandbox, "other")
    results: list[Result] = []
    clock.after(MINUTE, lambda: sandbox.fault("preempt", node="demo"))
    sandbox.fault("operation-error", method="*.create", count=0)
    clock.after(4 * MINUTE, lambda: results.append(tpuctl("down", "other", "demo", "--zone", ZONE, stdin="n\n")))

    _, _, code = tpuctl(*WATCH)

    assert (code, results[0][2], "nothing was done" in results[0][1]) == (0, 1, True)


@two_machines
def test_without_a_lease_two_machines_still_make_one_node(
    tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile
) -> None:
    put(sandbox, schedulingConfig={"spot": True})

    def second_watch() -> Result:
        sandbox.fault("preempt")
        return another_machine(tpuctl)(*WATCH)

    second = meanwhile(second_watch)

    assert (tpuctl(*WATCH)[2], second[0][2], sandbox.changes()) == (0, 0, ["delete", "create"])


@two_machines
def test_a_lease_that_cannot_be_written_lets_nothing_be_changed(
    tpuctl: Console, sandbox: Sandbox, meanwhile: Meanwhile
) -> None:
    """Not being able to ask is no permission."""
    put(sandbox, state="PREEMPTED")
    administration.add_bucket(sandbox.state, "theirs", denied=("*",))

    assert tpuctl("up", "demo", TPUCTL_LEASE="gs://theirs/x")[2] == 4
    assert tpuctl("up", "demo", TPUCTL_LEASE="gs://nowhere/x")[2] == 3
    assert changes(sandbox) == []


@one_face
def test_the_second_create_is_refused_and_the_first_one_adopted(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    sandbox.fault("slow", method="*.nodes.create", duration=timedelta(seconds=30))
    clock.after(timedelta(seconds=5), lambda: somebody(sandbox, "create"))

    out, err, code = tpuctl("up", "demo", "--type", "v4-8", "--zone", ZONE)

    assert (out, code) == ("demo\tREADY\n", 0)
    assert "another client has just created it" in err

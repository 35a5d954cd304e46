"""Faults during a wait: API failures, other clients, clock jumps, killed processes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, both_faces, put, told
from tests.others import KilledError, errors, events, kill, reads, somebody

MINUTE = timedelta(minutes=1)
WAIT = ("wait", "demo", "--zone", ZONE, "--for", "healthy", "--events", "-")


def outage_lines(out: str) -> list[str]:
    """Return the lines about the API outage."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [line["text"] for line in lines if line["event"] == "silent"]


@both_faces
@pytest.mark.parametrize(
    "fault",
    [{"kind": "http-error", "status": 429}, {"kind": "http-error", "status": 503}, {"kind": "drop-before"}],
    ids=lambda fault: f"{fault['kind']} {fault.get('status', '')}".strip(),
)
def test_wait_continues_after_api_failures(tpuctl: Console, sandbox: Sandbox, fault: dict[str, str]) -> None:
    put(sandbox, state="STARTING")
    sandbox.fault(**fault, method="*.nodes.get", count=15)

    out, _, code = tpuctl(*WAIT)

    assert (events(out)[0][0], code) == ("state", 0)
    assert [kind for kind, _ in events(out)] == ["state"] * (len(events(out)) - 1) + ["reached"]
    assert outage_lines(out)
    assert all(text.startswith("API not answering for ") for text in outage_lines(out))


def test_wait_with_an_api_outage_reports_the_last_known_state(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    put(sandbox, state="STARTING")
    sandbox.fault("hang", state="STARTING")
    clock.after(MINUTE, lambda: sandbox.fault("http-error", method="*.nodes.get", count=0))

    out, err, code = tpuctl(*WAIT, "--timeout", "10m")

    (error,) = errors(err)
    assert (out.splitlines()[-1][0], code) == ("{", 5)
    assert error.startswith("error: the API has not answered for ")
    assert error.endswith("it is unknown whether `demo` is healthy; its last known state is STARTING")


@pytest.mark.parametrize("command", [("wait", "demo", "other"), ("up", "demo", "other"), ("watch", "demo", "other")])
def test_expired_credentials_end_the_wait_at_once(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, command: tuple[str, ...]
) -> None:
    for name in ("demo", "other"):
        put(sandbox, name, state="STARTING")
        sandbox.fault("hang", state="STARTING", node=name)
    clock.after(MINUTE, lambda: sandbox.fault("unauthenticated", count=0))

    _, err, code = tpuctl(*command, "--zone", ZONE)

    assert (code, sandbox.changes(), clock.monotonic() < 2 * MINUTE) == (4, [], True)
    assert "was left STARTING" in err


@pytest.mark.parametrize("command", [("up",), ("wait",)])
@pytest.mark.parametrize("at_once", [True, False])
def test_wait_for_a_node_deleted_by_another_client_fails(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, command: tuple[str], *, at_once: bool
) -> None:
    put(sandbox, state="REPAIRING")
    sandbox.fault("hang", state="REPAIRING")

    def delete() -> None:
        somebody(sandbox, "delete")
        if at_once:
            sandbox.advance(minutes=3)

    clock.after(MINUTE, delete)

    out, err, code = tpuctl(*command, "demo")

    when = "was deleted by another client at 2026-01-01T00:0" if at_once else "is being deleted by another client"
    assert (out, code, sandbox.changes()) == ("", 3, ["delete"])
    assert errors(err)[0].startswith(f"error: `demo` in {ZONE} {when}")


@pytest.mark.parametrize("command", [("up",), ("wait",)])
def test_wait_follows_a_node_recreated_by_another_client(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, command: tuple[str]
) -> None:
    put(sandbox, state="REPAIRING")
    sandbox.fault("hang", state="REPAIRING")
    clock.after(MINUTE, lambda: put(sandbox, state="STARTING"))

    out, err, code = tpuctl(*command, "demo")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, [])
    assert "another client recreated the node; following the new node" in told(err)


@pytest.mark.parametrize("found", [{"state": "DEFRAGMENTING"}, {"health": "HALF_HEALTHY"}])
def test_unknown_values_are_shown_and_awaited(tpuctl: Console, sandbox: Sandbox, found: dict[str, str]) -> None:
    put(sandbox, **found)

    out, err, code = tpuctl(
        "up", "demo", "--for", "healthy", "--yes", "--repair", "recreate", "--timeout", "20m", "--events", "-"
    )
    put(sandbox)  # the state at the end must be a value of the service

    (word,) = found.values()
    assert (code, sandbox.changes(), len(events(out))) == (5, [], 2)
    assert word in events(out)[0][1]
    assert word in errors(err)[0]


class SkewedClock(EventfulClock):
    """The clock of a machine beside a server: the same seconds, another time of day."""

    def __init__(self, server: EventfulClock) -> None:
        super().__init__()
        self.server, self.skew = server, timedelta()

    def now(self) -> datetime:
        return self.server.now() + self.skew

    def monotonic(self) -> timedelta:
        return self.server.monotonic()

    def sleep(self, duration: timedelta) -> None:
        self.server.sleep(duration)


@pytest.mark.parametrize("face", ["http"], indirect=True)
@pytest.mark.parametrize("jump", [timedelta(days=3), timedelta(days=-3)])
def test_clock_jump_changes_no_deadline_and_no_age(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, jump: timedelta
) -> None:
    skewed = SkewedClock(clock)
    put(sandbox, state="STARTING")
    sandbox.fault("hang", state="STARTING")
    clock.after(MINUTE, lambda: setattr(skewed, "skew", jump))
    program = replace(tpuctl, clock=skewed)

    code = program(*WAIT, "--timeout", "10m")[2]

    assert (code, clock.monotonic()) == (5, 10 * MINUTE)
    shown = program("list", "--columns", "age,tier", terminal=True, NO_COLOR="1")[0]
    assert shown.splitlines()[1].split() == ["1h10m", "on-demand"]


def test_timeout_is_zero_forever_or_a_duration(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    put(sandbox, state="STARTING")
    sandbox.fault("hang", state="STARTING", duration=timedelta(hours=1))
    for command in (("wait", "demo"), ("up", "demo")):
        before = reads(sandbox)
        assert tpuctl(*command, "--zone", ZONE, "--timeout", "0")[2] == 5
        assert (len(reads(sandbox)) - len(before) <= 2, clock.monotonic()) == (True, timedelta())
        assert tpuctl(*command, "--timeout", "-5m")[2] == 2
    assert tpuctl("wait", "demo", "--for", "ready", "--timeout", "forever")[::2] == ("demo\tREADY\n", 0)
    assert clock.monotonic() > timedelta(hours=1)


MOMENTS = (1, 2, 3, 5, 60)


@pytest.mark.parametrize("found", [{}, {"state": "PREEMPTED"}, {"state": "DELETING"}])
def test_run_after_a_kill_at_any_point_creates_one_node(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, found: dict[str, str]
) -> None:
    """Every call takes a second, so that the kill hits calls and the time between them."""

    def up(name: str) -> int:
        return tpuctl("up", name, "--type", "v4-8", "--spot", "--zone", ZONE)[2]

    sandbox.fault("slow", duration=timedelta(seconds=1), count=0)
    for moment in MOMENTS:
        name = f"n{moment}"
        if found:
            put(sandbox, name, schedulingConfig={"spot": True}, **found)
        clock.after(timedelta(seconds=moment), kill)
        with pytest.raises(KilledError):
            up(name)
        assert up(name) == 0, moment

    listed = [line.split("\t") for line in tpuctl("list")[0].splitlines()]
    assert [(row[0], row[3], row[7]) for row in listed if len(row) > 7] == sorted(
        (f"n{moment}", "READY", "spot") for moment in MOMENTS
    )
    assert sandbox.changes().count("create") == len(MOMENTS)

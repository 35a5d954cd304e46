"""`tpuctl watch`: what can happen to a watched node, and how the watch reacts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import ZONE, EventfulClock, both_faces, put, said
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tests.others import errors, events, somebody, story, watching, written
from tpuctl.app.signals import TerminatedError

# What `--events -` tells of a node that is well from the beginning.
WELL = ("reached", "usable (ssh)")
MADE = [("state", "CREATING"), ("recovered", "usable (ssh)")]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def watch(tpuctl: Console, clock: EventfulClock) -> Callable[..., Result]:
    return watching(tpuctl, clock)


@both_faces
def test_preempted_node_is_recreated_with_its_spec(sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox, schedulingConfig={"spot": True}, labels={"team": "vision"})

    out, _, code = watch(happens=lambda: sandbox.fault("preempt"))

    assert story(out) == [
        WELL,
        ("preempted", "PREEMPTED: the service took it back"),
        ("action", "deleting it: it was preempted: only its record is left"),
        ("state", "DELETING"),
        ("state", "gone"),
        ("action", "creating v4-8 (tpu-ubuntu2204-base, spot)"),
        *MADE,
    ]
    assert (code, sandbox.changes()) == (0, ["delete", "create"])


def test_other_nodes_are_watched_after_one_is_given_up(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    for name in "abc":
        put(sandbox, name)
    clock.after(1 * MINUTE, lambda: somebody(sandbox, "delete", "a"))
    clock.after(2 * MINUTE, lambda: sandbox.fault("preempt", node="b"))

    out, _, code = tpuctl("watch", "a", "b", "c", "--until", "8m", "--events", "-")

    told = events(out, "node", "event")
    assert [(node, event) for node, event in told if event in {"gave-up", "preempted", "recovered"}] == [
        ("a", "gave-up"),
        ("b", "preempted"),
        ("b", "recovered"),
    ]
    assert (code, sandbox.changes(), clock.monotonic()) == (3, ["delete", "delete", "create"], 8 * MINUTE)


def test_other_nodes_are_watched_if_one_was_stopped_before(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    put(sandbox, "a")
    put(sandbox, "b")
    assert tpuctl("stop", "a", "--yes")[2] == 0
    end = clock.monotonic() + 8 * MINUTE

    alone = tpuctl("watch", "a", "--until", "8m")
    out, _, code = tpuctl("watch", "a", "b", "--until", "8m", "--events", "-")

    assert (alone[2], errors(alone[1])[0].startswith("error: `stop` ended `a` (stop on ")) == (8, True)
    assert [event for event in events(out, "node", "event") if event[1] != "state"] == [
        ("a", "gave-up"),
        ("b", "reached"),
    ]
    assert (code, clock.monotonic()) == (8, end)


def test_preempted_queued_resource_is_reported_and_given_up(
    tpuctl: Console, sandbox: Sandbox, watch: Callable[..., Result], tmp_path: Path
) -> None:
    put(sandbox, queued_resource="research", schedulingConfig={"spot": True})
    sandbox.add_queued_resource("research", node_ids=("demo",))

    hooks = ("--on-preempt", f"sleep 0.2; echo taken >> {tmp_path}/log", "--on-give-up", f"echo over >> {tmp_path}/log")

    out, err, code = watch(*hooks, happens=lambda: sandbox.fault("preempt"))

    assert story(out)[1:] == [
        ("state", "DELETING"),
        ("preempted", "DELETING: the service took it back"),
        (
            "gave-up",
            "`demo` was preempted: its queued resource `research` is SUSPENDING, and it cannot be recreated on its own",
        ),
    ]
    assert (errors(err), code, sandbox.changes()) == ([], 8, [])
    assert (tmp_path / "log").read_text() == "taken\nover\n"  # it ends after them


def test_unhealthy_node_in_use_is_given_up_without_yes(sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox)

    quick: dict[str, Any] = {"TPUCTL_UNHEALTHY_AFTER": "1m", "TPUCTL_RECHECK_AFTER": "30s"}

    given_up, _, code = watch(happens=lambda: sandbox.fault("unhealthy"), **quick)
    assert (story(given_up)[-1], code, sandbox.changes()) == (
        ("gave-up", "it is READY but UNHEALTHY_TENSORFLOW"),
        10,
        [],
    )
    repaired, _, code = watch("--yes", **quick)
    assert (story(repaired)[-1][0], code, sandbox.changes()) == ("recovered", 0, ["stop", "start"])


def test_maintenance_is_reported_and_awaited(sandbox: Sandbox, watch: Callable[..., Result], tmp_path: Path) -> None:
    put(sandbox)
    hook = f'event=$(cat); echo "$TPUCTL_EVENT $TPUCTL_NODE $event" >> {tmp_path}/hook'

    out, _, code = watch(
        "--yes",
        "--on-maintenance",
        hook,
        happens=lambda: sandbox.fault("maintenance", after=2 * MINUTE, duration=3 * MINUTE),
    )

    window = "from 2026-01-01T00:04:00Z to 2026-01-01T00:07:00Z"
    assert story(out) == [
        WELL,
        ("maintenance", f"maintenance is PENDING {window}"),
        ("state", "READY UNHEALTHY_MAINTENANCE"),
        ("maintenance", f"maintenance is ONGOING {window}"),
        ("recovered", "usable (ssh)"),
    ]
    told = [line.split(" ", 2) for line in written(tmp_path / "hook", 2)]
    assert [(*words, json.loads(event)["status"]) for *words, event in told] == [
        ("maintenance", "demo", "PENDING"),
        ("maintenance", "demo", "ONGOING"),
    ]
    assert (code, sandbox.changes()) == (0, [])


def test_node_deleted_by_another_client_is_not_recreated(
    sandbox: Sandbox, watch: Callable[..., Result], clock: EventfulClock
) -> None:
    """And the watch ends with it, although `--until` is far."""
    put(sandbox)

    def deleted() -> None:
        somebody(sandbox, "delete")
        sandbox.advance(minutes=5)

    out, _, code = watch(happens=deleted, until="8h")

    assert story(out)[1:] == [
        ("state", "gone"),
        ("gave-up", f"`demo` in {ZONE} was deleted by another client at 2026-01-01T00:01:45Z"),
    ]
    assert (code, sandbox.changes(), clock.monotonic()) == (3, ["delete"], 7 * MINUTE)


def test_node_deleted_by_another_client_is_recreated_with_the_flag(
    sandbox: Sandbox, watch: Callable[..., Result]
) -> None:
    put(sandbox)

    out, _, code = watch("--recreate-deleted", happens=lambda: somebody(sandbox, "delete"))

    made = "creating v4-8 (tpu-ubuntu2204-base, on-demand, about $12.88/h): another client deleted it"
    assert story(out)[1:] == [("state", "DELETING"), ("state", "gone"), ("action", made), *MADE]
    assert (code, sandbox.changes()) == (0, ["delete", "create"])


def test_node_stopped_by_another_client_stays_stopped(
    sandbox: Sandbox, watch: Callable[..., Result], clock: EventfulClock
) -> None:
    put(sandbox)
    clock.after(5 * MINUTE, lambda: somebody(sandbox, "start"))

    out, _, code = watch(happens=lambda: somebody(sandbox, "stop"))

    assert [text for _, text in story(out)[1:5]] == [
        "STOPPING",
        "STOPPED",
        "STARTING",
        "usable (ssh)",
    ]
    assert (code, sandbox.changes()) == (0, ["stop", "start"])


def test_capacity_is_retried_with_growing_pauses(sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox)
    sandbox.fault("operation-error", method="*.create", count=3)

    out, _, code = watch(happens=lambda: sandbox.fault("preempt"), until="18m")

    found = [json.loads(line) for line in out.splitlines()]
    failed = [
        event["next_in"] for event in found if event["event"] == "wait" and event["text"].startswith("create failed")
    ]
    firsts = [left for before, left in zip([0.0, *failed], failed, strict=False) if left > before]
    assert [round(left / 60) for left in firsts] == [1, 2, 4]
    assert (story(out)[-1], code, sandbox.changes().count("create")) == (MADE[-1], 0, 4)


def test_each_hook_gets_its_event(sandbox: Sandbox, watch: Callable[..., Result], tmp_path: Path) -> None:
    put(sandbox)
    log = tmp_path / "log"
    names = ("preempt", "recover", "give-up")
    hooks = [part for name in names for part in (f"--on-{name}", f"echo {name} $TPUCTL_EVENT $TPUCTL_STATE >> {log}")]

    made_anew = watch(*hooks, happens=lambda: sandbox.fault("preempt"))[2]
    sandbox.fault("unhealthy", count=0)
    given_up = watch(*hooks, "--repair", "none")[2]

    assert (made_anew, given_up) == (0, 10)
    assert written(log, 3) == [
        "preempt preempted PREEMPTED",
        "recover recovered READY",
        "give-up gave-up READY",
    ]


def test_api_outage_is_no_event_of_a_node(sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox)

    out, _, code = watch(happens=lambda: sandbox.fault("http-error", method="*.nodes.get", count=30))

    assert (story(out), code, sandbox.changes()) == ([WELL], 0, [])


def test_missing_node_is_not_created(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl("watch", "demo", "--zone", ZONE, "--until", "1h")

    assert (code, sandbox.changes()) == (3, [])
    assert f"no node `demo` in {ZONE}" in err


def test_watch_ends_at_until_which_must_be_in_the_future(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    put(sandbox)

    assert tpuctl("watch", "demo", "--until", "2026-01-01T00:10:00Z")[::2] == ("", 0)
    assert clock.monotonic() == 10 * MINUTE
    assert tpuctl("watch", "demo", "--until", "2026-01-01T00:10:00Z")[2] == 2
    assert tpuctl("watch", "demo", "--until", "soon") == (
        "",
        said(
            "error: invalid value for `--until`: `soon` is not a time; write 8h, 18:30 or 2026-01-31T18:30:00Z",
            "  hint: see `tpuctl watch --help`",
        ),
        2,
    )


def test_sigterm_ends_the_watch_with_success(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    def terminate() -> None:
        raise TerminatedError

    put(sandbox)
    clock.after(5 * MINUTE, terminate)

    _, err, code = tpuctl("watch", "demo")

    assert (errors(err), code, err.splitlines()[-1]) == (
        [],
        0,
        "terminated: the watch has ended, the nodes keep running",
    )


def test_history_counts_each_way_to_usable_from_the_loss(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    put(sandbox, schedulingConfig={"spot": True})
    for minutes in (15, 45):
        clock.after(timedelta(minutes=minutes), lambda: sandbox.fault("preempt"))

    code = tpuctl("watch", "demo", "--until", "75m")[2]
    ways = [entry["took"] for entry in json.loads(tpuctl("history", "demo", "-o", "json")[0]) if "took" in entry]

    assert (code, len(ways), all(timedelta(0) < timedelta(seconds=way) < 15 * MINUTE for way in ways)) == (
        0,
        2,
        True,
    ), ways

"""`tpuctl up --queue`: a node that is requested through the queue."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, both_faces, told
from tests.others import interrupt
from tpuctl.sandbox import administration
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.stock import put_stockout

ZONE = "us-east5-b"
QUEUE = ("up", "demo", "--type", "v6e-8", "--spot", "--zone", ZONE, "--queue")


def stockout(sandbox: Sandbox, **fields: timedelta) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=ZONE, **fields)


def left(tpuctl: Console) -> str:
    """Return the nodes and the queued resources that exist, and the quota that they hold."""
    return tpuctl("sandbox", "status")[0]


def creates(sandbox: Sandbox) -> int:
    return sum(entry.call.endswith("queuedResources.create") for entry in read_log(sandbox.state.path))


def test_up_waits_for_capacity_and_until_ssh_answers(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*QUEUE, "--timeout", "2h")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert told(err)[0] == "requesting v6e-8 (v2-alpha-tpuv6e, spot, about $9.72/h)"
    assert [line for line in told(err) if line.startswith("queued")] == [
        "queued resource CREATING",
        "queued resource ACCEPTED",
        "queued resource WAITING_FOR_RESOURCES",
        "queued resource PROVISIONING",
        "queued resource ACTIVE",
    ]
    assert sandbox.changes() == ["create"]


def test_up_gives_the_request_up_at_its_deadline_and_leaves_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)

    out, err, code = tpuctl(*QUEUE, "--timeout", "2h")

    assert (out, code) == ("", 5)
    assert "error: no capacity for `demo` in us-east5-b until 2026-01-01T02:00:00Z" in err
    assert sandbox.changes() == ["create", "delete"]
    assert tpuctl("queue", "list", "-o", "json")[0].strip() == "[]"


def test_killed_up_is_continued_with_one_request(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """The second run finds the request by its name, also without `--queue`: the journal knows how the node was requested."""
    stockout(sandbox, duration=timedelta(hours=1))
    clock.after(timedelta(minutes=10), interrupt)
    first = tpuctl(*QUEUE, "--timeout", "2h")

    out, _, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", ZONE, "--timeout", "2h")

    assert first[2] == 130
    assert (out, code, creates(sandbox)) == ("demo\tREADY\n", 0, 1)


def test_interrupted_up_names_the_request_and_how_to_cancel_it(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    stockout(sandbox)
    clock.after(timedelta(minutes=10), interrupt)

    _, err, code = tpuctl(*QUEUE, "--timeout", "2h")

    assert code == 130
    assert "counts against the quota" in err
    assert "the queued resource `demo` in us-east5-b stays (WAITING_FOR_RESOURCES)" in err
    assert "  undo:   tpuctl down us-east5-b/demo" in err


def test_lost_answer_makes_no_second_request(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("drop-after", method="*queuedResources.create")

    out, _, code = tpuctl(*QUEUE, "--timeout", "2h")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert creates(sandbox) == 1
    assert tpuctl("queue", "list", "-o", "name")[0] == f"{ZONE}/demo\n"


@both_faces
def test_preempted_node_is_requested_again(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*QUEUE, "--timeout", "2h")
    sandbox.fault("preempt", node="demo")
    sandbox.advance(minutes=1)

    out, err, code = tpuctl("up", "demo", "--timeout", "2h")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert "deleting its queued resource `demo`: it is SUSPENDED, by the service: only its record is left" in err
    assert [change for change in sandbox.changes() if change in {"create", "delete"}] == ["create", "delete", "create"]


def test_watch_requests_a_preempted_node_again(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    tpuctl(*QUEUE, "--timeout", "2h")
    clock.after(timedelta(minutes=5), lambda: sandbox.fault("preempt", node="demo"))

    out, _, code = tpuctl("watch", "demo", "--until", "1h", "--events", "-")

    assert [
        line["text"]
        for line in map(json.loads, out.splitlines())
        if line["event"] in {"preempted", "action", "recovered"}
    ] == [
        "DELETING: the service took it back",
        "deleting its queued resource `demo`: it is SUSPENDED, by the service: only its record is left",
        "requesting v6e-8 (v2-alpha-tpuv6e, spot, about $9.72/h)",
        "usable (ssh)",
    ]
    assert (code, sandbox.changes()) == (0, ["create", "delete", "create"])


def test_request_that_suspends_at_once_is_asked_again(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("suspend", node="demo", initiator="SERVICE")

    out, _, code = tpuctl(*QUEUE, "--timeout", "4h")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert [change for change in sandbox.changes() if change in {"create", "delete"}] == ["create", "delete", "create"]


def test_request_suspended_by_a_user_is_left_alone(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("suspend", node="demo", initiator="USER")

    _, err, code = tpuctl(*QUEUE, "--timeout", "4h")

    assert (code, sandbox.changes()) == (8, ["create"])
    assert "the queued resource `demo` was suspended by a user: left alone" in err


def test_record_that_survives_its_deletion_is_deleted_again(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)
    sandbox.fault("survives-delete", node="demo")

    _, _, code = tpuctl(*QUEUE, "--queue-for", "30m", "--timeout", "2h")

    assert (code, sandbox.changes()) == (5, ["create", "delete", "delete"])
    assert tpuctl("queue", "list", "-o", "json")[0].strip() == "[]"


@pytest.mark.parametrize("words", [QUEUE, QUEUE[:-1]], ids=["request", "node"])
def test_conflict_after_an_accepted_create_is_its_success(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...]
) -> None:
    """The journal keeps the creation, so that the next command knows how the node was requested."""
    sandbox.fault("already-exists", method="*.create")

    out, err, code = tpuctl(*words, "--timeout", "2h")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert "another client" not in err
    created = [entry for entry in json.loads(tpuctl("history", "demo", "-o", "json")[0]) if entry["event"] == "create"]
    assert [entry["spec"].get("queue", False) for entry in created] == [words == QUEUE]


@pytest.mark.parametrize("kind", ["late-node", "fall-back"])
def test_request_that_goes_back_or_is_late_is_waited_for(tpuctl: Console, sandbox: Sandbox, kind: str) -> None:
    sandbox.fault(kind, node="demo")

    out, _, code = tpuctl(*QUEUE, "--timeout", "2h")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])


def test_quota_ends_the_run_with_its_own_code(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("quota", method="*queuedResources.create", count=0)

    assert tpuctl(*QUEUE, "--timeout", "2h")[2] == 7


def test_request_for_another_spec_is_a_conflict(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)
    tpuctl(*QUEUE, "--timeout", "2h", "--no-wait")

    _, err, code = tpuctl("up", "demo", "--type", "v6e-4", "--spot", "--zone", ZONE, "--queue")

    assert code == 8
    assert "differs from the requested spec:\n  accelerator_type: wanted `v6e-4`, found `v6e-8`\n" in err
    assert (
        "to wait for it unchanged, run `tpuctl up us-east5-b/demo`; to cancel it and ask again, add `--replace`" in err
    )
    assert sandbox.changes() == ["create"]


def test_replace_without_waiting_says_that_no_new_request_was_sent(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)
    tpuctl(*QUEUE, "--timeout", "2h", "--no-wait")
    other = ("up", "demo", "--type", "v6e-4", "--spot", "--zone", ZONE, "--queue")

    out, err, code = tpuctl(*other, "--no-wait", "--replace", "--yes")

    assert (out, code, sandbox.changes()) == ("", 5, ["create", "delete"])
    assert "the deletion of its queued resource was requested (it differs: " in err
    assert "; its creation is to follow, and was not requested" in err


def test_replace_cancels_a_request_for_another_spec(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)
    tpuctl(*QUEUE, "--timeout", "2h", "--no-wait")

    tpuctl(
        "up", "demo", "--type", "v6e-4", "--spot", "--zone", ZONE, "--queue", "--timeout", "10m", "--replace", "--yes"
    )

    assert sandbox.changes() == ["create", "delete", "create", "delete"]


def test_request_of_several_nodes_is_never_deleted(tpuctl: Console, sandbox: Sandbox) -> None:
    """A failed request of SkyPilot's shape: its other nodes are not the user's to delete here."""
    node = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
    sandbox.add_queued_resource(
        "slices",
        zone=ZONE,
        state="FAILED",
        tpu={"nodeSpec": [{"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "demo"}, "node": node}]},
    )

    _, err, code = tpuctl("up", "demo-0", "--type", "v6e-8", "--zone", ZONE, "--queue")

    assert code == 8
    assert "has 2 nodes, also demo-1" in err
    assert sandbox.changes() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(("--run-for", "1h"), "`--run-for` needs the tier flex-start, not on-demand", id="run-for"),
        pytest.param(
            ("--spot", "--reservation", "r"), "cannot combine `--reservation r` and the tier spot", id="reservation"
        ),
        pytest.param(("--calendar",), "`--calendar` needs `--reservation`", id="calendar"),
        pytest.param(("--spot", "--tier", "spot"), "cannot combine `--spot` and `--tier`", id="two tiers"),
        pytest.param(("--tier", "spto"), "`spto` is not a capacity type", id="unknown tier"),
        pytest.param(("--queue-for", "5h"), "`--queue-for` needs a queued resource", id="no queue"),
        pytest.param(
            ("--queue", "--queue-for", "forever", "--timeout", "1h"),
            "would outlive the command",
            id="forever and timeout",
        ),
        pytest.param(("--queue", "--queue-for", "30s"), "`--queue-for 30s` is too short", id="short"),
        pytest.param(("--queue", "--start-after", "soon"), "`--start-after soon` is not a time", id="start"),
        pytest.param(
            ("--queue", "--start-after", "3h"), "`--start-after 3h` (2026-01-01T03:00:00Z) is after", id="late start"
        ),
        pytest.param(("--boot-disk-size", "big"), "`--boot-disk-size big` is not a size", id="disk"),
        pytest.param(("--race",), "`--race` needs several zones", id="race"),
        pytest.param(("--tier", "flex-start", "--run-for", "8d"), "`--run-for` is from 1s to 7d", id="too long"),
    ],
)
def test_options_that_exclude_one_another_are_usage_errors(
    tpuctl: Console, sandbox: Sandbox, options: tuple[str, ...], message: str
) -> None:
    _, err, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", ZONE, *options)

    assert (message in err, code, sandbox.changes()) == (True, 2, [])


@pytest.mark.parametrize(
    ("options", "body"),
    [
        pytest.param(("--queue",), {"queueingPolicy": {"validUntilDuration": "1800s"}}, id="on-demand"),
        pytest.param(("--queue", "--spot", "--timeout", "forever"), {"spot": {}}, id="spot"),
        pytest.param(("--queue", "--queue-for", "forever"), {}, id="forever"),
        pytest.param(("--queue", "--queue-for", "forever", "--no-wait"), {}, id="forever without waiting"),
        pytest.param(
            ("--tier", "best-effort", "--queue-for", "6h"),
            {"bestEffort": {}, "queueingPolicy": {"validUntilDuration": "21600s"}},
            id="best-effort",
        ),
        pytest.param(
            ("--tier", "flex-start", "--run-for", "24h", "--start-after", "1h", "--queue-for", "6h"),
            {
                "provisioningModel": "FLEX_START",
                "runDuration": {"maxRunDuration": "86400s"},
                "queueingPolicy": {
                    "validInterval": {"startTime": "2026-01-01T01:00:00Z", "endTime": "2026-01-01T06:00:00Z"}
                },
            },
            id="flex-start",
        ),
        pytest.param(
            ("--queue", "--reserved", "--timeout", "forever", "--start-after", "1h"),
            {
                "reservationName": "projects/sandbox/locations/us-east5-b/reservations/-",
                "queueingPolicy": {"validAfterTime": "2026-01-01T01:00:00Z"},
            },
            id="reserved",
        ),
        pytest.param(
            ("--queue", "--reservation", "r", "--calendar", "--timeout", "forever"),
            {
                "reservationName": "projects/sandbox/locations/us-east5-b/reservations/r",
                "provisioningModel": "RESERVATION_BOUND",
            },
            id="calendar",
        ),
    ],
)
def test_dry_run_shows_the_request(tpuctl: Console, options: tuple[str, ...], body: dict[str, object]) -> None:
    out, _, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", ZONE, *options, "--dry-run", "-o", "json")

    sent = json.loads(out)[0]["request"]
    needs_alpha = {"bestEffort", "provisioningModel"} & body.keys()
    version = "v2alpha1" if needs_alpha else "v2"
    assert code == 0
    assert f"/{version}/projects/sandbox/locations/us-east5-b/queuedResources?queuedResourceId=demo" in sent["url"]
    assert {key: value for key, value in sent["body"].items() if key != "tpu"} == body


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["node", "queue"])
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("nope", 3, "the project has no reservation `nope` in us-east5-b"),
        ("ended", 6, "the reservation `ended` is EXPIRED"),
    ],
    ids=["unknown", "ended"],
)
def test_reservation_that_cannot_serve_is_named(  # noqa: PLR0917  # two fixtures and three columns
    tpuctl: Console, sandbox: Sandbox, name: str, code: int, message: str, queue: tuple[str, ...]
) -> None:
    whole = "projects/sandbox/locations/us-east5-b/reservations/"
    administration.add_reservation(sandbox.state, name=f"{whole}other", standard={"resourceType": "v6e-8", "size": 8})
    administration.add_reservation(sandbox.state, name=f"{whole}ended", state="EXPIRED")

    _, err, ended = tpuctl(
        "up", "demo", "--type", "v6e-8", "--zone", ZONE, "--reservation", name, "--skip-check", "all", *queue
    )

    assert (message in err, ended, sandbox.changes()) == (True, code, [])


def test_expired_login_leaves_the_request_and_names_what_cancels_it(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    stockout(sandbox)
    clock.after(timedelta(hours=3), lambda: sandbox.fault("unauthenticated", count=0))

    _, err, code = tpuctl(*QUEUE, "--timeout", "12h")

    assert (code, sandbox.changes()) == (4, ["create"])
    assert (
        "its queued resource was left WAITING_FOR_RESOURCES and counts against the quota: `tpuctl queue cancel demo"
        in err
    )

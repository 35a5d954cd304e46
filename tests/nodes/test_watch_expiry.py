"""`tpuctl watch` and a node whose time ends: it is deleted once, and its watch ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, both_faces, put
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tests.others import events, somebody, story, watching
from tpuctl.nodes.expiry import expiry_label
from tpuctl.sandbox import faults
from tpuctl.sandbox.stock import put_stockout

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SPOT: dict[str, Any] = {"schedulingConfig": {"spot": True}}


@pytest.fixture
def watch(tpuctl: Console, clock: EventfulClock) -> Callable[..., Result]:
    return watching(tpuctl, clock)


def until(minutes: float) -> dict[str, str]:
    return {"tpuctl-expires": expiry_label(START + minutes * MINUTE)}


def told(text: str) -> list[tuple[str, str]]:
    """Return the events, without notes about the guard."""
    return [event for event in story(text) if event[0] != "note"]


def deletions(tpuctl: Console, name: str = "demo") -> list[str]:
    """Return why the journal says that a node was deleted."""
    found = json.loads(tpuctl("history", name, "--zone", ZONE, "-o", "json")[0])
    entries: list[dict[str, Any]] = found["entries"] if isinstance(found, dict) else found
    return [entry["reason"] for entry in entries if entry.get("event") == "delete"]


@both_faces
def test_expired_node_is_deleted_once_and_its_watch_ends(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, watch: Callable[..., Result]
) -> None:
    put(sandbox, labels=until(3))

    out, _, code = watch(until="8h")

    assert told(out) == [
        ("reached", "usable (ssh)"),
        ("action", "deleting it"),
        ("expired", "its time has ended, it expired 0s ago: it is being deleted"),
        ("state", "DELETING"),
        ("state", "gone"),
    ]
    assert (code, sandbox.changes(), deletions(tpuctl)) == (0, ["delete"], ["expired"])
    assert 3 * MINUTE <= clock.monotonic() < 8 * MINUTE


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        pytest.param({"tpuctl-expires": "tomorrow"}, {}, id="invalid-label"),
        pytest.param({"tpuctl-expires": "0"}, {}, id="zero"),
        pytest.param({**until(-9), "tpuctl-keep": ""}, {}, id="kept"),
        pytest.param(until(60), {}, id="later"),
        pytest.param({}, {}, id="no-label"),
    ],
)
def test_node_that_has_not_expired_is_left_alone(
    sandbox: Sandbox, watch: Callable[..., Result], labels: dict[str, str], fields: dict[str, Any]
) -> None:
    put(sandbox, labels=labels, **fields)

    assert (watch()[2], sandbox.changes()) == (0, [])


def test_extension_counts(tpuctl: Console, sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox, labels=until(3) | {"tpuctl-owner": "you_example-com"})

    out, _, code = watch(happens=lambda: tpuctl("extend", "demo", "1h", "--zone", ZONE))

    assert (told(out), code, sandbox.changes()) == ([("reached", "usable (ssh)")], 0, ["patch"])


def test_preempted_node_that_has_expired_is_not_recreated(sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox, state="PREEMPTED", labels=until(-1), **SPOT)

    out, _, code = watch(until="8h")

    assert [event for event, _ in told(out)] == ["preempted", "action", "expired", "state", "state"]
    assert (code, sandbox.changes()) == (0, ["delete"])


def test_node_that_found_no_capacity_until_its_end_is_not_created_again(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, watch: Callable[..., Result]
) -> None:
    put(sandbox, labels=until(3), **SPOT)

    def happens() -> None:
        sandbox.fault("preempt")
        sandbox.fault("operation-error", method="*.create", count=2)

    out, _, code = watch(until="1h", happens=happens)

    assert told(out)[-1] == ("expired", "its time has ended, and it does not exist: it is not created again")
    assert (code, tpuctl("list")[0]) == (0, "")
    assert clock.monotonic() < 15 * MINUTE


def stockout(sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=ZONE)


def request(tpuctl: Console, sandbox: Sandbox, state: str, labels: dict[str, str]) -> None:
    """Request the node with tpuctl, and put the request into a state that lasts."""
    stockout(sandbox)
    assert tpuctl(*UP, "--queue", "--no-wait")[2] == 0
    node = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "labels": labels}
    spec = {"parent": f"projects/sandbox/locations/{ZONE}", "nodeId": "demo", "node": node}
    sandbox.add_queued_resource("demo", state=state, node_ids=("demo",), tpu={"nodeSpec": [spec]})


@pytest.mark.parametrize(
    ("state", "labels", "deleted"),
    [
        pytest.param("WAITING_FOR_RESOURCES", until(5), ["expired"], id="waiting"),
        pytest.param("ACCEPTED", until(5), ["expired"], id="accepted"),
        pytest.param("PROVISIONING", until(5), [], id="a-node-is-on-its-way"),
        pytest.param("DELETING", until(5), [], id="another-client-deletes-it"),
        pytest.param("SUSPENDING", until(5), [], id="the-service-is-about-to-suspend-it"),
        pytest.param("WAITING_FOR_RESOURCES", until(90), [], id="has-time"),
        pytest.param("WAITING_FOR_RESOURCES", {**until(5), "tpuctl-keep": ""}, [], id="kept"),
        pytest.param("WAITING_FOR_RESOURCES", {"tpuctl-expires": "soon"}, [], id="invalid-label"),
    ],
)
def test_expired_request_without_a_node_is_ended_once(
    tpuctl: Console, sandbox: Sandbox, state: str, labels: dict[str, str], deleted: list[str]
) -> None:
    request(tpuctl, sandbox, state, labels)

    out, _, code = tpuctl("watch", "demo", "--until", "1h", "--events", "-")

    assert (code, sandbox.changes(), deletions(tpuctl)) == (0, ["create", *(["delete"] * len(deleted))], deleted)
    ended = [
        "its time has ended, it expired 17s ago: its queued resource is being deleted",
        "its time has ended, and it does not exist: it is not created again",
    ]
    assert [text for event, text in told(out) if event == "expired"] == (ended if deleted else [])
    assert bool(tpuctl("queue", "list")[0]) is not bool(deleted)


def test_request_ends_with_the_time_of_its_node_and_is_not_sent_again(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, watch: Callable[..., Result]
) -> None:
    stockout(sandbox)
    assert tpuctl(*UP, "--queue", "--ttl", "30m", "--no-wait")[2] == 0

    _, _, code = watch(until="8h")

    assert (code, sandbox.changes(), deletions(tpuctl)) == (0, ["create", "delete"], ["expired"])
    assert 30 * MINUTE <= clock.monotonic() < 40 * MINUTE


@pytest.mark.parametrize(
    "options", [(), ("--timeout", "8h"), ("--queue-for", "6h", "--timeout", "8h")], ids=["plain", "longer", "queue-for"]
)
def test_up_ends_when_the_time_of_its_request_has_ended(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, options: tuple[str, ...]
) -> None:
    stockout(sandbox)

    _, err, code = tpuctl(*UP, "--queue", "--ttl", "20m", *options)

    assert "the time of `demo` ended 2026-01-01T00:20:0" in err
    assert f"ask again with a longer time limit: `tpuctl up demo --queue --ttl 12h --type v4-8 --zone {ZONE}`" in err
    assert (code, tpuctl("queue", "list")[0], sandbox.changes()) == (5, "", ["create", "delete"])
    assert clock.monotonic() < 25 * MINUTE


def test_race_ends_with_the_time_of_its_node(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    with sandbox.state.write() as session:
        put_stockout(session)
    race = (
        "up",
        "demo",
        "--type",
        "v5litepod-8",
        "--zone",
        "us-central1-a,us-west4-a",
        "--race",
        "--skip-check",
        "all",
    )

    _, err, code = tpuctl(*race, "--ttl", "20m", "--timeout", "8h")

    assert ("the time of `demo` ended 2026-01-01T00:20:00Z" in err, code) == (True, 5), err
    assert (tpuctl("queue", "list")[0], clock.monotonic() < 25 * MINUTE) == ("", True)


def test_created_request_ends_with_the_time_of_its_node(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)

    assert tpuctl("create", *UP[1:], "--queue", "--ttl", "20m")[2] == 0
    (request,) = json.loads(tpuctl("queue", "list", "-o", "json")[0])
    assert request["queueingPolicy"]["validUntilDuration"] == "1200s"


def test_up_ends_at_a_request_that_outlasted_its_time(tpuctl: Console, sandbox: Sandbox) -> None:
    request(tpuctl, sandbox, "WAITING_FOR_RESOURCES", until(5))
    sandbox.advance(minutes=6)

    _, err, code = tpuctl(*UP, "--queue")

    assert (
        "the time of `demo` ended 2026-01-01T00:05:00Z, and its queued resource is still WAITING_FOR_RESOURCES" in err
    )
    assert f"`tpuctl queue cancel {ZONE}/demo`" in err
    assert (code, sandbox.changes()) == (5, ["create"])
    # A new end counts for the node, once it is there.
    assert "the time of" not in tpuctl(*UP, "--queue", "--ttl", "2h", "--timeout", "1m")[1]


def test_deletion_by_another_client_is_not_repeated(sandbox: Sandbox, watch: Callable[..., Result]) -> None:
    put(sandbox, labels=until(2))

    _, _, code = watch(until="8h", happens=lambda: somebody(sandbox, "delete"))

    assert (code, sandbox.changes()) == (0, ["delete"])


def test_silent_api_postpones_the_deletion(
    sandbox: Sandbox, clock: EventfulClock, watch: Callable[..., Result]
) -> None:
    put(sandbox, labels=until(3))

    fault = {"method": "*.nodes.*", "status": 503, "count": 40}

    out, _, code = watch(until="8h", happens=lambda: sandbox.fault("http-error", **fault))

    assert (code, sandbox.changes()) == (0, ["delete"])
    assert [event for event, _ in told(out)].count("expired") == 1
    assert clock.monotonic() > 4 * MINUTE


def test_node_of_a_queued_resource_is_deleted_with_its_request(
    tpuctl: Console, sandbox: Sandbox, watch: Callable[..., Result]
) -> None:
    put(sandbox, labels=until(2), queued_resource="research")
    sandbox.add_queued_resource("research", node_ids=("demo",))

    _, _, code = watch(until="8h")

    assert (code, tpuctl("list")[0], tpuctl("queue", "list")[0]) == (0, "", "")


@pytest.mark.parametrize(
    "labels", [pytest.param({}, id="no-end"), pytest.param({**until(-9), "tpuctl-keep": ""}, id="kept")]
)
def test_request_with_other_nodes_is_kept_until_all_have_expired(
    sandbox: Sandbox, watch: Callable[..., Result], labels: dict[str, str]
) -> None:
    put(sandbox, labels=until(2), queued_resource="research")
    put(sandbox, "other", labels=labels, queued_resource="research")
    sandbox.add_queued_resource("research", node_ids=("demo", "other"))

    out, _, code = watch()

    assert (code, sandbox.changes()) == (0, [])
    assert "its queued resource has 2 nodes, and not all have expired" in out


def test_other_nodes_are_watched_after_one_has_expired(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    put(sandbox, "a", labels=until(1))
    put(sandbox, "b")

    out, _, code = tpuctl("watch", "a", "b", "--until", "8m", "--events", "-")

    assert [node for node, event in events(out, "node", "event") if event == "expired"] == ["a"]
    assert (code, sandbox.changes(), clock.monotonic()) == (0, ["delete"], 8 * MINUTE)


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [pytest.param(-1, (0, ["delete"]), id="expired"), pytest.param(60, (3, []), id="not-expired")],
)
def test_node_that_a_down_without_effect_left_is_deleted_only_if_expired(
    tpuctl: Console, sandbox: Sandbox, watch: Callable[..., Result], minutes: float, expected: tuple[int, list[str]]
) -> None:
    """As after a kill: `down` has ended the lease of the node, and its delete request was not carried out."""
    put(sandbox, labels=until(minutes))
    fault = sandbox.fault("http-error", method="*.nodes.delete", status=403)
    assert tpuctl("down", "demo", "--zone", ZONE, "--yes")[2] == 4
    with sandbox.state.write() as session:
        faults.remove_fault(session, fault)

    _, _, code = watch(until="8h")

    assert (code, sandbox.changes()) == expected

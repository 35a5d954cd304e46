"""`tpuctl gc`: what it shows, what it deletes with `--yes`, and what it leaves alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import ZONE, EventfulClock, put, said
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tests.others import somebody
from tpuctl.app.app import App, Invocation
from tpuctl.models.node_changes import changed_fields
from tpuctl.nodes.expiry import owner_label
from tpuctl.nodes.garbage import GarbageFacts, GarbageItem, GarbageRules, find_garbage
from tpuctl.nodes.garbage_removal import RemovalOutcome, remove_garbage
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT

MINE = {"tpuctl-owner": owner_label(OS_LOGIN_ACCOUNT)}
EXPIRED = {**MINE, "tpuctl-expires": "1767000000"}
HOLDS = "which hold 8 cores of preemptible v4, $0.00/h"


def dead(sandbox: Sandbox, name: str = "demo", **labels: str) -> None:
    put(sandbox, name, state="PREEMPTED", schedulingConfig={"spot": True}, labels={**MINE, **labels})


def test_gc_shows_and_deletes_only_with_yes(tpuctl: Console, sandbox: Sandbox) -> None:
    dead(sandbox)
    put(sandbox, "alive", labels=MINE)
    shown = (
        f"demo\t{ZONE}\tv4-8\tspot\tPREEMPTED\t2025-12-31T23:00:00Z\t8 cores\t0.00\t{MINE['tpuctl-owner']}\tPREEMPTED\n"
    )

    found = tpuctl("gc")
    assert found[0] == shown
    assert found[1:] == (said(f"to delete: 1, {HOLDS}", "  hint: delete with `tpuctl gc --yes`"), 0)
    assert tpuctl("gc", "--dry-run")[::2] == (shown, 0)
    assert sandbox.changes() == []

    out, err, code = tpuctl("gc", "--yes")

    assert (out, code, sandbox.changes()) == (shown, 0, ["delete"])
    assert err.splitlines()[0] == "demo: deleting it (PREEMPTED)"
    assert err.splitlines()[-1] == "deleted: 1, which held 8 cores of preemptible v4, $0.00/h"
    assert tpuctl("gc") == ("", "nothing to delete in any zone of project sandbox\n", 0)


def test_expired_node_is_deleted_and_history_says_why(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=EXPIRED)
    put(sandbox, "wrong", labels={**MINE, "tpuctl-expires": "tomorrow"})

    assert tpuctl("gc", "--yes")[::2] == ("", 0)
    out, err, code = tpuctl("gc", "--expired", "--yes", "-o", "name")

    assert (out, code, sandbox.changes()) == (f"{ZONE}/demo\n", 0, ["delete"])
    assert f"left alone: `{ZONE}/wrong` (label tpuctl-expires=tomorrow): it is not a time" in err
    assert "expired" in tpuctl("history", "demo")[0]


def test_deleted_node_is_not_taken_for_one_that_is_being_recreated(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=EXPIRED)
    tpuctl("gc", "--expired", "--yes")

    _, err, code = tpuctl("up", "demo", "--zone", ZONE)

    assert code == 2
    assert "create `demo`" in err


def test_watch_does_not_create_again_what_had_expired(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=EXPIRED)
    tpuctl("gc", "--expired", "--yes")

    _, err, code = tpuctl("watch", "demo", "--zone", ZONE, "--type", "v4-8", "--recreate-deleted", "--until", "5m")

    assert (code, sandbox.changes()) == (3, ["delete"])
    assert "`gc` ended `demo`" in err
    assert "starts or creates it again; to watch it nevertheless, pass `--force-lease`" in err


def test_watch_creates_again_after_the_record_of_a_preempted_node_was_deleted(
    tpuctl: Console, sandbox: Sandbox
) -> None:
    dead(sandbox)
    tpuctl("gc", "--yes")

    assert tpuctl("watch", "demo", "--zone", ZONE, "--type", "v4-8", "--recreate-deleted", "--until", "9m")[2] == 0
    assert sandbox.changes() == ["delete", "create"]


def test_stopped_node_that_expired_is_deleted_despite_the_mark_of_stop(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=EXPIRED)
    tpuctl("stop", "demo", "--yes")

    assert tpuctl("gc", "--expired", "--yes")[2] == 0
    assert sandbox.changes() == ["stop", "delete"]


def test_node_in_use_by_another_run_is_left_alone(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    put(sandbox, labels=MINE)
    results: list[Result] = []
    clock.after(timedelta(minutes=2), lambda: results.append(tpuctl("gc", "--older-than", "1h", "--yes")))

    tpuctl("wait", "demo")
    tpuctl("watch", "demo", "--zone", ZONE, "--until", "5m")

    ((out, err, code),) = results
    assert (out, code, sandbox.changes()) == ("", 0, [])
    assert f"left alone: `{ZONE}/demo`" in err
    assert "it is in use: `watch on " in err


def test_nodes_of_others_are_left_alone(tpuctl: Console, sandbox: Sandbox) -> None:
    dead(sandbox, "theirs", **{"tpuctl-owner": "bob"})
    put(sandbox, "unknown", state="TERMINATED")
    dead(sandbox, "kept", **{"tpuctl-keep": "paper"})

    out, err, code = tpuctl("gc", "--yes")

    assert (out, code, sandbox.changes()) == ("", 0, [])
    assert err == said(
        f"left alone: `{ZONE}/kept` (PREEMPTED): its label `tpuctl-keep` keeps it",
        f"left alone: `{ZONE}/theirs`, `{ZONE}/unknown`: created by others; `--everyones` includes them",
    )
    assert tpuctl("gc", "--everyones", "-o", "name")[0] == f"{ZONE}/theirs\n{ZONE}/unknown\n"


def test_queued_resources_are_deleted_with_their_nodes(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("failed", node_ids=("a",), state="FAILED", zone=ZONE)
    sandbox.add_queued_resource("gone", node_ids=("b",), state="SUSPENDED", zone=ZONE)
    put(sandbox, "b", state="PREEMPTED", queued_resource="gone")
    sandbox.add_queued_resource("late", node_ids=("c",), state="ACTIVE", zone=ZONE)
    put(sandbox, "c", queued_resource="late", labels={"tpuctl-expires": "1767000000"})
    sandbox.add_queued_resource("two", node_ids=("d", "e"), state="ACTIVE", zone=ZONE)
    put(sandbox, "d", queued_resource="two", labels={"tpuctl-expires": "1767000000"})
    put(sandbox, "e", queued_resource="two")

    out, err, code = tpuctl("gc", "--everyones", "--expired", "--yes", "-o", "name")

    assert (code, sorted(out.split())) == (0, [f"{ZONE}/b", f"{ZONE}/c", f"{ZONE}/failed"])
    assert f"left alone: `{ZONE}/two` (expired " in err
    assert tpuctl("queue", "list", "-o", "name")[0] == f"{ZONE}/two\n"
    assert tpuctl("list", "-o", "name")[0] == f"{ZONE}/d\n{ZONE}/e\n"


def test_waiting_requests_are_cancelled_after_a_limit(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("waits", node_ids=("a",), state="WAITING_FOR_RESOURCES", zone=ZONE)
    sandbox.advance(hours=5)

    assert tpuctl("gc", "--everyones", "--waiting-for", "6h", "--yes")[::2] == ("", 0)
    sandbox.advance(hours=1)
    assert tpuctl("gc", "--everyones", "--waiting-for", "6h", "--yes", "-o", "name")[::2] == (f"{ZONE}/waits\n", 0)
    assert tpuctl("queue", "list", "-o", "name")[0] == ""


def test_zone_that_does_not_answer_is_named_and_the_rest_is_done(tpuctl: Console, sandbox: Sandbox) -> None:
    dead(sandbox)
    sandbox.fault("unreachable", zone="europe-west4-a", count=0)

    out, err, code = tpuctl("gc", "--yes", "-o", "name")

    assert (out, code, sandbox.changes()) == (f"{ZONE}/demo\n", 1, ["delete"])
    assert "error: the list is incomplete: europe-west4-a could not be listed" in err


def test_json_has_what_is_deleted_and_what_is_left(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, labels=EXPIRED)
    dead(sandbox, "kept", **{"tpuctl-keep": "1"})

    found = json.loads(tpuctl("gc", "--expired", "-o", "json")[0])
    tried = json.loads(tpuctl("gc", "--expired", "--yes", "-o", "json")[0])

    assert [(item["name"], item["delete"], item["reason"]) for item in found] == [
        ("demo", True, "expired"),
        ("kept", False, "dead"),
    ]
    assert found[0]["quota"] == {"of": "on-demand v4", "amount": 8, "unit": "cores"}
    assert [item.get("outcome") for item in tried] == ["deleted", None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(("--yes", "--dry-run"), "`--yes` and `--dry-run` exclude one another", id="yes and dry-run"),
        pytest.param(("--older-than", "0"), "`--older-than` is at least 1m", id="zero age"),
        pytest.param(("--older-than", "forever"), "`--older-than` is at least 1m", id="age without end"),
        pytest.param(("--waiting-for", "59s"), "`--waiting-for` is at least 1m", id="below a minute"),
        pytest.param(("--older-than", "-3d"), "is not a duration", id="negative age"),
        pytest.param(("-l", ","), "`-l` names no label", id="no label"),
        pytest.param(("-l", "Team"), "`Team=` is not a valid label", id="an invalid label"),
    ],
)
def test_wrong_option_is_refused(tpuctl: Console, sandbox: Sandbox, options: tuple[str, ...], message: str) -> None:
    dead(sandbox)

    out, err, code = tpuctl("gc", *options)

    assert (out, code, sandbox.changes()) == ("", 2, [])
    assert message in err


def test_two_runs_at_once_delete_once(tpuctl: Console, sandbox: Sandbox) -> None:
    for name in ("a", "b", "c"):
        dead(sandbox, name)

    with ThreadPoolExecutor(2) as pool:
        results = [run.result() for run in [pool.submit(tpuctl, "gc", "--yes") for _ in range(2)]]

    assert [code for _, _, code in results] == [0, 0]
    assert sandbox.changes() == ["delete"] * 3


@pytest.fixture
def app(tpuctl: Console) -> Iterator[App]:
    """Yield an app in the place of the program, for what happens between a decision and its deletion."""
    streams = StandardStreams(io.StringIO(), io.StringIO(), io.StringIO())
    app = App(Invocation(("gc",), tpuctl.environ, streams, tpuctl.folder, tpuctl.clock))
    yield app
    app.close()


RULES = GarbageRules(expired=True, everyones=True)


def found_items(app: App) -> list[GarbageItem]:
    facts = GarbageFacts(project="sandbox", nodes=app.services.client.list_nodes("sandbox").nodes, requests=())
    return [item for item in find_garbage(facts, RULES, app.now()) if item.is_deleted]


def recreate(sandbox: Sandbox) -> None:
    somebody(sandbox, "delete")
    sandbox.advance(minutes=5)
    put(sandbox, labels=EXPIRED)


@pytest.mark.parametrize(
    ("happen", "outcome"),
    [
        pytest.param(lambda _: None, RemovalOutcome.DELETED, id="nothing happens"),
        pytest.param(lambda sandbox: somebody(sandbox, "delete"), RemovalOutcome.GONE, id="another client deletes it"),
        pytest.param(recreate, RemovalOutcome.LEFT, id="another client recreates it"),
        pytest.param(lambda sandbox: somebody(sandbox, "stop"), RemovalOutcome.LEFT, id="another client stops it"),
    ],
)
def test_each_deletion_looks_again(
    app: App, sandbox: Sandbox, happen: Callable[[Sandbox], None], outcome: RemovalOutcome
) -> None:
    put(sandbox, labels=EXPIRED)
    items = found_items(app)
    happen(sandbox)
    before = len(sandbox.changes())

    results = remove_garbage(app.services.context(lambda _: None), items, RULES, examine=lambda _: {}, timeout=None)

    assert [result.outcome for result in results] == [outcome]
    assert sandbox.changes()[before:] == (["delete"] if outcome is RemovalOutcome.DELETED else [])


@pytest.mark.parametrize(
    ("state", "status", "is_ended"),
    [
        pytest.param("READY", 503, True, id="answer-lost"),
        pytest.param("READY", 403, False, id="refused"),
        # A watcher creates it again.
        pytest.param("PREEMPTED", 503, False, id="dead"),
    ],
)
def test_node_that_may_have_been_deleted_is_not_created_again(
    app: App, sandbox: Sandbox, state: str, status: int, is_ended: bool
) -> None:
    put(sandbox, state=state, labels=EXPIRED, schedulingConfig={"spot": True})
    (item,) = found_items(app)
    sandbox.fault("http-error", method="*.nodes.delete", status=status, count=99)

    (result,) = remove_garbage(
        app.services.context(lambda _: None), [item], RULES, examine=lambda _: {}, timeout=timedelta(minutes=5)
    )

    assert result.outcome is RemovalOutcome.FAILED
    holder = app.services.leases.holder(item.group.names[0])
    assert (holder is not None and holder.record.ended is not None) is is_ended


@pytest.mark.parametrize("status", [429, 503])
def test_deletion_that_is_refused_for_now_is_judged_and_sent_again(app: App, sandbox: Sandbox, status: int) -> None:
    put(sandbox, labels=EXPIRED)
    (item,) = found_items(app)
    sandbox.fault("http-error", method="*.nodes.delete", status=status, count=20)

    (result,) = remove_garbage(
        app.services.context(lambda _: None), [item], RULES, examine=lambda _: {}, timeout=timedelta(minutes=30)
    )

    assert (result.outcome, result.error) == (RemovalOutcome.DELETED, None)
    assert sum(entry.get("event") == "delete" for entry in app.services.journal.entries(item.group.names[0])) == 1


def test_extended_node_is_left_alone(app: App, sandbox: Sandbox) -> None:
    put(sandbox, labels=EXPIRED)
    items = found_items(app)
    labels = {**MINE, "tpuctl-expires": "99999999999"}
    app.services.client.change_node(items[0].group.nodes[0].name, lambda node: changed_fields(node, {"labels": labels}))

    results = remove_garbage(app.services.context(lambda _: None), items, RULES, examine=lambda _: {}, timeout=None)

    assert [(result.outcome, result.text) for result in results] == [
        (RemovalOutcome.LEFT, "this is no longer so: expired 2d ago")
    ]

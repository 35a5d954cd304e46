"""`tpuctl up --slices`: a group of slices comes up together, or nothing of it is left."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import USER, ZONE, EventfulClock, both_faces, own, put
from tests.others import events, interrupt
from tpuctl.sandbox.stock import put_stockout

UP = ("up", "train", "--slices", "3", "--type", "v4-16", "--zone", ZONE)
QUEUED = ("up", "train", "--slices", "3", "--type", "v6e-8", "--zone", "us-east5-b", "--queue", "--timeout", "2h")
READY = "train-0\tREADY\ntrain-1\tREADY\ntrain-2\tREADY\n"
GROUP = {"tpuctl-group": "train"}
MINUTE = timedelta(minutes=1)


def left(tpuctl: Console) -> list[str]:
    """Return the nodes that exist, with their zones."""
    return ["/".join(reversed(line.split("\t")[:2])) for line in tpuctl("list")[0].splitlines()]


def shown(tpuctl: Console, name: str) -> Any:  # JSON
    return json.loads(tpuctl("status", name, "-o", "json")[0])[0]


def stockout(sandbox: Sandbox, zone: str = ZONE, **fields: object) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=zone, **fields)  # type: ignore[arg-type]  # a test's own


@both_faces
def test_up_creates_all_slices_in_one_zone_with_the_label_of_the_group(tpuctl: Console, sandbox: Sandbox) -> None:
    out, _, code = tpuctl(*UP)
    again = tpuctl(*UP)

    assert (out, code) == (READY, 0)
    assert (again[0], again[2], sandbox.changes()) == (READY, 0, ["create"] * 3)
    listed = json.loads(tpuctl("list", "-l", "tpuctl-group=train", "-o", "json")[0])
    assert [node["name"].rpartition("/")[2] for node in listed] == ["train-0", "train-1", "train-2"]
    assert "tpuctl-group=train" in tpuctl("list", "-o", "wide")[0]


def test_missing_slice_of_a_group_is_created_as_the_others_are(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP, "--spot")
    tpuctl("down", "train-1", "--yes")
    changes = len(sandbox.changes())

    out, _, code = tpuctl("up", "train", "--slices", "3")

    assert (out, code, sandbox.changes()[changes:]) == (READY, 0, ["create"])
    assert shown(tpuctl, "train-1")["schedulingConfig"] == {"spot": True}


def test_existing_nodes_become_slices_and_get_the_label(tpuctl: Console, sandbox: Sandbox) -> None:
    own(sandbox, "train-0", acceleratorType="v4-16")

    assert tpuctl(*UP)[2] == 0
    assert shown(tpuctl, "train-0")["labels"] == {"tpuctl-owner": USER, **GROUP}


@both_faces
@pytest.mark.parametrize("fault", ["operation-error", "hang"])
def test_up_gives_the_whole_group_up_if_one_slice_fails(tpuctl: Console, sandbox: Sandbox, fault: str) -> None:
    if fault == "hang":
        sandbox.fault("hang", state="CREATING", node="train-1")
    else:
        sandbox.fault("operation-error", code=8, node="train-1", count=0)

    out, err, code = tpuctl(*UP, "--timeout", "20m")

    assert (out, code) == ("", 5 if fault == "hang" else 6)
    assert "train-0: giving the group `train` up, because of `train-1`: what this run made is deleted" in err
    assert "hint: nothing is left of the group `train`" in err
    assert left(tpuctl) == []


def test_slice_that_was_usable_before_stays_when_the_group_is_given_up(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "train-0", acceleratorType="v4-16")
    stockout(sandbox)

    out, err, code = tpuctl(*UP)

    assert (out, code, left(tpuctl)) == ("", 6, [f"{ZONE}/train-0"])
    assert "hint: `train-0` was there before and stays: `tpuctl down -l tpuctl-group=train" in err


def test_slice_that_another_client_recreates_is_not_deleted(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    sandbox.fault("hang", state="CREATING", node="train-1")
    clock.after(6 * MINUTE, lambda: put(sandbox, "train-2", acceleratorType="v4-16"))

    _, err, code = tpuctl(*UP, "--timeout", "20m")

    assert (code, left(tpuctl)) == (5, [f"{ZONE}/train-2"])
    assert "not all of `train` could be deleted: `train-2` was not created by this run: left alone" in err


def test_interrupted_up_names_the_command_that_deletes_the_group_and_the_next_run_continues(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    clock.after(1 * MINUTE, interrupt)

    _, err, code = tpuctl(*UP)
    again = tpuctl(*UP)

    assert code == 130
    assert f"undo:   tpuctl down -l tpuctl-group=train --zone {ZONE}" in err
    assert (again[0], again[2], sandbox.changes()) == (READY, 0, ["create"] * 3)


def test_what_an_interrupted_run_left_is_deleted_with_the_group(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    sandbox.fault("hang", state="CREATING", node="train-1")
    clock.after(1 * MINUTE, interrupt)

    first, second = tpuctl(*UP)[2], tpuctl(*UP, "--timeout", "10m")[2]

    assert (first, second, left(tpuctl)) == (130, 5, [])


def test_slice_that_an_interrupted_run_left_ready_stays(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """It may be in use by now, also if no run of tpuctl has seen it usable."""
    tpuctl(*UP, "--no-wait")
    clock.sleep(10 * MINUTE)
    tpuctl("down", "train-1", "--yes")
    stockout(sandbox)

    _, err, code = tpuctl(*UP)

    assert (code, left(tpuctl)) == (6, [f"{ZONE}/train-0", f"{ZONE}/train-2"])
    assert "`train-0`, `train-2` were there before and stay" in err


@both_faces
def test_queue_requests_all_slices_with_one_queued_resource(tpuctl: Console, sandbox: Sandbox) -> None:
    out, _, code = tpuctl(*QUEUED)
    again = tpuctl(*QUEUED)
    request = json.loads(tpuctl("queue", "status", "train", "-o", "json")[0])

    assert (out, code, again[0], again[2]) == (READY, 0, READY, 0)
    assert sandbox.changes() == ["create"]
    assert request["tpu"]["nodeSpec"][0]["multiNodeParams"] == {"nodeCount": 3, "nodeIdPrefix": "train"}
    assert tpuctl("down", "train-*", "--yes")[2] == 0
    assert (left(tpuctl), tpuctl("queue", "list")[0]) == ([], "")


@pytest.mark.parametrize("tier", ["best-effort", "flex-start"])
def test_queue_requests_slices_of_tiers_of_another_version_of_the_api(
    tpuctl: Console, sandbox: Sandbox, tier: str
) -> None:
    assert tpuctl(*QUEUED, "--tier", tier)[2] == 0
    assert sandbox.changes() == ["create"]


def test_queued_group_without_capacity_is_given_up_at_the_deadline(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east5-b")

    out, err, code = tpuctl(*QUEUED)

    assert (out, code) == ("", 5)
    assert "no capacity for `train` in us-east5-b until" in err
    assert (left(tpuctl), tpuctl("queue", "list")[0]) == ([], "")


def test_queued_group_of_which_one_slice_hangs_is_given_up_at_the_deadline(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("hang", state="CREATING", node="train-1")

    out, _, code = tpuctl(*QUEUED)

    assert (out, code, left(tpuctl), tpuctl("queue", "list")[0]) == ("", 5, [], "")


def test_interrupted_up_is_continued_with_the_same_request(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    stockout(sandbox, "us-east5-b", duration=timedelta(hours=1))
    clock.after(10 * MINUTE, interrupt)

    first, second = tpuctl(*QUEUED)[2], tpuctl("up", "train", "--slices", "3", "--type", "v6e-8", "--timeout", "2h")

    assert (first, second[0], second[2], sandbox.changes()) == (130, READY, 0, ["create"])


def test_zone_any_moves_the_whole_group(tpuctl: Console, sandbox: Sandbox) -> None:
    """The second slice has no capacity in the first zone: nothing stays there."""
    for zone in ("us-*", "asia-*"):
        stockout(sandbox, zone, accelerator_type="v6e-*", tier="spot")

    up = ("up", "train", "--slices", "2", "--type", "v6e-8", "--spot", "--zone", "any", "--timeout", "4h")
    out, err, code = tpuctl(*up)

    assert (out, code) == ("train-0\tREADY\ntrain-1\tREADY\n", 0), err
    assert left(tpuctl) == ["europe-west4-a/train-0", "europe-west4-a/train-1"]


def test_group_is_completed_in_the_zone_of_its_slices(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "train-1", acceleratorType="v6e-8", zone="us-east5-b")
    up = ("up", "train", "--slices", "2", "--type", "v6e-8", "--zone")

    assert tpuctl(*up, "any")[2] == 0
    assert left(tpuctl) == ["us-east5-b/train-0", "us-east5-b/train-1"]
    assert tpuctl(*up, "us-east1-d,us-east1-c")[2] == 8
    _, err, code = tpuctl(*up, "us-east1-d")
    assert (code, "the group `train` is not in us-east1-d; found `train-0` (READY), `train-1` (READY)" in err) == (
        8,
        True,
    )


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        pytest.param(("a", "--slices", "1"), 2, "1 is not in the range 2<=x<=64", id="one"),
        pytest.param(("a", "--slices", "0"), 2, "0 is not in the range 2<=x<=64", id="none"),
        pytest.param(("a", "--slices", "256"), 2, "256 is not in the range 2<=x<=64", id="many"),
        pytest.param(("a", "b", "--slices", "2"), 2, "`--slices` makes one group, and 2 names", id="several names"),
        pytest.param(("a" * 62, "--slices", "2"), 2, "is not a name for 2 slices", id="long name"),
        pytest.param(("a", "--slices", "2", "--race"), 2, "cannot combine `--slices` and `--race`", id="race"),
    ],
)
def test_groups_that_cannot_be_are_refused(
    tpuctl: Console, sandbox: Sandbox, args: tuple[str, ...], code: int, message: str
) -> None:
    _, err, found = tpuctl("up", *args, "--type", "v4-8", "--zone", ZONE)

    assert (found, message in err, sandbox.changes()) == (code, True, [])


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["nodes", "request"])
def test_group_of_another_size_is_refused(tpuctl: Console, sandbox: Sandbox, queue: tuple[str, ...]) -> None:
    up = ("up", "train", "--type", "v6e-8", "--zone", "us-east5-b", *queue)
    tpuctl(*up, "--slices", "3")
    before = sandbox.changes()

    fewer = tpuctl(*up, "--slices", "2")

    assert (fewer[2], sandbox.changes()) == (8, before)
    assert ("for 3 slices, not 2" if queue else "has more than 2 slices, also train-2") in fewer[1]


def test_request_that_waits_for_another_size_is_replaced_if_asked(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east5-b", duration=timedelta(hours=1))
    up = ("up", "train", "--type", "v6e-8", "--zone", "us-east5-b", "--queue", "--timeout", "3h", "--replace")
    tpuctl(*up, "--slices", "2", "--no-wait")

    out, _, code = tpuctl(*up, "--slices", "3")
    again = tpuctl(*up, "--slices", "2")

    assert (out, code, again[2]) == (READY, 0, 8)
    assert sandbox.changes() == ["create", "delete", "create"]


def test_price_quota_and_budget_count_the_whole_group(tpuctl: Console, sandbox: Sandbox) -> None:
    up = ("up", "train", "--slices", "3", "--type", "v6e-8", "--zone", "us-east5-b")

    price, budget = tpuctl(*up, "--max-price", "50"), tpuctl(*up, "--budget", "50")
    searched = tpuctl(*up[:-1], "us-east5-b,us-east1-d", "--max-price", "50")

    assert (price[2], budget[2], searched[2], sandbox.changes()) == (9, 9, 9, [])
    assert "a group of 3 slices, each a v6e-8 (on-demand), costs $64.80/h" in price[1]
    assert "all nodes with `train-0` and 2 other new nodes would cost $64.80/h" in budget[1]
    assert tpuctl(*up, "--max-price", "65", "--budget", "65")[2] == 0


def test_check_counts_the_whole_group(tpuctl: Console, sandbox: Sandbox) -> None:
    check = ("check", "v6e-8", "--slices", "3", "--zone", "us-east5-b")
    out, _, code = tpuctl(*check, "--max-price", "50")

    assert (code, "a group of 3 slices, each a v6e-8 (on-demand), costs $64.80/h" in " ".join(out.split())) == (9, True)
    assert tpuctl(*check, "--max-price", "65")[2] == 0
    assert "`--slices` needs a zone" in tpuctl(*check[:-2])[1]


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["nodes", "request"])
def test_dry_run_shows_each_request_and_the_price_of_the_group(
    tpuctl: Console, sandbox: Sandbox, queue: tuple[str, ...]
) -> None:
    out, err, code = tpuctl(
        "up", "train", "--slices", "3", "--type", "v6e-8", "--zone", "us-east5-b", "--dry-run", *queue
    )

    assert (code, sandbox.changes()) == (0, [])
    assert "3 slices in us-east5-b together cost $64.80/h" in err
    if queue:
        assert out.count("POST ") == 1
        assert "--node-count=3 --node-prefix=train" in out
        assert "price: $64.80/h" in out
    else:
        assert out.count("POST ") == out.count("price: $21.60/h") == out.count("tpu-vm create train-") == 3


@pytest.mark.parametrize("command", ["down", "status", "watch"])
def test_name_of_a_group_is_no_node_and_its_slices_are_named(tpuctl: Console, sandbox: Sandbox, command: str) -> None:
    for index in range(3):
        put(sandbox, f"train-{index}", labels=GROUP)

    _, err, code = tpuctl(command, "train")

    assert (code, len(left(tpuctl))) == (8 if command == "down" else 3, 3)
    assert "`train` is a group of 3 slices (train-0, train-1, train-2)" in err


def test_up_creates_no_node_with_the_name_of_a_group(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)
    before = sandbox.changes()

    _, err, code = tpuctl("up", "train", "--type", "v4-16", "--zone", ZONE)

    assert (code, sandbox.changes()) == (8, before)
    assert "`tpuctl up train --slices 3" in err
    tpuctl("down", "train-*", "--yes")
    assert tpuctl("up", "train", "--type", "v4-16", "--zone", ZONE)[2] == 0


def test_slice_of_a_queued_group_is_not_requested_alone(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east5-b")
    tpuctl(*QUEUED)
    before = sandbox.changes()

    _, err, code = tpuctl("up", "train-1", "--yes", "--zone", "us-east5-b")

    assert (code, sandbox.changes()) == (8, before)
    assert "`tpuctl up train --slices 3" in err


def test_watch_recreates_a_lost_slice_and_runs_the_hook_once_for_the_group(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path
) -> None:
    tpuctl(*UP, "--spot")
    log = tmp_path / "log"
    clock.after(2 * MINUTE, lambda: sandbox.fault("preempt", node="train-1"))
    clock.after(3 * MINUTE, lambda: sandbox.fault("preempt", node="train-2"))

    hook = ("--on-recover", f"echo $TPUCTL_EVENT >> {log}; cat >> {log}")
    out, _, code = tpuctl("watch", "train-*", "--until", "25m", "--events", "-", *hook)

    recovered = [node for node, event in events(out, "node", "event") if event == "recovered"]
    assert (code, sorted(recovered)) == (0, ["train-1", "train-2"])
    lines = log.read_text().splitlines()
    assert lines[0] == "recovered"
    assert json.loads(lines[1])["slices"] == ["train-0", "train-1", "train-2"]
    assert len(lines) == 2
    assert len(left(tpuctl)) == 3


def test_watch_runs_the_hook_once_for_a_group_that_another_machine_made(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path
) -> None:
    for index in range(3):
        put(sandbox, f"train-{index}", labels=GROUP, schedulingConfig={"spot": True})
    log = tmp_path / "log"
    for index in range(2):
        clock.after(2 * MINUTE, lambda index=index: sandbox.fault("preempt", node=f"train-{index}"))  # type: ignore[misc]

    code = tpuctl("watch", "-l", "tpuctl-group=train", "--until", "25m", "--on-recover", f"echo again >> {log}")[2]

    assert (code, log.read_text(), len(left(tpuctl))) == (0, "again\n", 3)


def test_watch_of_a_group_finds_a_slice_that_a_killed_watch_was_recreating(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    tpuctl(*UP, "--spot")
    sandbox.fault("preempt", node="train-1")
    sandbox.fault("hang", state="DELETING", node="train-1", duration=5 * MINUTE)
    clock.after(3 * MINUTE, interrupt)
    tpuctl("watch", "train-*", "--until", "25m")
    clock.sleep(10 * MINUTE)
    assert len(left(tpuctl)) == 2

    code = tpuctl("watch", "-l", "tpuctl-group=train", "--until", "25m")[2]

    assert (code, len(left(tpuctl))) == (0, 3)


@pytest.mark.parametrize("fault", ["preempt", "suspend"])
def test_watch_of_a_queued_group_runs_the_hook_once(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path, fault: str
) -> None:
    """The service creates a lost slice of a request again; a suspended request is deleted and requested again."""
    tpuctl(*QUEUED, "--spot")
    log = tmp_path / "log"
    clock.after(2 * MINUTE, lambda: sandbox.fault(fault, node="train-1"))

    code = tpuctl("watch", "train-*", "--until", "60m", "--on-recover", f"echo $TPUCTL_EVENT >> {log}")[2]

    assert code == 0
    assert sandbox.changes() == ["create"] + ["delete", "create"] * (fault == "suspend")
    assert log.read_text() == "recovered\n"
    assert len(left(tpuctl)) == 3


def test_slice_that_differs_stops_the_run_before_any_is_created(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "train-1", acceleratorType="v4-8")

    _, err, code = tpuctl(*UP)

    assert (code, sandbox.changes()) == (8, [])
    assert (
        "`train-1` exists and differs from the requested spec:\n  accelerator_type: wanted `v4-16`, found `v4-8`" in err
    )


def test_zone_that_does_not_answer_may_have_slices(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unreachable", zone="us-east1-d", count=0)
    up = ("up", "train", "--slices", "2", "--type", "v6e-8", "--zone")

    somewhere, there = tpuctl(*up, "any"), tpuctl(*up, "us-east5-b")

    assert (somewhere[2], there[2], len(left(tpuctl))) == (1, 0, 2)
    assert "`train-0` was not found, but us-east1-d did not answer and may have it" in somewhere[1]


def test_history_shows_that_a_node_is_a_slice(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)

    assert "v4-16 with tpu-ubuntu2204-base, on-demand, one of 3 slices" in tpuctl("history", "train-1")[0]


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["nodes", "request"])
def test_up_without_waiting_requests_the_group_and_the_next_run_waits_for_it(
    tpuctl: Console, sandbox: Sandbox, queue: tuple[str, ...]
) -> None:
    up = ("up", "train", "--slices", "3", "--type", "v6e-8", "--zone", "us-east5-b", *queue)

    first, second = tpuctl(*up, "--no-wait"), tpuctl(*up)

    assert (first[2], second[0], second[2]) == (0, READY, 0)
    assert sandbox.changes() == ["create"] * (1 if queue else 3)


def test_up_that_only_looks_changes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    for index in range(3):
        put(sandbox, f"train-{index}", acceleratorType="v4-16")

    there = tpuctl(*UP, "--timeout", "0")
    sandbox.fault("preempt", node="train-1")

    assert (there[2], tpuctl(*UP, "--timeout", "0")[2], sandbox.changes()) == (0, 5, [])


def test_watch_requests_no_suspended_group_again_that_exceeds_the_budget(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    tpuctl(*QUEUED, "--spot")
    tpuctl("config", "set", "budget", "25")
    clock.after(2 * MINUTE, lambda: sandbox.fault("suspend", node="train-1"))

    _, err, _ = tpuctl("watch", "train-*", "--until", "1h")

    assert "more than the budget of $25/h" in err
    assert sandbox.changes().count("create") == 1


def test_watch_requests_a_group_again_whose_request_failed(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path
) -> None:
    tpuctl(*QUEUED, "--spot")
    log = tmp_path / "log"

    def suspend() -> None:
        sandbox.fault("operation-error", code=8, node="train", method="*.queuedResources.create")
        sandbox.fault("suspend", node="train-1")

    clock.after(2 * MINUTE, suspend)

    code = tpuctl("watch", "-l", "tpuctl-group=train", "--until", "45m", "--on-recover", f"echo again >> {log}")[2]

    assert (code, log.read_text()) == (0, "again\n")
    assert sandbox.changes() == ["create", "delete", "create", "delete", "create"]


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["nodes", "request"])
def test_watch_of_a_group_ends_if_another_client_deletes_it(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, queue: tuple[str, ...]
) -> None:
    tpuctl("up", "train", "--slices", "2", "--type", "v6e-8", "--zone", "us-east5-b", *queue)
    before = sandbox.changes()

    def delete() -> None:
        tpuctl("down", "-l", "tpuctl-group=train", "--yes", "--no-wait")

    clock.after(2 * MINUTE, delete)

    _, err, code = tpuctl("watch", "train-*", "--until", "2h")

    assert code == 3, err
    assert sandbox.changes()[len(before) :] == ["delete"] * (1 if queue else 2)


def test_group_keeps_the_tier_that_it_has_if_several_are_allowed(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "train-1", acceleratorType="v4-16")

    assert tpuctl(*UP, "--tier", "spot,on-demand")[2] == 0
    assert "spot" not in shown(tpuctl, "train-0").get("schedulingConfig", {})

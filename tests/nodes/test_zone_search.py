"""`tpuctl up` in several zones and tiers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, told
from tests.others import interrupt
from tpuctl.sandbox.administration import end_stockouts
from tpuctl.sandbox.stock import put_level, put_stockout

ANY = ("up", "demo", "--type", "v6e-8", "--spot", "--zone")


def stockout(sandbox: Sandbox, zone: str = "*", **fields: object) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=zone, accelerator_type="v6e-*", **fields)  # type: ignore[arg-type]  # a test's own


def zone_of(tpuctl: Console) -> str:
    return tpuctl("list")[0].split("\t")[1]


def test_up_ends_in_the_only_zone_with_capacity_and_says_why(tpuctl: Console, sandbox: Sandbox) -> None:
    for zone in ("us-*", "asia-*"):
        stockout(sandbox, zone, tier="spot")

    out, err, code = tpuctl(*ANY, "any", "--timeout", "4h")

    assert (out, code, zone_of(tpuctl)) == ("demo\tREADY\n", 0, "europe-west4-a")
    assert "us-central1-b: no capacity" in told(err)
    assert told(err)[-1].startswith("usable (ssh)")
    assert "\tREADY\t" in tpuctl("history", "demo")[0]
    assert tpuctl("down", "demo", "--yes")[2] == 0
    assert tpuctl("up", "demo", "--dry-run")[0].startswith("1. create demo in europe-west4-a: ")


def test_exit_6_lists_each_zone_with_its_answer(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox)

    out, err, code = tpuctl(*ANY, "us-east1-d,us-east5-b", "--timeout", "10m")

    assert (out, code) == ("", 6)
    again = "up demo --queue --timeout 12h --type v6e-8 --spot"
    assert f"hint: wait with `tpuctl {again}`, or allow more zones (`--zone any`)" in err
    assert "error: no capacity for `v6e-8` in any of 2 zones:\n  us-east1-d: no capacity, at 2026-01-01T00:" in err
    assert tpuctl("list")[0] == ""


def test_node_that_exists_in_one_of_the_zones_is_adopted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("demo", zone="us-east5-b", acceleratorType="v6e-8", age=timedelta(hours=1), spot=True)

    out, _, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", "any")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, [])


def test_zone_without_the_type_is_left_out_with_a_line(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl(*ANY, "us-central2-b,us-east5-b")

    assert (code, zone_of(tpuctl)) == (0, "us-east5-b")
    assert "us-central2-b does not offer `v6e-8`: left out\n" in err


def test_zone_that_does_not_exist_is_left_out_with_a_line(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl(*ANY, "us-east5-q,us-east5-b")
    none = tpuctl("up", "other", *ANY[2:], "us-east5-q,us-east5-r")

    assert (code, zone_of(tpuctl), none[2]) == (0, "us-east5-b", 2)
    assert "us-east5-q does not offer `v6e-8`: left out\n" in err
    assert "no zone of `--zone us-east5-q,us-east5-r` offers `v6e-8`" in none[1]


def test_no_zone_with_the_type_is_a_usage_error_that_names_some(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl(*ANY, "us-central2-b,us-west4-a")

    assert (code, sandbox.changes()) == (2, [])
    assert "error: no zone of `--zone us-central2-b,us-west4-a` offers `v6e-8`\n  hint: it is offered in asia-" in err


def test_tiers_are_tried_in_order_in_all_zones(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, tier="spot")

    _, err, code = tpuctl(
        "up",
        "demo",
        "--type",
        "v6e-8",
        "--tier",
        "spot,on-demand",
        "--zone",
        "us-east1-d,us-east5-b",
        "--timeout",
        "2h",
    )

    assert code == 0
    assert [line for line in told(err) if line.startswith("trying")] == [
        "trying us-east1-d (spot), 1 of 4",
        "trying us-east5-b (spot), 2 of 4",
        "trying us-east1-d (on-demand), 3 of 4",
    ]
    assert tpuctl("list")[0].split("\t")[7] == "on-demand"


def test_tiers_are_tried_in_order_in_one_zone(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, tier="spot")
    tiers = ("--type", "v6e-8", "--tier", "spot,on-demand")

    out, err, code = tpuctl("up", "demo", *tiers, "--zone", "us-east5-b", "--timeout", "2h")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert "us-east5-b (spot): no capacity" in told(err)
    assert tpuctl("up", "other", *tiers)[2] == 2


def test_zones_that_cost_more_than_the_limit_are_left_out(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", "us-east1-d,europe-west4-a", "--max-price", "22")

    assert (code, zone_of(tpuctl)) == (0, "us-east1-d")
    assert "europe-west4-a costs $23.76/h, more than the limit of $22/h: left out\n" in err

    _, err, code = tpuctl("up", "demo2", "--type", "v6e-8", "--zone", "us-east1-d,us-east5-b", "--max-price", "1")

    assert (code, err.count("us-east1-d costs $21.60/h")) == (9, 1)


def test_error_of_access_ends_the_search_at_once(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("http-error", method="*nodes.create", status=403, count=0)

    _, err, code = tpuctl(*ANY, "us-east1-d,us-east5-b")

    assert (code, [line for line in told(err) if line.startswith("trying")]) == (4, ["trying us-east1-d, 1 of 2"])


def test_search_begins_again_until_there_is_capacity(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, duration=timedelta(minutes=20))

    out, err, code = tpuctl(*ANY, "us-east1-d,us-east5-b", "--timeout", "2h")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert "no zone has capacity: next round in 1m" in told(err)


def test_queue_in_several_zones_shares_the_time(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east1-d")

    out, err, code = tpuctl(*ANY, "us-east1-d,us-east5-b", "--queue", "--timeout", "2h")

    assert (out, code, zone_of(tpuctl)) == ("demo\tREADY\n", 0, "us-east5-b")
    assert "us-east1-d: no capacity in its time in the queue" in told(err)
    assert sandbox.changes() == ["create", "delete", "create"]


def test_queue_in_several_zones_shares_the_time_after_its_start(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east1-d")
    zones = ("--zone", "us-east1-d,us-east5-b")

    out, _, code = tpuctl(*ANY[:-1], *zones, "--queue", "--start-after", "3h", "--timeout", "5h")

    assert (out, code, zone_of(tpuctl)) == ("demo\tREADY\n", 0, "us-east5-b")


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["node", "request"])
def test_up_again_keeps_the_tier_that_had_capacity(tpuctl: Console, sandbox: Sandbox, queue: tuple[str, ...]) -> None:
    stockout(sandbox, tier="spot")
    command = (*ANY[:4], "--tier", "spot,on-demand", "--zone", "us-east1-d,us-east5-b", "--timeout", "2h", *queue)
    assert tpuctl(*command)[2] == 0
    sent = sandbox.changes()

    again, plan = tpuctl(*command), tpuctl(*command, "--dry-run")

    assert (again[::2], plan[2], sandbox.changes()) == (("demo\tREADY\n", 0), 0, sent)


def test_killed_search_goes_on_in_the_other_zones(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """The record of the attempt is deleted, and the second run does not end where the first one stood."""
    stockout(sandbox, "us-east1-d")
    zones = ("--zone", "us-east1-d,us-east5-b")
    command = (*ANY[:-1], *zones, "--queue", "--timeout", "1h")
    clock.after(timedelta(minutes=5), interrupt)
    assert tpuctl(*command)[2] == 130

    out, _, code = tpuctl(*command)

    assert (out, code, zone_of(tpuctl)) == ("demo\tREADY\n", 0, "us-east5-b")
    assert sandbox.changes() == ["create", "delete", "create", "delete", "create"]


def test_watch_finds_the_request_of_a_killed_search(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """The journal knows two zones, and there is no node yet."""
    stockout(sandbox, duration=timedelta(minutes=40))
    zones = ("--zone", "us-east1-d,us-east5-b")
    clock.after(timedelta(minutes=35), interrupt)
    assert tpuctl(*ANY[:-1], *zones, "--queue", "--timeout", "1h")[2] == 130

    assert (tpuctl("watch", "demo", "--until", "30m")[2], zone_of(tpuctl)) == (0, "us-east5-b")


def test_creation_of_a_killed_run_that_fails_is_no_deletion_by_others(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    stockout(sandbox, "us-east1-d")
    command = (*ANY[:-1], "--zone", "us-east1-d")
    clock.after(timedelta(seconds=4), interrupt)
    assert tpuctl(*command)[2] == 130

    _, err, code = tpuctl(*command)

    assert (code, sandbox.changes()) == (6, ["create", "create"])
    assert "deleted by another client" not in err


def test_zones_setting_of_the_project_file_is_used(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east1-d")
    (tpuctl.folder / "tpuctl.yaml").write_text("zones: [us-east1-d, us-east5-b]\ntype: v6e-8\ntier: spot\n")

    _, _, code = tpuctl("up", "demo", "--timeout", "2h")

    assert (code, zone_of(tpuctl)) == (0, "us-east5-b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("a", "b", "--zone", "any", "--race"), "`--race` takes one node, not 2", id="nodes in a race"),
        pytest.param(
            ("us-east1-d/a", "--zone", "us-east5-b,us-east5-a"),
            "is in us-east1-d, which `--zone",
            id="zone in the name",
        ),
        pytest.param(("a", "--zone", "any,us-east5-b"), "`--zone any` excludes other zones", id="any and one"),
        pytest.param(("a", "--zone", "us-east5-b,nowhere"), "`nowhere` is not", id="no zone"),
    ],
)
def test_several_zones_with_wrong_input_are_usage_errors(
    tpuctl: Console, sandbox: Sandbox, arguments: tuple[str, ...], message: str
) -> None:
    _, err, code = tpuctl("up", *arguments, "--type", "v6e-8")

    assert (message in err, code, sandbox.changes()) == (True, 2, [])


def test_zone_in_the_name_precedes_the_zones_of_the_project(tpuctl: Console, sandbox: Sandbox) -> None:
    file = tpuctl.folder / "tpuctl.yaml"
    file.write_text("zones: [us-east1-d, us-east5-b]\ntype: v6e-8\n")
    assert tpuctl("up", "us-east5-a/a", "--dry-run")[0].startswith("1. create a in us-east5-a: ")

    file.write_text("zones: [us-east1-d]\ntype: v6e-8\n")
    assert tpuctl("up", "a", "--dry-run")[0].startswith("1. create a in us-east1-d: ")


def test_any_zone_finds_a_node_outside_the_zone_of_the_settings(tpuctl: Console, sandbox: Sandbox) -> None:
    (tpuctl.folder / "tpuctl.yaml").write_text("zone: us-east1-d\n")
    sandbox.add_node("a", zone="us-east5-b", acceleratorType="v6e-8")

    assert tpuctl("wait", "a", "--for", "ready", "--zone", "any")[2] == 0
    assert tpuctl("down", "a", "--yes", "--zone", "any")[0] == "a\n"


def test_create_refuses_any_zone(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl("create", "a", "--type", "v6e-8", "--zone", "any")

    assert ("error: `--zone any` names several zones\n" in err, code, sandbox.changes()) == (True, 2, [])


def test_watch_recreates_in_another_zone_without_capacity(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    tpuctl(*ANY, "us-east1-d")

    def preempt() -> None:
        stockout(sandbox, "us-east1-d")
        sandbox.fault("preempt", node="demo")

    clock.after(timedelta(minutes=5), preempt)
    out, _, code = tpuctl("watch", "demo", "--zone", "us-east1-d,us-east5-b", "--until", "1h", "--events", "-")

    assert (code, zone_of(tpuctl)) == (0, "us-east5-b")
    assert "us-east1-d: no capacity; trying us-east5-b" in out
    assert sandbox.changes() == ["create", "delete", "create", "create"]


def test_down_during_a_pause_ends_the_search(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    stockout(sandbox)
    downs: list[object] = []

    def give_up() -> None:
        downs.append(tpuctl("down", "demo", "--yes")[::2])
        with sandbox.state.write() as session:
            end_stockouts(session)

    # The third pause lasts for four minutes.
    clock.after(timedelta(minutes=10), give_up)
    _, err, code = tpuctl(*ANY, "us-east1-d,us-east5-b", "--timeout", "2h")

    assert (downs, code, told(err)[-2].startswith("error: `down` ended `demo`")) == ([("demo\n", 0)], 3, True), err
    assert (tpuctl("list")[0], sandbox.changes()) == ("", ["create"] * 6)


def test_zone_in_use_by_another_process_ends_the_search(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    stockout(sandbox)
    ends = []
    clock.after(timedelta(minutes=10), lambda: ends.append(tpuctl(*ANY, "us-east5-b,asia-northeast1-b")))
    tpuctl(*ANY, "us-east1-d,us-east5-b", "--timeout", "20m")

    ((_, err, code),) = ends
    assert (code, "`demo` in us-east5-b is in use by up on " in err) == (8, True), err


def test_down_during_the_pause_of_a_moving_watch_ends_it(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    tpuctl(*ANY, "us-east1-d")
    downs: list[object] = []

    def preempt() -> None:
        stockout(sandbox)
        sandbox.fault("preempt", node="demo")

    def give_up() -> None:
        if not downs and tpuctl("status", "demo")[2] == 3:
            downs.append(tpuctl("down", "demo", "--yes")[::2])
            with sandbox.state.write() as session:
                end_stockouts(session)

    clock.after(timedelta(minutes=5), preempt)
    for minutes in range(36, 60):
        clock.after(timedelta(minutes=minutes), give_up)
    _, err, code = tpuctl("watch", "demo", "--zone", "us-east1-d,us-east5-b", "--until", "5h")

    assert (downs, code, told(err)[-2].startswith("`down` ended `demo`")) == ([("demo\n", 0)], 3, True), err
    assert tpuctl("list")[0] == ""


def test_watch_moves_into_a_zone_where_the_node_was_deleted_before(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    tpuctl(*ANY, "us-east5-b")
    tpuctl("down", "demo", "--yes")
    tpuctl(*ANY, "us-east1-d")

    def preempt() -> None:
        stockout(sandbox, "us-east1-d")
        sandbox.fault("preempt", node="demo")

    clock.after(timedelta(minutes=5), preempt)
    _, err, code = tpuctl("watch", "demo", "--zone", "us-east1-d,us-east5-b", "--until", "1h")

    assert (code, zone_of(tpuctl)) == (0, "us-east5-b"), err


def test_moving_watch_leaves_no_request_behind(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    tpuctl(*ANY, "us-east5-b", "--queue")
    sandbox.fault("preempt", node="demo")
    sandbox.fault("operation-error", node="demo", method="*.queuedResources.create", count=0)
    waiting: list[int] = []
    for minutes in range(5, 60):
        clock.after(timedelta(minutes=minutes), lambda: waiting.append(len(tpuctl("queue", "list")[0].splitlines())))

    _, err, code = tpuctl("watch", "demo", "--zone", "us-east5-b,us-east1-d", "--until", "1h")

    assert (code, max(waiting), err.count("; trying us-") > 2) == (0, 1, True), err


@pytest.mark.parametrize("queue", [(), ("--queue",)], ids=["node", "request"])
@pytest.mark.parametrize("resumed", [False, True], ids=["new", "continued"])
@pytest.mark.parametrize("seconds", [1, 61, 240])
def test_search_creates_nothing_after_a_down(
    tpuctl: Console,
    sandbox: Sandbox,
    clock: EventfulClock,
    queue: tuple[str, ...],
    seconds: int,
    *,
    resumed: bool,
) -> None:
    """In an attempt, between two of them, and in a pause; the journal has only the zones in which it has tried."""
    stockout(sandbox, duration=timedelta(minutes=30))
    command = (*ANY, "us-east1-d,us-east5-b", "--timeout", "2h", *queue)
    if resumed:
        clock.after(timedelta(minutes=1), interrupt)
        assert tpuctl(*command)[2] == 130
    results: list[tuple[int, int]] = []

    def down() -> None:
        code = tpuctl("down", "demo", "--yes")[2]
        results.append((code, sandbox.changes().count("create")))

    clock.after(timedelta(seconds=seconds), down)

    _, err, code = tpuctl(*command)

    ((down_code, created),) = results
    assert (down_code, code, sandbox.changes().count("create")) == (0, 3, created), err
    assert "`down` ended `demo`" in err
    assert tpuctl("list")[0] + tpuctl("queue", "list")[0] == ""


def places(tpuctl: Console) -> dict[str, tuple[str, str]]:
    """Return zone and capacity type of each node, by its name."""
    rows = [line.split("\t") for line in tpuctl("list")[0].splitlines()]
    return {row[0]: (row[1], row[7]) for row in rows}


SEVERAL = ("up", "a", "b", "--type", "v6e-8", "--spot", "--timeout", "2h", "--zone")


def test_several_nodes_get_the_first_zone_with_capacity_each(tpuctl: Console, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        put_level(session, zone="us-east1-d", accelerator_type="v6e-*", nodes=1)

    out, err, code = tpuctl(*SEVERAL, "us-east1-d,us-east5-b")

    assert (out, code, sorted(zone for zone, _ in places(tpuctl).values())) == (
        "a\tREADY\nb\tREADY\n", 0, ["us-east1-d", "us-east5-b"]
    )  # fmt: skip
    assert (err.count(": us-east1-d: no capacity\n"), sandbox.changes()) == (1, ["create"] * 3)
    assert err.count("usable (ssh)") == 2


def test_several_nodes_try_tiers_and_wait_for_capacity(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, tier="spot")
    stockout(sandbox, tier="on-demand", duration=timedelta(minutes=20))

    tiers = ("--tier", "spot,on-demand")
    _, err, code = tpuctl(*SEVERAL[:5], *tiers, "--zone", "us-east1-d", "--timeout", "2h")

    assert (code, places(tpuctl)) == (0, dict.fromkeys(("a", "b"), ("us-east1-d", "on-demand"))), err
    assert err.count("no zone has capacity: next round in 1m") == 2


def test_several_nodes_adopt_those_that_exist(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("a", zone="asia-northeast1-b", acceleratorType="v6e-8", schedulingConfig={"spot": True})
    nodes = ("up", "a", "b", "us-east1-d/c", *SEVERAL[3:])

    _, err, code = tpuctl(*nodes, "any")
    again = tpuctl(*nodes, "any")

    found = {name: zone for name, (zone, _) in places(tpuctl).items()}
    assert (code, found["a"], found["c"]) == (0, "asia-northeast1-b", "us-east1-d"), err
    assert (again[2], sandbox.changes().count("create")) == (0, 2)


def test_several_nodes_without_capacity_end_one_by_one(tpuctl: Console, sandbox: Sandbox) -> None:
    stockout(sandbox, "us-east5-b")
    with sandbox.state.write() as session:
        put_level(session, zone="us-east1-d", accelerator_type="v6e-*", nodes=1)

    out, err, code = tpuctl(*SEVERAL[:-3], "--timeout", "10m", "--zone", "us-east1-d,us-east5-b")

    assert (len(out.splitlines()), code, len(places(tpuctl))) == (1, 6, 1), err
    assert "no capacity for `v6e-8` in any of 2 zones:\n  us-east1-d: no capacity, at 2026-01-01T00:" in err


def test_down_during_the_pause_of_several_searches_ends_them(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    stockout(sandbox)
    clock.after(timedelta(minutes=3), lambda: tpuctl("down", "a", "b", "--yes"))

    _, _, code = tpuctl(*SEVERAL, "us-east1-d,us-east5-b")

    assert (code != 0, places(tpuctl)) == (True, {})


def test_several_nodes_in_several_zones_are_planned_and_requested_without_waiting(
    tpuctl: Console, sandbox: Sandbox
) -> None:
    plan = tpuctl(*SEVERAL, "us-east1-d,us-east5-b", "--dry-run")
    requested = tpuctl(*SEVERAL[:-3], "--no-wait", "--zone", "us-east1-d,us-east5-b")

    assert [line[: line.index(":")] for line in plan[0].splitlines() if line[0].isdigit()] == [
        "1. create a in us-east1-d", "2. create b in us-east1-d"
    ]  # fmt: skip
    assert "zones in this order: us-east1-d, us-east5-b; the plan is for the first" in plan[1]
    assert (requested[2], [zone for zone, _ in places(tpuctl).values()]) == (0, ["us-east1-d"] * 2)

"""`tpuctl up --race`, and what `down`, `history` and the next `up` make of a race."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta

import pytest

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import EventfulClock, put, told
from tests.others import interrupt
from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import remove_fault

ZONES = ("us-east5-b", "us-east1-d", "asia-northeast1-b")
RACE = ("up", "t", "--type", "v6e-8", "--spot", "--zone", ",".join(ZONES), "--race")


def no_stock(sandbox: Sandbox, *zones: str, tier: str = "spot") -> None:
    with sandbox.state.write() as session:
        for zone in zones:
            administration.add_stockout(session, zone=zone, tier=tier)


def interrupted_race(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, *empty: str) -> str:
    """Interrupt a race without stock in the `empty` zones, in any if none are named. Return its stderr."""
    no_stock(sandbox, *(empty or ("*",)))
    clock.after(timedelta(minutes=5), interrupt)
    _, err, code = tpuctl(*RACE, "--timeout", "2h")
    assert code == 130
    return err


def test_race_ends_usable_in_the_only_zone_with_stock(tpuctl: Console, sandbox: Sandbox) -> None:
    no_stock(sandbox, ZONES[0], ZONES[2])

    out, err, code = tpuctl(*RACE, "--timeout", "2h")

    lines = told(err, "t")
    assert (out, code) == ("t\tREADY\n", 0)
    wins = [line for line in lines if " wins: " in line]
    assert [line.partition(" after ")[0] for line in wins] == [f"{ZONES[1]} wins: its queued resource is ACTIVE"]
    lost = {f"{zone}: deleting its queued resource `t` ({ZONES[1]} won the race)" for zone in (ZONES[0], ZONES[2])}
    assert lost <= {*lines}
    assert lines.index(f"{ZONES[2]}: its queued resource `t` is gone") < len(lines) - 1
    assert lines[-1].startswith("usable (ssh) after ")
    assert sorted(sandbox.changes()) == ["create"] * 3 + ["delete"] * 2
    assert tpuctl("queue", "list")[0].split("\t")[:2] == ["t", ZONES[1]]


@pytest.mark.parametrize("further", [(), ("--timeout", "6h")], ids=["alone", "with a deadline"])
def test_limit_of_each_request_of_a_race_is_named(tpuctl: Console, sandbox: Sandbox, further: tuple[str, ...]) -> None:
    no_stock(sandbox, *ZONES)

    _, err, code = tpuctl(*RACE, "--queue-for", "2h", *further)

    assert (code, tpuctl("queue", "list")[0]) == (5, ""), err
    assert "no capacity for `t`" in err


def test_zone_that_won_is_the_one_that_is_remembered(tpuctl: Console, sandbox: Sandbox) -> None:
    no_stock(sandbox, ZONES[0], ZONES[2])
    tpuctl(*RACE, "--timeout", "2h")

    out, _, code = tpuctl("history", "t")
    told_of_race = [line.split("\t")[-1] for line in out.splitlines() if line.split("\t")[1] == "race"]
    assert (code, told_of_race) == (0, [f"in {', '.join(ZONES)}", f"{ZONES[1]} won", "over"])
    assert tpuctl("down", "t", "--yes")[::2] == ("t\n", 0)
    out, err, code = tpuctl("up", "t", "--yes", "--timeout", "2h")

    assert (out, code) == ("t\tREADY\n", 0), err
    assert tpuctl("list")[0].split("\t")[:2] == ["t", ZONES[1]]


def test_down_in_a_zone_that_lost_does_not_delete_the_winner(tpuctl: Console, sandbox: Sandbox) -> None:
    no_stock(sandbox, ZONES[0], ZONES[2])
    tpuctl(*RACE, "--timeout", "2h")

    _, err, code = tpuctl("down", f"{ZONES[0]}/t", "--yes")

    assert (f"error: `t` is not in {ZONES[0]}; found {ZONES[1]}/t" in err.splitlines(), code) == (True, 8), err
    assert tpuctl("list")[0].split("\t")[:2] == ["t", ZONES[1]]


def test_interrupted_race_is_named_and_continued_by_a_plain_up(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    err = interrupted_race(tpuctl, sandbox, clock)

    left = f"the requests for `t` in {', '.join(ZONES)} still count against the quota, and bill when they get a TPU"
    assert f"warning: interrupted: {left}; nothing was undone" in err.splitlines()
    assert err.splitlines()[-1] == "  undo:   tpuctl down t"
    _, err, code = tpuctl("status", "t")
    assert (code, "error: there are 3 queued resources `t`: " in err) == (8, True)

    with sandbox.state.write() as session:
        administration.end_stockouts(session)
    out, err, code = tpuctl("up", "t", "--timeout", "2h")

    assert (out, code) == ("t\tREADY\n", 0)
    assert told(err, "t")[0] == f"continuing the race of an earlier run in {', '.join(ZONES)}"
    assert sorted(sandbox.changes()) == ["create"] * 3 + ["delete"] * 2


def test_down_cancels_all_requests_of_an_interrupted_race(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    interrupted_race(tpuctl, sandbox, clock)

    plan, _, code = tpuctl("down", "t", "--dry-run")
    assert (plan.count("DELETE "), code, sandbox.changes()) == (3, 0, ["create"] * 3)
    _, err, code = tpuctl("down", "t")
    others = sorted(ZONES)[1:]
    racing = ", ".join(f"{zone} (WAITING_FOR_RESOURCES)" for zone in others)
    assert (f"and the requests of the same race in {racing}?" in err, code) == (True, 2), err
    assert tpuctl("down", "t", "--yes")[::2] == ("t\n", 0)
    assert tpuctl("queue", "list")[:1] == ("",)
    assert tpuctl("down", "t", "--yes") == ("t\n", "t: already gone\n", 0)


def killed() -> str:
    """Return the line about a race whose run was killed."""
    ends = "`tpuctl up t` keeps one, `tpuctl down t` deletes all"
    return f"`t` is requested in {', '.join(sorted(ZONES))} by a race whose run has ended: {ends}"


def lost_race(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """Interrupt a race that has a winner before a request is cancelled; all its requests get their nodes later."""
    no_stock(sandbox, *ZONES[1:])
    fault = sandbox.fault("http-error", method="*.queuedResources.delete", status=503, count=9999)
    clock.after(timedelta(minutes=5), interrupt)
    tpuctl(*RACE, "--timeout", "2h")
    with sandbox.state.write() as session:
        remove_fault(session, fault)
        administration.end_stockouts(session)
    sandbox.advance(minutes=20)


def test_losers_of_an_interrupted_race_are_listed_and_deleted_by_gc(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """Each of them bills, and no run is left to cancel it."""
    lost_race(tpuctl, sandbox, clock)
    losers = [f"{ZONES[2]}/t", f"{ZONES[1]}/t"]

    listed = tpuctl("list")[1].splitlines()
    status = tpuctl("status", "t")[1].splitlines()
    shown = tpuctl("gc")
    assert (listed[-1], status[-1]) == (killed(), f"  hint: {killed()}")
    assert [line.split("\t")[-1] for line in shown[0].splitlines()] == [f"lost the race to {ZONES[0]}"] * 2
    assert "to delete: 2, which hold 16 chips of preemptible v6e, ~$" in shown[1]
    assert sandbox.changes() == ["create"] * 3

    out, _, code = tpuctl("gc", "--yes", "-o", "name")

    assert (out.split(), code, sandbox.changes()) == (losers, 0, ["create"] * 3 + ["delete"] * 2)
    assert tpuctl("list", "-o", "name") == (f"{ZONES[0]}/t\n", "", 0)
    assert tpuctl("gc", "--yes")[:1] == ("",)
    assert tpuctl("up", "t", "--timeout", "2h")[::2] == ("t\tREADY\n", 0)


def test_loser_of_a_race_in_use_is_left_alone(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    lost_race(tpuctl, sandbox, clock)
    found: list[Result] = []
    clock.after(timedelta(minutes=2), lambda: found.append(tpuctl("gc", "--yes", "-o", "name")))

    tpuctl("watch", f"{ZONES[1]}/t", "--until", "5m")

    ((out, err, code),) = found
    assert (out, code) == (f"{ZONES[2]}/t\n", 0), err
    assert f"left alone: `{ZONES[1]}/t` (lost the race to {ZONES[0]}): it is in use: `watch on " in err


def unproven(*zones: str) -> list[str]:
    """Return the lines about requests of which the journal does not know that they lost."""
    why = "not deleted, because the journal here does not know that it lost"
    return [
        f"left alone: `{zone}/t` (labelled as of a race): {why}; see it with `tpuctl status {zone}/t`"
        for zone in sorted(zones)
    ]


def forget(sandbox: Sandbox) -> None:
    """Remove the journal, as on another machine."""
    for file in (sandbox.state.path.parent / "journal").rglob("*.jsonl"):
        file.unlink()


def test_race_without_a_recorded_winner_is_ended_by_up_and_not_by_gc(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """Each of three nodes may be the one that is used."""
    interrupted_race(tpuctl, sandbox, clock)
    with sandbox.state.write() as session:
        administration.end_stockouts(session)
    sandbox.advance(minutes=20)

    out, err, code = tpuctl("gc", "--yes")

    assert (out, code, sandbox.changes()) == ("", 0, ["create"] * 3)
    assert err.splitlines()[:3] == unproven(*ZONES)
    assert tpuctl("up", "t", "--timeout", "2h")[::2] == ("t\tREADY\n", 0)
    assert sandbox.changes() == ["create"] * 3 + ["delete"] * 2


def test_race_of_another_machine_is_never_ended_by_gc(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """Its requests are listed once their time is over: until then its run may be about to choose."""
    lost_race(tpuctl, sandbox, clock)
    forget(sandbox)

    sandbox.advance(minutes=80)
    assert tpuctl("gc", "--yes")[1].splitlines()[:-1] == []
    sandbox.advance(minutes=30)
    out, err, code = tpuctl("gc", "--yes")

    assert (out, code, sandbox.changes()) == ("", 0, ["create"] * 3)
    assert err.splitlines()[:3] == unproven(*ZONES)


COLLEAGUES = "europe-west4-a"  # sorts before the zones of the race


def copy_label(tpuctl: Console, sandbox: Sandbox, zone: str, **labels: str) -> None:
    """Put a request with a READY node of the same name into a zone, which has the labels of the race `t`."""
    theirs = {**json.loads(tpuctl("list", "-o", "json")[0])[0]["labels"], **labels}
    assert "tpuctl-race" in theirs
    body = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", "labels": theirs}
    parent = f"projects/sandbox/locations/{zone}"
    request = sandbox.add_queued_resource(
        "t",
        zone=zone,
        state="ACTIVE",
        node_ids=("t",),
        tpu={"nodeSpec": [{"parent": parent, "nodeId": "t", "node": body}]},
    )
    put(sandbox, "t", zone=zone, acceleratorType="v6e-8", labels=theirs, queued_resource=request["name"])


@pytest.mark.parametrize(
    "labels",
    [pytest.param({"tpuctl-owner": "mallory"}, id="of-a-colleague"), pytest.param({}, id="as-if-ours")],
)
@pytest.mark.parametrize("knows", [pytest.param(True, id="with-journal"), pytest.param(False, id="without-journal")])
def test_copied_label_of_a_race_deletes_nothing(
    tpuctl: Console, sandbox: Sandbox, labels: dict[str, str], *, knows: bool
) -> None:
    no_stock(sandbox, *ZONES[1:])
    assert tpuctl(*RACE, "--timeout", "2h")[2] == 0
    copy_label(tpuctl, sandbox, COLLEAGUES, **labels)
    if not knows:
        forget(sandbox)
        sandbox.advance(hours=30)
    before = sandbox.changes()

    out, err, code = tpuctl("gc", "--yes")

    assert (out, code, sandbox.changes()) == ("", 0, before)
    listed = unproven(COLLEAGUES) if knows else unproven(COLLEAGUES, ZONES[0])
    assert err.splitlines()[: len(listed)] == listed
    assert sorted(tpuctl("list", "-o", "name")[0].split()) == sorted([f"{COLLEAGUES}/t", f"{ZONES[0]}/t"])


@pytest.mark.parametrize("owner", ["mallory", ""], ids=["of-a-colleague", "of-unknown-owner"])
@pytest.mark.parametrize("knows", [pytest.param(True, id="with-journal"), pytest.param(False, id="without-journal")])
@pytest.mark.parametrize("verb", ["down", "delete"])
def test_down_of_a_race_leaves_what_another_user_labelled_alike(
    tpuctl: Console, sandbox: Sandbox, verb: str, owner: str, *, knows: bool
) -> None:
    no_stock(sandbox, *ZONES[1:])
    assert tpuctl(*RACE, "--timeout", "2h")[2] == 0
    copy_label(tpuctl, sandbox, COLLEAGUES, **{"tpuctl-owner": owner})
    if not knows:
        forget(sandbox)
    before = sandbox.changes()

    out, err, code = tpuctl(verb, "t", "--yes")
    assert (out, code, sandbox.changes(), f"{COLLEAGUES}/t" in err, f"{ZONES[0]}/t" in err) == (
        "",
        8,
        before,
        True,
        True,
    )

    assert tpuctl(verb, f"{ZONES[0]}/t", "--yes")[::2] == ("t\n", 0)
    assert tpuctl("list", "-o", "name")[0] == f"{COLLEAGUES}/t\n"


def test_up_that_finds_several_winners_offers_the_command_that_keeps_the_first(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    lost_race(tpuctl, sandbox, clock)
    forget(sandbox)

    out, err, code = tpuctl(*RACE, "--timeout", "2h")

    states = ", ".join(f"{zone} (ACTIVE)" for zone in sorted(ZONES))
    others = " ".join(f"{zone}/t" for zone in sorted(ZONES[1:]))
    command = f"tpuctl queue cancel {others}"
    assert (out, code, sandbox.changes()) == ("", 8, ["create"] * 3)
    assert err.splitlines()[-2:] == [
        f"error: `t` is requested by another race already, in {states}",
        f"  hint: keep the one in {ZONES[0]} with `{command}`, or cancel all with `tpuctl down t`",
    ]
    assert tpuctl(*shlex.split(command)[1:], "--yes")[2] == 0
    assert tpuctl("list", "-o", "name")[0] == f"{ZONES[0]}/t\n"
    assert tpuctl(*RACE, "--timeout", "2h")[::2] == ("t\tREADY\n", 0)


def test_race_without_a_usable_node_has_no_losers(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """The node is still wanted: the next `up` goes on, or `--waiting-for` ends the requests."""
    interrupted_race(tpuctl, sandbox, clock)

    nothing = "nothing to delete in any zone of project sandbox"
    assert tpuctl("gc", "--yes") == ("", f"{nothing}\n{killed()}\n", 0)
    assert tpuctl("status", f"{ZONES[1]}/t")[1].splitlines() == [killed()]
    assert sandbox.changes() == ["create"] * 3


def test_race_in_progress_is_no_leftover(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    no_stock(sandbox, "*")
    seen: list[Result] = []
    clock.after(timedelta(minutes=5), lambda: seen.extend((tpuctl("gc"), tpuctl("status", f"{ZONES[1]}/t"))))

    tpuctl(*RACE, "--timeout", "10m")

    assert seen[0][1:] == ("nothing to delete in any zone of project sandbox\n", 0)
    assert "by a race that goes on: `up on " in seen[1][1]


@pytest.mark.parametrize("verb", ["down", "delete"])
@pytest.mark.parametrize("named", [(f"{ZONES[1]}/t",), ("t", "--zone", ZONES[1])], ids=["in-the-name", "as-an-option"])
def test_deletion_in_a_named_zone_leaves_the_race_in_others(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, verb: str, named: tuple[str, ...]
) -> None:
    interrupted_race(tpuctl, sandbox, clock)
    left = sorted({*ZONES} - {ZONES[1]})

    out, err, code = tpuctl(verb, *named, "--yes")

    assert (out, code) == ("t\n", 0), err
    assert [line.split("\t")[1] for line in tpuctl("queue", "list")[0].splitlines()] == left
    others = f"requests of the same race are left in {', '.join(left)}; delete them too with `tpuctl down t`"
    assert err.splitlines()[0] == others
    _, err, code = tpuctl("down", "t", "--yes")
    assert (code, tpuctl("queue", "list")[0]) == (0, ""), err
    assert {f"{zone}: its queued resource `t` is gone" for zone in left} <= {*told(err, "t")}


def test_race_without_stock_ends_with_5_and_leaves_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    no_stock(sandbox, "*")

    out, err, code = tpuctl(*RACE, "--timeout", "20m")

    assert (out, code) == ("", 5)
    assert "error: none of 3 zones had a TPU for `t` in time; every request is cancelled" in err.splitlines()
    assert tpuctl("queue", "list")[0] == ""
    with sandbox.state.write() as session:
        administration.end_stockouts(session)
    again = err.partition("wait longer with `")[2].partition("`")[0]
    assert tpuctl(*shlex.split(again)[1:])[::2] == ("t\tREADY\n", 0)


@pytest.mark.parametrize("options", [pytest.param((), id="new"), pytest.param(("--race",), id="continued")])
def test_dry_run_of_a_race_changes_nothing(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, options: tuple[str, ...]
) -> None:
    if options:
        interrupted_race(tpuctl, sandbox, clock)
    before = sandbox.changes()

    out, err, code = tpuctl(*(("up", "t") if options else RACE), "--dry-run", "--timeout", "2h")

    assert (code, sandbox.changes()) == (0, before), err
    assert all(zone in out for zone in ZONES)
    assert err.count("dry run: nothing was changed") == 1


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        pytest.param(("--no-wait",), "cannot continue the race for `t` with `--no-wait`", id="no-wait"),
        pytest.param(("--timeout", "0"), "cannot only look at the race for `t` with `--timeout 0`", id="look"),
    ],
)
def test_unfinished_race_is_not_continued_without_waiting(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, flags: tuple[str, ...], error: str
) -> None:
    interrupted_race(tpuctl, sandbox, clock)

    _, err, code = tpuctl("up", "t", *flags)

    assert (code, error in err, sandbox.changes()) == (2, True, ["create"] * 3)


def test_down_deletes_the_winner_though_a_zone_does_not_answer(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    no_stock(sandbox, ZONES[1], ZONES[2])
    fault = sandbox.fault("http-error", method="*.queuedResources.delete", status=503, count=0)
    clock.after(timedelta(minutes=10), interrupt)
    tpuctl(*RACE, "--timeout", "2h")
    assert tpuctl("list")[0].split("\t")[3] == "READY"

    with sandbox.state.write() as session:
        remove_fault(session, fault)
    sandbox.fault("unreachable", zone=ZONES[1], count=0)
    _, err, code = tpuctl("down", "t", "--yes", "--timeout", "5m")

    assert (code, f"  {ZONES[1]} does not answer" in err.splitlines(), tpuctl("list")[0]) == (1, True, ""), err


def test_race_whose_time_has_ended_asks_again(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    interrupted_race(tpuctl, sandbox, clock)
    clock.sleep(timedelta(days=1))
    with sandbox.state.write() as session:
        administration.end_stockouts(session)

    out, err, code = tpuctl("up", "t", "--timeout", "1h")

    asks_again = f"{ZONES[0]}: deleting its queued resource `t`: it is FAILED, by the service: only its record is left"
    assert (out, code, asks_again in told(err, "t")) == ("t\tREADY\n", 0, True), err


@pytest.mark.parametrize("zones", ["us-central1-b", "us-central1-b,europe-west4-a"])
def test_race_that_waits_is_not_doubled_in_another_zone(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, zones: str
) -> None:
    interrupted_race(tpuctl, sandbox, clock)

    _, err, code = tpuctl("up", "t", "--type", "v6e-8", "--spot", "--zone", zones)

    assert (code, sandbox.changes()) == (8, ["create"] * 3)
    assert f"error: `t` is still requested by a race in {', '.join(ZONES)}" in err.splitlines()


@pytest.mark.parametrize("zones", ["us-central1-b", "us-central1-b,europe-west4-a"])
def test_race_without_requests_does_not_decide_for_other_zones(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, zones: str
) -> None:
    interrupted_race(tpuctl, sandbox, clock, *ZONES)
    clock.sleep(timedelta(days=1))

    out, err, code = tpuctl("up", "t", "--type", "v6e-8", "--spot", "--zone", zones)

    assert (out, code, tpuctl("list")[0].split("\t")[1]) == ("t\tREADY\n", 0, "us-central1-b"), err

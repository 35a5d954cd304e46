"""`tpuctl extend`: it moves the end of a node's time by its label, and changes nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import USER, ZONE, EventfulClock, own, put
from tests.others import errors, somebody
from tpuctl.nodes.expiry import expiry_label

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LATER = {"tpuctl-owner": USER, "tpuctl-expires": expiry_label(START + HOUR), "team": "vision"}


def labels(tpuctl: Console, name: str = "demo") -> dict[str, str]:
    found: dict[str, str] = json.loads(tpuctl("status", name, "-o", "json")[0])[0].get("labels", {})
    return found


@pytest.mark.parametrize(
    ("before", "words", "end"),
    [
        pytest.param(LATER, ("2h",), "2026-01-01T03:00:00Z", id="added-to-the-end"),
        pytest.param({}, ("2h",), "2026-01-01T02:00:00Z", id="from-now-without-an-end"),
        pytest.param({"tpuctl-expires": "1700000000"}, ("2h",), "2026-01-01T02:00:00Z", id="from-now-if-expired"),
        pytest.param({"tpuctl-expires": "soon"}, ("2h",), "2026-01-01T02:00:00Z", id="from-now-if-invalid"),
        pytest.param(LATER, ("--until", "2026-01-01T00:30:00Z", "--yes"), "2026-01-01T00:30:00Z", id="until-earlier"),
        pytest.param(LATER, ("--until", "5h"), "2026-01-01T05:00:00Z", id="until-from-now"),
        pytest.param(LATER, ("--no-expiry",), "never", id="removed"),
        pytest.param({"tpuctl-expires": "soon"}, ("--no-expiry",), "never", id="invalid-removed"),
    ],
)
def test_extend_moves_the_end(
    tpuctl: Console, sandbox: Sandbox, before: dict[str, str], words: tuple[str, ...], end: str
) -> None:
    own(sandbox, labels={"run": "7", **before})

    assert tpuctl("extend", "demo", *words) == (f"demo\t{ZONE}\t{end}\n", "", 0)

    shown = json.loads(tpuctl("status", "demo", "-o", "json")[0])[0]
    kept = {key: value for key, value in before.items() if key != "tpuctl-expires"}
    assert shown.get("expires", "never") == end
    assert {key: value for key, value in shown["labels"].items() if key != "tpuctl-expires"} == {
        "run": "7", "tpuctl-owner": USER, **kept,
    }  # fmt: skip
    assert f"expires {end}" in tpuctl("history", "demo")[0]


def test_extend_takes_nodes_by_label(tpuctl: Console, sandbox: Sandbox) -> None:
    for name in "ab":
        put(sandbox, name, labels=LATER)
    put(sandbox, "c")

    out, err, code = tpuctl("extend", "-l", "team=vision", "1h", "-o", "json")

    assert [(node["nodeId"], node["expires"]) for node in json.loads(out)] == [
        ("a", "2026-01-01T02:00:00Z"),
        ("b", "2026-01-01T02:00:00Z"),
    ]
    assert (err, code, sandbox.changes()) == ("", 0, ["patch", "patch"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("demo",), "no time given: `demo` is not a duration", id="no-time"),
        pytest.param((), "no time given", id="nothing"),
        pytest.param(("2h",), "no nodes given", id="no-node"),
        pytest.param(("demo", "0s"), "`extend … 0s` is not in the future", id="zero"),
        pytest.param(("demo", "2"), "`2` has no unit: write `2h` for hours or `2m` for minutes", id="no-unit"),
        pytest.param(("demo", "1s"), "`extend … 1s` is too short: a time limit is at least 5m", id="too-short"),
        pytest.param(("demo", "366d"), "`extend … 366d` is too long", id="beyond-a-year"),
        pytest.param(("demo", "365d"), "`extend demo 365d` is too long", id="end-beyond-a-year"),
        pytest.param(("demo", "--until", "2025-12-31T23:59:59Z"), "`--until 2025-12-31T23:59:59Z`", id="past"),
        pytest.param(("demo", "--until", "1h", "--no-expiry"), "cannot combine `--until` and", id="two-changes"),
        pytest.param(("demo", "2h", "-l", "a!="), "`-l a!=` has no value", id="label-without-value"),
    ],
)
def test_extend_refuses_bad_input(tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], message: str) -> None:
    put(sandbox, labels=LATER)

    out, err, code = tpuctl("extend", *words)

    assert (out, code, sandbox.changes()) == ("", 2, [])
    assert message in err


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("CREATING", "tpuctl wait us-central2-b/demo --for ready"),
        ("STARTING", "tpuctl wait us-central2-b/demo --for ready"),
        ("DELETING", "tpuctl up demo --ttl 8h"),
        ("PREEMPTED", "tpuctl up demo --ttl 8h"),
    ],
)
def test_extend_refuses_states_in_which_labels_cannot_change(
    tpuctl: Console, sandbox: Sandbox, state: str, hint: str
) -> None:
    put(sandbox, state=state, age=timedelta(), labels=LATER)

    out, err, code = tpuctl("extend", "demo", "2h")

    assert (out, code, sandbox.changes()) == ("", 8, [])
    assert f"`demo` is {state}: its time limit cannot be changed" in err
    assert hint in err


def test_extend_of_a_request_without_a_node_is_not_found(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_queued_resource("demo", state="WAITING_FOR_RESOURCES", node_ids=("demo",))

    for place in ((), ("--zone", ZONE)):
        _, err, code = tpuctl("extend", "demo", "2h", *place)

        assert (code, "has no node yet" in err) == (3, True)
        assert "tpuctl queue cancel us-central2-b/demo" in err


def test_extend_of_several_nodes_goes_on_after_a_failure(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "a", state="PREEMPTED")
    own(sandbox, "b")

    out, err, code = tpuctl("extend", "a", "b", "2h")

    assert (out, len(errors(err)), code) == (f"b\t{ZONE}\t2026-01-01T02:00:00Z\n", 1, 8)


def test_extend_leaves_a_recreated_node_alone(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    """The first answer of the patch is lost; meanwhile another client recreates the node."""
    put(sandbox, labels=LATER)

    def recreate() -> None:
        somebody(sandbox, "delete")
        sandbox.advance(minutes=10)
        somebody(sandbox, "create")

    sandbox.fault("http-error", method="*.nodes.patch", status=409, count=1)
    clock.after(timedelta(), recreate)

    _, err, code = tpuctl("extend", "demo", "2h")

    assert (code, "another client recreated the node" in err) == (8, True)
    assert "tpuctl-expires" not in labels(tpuctl)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("2h", "--until", "18:00"),
            "error: `2h` and `--until` exclude each other\n  hint: give the time to add, or the new end\n",
        ),
        (("forever",), "error: `forever` is no time\n  hint: remove the limit: `tpuctl extend demo --no-expiry`\n"),
    ],
    ids=["time-and-until", "forever"],
)
def test_extend_explains_a_time_that_it_cannot_take(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], message: str
) -> None:
    put(sandbox)

    assert tpuctl("extend", "demo", *words) == ("", message, 2)

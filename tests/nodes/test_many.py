"""Several nodes in one command: `up a b c`, `wait --all`, `wait -l KEY=VALUE`."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, both_faces, put
from tests.others import errors, interrupt, reads, somebody

THREE = ("up", "a", "b", "c", "--type", "v4-8", "--zone", ZONE)


@both_faces
def test_up_of_several_nodes_reports_each(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error", node="b")

    out, err, code = tpuctl(*THREE)

    assert (out, code, sandbox.changes()) == ("a\tREADY\nc\tREADY\n", 6, ["create"] * 3)
    assert [error[:45] for error in errors(err)] == ["error: b: the zone has no such TPU free at the mo"[:45]]


def test_up_of_several_nodes_exits_with_the_worst_code(tpuctl: Console, sandbox: Sandbox) -> None:
    """8 before 6 before 5, whatever comes first."""
    sandbox.fault("operation-error", node="b")
    sandbox.fault("hang", node="c")
    put(sandbox, "a", acceleratorType="v4-16")

    out, err, code = tpuctl(*THREE)
    one_less, _, less = tpuctl("up", "c", "d", "--type", "v4-8", "--zone", ZONE, "--timeout", "10m")

    assert (out, code, len(errors(err)), sandbox.changes()) == ("", 8, 3, ["create"] * 3)
    assert (one_less, less) == ("d\tREADY\n", 5)


def test_json_of_several_nodes_is_an_array(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error", node="b")

    several, _, code = tpuctl("up", "a", "b", "--type", "v4-8", "--zone", ZONE, "-o", "json")
    one, _, _ = tpuctl("up", "a", "-o", "json")

    assert ([node["nodeId"] for node in json.loads(several)], code) == (["a"], 6)
    assert json.loads(one)["nodeId"] == "a"


def test_up_continues_after_an_interruption(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    clock.after(timedelta(minutes=2), interrupt)

    out, err, code = tpuctl(*THREE, "d")

    assert (out, code, sandbox.changes()) == ("", 130, ["create"] * 4)
    assert err.splitlines()[-3:] == [
        "warning: interrupted: `a`, `b`, `c`, `d` bill as soon as they run; nothing was undone",
        f"  resume: tpuctl up a b c --type v4-8 --zone {ZONE} d",
        "  undo:   tpuctl down " + " ".join(f"{ZONE}/{name}" for name in "abcd"),
    ]
    out, _, code = tpuctl(*THREE, "d")
    assert (out, code, sandbox.changes()) == ("a\tREADY\nb\tREADY\nc\tREADY\nd\tREADY\n", 0, ["create"] * 4)


def test_wait_for_many_nodes_uses_one_list(tpuctl: Console, sandbox: Sandbox) -> None:
    def tick(*names: str) -> Counter[str]:
        for name in names:
            put(sandbox, name, state="STARTING")
            sandbox.fault("hang", node=name, state="STARTING")
        before = reads(sandbox)
        tpuctl("wait", *names, "--zone", ZONE, "--for", "ready", "--timeout", "5m")
        return Counter(path.rpartition("/")[2] for path in reads(sandbox)[len(before) :])

    few, many = tick("a", "b"), tick(*(f"n{number}" for number in range(20)))

    assert many == few
    assert tick("one")["one"] == few["nodes"]


@pytest.mark.parametrize(
    ("choice", "chosen"), [(("--all",), "abc"), (("-l", "team=x"), "ab"), (("-l", "team=x", "-l", "run=2"), "b")]
)
def test_wait_by_label_selects_nodes(tpuctl: Console, sandbox: Sandbox, choice: tuple[str, ...], chosen: str) -> None:
    put(sandbox, "a", labels={"team": "x", "run": "1"})
    put(sandbox, "b", labels={"team": "x", "run": "2"}, state="STARTING")
    put(sandbox, "c")

    out, _, code = tpuctl("wait", *choice, "--for", "healthy")

    assert (out, code) == ("".join(f"{name}\tREADY\n" for name in chosen), 0)


def test_wait_all_with_an_unreachable_zone_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "a")
    sandbox.fault("unreachable", zone="europe-west4-a", count=0)

    out, err, code = tpuctl("wait", "--all")

    assert (out, len(errors(err)), code) == ("", 1, 1)
    assert "europe-west4-a" in errors(err)[0]


def test_wait_continues_if_one_node_is_deleted(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    for name in "ab":
        put(sandbox, name, state="REPAIRING")
    clock.after(timedelta(seconds=30), lambda: somebody(sandbox, "delete", "a"))

    out, err, code = tpuctl("wait", "a", "b")

    assert (out, code) == ("b\tREADY\n", 3)
    assert errors(err) == [f"error: `a` in {ZONE} is being deleted by another client"]

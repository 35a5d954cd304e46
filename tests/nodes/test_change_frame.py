"""What holds for every command that changes nodes: it asks, refuses before it changes, and treats each node alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put, said
from tests.others import errors

SLICE, SPOT = {"acceleratorType": "v4-16"}, {"schedulingConfig": {"spot": True}}
DISK = {"sourceDisk": f"projects/sandbox/zones/{ZONE}/disks/old", "mode": "READ_WRITE"}
DELETION = f"delete the v4-8 node (READY) `demo` in {ZONE}, with its boot disk"
# Of each command that asks about a named node: its words, the node, and the question.
QUESTIONS = {
    "stop": (("stop", "demo"), {}, "stop `demo`"),
    "stop-spot": (("stop", "demo"), SPOT, "stop `demo` (cannot be started again once stopped: `demo`, spot)"),
    "reset": (
        ("reset", "demo"),
        {},
        "restart `demo` (terminates what runs on it, keeps its boot disk; the start needs free capacity)",
    ),
    "recreate": (("reset", "demo", "--mode", "recreate"), {}, "delete `demo` and its boot disk, and recreate it"),
    "down": (("down", "demo"), {}, DELETION),
    "delete": (("delete", "demo"), {}, DELETION),
    "rm": (("rm", "demo"), {}, DELETION),
    "update": (
        ("update", "demo", "--detach-disk", "old"),
        {"dataDisks": [DISK]},
        "detach old from demo (is it unmounted on the workers)",
    ),
    "queue-cancel": (
        ("queue", "cancel", "demo"),
        {"queued_resource": "demo"},
        "delete the queued resource `demo` (ACTIVE) with its node `demo` (READY) and all data on it",
    ),
}


@pytest.mark.parametrize(("words", "fields", "question"), QUESTIONS.values(), ids=QUESTIONS)
def test_change_of_a_named_node_asks(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], fields: dict[str, Any], question: str
) -> None:
    """Of others' nodes too: without a terminal a script must say that it means it."""
    put(sandbox, labels={"tpuctl-owner": "ann"}, **fields)
    if "queued_resource" in fields:
        sandbox.add_queued_resource("demo", zone=ZONE, state="ACTIVE", node_ids=("demo",))
    refused, hint = (
        f"error: cannot ask for confirmation ({question}?)",
        "  hint: nothing was done; pass `--yes` to confirm",
    )

    assert tpuctl(*words) == ("", said(f"{refused}: stdin is not a terminal", f"{hint} (`--quiet` does not)"), 2)
    assert tpuctl(*words, stdin="y\n", CI="true") == (
        "",
        said(f"{refused}: CI is set", f"{hint} (`--quiet` does not)"),
        2,
    )
    assert tpuctl(*words, stdin="n\n") == ("", f"{question}? [y/N] cancelled\n", 1)
    assert sandbox.changes() == []
    assert tpuctl(*words, stdin="y\n")[2] == 0
    assert sandbox.changes() != []


# Of each command a node that it can change, and one that it cannot.
IMPOSSIBLE: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any], list[str]]] = {
    "start": (("start",), {"state": "STOPPED"}, {"state": "PREEMPTED"}, ["start"]),
    "stop": (("stop",), {}, SLICE, ["stop"]),
    "reset": (("reset", "--mode", "restart"), {}, SLICE, ["stop", "start"]),
    "update": (("update", "--detach-disk", "old"), {"dataDisks": [DISK]}, {}, ["patch"]),
}


@pytest.mark.parametrize("row", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_node_is_left_out_of_a_selection_and_stops_a_named_change(
    tpuctl: Console, sandbox: Sandbox, row: tuple[tuple[str, ...], dict[str, Any], dict[str, Any], list[str]]
) -> None:
    words, good, bad, changes = row
    put(sandbox, "good", **good)
    put(sandbox, "bad", **bad)

    named = tpuctl(words[0], "good", "bad", *words[1:], "--yes")
    between = sandbox.changes()
    plan = tpuctl(words[0], "--all", *words[1:], "--dry-run", "-o", "json")
    out, err, code = tpuctl(words[0], "--all", *words[1:], "--yes")

    assert (named[0], named[2], between) == ("", 8, [])
    assert ([step["node"] for step in json.loads(plan[0])], plan[2]) == (["good"], 8)
    assert (out.split("\t")[0], code, sandbox.changes()) == ("good", 8, changes), err
    assert [line for line in err.splitlines() if line.startswith(("error: ", "left out: "))] == errors(err)
    assert "`bad`" in err.splitlines()[-2] + err.splitlines()[-1]

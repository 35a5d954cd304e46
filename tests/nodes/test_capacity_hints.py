"""The commands that an error of capacity names: the typed options for the cloud stay, the place or way changes."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import put

NODE = ("--type", "v6e-8", "--zone", "us-east5-b", "--spot")


@pytest.mark.parametrize(
    "typed",
    [
        pytest.param(("up", "demo", *NODE), id="up"),
        pytest.param(("create", "demo", *NODE), id="create"),
        pytest.param(("run", "demo", "--up", "v6e-8", "--rm", *NODE[2:], "--", "echo a b"), id="run"),
    ],
)
def test_hints_without_capacity_create_a_node_of_the_typed_type_and_tier(
    tpuctl: Console, sandbox: Sandbox, typed: tuple[str, ...]
) -> None:
    """The typed tier was spot: the same command without it would create a node that costs more."""
    sandbox.fault("operation-error")

    _, err, code = tpuctl(*typed)

    commands = re.findall(r"`tpuctl (up [^`]*)`", err)
    assert code == 6
    assert commands == [
        "up demo --zone any --type v6e-8 --spot",
        "up demo --queue --type v6e-8 --spot --zone us-east5-b",
    ]
    for command in commands:
        out, _, ended = tpuctl(*shlex.split(command), "--dry-run", "-o", "json")
        body = json.dumps(json.loads(out)[0]["request"]["body"])
        assert (ended, '"acceleratorType": "v6e-8"' in body, '"spot"' in body) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "trainr", "--", "true"), "did you mean `trainer`?"),
        (("ssh", "traner"), "did you mean `trainer`?"),
        (("status", "sweep-3"), "run `tpuctl list` to see the nodes of all zones"),
    ],
    ids=["run", "ssh", "another-number"],
)
def test_mistyped_name_has_the_near_one_in_its_hint(
    tpuctl: Console, sandbox: Sandbox, words: tuple[str, ...], hint: str
) -> None:
    for name in ("trainer", "sweep-2"):
        put(sandbox, name)

    _, err, code = tpuctl(*words)

    assert (code, err.splitlines()[1]) == (3, f"  hint: {hint}")

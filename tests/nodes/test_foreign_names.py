"""Names that other tools gave: every command takes what the API lists, and no new node gets one."""

from __future__ import annotations

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put, said

NAMES = ("team-v6e-8_000103", "8.Chips~+%")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "command",
    [
        "status NAME",
        "list NAME",
        "list *[_C]*",
        f"wait {ZONE}/NAME --for ready",
        "up NAME --for healthy",
        "stop NAME --yes",
        "reset NAME --yes --for healthy",
        "update NAME --labels a=b",
        "extend NAME 2h --yes",
        "env NAME",
        "queue status request_NAME",
        "queue cancel request_NAME --yes",
        "down NAME --yes",
        "delete NAME --yes",
    ],
)
def test_each_command_takes_any_name_that_the_api_lists(
    tpuctl: Console, sandbox: Sandbox, command: str, name: str
) -> None:
    put(sandbox, name)
    sandbox.add_queued_resource(f"request_{name}", zone=ZONE, state="WAITING_FOR_RESOURCES", node_ids=("q",))

    out, err, code = tpuctl(*(word.replace("NAME", name) for word in command.split()))

    assert (name in out, code) == (True, 0), err


@pytest.mark.parametrize("name", NAMES)
def test_node_with_a_foreign_name_is_recreated_and_keeps_its_journal(
    tpuctl: Console, sandbox: Sandbox, name: str
) -> None:
    put(sandbox, name, state="PREEMPTED", spot=True)

    assert tpuctl("up", name, "--for", "healthy", "--yes")[2] == 0
    assert tpuctl("history", name)[2] == 0
    assert tpuctl("down", name, "--yes")[2] == 0
    assert tpuctl("up", name, "--zone", ZONE, "--for", "healthy", "--yes")[2] == 0
    assert sandbox.changes() == ["delete", "create", "delete", "create"]


@pytest.mark.parametrize(
    "command",
    [
        f"create Team_1 --type v4-8 --zone {ZONE}",
        f"create Team_1 --type v4-8 --zone {ZONE} --queue",
        f"up Team_1 --type v4-8 --zone {ZONE}",
        "up Team_1 --type v6e-8 --zone us-east5-b,us-east5-a",
        "up Team_1 --type v6e-8 --zone us-east5-b,us-east5-a --race",
        f"run Team_1 --up v4-8 --zone {ZONE} -- true",
    ],
)
def test_rule_for_names_holds_for_each_creation(tpuctl: Console, sandbox: Sandbox, command: str) -> None:
    assert tpuctl(*command.split()) == (
        "",
        said(
            "error: `Team_1` is not a node name",
            "  hint: a name is up to 63 lower-case letters, digits and hyphens, begins with a letter and does not end with a "
            "hyphen; did you mean `team-1`?",
        ),
        2,
    )
    assert sandbox.changes() == []

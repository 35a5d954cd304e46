"""Remedies of `doctor NODE` if a worker refuses the ssh key; their commands can be copied to a shell."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from tests.conftest import Console, Sandbox
from tests.doctor.node.conftest import Worker
from tests.doctor.node.examinations import HEALTHY, NOW, node, seen
from tests.doctor.node.test_doctor_node import findings
from tests.lifecycle import put
from tpuctl.check.facts import Known
from tpuctl.doctor.doctor_facts import AllWorkersFacts, OomKills, UnreachableWorkers
from tpuctl.doctor.worker_rules import check_oom_kills, check_ssh

UP, RENEW, HINT = "tpuctl up demo", "tpuctl ssh-key renew", None


@pytest.mark.parametrize(
    ("error_id", "has_own_key", "some_get_in", "expected"),
    [
        ("ssh-publickey", False, False, [UP, RENEW, HINT]),
        # tpuctl never replaces a key that the user named, but puts it on the node.
        ("ssh-publickey", True, False, [UP, HINT]),
        # The node has the key, so the hint about this worker comes first.
        ("ssh-publickey", False, True, [HINT, UP]),
        ("ssh-key-unreadable", False, False, [UP, RENEW, HINT]),
        ("ssh-key-unreadable", False, True, [UP, RENEW, HINT]),
        ("ssh-key-unreadable", True, False, [HINT]),
        ("ssh-timeout", False, False, [HINT]),
        (None, False, False, [HINT]),
    ],
)
def test_ssh_remedies_put_the_key_on_a_worker(
    error_id: str | None,
    has_own_key: bool,
    some_get_in: bool,
    expected: list[str | None],
) -> None:
    facts = AllWorkersFacts(
        node=node(),
        now=NOW,
        answers={1: Known(HEALTHY)} if some_get_in else {},
        unreachable=(UnreachableWorkers((0,), "why", ("a hint",), error_id),),
        has_own_key=has_own_key,
    )

    error, *_ = check_ssh.judge(facts)

    assert [remedy.command for remedy in error.remedies] == expected


@pytest.mark.parametrize(
    ("stderr", "key", "expected"),
    [
        ("", None, [UP, RENEW]),
        ("", "/own/key", [UP]),
        ("no such identity: $HOME/x: No such file or directory", None, [UP, RENEW]),
        ("no such identity: /own/key: No such file or directory", "/own/key", []),
    ],
)
def test_ssh_key_problem_names_the_command_that_fixes_it(  # noqa: PLR0917  # fixtures, and the values of a row
    tpuctl: Console, sandbox: Sandbox, workers: list[Worker], stderr: str, key: str | None, expected: list[str]
) -> None:
    put(sandbox, acceleratorType="v4-8")
    workers[0].logs_in(f"echo '{stderr}\nada@198.18.0.1: Permission denied (publickey).' >&2; exit 255\n")
    own = {"TPUCTL_SSH_KEY": key} if key else {}

    (found,) = [one for one in findings(replace(tpuctl, environ={**tpuctl.environ, **own})) if one["id"] == "TPU966"]

    assert [one["command"] for one in found["remedies"] if one["command"]] == expected


def test_kernel_log_remedy_is_one_readable_shell_line() -> None:
    (found,) = check_oom_kills.judge(seen({"oom_kills": Known(OomKills(1, "Killed"))}))
    command = found.remedies[0].command or ""

    line = 'sudo dmesg -T | grep -i -E "out of memory|oom-kill" | tail'
    assert (command, shlex.split(command)[-1]) == (f"tpuctl run demo --worker 0 -- '{line}'", line)

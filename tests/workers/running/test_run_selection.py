"""`tpuctl run` on what a selection matches: all nodes at once, each on its own, and the worst exit code."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Sandbox
from tests.lifecycle import put
from tests.workers.running import REFUSED, Slice


@pytest.fixture
def pods(pod: Slice, sandbox: Sandbox) -> Slice:
    """The slice `pod` of eight workers, and `pod-2`, which has the ninth and tenth."""
    first = put(sandbox, "pod-2", acceleratorType="v4-16", labels={"team": "vision"})
    assert len(first["networkEndpoints"]) == 2
    pod.tpuctl("run", "pod-2", "--", "true")
    pod.plan({})
    return pod


def test_run_on_a_pattern_marks_the_output_with_the_node(pods: Slice) -> None:
    out, err, code = pods.tpuctl("run", "pod*", "--worker", "0-1", "--", "echo $TPUCTL_WORKER_ID")

    assert (sorted(out.split("\n")), err, code) == (
        ["", "[pod-0]   0", "[pod-1]   1", "[pod-2-0] 0", "[pod-2-1] 1"],
        "",
        0,
    )


def test_unreachable_worker_keeps_only_its_own_node_from_starting(pods: Slice) -> None:
    """Half a slice would wait for the rest for ever, but the other node has nothing to do with it."""
    pods.plan({1: [REFUSED]})
    words = ("--worker", "0-1", "--connect-timeout", "4s", "-o", "json", "--", "true")

    out, _, code = pods.tpuctl("run", "pod*", *words)
    named, _, refused = pods.tpuctl("run", "pod", "pod-2", *words)

    assert (outcomes(out), code) == (
        {"pod-0": "not-started", "pod-1": "unreachable", "pod-2-0": "exited", "pod-2-1": "exited"},
        11,
    )
    assert ({*outcomes(named).values()}, refused) == ({"not-started", "unreachable"}, 11)


def outcomes(out: str) -> dict[str, str]:
    return {f"{one['nodeId']}-{one['worker']}": one["outcome"] for one in json.loads(out)["workers"]}


def test_node_without_workers_is_said_and_the_others_run(pods: Slice, sandbox: Sandbox) -> None:
    put(sandbox, "pod-3", state="STOPPED")

    out, err, code = pods.tpuctl("run", "pod-*", "--", "echo ran")
    named = pods.tpuctl("run", "pod-2", "pod-3", "--", "echo ran")

    assert (sorted(out.splitlines()), code) == (["[pod-2-0] ran", "[pod-2-1] ran"], 8)
    assert err.splitlines()[0] == "error: `pod-3` is STOPPED: ssh cannot reach it"
    assert (named[0], named[2]) == ("", 8)


def test_failed_command_on_one_node_is_the_exit_code_of_all(pods: Slice) -> None:
    out, err, code = pods.tpuctl("run", "-l", "team", "pod*", "--", "exit $TPUCTL_WORKER_ID")

    assert (out, err, code) == ("", "error: the command failed on 1 of 2 workers: pod-2-1 (exit 1)\n", 11)

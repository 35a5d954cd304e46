"""`tpuctl start` and `stop`: only requests that the API accepts are sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import both_faces, put, said, told

SPOT: dict[str, Any] = {"schedulingConfig": {"spot": True}}


@both_faces
def test_stop_and_start_wait_for_the_state(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    stopped = tpuctl("stop", "demo", "--yes")
    started = tpuctl("start", "demo")

    assert stopped[::2] == ("demo\tSTOPPED\n", 0)
    assert told(stopped[1])[:3] == ["stopping it", "STOPPING", "STOPPED"]
    assert started[::2] == ("demo\tREADY\n", 0)
    assert told(started[1])[:2] == ["starting (was STOPPED)", "STARTING"]
    assert sandbox.changes() == ["stop", "start"]


def test_stop_of_a_stopped_node_sends_no_request(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "off", state="STOPPED")
    put(sandbox, "on")

    assert tpuctl("stop", "off")[::2] == ("off\tSTOPPED\n", 0)
    assert tpuctl("start", "on")[::2] == ("on\tREADY\n", 0)
    assert sandbox.changes() == []


def test_stop_of_several_nodes_requests_all_before_waiting(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "a")
    put(sandbox, "b")

    out, err, code = tpuctl("stop", "a", "b", "--yes")

    assert (out, code) == ("a\tSTOPPED\nb\tSTOPPED\n", 0)
    assert err.splitlines()[:3] == ["a: stopping it", "b: stopping it", "a: STOPPING"]


@pytest.mark.parametrize(
    ("verb", "fields", "lines"),
    [
        (
            "stop",
            {"acceleratorType": "v4-16"},
            (
                "it is a slice of 2 workers, and the service stops single-worker nodes only",
                "`tpuctl down demo` deletes it and ends the billing; `tpuctl reset demo --mode reboot` reboots its workers",
            ),
        ),
        (
            "stop",
            {"queued_resource": "research"},
            (
                "it belongs to the queued resource `research`, whose nodes cannot be stopped",
                "`tpuctl down demo` deletes it and ends the billing; `tpuctl reset demo --mode reboot` reboots its workers",
            ),
        ),
        (
            "stop",
            {"state": "STARTING"},
            (
                "it is STARTING",
                "wait until it is READY: `tpuctl wait demo --for ready`; or pass `--skip-validation`",
            ),
        ),
        (
            "start",
            {"state": "STOPPED", **SPOT},
            (
                "it is a spot node, and those cannot be started again once stopped",
                "recreate it with `tpuctl reset demo --mode recreate` (its boot disk is lost)",
            ),
        ),
        (
            "start",
            {"state": "PREEMPTED"},
            (
                "it is PREEMPTED",
                "`tpuctl up demo` brings it up from any state that allows it",
            ),
        ),
    ],
)
def test_change_that_the_api_would_reject_is_refused_before_any_call(
    tpuctl: Console, sandbox: Sandbox, verb: str, fields: dict[str, Any], lines: tuple[str, str]
) -> None:
    put(sandbox, **fields)
    done = "stopped" if verb == "stop" else "started"

    assert tpuctl(verb, "demo") == ("", said(f"error: `demo` cannot be {done}: {lines[0]}", f"  hint: {lines[1]}"), 8)
    assert sandbox.changes() == []


@both_faces
@pytest.mark.parametrize(
    ("verb", "fields", "says"),
    [
        ("stop", {"acceleratorType": "v4-16"}, "This operation is only available with single TPU nodes."),
        ("start", {"state": "STOPPED", **SPOT}, "Spot VM TPUs cannot be restarted, and must be recreated again."),
    ],
)
def test_skip_validation_sends_the_request(
    tpuctl: Console, sandbox: Sandbox, verb: str, fields: dict[str, Any], says: str
) -> None:
    put(sandbox, **fields)

    out, err, code = tpuctl(verb, "demo", "--skip-validation", "--yes")

    assert (out, code) == ("", 8)
    assert says in err


def test_stop_of_a_spot_node_warns(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, **SPOT)

    out, err, code = tpuctl("stop", "demo", "--yes", "--no-wait")

    assert (out, code) == ("demo\tSTOPPING\n", 0)
    assert told(err)[0] == "it is a spot node: once stopped it cannot be started again"


def test_start_without_capacity_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED")
    sandbox.fault("operation-error", method="*.start")

    out, err, code = tpuctl("start", "demo")

    assert (out, code, told(err)[:3]) == ("", 6, ["starting (was STOPPED)", "STARTING", "STOPPED"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("TPUCTL_GRANTS", "[{zone: x}]"), ("TPUCTL_OUTPUT", "xml")],
)
def test_setting_that_only_the_output_needs_fails_before_the_change(
    tpuctl: Console, sandbox: Sandbox, name: str, value: str
) -> None:
    sandbox.add_node("demo")
    configured = replace(tpuctl, environ={**tpuctl.environ, name: value})

    _, err, code = configured("stop", "demo", "--yes", *(() if name == "TPUCTL_OUTPUT" else ("-o", "json")))

    assert (name in err, sandbox.changes(), code != 0) == (True, [], True), err


def test_question_of_a_stop_says_that_a_spot_node_is_lost(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "od")
    put(sandbox, "sp", **SPOT)
    lost = "cannot be started again once stopped: `sp`, spot"

    assert tpuctl("stop", "sp", stdin="n\n") == ("", f"stop `sp` ({lost})? [y/N] cancelled\n", 1)
    assert tpuctl("stop", "--all", stdin="n\n")[1].splitlines()[-1].startswith(f"stop `od`, `sp` ({lost})?")
    assert f"cannot ask for confirmation (stop `sp` ({lost})?)" in tpuctl("stop", "sp")[1]
    plan = tpuctl("stop", "--all", "--dry-run")[0]
    assert "stop sp in us-central2-b: requested; cannot be started again once stopped\n" in plan
    assert "stop od in us-central2-b: requested\n" in plan
    assert sandbox.changes() == []


def test_selection_shows_what_is_left_out_and_the_price_after_the_start(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, "on")
    put(sandbox, "slice", acceleratorType="v4-16")
    put(sandbox, "off", zone="us-central1-a", acceleratorType="v5litepod-4", state="STOPPED")

    stopping = tpuctl("stop", "--all", stdin="n\n")[1].splitlines()
    starting = tpuctl("start", "--state", "STOPPED", stdin="n\n")[1].splitlines()

    assert [line.split()[0] for line in stopping[:2]] == ["NAME", "on"]
    reason = "it is a slice of 2 workers, and the service stops single-worker nodes only"
    assert stopping[2] == f"left out: `slice` cannot be stopped: {reason}"
    assert stopping[3].startswith("stop `on`?")
    assert starting[1].split()[:4] == ["off", "us-central1-a", "v5litepod-4", "STOPPED"]
    assert starting[1].split()[-1] == "$4.80"
    assert starting[2].startswith("start `off`, for $4.80/h?")

"""Commands against a server without a usable answer: exit code 5 at the deadline, or 1 within a minute."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.cloud.scripted_api import Answer, Drop, Endless, Reply, Reset, ScriptedServer, Silence, node, refuse
from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE
from tpuctl.clock import CLOUD_CALL_TIMEOUT, ManualClock, SystemClock
from tpuctl.sandbox import administration

RATE = "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'tpu.googleapis.com'"
# What fails at once, so that only the client's own pauses take time: by a clock that is not real.
FAILING: dict[str, Answer] = {
    "reset": Reset(),
    "closed": Drop(),
    "cut short": Drop(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
    "html": Reply(b"<html>"),
    "503": refuse(503, "UNAVAILABLE"),
    "503 for years": refuse(503, "UNAVAILABLE", retry_after="999999999"),
    "429 for years": refuse(429, "RESOURCE_EXHAUSTED", RATE, retry_after="999999999"),
}
TYPE = ("--type", "v4-8")
IN_ZONE = ("--zone", ZONE)
WAITS = {
    "wait": ("wait", "demo"),
    "wait in a zone": ("wait", "demo", *IN_ZONE),
    "wait for all": ("wait", "--all", "--for", "gone"),
    "up": ("up", "demo"),
    "up of a type": ("up", "demo", *TYPE),
    "up of a type in a zone": ("up", "demo", *TYPE, *IN_ZONE),
    "up of an unlisted type": ("up", "demo", "--type", "v4-16384", *IN_ZONE),
}
SHORT = {
    "list": ("list",),
    "list of zones": ("list", "--zone", f"{ZONE},us-east1-d"),
    "status": ("status", "demo"),
    "types": ("types",),
    "down": ("down", "demo", "--no-wait", "--yes"),
    "stop": ("stop", "demo", "--no-wait", "--yes"),
    "up": ("up", "demo", *TYPE, *IN_ZONE, "--no-wait"),
}


@pytest.fixture
def face() -> dict[str, str]:
    return {"TPUCTL_PROJECT": "p"}


@pytest.fixture
def against(tpuctl: Console) -> Callable[..., Any]:
    def run(server: ScriptedServer, *arguments: str, clock: Any = None) -> tuple[str, str, int]:
        program = replace(tpuctl, clock=clock) if clock else tpuctl
        return program(*arguments, TPUCTL_ENDPOINT=server.url)

    return run


@pytest.mark.parametrize("answer", FAILING.values(), ids=FAILING)
def test_wait_with_a_failing_api_times_out(against: Callable[..., Any], clock: ManualClock, answer: Answer) -> None:
    for name, command in WAITS.items():
        before = clock.monotonic()
        with ScriptedServer(lambda _: answer) as server:
            out, err, code = against(server, *command, "--timeout", "20s")

            assert (name, out, code, clock.monotonic() - before) == (name, "", 5, timedelta(seconds=20)), err
            assert "error: the API has not answered " in err
            assert {line.split()[0] for line in server.lines} == {"GET"}


@pytest.mark.parametrize("answer", FAILING.values(), ids=FAILING)
def test_command_without_a_deadline_ends_within_a_minute(
    against: Callable[..., Any], clock: ManualClock, answer: Answer
) -> None:
    for name, command in SHORT.items():
        before = clock.monotonic()
        with ScriptedServer(lambda _: answer) as server:
            out, err, code = against(server, *command)

            assert (name, out, code in {1, 7}, clock.monotonic() - before <= CLOUD_CALL_TIMEOUT) == (
                name,
                "",
                True,
                True,
            ), err
            assert {line.split()[0] for line in server.lines} == {"GET"}
            if answer.__class__ is Reply and "Retry-After" in str(answer):
                assert "asks to wait" in err


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (("wait", "demo", *IN_ZONE), Silence()),
        (("up", "demo", *TYPE, *IN_ZONE), Endless(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b" ", 0.05)),
    ],
    ids=["wait silence", "up byte by byte"],
)
def test_deadline_ends_a_slow_exchange(against: Callable[..., Any], command: tuple[str, ...], answer: Answer) -> None:
    with ScriptedServer(lambda _: answer) as server:
        began = time.monotonic()
        _, err, code = against(server, *command, "--timeout", "0.5s", clock=SystemClock())

        assert (code, time.monotonic() - began < 30) == (5, True)
        assert "error: the API has not answered " in err


@pytest.mark.parametrize("command", [("list",), ("wait", "demo")], ids=lambda command: command[0])
def test_ctrl_c_ends_a_slow_exchange(against: Callable[..., Any], command: tuple[str, ...]) -> None:
    asked = threading.Event()

    def script(_: object) -> Answer:
        if not asked.is_set():
            asked.set()
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return Silence()

    with ScriptedServer(script) as server:
        began = time.monotonic()

        assert against(server, *command, clock=SystemClock())[2] == 130
        assert time.monotonic() - began < 30


def test_list_shows_answering_zones_and_names_the_others(against: Callable[..., Any]) -> None:
    def script(request: Any) -> Answer:
        return Reply({"nodes": [node()]}) if ZONE in request.path else Reset()

    with ScriptedServer(script) as server:
        out, err, code = against(server, "list", "--zone", f"{ZONE},us-east1-d")

    assert (out.split("\t")[0], code) == ("trainer", 1)
    assert "the list is incomplete: us-east1-d could not be listed" in err


@pytest.mark.parametrize("face", [{"TPUCTL_SANDBOX": "1"}])
def test_up_without_the_lease_store_changes_nothing(
    tpuctl: Console, sandbox: Sandbox, clock: ManualClock, face: dict[str, str]
) -> None:
    administration.add_bucket(sandbox.state, "data")
    sandbox.fault("http-error", method="storage.*", status=503, count=0)

    _, err, code = tpuctl("up", "demo", *TYPE, *IN_ZONE, "--timeout", "5m", TPUCTL_LEASE="gs://data/leases")

    assert (code, sandbox.changes(), clock.monotonic()) == (5, [], timedelta(minutes=5)), (err, face)


def test_refused_credentials_end_a_wait_at_once(against: Callable[..., Any], clock: ManualClock) -> None:
    with ScriptedServer(lambda _: refuse(403, "PERMISSION_DENIED")) as server:
        assert against(server, "wait", "demo")[2] == 4
        # For `-`, which may be what is refused, and for the list of zones.
        assert (clock.monotonic(), len(server.lines)) == (timedelta(), 2)

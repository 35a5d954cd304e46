"""`tpuctl sandbox`: look into it, move its time, make it fail, remove it, offer it to other clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tpuctl.sandbox.world import World

NEW = "sandbox: nothing here is real, and nothing is billed\n"


def world_file(console: Console) -> Path:
    return Path(console.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "world.sqlite3"


@pytest.fixture
def embedded(offline: Console, sandbox: Sandbox) -> Console:
    """The program with the embedded sandbox."""
    return Console({**offline.environ, "TPUCTL_SANDBOX": "1"}, offline.folder, offline.clock)


def test_status_shows_what_is_in_it(embedded: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("a")
    sandbox.add_node("b", state="STOPPED")
    sandbox.add_queued_resource("q", state="SUSPENDED")
    embedded("sandbox", "fault", "unhealthy", "--node", "train-*", "--times", "3")

    out, err, code = embedded("sandbox", "status", terminal=True, NO_COLOR="1")
    *rows, fault = out.splitlines()

    assert (rows, err, code) == (
        [
            f"path                         {world_file(embedded)}",
            "now                          2026-01-01T00:00:00Z",
            "speed                        1 times real time",
            "nodes of sandbox             1 READY, 1 STOPPED",
            "queued resources of sandbox  1 SUSPENDED",
        ],
        NEW,
        0,
    )
    assert fault.startswith("fault 1                      train-* ")
    assert "UNHEALTHY_TENSORFLOW" in fault
    in_json = json.loads(embedded("sandbox", "status", "-o", "json")[0])
    assert {name: value for name, value in in_json.items() if value != []} == {
        "path": str(world_file(embedded)),
        "now": "2026-01-01T00:00:00Z",
        "speed": 1.0,
        "nodes": {"sandbox": {"READY": 1, "STOPPED": 1}},
        "queuedResources": {"sandbox": {"SUSPENDED": 1}},
        "faults": [{"id": 1, "kind": "unhealthy", "node": "train-*", "times": 3, "health": "UNHEALTHY_TENSORFLOW"}],
    }


def test_time_moves_for_every_command(embedded: Console, sandbox: Sandbox) -> None:
    embedded("create", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    assert embedded("status", "demo")[0].splitlines()[3] == "state\tCREATING"

    assert embedded("sandbox", "advance", "1h") == ("", "it is 2026-01-01T01:00:00Z in the sandbox, 1h later\n", 0)
    assert embedded("status", "demo")[0].splitlines()[3] == "state\tREADY"


def test_faults_are_made_told_and_removed(embedded: Console, sandbox: Sandbox) -> None:
    out, err, code = embedded("sandbox", "fault", "unreachable", "--zone", "us-east5-a", "--times", "0")

    assert (out, err[:9], code) == ("", "fault 1: ", 0)
    assert "us-east5-a" in err
    assert embedded("list")[2] == 1
    assert embedded("sandbox", "fault", "--remove", "1") == ("", "fault 1 is removed\n", 0)
    assert embedded("sandbox", "fault", "--remove", "1") == ("", "fault 1 does not exist\n", 0)
    assert embedded("list")[2] == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("fault", "unhelthy"), "error: `unhelthy` is not a kind of fault\n  hint: did you mean `unhealthy`?\n"),
        (("fault", "hang", "--state", "REDY"), "REDY"),
        (("fault", "unhealthy", "--health", "SICK"), "SICK"),
        (("fault",), "error: which kind of fault?\n  hint: use one of unhealthy, "),
        (
            ("advance", "forever"),
            "error: the sandbox's time cannot move on for ever\n  hint: give a duration such as 10m\n",
        ),
        (("advance", "soon"), "`soon` is not a duration; write it like 90s, 30m, 2h or 1h30m\n"),
        (("advance",), "error: `tpuctl sandbox advance` needs TIME\n"),
        (("serve", "--port", "70000"), "70000"),
    ],
)
def test_bad_input_is_named(embedded: Console, sandbox: Sandbox, arguments: tuple[str, ...], error: str) -> None:
    out, err, code = embedded("sandbox", *arguments)

    assert (out, code) == ("", 2)
    assert error in err


def test_reset_asks_and_removes(embedded: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("a")
    question = f"remove the sandbox in {world_file(embedded).parent}?"

    assert embedded("sandbox", "reset") == (
        "",
        (
            f"error: {question} needs a confirmation, and nobody can be asked here\n"
            "  hint: add `--yes` if you mean it; nothing was done (`--quiet` is about output only)\n"
        ),
        2,
    )
    assert embedded("sandbox", "reset", stdin="n\n") == ("", f"{question} [y/N] error: nothing was done\n", 1)
    assert embedded("list", "-o", "name")[0] == "a\n"
    assert embedded("sandbox", "reset", "--yes") == ("", "the sandbox is empty\n", 0)
    assert embedded("sandbox", "reset", "--yes") == ("", "there was no sandbox\n", 0)
    assert embedded("list", "-o", "name") == ("", NEW, 0)


def test_a_corrupt_file_is_an_error_with_a_way_out(offline: Console) -> None:
    world_file(offline).parent.mkdir(parents=True)
    world_file(offline).write_text("not a database, but long enough to look like one" * 100)

    out, err, code = offline("--sandbox", "list")

    assert (out, code) == ("", 1)
    assert err.splitlines()[-2:] == [
        f"error: the sandbox in `{world_file(offline)}` is damaged: file is not a database",
        "  hint: run `tpuctl sandbox reset` to begin with an empty sandbox",
    ]


def test_a_second_process_waits_for_its_turn(embedded: Console, sandbox: Sandbox) -> None:
    began, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sandbox.world.write():
            began.set()
            done.wait(0.4)

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait()

    made = embedded("create", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")

    holder.join()
    assert (made[0], made[2]) == ("demo\tCREATING\n", 0)


def test_a_speed_that_is_none_is_named(offline: Console) -> None:
    assert offline("--sandbox", "list", TPUCTL_SANDBOX_SPEED="fast") == (
        "",
        (
            f"{NEW}error: `TPUCTL_SANDBOX_SPEED` is `fast`\n"
            "  hint: it is a number such as 60: a cloud minute takes a second\n"
        ),
        2,
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def served(environ: dict[str, str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tpuctl sandbox serve` in a process of its own, and the URL that it printed."""
    World.open(tmp_path / "state" / "sandbox" / "world.sqlite3").close()
    command = [sys.executable, "-m", "tpuctl", "sandbox", "serve"]
    with subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield process, process.stdout.readline().strip()
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_url_answers_and_ends_quietly(
    served: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    process, url = served
    with urllib.request.urlopen(f"{url}/v2/projects/sandbox/locations/-/nodes", timeout=10) as answer:  # noqa: S310  # loopback
        assert json.load(answer) == {}

    process.send_signal(number)
    out, err = process.communicate(timeout=10)

    assert (out, process.returncode) == ("", 0)
    first, *_, last = err.splitlines()
    assert (first, last) == ("point tpuctl at it:", "Ctrl-C ends it")
    assert f"  export TPUCTL_ENDPOINT={url} TPUCTL_PROJECT=sandbox" in err.splitlines()


def test_a_port_in_use_is_said(embedded: Console, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert embedded("sandbox", "serve", "--port", str(port)) == (
            "",
            (
                f"error: port {port} cannot be used: Address already in use\n"
                "  hint: leave `--port` out to take a free one\n"
            ),
            2,
        )

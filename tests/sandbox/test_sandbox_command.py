"""`tpuctl sandbox`: show it, advance its clock, add faults, remove it, serve it to other clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.tpuctl_process import TpuctlProcess, run_tpuctl
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.state_file import LAYOUT

NEW = "sandbox: nothing here is real, and nothing is billed\n"


def state_file(console: Console) -> Path:
    return Path(console.environ["TPUCTL_STATE_DIR"]) / "sandbox" / "world.sqlite3"


@pytest.fixture
def embedded(offline: Console, sandbox: Sandbox) -> Console:
    """The program with the embedded sandbox."""
    return Console({**offline.environ, "TPUCTL_SANDBOX": "1"}, offline.folder, offline.clock)


def test_status_shows_nodes_queued_resources_and_faults(embedded: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("a")
    sandbox.add_node("b", state="STOPPED")
    sandbox.add_queued_resource("q", state="SUSPENDED")
    embedded("sandbox", "fault", "unhealthy", "--node", "train-*", "--times", "3")

    out, err, code = embedded("sandbox", "status", terminal=True, NO_COLOR="1")
    *rows, fault = out.splitlines()

    assert (rows, err, code) == (
        [
            f"path                         {state_file(embedded)}",
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
        "path": str(state_file(embedded)),
        "now": "2026-01-01T00:00:00Z",
        "speed": 1.0,
        "nodes": {"sandbox": {"READY": 1, "STOPPED": 1}},
        "queuedResources": {"sandbox": {"SUSPENDED": 1}},
        "faults": [{"id": 1, "kind": "unhealthy", "node": "train-*", "times": 3, "health": "UNHEALTHY_TENSORFLOW"}],
    }


@pytest.mark.parametrize("line", ["list", "down demo --yes", "delete demo --yes", "env demo", "version"])
def test_json_says_that_it_is_from_the_sandbox(embedded: Console, sandbox: Sandbox, line: str) -> None:
    sandbox.add_node("demo")

    out, _, code = embedded(*line.split(), "-o", "json")

    found = json.loads(out)
    assert [one["sandbox"] for one in (found if isinstance(found, list) else [found])] == [True]
    assert code == 0


def test_advance_applies_to_every_command(embedded: Console, sandbox: Sandbox) -> None:
    embedded("create", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")
    assert embedded("status", "demo")[0].splitlines()[3] == "state\tCREATING"

    assert embedded("sandbox", "advance", "1h") == ("", "sandbox time is now 2026-01-01T01:00:00Z, 1h later\n", 0)
    assert embedded("status", "demo")[0].splitlines()[3] == "state\tREADY"


def test_stock_is_set_shown_and_cleared(embedded: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("held", acceleratorType="v6e-8", zone="us-east5-b", schedulingConfig={"spot": True})
    scope = ("--zone", "us-east5-b", "--type", "v6e-8", "--tier", "preemptible")

    assert embedded("sandbox", "stock", terminal=True, NO_COLOR="1")[1].endswith("the stock is unlimited everywhere\n")
    assert embedded("sandbox", "stock", "set", *scope, "--nodes", "3") == (
        "",
        "now: 3 nodes of v6e-8 in us-east5-b (spot)\n",
        0,
    )
    assert embedded("sandbox", "stock", "set", "--nodes", "0", "--after", "20m", "--duration", "5m") == (
        "",
        (
            "at 2026-01-01T00:20:00Z in the sandbox, in 20m of its time, 20m of real time: 0 nodes of every type in every zone "
            "(all tiers together), for 5m\n"
        ),
        0,
    )
    later = "*\t*\t*\t0\t-\t2026-01-01T00:20:00Z\t2026-01-01T00:25:00Z\n"
    now = "us-east5-b\tv6e-8\tspot\t3\t2\t2026-01-01T00:00:00Z\t-\n"
    assert embedded("sandbox", "stock") == (later + now, "", 0)
    assert json.loads(embedded("sandbox", "stock", "--tier", "spot", "-o", "json")[0]) == [
        {
            "zone": "us-east5-b",
            "acceleratorType": "v6e-8",
            "tier": "spot",
            "project": "*",
            "nodes": 3,
            "from": "2026-01-01T00:00:00Z",
            "until": None,
            "used": 1,
            "free": 2,
        }
    ]
    assert embedded("sandbox", "stock", "clear", "--zone", "us-east5-b")[1] == "removed 1 stock entry\n"
    assert json.loads(embedded("sandbox", "stock", "clear", "-o", "json")[0]) == {"removed": 1}


def test_fault_is_added_described_and_removed(embedded: Console, sandbox: Sandbox) -> None:
    out, err, code = embedded("sandbox", "fault", "unreachable", "--zone", "us-east5-a", "--times", "0")

    assert (out, err[:9], code) == ("", "fault 1: ", 0)
    assert "us-east5-a" in err
    assert embedded("list")[2] == 1
    assert embedded("sandbox", "fault", "--remove", "1") == ("", "removed fault 1\n", 0)
    assert embedded("list")[2] == 0


def test_remove_fault_with_unknown_id_lists_the_existing_faults(embedded: Console, sandbox: Sandbox) -> None:
    missing = "error: no fault 99 in the sandbox\n"
    assert embedded("sandbox", "fault", "--remove", "99") == ("", f"{missing}  hint: the sandbox has no faults\n", 3)

    for number in ("1", "2"):
        embedded("sandbox", "fault", "drop-before", "--times", number)

    call = "fault {}: the next call loses its connection before it takes effect, {}"
    existing = f"  hint: {call.format(1, 'once')}\n  hint: {call.format(2, '2 times')}\n"
    assert embedded("sandbox", "fault", "--remove", "99") == ("", missing + existing, 3)


def test_changing_commands_with_json_output_print_an_object(embedded: Console, sandbox: Sandbox) -> None:
    out, err, code = embedded("sandbox", "fault", "hang", "--duration", "forever", "-o", "json")
    expected = {"id": 1, "text": "any node hangs in CREATING forever, once"}
    assert (json.loads(out), err, code) == (expected, "", 0)
    assert embedded("sandbox", "fault", "hang", "--remove", "1")[2] == 2
    assert json.loads(embedded("sandbox", "fault", "--remove", "1", "-o", "json")[0]) == {"id": 1, "removed": True}
    assert embedded("sandbox", "advance", "1h", "-o", "yaml")[0] == "now: '2026-01-01T01:00:00Z'\n"
    for line in ("reset", "seed -", "scenario -", "serve", "env"):
        assert "has no option `-o`" in embedded("sandbox", *line.split(), "-o", "json")[1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("fault", "unhelthy"), "error: unknown fault kind `unhelthy`\n  hint: did you mean `unhealthy`?\n"),
        (("fault", "hang", "--state", "REDY"), "REDY"),
        (("fault", "unhealthy", "--health", "SICK"), "SICK"),
        (("fault",), "error: no fault kind given\n  hint: use one of unhealthy, "),
        (
            ("advance", "forever"),
            "error: the sandbox cannot advance by `forever`\n  hint: give a duration such as 10m\n",
        ),
        (("advance", "soon"), "`soon` is not a duration; write it like 90s, 30m, 2h or 1h30m\n"),
        (("advance",), "error: `tpuctl sandbox advance` needs TIME\n"),
        (("serve", "--port", "70000"), "70000"),
        (
            ("fault", "slow", "--duration", "forever"),
            "error: `slow` cannot last forever\n  hint: give a duration such as 10m\n",
        ),
        (("fault", "hang", "--duration", "0"), "error: `--duration` is 0s\n"),
        (("fault", "preempt", "--after", "forever"), "error: `--after` cannot be `forever`\n"),
        (("stock", "set"), "error: `tpuctl sandbox stock set` needs `--nodes N`\n  hint: `--nodes 0` is no capacity\n"),
        (("stock", "--nodes", "1"), "error: `--nodes` needs `set`\n"),
        (("stock", "clear", "--tier", "cheap"), "error: `cheap` is not a tier\n  hint: use one of on-demand, spot, "),
        (("stock", "set", "--nodes", "1", "--type", "v6-8"), "error: no zone offers `v6-8`\n  hint: "),
        (
            ("stock", "set", "--nodes", "1", "--zone", "us-east5-z"),
            "error: `us-east5-z` is not a zone with TPUs\n  hint: did you mean `us-east5-",
        ),
        (("stock", "set", "--nodes", "1", "--after", "forever"), "error: `--after` cannot be `forever`\n"),
        (("stock", "list"), "list"),
        (("fault", "preempt", "--initiator", "USER"), "error: `preempt` has no `--initiator`\n"),
        (
            ("fault", "preempt", "--retry-after", "5"),
            "error: `preempt` has no `--retry-after`\n  hint: `--retry-after` is for http-error\n",
        ),
    ],
)
def test_invalid_input_is_an_error_with_its_value(
    embedded: Console, sandbox: Sandbox, arguments: tuple[str, ...], error: str
) -> None:
    out, err, code = embedded("sandbox", *arguments)

    assert (out, code) == ("", 2)
    assert error in err


def test_reset_asks_for_confirmation_and_removes_the_sandbox(embedded: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("a")
    question = f"remove the sandbox in {state_file(embedded).parent}?"

    assert embedded("sandbox", "reset") == (
        "",
        (
            f"error: cannot ask for confirmation ({question}): stdin is not a terminal\n"
            "  hint: nothing was done; pass `--yes` to confirm (`--quiet` does not)\n"
        ),
        2,
    )
    assert embedded("sandbox", "reset", stdin="n\n") == ("", f"{question} [y/N] error: nothing was removed\n", 1)
    assert embedded("list", "--columns", "name")[0] == "a\n"
    assert embedded("sandbox", "reset", "--yes") == ("", "removed the sandbox\n", 0)
    assert embedded("sandbox", "reset", "--yes") == ("", "there was no sandbox\n", 0)
    assert embedded("list", "-o", "name") == ("", NEW, 0)


def test_damaged_sandbox_is_an_error_that_reset_fixes(offline: Console) -> None:
    assert offline("--sandbox", "list")[2] == 0
    state_file(offline).write_text("not a database, but long enough to look like one" * 100)

    assert offline("--sandbox", "list") == (
        "",
        (
            f"error: the sandbox in `{state_file(offline)}` is damaged: file is not a database\n"
            "  hint: run `tpuctl sandbox reset` to start with an empty sandbox\n"
        ),
        1,
    )
    assert offline("sandbox", "reset", "--yes") == ("", "removed the sandbox\n", 0)
    assert offline("--sandbox", "list")[2] == 0


@pytest.mark.parametrize("version", [LAYOUT - 1, LAYOUT + 1])
def test_sandbox_of_another_version_is_replaced(offline: Console, version: int) -> None:
    assert offline("--sandbox", "create", "trainer", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")[2] == 0
    path = state_file(offline)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={version}")
    said = f"another version of tpuctl created the sandbox in `{path}`, with layout {version}: it is removed"

    out, err, code = offline("--sandbox", "list", "-o", "json")

    assert (out, said in err, code) == ("[]\n", True, 0)
    assert said not in offline("--sandbox", "list")[1]


@pytest.mark.parametrize("version", [None, 0, LAYOUT, 99])
def test_file_of_another_program_is_not_changed(offline: Console, version: int | None) -> None:
    path = state_file(offline)
    path.parent.mkdir(parents=True)
    if version is None:
        path.write_text("not a database, but long enough to look like one" * 100)
    else:
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.executescript(f"CREATE TABLE theirs (a); PRAGMA user_version={version}")
    before = path.read_bytes()
    reason = "file is not a database" if version is None else "it is the database of another program"

    out, err, code = offline("--sandbox", "list")

    assert (out, err.removeprefix(NEW), code) == (
        "",
        (
            f"error: `{path}` is not a file of the sandbox: {reason}\n"
            "  hint: move the file away, or set `TPUCTL_STATE_DIR` to another folder\n"
        ),
        1,
    )
    assert path.read_bytes() == before


def test_write_waits_for_another_writer(embedded: Console, sandbox: Sandbox) -> None:
    began, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sandbox.state.write():
            began.set()
            done.wait(0.4)

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait()

    made = embedded("create", "demo", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")

    holder.join()
    assert (made[0], made[2]) == ("demo\tCREATING\n", 0)


def test_invalid_speed_is_an_error_with_its_value(offline: Console) -> None:
    assert offline("--sandbox", "list", TPUCTL_SANDBOX_SPEED="fast") == (
        "",
        (
            f"{NEW}error: `TPUCTL_SANDBOX_SPEED` is `fast`\n"
            "  hint: set it to a number such as 60: a cloud minute takes a second\n"
        ),
        2,
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def served(environ: dict[str, str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tpuctl sandbox serve` in a separate process, and its URL."""
    SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3").close()
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with TpuctlProcess(["sandbox", "serve"], env=environ, cwd=tmp_path, text=True, **streams) as process:
        assert process.stdout
        yield process, process.stdout.readline().strip()
        process.kill()


def test_reset_of_a_served_sandbox_keeps_the_server_usable(
    served: tuple[subprocess.Popen[str], str], environ: dict[str, str]
) -> None:
    def tpuctl(*words: str, **more: str) -> str:
        done = run_tpuctl(words, env={**environ, **more}, text=True)
        done.check_returncode()
        return str(done.stdout)

    _, url = served
    there = {"TPUCTL_ENDPOINT": url, "TPUCTL_PROJECT": "sandbox", "TPUCTL_SANDBOX": "0"}
    create = (
        "create",
        "demo",
        "--type",
        "v4-8",
        "--zone",
        "us-central2-b",
        "--no-wait",
        "-o",
        "name",
        "--skip-check",
        "all",
    )
    assert tpuctl(*create, **there) == "us-central2-b/demo\n"

    tpuctl("sandbox", "reset", "--yes")

    assert f"OVERRIDES_TPU={url}/" in tpuctl("sandbox", "env")
    assert tpuctl("list", "-o", "name", **there) == ""
    assert tpuctl(*create, **there) == tpuctl("list", "-o", "name", TPUCTL_SANDBOX="1") == "us-central2-b/demo\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_url_and_stops_silently_on_a_signal(
    served: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    process, url = served
    with urllib.request.urlopen(f"{url}/v2/projects/sandbox/locations/-/nodes", timeout=10) as answer:  # noqa: S310  # loopback
        assert json.load(answer) == {}

    process.send_signal(number)
    out, err = process.communicate(timeout=10)

    assert (out, process.returncode) == ("", 0)
    first, *_, last = err.splitlines()
    assert (first, last) == ("for tpuctl:", "press Ctrl-C to stop")
    assert f"  export TPUCTL_ENDPOINT={url} TPUCTL_PROJECT=sandbox" in err.splitlines()


def test_serve_on_a_used_port_is_an_error(embedded: Console, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert embedded("sandbox", "serve", "--port", str(port)) == (
            "",
            (
                f"error: cannot listen on port {port}: Address already in use\n"
                "  hint: leave `--port` out to use a free port\n"
            ),
            2,
        )

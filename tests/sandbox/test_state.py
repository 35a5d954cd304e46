"""The sandbox's file: shared by processes, consistent after a crash, with clear errors when damaged; and its clock."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import pytest

from tpuctl.clock import ManualClock
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import advance_clock, read_status, reset_sandbox
from tpuctl.sandbox.api_calls import Call, Request
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.service import METHODS, answer_request
from tpuctl.sandbox.state import ClockRate, SandboxClock, SandboxState
from tpuctl.sandbox.state_file import CorruptStateError, ForeignStateError, NotASandboxError, UnusableStateError
from tpuctl.sandbox.tpu_nodes import prepare_node

WRITER = """
import sys
import threading
from pathlib import Path
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState
sandbox = SandboxState.open(Path(sys.argv[1]))
for index in range(int(sys.argv[3])):
    administration.add_node(sandbox, f"{sys.argv[2]}-{index}")
    print(index, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    """Start a process that adds nodes to a sandbox."""
    arguments = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_four_processes_lose_no_change(tmp_path: Path) -> None:
    """All start before the file exists, and addresses stay unique."""
    path = tmp_path / "deep" / "sandbox.db"
    writers = [writer(path, f"w{index}", 50) for index in range(4)]
    ends = [(process.communicate(), process.returncode)[1] for process in writers]

    with SandboxState.open(path) as sandbox_state, sandbox_state.read() as session:
        nodes = list(session.nodes())
    assert ends == [0] * 4
    assert len(nodes) == len({node.first_address for node in nodes}) == len({node.number for node in nodes}) == 200
    assert [oct(place.stat().st_mode & 0o777) for place in (path.parent, path)] == ["0o700", "0o600"]


def test_killed_writer_leaves_a_consistent_state(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.db"
    process = writer(path, "w", 100_000)
    assert process.stdout
    for _ in range(20):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    with SandboxState.open(path) as sandbox_state:
        administration.add_node(sandbox_state, "after")
        assert read_status(sandbox_state).states["sandbox"]["READY"] >= 21
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_damaged_file_is_an_error_that_reset_fixes(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.db"
    with SandboxState.open(path) as sandbox_state:
        administration.add_node(sandbox_state)
    path.write_bytes(b"not a database at all" * 500)

    with pytest.raises(CorruptStateError) as caught:
        SandboxState.open(path)

    assert (str(path) in caught.value.message, caught.value.hint) == (
        True,
        "run `tpuctl sandbox reset` to start with an empty sandbox",
    )
    assert reset_sandbox(path)
    with SandboxState.open(path) as sandbox_state:
        assert read_status(sandbox_state).states == {}


def test_changed_byte_in_any_page_is_one_error_or_none(tmp_path: Path) -> None:
    """Also in texts of SQLite itself, whose messages and columns are not UTF-8 then."""
    path = tmp_path / "sandbox.db"
    with SandboxState.open(path) as sandbox_state:
        for name in ("trainer", "other"):
            administration.add_node(sandbox_state, name, zone="us-central2-b")
    good, size = path.read_bytes(), 4096
    # A place in the head of a page, and the middle and the end of what it holds.
    places = {
        page + offset
        for page in range(0, len(good), size)
        for used in [[at for at in range(size) if good[page + at]]]
        for offset in {7, used[len(used) // 2], used[-1]}
    }
    outcomes: set[type[TpuctlError] | None] = set()
    for at in sorted(places):
        path.write_bytes(good[:at] + b"\xff" + good[at + 1 :])
        try:
            with SandboxState.open(path) as sandbox_state:
                read_status(sandbox_state)
                administration.add_node(sandbox_state, "next")
        except TpuctlError as error:
            outcomes.add(type(error))
        else:
            outcomes.add(None)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    assert outcomes >= {CorruptStateError, None}


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        pytest.param("UPDATE nodes SET record = '[]'", "expected an object", id="list"),
        pytest.param("UPDATE nodes SET record = NULL", "not text", id="null"),
        pytest.param("UPDATE nodes SET record = replace('x', 'x', '{\"timeline\": 5}')", "NodeRecord: ", id="type"),
        pytest.param("UPDATE nodes SET record = '{}'", "NodeRecord: .*missing", id="missing"),
        pytest.param("UPDATE nodes SET record = printf('%.*c', 100000, '[')", "nested too deep", id="nested"),
        pytest.param(
            "UPDATE meta SET value = json_set(value, '$.anchor', 1e300) WHERE key = 'clock'",
            r"anchor: expected -1e\+11 to 1e\+11",
            id="clock",
        ),
        pytest.param(
            "UPDATE meta SET value = json_set(value, '$.speed', 0) WHERE key = 'clock'",
            "speed: expected 1e-09 to 1e[+]12",
            id="speed",
        ),
    ],
)
def test_damaged_record_is_an_error_with_the_reason(tmp_path: Path, statement: str, reason: str) -> None:
    path = tmp_path / "sandbox.db"
    with SandboxState.open(path) as sandbox_state:
        administration.add_node(sandbox_state)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()

    with (
        pytest.raises(CorruptStateError, match=f"a record cannot be read: {reason}"),
        SandboxState.open(path) as sandbox_state,
    ):
        read_status(sandbox_state)
    assert reset_sandbox(path)


def test_reset_removes_only_files_of_the_sandbox(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    with pytest.raises(NotASandboxError):
        reset_sandbox(thesis)
    with pytest.raises(ForeignStateError):
        SandboxState.open(thesis)
    with pytest.raises(NotASandboxError):
        reset_sandbox(thesis)
    assert thesis.read_text() == "years of work"

    path = tmp_path / "sandbox" / "sandbox.db"
    SandboxState.open(path).close()
    (path.parent / "workers" / "p").mkdir(parents=True)
    assert (reset_sandbox(path), list(path.parent.iterdir()), reset_sandbox(path)) == (True, [], False)


def test_directory_in_place_of_the_file_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(UnusableStateError, match=str(tmp_path)):
        SandboxState.open(tmp_path)


def _change_and_fail(sandbox_state: SandboxState) -> None:
    with sandbox_state.write() as session:
        session.set_setting("legacy_nodes", True)
        raise ZeroDivisionError


def test_failed_write_is_rolled_back(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "sandbox.db") as sandbox_state:
        with pytest.raises(ZeroDivisionError):
            _change_and_fail(sandbox_state)
        with sandbox_state.read() as session:
            assert session.settings() == {}


def test_clock_runs_at_its_speed_and_advance_applies_to_all(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.db"
    with SandboxState.open(path, speed=1000) as sandbox_state, SandboxState.open(path, speed=1) as other:
        before, real = sandbox_state.clock.now(), time.monotonic()
        sandbox_state.clock.sleep(timedelta(seconds=100))
        assert 0.09 < time.monotonic() - real < 50
        assert (other.speed, sandbox_state.clock.now() - before >= timedelta(seconds=100)) == (1000, True)
        moved = advance_clock(other, timedelta(days=2))
        assert moved - before > timedelta(days=2)
        assert sandbox_state.clock.now() >= moved
        with pytest.raises(InvalidInputError):
            advance_clock(sandbox_state, timedelta(seconds=-1))


def test_injected_clock_can_be_advanced(tmp_path: Path) -> None:
    clock = ManualClock()
    with SandboxState.open(tmp_path / "sandbox.db", clock=clock) as sandbox_state:
        start, counted = sandbox_state.clock.now(), sandbox_state.clock.monotonic()
        sandbox_state.clock.sleep(timedelta(minutes=1))
        advance_clock(sandbox_state, timedelta(hours=1))

        passed = timedelta(hours=1, minutes=1)
        assert (sandbox_state.clock.now() - start, sandbox_state.clock.monotonic() - counted) == (passed, passed)
        with sandbox_state.read() as session:
            assert session.now == sandbox_state.clock.now()


def test_monotonic_never_goes_back_with_the_machines_clock() -> None:
    real = ManualClock()
    clock = SandboxClock(lambda: ClockRate(datetime(2026, 1, 1, tzinfo=UTC), timedelta(), 60.0), real)
    real.sleep(timedelta(seconds=2))
    first = clock.monotonic()
    real._now -= timedelta(seconds=1)

    assert (first, clock.monotonic()) == (timedelta(minutes=2), timedelta(minutes=2))


def test_what_is_called_every_period_follows_sandbox_time_until_it_is_ended() -> None:
    rate, calls = ClockRate(datetime.now(UTC), timedelta(), 60.0), threading.Semaphore(0)
    clock, before = SandboxClock(lambda: rate), {*threading.enumerate()}

    end = clock.every(timedelta(minutes=1), calls.release)
    (thread,) = {*threading.enumerate()} - before
    rate = rate._replace(speed=600.0)
    assert all(calls.acquire(timeout=30) for _ in range(3))
    end()
    thread.join(30)

    assert clock.monotonic() >= timedelta(minutes=3)
    assert not thread.is_alive()


def test_ten_thousand_nodes_are_listed_to_the_last_page(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "sandbox.db") as sandbox_state:
        with sandbox_state.write() as session:
            body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
            node = prepare_node(session, "sandbox", "us-central2-b", "n", body=body)
            for index in range(10_000):
                session.put_node(replace(node, node_id=f"n{index}", first_address=index + 1))
        count, token = 0, ""
        while True:
            params = {"parent": "projects/sandbox/locations/-", "pageSize": 1000, "pageToken": token}
            with sandbox_state.read() as session:
                answer = METHODS["tpu.projects.locations.nodes.list"](session, Call("v2", "", params, {}))
            assert isinstance(answer, dict)
            count, token = count + len(answer["nodes"]), answer.get("nextPageToken", "")
            if not token:
                break
        assert count == 10_000


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_ended_threads_leave_no_files_open(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "sandbox.db") as sandbox_state:
        counts = []
        for index in range(20):
            thread = Thread(target=administration.add_node, args=(sandbox_state, f"n{index}"))
            thread.start()
            thread.join()
            counts.append(len(list(Path("/proc/self/fd").iterdir())))

        assert (counts[-1] - counts[2] <= 1, read_status(sandbox_state).states) == (True, {"sandbox": {"READY": 20}})


def test_connection_of_a_thread_working_at_close_is_closed_with_the_state(tmp_path: Path) -> None:
    def open_files() -> int:
        """Count only the files of the sandbox: earlier tests leave others."""
        links = list(Path("/proc/self/fd").iterdir())
        return sum(link.is_symlink() and link.readlink().is_relative_to(tmp_path) for link in links)

    has_begun, may_end = Event(), Event()
    sandbox_state = SandboxState.open(tmp_path / "sandbox.db")

    def work(sandbox_state: SandboxState) -> None:
        with sandbox_state.read() as session:
            has_begun.set()
            assert may_end.wait(10)
            assert session.settings() == {}

    thread = Thread(target=work, args=(sandbox_state,))
    thread.start()
    assert has_begun.wait(10)
    sandbox_state.close()
    del sandbox_state
    assert open_files() > 0

    may_end.set()
    thread.join()
    gc.collect()
    assert open_files() == 0


def test_writes_are_logged(tmp_path: Path) -> None:
    with SandboxState.open(tmp_path / "sandbox.db", clock=ManualClock()) as sandbox_state:
        zone, method = "projects/p/locations/us-central2-b", "tpu.projects.locations.nodes.create"
        body = b'{"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}'
        answer_request(sandbox_state, Request("POST", f"/v2/{zone}/nodes", (("nodeId", "a"),), {}, body))
        answer_request(sandbox_state, Request("GET", f"/v2/{zone}/nodes"))

        logged = [(entry.call, entry.path) for entry in read_log(sandbox_state.path)]
        assert logged == [(method, f"/v2/{zone}/nodes?nodeId=a"), ("", f"/v2/{zone}/nodes")]


def test_log_survives_another_process(tmp_path: Path) -> None:
    """SQLite removes its log with the last user; a process that has dropped its locks does not count as one."""
    path = tmp_path / "sandbox.db"
    program = "import sys, pathlib\nfrom tpuctl.sandbox.state import SandboxState\n"
    program += "sandbox = SandboxState.open(pathlib.Path(sys.argv[1]))\n"
    program += "with sandbox.write() as session: session.set_setting('x', 1)\nsandbox.close()"
    with SandboxState.open(path) as sandbox_state, SandboxState.open(path) as second:
        for each in (sandbox_state, second):
            with each.write() as session:
                session.set_setting("y", 1)

        subprocess.run([sys.executable, "-c", program, str(path)], check=True)

        assert path.with_name("sandbox.db-wal").exists()

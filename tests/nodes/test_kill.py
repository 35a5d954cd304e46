"""`tpuctl up` as a process that is killed or interrupted at any time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tests.lifecycle import UP, ZONE, put
from tests.tpuctl_process import TpuctlProcess
from tpuctl.sandbox.administration import DEFAULT_PROJECT
from tpuctl.sandbox.state import SandboxState

# Five moments of each of three runs, from before its first request to its last.
MOMENTS = (0.1, 0.35, 0.55, 0.75, 0.95)
# A creation takes a tenth of a second. What was left for more than an hour may be in use, and is not repaired: between two
# runs less than that has to pass, which is 2.4 s.
SPEED = 1500.0


@dataclass(frozen=True)
class Machine:
    """A folder that is home and state of real processes, with a world of its own in it."""

    folder: Path
    speed: float

    @property
    def state_file(self) -> Path:
        return self.folder / "state" / "sandbox" / "world.sqlite3"

    def prepare(self, fill: Callable[[Sandbox], object]) -> None:
        with SandboxState.open(self.state_file, speed=self.speed) as sandbox_state:
            fill(Sandbox(sandbox_state))

    def start(self, *command: str) -> TpuctlProcess:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LOGNAME": "ada",
            "TPUCTL_SANDBOX": "1",
            "TPUCTL_STATE_DIR": str(self.folder / "state"),
        }
        arguments = [*(command or (*UP, "--timeout", "forever"))]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return TpuctlProcess(arguments, env=environ, cwd=self.folder, text=True, **streams)

    def changes(self) -> list[str]:
        """Return the changes that were made. The log may lack that of a process that was killed."""
        with SandboxState.open(self.state_file) as sandbox_state, sandbox_state.read() as session:
            return [operation.verb for _, operation in session.operations(DEFAULT_PROJECT, ZONE, limit=100)]

    def states(self) -> list[str]:
        with SandboxState.open(self.state_file) as sandbox_state, sandbox_state.read() as session:
            phases = [node.phase(session.now) for node in session.nodes()]
            return [phase.state for phase in phases if phase]


def _nothing(_sandbox: Sandbox) -> None:
    """Prepare nothing."""


def _preempted(sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED")


def _comes_up_broken(sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")


@pytest.mark.parametrize(
    ("fill", "needed"),
    [
        (_nothing, ["create"]),
        (_preempted, ["delete", "create"]),
        (_comes_up_broken, ["create", "stop", "start"]),
    ],
    ids=["created", "recreated", "restarted"],
)
def test_killed_run_is_completed_by_the_next(
    tmp_path: Path,
    fake_ssh: Callable[[str], None],
    fill: Callable[[Sandbox], None],
    needed: list[str],
) -> None:
    whole = Machine(tmp_path / "whole", SPEED)
    whole.prepare(fill)
    started = time.monotonic()
    whole.start().communicate()
    length = time.monotonic() - started

    def kill_at(moment: float) -> tuple[int, str, list[str], list[str]]:
        machine = Machine(tmp_path / f"{moment}", SPEED)
        machine.prepare(fill)
        first = machine.start()
        time.sleep(length * moment)
        first.kill()
        first.communicate()
        second = machine.start()
        out, err = second.communicate(timeout=60)
        return second.wait(), out or err, machine.states(), machine.changes()

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(kill_at, MOMENTS))

    assert ended == [(0, "demo\tREADY\n", ["READY"], needed)] * len(MOMENTS)


GROUP = ("up", "train", "--slices", "2", "--type", "v4-8", "--zone", ZONE, "--timeout", "forever")


@pytest.mark.parametrize(
    ("queue", "creates"), [pytest.param((), 2, id="nodes"), pytest.param(("--queue",), 1, id="request")]
)
@pytest.mark.parametrize("ends", [False, True], ids=["up again", "down"])
def test_killed_run_of_a_group_is_completed_or_deleted_by_the_next(
    tmp_path: Path, fake_ssh: Callable[[str], None], queue: tuple[str, ...], creates: int, ends: bool
) -> None:
    whole = Machine(tmp_path / "whole", SPEED)
    whole.prepare(_nothing)
    started = time.monotonic()
    whole.start(*GROUP, *queue).communicate()
    length = time.monotonic() - started

    def kill_at(moment: float) -> tuple[int, list[str], int]:
        machine = Machine(tmp_path / f"{moment}", SPEED)
        machine.prepare(_nothing)
        first = machine.start(*GROUP, *queue)
        time.sleep(length * moment)
        first.kill()
        first.communicate()
        second = machine.start(*(("down", "train-*", "--yes") if ends else (*GROUP, *queue)))
        _, err = second.communicate(timeout=60)
        assert ends or second.wait() == 0, err
        return second.wait(), machine.states(), machine.changes().count("create")

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(kill_at, MOMENTS))

    if ends:
        assert [(code, states) for code, states, _ in results] == [(0, [])] * len(MOMENTS)
    else:
        assert results == [(0, ["READY", "READY"], creates)] * len(MOMENTS)


@pytest.fixture
def waiting(tmp_path: Path, fake_ssh: Callable[[str], None]) -> Iterator[TpuctlProcess]:
    """An `up` that has asked for a node and waits for it."""
    machine = Machine(tmp_path, 60.0)
    machine.prepare(_nothing)
    process = machine.start()
    assert process.stderr
    for line in process.stderr:
        if line.endswith("Z demo: CREATING\n"):
            break
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("number", "word", "code"), [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]
)
def test_interruption_reports_work_in_flight_and_commands(
    waiting: TpuctlProcess, tmp_path: Path, number: int, word: str, code: int
) -> None:
    waiting.send_signal(number)

    out, err = waiting.communicate(timeout=60)

    assert (out, waiting.wait()) == ("", code)
    known = f"`demo` in {ZONE} bills as soon as it runs (last status: CREATING)"
    assert err.splitlines() == [
        f"warning: {word}: {known}; nothing was undone",
        "  resume: tpuctl up demo --type v4-8 --zone us-central2-b --timeout forever",
        "  undo:   tpuctl down us-central2-b/demo",
    ]
    journal = next(tmp_path.rglob("demo.jsonl")).read_text()
    assert re.findall(r'"event": "([a-z-]+)"', journal) == ["create", "bringing-up", "state"]
    assert journal.endswith("}\n")

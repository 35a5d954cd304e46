"""The cost for tpuctl of waiting for many nodes: `python -m benchmarks.ticks WHAT …`, a process of its own.

fill FILE COUNT creates a sandbox whose nodes stay CREATING. calls FOLDER waits there for simulated minutes, the sandbox in
process, and prints the number of reads, as JSON. cost URL waits on a sandbox over its port and prints CPU seconds.
"""

from __future__ import annotations

import gc
import io
import json
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tpuctl.app.app import App, Invocation
from tpuctl.cli.main import main as run
from tpuctl.clock import ManualClock, SystemClock
from tpuctl.nodes.conditions import Condition, Policy
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.goal import Goal
from tpuctl.output.progress import Progress
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import store_node
from tpuctl.sandbox.lifecycle import LifecyclePhase
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROJECT, ZONE = "sandbox", "us-central2-b"
_TICKS, _LISTS = 20, 20
_MINUTES = 5


class _Even(Random):
    """A random generator that always returns 0.5: all nodes are due at the same time."""

    def random(self) -> float:
        return 0.5


class _TicksOver(BaseException):
    """Enough ticks were measured."""


class _CountingClock(ManualClock):
    """A manual clock that ends the wait after so many sleeps."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self._left = left

    def sleep(self, duration: timedelta) -> None:
        super().sleep(duration)
        self._left -= 1
        if self._left < 0:
            raise _TicksOver


def fill(path: Path, count: int) -> None:
    """Create a sandbox in real time with nodes in one zone that will be CREATING for a year."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with SandboxState.open(path, speed=1) as sandbox_state, sandbox_state.joint_write() as session:
        for number in range(count):
            administration.add_node(
                sandbox_state, f"node-{number:05d}", zone=ZONE, acceleratorType="v4-8", state="CREATING"
            )
        for node in session.nodes():
            store_node(session, node, (node.timeline[0], LifecyclePhase(session.now + timedelta(days=365), "READY")))


def calls(folder: Path) -> dict[str, float]:
    """Wait as a user does, on a manual clock; return the calls per tick, and the ticks and calls per minute."""
    environ = {"HOME": str(folder), "TPUCTL_STATE_DIR": str(folder / "state"), "TPUCTL_SANDBOX": "1"}
    state_file = folder / "state" / "sandbox" / "world.sqlite3"
    words = ("wait", "--all", "--zone", ZONE, "--for", "ready", "--timeout", f"{_MINUTES}m")
    random = Random(1)  # noqa: S311  # a simulation
    code = run(Invocation(words, environ, _nowhere(), folder, ManualClock(SystemClock().now()), random))
    assert code == 5, f"ended with {code}"
    looks = Counter(entry.at for entry in read_log(state_file) if entry.method == "GET")
    begin = min(looks)
    looks.pop(begin)  # the command lists the nodes
    return {"ticks": len(looks) / _MINUTES, "most": max(looks.values()), "calls": sum(looks.values()) / _MINUTES}


def cost(url: str) -> dict[str, float]:
    """Return the CPU seconds of this process for a tick with all nodes, and for the bare call."""
    folder = Path.cwd()
    environ = {"TPUCTL_ENDPOINT": url, "TPUCTL_PROJECT": PROJECT, "TPUCTL_STATE_DIR": str(folder), "HOME": str(folder)}
    gc.set_threshold(50_000)  # as the program itself does
    app = App(Invocation((), environ, _nowhere(), folder, _CountingClock(_TICKS), _Even()))
    client = app.services.client
    names = [node.name for node in client.list_nodes(PROJECT, (ZONE,)).nodes]
    (name, *others) = names
    bare = _cpu(lambda: client.list_nodes(PROJECT, (ZONE,)) if others else client.find_node(name), _LISTS)
    tasks = [Goal(name=each, policy=Policy(goal=Condition.READY, timeout=None)) for each in names]
    return {"bare": bare, "tick": _cpu(lambda: _wait(app, tasks), 1) / _TICKS}


def _wait(app: App, tasks: list[Goal]) -> None:
    try:
        with Progress(app.terminal, app.clock) as progress:
            reconcile_nodes(app.services.context(progress), tasks)
    except _TicksOver:
        return


def _cpu(act: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - began) / times


def _nowhere() -> StandardStreams:
    return StandardStreams(io.StringIO(), io.StringIO(), io.StringIO())


def main(what: str, *words: str) -> Mapping[str, float]:
    """Run one of the three commands."""
    match what:
        case "fill":
            fill(Path(words[0]), int(words[1]))
            return {}
        case "calls":
            return calls(Path(words[0]))
        case "cost":
            return cost(words[0])
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

"""How long `up` needs to get a TPU if one of five zones has it: `python -m benchmarks.zone_search COUNT`, a process of its own.

The whole program on a sandbox in process; with a manual clock, an hour takes only the time of its requests. Prints a JSON list
of searches.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tpuctl.app.app import Invocation
from tpuctl.cli.main import main as run_program
from tpuctl.clock import ManualClock
from tpuctl.output.terminal import StandardStreams
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.scenarios import play_scenario, read_scenario
from tpuctl.sandbox.state import SandboxState

_SCENARIO = Path(__file__).parents[1] / "examples" / "scenarios" / "third-zone-has-stock.yaml"
_ZONES = "us-east5-a,us-east5-b,us-east1-d,us-central1-b,europe-west4-a"
_OPTIONS: dict[str, tuple[str, ...]] = {
    "in order": (),
    "in order, queued for 5 min each": ("--queue", "--queue-for", "5m"),
    "race": ("--race",),
}
_LATER = {"now": "0s", "after 20 min": "20m"}
_IN_MEMORY = "/dev/shm"  # noqa: S108  # Linux's file system in memory; it holds only temporary data


@dataclass(frozen=True, slots=True)
class ZoneSearchTime:
    """A way to search, since when the zone has capacity, the simulated seconds until READY (median), and the requests."""

    way: str
    stock: str
    seconds: float
    requests: float


def main(count: int) -> list[ZoneSearchTime]:
    """Return the median of so many searches for each way and moment."""
    found = []
    for stock, moment in _LATER.items():
        for way, options in _OPTIONS.items():
            runs = [_search(options, moment, number) for number in range(count)]
            seconds, requests = (statistics.median(figures) for figures in zip(*runs, strict=True))
            found.append(ZoneSearchTime(way, stock, seconds, requests))
    return found


def _search(options: tuple[str, ...], moment: str, number: int) -> tuple[float, int]:
    in_memory = _IN_MEMORY if Path(_IN_MEMORY).is_dir() else None  # the speed of the disk is not measured
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-", dir=in_memory) as folder:
        home, clock = Path(folder), ManualClock()
        text = _SCENARIO.read_text("utf-8")
        if moment != "0s":
            nothing, _, stocked = text.rpartition("      - {zone")
            text = f"{nothing}  - at: {moment}\n    stock:\n      - {{zone{stocked}"
        with SandboxState.open(home / "state" / "sandbox" / "world.sqlite3", clock=clock) as state:
            play_scenario(state, read_scenario(text, _SCENARIO.name))
            command = ("up", f"t{number}", "--type", "v6e-8", "--spot", "--zone", _ZONES, *options)
            out, err = io.StringIO(), io.StringIO()
            streams = StandardStreams(
                io.StringIO(),
                out,
                err,
                stdin_is_terminal=False,
                stdout_is_terminal=False,
                stderr_is_terminal=False,
                width=160,
            )
            environ = {"HOME": folder, "TPUCTL_STATE_DIR": str(home / "state"), "TPUCTL_SANDBOX": "1"}
            random = Random(number)  # noqa: S311  # a simulation
            arguments = (*command, "--for", "ready", "--timeout", "12h")
            code = run_program(Invocation(arguments, environ, streams, home, clock, random))
            if code != 0:
                raise RuntimeError(f"{' '.join(arguments)}: exit {code}\n{err.getvalue()}")
            return clock.monotonic().total_seconds(), len(read_log(state.path))


if __name__ == "__main__":
    print(json.dumps([asdict(search) for search in main(int(sys.argv[1]))]))

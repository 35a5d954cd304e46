"""The waiting loop: how late it notices a READY node, compared with gcloud, and the cost of waiting for many nodes.

Modules with slow imports run in processes of their own: `creations`, `real_waits`, `ticks`. Nothing is asserted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measurement import Program
from benchmarks.stage import ZONE, Stage, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ROOT = str(Path(__file__).parents[1])
_CREATIONS, _SEED = 240, 1
_REAL = 12  # seconds
_WAIT = 60  # seconds
_COUNTS = (1, 100, 1000)
_SEARCHES = 9
_CLASSES = {"20 s to 1 min": (0, 60), "1 to 3 min": (60, 180), "3 to 8 min": (180, 480), "8 to 20 min": (480, 1e9)}
_ALL = (0.0, 1e9)
# Aims: the share of gcloud's median delay, calls in a minute, MiB, and the share of one core.
_SHARE, _CALLS, _MEMORY, _CORE = 0.25, 12.0, 200.0, 0.2


@dataclass(frozen=True, slots=True)
class Table:
    """Figures with a heading; `text` describes the measurement, for the page."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> Iterator[str]:
        """Yield it for a terminal."""
        yield self.title
        widths = [max(len(row[column]) for row in (self.header, *self.rows)) for column in range(len(self.header))]
        for row in (self.header, *self.rows):
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    def markdown(self) -> str:
        """Return it as a section of a page."""
        rows = [self.header, ("---",) * len(self.header), *self.rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        return f"## {self.title}\n\n{self.text}\n\n{table}\n"


def tables(folder: Path, names: tuple[str, ...]) -> Iterator[Table]:
    """Yield the tables with these names; all if no name is given."""
    for name, make in _TABLES.items():
        if not names or name in names:
            yield make(folder / name)


def _notice(_: Path) -> Table:
    creations = _python("creations", str(_CREATIONS), str(_SEED))
    rows = []
    for is_learned in (False, True):
        found = [each for each in creations if each["is_learned"] is is_learned]
        known = "usual time known" if is_learned else "nothing known"
        for words, (shortest, longest) in {**_CLASSES, "all": _ALL}.items():
            those = [each for each in found if shortest <= each["length"] < longest]
            if those:
                rows.append((known, words, *_notice_row(those)))
    header = ("journal", "length", "median", "90 %", "calls/min", *("gcloud: median", "90 %", "calls/min", "share"))
    return Table("Delay until a READY node is noticed", _NOTICE_TEXT, header, rows)


def _notice_row(creations: Sequence[dict[str, float]]) -> tuple[str, ...]:
    ours, theirs = _figures(creations, "late", "calls"), _figures(creations, "gcloud_late", "gcloud_calls")
    texts = (f"{late:.1f} s" for late in (*ours[:2], *theirs[:2]))
    median, most, their_median, their_most = texts
    share = ours[0] / theirs[0]
    marked = f"{share:.2f}" + ("" if share <= _SHARE else " (more)")
    return (median, most, f"{ours[2]:.1f}", their_median, their_most, f"{theirs[2]:.1f}", marked)


def _figures(creations: Sequence[dict[str, float]], late: str, calls: str) -> tuple[float, float, float]:
    """Return the median delay, the 90th percentile, and the calls per minute over the whole waiting time."""
    delays = sorted(each[late] for each in creations)
    waited = sum(each["length"] + each[late] for each in creations)
    most = delays[min(len(delays) - 1, int(0.9 * len(delays)))]
    return statistics.median(delays), most, 60 * sum(each[calls] for each in creations) / waited


def _real(folder: Path) -> Table:
    seen = _python("real_waits", str(folder), str(_REAL))
    earliest, median, latest = seen.pop("model")
    rows = [
        (name, f"{looks[-1]:.1f} s", f"{looks[-1] - _REAL:.1f} s", str(len(looks)))
        for name, looks in sorted(seen.items())
    ]
    rows.append(("gcloud's waiter as modelled", f"{median:.1f} s ({earliest:.1f} to {latest:.1f})", "", ""))
    header = ("program", "noticed", "late", "calls")
    return Table(f"The same in real time: a creation of {_REAL} s", _REAL_TEXT, header, rows)


def _many(folder: Path) -> Table:
    rows = []
    for count in _COUNTS:
        stage = _creating(folder / str(count), count)
        looks = _looks_of(_python("ticks", "calls", str(stage.folder)))
        with served(stage) as listening:
            share, memory = _process(listening) if count == max(_COUNTS) else (None, None)
            cost = _python("ticks", "cost", listening.url, folder=stage.folder)
        core = "" if share is None else f"{share:.1%}" + _missed(share > _CORE)
        peak = "" if memory is None else f"{memory:.0f} MiB" + _missed(memory > _MEMORY)
        overhead = f"{cost['tick'] / cost['bare']:.1f}"
        times = (f"{cost['bare'] * 1000:.1f} ms", f"{cost['tick'] * 1000:.1f} ms", overhead)
        rows.append((f"{count:,}", *looks, *times, core, peak))
    header = ("nodes", "calls/look", "looks/min", "bare call", "look", "ratio", "one core", "peak memory")
    return Table("Waiting for many nodes in one zone", _MANY_TEXT, header, rows)


def _looks_of(looks: dict[str, float]) -> tuple[str, str]:
    return f"{looks['most']:g}", f"{looks['ticks']:.1f}" + _missed(looks["ticks"] > _CALLS)


def _process(stage: Stage) -> tuple[float, float]:
    """Wait in a real process until its deadline; return its share of one core and its peak memory in MiB."""
    wait = stage.tpuctl("wait", "--all", "--zone", ZONE, "--for", "ready", "--timeout", f"{_WAIT}s")
    # The deadline is expected to pass: exit code 5.
    command = ("sh", "-c", '"$@"; test $? -eq 5', "sh", *wait.command)
    cost = Program(command, wait.environ).run(0)
    return cost.cpu / cost.wall, cost.memory


def _creating(folder: Path, count: int) -> Stage:
    stage = Stage(folder)
    folder.mkdir(parents=True)
    _python("ticks", "fill", str(stage.state_file), str(count))
    return stage


def _missed(is_missed: bool) -> str:  # noqa: FBT001  # reads as a sentence
    return " (missed)" if is_missed else ""


def _search(_: Path) -> Table:
    rows = [
        (each["stock"], each["way"], f"{each['seconds']:,.0f} s", f"{each['requests']:.0f}")
        for each in _python("zone_search", str(_SEARCHES))
    ]
    return Table(
        "Time to a TPU in one of five zones", _SEARCH_TEXT, ("capacity", "way", "READY after", "requests"), rows
    )


def _python(module: str, *words: str, folder: Path | None = None) -> Any:  # JSON
    """Run a module of this package in a process of its own and return the JSON that it printed."""
    command = (sys.executable, "-m", f"benchmarks.{module}", *words)
    environ = {**Stage(folder or Path("/nonexistent")).tpuctl().environ, "PYTHONPATH": _ROOT}
    done = subprocess.run(command, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


_NOTICE_TEXT = f"""Time from the moment at which a node becomes READY until `up --for ready` reports it, and the number of
requests. The durations of creations are distributed evenly on a logarithmic scale from 20 s to 20 min. The real loop,
client and journal run on a sandbox whose clock is advanced by the benchmark, {_CREATIONS} creations each: with an empty
journal, and with a journal of 12 creations of that type and zone, whose durations have a standard deviation of 10 %.
gcloud's waiter is a model (see below); its requests are those that read the operation. Requests per minute are all requests
divided by the time of all waits. Target over all lengths: {_SHARE:g} of gcloud's median, and {_CALLS:g} requests per
minute; larger shares are marked."""
_REAL_TEXT = """Both programs use `tpuctl sandbox serve` and the machine's clock. This validates the model of gcloud's
waiter: it reads the operation after 1 s, then with pauses of 2.0 · 1.4ⁿ + U(0, 1) s, at most 180 s. For the model: median,
earliest, latest."""
_MANY_TEXT = f"""`tpuctl wait --all --for ready` while all nodes are CREATING and the journal is empty. A look is one moment
at which tpuctl sends requests (counted in the sandbox's log, over 5 simulated minutes; the first seconds have the most);
target: {_CALLS:g} looks per minute. Bare call and look are the CPU of tpuctl alone, against a sandbox on a port: the
request that reads the nodes, and one turn of the loop with a decision for every node. Core and memory are those of a real
process that waits for {_WAIT} s, with its progress to a pipe; target: {_CORE:.0%} and {_MEMORY:g} MiB."""

_SEARCH_TEXT = f"""`up --zone` with the sandbox's scenario `third-zone-has-stock.yaml`: five zones offer v6e-8, and only
the third has capacity for spot nodes, from the beginning or from minute 20 on. Simulated time from the start of the command
until the node is READY, and the number of all requests; medians of {_SEARCHES} runs. In order, a create without capacity fails
within seconds, and rounds are followed by growing pauses. A queued resource of the sandbox needs 1 to 3 min before its node is
created, which a race pays once and in all zones at the same time."""
_TABLES: dict[str, Callable[[Path], Table]] = {
    "notice": _notice,
    "notice-real": _real,
    "wait-many": _many,
    "search": _search,
}
NAMES = tuple(_TABLES)

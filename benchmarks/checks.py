"""`tpuctl check`: its time, its calls and their rounds, and what it adds to a creation. Nothing is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measurement import Cost, Program, compare
from benchmarks.stage import ZONE, Stage, served
from benchmarks.waiting import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.measurement import Measurable

_ROOT = str(Path(__file__).parents[1])
_LATENCY = 0.1  # seconds, of every call
_RUNS, _FEW = 7, 3
_BUCKETS, _ZONES = 50, 20
# Seconds: the aim for two buckets and that latency, and the default deadline of a check.
_AIM, _DEADLINE = 0.8, 15.0
_ERRORS = 9  # the exit code of a check that found errors
_HERE, _THERE = "US-CENTRAL2", "EUROPE-WEST4"
_CASES = {"beside the node": ("ckpt", 0), "one elsewhere": ("far", _ERRORS)}
_CREATE = ("--type", "v4-8", "--version", "tpu-ubuntu2204-base", "--zone", ZONE, "--bucket", "gs://data")
_NONE = ("",) * 4
# First zones with TPUs, then others.
_SOME_ZONES = (
    f"from tpuctl.sandbox import catalog;print(','.join([*catalog.zone_names(), *catalog._NEIGHBOURS][:{_ZONES}]))"
)


@dataclass(frozen=True, slots=True)
class _After:
    """A program that is measured after another one, whose cost is not counted."""

    before: Program
    program: Program

    def run(self, number: int) -> Cost:
        """Run both and return the cost of the second one."""
        self.before.run(number)
        return self.program.run(number)


def tables(folder: Path, names: tuple[str, ...]) -> Iterator[Table]:
    """Yield the tables with these names; all if no name is given."""
    for name, make in _TABLES.items():
        if not names or name in names or "checks" in names:
            yield make(folder / name)


def _check(folder: Path) -> Table:
    folder.mkdir()
    rows: list[tuple[str, ...]] = []
    with ExitStack() as stack:
        for latency in (_LATENCY, 0.0):
            inside = _prepare(folder / f"{latency:g}", latency)
            outside = stack.enter_context(served(_prepare(folder / f"{latency:g}-port", latency)))
            rows += _rows({"in process": inside, "on a port": outside}, latency)
    header = ("sandbox", "latency", "buckets", "calls", "rounds", "wall", "CPU", "one after another", "share")
    return Table("A check before anything is created", _CHECK_TEXT, header, rows)


def _rows(stages: Mapping[str, Stage], latency: float) -> Iterator[tuple[str, ...]]:
    python, version = "the interpreter alone", "`tpuctl --version`"
    a_stage = next(iter(stages.values()))
    programs: dict[str, Measurable] = {
        python: Program((sys.executable, "-c", "pass"), a_stage.tpuctl().environ),
        version: a_stage.tpuctl("--version"),
    }
    for place, stage in stages.items():
        for where, (bucket, code) in _CASES.items():
            words = _words(bucket)
            programs[f"{place} {where}"] = _ending(stage.tpuctl(*words), code)
            programs[f"{place} {where}, one by one"] = _ending(_one_by_one(stage, *words), code)
    costs = compare(programs, runs=_RUNS, report_progress=_ignore)
    if latency:
        yield from (
            (name, *_NONE, _seconds(costs[name].wall), _seconds(costs[name].cpu), "", "") for name in (python, version)
        )
    for place, stage in stages.items():
        for where, (bucket, code) in _CASES.items():
            calls, rounds = _count_calls(stage, _ending(stage.tpuctl(*_words(bucket)), code), latency)
            ours, theirs = costs[f"{place} {where}"], costs[f"{place} {where}, one by one"]
            wall = _seconds(ours.wall) + _missed(bool(latency) and ours.wall > _AIM)
            times = (wall, _seconds(ours.cpu), _seconds(theirs.wall), f"{ours.wall / theirs.wall:.2f}")
            # In process the sandbox's own work prolongs a round, which then counts as several.
            depth = rounds if stage.url else ""
            yield (place, f"{latency * 1000:g} ms" if latency else "none", where, calls, depth, *times)


def _many(folder: Path) -> Table:
    folder.mkdir()
    zones = subprocess.run(
        (sys.executable, "-c", _SOME_ZONES), capture_output=True, text=True, check=True
    ).stdout.strip()
    buckets = [word for number in range(_BUCKETS) for word in ("--bucket", f"gs://many-{number:02d}")]
    rows = []
    with served(_prepare(folder / "port", _LATENCY)) as stage:
        programs = {
            f"{_BUCKETS} buckets, half of them elsewhere": _ending(
                stage.tpuctl("check", "v4-8", "--zone", ZONE, *buckets), _ERRORS
            ),
            f"{len(zones.split(','))} zones, 2 buckets": stage.tpuctl(
                "check", "v5litepod-8", "--zone", zones, "--bucket", "gs://data", "--bucket", "gs://far"
            ),
            f"{len(zones.split(','))} zones, {_BUCKETS} buckets": stage.tpuctl(
                "check", "v5litepod-8", "--zone", zones, *buckets
            ),
        }
        costs = compare(programs, runs=_FEW, report_progress=_ignore)
        for name, cost in costs.items():
            wall = _seconds(cost.wall) + _missed(cost.wall > _DEADLINE)
            rows.append((name, *_count_calls(stage, programs[name], _LATENCY), wall, _seconds(cost.cpu)))
    return Table("A check of many buckets and zones", _MANY_TEXT, ("", "calls", "rounds", "wall", "CPU"), rows)


def _creation(folder: Path) -> Table:
    folder.mkdir()
    rows = []
    for latency in (_LATENCY, 0.0):
        with served(_prepare(folder / f"{latency:g}", latency)) as stage:
            # Each runs after a check, so that caches are equally warm for all.
            programs: dict[str, Measurable] = {
                name: _After(
                    stage.tpuctl("check", checked, *_CREATE),
                    stage.tpuctl("create", "--no-wait", created, *_CREATE, *words),
                )
                for name, checked, created, words in (
                    ("without (`--skip-check all`)", "other-{run}", "without-{run}", ("--skip-check", "all")),
                    ("with", "other-{run}", "with-{run}", ()),
                    ("with, checked a moment ago", "seen-{run}", "seen-{run}", ()),
                )
            }
            costs = compare(programs, runs=_RUNS, report_progress=_ignore)
        without = next(iter(costs.values()))
        for name, cost in costs.items():
            added = (f"{cost.wall - without.wall:+.2f} s", f"{cost.cpu - without.cpu:+.2f} s")
            cells = added if cost is not without else ("", "")
            rows.append((f"{latency * 1000:g} ms" if latency else "none", name, _seconds(cost.wall), *cells))
    header = ("latency", "check", "wall", "adds", "adds CPU")
    return Table("What the check adds to a creation", _CREATION_TEXT, header, rows)


def _prepare(folder: Path, latency: float) -> Stage:
    """Return a sandbox in real time with buckets in two places; `latency` is added to every call, in seconds."""
    folder.mkdir()
    stage = Stage(folder)
    places = {"data": _HERE, "ckpt": _HERE, "far": _THERE}
    places |= {f"many-{number:02d}": _HERE if number % 2 else _THERE for number in range(_BUCKETS)}
    seed = folder / "seed.json"
    seed.write_text(json.dumps({"buckets": [{"name": name, "location": place} for name, place in places.items()]}))
    stage.tpuctl("sandbox", "seed", str(seed), environ={"TPUCTL_SANDBOX_SPEED": "1"}).run(0)
    if latency:
        stage.tpuctl("sandbox", "fault", "slow", "--duration", f"{latency:g}s", "--times", "0").run(0)
    return stage


def _words(bucket: str) -> tuple[str, ...]:
    return ("check", "v4-8", "--zone", ZONE, "--data-bucket", "gs://data", "--checkpoint-bucket", f"gs://{bucket}")


def _one_by_one(stage: Stage, *words: str) -> Program:
    environ = {**stage.tpuctl().environ, "PYTHONPATH": _ROOT}
    return Program((sys.executable, "-m", "benchmarks.one_by_one", *words), environ)


def _ending(program: Program, code: int) -> Program:
    """Return a program that succeeds if the given one exits with `code`."""
    command = ("sh", "-c", f'"$@"; test $? -eq {code}', "sh", *program.command)
    return Program(command, program.environ) if code else program


def _count_calls(stage: Stage, program: Program, latency: float) -> tuple[str, str]:
    """Run a program several times and return its number of calls, and the smallest number of rounds."""
    log = stage.state_file.with_name(f"{stage.state_file.name}-requests")
    command = (sys.executable, "-m", "benchmarks.call_rounds", str(stage.state_file), str(latency or _LATENCY))
    environ = {**program.environ, "PYTHONPATH": _ROOT}
    seen: list[dict[str, int]] = []
    for number in range(_FEW):
        log.unlink(missing_ok=True)
        program.run(number)
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
        seen.append(json.loads(done.stdout))
    calls = max(each["calls"] for each in seen)
    twice = max(each["calls"] - each["distinct"] for each in seen)
    # A busy machine prolongs a round, which then counts as several.
    rounds = min(each["rounds"] for each in seen)
    return f"{calls}" + (f" ({twice} of them twice)" if twice else ""), str(rounds) if latency else ""


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _missed(is_missed: bool) -> str:  # noqa: FBT001  # reads as a sentence
    return " (missed)" if is_missed else ""


def _ignore(_: str) -> None:
    pass


_CHECK_TEXT = f"""`tpuctl check v4-8` with two buckets, on a sandbox with {_LATENCY * 1000:g} ms of latency for every
request, and on one without; in the same process, and over HTTP from `tpuctl sandbox serve`. If a bucket is elsewhere, the
check sends a second round of requests: for its caches, and for the offers of other zones. A round ends when all its
requests have been answered; the rounds are counted on the port. *One after another*: the same requests, one at a time.
Medians of {_RUNS}, taking turns. In process, the CPU includes the sandbox.
Target: {_AIM:g} s with {_LATENCY * 1000:g} ms of latency."""
_MANY_TEXT = f"""Over HTTP, with {_LATENCY * 1000:g} ms of latency for every request; 32 requests at once. Medians of
{_FEW}.
Target: the deadline of a check, {_DEADLINE:g} s."""
_CREATION_TEXT = f"""`tpuctl create --no-wait` with a bucket, over HTTP, with and without the check before it. tpuctl reuses
check results for ten minutes. Medians of {_RUNS}, taking turns."""

_TABLES: dict[str, Callable[[Path], Table]] = {
    "check": _check,
    "check-many": _many,
    "check-create": _creation,
}
NAMES = (*_TABLES, "checks")

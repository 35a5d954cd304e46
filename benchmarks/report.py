"""The figures, as a table for the terminal and as docs/contributing/benchmarks.md and figures.md."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarks.cases import MANY, OURS, THEIRS
from benchmarks.stage import GCLOUD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.cases import Case
    from benchmarks.measurement import Cost
    from benchmarks.waiting import Table

Measured = tuple["Case", "Mapping[str, Cost]"]
_SLOWEST, _LARGEST = 3.0, 200.0  # seconds and MiB that a list of very many nodes may take


def lines(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield the figures for a terminal."""
    for case, costs in measured:
        yield f"{case.name}: {case.what}"
        for name, cost in costs.items():
            if limit := case.limits.get(name):
                verdict = _verdict(is_met=cost.wall <= limit)
                yield f"  {name:48} {cost.wall * 1000:7.1f} ms, limit {limit * 1000:g} ms: {verdict}"
                continue
            yield f"  {name:32} {cost.wall:7.3f} s wall  {cost.cpu:7.3f} s CPU  {cost.memory:6.1f} MiB"
        if THEIRS in costs:
            wall, cpu, memory = _ratios(costs)
            aimed = f", target {case.target:g}: {_verdict(is_met=wall <= case.target)}" if case.target else ""
            yield f"  {'ratio':32} {wall:7.2f} wall    {cpu:7.2f} CPU    {memory:6.2f} memory{aimed}"


def markdown(measured: Sequence[Measured], tables: Sequence[Table], *, runs: int) -> str:
    """Return all figures: benchmarks/figures.md."""
    beside = [
        f"| {case.what} | {_bold(wall, case.target)} | {cpu:.2f} | {memory:.2f} | {case.target or ''} |"
        for case, costs in measured
        if THEIRS in costs
        for wall, cpu, memory in (_ratios(costs),)
    ]
    alone = [
        f"| {name} | {cost.wall:.2f} s | {cost.cpu:.2f} s | {cost.memory:.0f} MiB |"
        for case, costs in measured
        if OURS not in costs and not case.limits
        for name, cost in costs.items()
    ]
    sandbox = [
        f"| {name} | {cost.wall * 1000:.1f} ms{'' if cost.wall <= limit else ' (missed)'} | {limit * 1000:g} ms |"
        for case, costs in measured
        for name, limit in case.limits.items()
        for cost in (costs[name],)
    ]
    return _PAGE.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=_machine(),
        versions=", ".join(_versions()),
        runs=runs,
        beside="\n".join(beside),
        alone="\n".join(alone),
        sandbox="\n".join(sandbox),
        waiting="\n".join(table.markdown() for table in tables),
        many=MANY,
        slowest=f"{_SLOWEST:g}",
        largest=f"{_LARGEST:g}",
    )


def summary(figures: str) -> str:
    """Return docs/contributing/benchmarks.md: the comparison with gcloud, and the titles of the other figures."""
    head, first, *others = figures.rstrip("\n").split("\n## ")
    titles = "".join(f"- {text.partition(chr(10))[0]}\n" for text in others)
    return f"{head}\n## {first.rstrip()}\n\n{_MORE}{titles}"


def _ratios(costs: Mapping[str, Cost]) -> tuple[float, float, float]:
    ours, theirs = costs[OURS], costs[THEIRS]
    return ours.wall / theirs.wall, ours.cpu / theirs.cpu, ours.memory / theirs.memory


def _verdict(*, is_met: bool) -> str:
    return "met" if is_met else "missed"


def _bold(ratio: float, target: float | None) -> str:
    return f"**{ratio:.2f}** (missed)" if target and ratio > target else f"{ratio:.2f}"


def _machine() -> str:
    """Return a description of this machine, without its name."""
    try:
        system = platform.freedesktop_os_release()
        name = f"{system.get('NAME', 'Linux').removesuffix(' GNU/Linux')} {system.get('VERSION_ID', '')}".strip()
    except OSError:
        name = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {name}, Python {platform.python_version()}"


def _versions() -> Iterator[str]:
    from tpuctl import __version__  # noqa: PLC0415  # after the measurements

    yield f"tpuctl {__version__}"
    if GCLOUD:
        output = subprocess.run((GCLOUD, "--version"), capture_output=True, text=True, check=True).stdout
        yield output.partition("\n")[0]


_PAGE = """# Benchmarks

Written by `python -m benchmarks --markdown` on {date}: {machine}; {versions}.
Each figure is the median of {runs} runs; the programs took turns. Absolute times depend on the machine, so comparisons with
gcloud are ratios: 0.2 means a fifth. If the machine was busy with other work, CPU is more reliable than wall time.

## Comparison with gcloud

Both use the same `tpuctl sandbox serve` on a loopback port, without credentials. CPU and memory include the processes that the
program started. gcloud has no comparable completion, so the table compares with its `--version`. Of the time of `--version` and
of completion, a sixth is Python's own start and half is the import of click. `create` also runs all checks before it sends its
request: importing them and the loop takes half of its CPU, and their requests most of the rest.

| tpuctl / gcloud | wall time | CPU | peak memory | target (wall) |
|---|---|---|---|---|
{beside}

## Lists of many nodes

`tpuctl list` of {many:,} nodes, with one request for all zones, and zone by zone (`--zone` with 40 zones). The sandbox runs in
the same process, so the figures include its work. Target: {slowest} s and {largest} MiB.

| | wall time | CPU | peak memory |
|---|---|---|---|
{alone}

## The sandbox

It has {many:,} nodes. Time that a client waits, on one connection; a single node is the median of 200 in each run.

| | time | limit |
|---|---|---|
{sandbox}

{waiting}"""

_MORE = """## More figures

[All figures](../../benchmarks/figures.md), with the target of each:

"""

"""`tpuctl top`: what the chips of workers do: compare workers, show. `ssh/tpu_metrics.py` asks them."""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_size
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, View
from tpuctl.ssh.channel import explain_agent_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.errors import TpuctlError
    from tpuctl.output.tables import TableLayout
    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.tpu_metrics import DeviceMetrics, MetricsReport, WorkerState

# A duty cycle is far from the median of the slice if it differs by more than this many of its usual deviations (their median,
# scaled to a standard deviation), and by more than this many points.
_OUTLIER_DEVIATIONS, _OUTLIER_POINTS = 3 * 1.4826, 15.0
_BAR_WIDTH = 8


def find_outliers(workers: Sequence[WorkerState]) -> set[int]:
    """Return the indices of workers with a duty cycle far from the median of all devices of their node."""
    found: set[int] = set()
    by_node: dict[str, dict[int, list[float]]] = {}
    for index, worker in enumerate(workers):
        if worker.report is not None:
            by_node.setdefault(str(worker.target.node.name), {})[index] = worker.report.values("duty")
    for figures in by_node.values():
        every = [figure for own in figures.values() for figure in own]
        if not every:
            continue
        middle = median(every)
        usual = median(abs(figure - middle) for figure in every)
        limit = max(_OUTLIER_POINTS, _OUTLIER_DEVIATIONS * usual)
        found |= {index for index, own in figures.items() if any(abs(figure - middle) > limit for figure in own)}
    return found


# Names and order are a contract with scripts (docs/top.md).
TOP_COLUMNS = (
    Column("worker", Kind.NAME),
    Column("chips", Kind.NUMBER),
    Column("program", Kind.TEXT),
    Column("hbm", Kind.STATE),
    Column("duty", Kind.STATE),
    Column("idle", Kind.TIME),
    Column("memory", Kind.WORD),
    Column("cpu", Kind.WORD),
    Column("disk-free", Kind.WORD),
    Column("hbm-chips", Kind.TEXT, is_wide=True),
    Column("duty-chips", Kind.TEXT, is_wide=True),
)


def top_rows(workers: Sequence[WorkerState]) -> list[tuple[Cell, ...]]:
    """Return a row for each worker. The duty cycle of an outlier is marked."""
    outliers = find_outliers(workers)
    return [_row(worker, is_outlier=index in outliers) for index, worker in enumerate(workers)]


def _row(worker: WorkerState, *, is_outlier: bool) -> tuple[Cell, ...]:
    report = worker.report
    if report is None:
        why = worker.error.message.partition(": ")[2] or worker.error.message if worker.error else "connecting"
        style = "red" if worker.error else "dim"
        return (Cell(worker.target.label), Cell(""), Cell(why, style=style), *[Cell("")] * (len(TOP_COLUMNS) - 3))
    duties, idle = report.values("duty"), report.values("idle")
    duty = Cell("-" if report.programs else "", rank=None)
    if duties:
        low, high = min(duties), max(duties)
        text = f"{high:.0f}%" if high - low < 1 else f"{low:.0f}-{high:.0f}%"
        duty = Cell(f"{text} !" if is_outlier else text, text, "red" if is_outlier else "", rank=worker.duty)
    memory = report.memory
    shown_idle = [value for value in idle if value >= timedelta(seconds=1)]
    return (
        Cell(worker.target.label),
        Cell(str(report.chips)),
        _program_cell(report),
        _hbm_cell(report),
        duty,
        Cell(format_duration(min(shown_idle)) if shown_idle and len(shown_idle) == len(idle) else ""),
        Cell(f"{_gib(memory.used)}/{_gib(memory.total)} GiB" if memory else "-"),
        Cell("-" if report.cpu is None else f"{report.cpu:.0f}%", rank=report.cpu),
        Cell("-" if report.disk_free is None else format_size(report.disk_free), rank=report.disk_free),
        Cell(" ".join(_share(device) for device in report.devices)),
        Cell(" ".join("-" if device.duty is None else f"{device.duty:.0f}%" for device in report.devices)),
    )


def _program_cell(report: MetricsReport) -> Cell:
    if not report.programs:
        processes = f"{report.hidden} process{'' if report.hidden == 1 else 'es'}"
        text = f"{processes} cannot be examined" if report.hidden else "idle: no program holds the chips"
        return Cell(text, style="dim")
    first = report.programs[0]
    more = f", and {len(report.programs) - 1} more" if len(report.programs) > 1 else ""
    text = f"{first.command} (pid {first.pid}, {first.user}, {format_duration(first.age)}{more})"
    if report.problem and not report.devices:
        return Cell(f"no metrics: {report.problem}; {text}", style="yellow")
    return Cell(text)


def _hbm_cell(report: MetricsReport) -> Cell:
    """Return the fullest device: a bar, its used and its total memory."""
    known = [device for device in report.devices if device.hbm_used is not None and device.hbm_total]
    if not known:
        return Cell("-" if report.programs else "")
    fullest = max(known, key=lambda device: (device.hbm_used or 0) / (device.hbm_total or 1))
    used, total = fullest.hbm_used or 0, fullest.hbm_total or 1
    share = min(1.0, used / total)
    filled = round(share * _BAR_WIDTH)
    text = f"{_gib(used)}/{_gib(total)} GiB"
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    # A narrow terminal cuts the bar.
    return Cell(f"{text} {bar}", text, "red" if share > 0.95 else "", rank=share)


def _gib(size: int) -> str:
    """Return bytes in GiB, in which memory is sold."""
    return f"{size / 2**30:.1f}".removesuffix(".0")


def _share(device: DeviceMetrics) -> str:
    if device.hbm_used is None or not device.hbm_total:
        return "-"
    return f"{100 * device.hbm_used / device.hbm_total:.0f}%"


def top_summary(workers: Sequence[WorkerState]) -> str:
    """Return the totals of all workers in one line."""
    totals = _totals(workers)
    parts = [f"{len(workers)} worker{'' if len(workers) == 1 else 's'}, {totals['chips']} chips"]
    if totals["hbmTotalBytes"]:
        parts.append(f"HBM {_gib(totals['hbmUsedBytes'])} of {_gib(totals['hbmTotalBytes'])} GiB")
    if totals["dutyCyclePercent"] is not None:
        low, high = totals["dutyCycleMinPercent"], totals["dutyCycleMaxPercent"]
        parts.append(f"duty cycle {totals['dutyCyclePercent']:.0f}% ({low:.0f}-{high:.0f}%)")
    if silent := sum(worker.report is None for worker in workers):
        parts.append(f"{silent} without a report")
    return ", ".join(parts)


def _totals(workers: Iterable[WorkerState]) -> dict[str, Any]:
    reports = [worker.report for worker in workers if worker.report]
    duties = [value for report in reports for value in report.values("duty")]
    return {
        "chips": sum(report.chips for report in reports),
        "hbmUsedBytes": sum(value for report in reports for value in report.values("hbm_used")),
        "hbmTotalBytes": sum(value for report in reports for value in report.values("hbm_total")),
        "dutyCyclePercent": sum(duties) / len(duties) if duties else None,
        "dutyCycleMinPercent": min(duties, default=None),
        "dutyCycleMaxPercent": max(duties, default=None),
    }


def top_view(workers: Sequence[WorkerState], layout: TableLayout) -> View:
    """Return the view of one report of each worker."""

    def show(terminal: Terminal) -> None:
        _, rows = layout.sort(workers, top_rows(workers))
        layout.write(terminal, rows)
        terminal.summary(top_summary(workers))

    return View(value=lambda: top_json(workers), text=show)


def top_json(workers: Sequence[WorkerState]) -> dict[str, Any]:
    """Return the form for scripts. What is unknown is null."""
    outliers = find_outliers(workers)
    return {
        "workers": [_worker_json(worker, is_outlier=index in outliers) for index, worker in enumerate(workers)],
        "totals": _totals(workers),
    }


def _worker_json(worker: WorkerState, *, is_outlier: bool) -> dict[str, Any]:
    report, name = worker.report, worker.target.node.name
    place = {"nodeId": name.node_id, "zone": name.zone, "worker": worker.target.worker}
    if report is None:
        return {**place, "error": worker.error.message if worker.error else None}
    memory = report.memory
    return {
        **place,
        "error": None,
        "chips": report.chips,
        "programs": [
            {
                "pid": program.pid,
                "user": program.user,
                "ageSeconds": round(program.age.total_seconds()),
                "command": program.command,
            }
            for program in report.programs
        ],
        "devices": [
            {
                "device": device.device,
                "hbmUsedBytes": device.hbm_used,
                "hbmTotalBytes": device.hbm_total,
                "dutyCyclePercent": device.duty,
                "idleSeconds": None if device.idle is None else device.idle.total_seconds(),
            }
            for device in report.devices
        ],
        "problem": report.problem,
        "isOutlier": is_outlier,
        "cpuPercent": report.cpu,
        "memoryUsedBytes": memory.used if memory else None,
        "memoryTotalBytes": memory.total if memory else None,
        "diskFreeBytes": report.disk_free,
    }


def failures(workers: Sequence[WorkerState]) -> list[TpuctlError]:
    """Return why workers gave no report, one error for each cause."""
    return explain_agent_errors(worker.error for worker in workers if worker.error is not None)

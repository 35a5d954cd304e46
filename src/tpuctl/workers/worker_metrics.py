"""`tpuctl top`: what the chips of workers do: keep a channel open to each, decode its reports, compare workers, show.

The reports come from `ssh/agent/tpu_metrics.py`, one in each interval. One thread serves all channels. A worker that drops
out is connected to again after a pause, and its row says why meanwhile.
"""

from __future__ import annotations

import selectors
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Self

from tpuctl.decoding import Line, Most, Pid, Range
from tpuctl.durations import format_duration, format_size
from tpuctl.errors import TpuctlError
from tpuctl.escaping import one_line
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, View
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer
from tpuctl.ssh.channel import LONGEST_ANSWER, MAX_CHANNELS, AgentChannel, AgentError, WorkerFrame, explain_agent_errors
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.output.tables import TableLayout
    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.worker_jobs import JobScope

_CONNECT_TIMEOUT = timedelta(seconds=30)
# Seconds until a worker that dropped out is connected to again.
_RECONNECT_AFTER = 5.0
# A worker that hangs sends nothing: as many intervals later its report counts no longer.
_MISSED_INTERVALS = 3
_MOST_DEVICES, _MOST_PROGRAMS = 64, 16
_LONGEST_AGE = 100 * 365 * 86400
# A duty cycle is far from the median of the slice if it differs by more than this many of its usual deviations (their median,
# scaled to a standard deviation), and by more than this many points.
_OUTLIER_DEVIATIONS, _OUTLIER_POINTS = 3 * 1.4826, 15.0
_BAR_WIDTH = 8

Percent = Annotated[float, Range(0, 1000)]


@dataclass(frozen=True, slots=True)
class TpuProgram:
    """A process that holds the chips of a worker."""

    pid: Pid
    user: Annotated[str, Line(100)]
    age: Annotated[timedelta, Range(0, _LONGEST_AGE)]
    command: Annotated[str, Line(300)]


@dataclass(frozen=True, slots=True)
class DeviceMetrics:
    """What libtpu says of a device: a chip, or a core of one. None is a metric that its version lacks.

    HBM in bytes; `duty` is the percentage of time in which the TensorCore computed, `idle` the time since it last did.
    """

    device: Annotated[int, Range(0, 2**20)]
    hbm_used: int | None = None
    hbm_total: int | None = None
    duty: Percent | None = None
    idle: Annotated[timedelta | None, Range(0, _LONGEST_AGE)] = None


@dataclass(frozen=True, slots=True)
class CoreState:
    """What a core runs: its launch, its program, the place in it as HLO, and the number of programs that wait."""

    core: Annotated[int, Range(0, 2**31)]
    launch: Annotated[int | None, Range(-(2**31), 2**31)]
    program: Annotated[str, Line(64)]
    place: Annotated[str, Line(200)]
    queued: Annotated[int, Range(0, 2**20)]
    error: Annotated[str, Line(200)]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a worker in bytes."""

    used: int
    total: int


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """What a worker does. `problem`: why there are no metrics although a program holds the chips.

    `hidden`: number of processes that could not be examined. `cpu` is a percentage, `disk_free` in bytes.
    """

    chips: Annotated[int, Range(0, 1024)]
    programs: Annotated[tuple[TpuProgram, ...], Most(_MOST_PROGRAMS)]
    hidden: Annotated[int, Range(0, 2**22)]
    devices: Annotated[tuple[DeviceMetrics, ...], Most(_MOST_DEVICES)]
    cores: Annotated[tuple[CoreState, ...], Most(_MOST_DEVICES)]
    problem: Annotated[str | None, Line(200)]
    cpu: Percent | None
    memory: MemoryUse | None
    disk_free: int | None

    def values(self, name: str) -> list[Any]:  # numbers, or durations
        """Return the values of a metric that the devices have."""
        return [value for device in self.devices if (value := getattr(device, name)) is not None]


@dataclass(slots=True)
class WorkerState:
    """A worker: its last report, and why there is none now."""

    target: Target
    report: MetricsReport | None = None
    error: TpuctlError | None = None
    received: float = 0.0  # by time.monotonic()

    @property
    def duty(self) -> float | None:
        """The mean duty cycle of its devices, None if it is unknown."""
        figures = self.report.values("duty") if self.report else []
        return sum(figures) / len(figures) if figures else None


class MetricsStream:
    """The channels to the workers, and what they have sent. Without an interval each worker reports once.

    The reports have the `cores` only if they are asked for: libtpu resolves the place of each in its program.
    """

    def __init__(self, scope: JobScope, interval: timedelta | None, *, with_cores: bool = False) -> None:
        self.workers = [WorkerState(target) for target in scope.targets]
        self._scope, self._interval = scope, interval
        self._request = {
            "devices": [ACCEL_FILES, VFIO_FILES],
            "lockFile": LOCK_FILE,
            "interval": None if interval is None else interval.total_seconds(),
            "cores": with_cores,
        }
        self._channels: dict[int, AgentChannel] = {}
        self._opened: dict[int, float] = {}
        self._due = dict.fromkeys(range(len(self.workers)), 0.0)
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.kill()
        for index in list(self._channels):
            self._close(index)
        self._selector.close()

    @property
    def has_ended(self) -> bool:
        """Whether each worker has reported once, or has failed."""
        return not self._channels and not self._due

    def serve(self, seconds: float) -> bool:
        """Open channels that are due, and take what arrives for this long, or until something came. Return whether it did.

        Raises `SshProgramMissingError`.
        """
        until = time.monotonic() + seconds
        self._connect()
        has_news = self._drop_silent()
        for key, _ in self._selector.select(max(0.0, min(until - time.monotonic(), 0.25))):
            has_news |= self._receive(key.data)
        return has_news

    def collect(self) -> None:
        """Take one report of each worker. Raises `SshProgramMissingError`."""
        while not self.has_ended:
            self.serve(0.25)

    def _connect(self) -> None:
        now = time.monotonic()
        starting = sum(not channel.has_begun for channel in self._channels.values())
        for index in [index for index, due in self._due.items() if due <= now][: max(0, MAX_CHANNELS - starting)]:
            target = self.workers[index].target
            shared = self._scope.ssh_options(target.connection)
            del self._due[index]
            channel = AgentChannel(
                target,
                "tpu_metrics",
                self._request,
                shared=shared,
                connect_within=_CONNECT_TIMEOUT,
                longest=LONGEST_ANSWER,
                is_in_own_group=True,
                as_root=True,
            )
            self._channels[index], self._opened[index] = channel, now
            self._selector.register(channel.stdout, selectors.EVENT_READ, index)

    def _receive(self, index: int) -> bool:
        """Take what a worker has sent. Return whether that changes what is shown."""
        worker, channel = self.workers[index], self._channels[index]
        try:
            channel.flush()
            for kind, payload in channel.receive():
                worker.report = _parse_report(worker.target, kind, payload)
                worker.error, worker.received = None, time.monotonic()
                if self._interval is None:
                    self._close(index)
                    return True
            if not channel.is_open:
                raise channel.failure()
        except UnexpectedAnswerError as error:
            self._fail(index, error.of(worker.target.label))
        except TpuctlError as error:
            self._fail(index, error)
        else:
            return worker.received > 0
        return True

    def _drop_silent(self) -> bool:
        """Close channels that have been silent for too long. Return whether there were any."""
        now = time.monotonic()
        silence = _CONNECT_TIMEOUT.total_seconds()
        dropped = False
        for index, channel in list(self._channels.items()):
            if self._interval is not None and channel.has_begun:
                silence = max(10.0, _MISSED_INTERVALS * self._interval.total_seconds())
            if now - max(self.workers[index].received, self._opened[index]) > silence:
                error = AgentError(
                    self.workers[index].target,
                    f"no report within {silence:g} s",
                    ssh_stderr=None if channel.has_begun else channel.errors,
                    waited=timedelta(seconds=silence),
                )
                self._fail(index, error)
                dropped = True
        return dropped

    def _fail(self, index: int, error: TpuctlError) -> None:
        self.workers[index].error, self.workers[index].report = error, None
        self._channels[index].kill()
        self._close(index)
        if self._interval is not None:
            self._due[index] = time.monotonic() + _RECONNECT_AFTER

    def _close(self, index: int) -> None:
        channel = self._channels.pop(index)
        with suppress(KeyError, ValueError):
            self._selector.unregister(channel.stdout)
        channel.close()


def _parse_report(target: Target, kind: WorkerFrame, payload: bytes) -> MetricsReport:
    """Return the report in a frame. Raises `AgentError` and `UnexpectedAnswerError`."""
    if kind is WorkerFrame.REFUSED:
        raise AgentError(target, one_line(payload.decode(errors="replace")))
    if kind is not WorkerFrame.EXIT:
        raise UnexpectedAnswerError(f"a frame `{kind.name}` as a report")
    return decode_answer(MetricsReport, parse_answer(payload))


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
    return Cell(f"{bar} {text}", text, "red" if share > 0.95 else "", rank=share)


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

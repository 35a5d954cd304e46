"""What the chips of workers do: keep a channel open to each worker, and decode its reports.

The reports come from `ssh/agent/tpu_metrics.py`, one in each interval. One thread serves all channels. A worker that drops
out is connected to again after a pause.
"""

from __future__ import annotations

import selectors
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

from tpuctl.decoding import Line, Most, Pid, Range
from tpuctl.errors import TpuctlError
from tpuctl.escaping import one_line
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer
from tpuctl.ssh.channel import LONGEST_ANSWER, MAX_CHANNELS, AgentChannel, AgentError, WorkerFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.ssh.connection import Connection, Target

_CONNECT_TIMEOUT = timedelta(seconds=30)
# Seconds until a worker that dropped out is connected to again.
_RECONNECT_AFTER = 5.0
# A worker that hangs sends nothing: as many intervals later its report counts no longer.
_MISSED_INTERVALS = 3
_MOST_DEVICES, _MOST_PROGRAMS = 64, 16
_LONGEST_AGE = 100 * 365 * 86400

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

    `ssh_options` returns the options of a shared connection, None for a new one.
    The reports have the `cores` only if they are asked for: libtpu resolves the place of each in its program.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        ssh_options: Callable[[Connection], tuple[str, ...] | None],
        interval: timedelta | None,
        *,
        with_cores: bool = False,
    ) -> None:
        self.workers = [WorkerState(target) for target in targets]
        self._ssh_options, self._interval = ssh_options, interval
        self._request = {
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

    def collect(self, within: timedelta | None = None) -> None:
        """Take one report of each worker, of those that send it `within` a time. Raises `SshProgramMissingError`."""
        until = None if within is None else time.monotonic() + within.total_seconds()
        while not self.has_ended and (until is None or time.monotonic() < until):
            self.serve(0.25)

    def _connect(self) -> None:
        now = time.monotonic()
        starting = sum(not channel.has_begun for channel in self._channels.values())
        for index in [index for index, due in self._due.items() if due <= now][: max(0, MAX_CHANNELS - starting)]:
            target = self.workers[index].target
            shared = self._ssh_options(target.connection)
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


def chips_idle_for(workers: Sequence[WorkerState]) -> timedelta | None:
    """Return for how long no chip has computed although a program holds it; None if one has, or if a worker does not know."""
    times = []
    for worker in workers:
        idle = worker.report.values("idle") if worker.report and worker.report.programs else []
        if worker.report is None or not idle or len(idle) < len(worker.report.devices):
            return None
        times += idle
    return min(times, default=None)


def _parse_report(target: Target, kind: WorkerFrame, payload: bytes) -> MetricsReport:
    """Return the report in a frame. Raises `AgentError` and `UnexpectedAnswerError`."""
    if kind is WorkerFrame.REFUSED:
        raise AgentError(target, one_line(payload.decode(errors="replace")))
    if kind is not WorkerFrame.EXIT:
        raise UnexpectedAnswerError(f"a frame `{kind.name}` as a report")
    return decode_answer(MetricsReport, parse_answer(payload))

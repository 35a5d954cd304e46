"""Find out whether a kept job hangs: watch its output and its chips, and save its stacks before it is ended."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpuctl.clock import SystemClock
from tpuctl.errors import TpuctlError
from tpuctl.files import make_private_folder, replace_private_file
from tpuctl.ssh.tpu_metrics import MetricsStream
from tpuctl.workers.device_stacks import DeviceStacks, list_device_stacks
from tpuctl.workers.keep_policy import HangStep, judge_hang
from tpuctl.workers.worker_stacks import list_stacks, stack_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tpuctl.ssh.tpu_metrics import WorkerState
    from tpuctl.workers.keep_policy import KeepPolicy
    from tpuctl.workers.worker_jobs import JobScope

_LOOK_INTERVAL = timedelta(seconds=1)
# Chips are asked so often; a long limit needs no more.
_LONGEST_INTERVAL = timedelta(minutes=1)
_IDLE_PERCENT: Final = 0.1  # a duty cycle that libtpu rounds is seldom 0


class ChipActivity:
    """For how long all chips of a job have been idle, from one report of its workers to the next."""

    def __init__(self) -> None:
        self._idle_since: timedelta | None = None

    def idle_time(self, workers: Sequence[WorkerState], now: timedelta) -> timedelta | None:
        """Return the time since any chip last worked: 0 while one works, None if a worker does not say."""
        devices = [one.report.devices if one.report else () for one in workers]
        every = [device for of_worker in devices for device in of_worker]
        is_known = bool(workers) and all(devices) and all(device.duty is not None for device in every)
        is_idle = all((device.duty or 0) <= _IDLE_PERCENT for device in every)
        if not is_known or not is_idle:
            self._idle_since = None
            return timedelta() if is_known else None
        measured = [device.idle for device in every if device.idle is not None]
        since = now - min(measured) if len(measured) == len(every) else now
        self._idle_since = since if self._idle_since is None else min(self._idle_since, since)
        return now - self._idle_since


class HangWatch:
    """Looks each second whether an attempt hangs, beside the loop that follows its output.

    `ran` is how long it had run before. `last_output` returns the time of the newest output by the monotonic clock, None
    without any. `warn` is called once for each time of silence or idleness, `end` when the attempt hangs, with `text`, which
    says why, and `worker`, the one that the others wait for, if that is known. The stacks go to `stacks.txt` in `folder`.
    """

    def __init__(
        self,
        policy: KeepPolicy,
        scope: JobScope,
        folder: Path,
        *,
        ran: timedelta,
        last_output: Callable[[], timedelta | None],
        warn: Callable[[str], None],
        end: Callable[[str, str], None],
    ) -> None:
        self._policy, self._scope, self._folder = policy, scope, folder
        self._last_output, self._warn, self._end = last_output, warn, end
        self.text = self.worker = ""
        self._clock = SystemClock()  # the workers live in real time
        self._since = self._clock.monotonic()
        self._ran = ran
        self._activity, self._stream = ChipActivity(), ExitStack()
        self._metrics: MetricsStream | None = None
        self._has_warned = False
        # While it acts, the attempt must not end: a signal would reach the next one.
        self._acts, self._is_over = threading.Lock(), False

    def __enter__(self) -> HangWatch:
        self._stop = self._clock.every(_LOOK_INTERVAL, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        with self._acts:
            self._is_over = True
            self._stream.close()

    def _look(self) -> None:
        with self._acts:
            if not self._is_over and not self.text:
                self._judge()

    def _judge(self) -> None:
        step, why = self._state()
        if step is HangStep.NONE:
            self._has_warned = False
        elif step is HangStep.WARN and not self._has_warned:
            self._has_warned = True
            self._warn(why)
        elif step is HangStep.END:
            where = self._save_stacks()
            step, why = self._state()  # that took time
            if step is HangStep.END:
                text = f"{why}{where}"
                try:
                    self._end(text, self.worker)
                except TpuctlError:  # another process supervises the job, or the journal cannot be written
                    self._is_over = True
                else:
                    self.text = text

    def _state(self) -> tuple[HangStep, str]:
        now = self._clock.monotonic()
        running = self._ran + now - self._since
        if running < self._policy.start_grace:
            return HangStep.NONE, ""
        silent = now - (self._last_output() or self._since)
        return judge_hang(self._policy, running=running, silent=silent, idle=self._idle_time(now))

    def _idle_time(self, now: timedelta) -> timedelta | None:
        if self._metrics is None:
            interval = min(_LONGEST_INTERVAL, max(self._policy.hang_after / 10, timedelta(seconds=1)))
            self._metrics = MetricsStream(self._scope.targets, self._scope.ssh_options, interval)
            self._stream.enter_context(self._metrics)
        self._metrics.serve(0)
        return self._activity.idle_time(self._metrics.workers, now)

    def _save_stacks(self) -> str:
        """Write the stacks of the programs and of the chips, and return where they are. No failure counts: they explain."""
        devices: DeviceStacks | None = None
        try:
            devices = list_device_stacks(self._scope)
            behind = devices.behind
            self.worker = behind[0].target.label if len(behind) == 1 else ""
            lines = list(stack_lines(list_stacks(self._scope, signal=None), devices))
        except TpuctlError as error:
            lines = [*(devices.lines if devices else ()), f"no stacks of the programs: {error.message}"]
        path = self._folder / "stacks.txt"
        try:
            make_private_folder(self._folder)
            replace_private_file(path, "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            return f"; its stacks were not saved: {(error.strerror or str(error)).lower()}"
        return f"; its stacks: {path}"

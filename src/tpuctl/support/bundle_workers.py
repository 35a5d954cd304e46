"""What the workers send for a bundle: each has one channel, whose frames are stored as they arrive.

The channels run in parallel, so a worker that does not answer delays no other.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

from tpuctl.decoding import Range, Text
from tpuctl.durations import format_size
from tpuctl.fan_out import fan_out
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer, parse_decimal
from tpuctl.ssh.channel import LONGEST_FRAME, MAX_CHANNELS, AgentError, OpenChannels, WorkerFrame, open_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import StatusLine
    from tpuctl.ssh.connection import Target
    from tpuctl.support.bundle_contents import BundleContents, BundleFile

T = TypeVar("T")
# A shorter visit gets no answer.
_MIN_TIMEOUT = timedelta(seconds=1)
_MAX_FILE_SIZE = 16 * 1024 * 1024
# A worker limits itself; these are for one that does not, so that it cannot fill this machine.
_SLACK = 4 * 1024 * 1024
# What a frame counts at least: each may add a line to a file.
_LEAST_FRAME = 40
_MAX_FILES = 1000
_MAX_MISSING = 500
_MAX_REASON_LENGTH = 500
_MAX_PATH_LENGTH = 4096
_MAX_TIME = 1e15  # seconds


class WorkerCollector:
    """Collects from the workers. `incomplete` are the reasons why some did not send everything."""

    def __init__(self, contents: BundleContents, clock: Clock, *, deadline: timedelta, since: timedelta | None) -> None:
        """`deadline`: monotonic time of the clock. `since`: the maximum age of logs."""
        self.incomplete: list[AgentError] = []
        self._contents, self._clock, self._deadline, self._since = contents, clock, deadline, since
        self._channels = OpenChannels()
        self._share = self._done = 0

    def run(self, targets: Sequence[Target], line: StatusLine, meanwhile: Callable[[], object]) -> None:
        """Collect from all workers, and do something else meanwhile. An interrupt ends all of it.

        Raises `SshProgramMissingError`.
        """
        bytes_at_begin, workers = self._contents.bytes_left, len(targets)
        self._share = bytes_at_begin // max(1, workers)

        def describe() -> str:
            return f"received {format_size(bytes_at_begin - self._contents.bytes_left)}; {self._done} of {workers} workers done"

        steps: list[Callable[[], object]]
        steps = [meanwhile, *(partial(self._collect_from, target, lambda: line.show(describe)) for target in targets)]
        try:
            for outcome in fan_out(lambda step: step(), steps, limit=MAX_CHANNELS + 1):
                outcome.get()
        except BaseException:
            self._contents.close()
            self._channels.kill()
            raise

    def _collect_from(self, target: Target, received: Callable[[], None]) -> None:
        folder = _WorkerFolder(self._contents, f"workers/{target.worker}")
        try:
            self._receive(target, folder, received)
        except UnexpectedAnswerError as error:
            folder.add_missing("", error.message)
        except AgentError as error:
            self.incomplete.append(error)
            if error.waited is not None:
                state = "incomplete" if error.has_begun else "no answer"
                why = f"{state} within {error.waited.total_seconds():.0f} s"
            elif error.ssh_stderr is None:
                why = f"collection failed: {error.what}"
            else:
                why = "the connection broke" if error.has_begun else error.what
            folder.add_missing("", why)
        folder.end()
        self._done += 1

    def _receive(self, target: Target, folder: _WorkerFolder, received: Callable[[], None]) -> None:
        """Store what a worker sends. Raises `AgentError` and `UnexpectedAnswerError` if it is not everything."""
        timeout = self._deadline - self._clock.monotonic()
        if timeout <= _MIN_TIMEOUT:
            raise AgentError(target, "timed out before it was visited")
        until, size_left = time.monotonic() + timeout.total_seconds(), self._share + _SLACK
        request = {
            "room": self._share,
            "each": min(_MAX_FILE_SIZE, max(1, self._share // 2)),
            "since": self._since.total_seconds() if self._since else None,
            # It ends by itself before the timeout, and says what is missing.
            "seconds": max(1.0, timeout.total_seconds() * 0.9 - 1),
        }
        # A new connection: a shared one may be what is broken.
        options = ("-o", "Compression=yes")
        with (
            open_agent(
                target, "worker_evidence", request, connect_within=timeout, options=options, longest=LONGEST_FRAME
            ) as channel,
            self._channels.holding(channel),
        ):
            for kind, payload in channel.frames(timeout, until=until):
                if kind is WorkerFrame.EXIT:
                    return
                size_left -= _LEAST_FRAME + len(payload)
                if size_left < 0:
                    raise AgentError(target, "it sent more than was requested")
                folder.take(kind, payload)
                received()
            raise channel.failure()


class _WorkerFolder:
    """Stores the files of one worker in its folder. None of it can be trusted, least of all the names."""

    def __init__(self, contents: BundleContents, path: str) -> None:
        self._contents, self._path = contents, path
        self._writing: BundleFile | None = None
        self._files = self._missing = 0

    def take(self, kind: WorkerFrame, payload: bytes) -> None:
        """Store what a frame carries. Raises `UnexpectedAnswerError`."""
        match kind:
            case WorkerFrame.FILE:
                self._begin(_decode_frame(_FileFrame, payload))
            case WorkerFrame.OUT if self._files:
                if self._writing is not None:
                    self._writing.write(payload)
            case WorkerFrame.OUT_GONE if self._files:
                size = parse_decimal(payload, "left out")
                if self._writing is not None:
                    self._writing.skip(size)
            case WorkerFrame.MISSING:
                item = _decode_frame(_MissingFrame, payload)
                self._missing += 1
                if self._missing <= _MAX_MISSING:
                    self.add_missing(item.path, item.why)
            case _:
                raise UnexpectedAnswerError(f"a frame `{kind.name}` out of order")

    def add_missing(self, path: str, why: str) -> None:
        """Record what is missing, all of the worker with an empty path."""
        place = f"{self._path}/{path[:_MAX_REASON_LENGTH]}" if path else self._path
        self._contents.add_missing(place, why[:_MAX_REASON_LENGTH])

    def end(self) -> None:
        """End the last file."""
        if self._writing is not None:
            self._writing.end()
            self._writing = None
        if self._files > _MAX_FILES:
            self.add_missing("", f"{self._files - _MAX_FILES} files omitted: the worker sent more than was requested")

    def _begin(self, file: _FileFrame) -> None:
        if self._writing is not None:
            self._writing.end()
            self._writing = None
        self._files += 1
        if self._files > _MAX_FILES:
            return
        modified = None
        if file.modified is not None:
            with suppress(ValueError, OverflowError, OSError):  # no calendar has that time
                modified = datetime.fromtimestamp(file.modified, UTC)
        path = f"{self._path}/{file.path or 'unnamed'}"
        self._writing = self._contents.begin(path, source=file.source, announced=file.size, modified=modified)


_LongText = Annotated[str, Text(_MAX_PATH_LENGTH)]


@dataclass(frozen=True, slots=True)
class _FileFrame:
    """The beginning of a file, as the program on the worker sends it."""

    path: _LongText
    source: _LongText
    size: int | None
    modified: Annotated[float, Range(-_MAX_TIME, _MAX_TIME)] | None


@dataclass(frozen=True, slots=True)
class _MissingFrame:
    """What the worker could not send, and why."""

    path: _LongText
    why: _LongText


def _decode_frame(kind: type[T], payload: bytes) -> T:
    return decode_answer(kind, parse_answer(payload, longest=LONGEST_FRAME, deepest=1), "the frame")

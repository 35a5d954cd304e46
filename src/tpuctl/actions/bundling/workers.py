"""Collects files from all workers of a node in parallel; a worker that does not answer delays no other."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.stream import redact
from tpuctl.remote.evidence import Order, Silence, Visits, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from datetime import datetime

    from tpuctl.actions.bundling.contents import Contents, Writing
    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member

_AT_ONCE = 32
# A shorter visit gets no answer.
_LEAST = timedelta(seconds=1)
_OF_ONE_FILE = 16 * 1024 * 1024
# A worker limits itself to fewer files; a faulty or hostile one must not fill this machine.
_MOST_FILES = 1000
_MOST_LACKS = 500
_LONGEST_WHY = 500


@dataclass(frozen=True, slots=True)
class Wish:
    """What to collect: the maximum age of logs, and the deadline (monotonic time of the clock)."""

    since: timedelta | None
    until: timedelta


class Gathering:
    """Collects from the workers. `silent` are the workers that did not send everything, and why.

    `progress` gets the number of finished workers, the number of workers, and the number of bytes; several threads call it.
    """

    def __init__(
        self,
        contents: Contents,
        members: Sequence[Member],
        wish: Wish,
        clock: Clock,
        *,
        progress: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        self.members = tuple(members)
        self.silent: list[tuple[Member, Silence]] = []
        self._contents, self._wish, self._clock, self._progress = contents, wish, clock, progress
        self._share = contents.room // max(1, len(members))
        self._visits = Visits()
        self._futures: list[Future[None]] = []
        self._begun_with = contents.room

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Collect during the body of the `with`, and wait at its end. An interrupt stops the workers."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

        with ThreadPoolExecutor(min(_AT_ONCE, len(self.members)) or 1) as pool:
            try:
                self._futures = [pool.submit(self._visit, member) for member in self.members]
                yield
                for future in self._futures:
                    future.result()
            except BaseException:
                self._visits.end()
                raise

    def _visit(self, member: Member) -> None:
        folder = f"workers/{member.worker}"
        left = self._wish.until - self._clock.monotonic()
        sink = _Sink(self._contents, folder, self._report_progress)
        silence: Silence | None = Silence("timed out before it was visited")
        if left > _LEAST:
            order = Order(self._share, min(_OF_ONE_FILE, max(1, self._share // 2)), self._wish.since, left)
            silence = visit(member, order, sink, self._visits, clock=self._clock)
        if silence is not None:
            self.silent.append((member, silence))
            sink.lacks("", silence.why)
        sink.finish()

    def _report_progress(self) -> None:
        done = sum(future.done() for future in self._futures)
        self._progress(done, len(self.members), self._begun_with - self._contents.room)


class _Sink:
    """Stores the files of one worker in its folder."""

    def __init__(self, contents: Contents, folder: str, received: Callable[[], None]) -> None:
        self._contents, self._folder, self._received = contents, folder, received
        self._writing: Writing | None = None
        self._errors: list[str] = []
        self._files = 0

    def begin(self, path: str, source: str, size: int | None, modified: datetime | None) -> None:
        self.end()
        self._files += 1
        if self._files > _MOST_FILES:
            return
        path = f"{self._folder}/{path or 'unnamed'}"
        self._writing = self._contents.begin(path, source=source, original_size=size, modified=modified)

    def take(self, data: bytes) -> None:
        if self._writing is not None:
            self._writing.take(data)
            self._received()

    def skip(self, size: int) -> None:
        if self._writing is not None:
            self._writing.skip(size)

    def end(self) -> None:
        if self._writing is not None:
            self._writing.end()
            self._writing = None

    def lacks(self, path: str, why: str) -> None:
        if len(self._errors) >= _MOST_LACKS and path:
            return
        path, why = path[:_LONGEST_WHY], why[:_LONGEST_WHY]
        where = f"{self._folder}/{path}" if path else self._folder
        self._contents.lacks_of(where, why)
        self._errors.append(f"{path or 'this worker'}: {why}\n")

    def finish(self) -> None:
        self.end()
        if self._files > _MOST_FILES:
            self.lacks("", f"{self._files - _MOST_FILES} files omitted: the worker sent more than was requested")
        if self._errors:
            text = "".join(self._errors).encode("utf-8", "replace")
            self._contents.add_own(f"{self._folder}/errors.txt", redact(text, self._contents.accounts))

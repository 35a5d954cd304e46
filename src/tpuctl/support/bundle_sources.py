"""The sources of a bundle: documents from the API and this machine, and files from the workers.

Each document has a query of its own, which may fail without the others. Each worker gets one channel, whose frames are stored
as they arrive; the channels run in parallel, so a worker that does not answer delays no other.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tpuctl.decoding import Range, Text
from tpuctl.durations import format_duration, format_size
from tpuctl.errors import ConflictError, NodeNotInProjectError, ServiceUnavailableError, TpuctlError
from tpuctl.fan_out import FanOutTimeoutError, fan_out
from tpuctl.names import NodeName
from tpuctl.nodes.lookup import find_node
from tpuctl.redaction import redact
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer, parse_decimal
from tpuctl.ssh.channel import LONGEST_FRAME, MAX_CHANNELS, AgentError, OpenChannels, WorkerFrame, open_agent
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.node import Node
    from tpuctl.names import NodeReference
    from tpuctl.nodes.lookup import SearchPlace
    from tpuctl.output.terminal import StatusLine
    from tpuctl.ssh.connection import Target
    from tpuctl.support.bundle_contents import BundleContents, BundleFile

T = TypeVar("T")
# Guest attributes without secrets [Compute Engine documentation of guest attributes].
_HARMLESS_NAMESPACES = ("hostkeys/", "guestinventory/", "guest-agent/", "diagnostics/")


def add_documents(contents: BundleContents, documents: Mapping[str, Callable[[], Any]], queries: TimedQueries) -> int:
    """Fetch documents, and add them to a bundle under their names, except empty ones. Return how many were added.

    Sends no more queries once the time is up.
    """
    found = 0
    for path, call in documents.items():
        if queries.left <= timedelta():
            contents.add_missing(path, "timed out before it was requested")
            continue
        try:
            value = queries.run(call)
        except TpuctlError as error:
            contents.add_missing(path, error.message)
            continue
        if value is not None and value not in ([], {}, ()):
            contents.add_json(path, value)
            found += 1
    return found


def hide_guest_attributes(workers: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the guest attributes of each worker, without the values of namespaces that may hold secrets."""
    return {
        str(worker): {
            key: text if key.lower().startswith(_HARMLESS_NAMESPACES) else f"[hidden: {len(text)} characters]"
            for key, text in attributes.items()
        }
        for worker, attributes in enumerate(workers)
    }


def replace_folder(value: Any, folder: str) -> Any:  # JSON
    """Return a document in which `~` replaces a folder at the beginning of paths."""
    if isinstance(value, dict):
        return {key: replace_folder(one, folder) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [replace_folder(one, folder) for one in value]
    if not isinstance(value, str) or len(folder) <= 1 or folder not in value:
        return value
    return re.sub(rf"(?<![\w/.\-]){re.escape(folder.rstrip('/'))}(?=/|\W|$)", "~", value)


@dataclass(frozen=True, slots=True)
class BundleSubject:
    """The node of a bundle. The journal and its operations still know a deleted node."""

    name: NodeName
    node: Node | None
    error: TpuctlError | None = None  # why there is no node; None if the API says that it does not exist


def find_subject(
    finder: TpuClient, place: SearchPlace, reference: NodeReference, known: Sequence[NodeName], queries: TimedQueries
) -> BundleSubject:
    """Find the node with a name; `known` are the nodes in the journal.

    Raises `ConflictError` if there are several, `NodeNotInProjectError` if neither the API nor the journal knows it, and the
    error of the API if the journal does not know it either.
    """
    name = place.name(reference)
    node, failure = None, None
    try:
        node = queries.run(lambda: find_node(finder, place, reference))
    except ConflictError:
        raise
    except TpuctlError as error:
        failure = error
    if node is not None:
        return BundleSubject(node.name, node)
    if name is None:
        project = reference.project or place.project
        in_journal = [one for one in known if (one.project, one.node_id) == (project, reference.node_id)]
        if len(in_journal) > 1:
            zones = ", ".join(f"{one.zone}/{one.node_id}" for one in in_journal)
            raise ConflictError(
                f"the journal knows {len(in_journal)} nodes `{reference.node_id}`: {zones}",
                hint="name the zone: `--zone ZONE` or `ZONE/NODE`",
            )
        if not in_journal:
            raise failure or NodeNotInProjectError(reference.node_id, project)
        name = in_journal[0]
    return BundleSubject(name, None, failure)


# libtpu's default folder [TPU documentation]; the worker also reads `TPU_LOG_DIR`.
LIBTPU_LOG_DIR = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
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

    def __init__(
        self,
        contents: BundleContents,
        targets: Sequence[Target],
        clock: Clock,
        *,
        deadline: timedelta,
        since: timedelta | None,
    ) -> None:
        """`deadline`: monotonic time of the clock. `since`: the maximum age of logs."""
        self.incomplete: list[AgentError] = []
        self._contents, self._targets, self._clock = contents, targets, clock
        self._deadline, self._since = deadline, since
        self._share = contents.bytes_left // max(1, len(targets))
        self._channels = OpenChannels()
        self._done = 0

    def run(self, line: StatusLine, *, meanwhile: Callable[[], object]) -> None:
        """Collect from all workers, and do something else meanwhile. An interrupt ends all of it.

        Raises `SshProgramMissingError`.
        """
        bytes_at_begin, workers = self._contents.bytes_left, len(self._targets)

        def describe() -> str:
            status = f"{self._done} of {workers} workers done" if workers > 1 else "receiving from the worker"
            return f"received {format_size(bytes_at_begin - self._contents.bytes_left)}; {status}"

        steps: list[Callable[[], object]] = [meanwhile]
        steps += [partial(self._collect_from, target, lambda: line.show(describe)) for target in self._targets]
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
        folder.finish()
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
            "logs": LIBTPU_LOG_DIR,
            "devices": [ACCEL_FILES, VFIO_FILES],
            "lockFile": LOCK_FILE,
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
        self._errors: list[str] = []
        self._files = 0

    def take(self, kind: WorkerFrame, payload: bytes) -> None:
        """Store what a frame carries. Raises `UnexpectedAnswerError`."""
        match kind:
            case WorkerFrame.FILE:
                self._begin(payload)
            case WorkerFrame.OUT if self._files:
                if self._writing is not None:
                    self._writing.write(payload)
            case WorkerFrame.OUT_GONE if self._files:
                size = parse_decimal(payload, "left out")
                if self._writing is not None:
                    self._writing.skip(size)
            case WorkerFrame.MISSING:
                item = _decode_frame(_MissingFrame, payload)
                if len(self._errors) < _MAX_MISSING:
                    self.add_missing(item.path, item.why)
            case _:
                raise UnexpectedAnswerError(f"a frame `{kind.name}` out of order")

    def add_missing(self, path: str, why: str) -> None:
        """Record what is missing, all of the worker with an empty path."""
        path, why = path[:_MAX_REASON_LENGTH], why[:_MAX_REASON_LENGTH]
        self._contents.add_missing(f"{self._path}/{path}" if path else self._path, why)
        self._errors.append(f"{path or 'this worker'}: {why}\n")

    def finish(self) -> None:
        """End the last file, and add one about what is missing."""
        self._end()
        if self._files > _MAX_FILES:
            self.add_missing("", f"{self._files - _MAX_FILES} files omitted: the worker sent more than was requested")
        if self._errors:
            text = "".join(self._errors).encode("utf-8", "replace")
            self._contents.add(f"{self._path}/errors.txt", redact(text, self._contents.accounts), is_own=True)

    def _begin(self, payload: bytes) -> None:
        about, when = _decode_frame(_FileFrame, payload), None
        if about.modified is not None:
            with suppress(ValueError, OverflowError, OSError):  # no calendar has that time
                when = datetime.fromtimestamp(about.modified, UTC)
        self._end()
        self._files += 1
        if self._files <= _MAX_FILES:
            path = f"{self._path}/{about.path or 'unnamed'}"
            self._writing = self._contents.begin(path, source=about.source, original_size=about.size, modified=when)

    def _end(self) -> None:
        if self._writing is not None:
            self._writing.end()
            self._writing = None


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


class TimedQueries:
    """Sends one query after the other. `clock` is the real one: a network has no other."""

    def __init__(self, clock: Clock, deadline: timedelta, *, each: timedelta, grace: timedelta) -> None:
        """Limit each query to `each`, and all to `deadline`; `grace` is extra time for a query to end by itself."""
        self._clock, self._deadline, self._each, self._grace = clock, deadline, each, grace

    @property
    def left(self) -> timedelta:
        """The time limit for a query sent now; zero or negative if it is too late."""
        return min(self._each, self._deadline - self._clock.monotonic())

    def run(self, call: Callable[[], T]) -> T:
        """Return the result. Raises what the call raises, and `ServiceUnavailableError` if it times out."""
        timeout = self.left
        deadline = self._clock.monotonic() + timeout + self._grace
        (outcome,) = fan_out(lambda query: query(), [call], limit=1, deadline=deadline)
        if isinstance(outcome.error, FanOutTimeoutError):
            raise ServiceUnavailableError(f"no answer within {format_duration(timeout)}")
        return outcome.get()

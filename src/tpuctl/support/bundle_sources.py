"""The sources of a bundle: documents from the API and this machine, and files from the workers.

Each document has a query of its own, which may fail without the others. Each worker gets one ssh session, whose answer is
processed as it arrives; the sessions run in parallel, so a worker that does not answer delays no other.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tpuctl.durations import format_duration
from tpuctl.errors import ConflictError, NodeNotInProjectError, ServiceUnavailableError, TpuctlError
from tpuctl.names import NodeName
from tpuctl.nodes.locate import search_node
from tpuctl.ssh.agent import bootstrap
from tpuctl.ssh.agent.worker_evidence import EVIDENCE_MARK
from tpuctl.ssh.answers import (
    UnexpectedAnswerError,
    parse_answer,
    parse_decimal,
    parse_integer,
    parse_number,
    parse_object,
    parse_string,
    preview,
    require_field,
)
from tpuctl.ssh.connection import NEW_CONNECTION, SSH_FAILED, StderrPipe, last_printed_line, ssh_argv, start_ssh
from tpuctl.ssh.ssh_errors import significant_line
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES
from tpuctl.support.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.node import Node
    from tpuctl.names import NodeReference
    from tpuctl.nodes.locate import SearchPlace
    from tpuctl.ssh.connection import Target
    from tpuctl.support.bundle_contents import BundleContents, BundleFileWriter

# libtpu's default folder [TPU documentation]; the worker also reads `TPU_LOG_DIR`.
LIBTPU_LOG_DIR = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_BLOCK = 256 * 1024
# A login shell may print before the mark; no frame is longer than a piece of a file.
_MAX_PREAMBLE_SIZE = 1024 * 1024
_FRAME_HEADER_SIZE = 5
_MAX_FRAME_SIZE = 1024 * 1024
_MAX_FILE_INFO_SIZE, _MAX_PATH_LENGTH = 64 * 1024, 4096
_MAX_TIME = 1e15  # seconds
_NAMES = ("path", "source")
# The worker enforces its limits itself; this one is for a worker that does not.
_SLACK = 4 * 1024 * 1024
_EXIT_TIMEOUT = 2.0
_MAX_STDERR_SIZE = 8 * 1024
_NO_PYTHON = 127


@dataclass(frozen=True, slots=True)
class EvidenceLimits:
    """The limits: bytes in total and of one file, the maximum age of a file, and the timeout."""

    total_size: int
    file_size: int
    since: timedelta | None
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class EvidenceGap:
    """Why a worker sent no evidence, or not all. `ssh_stderr`: the stderr of ssh if it failed to connect."""

    why: str
    ssh_stderr: str | None = None


class EvidenceSink(Protocol):
    """Receives the evidence of a worker, file by file. None of it can be trusted, least of all the names."""

    def begin(self, path: str, source: str, size: int | None, modified: datetime | None) -> None:
        """Begin a file. `size`: its size on the worker, in bytes."""

    def write(self, data: bytes) -> None:
        """Receive bytes of the file."""

    def skip(self, size: int) -> None:
        """Record that `size` bytes are left out here."""

    def end(self) -> None:
        """End the file."""

    def add_missing(self, path: str, why: str) -> None:
        """Record what is missing."""


class EvidenceSessions:
    """The running sessions, terminated together on an interrupt. Thread-safe."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_over = False

    def start(self, words: list[str], *, stdin: IO[bytes], stderr: StderrPipe) -> subprocess.Popen[bytes] | None:
        """Start ssh; return None after `end`. Raises `SshProgramMissingError`."""
        with self._lock:
            if self._is_over:
                return None
            process = start_ssh(words, stdin=stdin, stderr=stderr.writer, bufsize=-1)
            self._running = {one for one in self._running if one.poll() is None} | {process}
            return process

    def end(self) -> None:
        """Terminate all, and start no further ones."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()


def collect_evidence(
    target: Target, limits: EvidenceLimits, sink: EvidenceSink, sessions: EvidenceSessions, *, clock: Clock
) -> EvidenceGap | None:
    """Collect the evidence of a worker within the limits; return why it is incomplete, None if it is complete.

    The sink keeps what arrived before a failure. Uses a new connection: a shared one may be what is broken.
    Raises `SshProgramMissingError`.
    """
    request = {
        "worker": target.worker,
        "room": limits.total_size,
        "each": limits.file_size,
        "since": limits.since.total_seconds() if limits.since else None,
        # It ends by itself before the timeout, and says what is missing.
        "seconds": max(1.0, limits.timeout.total_seconds() * 0.9 - 1),
        "logs": LIBTPU_LOG_DIR,
        "devices": [ACCEL_FILES, VFIO_FILES],
        # Run as root if that needs no password: this login cannot see what other users hold.
        "holders": bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r})")[1].decode(),
    }
    line, program = bootstrap("worker_evidence", f"gather({request!r})")
    connecting = f"ConnectTimeout={max(1, round(limits.timeout.total_seconds()))}"
    words = ssh_argv(
        target.connection,
        (line,),
        options=(*NEW_CONNECTION, "-o", "BatchMode=yes", "-o", "Compression=yes", "-o", connecting),
    )
    with TemporaryFile() as stdin, StderrPipe() as errors:
        stdin.write(program)
        stdin.seek(0)
        process = sessions.start(words, stdin=stdin, stderr=errors)
        if process is None:
            return EvidenceGap("interrupted")
        reader, is_late = _FrameReader(sink, limits), True
        try:
            is_late = _read_session(process, reader, clock, clock.monotonic() + limits.timeout)
        finally:
            code = _end_session(process, waits=not is_late)
            reader.close()
        return (
            None
            if reader.is_complete
            else _explain_gap(
                reader, code, errors.text()[:_MAX_STDERR_SIZE], limits, label=target.label, is_late=is_late
            )
        )


class _FrameReader:
    """Decodes frames as they arrive. An invalid frame ends it; no answer of a worker makes it raise."""

    def __init__(self, sink: EvidenceSink, limits: EvidenceLimits) -> None:
        self._sink, self._left = sink, limits.total_size + _SLACK
        self._data = b""
        self.has_begun = self.is_complete = self._is_in_file = False
        self.error: UnexpectedAnswerError | None = None

    def feed(self, data: bytes) -> bool:
        """Process data; return false if no more is needed."""
        self._data += data
        self._left -= len(data)
        if not self.has_begun:
            at = self._data.find(EVIDENCE_MARK)
            if at < 0:
                return len(self._data) <= _MAX_PREAMBLE_SIZE
            self.has_begun, self._data = True, self._data[at + len(EVIDENCE_MARK) :]
        try:
            for kind, payload in self._frames():
                self._process(kind, payload)
        except UnexpectedAnswerError as error:
            self.error = error
        return not self.is_complete and self.error is None and self._left > 0

    def close(self) -> None:
        """End the current file."""
        if self._is_in_file:
            self._is_in_file = False
            self._sink.end()

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        at = 0
        while len(self._data) - at >= _FRAME_HEADER_SIZE:
            size = int.from_bytes(self._data[at + 1 : at + _FRAME_HEADER_SIZE], "big")
            if size > _MAX_FRAME_SIZE:
                raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {_MAX_FRAME_SIZE} are expected")
            if len(self._data) - at < _FRAME_HEADER_SIZE + size:
                break
            yield self._data[at : at + 1], self._data[at + _FRAME_HEADER_SIZE : at + _FRAME_HEADER_SIZE + size]
            at += _FRAME_HEADER_SIZE + size
        self._data = self._data[at:]

    def _process(self, kind: bytes, payload: bytes) -> None:
        match kind:
            case b"f":
                about = parse_object(parse_answer(payload, longest=_MAX_FILE_INFO_SIZE, deepest=1), "file")
                path, source = (
                    parse_string(require_field(about, name, "file"), name, longest=_MAX_PATH_LENGTH) for name in _NAMES
                )
                size, modified = require_field(about, "size", "file"), require_field(about, "modified", "file")
                size = None if size is None else parse_integer(size, "size")
                when = None
                if modified is not None:
                    seconds = parse_number(modified, "modified", low=-_MAX_TIME, high=_MAX_TIME)
                    with suppress(ValueError, OverflowError, OSError):  # no calendar has that time
                        when = datetime.fromtimestamp(seconds, UTC)
                self.close()
                self._sink.begin(path, source, size, when)
                self._is_in_file = True
            case b"d" if self._is_in_file:
                self._sink.write(payload)
            case b"c" if self._is_in_file:
                self._sink.skip(parse_decimal(payload, "left out"))
            case b"e":
                self.close()
            case b"n":
                item = parse_object(parse_answer(payload, longest=_MAX_FILE_INFO_SIZE, deepest=1), "item")
                self._sink.add_missing(
                    *(
                        parse_string(require_field(item, name, "item"), name, longest=_MAX_PATH_LENGTH)
                        for name in ("path", "why")
                    )
                )
            case b"z":
                self.is_complete = True
            case _:
                raise UnexpectedAnswerError(f"a frame {preview(kind)} out of order")


def _read_session(process: subprocess.Popen[bytes], reader: _FrameReader, clock: Clock, deadline: timedelta) -> bool:
    """Read a session to its end, or until no more is needed; return true after a timeout."""
    if process.stdout is None:
        raise AssertionError("it was opened as a pipe")
    file = process.stdout.fileno()
    while (left := (deadline - clock.monotonic()).total_seconds()) > 0:
        # `select.select` is limited to descriptors below 1024, and there may be many sessions.
        poll = select.poll()
        poll.register(file, select.POLLIN | select.POLLHUP)
        if not poll.poll(left * 1000):
            break
        data = os.read(file, _BLOCK)
        if not data or not reader.feed(data):
            return False
    return True


def _end_session(process: subprocess.Popen[bytes], *, waits: bool) -> int:
    """Terminate ssh, after waiting for its end if `waits`, and return its exit code."""
    if process.stdout is not None:
        process.stdout.close()
    if waits:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_EXIT_TIMEOUT)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_EXIT_TIMEOUT)
    process.kill()
    return process.wait()


def _explain_gap(
    reader: _FrameReader, code: int, words: str, limits: EvidenceLimits, *, label: str, is_late: bool
) -> EvidenceGap:
    """Return why the evidence of a worker is incomplete."""
    if is_late:
        what = "incomplete" if reader.has_begun else "no answer"
        return EvidenceGap(f"{what} within {limits.timeout.total_seconds():.0f} s")
    if reader.error:
        return EvidenceGap(reader.error.of(label).message)
    if reader.has_begun:
        return EvidenceGap("the connection broke" if code else "it sent more than was requested")
    if code == SSH_FAILED:
        return EvidenceGap(significant_line(words) or "ssh failed", words)
    if code == _NO_PYTHON:
        return EvidenceGap("`python3` is not installed on it")
    last_line = last_printed_line(words)
    return EvidenceGap(f"collection failed: {last_line}" if last_line else f"collection failed: exit {code}")


_NO_TIME = timedelta(0)
# Guest attributes without secrets [Compute Engine documentation of guest attributes].
_HARMLESS_NAMESPACES = ("hostkeys/", "guestinventory/", "guest-agent/", "diagnostics/")


def add_documents(contents: BundleContents, documents: Mapping[str, Callable[[], Any]], queries: TimedQueries) -> int:
    """Fetch documents, and add them to a bundle under their names, except empty ones. Return how many were added.

    Sends no more queries once the time is up.
    """
    found = 0
    for path, call in documents.items():
        if not queries.left > _NO_TIME:
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
        node = queries.run(lambda: finder.find_node(name) if name else search_node(finder, place, reference))
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


_MAX_SESSIONS = 32
# A shorter visit gets no answer.
_MIN_TIMEOUT = timedelta(seconds=1)
_MAX_FILE_SIZE = 16 * 1024 * 1024
# A worker limits itself to fewer files; a faulty or hostile one must not fill this machine.
_MAX_FILES = 1000
_MAX_MISSING = 500
_MAX_REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class EvidenceRequest:
    """What to collect: the maximum age of logs, and the deadline (monotonic time of the clock)."""

    since: timedelta | None
    deadline: timedelta


class WorkerCollector:
    """Collects from the workers. `incomplete` are the workers that did not send everything, and why.

    `progress` gets the number of finished workers, the number of workers, and the number of bytes; several threads call it.
    """

    def __init__(
        self,
        contents: BundleContents,
        targets: Sequence[Target],
        request: EvidenceRequest,
        clock: Clock,
        *,
        progress: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        self.targets = tuple(targets)
        self.incomplete: list[tuple[Target, EvidenceGap]] = []
        self._contents, self._request, self._clock, self._progress = contents, request, clock, progress
        self._share = contents.bytes_left // max(1, len(targets))
        self._sessions = EvidenceSessions()
        self._futures: list[Future[None]] = []
        self._bytes_at_begin = contents.bytes_left

    @contextmanager
    def running(self) -> Iterator[None]:
        """Collect during the body of the `with`, and wait at its end. An interrupt stops the workers."""
        with ThreadPoolExecutor(min(_MAX_SESSIONS, len(self.targets)) or 1) as pool:
            try:
                self._futures = [pool.submit(self._collect_from, target) for target in self.targets]
                yield
                for future in self._futures:
                    future.result()
            except BaseException:
                self._sessions.end()
                raise

    def _collect_from(self, target: Target) -> None:
        def report_progress() -> None:
            done = sum(future.done() for future in self._futures)
            self._progress(done, len(self.targets), self._bytes_at_begin - self._contents.bytes_left)

        folder = f"workers/{target.worker}"
        left = self._request.deadline - self._clock.monotonic()
        sink = _WorkerSink(self._contents, folder, report_progress)
        gap: EvidenceGap | None = EvidenceGap("timed out before it was visited")
        if left > _MIN_TIMEOUT:
            limits = EvidenceLimits(
                self._share, min(_MAX_FILE_SIZE, max(1, self._share // 2)), self._request.since, left
            )
            gap = collect_evidence(target, limits, sink, self._sessions, clock=self._clock)
        if gap is not None:
            self.incomplete.append((target, gap))
            sink.add_missing("", gap.why)
        sink.finish()


class _WorkerSink:
    """Stores the files of one worker in its folder."""

    def __init__(self, contents: BundleContents, folder: str, received: Callable[[], None]) -> None:
        self._contents, self._folder, self._received = contents, folder, received
        self._writing: BundleFileWriter | None = None
        self._errors: list[str] = []
        self._files = 0

    def begin(self, path: str, source: str, size: int | None, modified: datetime | None) -> None:
        self.end()
        self._files += 1
        if self._files > _MAX_FILES:
            return
        path = f"{self._folder}/{path or 'unnamed'}"
        self._writing = self._contents.begin(path, source=source, original_size=size, modified=modified)

    def write(self, data: bytes) -> None:
        if self._writing is not None:
            self._writing.write(data)
            self._received()

    def skip(self, size: int) -> None:
        if self._writing is not None:
            self._writing.skip(size)

    def end(self) -> None:
        if self._writing is not None:
            self._writing.end()
            self._writing = None

    def add_missing(self, path: str, why: str) -> None:
        if len(self._errors) >= _MAX_MISSING and path:
            return
        path, why = path[:_MAX_REASON_LENGTH], why[:_MAX_REASON_LENGTH]
        where = f"{self._folder}/{path}" if path else self._folder
        self._contents.add_missing(where, why)
        self._errors.append(f"{path or 'this worker'}: {why}\n")

    def finish(self) -> None:
        self.end()
        if self._files > _MAX_FILES:
            self.add_missing("", f"{self._files - _MAX_FILES} files omitted: the worker sent more than was requested")
        if self._errors:
            text = "".join(self._errors).encode("utf-8", "replace")
            self._contents.add_own(f"{self._folder}/errors.txt", redact(text, self._contents.accounts))


T = TypeVar("T")


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
        timeout, query = self.left, _QueryThread(call)
        # A daemon: the threads of a pool would keep the process alive.
        threading.Thread(target=query.run, daemon=True).start()
        if not query.is_over.wait(max(0.0, (timeout + self._grace).total_seconds())):
            raise ServiceUnavailableError(f"no answer within {format_duration(timeout)}")
        if query.failure is not None:
            raise query.failure
        return query.answer  # type: ignore[return-value]  # the call returned


class _QueryThread(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.is_over = threading.Event()
        self.answer: T | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as failure:  # noqa: BLE001  # handed to the thread that asked
            self.failure = failure
        self.is_over.set()

"""Files on their way to and from workers: one tar stream to many, and one from each, which is limited and checked."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import blake2b, file_digest
from io import BufferedReader, RawIOBase
from itertools import groupby
from queue import Full, Queue
from threading import Condition, Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from tpuctl.decoding import Most, OneOf, Range, Text
from tpuctl.escaping import one_line, preview
from tpuctl.ssh.agent.tar_stream import (
    END_OF_TAR,
    PIPE,
    FileEntry,
    PeerLostError,
    RefusedError,
    Stream,
    TarStreamError,
    enlarge_pipe,
    pack,
)
from tpuctl.ssh.answers import UnexpectedAnswerError, WorkerPath, decode_answer, parse_answer
from tpuctl.ssh.channel import (
    FRAME_KINDS,
    LONGEST_ANSWER,
    AgentError,
    ClientFrame,
    OpenChannels,
    WorkerFrame,
    open_agent,
)
from tpuctl.ssh.connection import START_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.ssh.channel import AgentChannel
    from tpuctl.ssh.connection import Target

    ResultT = TypeVar("ResultT")

# Processors have AES instructions; OpenSSH's default (chacha20) takes three times as long. The other ciphers stay allowed.
_FAST_CIPHERS = ("-o", "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com")
# A worker may read large files before it answers.
_PATIENCE = timedelta(days=1)
MAX_TEXT = 16 * 1024
# Bytes that are read at once; longer reads go directly to their destination.
_BUFFER = 1 << 16
# The limit for one copy or sync; a frame has its own limit of bytes.
MAX_FILES = 5_000_000
_KINDS = ("missing", "folder", "refused", "target", "new folder", "full", "read-only", "disk")
_MAX_TIME = 2**63 - 1
# ssh options of a shared connection; None opens a new one.
SharedOptions = tuple[str, ...] | None


_Message = Annotated[str, Text(MAX_TEXT)]
# JSON tuples: kind and message; name and reason.
_Refusal: Any = tuple[Annotated[str, OneOf(_KINDS)], _Message]
_Problems = Annotated[tuple[tuple[WorkerPath, _Message], ...], Most(MAX_FILES)]


@dataclass(frozen=True, slots=True)
class _Member:
    """What a tar stream does not limit of a file."""

    path: WorkerPath
    size: int
    mtime: Annotated[int, Range(-_MAX_TIME, _MAX_TIME)]


class WorkerStream(Stream):
    """The stream to a worker, which is not trusted. `on_bytes` is called with the sizes of contents sent and received."""

    letter = ClientFrame.GO.value

    def __init__(self, channel: AgentChannel, on_bytes: Callable[[int], None], *, longest: int) -> None:
        self._output_of_ssh = _Output(channel)
        super().__init__(BufferedReader(self._output_of_ssh, _BUFFER), channel.stdin.fileno())
        self._channel, self.on_bytes, self._longest = channel, on_bytes, longest

    def write(self, data: bytes) -> None:
        """Send bytes. Raises `PeerLostError` and `RefusedError`, because a worker speaks now only to refuse them."""
        while self._channel.has_unsent:
            self._wait_for_room()
            self._channel.flush()
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._output, left) :]
            except BlockingIOError:
                self._wait_for_room()
            except BrokenPipeError:
                self._raise_refusal()

    def expect_many_bytes(self) -> None:
        """Prepare for large files."""
        enlarge_pipe(self._output)

    def kill(self) -> None:
        """Break the connection: for another thread."""
        self._channel.kill()

    def _wait_for_room(self) -> None:
        if not self._channel.wait_for_room():
            self._raise_refusal()

    def _raise_refusal(self) -> NoReturn:
        self.receive()
        raise UnexpectedAnswerError("an answer to no question")

    def receive(self, *, within: timedelta = _PATIENCE) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`, `UnexpectedAnswerError`, and `RefusedError` if the worker says so."""
        self._output_of_ssh.patience = within
        payload = self.read(self._expect_value())
        value = parse_answer(payload, longest=len(payload), deepest=3)
        if isinstance(value, dict) and "refused" in value:
            raise RefusedError(*decode_answer(_Refusal, value["refused"], "refused"))
        return value

    def receive_problems(self, *, most: int) -> dict[str, str]:
        """Return why files are not whole, by name. Raises as `receive`."""
        rows = decode_answer(_Problems, self.receive(), "problems")
        if len(rows) > most:
            raise UnexpectedAnswerError(f"problems: {len(rows)} values where at most {most} are expected")
        return dict(rows)

    def next_member(self) -> FileEntry | None:
        """Return the next file or folder; None at the end. Raises `PeerLostError` and `UnexpectedAnswerError`."""
        try:
            entry = super().next_member()
        except TarStreamError as error:
            raise UnexpectedAnswerError(one_line(str(error))) from error
        if entry is None:
            return None
        decode_answer(_Member, entry._asdict(), "entry")
        return entry

    def read(self, size: int) -> bytes:
        """Return so many bytes. Raises `PeerLostError`."""
        data = self._reader.read(size)
        if len(data) < size:
            raise PeerLostError
        return data

    def read_small(self, size: int, padding: int) -> memoryview:
        """Return the bytes of a small file. Raises `PeerLostError`."""
        self.on_bytes(size)
        return super().read_small(size, padding)

    def read_into(self, block: memoryview) -> int:
        """Read bytes of a file into a buffer, and return how many."""
        size: int = self._reader.readinto1(block)  # type: ignore[attr-defined]  # `BufferedReader` has it
        self.on_bytes(size)
        return size

    def _expect_value(self) -> int:
        """Return the length of the next frame, which must be a value of at most `longest` bytes."""
        letter, size = self.next_head()
        kind = FRAME_KINDS.get(letter)
        if kind is None:
            raise UnexpectedAnswerError(f"no frame begins with {preview(letter)}")
        if size > self._longest:
            raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {self._longest} are expected")
        if kind is WorkerFrame.REFUSED:
            raise RefusedError("refused", self.read(size)[:MAX_TEXT].decode(errors="replace"))
        if kind is not WorkerFrame.EXIT:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` where a value is expected")
        return size


class _Output(RawIOBase):
    """What a worker sends."""

    patience = _PATIENCE

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel

    def readable(self) -> bool:
        """Return True: `BufferedReader` asks."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._channel.stdout.fileno()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # `BufferedReader` passes a memoryview
        """Read some bytes; 0 at the end of the connection. Raises `AgentError` after `patience`."""
        return self._channel.read_into(buffer, self.patience)


@contextmanager
def open_transfer(
    target: Target,
    program: str,
    request: Mapping[str, Any],
    *,
    shared: SharedOptions = None,
    options: tuple[str, ...] = (),
    longest: int = LONGEST_ANSWER,
    logins: Semaphore | None = None,
    on_bytes: Callable[[int], None] = lambda size: None,  # noqa: ARG005  # no listener
    start_within: timedelta = START_TIMEOUT,
    channels: OpenChannels | None = None,
) -> Iterator[WorkerStream]:
    """Start a program of `ssh/agent` on a worker, and yield the stream to it. `logins` limits parallel handshakes.

    Raises `AgentError` if the program ends early, `UnexpectedAnswerError`, and `SshProgramMissingError`.
    """
    with ExitStack() as login:
        login.enter_context(logins or Semaphore())
        with (
            open_agent(
                target, program, request, shared=shared, options=(*_FAST_CIPHERS, *options), longest=longest
            ) as channel,
            (channels or OpenChannels()).holding(channel),
        ):
            stream = WorkerStream(channel, on_bytes, longest=longest)
            try:
                if stream.receive(within=start_within) is not None:
                    raise UnexpectedAnswerError("no begin of the transfer")
                login.close()
                yield stream
            except PeerLostError as error:
                failure = channel.failure()
                # Messages of ssh explain a failed login only before the program has started.
                if failure.ssh_stderr is not None and (channel.has_begun or not failure.ssh_stderr.strip()):
                    what = failure.what if failure.ssh_stderr.strip() else "the connection was lost"
                    failure = AgentError(failure.target, what, is_retriable=True)
                raise _unnamed(failure) from error
            except AgentError as error:
                raise _unnamed(error) from error.__cause__


def _unnamed(error: AgentError) -> AgentError:
    """Return the error with a message that leaves the name of the worker to the caller."""
    error.message, error.lines = error.what, (error.what,)
    return error


def is_failed_login(error: Exception | None) -> bool:
    """Return whether ssh could not log in, which `explain_agent_errors` explains."""
    return isinstance(error, AgentError) and error.ssh_stderr is not None


# How many blocks the fastest worker may be ahead of the slowest one, and seconds without a block after which others do not
# wait for a worker any more.
_MAX_AHEAD, _STALLED = 8, 10.0
# Seconds to wait for further workers when one is ready. How many can be ready at the same time.
_GATHERING, MAX_AT_ONCE = 1.0, 64
_POLL = 0.2


# Bytes of a tar stream, and how many of these are contents of files; why reading failed; None at the end.
_Block = tuple[bytes, int] | BaseException | None


class Subscription:
    """The files that one worker gets in a round of a `Tee`. `problems`: those that are not whole."""

    def __init__(self, stream: WorkerStream, numbers: Sequence[int], since: float) -> None:
        self.stream, self.numbers, self.since = stream, frozenset(numbers), since
        self.blocks: Queue[_Block] = Queue(_MAX_AHEAD)
        self.problems: dict[str, str] = {}
        self.moved_at = since  # when a block was sent
        self.has_ended = False


class Tee:
    """Reads files, each once for all workers that are ready, and sends them as one tar stream.

    In a round the files go to these workers; one that comes later, as after a broken connection, gets the next round. The
    slowest worker of a round limits how far the others can be ahead. If it stalls, its connection is closed: it can come back
    for another round. `workers`: how many may come. The other options are those of `pack`.
    """

    def __init__(self, files: Sequence[tuple[bytes, FileEntry]], *, workers: int, **options: Any) -> None:
        self._files, self._left, self._options = files, workers, options
        self._ready: list[Subscription] = []
        self._changed = Condition()
        self._is_closed = False

    def __enter__(self) -> Tee:
        Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def leave(self) -> None:
        """Note that one worker needs no round any more."""
        with self._changed:
            self._left -= 1
            self._changed.notify()

    def send(self, stream: WorkerStream, numbers: Sequence[int]) -> dict[str, str]:
        """Send the files of these numbers to a worker, and then what is not whole, which is returned with the reasons.

        Raises `PeerLostError`, `RefusedError` and `UnexpectedAnswerError`.
        """
        if not numbers:
            stream.write(END_OF_TAR)
            stream.send([])
            return {}
        if sum(self._files[number][1].size for number in numbers) > PIPE:
            stream.expect_many_bytes()
        subscription = Subscription(stream, numbers, time.monotonic())
        with self._changed:
            self._ready.append(subscription)
            self._changed.notify()
        try:
            while (block := subscription.blocks.get()) is not None:
                if isinstance(block, BaseException):
                    raise block
                data, contents = block
                stream.write(data)
                subscription.moved_at = time.monotonic()
                stream.on_bytes(contents)
        finally:
            subscription.has_ended = True
        stream.write(END_OF_TAR)
        stream.send(list(subscription.problems.items()))
        return subscription.problems

    def _serve(self) -> None:
        while members := self._gather():
            try:
                self._send_to(members)
            except BaseException as error:  # noqa: BLE001  # the threads of the workers raise it
                for one in members:
                    self._deliver(error, members, [one])

    def _gather(self) -> list[Subscription]:
        """Wait for workers, and return those that are ready; none at the end."""
        with self._changed:
            while not self._is_closed:
                left = _GATHERING
                if self._ready:
                    left = self._ready[-1].since + _GATHERING - time.monotonic()
                    if left <= 0 or len(self._ready) >= min(self._left, MAX_AT_ONCE):
                        members, self._ready = self._ready, []
                        return members
                self._changed.wait(left)
        return []

    def _send_to(self, members: Sequence[Subscription]) -> None:
        started = time.monotonic()
        for one in members:
            one.moved_at = started
        wanted = sorted(frozenset().union(*(one.numbers for one in members)))
        problems: dict[str, str] = {}
        for receivers, numbers in groupby(wanted, lambda number: [one for one in members if number in one.numbers]):
            for data, contents in pack((self._files[number] for number in numbers), problems, **self._options):
                self._deliver((data, contents), members, receivers)
        for one in members:
            names = {self._files[number][1].path for number in one.numbers} if problems else set()
            one.problems = {name: why for name, why in problems.items() if name in names}
            self._deliver(None, members, [one])

    def _deliver(
        self,
        block: tuple[bytes, int] | BaseException | None,
        members: Sequence[Subscription],
        receivers: Sequence[Subscription],
    ) -> None:
        for one in receivers:
            while not one.has_ended and not self._is_closed:
                try:
                    one.blocks.put(block, timeout=_POLL)
                    break
                except Full:
                    is_alone = sum(not other.has_ended for other in members) == 1
                    if not is_alone and time.monotonic() - one.moved_at > _STALLED:
                        one.stream.kill()
                        one.has_ended = True


class LocalDigests:
    """Digests of local files. Each file is read once for all workers. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[bytes, str | None] = {}
        self._lock = Lock()

    def get(self, path: bytes) -> str | None:
        """Return the digest of a file's contents. None if it cannot be read."""
        with self._lock:
            if path not in self._known:
                try:
                    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # pathlib knows no bytes
                        self._known[path] = file_digest(file, partial(blake2b, digest_size=16)).hexdigest()
                except OSError:
                    self._known[path] = None
            return self._known[path]


_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8))


def with_retries(
    attempt: Callable[[SharedOptions], ResultT],
    *,
    shared: SharedOptions = (),
    clock: Clock,
    pauses: Sequence[timedelta] = _PAUSES,
) -> ResultT:
    """Call `attempt` with options of a shared connection until it returns; raise its error if a retry is useless.

    That is so after as many retries as there are pauses.
    """
    for pause in pauses:
        try:
            return attempt(shared)
        except AgentError as error:
            if not error.is_retriable:
                raise
            clock.sleep(pause)
            # A shared connection may be the reason.
            shared = None
    return attempt(shared)

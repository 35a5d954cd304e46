"""The session with a program that stores or sends files on a worker; what the worker sends is limited and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Set
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from hashlib import blake2b
from io import BufferedReader, RawIOBase
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tpuctl.escaping import preview
from tpuctl.ssh.agent.file_stream import PeerLostError, RefusedError, Stream
from tpuctl.ssh.answers import (
    UnexpectedAnswerError,
    parse_answer,
    parse_array,
    parse_choice,
    parse_integer,
    parse_string,
)
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
_MAX_TEXT = 16 * 1024
# Bytes that are read at once; longer reads go directly to their destination.
_BUFFER = 1 << 16
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KINDS = ("missing", "folder", "refused", "target", "new folder", "busy", "full", "read-only", "disk")
# ssh options of a shared connection; None opens a new one.
SharedOptions = tuple[str, ...] | None


class WorkerStream(Stream):
    """The stream to a worker, which is not trusted. `on_bytes` is called with the sizes of blocks sent and received."""

    value_letter, bytes_letter = ClientFrame.GO.value, ClientFrame.IN.value

    def __init__(self, channel: AgentChannel, on_bytes: Callable[[int], None], *, longest: int) -> None:
        self._output_of_ssh = _Output(channel)
        super().__init__(BufferedReader(self._output_of_ssh, _BUFFER), channel.stdin.fileno())
        self._channel, self._on_bytes, self._longest = channel, on_bytes, longest

    def write(self, data: bytes) -> None:
        """Send bytes. Raises `PeerLostError` and `RefusedError`, because a worker speaks now only to refuse them."""
        self._channel.send_raw(data)
        while self._channel.has_unsent:
            self._wait_for_room()
            self._channel.flush()

    def write_from(self, file: int, offset: int, size: int) -> int:
        """Send up to so many bytes of a file. Raises `PeerLostError` and `RefusedError`, as above."""
        while True:
            try:
                sent = super().write_from(file, offset, size)
            except BlockingIOError:
                self._wait_for_room()
            except BrokenPipeError:
                self._hear_refusal()
            else:
                self._on_bytes(sent)
                return sent

    def lost(self, what: str) -> AgentError:
        """Return the error for a connection to replace by another one."""
        return AgentError(self._channel.target, what, is_retriable=True)

    def _wait_for_room(self) -> None:
        if not self._channel.wait_for_room():
            self._hear_refusal()

    def _hear_refusal(self) -> NoReturn:
        self.receive()
        raise UnexpectedAnswerError("an answer to no question")

    def receive(self, *, within: timedelta = _PATIENCE) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`, `UnexpectedAnswerError`, and `RefusedError` if the worker says so."""
        self._output_of_ssh.patience = within
        payload = self.read(self._expect(WorkerFrame.EXIT))
        value = parse_answer(payload, longest=len(payload), deepest=3)
        if isinstance(value, dict) and "refused" in value:
            kind, message = parse_row(value["refused"], "refused", 2)
            raise RefusedError(parse_choice(kind, "kind", _KINDS), parse_string(message, "message", longest=_MAX_TEXT))
        return value

    def receive_problem(self) -> str | None:
        """Return why a file is not whole; None if it is."""
        value = self.receive()
        return None if value is None else parse_string(value, "problem", longest=_MAX_TEXT)

    def next_bytes(self, longest: int) -> int:
        """Return how many bytes of a file follow; 0 if the worker gives up."""
        size = self._expect(WorkerFrame.OUT)
        if size > longest:
            raise UnexpectedAnswerError(f"{size} bytes of a file where {longest} are left")
        return size

    def read_into(self, room: memoryview) -> int:
        """Read bytes of a file into a buffer, and return how many."""
        size: int = self._reader.readinto1(room)  # type: ignore[attr-defined]  # as above
        self._on_bytes(size)
        return size

    def _expect(self, expected: WorkerFrame) -> int:
        """Return the length of the next frame, which must be of this kind. A value may have `longest` bytes."""
        letter, size = self.next_head()
        kind = FRAME_KINDS.get(letter)
        if kind is None:
            raise UnexpectedAnswerError(f"no frame begins with {preview(letter)}")
        if kind is not WorkerFrame.OUT and size > self._longest:
            raise UnexpectedAnswerError(f"a frame of {size} bytes where at most {self._longest} are expected")
        if kind is WorkerFrame.REFUSED:
            raise RefusedError("refused", self.read(size)[:_MAX_TEXT].decode(errors="replace"))
        if kind is not expected:
            raise UnexpectedAnswerError(f"a frame `{kind.name}` where `{expected.name}` is expected")
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
    """Tell whether ssh could not log in, which `explain_agent_errors` explains."""
    return isinstance(error, AgentError) and error.ssh_stderr is not None


# Digests are kept at each multiple of so many bytes.
_STEP = 1 << 24
_BLOCK = 1 << 20


class LocalDigests:
    """Digests of local files and of their beginnings. Each file is read once for all workers. Thread-safe."""

    def __init__(self) -> None:
        self._steps: dict[bytes, list[blake2b]] = {}
        self._lock = Lock()

    def get(self, path: bytes, length: int | None = None) -> str | None:
        """Return the digest of a file's contents, or of its beginning. None if it cannot be read, or is shorter."""
        with self._lock, suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123  # pathlib knows no bytes
            length = os.fstat(file.fileno()).st_size if length is None else length
            steps = self._steps.setdefault(path, [blake2b(digest_size=16)])
            at = min(length // _STEP, len(steps) - 1) * _STEP
            found = steps[at // _STEP].copy()
            file.seek(at)
            while at < length:
                block = file.read(min(length, at - at % _STEP + _STEP, at + _BLOCK) - at)
                if not block:
                    return None
                found.update(block)
                at += len(block)
                if at == len(steps) * _STEP:
                    steps.append(found.copy())
            return found.hexdigest()
        return None


def parse_row(value: Any, where: str, length: int) -> list[Any]:  # JSON
    """Check that a value is an array of so many values, and return it."""
    row = parse_array(value, where, most=length)
    if len(row) < length:
        raise UnexpectedAnswerError(f"{where}: {len(row)} values where {length} are expected")
    return row


def parse_numbers(value: Any, where: str, allowed: Set[int]) -> list[int]:  # JSON
    """Check that a value is an array of numbers of entries, each of which is allowed and occurs once, and return it."""
    numbers = [parse_integer(number, where) for number in parse_array(value, where, most=len(allowed))]
    if len(set(numbers)) < len(numbers) or not allowed >= set(numbers):
        raise UnexpectedAnswerError(f"{where}: numbers of entries that are not allowed")
    return numbers


def parse_pairs(value: Any, where: str, allowed: Set[int]) -> dict[int, Any]:  # JSON
    """Check that a value is an array of pairs, of a number of an entry and another value, and return these by number."""
    rows = [parse_row(row, where, 2) for row in parse_array(value, where, most=len(allowed))]
    return dict(
        zip(parse_numbers([number for number, _ in rows], where, allowed), (one for _, one in rows), strict=True)
    )


def parse_digest(value: Any, where: str) -> str:  # JSON
    """Check that a value is a digest, and return it."""
    if not _DIGEST.fullmatch(parse_string(value, where, longest=64)):
        raise UnexpectedAnswerError(f"{where}: {preview(value)} is not a digest")
    text: str = value
    return text


def parse_parts(value: Any, where: str, sizes: Mapping[int, int]) -> dict[int, tuple[int, str]]:  # JSON
    """Return the lengths and the digests of parts that a worker has. `sizes`: of the files that may have one."""
    found: dict[int, tuple[int, str]] = {}
    for row in parse_array(value, where, most=len(sizes)):
        number, length, beginning = parse_row(row, where, 3)
        parse_numbers([number], where, sizes.keys() - found.keys())
        found[number] = parse_integer(length, where, low=1, high=sizes[number]), parse_digest(beginning, where)
    return found


_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 2, 4, 8))
# A worker that takes a little more each time and hangs up would never finish.
_MAX_LINKS = 1000


def with_retries(
    attempt: Callable[[SharedOptions], ResultT],
    kept: Callable[[], int],
    *,
    shared: SharedOptions = (),
    clock: Clock,
    pauses: Sequence[timedelta] = _PAUSES,
) -> ResultT:
    """Call `attempt` with options of a shared connection until it returns; raise its error if a retry is useless.

    That is so after as many failures without progress as there are pauses. `kept`: the bytes that the other end had at the last
    attempt.
    """
    failures, before = 0, 0
    for _ in range(_MAX_LINKS - 1):
        try:
            return attempt(shared)
        except AgentError as error:
            # Only confirmed bytes count: bytes that were sent may be lost each time.
            failures = 1 if kept() > before else failures + 1
            before = max(before, kept())
            if not error.is_retriable or failures > len(pauses):
                raise
            clock.sleep(pauses[failures - 1])
            # A shared connection may be the reason.
            shared = None
    return attempt(shared)

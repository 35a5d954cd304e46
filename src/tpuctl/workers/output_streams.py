"""The output of workers: written while it comes, and its end kept for the diagnosis of a failure."""

from __future__ import annotations

import codecs
import re
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Final

from tpuctl.clock import SystemClock
from tpuctl.errors import InvalidInputError
from tpuctl.files import create_unlinked_file
from tpuctl.output.status_line import StatusLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.connection import Target

# A progress line appears after this time.
_REPORT_AFTER = timedelta(seconds=1)
# Bytes that are kept of each worker's stdout and of its stderr, and of all workers together.
_TAIL_BYTES: Final = 64 * 1024
_TOTAL_TAIL_BYTES: Final = 8 * 1024 * 1024
_MIN_TAIL_BYTES: Final = 4 * 1024
# A longer line is written in parts.
_LONGEST_LINE = 64 * 1024
_HUES = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# A terminal gets colors, tabs, newlines and carriage returns of a worker's output. All other sequences are removed: those that
# move the cursor, query the terminal or set its title, and single control characters.
_COLOR = r"\x1b\[[0-9;:]*m"
_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
_UNSAFE_SEQUENCE = re.compile(rf"(?!{_COLOR})(?:{_SEQUENCE}|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f])")
# The beginning of a sequence that continues in the next piece, up to a limit of length.
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$")
_LONGEST_SEQUENCE = 4096
_BREAKS = re.compile(rb"(?<!\r)(?:\r*\n|\r+(?=[^\r\n]))")


class WorkerOutputStreams:
    """Writes the output of the workers of one run. `to_stderr` keeps stdout free for a report at the end.

    With `folder` the bytes of each worker, stdout and stderr in the order of arrival, are also written to a file there. A
    failure to write is raised; with `keeps_failure` it is kept in `failure`, and no more is written: the caller then terminates
    the commands first. Raises `InvalidInputError` if the files cannot be created.
    """

    def __init__(
        self,
        terminal: Terminal,
        targets: Sequence[Target],
        *,
        to_stderr: bool = False,
        folder: Path | None = None,
        keeps_failure: bool = False,
    ) -> None:
        self.tail = OutputTail(len(targets))
        self.failure: OSError | None = None
        self._terminal, self._keeps_failure = terminal, keeps_failure
        self._status = StatusLine(terminal, SystemClock(), delay=_REPORT_AFTER)
        self._files: dict[str, IO[bytes]] = {}
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._files = {one.label: create_unlinked_file(folder / log_name(one)) for one in targets}
            except OSError as error:
                text = f"cannot write logs to `{folder}`: {(error.strerror or str(error)).lower()}"
                raise InvalidInputError(text, hint="name another directory with `--log-dir`") from error
        streams = terminal.streams
        err = (streams.stderr, streams.stderr_is_terminal, terminal.colors_err)
        out = err if to_stderr else (streams.stdout, streams.stdout_is_terminal, terminal.colors_out)
        self._writers: dict[tuple[str, bool], _LineWriter | _RawWriter] = {}
        width = max((len(target.label) for target in targets), default=0)
        for index, target in enumerate(targets):
            for is_error, (stream, is_terminal, has_colors) in ((False, out), (True, err)):
                writer: _LineWriter | _RawWriter
                if len(targets) == 1:
                    writer = _RawWriter(_writer(stream), is_terminal=is_terminal)
                else:
                    hue = _HUES[index % len(_HUES)] if has_colors else None
                    writer = _LineWriter(_writer(stream), _prefix(target.label, width, hue), is_terminal=is_terminal)
                self._writers[target.label, is_error] = writer

    def __enter__(self) -> WorkerOutputStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.clear()
        for file in self._files.values():
            # The output of each worker was flushed when it ended.
            with suppress(OSError):
                file.close()

    def output(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Write a piece of a worker's output."""
        self.tail.add(target, data, is_error=is_error)
        if self.failure is None:
            with self._kept_failure():
                self._status.clear()
                if file := self._files.get(target.label):
                    with _named(file):
                        file.write(data)
                self._writers[target.label, is_error].write(data)

    def ended(self, target: Target) -> None:
        """Write the rest of a worker's output: a line without a newline."""
        if self.failure is None:
            with self._kept_failure():
                for is_error in (False, True):
                    self._writers[target.label, is_error].finish()
                if file := self._files.get(target.label):
                    with _named(file):
                        file.flush()

    def connected(self, count: int, total: int) -> None:
        """Show on a terminal how many workers answer so far. The next output replaces that line."""
        if total > 1:
            self._status.show(lambda: f"reaching the workers: {count} of {total}")

    def interrupted(self) -> None:
        """Start a new line on a terminal, after its `^C`."""
        self._status.clear()
        self._terminal.end_line()

    def note(self, target: Target | None, text: str) -> None:
        """Print information about a worker, or about all for None."""
        self._status.clear()
        self._terminal.note(f"worker {target.label}: {text}" if target else text)

    @contextmanager
    def _kept_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._keeps_failure:
                raise
            self.failure = error
            # A local command that writes to a closed pipe ends quietly, too.
            if not isinstance(error, BrokenPipeError):
                error.add_note("the command was terminated on the workers where it was still running")


class OutputTail:
    """The end of each worker's output, in bounded memory."""

    def __init__(self, count: int) -> None:
        self._most = max(_MIN_TAIL_BYTES, min(_TAIL_BYTES, _TOTAL_TAIL_BYTES // (2 * max(count, 1))))
        self._tails: dict[tuple[str, bool], bytearray] = {}
        self._cut: set[tuple[str, bool]] = set()

    def add(self, target: Target, data: bytes, *, is_error: bool) -> None:
        """Keep output of a worker."""
        key = target.label, is_error
        tail = self._tails.setdefault(key, bytearray())
        tail += data
        # Cut rarely: each byte is moved at most once.
        if len(tail) > 2 * self._most:
            del tail[: -self._most]
            self._cut.add(key)

    def of(self, target: Target) -> Iterable[bytes]:
        """Return the last whole lines of a worker's stdout, then of its stderr."""
        for is_error in (False, True):
            tail = bytes(self._tails.get((target.label, is_error), b""))
            # The first line of a cut tail is not whole.
            yield tail.partition(b"\n")[2] if (target.label, is_error) in self._cut else tail


def log_name(target: Target) -> str:
    """Return the name of the log file of a worker."""
    return f"worker-{target.label}.log" if target.label.isdigit() else f"{target.label}.log"


@contextmanager
def _named(file: IO[bytes]) -> Iterator[None]:
    """Add the name of the file to an error."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from error


class _RawWriter:
    """Writes the raw output of one worker; for a terminal without unsafe control sequences."""

    def __init__(self, write: Callable[[bytes], None], *, is_terminal: bool) -> None:
        self._write, self._is_terminal = write, is_terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def write(self, data: bytes) -> None:
        if self._is_terminal:
            text = self._held + self._decoder.decode(data)
            found = _UNFINISHED.search(text, max(0, len(text) - _LONGEST_SEQUENCE))
            self._held = text[found.start() :] if found else ""
            data = _without_control_sequences(text[: found.start()] if found else text).encode()
        self._write(data)

    def finish(self) -> None:
        """Do nothing: no line is held back."""


class _LineWriter:
    """Writes the lines of one worker with a prefix, each when it is complete, so that no two workers share a line."""

    def __init__(self, write: Callable[[bytes], None], prefix: bytes, *, is_terminal: bool) -> None:
        self._write, self._prefix, self._is_terminal = write, prefix, is_terminal
        self._pending = b""

    def write(self, data: bytes) -> None:
        data = self._pending + data
        # Progress bars rewrite their line: on a terminal each state becomes a line.
        if self._is_terminal:
            data = _BREAKS.sub(b"\n", data if self._pending else data.lstrip(b"\r"))
        whole, found, self._pending = data.rpartition(b"\n")
        if found:
            self._emit(whole)
        if len(self._pending) > _LONGEST_LINE:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, b""
            self._emit(pending)

    def _emit(self, lines: bytes) -> None:
        if self._is_terminal:
            lines = _without_control_sequences(lines.decode("utf-8", "replace")).encode()
        self._write(self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n")


def _without_control_sequences(text: str) -> str:
    return text if text.isprintable() else _UNSAFE_SEQUENCE.sub("", text)


def _prefix(label: str, width: int, hue: int | None) -> bytes:
    text = f"[{label}]".ljust(width + 2)
    return (f"\x1b[{hue}m{text}\x1b[0m " if hue else f"{text} ").encode()


def _writer(stream: Any) -> Callable[[bytes], None]:  # a text stream, of bytes or of text alone
    """Return a function that writes bytes to a stream and flushes it, so that a pipe's reader gets each line at once."""
    raw = getattr(stream, "buffer", None)
    if raw is None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda data: stream.write(decoder.decode(data))

    def write(data: bytes) -> None:
        stream.flush()
        raw.write(data)
        raw.flush()

    return write

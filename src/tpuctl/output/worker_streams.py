"""Output of commands on workers while they run: lines with a prefix for each worker, or the raw bytes of a single one."""

from __future__ import annotations

import codecs
import re
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError
from tpuctl.files import create_unlinked_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from tpuctl.output.terminal import Terminal
    from tpuctl.ssh.target import Target
    from tpuctl.workers.worker_session import WorkerResult

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

    With `folder` the bytes of each worker, stdout and stderr in the order of arrival, are also written to a file there. Raises
    `InvalidInputError` if the files cannot be created.
    """

    def __init__(
        self, terminal: Terminal, members: Sequence[Target], *, to_stderr: bool = False, folder: Path | None = None
    ) -> None:
        self._terminal = terminal
        streams = terminal.streams
        out = (
            (streams.stderr, streams.stderr_is_terminal) if to_stderr else (streams.stdout, streams.stdout_is_terminal)
        )
        sinks = (out, (streams.stderr, streams.stderr_is_terminal))
        colored = (terminal.colors_err if to_stderr else terminal.colors_out, terminal.colors_err)
        self._files: dict[str, IO[bytes]] = {}
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._files = {one.label: create_unlinked_file(folder / log_name(one)) for one in members}
            except OSError as error:
                text = f"cannot write logs to `{folder}`: {(error.strerror or str(error)).lower()}"
                raise InvalidInputError(text, hint="name another directory with `--log-dir`") from error
        self._writers: dict[tuple[str, bool], _LineWriter | _RawWriter] = {}
        width = max((len(member.label) for member in members), default=0)
        for index, member in enumerate(members):
            for is_error, (stream, is_terminal) in enumerate(sinks):
                if len(members) == 1:
                    writer: _LineWriter | _RawWriter = _RawWriter(_writer(stream), is_terminal=is_terminal)
                else:
                    hue = _HUES[index % len(_HUES)] if colored[is_error] else None
                    prefix = _prefix(member.label, width, hue)
                    writer = _LineWriter(_writer(stream), prefix, is_terminal=is_terminal)
                self._writers[member.label, bool(is_error)] = writer

        self._has_line = False

    def __enter__(self) -> WorkerOutputStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clear()
        for file in self._files.values():
            # The output of each worker was flushed when it ended.
            with suppress(OSError):
                file.close()

    def output(self, member: Target, data: bytes, *, is_error: bool) -> None:
        """Write a piece of a worker's output."""
        self._clear()
        if file := self._files.get(member.label):
            with _named(file):
                file.write(data)
        self._writers[member.label, is_error].write(data)

    def ended(self, ending: WorkerResult) -> None:
        """Write the rest of a worker's output: a line without a newline."""
        for is_error in (False, True):
            self._writers[ending.member.label, is_error].finish()
        if file := self._files.get(ending.member.label):
            with _named(file):
                file.flush()

    def gathering(self, there: int, total: int) -> None:
        """Show on a terminal how many workers answer so far. The next output replaces that line."""
        if total > 1 and self._terminal.is_redrawn and not self._terminal.quiet:
            self._terminal.redraw(f"reaching the workers: {there} of {total}")
            self._has_line = True

    def pressed(self) -> None:
        """Start a new line on a terminal, after its `^C`."""
        self._clear()
        self._terminal.end_line()

    def note(self, member: Target | None, text: str) -> None:
        """Print information about a worker, or about all for None."""
        self._clear()
        self._terminal.note(f"worker {member.label}: {text}" if member else text)

    def _clear(self) -> None:
        if self._has_line:
            self._has_line = False
            self._terminal.redraw()


def log_name(member: Target) -> str:
    """Return the name of the log file of a worker."""
    return f"worker-{member.label}.log" if member.label.isdigit() else f"{member.label}.log"


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

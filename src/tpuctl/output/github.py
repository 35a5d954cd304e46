"""Output in GitHub Actions: workflow commands of our own, and none in the text of others.

The runner executes each line of stdout and stderr that begins with `::NAME`, after any white space, and each line that contains
`##[NAME` anywhere (actions/runner: `ActionCommand.TryParseV2` and `TryParse`). The output of workers and the messages of the
API could therefore set outputs, masks and annotations of the job. `guard_streams` escapes the beginning of such a command in
everything that is written. `::stop-commands::` would not do: its two lines would be part of the data on stdout, and a line on
stderr takes effect before or after text that is still in the pipe of stdout.
"""

from __future__ import annotations

import io
import os
import re
import stat
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Final, TextIO

from tpuctl.escaping import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.output.terminal import StandardStreams

# The beginning of a command: the shortest name is `echo`. With fewer letters, binary data would contain it by chance.
_NAME: Final = "[A-Za-z][A-Za-z-]{3}"
# Everything but printable ASCII counts as white space: the runner ignores any white space of Unicode before a command.
_COMMAND: Final = re.compile(rf"(?P<blank>[\r\n][^!-~\r\n]*):(?=:{_NAME})|(?P<hashes>##)\[(?={_NAME})")
_UNFINISHED: Final = re.compile(
    r"[\r\n][^!-~\r\n]*(?P<colons>:(?::[A-Za-z-]{0,3})?)\Z|(?P<hashes>##\[[A-Za-z-]{0,3}|#{1,2})\Z"
)
_BLANK_LINE: Final = re.compile(r"[\r\n][^!-~\r\n]*\Z")
# Longer messages are cut: GitHub shows a few lines of an annotation.
_LONGEST_MESSAGE: Final = 16_000


def runs_in_github_actions(environ: Mapping[str, str]) -> bool:
    """Return whether this is a step of a workflow."""
    return environ.get("GITHUB_ACTIONS") == "true"


def guard_streams(streams: StandardStreams, environ: Mapping[str, str]) -> StandardStreams:
    """Return streams on which no text becomes a workflow command; in GitHub Actions only, and not for terminals and files."""
    if not runs_in_github_actions(environ):
        return streams
    stdout, stderr = streams.stdout, streams.stderr
    if not (streams.stdout_is_terminal or _is_file(stdout)):
        stdout = GuardedStream(stdout)
    if not (streams.stderr_is_terminal or _is_file(stderr)):
        stderr = GuardedStream(stderr)
    return replace(streams, stdout=stdout, stderr=stderr)


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream without a guard, for binary data that is not for a log."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream


def _is_file(stream: TextIO) -> bool:
    """Return whether the stream was redirected to a file: the runner does not read it."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # text in memory
        return False


class CommandFilter:
    """Escapes workflow commands in the pieces of one stream. The beginning of a command is held back until it is decided."""

    def __init__(self) -> None:
        self.is_line_blank = True
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the text to write for a piece; what is held back comes with the next one."""
        text = ("\n" if self.is_line_blank else ".") + self._held + piece
        text = _COMMAND.sub(
            lambda found: found["hashes"] + r"\u005b" if found["hashes"] else found["blank"] + r"\u003a", text
        )
        self._held = ""
        if unfinished := _UNFINISHED.search(text):
            self._held = unfinished["colons"] or unfinished["hashes"]
            text = text[: -len(self._held)]
        self.is_line_blank = _BLANK_LINE.search(text) is not None
        return text[1:]

    def finish(self) -> str:
        """Return what is held back."""
        held, self._held = self._held, ""
        self.is_line_blank = self.is_line_blank and not held
        return held


class GuardedStream(io.TextIOBase, TextIO):
    """A text stream on which only `send_command` writes a workflow command. Its `buffer` is guarded, too."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream
        self._filter = CommandFilter()

    def write(self, text: str, /) -> int:
        """Write a text."""
        self.unguarded.write(self._filter.feed(text))
        return len(text)

    def send_command(self, name: str, message: str, **properties: str) -> None:
        """Write a workflow command on a line of its own. All its texts are escaped."""
        given = ",".join(f"{key}={_escape_property(value)}" for key, value in properties.items())
        self.finish()
        start = "" if self._filter.is_line_blank else "\n"
        self.unguarded.write(f"{start}::{name}{' ' if given else ''}{given}::{_escape_data(message)}\n")
        self.unguarded.flush()
        self._filter = CommandFilter()

    def finish(self) -> None:
        """Write what is held back."""
        self.unguarded.write(self._filter.finish())

    def flush(self) -> None:
        """Flush the stream."""
        self.unguarded.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self.unguarded.fileno()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal: it is not."""
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a field in typeshed
        """The encoding of the stream."""
        return self.unguarded.encoding

    @property
    def buffer(self) -> Any:  # as a stream in memory has none
        """The stream for bytes. Raises `AttributeError` if there is none."""
        return _GuardedBytes(self.unguarded.buffer, self._filter)


class _GuardedBytes:
    """The bytes of a `GuardedStream`. Each byte counts as a character: commands are ASCII, and the rest is kept as it is."""

    def __init__(self, raw: IO[bytes], guard: CommandFilter) -> None:
        self._raw, self._filter = raw, guard

    def write(self, data: bytes) -> int:
        self._raw.write(self._filter.feed(data.decode("latin-1")).encode("latin-1"))
        return len(data)

    def flush(self) -> None:
        self._raw.flush()


def annotation(lines: Sequence[str]) -> str:
    """Return the message of an annotation, with control characters of each line escaped."""
    text = "\n".join(map(escape_unprintable, lines))
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(escape_unprintable(text)).replace(":", "%3A").replace(",", "%2C")

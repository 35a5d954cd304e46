"""The one object that writes: data to stdout, all else to stderr, each as suits a person, a pipe or a program."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tpuctl.errors import InvalidInputError
from tpuctl.escaping import json_text, painted, visible, yaml_text
from tpuctl.masking import without_metadata_values
from tpuctl.output import tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from _typeshed import ReadableBuffer

    from tpuctl.errors import TpuctlError
    from tpuctl.output.tables import Cell


class Format(StrEnum):
    """How data is written to stdout. `table` is tabs without a header when stdout is not a terminal."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Streams:
    """The three streams, whether each is a terminal, and how wide it is."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    stdin_is_terminal: bool = False
    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    width: int = 100

    @classmethod
    def of_process(cls) -> Streams:
        """Return the streams that the process was started with."""
        import shutil  # noqa: PLC0415  # not needed by --version and --help

        stdin, stdout, stderr = sys.stdin or _nowhere(), sys.stdout or _closed(), _diagnostics()
        if isinstance(stdout, io.TextIOWrapper) and stdout.errors == "strict":
            # What the user's encoding cannot hold is shown as an escape, and ends no command.
            stdout.reconfigure(errors="backslashreplace")
        return cls(
            stdin,
            stdout,
            stderr,
            stdin.isatty(),
            stdout.isatty(),
            stderr.isatty(),
            shutil.get_terminal_size().columns,
        )


def _nowhere() -> TextIO:
    """Return what stands for a stream that was closed when the process began (`>&-`): Python has no object for it."""
    return Path(os.devnull).open("r+", encoding="utf-8")


def _diagnostics() -> TextIO:
    """Return stderr, or what stands for it."""
    if sys.stderr is None:
        return _nowhere()
    file = _Diagnostics(sys.stderr.fileno(), "w", closefd=False)
    return io.TextIOWrapper(file, encoding=sys.stderr.encoding, errors="backslashreplace", write_through=True)


class _Diagnostics(io.FileIO):
    """What stderr does not take (a full disk) is lost, and the command goes on to its own end. A closed pipe still ends it."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of the data, or drop what is left of it.

        There is no buffer above this: where a signal ends a write, one would write the same again.
        """
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            # None: it is non-blocking, and full.
            while left and (written := super().write(left)) is not None:
                left = left[written:]
        except BrokenPipeError:
            raise
        except OSError:
            pass
        return size


def _closed() -> TextIO:
    """Return what stands for a stdout that was closed: nothing can be written to it, and so no data gets lost in silence."""
    return io.TextIOWrapper(_Closed(os.devnull, "w"), encoding="utf-8", write_through=True)


class StdoutClosedError(OSError):
    """There is something to write, and no stdout."""

    def __init__(self) -> None:
        super().__init__(errno.EBADF, "it is closed")


class _Closed(io.FileIO):
    """A file that takes no bytes. Its number is in use, so that no other file gets it and is written to."""

    def write(self, data: object, /) -> int:  # noqa: ARG002  # the signature of a file
        """Refuse."""
        raise StdoutClosedError


class Terminal:
    """Where results, notes, questions and errors go.

    All text passes `escaping` here, whoever wrote it, and all JSON passes `masking`; a line end in it makes no line. With
    `shows_metadata` values of metadata are shown.
    """

    def __init__(
        self, streams: Streams, environ: Mapping[str, str], *, quiet: bool = False, shows_metadata: bool = False
    ) -> None:
        self.streams = streams
        self.quiet = quiet
        self.shows_metadata = shows_metadata
        self._may_ask = streams.stdin_is_terminal and not environ.get("CI")
        no_color = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        # Whether what stderr shows can be drawn anew.
        self.is_redrawn = streams.stderr_is_terminal and environ.get("TERM") != "dumb"
        # Entered for each message: what is drawn on the screen steps aside for it.
        self.aside: AbstractContextManager[object] = nullcontext()
        self.colors_out = streams.stdout_is_terminal and not no_color
        self.colors_err = streams.stderr_is_terminal and not no_color

    @property
    def is_interactive(self) -> bool:
        """Tell whether a person looks at stdout."""
        return self.streams.stdout_is_terminal

    def write(self, text: str) -> None:
        """Write a line of data."""
        self.names((text,))

    def names(self, names: Iterable[str]) -> None:
        """Write one name on each line."""
        self.streams.stdout.writelines(visible(name) + "\n" for name in names)

    def page(self, lines: Iterable[str]) -> None:
        """Write lines that were laid out here, in our own colours."""
        self.streams.stdout.writelines(painted(line) + "\n" for line in lines)

    def document(self, text: str) -> None:
        """Write a text of several lines that we have put together, such as a script or a file; tabs in it are ours."""
        for line in text.removesuffix("\n").split("\n"):
            self.streams.stdout.write("\t".join(map(visible, line.split("\t"))) + "\n")

    def flush(self) -> None:
        """Write out what is buffered of stdout."""
        self.streams.stdout.flush()

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table: columns with a header on a terminal, tabs without one elsewhere."""
        if self.is_interactive:
            lines = tables.columns(header, rows, width=self.streams.width, colored=self.colors_out)
        else:
            lines = tables.tabs(rows)
        self._lay_out(lines)

    def details(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Write label, text and style of what there is to say about one thing."""
        cells = [(tables.Cell(label), tables.Cell(text, style=style)) for label, text, style in rows]
        if self.is_interactive:
            lines = list(tables.columns(("", ""), cells, width=None, colored=self.colors_out))[1:]
        else:
            lines = list(tables.tabs(cells))
        self._lay_out(lines)

    def rows(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Write rows as a pipe gets them, also to a terminal: a part of a table that comes with time."""
        self._lay_out(tables.tabs(rows))

    def data(self, value: Any, form: Format) -> None:  # JSON
        """Write a value as JSON or YAML."""
        shown = self.masked(value)
        if form is Format.YAML:
            self.streams.stdout.write(yaml_text(shown))
        else:
            self.streams.stdout.write(json_text(shown, indent=2 if self.is_interactive else None) + "\n")

    def record(self, value: Any) -> None:  # JSON
        """Write a value as one line of JSON, at once: one of many that come with time."""
        self.streams.stdout.write(json_text(self.masked(value)) + "\n")
        self.flush()

    def masked(self, value: Any) -> Any:  # JSON
        """Return JSON as it may be shown: with hidden values of metadata, unless they were asked for."""
        return value if self.shows_metadata else without_metadata_values(value)

    def note(self, *lines: str) -> None:
        """Tell the user something that is not data."""
        if not self.quiet:
            self._tell(lines)

    def warn(self, *lines: str) -> None:
        """Tell the user something that matters, also when quiet."""
        self._tell(lines, label="warning: ", code="33")

    def error(self, error: TpuctlError, *, form: Format = Format.TABLE, sandbox: bool = False) -> None:
        """Print an error: message, hints and where to read more, or one JSON object on stderr where JSON was asked for."""
        if form in {Format.JSON, Format.YAML}:  # JSON is YAML
            body: dict[str, Any] = {"kind": error.kind, "message": error.message, "exit_code": int(error.exit_code)}
            body |= {"node": error.node} if error.node else {}
            body |= {"hint": error.hint} if error.hint else {}
            body |= {"id": error.id}
            self._tell((json_text({"error": body} | ({"sandbox": True} if sandbox else {})),))
            return
        about = f"{error.node}: " if error.node and f"`{error.node}`" not in error.message else ""
        self._tell((about + error.lines[0], *error.lines[1:]), label="error: ", code="1;31")
        for line in (error.hint or "").split("\n"):
            if line:
                self._tell((line,), label="  hint: ", code="36")
        if not self.quiet:
            self._tell((f"tpuctl explain {error.id}",), label="  more: ", code="2")

    def redraw(self, text: str = "") -> None:
        """Put a line in place of the one that is drawn on stderr, or take that away. Only where `is_redrawn`."""
        self.streams.stderr.write(f"\r\x1b[K{visible(text)}")
        self.streams.stderr.flush()

    def help(self, text: str) -> None:
        """Print the help of a command that is not whole: it is what went wrong, and not asked for."""
        self._tell(text.split("\n"))

    def send(self, sequence: str) -> None:
        """Send our own control sequence to the terminal on stdout."""
        self.streams.stdout.write(sequence)
        self.flush()

    def end_line(self) -> None:
        """Go to the next line of a terminal that shows `^C`."""
        if self.streams.stderr_is_terminal:
            self.streams.stderr.write("\n")

    @property
    def may_ask(self) -> bool:
        """Tell whether a question can be answered: stdin is a terminal, and this is no CI job."""
        return self._may_ask

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask, and return whether the answer was yes.

        Raises `InvalidInputError` naming `--yes` where nobody can be asked.
        """
        if yes:
            return True
        if not self._may_ask:
            raise InvalidInputError(
                f"{question} needs a confirmation, and nobody can be asked here",
                hint="add `--yes` if you mean it; nothing was done (`--quiet` is about output only)",
            )
        with self.aside:
            self.streams.stderr.write(f"{visible(question)} [y/N] ")
            self.streams.stderr.flush()
            return self.streams.stdin.readline().strip().lower() in {"y", "yes"}

    def _lay_out(self, lines: Iterable[str]) -> None:
        # Made by `tables`, cell by cell: tabs and colours are ours, the rest is visible.
        self.streams.stdout.writelines(line + "\n" for line in lines)

    def _tell(self, lines: Sequence[str], *, label: str = "", code: str = "") -> None:
        painted_label = f"\x1b[{code}m{label}\x1b[0m" if label and self.colors_err else label
        with self.aside:
            self.streams.stderr.write(painted_label + "\n".join(map(visible, lines)) + "\n")
            self.streams.stderr.flush()

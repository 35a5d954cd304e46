"""The one object that writes: data to stdout, everything else to stderr, in a form for people, pipes or programs."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from tpuctl.errors import InvalidInputError, NotConfirmedError
from tpuctl.escaping import (
    dump_printable_json,
    dump_printable_yaml,
    escape_except_colors,
    escape_unprintable,
    mask_metadata,
)
from tpuctl.output.column_widths import COLUMN_GAP, Column, Kind, fit_columns, shorten, text_width
from tpuctl.output.github import GuardedStream, annotation
from tpuctl.output.pager import pager_command, show_in_pager
from tpuctl.output.prose import MIN_WIDTH, wrap_line, wrap_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from _typeshed import ReadableBuffer

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError


class OutputFormat(StrEnum):
    """The output format of data. `table` prints tabs without a header if stdout is not a terminal; `wide` has more columns."""

    TABLE = "table"
    WIDE = "wide"
    TSV = "tsv"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """The three standard streams, whether each is a terminal, and the size of the terminal; height 0 is unlimited."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    stdin_is_terminal: bool = False
    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    width: int = 100
    height: int = 0

    @classmethod
    def of_process(cls) -> StandardStreams:
        """Return the streams of this process. A closed stdin or stderr is replaced by /dev/null."""
        stdin = sys.stdin or _devnull()
        # A closed stdout raises an error for any write, so that no data is lost silently.
        stdout = sys.stdout or io.TextIOWrapper(_ClosedFile(os.devnull, "w"), encoding="utf-8", write_through=True)
        if sys.stderr is None:
            stderr = _devnull()
        else:
            file = _Diagnostics(sys.stderr.fileno(), "w", closefd=False)
            stderr = io.TextIOWrapper(file, encoding=sys.stderr.encoding, errors="backslashreplace", write_through=True)
        if isinstance(stdout, io.TextIOWrapper) and stdout.errors == "strict":
            # Characters that the user's encoding lacks are escaped; they must not end a command.
            stdout.reconfigure(errors="backslashreplace")
        return cls(
            stdin,
            stdout,
            stderr,
            stdin.isatty(),
            stdout.isatty(),
            stderr.isatty(),
            *_terminal_size(),
        )


def _terminal_size() -> tuple[int, int]:
    """Return `COLUMNS` and `LINES`, else the size of the terminal, else 80 and 24. shutil takes 2 ms to import."""
    size = [0, 0]
    with suppress(OSError, ValueError, AttributeError):
        size = list(os.get_terminal_size(sys.__stdout__.fileno()))  # type: ignore[union-attr]  # None if closed
    for index, name in enumerate(("COLUMNS", "LINES")):
        with suppress(ValueError):
            size[index] = max(int(os.environ.get(name, "0")), 0) or size[index]
    return size[0] or 80, size[1] or 24


def _devnull() -> TextIO:
    """Return a stand-in for a stream that was closed at the start of the process (`>&-`): Python has None for it."""
    return Path(os.devnull).open("r+", encoding="utf-8")


class _Diagnostics(io.FileIO):
    """The file of stderr. Text that cannot be written (a full disk) is lost without an error; a closed pipe raises one."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of the data, or drop the rest.

        There is no buffer above this file: it would repeat a write that a signal interrupted.
        """
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            # None: the file is non-blocking and full.
            while left and (written := super().write(left)) is not None:
                left = left[written:]
        except BrokenPipeError:
            raise
        except OSError:
            pass
        return size


class StdoutClosedError(OSError):
    """Data cannot be written: stdout was closed at the start of the process."""

    def __init__(self) -> None:
        super().__init__(errno.EBADF, "it is closed")


class _ClosedFile(io.FileIO):
    """A file that refuses every write. It occupies the file descriptor, so that no other file gets it."""

    def write(self, data: object, /) -> int:  # noqa: ARG002  # the signature of a file
        """Raise `StdoutClosedError`."""
        raise StdoutClosedError


def has_colors(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return whether a stream gets colors. The first variable that decides wins, as in Python's own programs."""
    if environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced.lower() not in {"0", "false"}
    if environ.get("CLICOLOR_FORCE", "") not in {"", "0"}:
        return True
    return is_terminal and environ.get("CLICOLOR") != "0" and environ.get("TERM") != "dumb"


class Terminal:
    """Writes results, notes, questions and errors.

    All text is escaped here and all JSON is masked: control characters and newlines in a value have no effect on the terminal.
    With `shows_metadata` metadata values are shown; without `has_header` tables have no headings.
    """

    def __init__(
        self,
        streams: StandardStreams,
        environ: Mapping[str, str],
        *,
        quiet: bool = False,
        shows_metadata: bool = False,
        has_header: bool = True,
    ) -> None:
        self.streams = streams
        self.quiet = quiet
        self.shows_metadata = shows_metadata
        self.has_header = has_header
        # Whether tables are written for `-o tsv`.
        self.is_tsv = False
        self._environ = environ
        # Messages that are printed after the result that is being collected for the pager; None if none is.
        self._held: list[str] | None = None
        self._may_ask = streams.stdin_is_terminal and not environ.get("CI")
        # Whether stderr can be redrawn: it is a terminal with cursor control.
        self.is_redrawn = streams.stderr_is_terminal and environ.get("TERM") != "dumb"
        # Entered for each message: a live display removes itself meanwhile.
        self.aside: AbstractContextManager[object] = nullcontext()
        # Returns what each line of a message begins with while long work is in progress.
        self.stamp: Callable[[], str] | None = None
        # The log of GitHub Actions, which gets groups and annotations; None elsewhere.
        self._workflow = streams.stderr if isinstance(streams.stderr, GuardedStream) else None
        self._group: str | None = None  # the title of a group without a line yet; empty once it has one
        self.colors_out = has_colors(environ, is_terminal=streams.stdout_is_terminal)
        self.colors_err = has_colors(environ, is_terminal=streams.stderr_is_terminal)

    @property
    def is_interactive(self) -> bool:
        """Return whether stdout is a terminal."""
        return self.streams.stdout_is_terminal

    def write(self, text: str) -> None:
        """Write a line of data."""
        self.names((text,))

    def names(self, names: Iterable[str]) -> None:
        """Write one name on each line."""
        self.streams.stdout.writelines(escape_unprintable(name) + "\n" for name in names)

    def page(self, lines: Iterable[str]) -> None:
        """Write lines of our own layout, with their colors."""
        self.streams.stdout.writelines(escape_except_colors(line) + "\n" for line in lines)

    def document(self, text: str) -> None:
        """Write a text of several lines, such as a script or a file. Tabs are kept, other control characters escaped."""
        for line in text.removesuffix("\n").split("\n"):
            self.streams.stdout.write("\t".join(map(escape_unprintable, line.split("\t"))) + "\n")

    def flush(self) -> None:
        """Flush stdout."""
        self.streams.stdout.flush()

    def table(self, header: Header, rows: Sequence[Sequence[Cell]], *, scrolls: bool = False) -> None:
        """Write a table: columns with headings on a terminal, tabs without them elsewhere, tabs with them for `-o tsv`.

        On a terminal columns are left out and shortened until they fit, unless it `scrolls`.
        """
        if self.is_tsv:
            self.tsv(header, rows)
            return
        if not self.is_interactive:
            self._lay_out(tab_lines(rows))
            return
        width = None if scrolls else self.streams.width
        lines, left_out = lay_out_columns(as_columns(header), rows, width=width, colored=self.colors_out)
        self._lay_out(lines[0 if self.has_header else 1 :])
        if left_out:
            names = ", ".join(column.name for column in left_out)
            self.note(f"not shown, as the terminal is {self.streams.width} columns wide: {names}")

    def tsv(self, header: Header, rows: Iterable[Sequence[Cell]]) -> None:
        """Write the names of the columns and a line for each row, with tabs, also to a terminal."""
        if self.has_header:
            names = [f"{column.name} ({column.unit})" if column.unit else column.name for column in as_columns(header)]
            self._lay_out(tab_lines([list(map(Cell, names))]))
        self._lay_out(tab_lines(rows))

    def summary(self, line: str) -> None:
        """Write a line about a whole table below it; only on a terminal, unless quiet."""
        if self.is_interactive and not self.quiet:
            self._lay_out([styled(line, "dim", colored=self.colors_out)])

    def for_tsv(self) -> Terminal:
        """Return a terminal that writes tables for `-o tsv`: as to a pipe, with the names of the columns."""
        made = copy(self)
        made.streams, made.is_tsv, made.colors_out = replace(self.streams, stdout_is_terminal=False), True, False
        return made

    def writing_to(self, stdout: TextIO, notes: TextIO, *, width: int | None) -> Terminal:
        """Return a terminal that writes elsewhere: as to a window of that width, or for None only its results, as to a pipe."""
        made = copy(self)
        is_window = width is not None
        made.streams = replace(
            self.streams,
            stdout=stdout,
            stderr=notes if is_window else self.streams.stderr,
            stdout_is_terminal=is_window,
            width=width or self.streams.width,
            height=0,
        )
        made.is_redrawn = False
        return made

    @contextmanager
    def paged(self) -> Iterator[None]:
        """Collect what a block writes to stdout. Show it in the pager if it is longer than the screen, else write it."""
        streams = self.streams
        command = pager_command(self._environ) if streams.stdout_is_terminal and streams.height else None
        if command is None or self._held is not None:
            yield
            return
        collected, held = io.StringIO(), list[str]()
        self.streams, self._held = replace(streams, stdout=collected), held
        try:
            yield
        finally:
            self.streams, self._held = streams, None
            text = collected.getvalue()
            is_long = text.count("\n") >= streams.height
            with self.aside:
                if not is_long or not show_in_pager(command, text, self._environ, streams.stdout):
                    streams.stdout.write(text)
                    streams.stdout.flush()
            for message in held:
                self._write_message(message)

    def details(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Write details of one object, each with label, text and style."""
        shown = [(escape_unprintable(label), escape_unprintable(text), style) for label, text, style in rows]
        if not self.is_interactive:
            self._lay_out(f"{label}\t{text}" for label, text, _ in shown)
            return
        indent = max((text_width(label) for label, _, _ in shown), default=0) + COLUMN_GAP
        for label, text, style in shown:
            first, rest = label.ljust(indent), " " * indent
            for line in wrap_text(text, first=first, rest=rest, width=max(self.streams.width, indent + MIN_WIDTH)):
                self._lay_out([line[:indent] + styled(line[indent:], style, colored=self.colors_out)])

    def rows(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Write rows with tabs, also to a terminal: for a table whose rows arrive over time."""
        self._lay_out(tab_lines(rows))

    def data(self, value: Any, form: OutputFormat) -> None:  # JSON
        """Write a value as JSON or YAML."""
        masked = self.masked(value)
        if form is OutputFormat.YAML:
            self.streams.stdout.write(dump_printable_yaml(masked))
        else:
            self.streams.stdout.write(dump_printable_json(masked, indent=2 if self.is_interactive else None) + "\n")

    def record(self, value: Any) -> None:  # JSON
        """Write a value as one line of JSON and flush: for values that arrive over time."""
        self.streams.stdout.write(dump_printable_json(self.masked(value)) + "\n")
        self.flush()

    def masked(self, value: Any) -> Any:  # JSON
        """Return JSON with hidden metadata values, unless the user asked to show them."""
        return value if self.shows_metadata else mask_metadata(value)

    def note(self, *lines: str) -> None:
        """Print information for the user, unless quiet."""
        if not self.quiet:
            self._print(lines)

    def note_output(self, *lines: str) -> None:
        """Print lines of another program, unless quiet: tabs lead to the next multiple of eight columns."""
        self.note(*(line.expandtabs() for line in lines))

    def note_table(self, header: Header, rows: Sequence[Sequence[Cell]]) -> None:
        """Print a table for the user on stderr, unless quiet: what a question or a note is about."""
        width = self.streams.width if self.streams.stderr_is_terminal else None
        self.note(*column_lines(header, rows, width=width, colored=False))

    def warn(self, *lines: str) -> None:
        """Print a warning, also if quiet; in GitHub Actions as an annotation."""
        if not self.annotate("warning", "tpuctl", lines):
            self._print(lines, label="warning: ", code="33")

    def error(self, error: TpuctlError, *, form: OutputFormat = OutputFormat.TABLE, sandbox: bool = False) -> None:
        """Print an error: message, hints and the `explain` command, or one JSON object if the format is JSON or YAML.

        In GitHub Actions the text is an annotation.
        """
        if form in {OutputFormat.JSON, OutputFormat.YAML}:  # JSON is YAML
            body: dict[str, Any] = {"kind": error.kind, "message": error.message, "exit_code": int(error.exit_code)}
            body |= {"node": error.node} if error.node else {}
            body |= {"hint": error.hint} if error.hint else {}
            body |= {"id": error.id}
            self._print((dump_printable_json({"error": body} | ({"sandbox": True} if sandbox else {})),))
            return
        if isinstance(error, NotConfirmedError) and error.is_answer:
            self._print((error.message,))
            for line in filter(None, (error.hint or "").split("\n")):
                self._print((line,), label="  hint: ", code="36")
            return
        about = f"{error.node}: " if error.node and f"`{error.node}`" not in error.message else ""
        message = (about + error.lines[0], *error.lines[1:])
        hints = [line for line in (error.hint or "").split("\n") if line]
        more = [] if self.quiet else [f"tpuctl explain {error.id}"]
        advice = [*(f"  hint: {line}" for line in hints), *(f"  more: {line}" for line in more)]
        if self.annotate("error", f"tpuctl: {error.kind.replace('_', ' ')}", (*message, *advice)):
            return
        self._print(message, label="error: ", code="1;31")
        for line in hints:
            self._print((line,), label="  hint: ", code="36")
        for line in more:
            self._print((line,), label="  more: ", code="2")

    def annotate(self, level: str, title: str, lines: Sequence[str]) -> bool:
        """Print lines as an annotation (`error`, `warning`) of GitHub Actions, which shows them in the log as well.

        Return False, and print nothing, elsewhere.
        """
        if self._workflow is None:
            return False
        with self.aside:
            self._workflow.send_command(level, annotation(lines), title=title)
        return True

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Fold the notes that a block prints, in the log of GitHub Actions. Elsewhere, and inside a group, do nothing."""
        if self._workflow is None or self._group is not None:
            yield
            return
        self._group = title
        try:
            yield
        finally:
            is_open, self._group = not self._group, None
            if is_open:
                with suppress(OSError):
                    self._workflow.send_command("endgroup", "")

    def redraw(self, text: str = "") -> None:
        """Replace the status line on stderr, cut at the width of the terminal, or remove it. Call it only if `is_redrawn`."""
        shown = escape_unprintable(text)
        with suppress(OSError, ValueError):  # a stream in memory has no descriptor
            shown = shown[: os.get_terminal_size(self.streams.stderr.fileno()).columns - 1]
        self.streams.stderr.write(f"\r\x1b[K{shown}")
        self.streams.stderr.flush()

    def help(self, text: str) -> None:
        """Print the help of an incomplete command on stderr."""
        self._print(text.split("\n"))

    def send(self, sequence: str) -> None:
        """Send a control sequence of ours to the terminal on stdout."""
        self.streams.stdout.write(sequence)
        self.flush()

    def end_line(self) -> None:
        """Start a new line on a terminal, after its `^C`."""
        if self.streams.stderr_is_terminal:
            self.streams.stderr.write("\n")

    @property
    def may_ask(self) -> bool:
        """Return whether a question can be answered: stdin is a terminal and this is not a CI job."""
        return self._may_ask

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask a question, and return whether the answer was yes.

        Raises `InvalidInputError` with `--yes` as the hint if a question cannot be answered.
        """
        if yes:
            return True
        if not self._may_ask:
            reason = "CI is set" if self.streams.stdin_is_terminal else "stdin is not a terminal"
            raise InvalidInputError(
                f"cannot ask for confirmation ({question}): {reason}",
                hint="nothing was done; pass `--yes` to confirm (`--quiet` does not)",
            )
        *facts, asked = question.split("; ")
        if facts and asked.count("(") == asked.count(")"):
            self._print(("; ".join(facts),))
        else:
            asked = question
        width = self.streams.width if self.streams.stderr_is_terminal else sys.maxsize
        *before, last = wrap_line(f"{escape_unprintable(asked)} [y/N]", width=width)
        with self.aside:
            self.streams.stderr.write("".join(f"{line}\n" for line in before) + f"{last} ")
            self.streams.stderr.flush()
            return self.streams.stdin.readline().strip().lower() in {"y", "yes"}

    def ask(self, question: str) -> str:
        """Ask for a text, and return the line without spaces around it; only if `may_ask`.

        Raises `NotConfirmedError` if stdin ends.
        """
        with self.aside:
            self.streams.stderr.write(escape_unprintable(question))
            self.streams.stderr.flush()
            line = self.streams.stdin.readline()
        if not line:
            self.end_line()
            raise NotConfirmedError("no answer", hint="nothing was done")
        return line.strip()

    def _lay_out(self, lines: Iterable[str]) -> None:
        # `tables` escapes each cell: tabs and colors are ours.
        self.streams.stdout.writelines(line + "\n" for line in lines)

    def _print(self, lines: Sequence[str], *, label: str = "", code: str = "") -> None:
        painted_label = f"\x1b[{code}m{label}\x1b[0m" if label and self.colors_err else label
        stamp = self.stamp() if self.stamp else ""
        shown = [*map(escape_unprintable, lines)]
        if self.streams.stderr_is_terminal:
            width = self.streams.width - len(stamp)
            labels = [label, *[""] * (len(shown) - 1)]
            shown = [
                part
                for own, line in zip(labels, shown, strict=True)
                for part in wrap_line(line, width=width, label=own)
            ]
        text = f"\n{stamp}".join(shown)
        message = f"{stamp}{painted_label}{text}\n"
        if self._held is None:
            self._write_message(message)
        else:
            self._held.append(message)

    def _write_message(self, message: str) -> None:
        with self.aside:
            if self._workflow and self._group:
                self._workflow.send_command("group", escape_unprintable(self._group))
                self._group = ""
            self.streams.stderr.write(message)
            self.streams.stderr.flush()


class Cell(NamedTuple):
    """One cell: its text on a terminal, its text in a pipe if that differs, and its style on a terminal.

    `rank` is the number by which `--sort` orders it; None orders it by its text, numbers in it by their value.
    """

    text: str
    plain: str | None = None
    style: str = ""
    rank: float | None = None

    @property
    def as_plain(self) -> str:
        """Its text in a pipe, unescaped."""
        return self.text if self.plain is None else self.plain


# The columns of a table. A title alone is a column of values; the last title alone is one of texts.
Header = Sequence[Column | str]


def as_columns(header: Header) -> list[Column]:
    """Return the columns of a header."""
    last = len(header) - 1
    return [
        Column(each.lower().replace(" ", "-"), Kind.TEXT if index == last else Kind.VALUE, each)
        if isinstance(each, str)
        else each
        for index, each in enumerate(header)
    ]


def tab_lines(rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield a line for each row, with tabs between the cells. Tabs and newlines in a cell are escaped."""
    for row in rows:
        yield "\t".join([escape_unprintable(cell[0] if cell[1] is None else cell[1]) for cell in row])


def column_lines(header: Header, rows: Sequence[Sequence[Cell]], *, width: int | None, colored: bool) -> list[str]:
    """Return a line of headings and a line for each row, in columns that fit the width."""
    return lay_out_columns(as_columns(header), rows, width=width, colored=colored)[0]


def lay_out_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, width: int | None, colored: bool
) -> tuple[list[str], list[Column]]:
    """Return the lines of a table, and the columns that were left out although they have a text."""
    texts = [[escape_unprintable(row[index][0]) for row in rows] for index in range(len(columns))]
    used = [any(column) for column in texts]
    widths = [
        max(text_width(column.heading), max(map(text_width, own), default=0))
        for column, own in zip(columns, texts, strict=True)
    ]
    shown = fit_columns(columns, widths, used, width) if width is not None else list(enumerate(widths))
    laid_out = []
    for index, room in shown:
        column, own = columns[index], texts[index]
        if room < widths[index]:
            own = list(map(column.shortener(room), own))
        own = [shorten(column.heading, room), *own]
        styles = ["bold", *(row[index][2] for row in rows)] if colored else None
        if used[index] or column.heading.strip():
            laid_out.append(_padded(own, room, styles, is_right=column.kind is Kind.NUMBER))
    lines = [(" " * COLUMN_GAP).join(parts).rstrip() for parts in zip(*laid_out, strict=True)]
    kept = {index for index, _ in shown}
    return lines, [column for index, column in enumerate(columns) if used[index] and index not in kept]


def _padded(texts: Sequence[str], width: int, styles: Sequence[str] | None, *, is_right: bool) -> list[str]:
    """Return the texts, padded to a width; the style of each does not color its padding."""
    padding = [" " * (width - text_width(text)) for text in texts]
    painted = texts if styles is None else [_painted(*pair) for pair in zip(texts, styles, strict=True)]
    if is_right:
        return [space + text for space, text in zip(padding, painted, strict=True)]
    return [text + space for space, text in zip(padding, painted, strict=True)]


def _painted(text: str, style: str) -> str:
    return f"\x1b[{_STYLE_CODES[style]}m{text}\x1b[0m" if style and text else text


_STYLE_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def styled(text: str, style: str, *, colored: bool) -> str:
    """Return the text in a style (`bold`, `red`, …) if colored; control characters and newlines in it are escaped."""
    return _painted(escape_unprintable(text), style if colored else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A result. Each form is made only if it is shown."""

    value: Callable[[], Any]  # JSON: an object, or a list of them
    text: Callable[[Terminal], None]  # writes the form for people, and for pipes
    names: Callable[[], Iterable[str]] | None = None  # for `-o name`; None shows the text
    tsv: Callable[[Terminal], None] | None = None  # for `-o tsv`; None shows the text
    is_marked: bool = True  # whether each object says `"sandbox": true` in the sandbox
    is_report: bool = False  # shown without the pager


def show_view(view: View, terminal: Terminal, form: OutputFormat, *, sandbox: bool) -> None:
    """Write a result in one form. `sandbox`: it is from the sandbox, which JSON says."""
    with nullcontext() if view.is_report else terminal.paged():
        match form:
            case OutputFormat.JSON | OutputFormat.YAML:
                value = view.value()
                if view.is_marked and sandbox:
                    mark = {"sandbox": True}
                    value = [{**entry, **mark} for entry in value] if isinstance(value, list) else {**value, **mark}
                terminal.data(value, form)
            case OutputFormat.NAME if view.names is not None:
                terminal.names(view.names())
            case OutputFormat.TSV:
                (view.tsv or view.text)(terminal.for_tsv())
            case _:
                view.text(terminal)


def table_view(
    header: Header,
    rows: Sequence[Sequence[Cell]],
    *,
    value: Callable[[], Any],  # JSON
    names: Callable[[], Iterable[str]] | None = None,
    empty: str | None = None,
    is_marked: bool = True,
) -> View:
    """Return the view of a table. On a terminal the note `empty` replaces a table without rows."""

    def show(terminal: Terminal) -> None:
        if rows or empty is None or not terminal.is_interactive:
            terminal.table(header, rows)
        else:
            terminal.note(empty)

    return View(value=value, text=show, names=names, is_marked=is_marked)


REDRAW_INTERVAL = timedelta(milliseconds=200)
# Work that ends sooner shows no line.
INITIAL_DELAY = timedelta(milliseconds=500)


class StatusLine:
    """One line that is redrawn in place, and removed at the end of the block. Any thread may call its methods."""

    def __init__(self, terminal: Terminal, clock: Clock, *, delay: timedelta = INITIAL_DELAY) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._due = clock.monotonic() + delay
        self._has_drawn = False
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._is_shown = False

    def clear(self) -> None:
        """Remove the line before other text is written; the next `show` draws it again."""
        with self._lock:
            if self._has_drawn:
                self._has_drawn = False
                self._terminal.redraw()

    def show(self, text: Callable[[], str]) -> None:
        """Draw this text, unless the line was drawn within the last moments: then the text is not even made."""
        with self._lock:
            now = self._clock.monotonic()
            if self._is_shown and now >= self._due:
                self._due, self._has_drawn = now + REDRAW_INTERVAL, True
                self._terminal.redraw(text())  # cut at the width of the terminal

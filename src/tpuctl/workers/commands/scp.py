"""`tpuctl scp`."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, Self

import click

from tpuctl.app.options import cli_command, fanout_option, worker_option
from tpuctl.app.ssh_options import route_options
from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration, format_size
from tpuctl.errors import ExitCode, InvalidInputError, NotFoundError, RemoteCommandError
from tpuctl.models.node import WorkerSet
from tpuctl.output.terminal import OutputFormat
from tpuctl.ssh.answers import UnexpectedAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rich.text import Text

    from tpuctl.app.app import App
    from tpuctl.clock import Clock
    from tpuctl.output.live import LiveArea
    from tpuctl.output.terminal import Terminal
    from tpuctl.workers.copying import CopyResult


@cli_command("scp")
@click.argument("places", metavar="SRC... DST", nargs=-1, required=True, type=click.UNPROCESSED)
@worker_option
@click.option("-r", "--recurse", is_flag=True, help="Copy folders with all their contents.")
@click.option("-p", "--preserve", is_flag=True, help="Keep modification times and modes.")
@click.option(
    "-l",
    "--selector",
    metavar="KEY=VALUE",
    multiple=True,
    help="Copy to or from all nodes with this label; write the path as :PATH. Repeatable.",
)
@fanout_option("copies")
@click.option(
    "--scp-flag", hidden=True, multiple=True, help="Flag of gcloud; not supported, because tpuctl starts no scp."
)
@route_options
def command(
    app: App,
    *,
    places: tuple[str, ...],
    worker: str,
    recurse: bool,
    preserve: bool,
    selector: tuple[str, ...],
    fanout: int,
    scp_flag: tuple[str, ...],
) -> int:
    """Copy files to or from all workers of a node.

    One side is NODE:PATH, USER@NODE:PATH, ZONE/NODE:PATH or several nodes A,B:PATH; with -l it is :PATH. Paths on workers
    are relative to the login's home, and each worker expands ~ and wildcards. A copy from several workers creates a folder
    for each: DST/0, DST/1, or DST/NODE-0 for several nodes.

    A file appears under its name only when it is complete. To resume an interrupted copy, repeat the command.

    \b
    Examples:
      tpuctl scp train.py config.yaml trainer:
      tpuctl scp -r data trainer:/mnt/disks/data --worker 0
      tpuctl scp 'trainer:/tmp/tpu_logs/*' logs
    """
    from tpuctl.workers.copying import CopyOptions, CopyProgress, download, list_local_files, parse_copy_request, upload  # noqa: PLC0415  # not needed by --help
    from tpuctl.workers.targets import await_key, find_nodes, find_targets  # noqa: PLC0415  # as above

    if scp_flag:
        hint = "put options of ssh in `~/.ssh/config`; `-p`, `-r` and `--worker` are options of tpuctl"
        raise InvalidInputError("`--scp-flag` is not supported: tpuctl starts `ssh`, not `scp`", hint=hint)
    request, workers = parse_copy_request(places, has_labels=bool(selector)), WorkerSet.parse(worker)
    options, folder = CopyOptions(recurse=recurse, preserve=preserve, fanout=fanout), app.invocation.folder
    listing = list_local_files(request.sources, folder, options) if request.is_upload else None
    chosen = find_targets(app, find_nodes(app, request.nodes, selector), workers)
    await_key(app, chosen)
    tallies = [CopyProgress() for _ in chosen]
    # Copies take real time, also in a sandbox with a faster clock.
    clock = app.invocation.clock or SystemClock()
    kept = "the received parts stay beside their destination, as `.NAME.tpuctl-…`"
    with app.in_flight(kept, resume=app.command_line()), CopyStatusLine(app.terminal, clock, tallies):
        started = clock.monotonic()
        if listing is not None:
            copied = upload(chosen, listing, request.destination, options=options, tallies=tallies, clock=clock)
        else:
            copied = download(
                chosen,
                request.sources,
                app.invocation.folder,
                request.destination,
                options=options,
                tallies=tallies,
                clock=clock,
            )
    return show_copy_results(app, copied, notes=listing.notes if listing else (), duration=clock.monotonic() - started)


_MAX_NAMED = 5
# A worker may send any number of notes.
_MAX_NOTES = 50


class CopyError(RemoteCommandError):
    """Files could not be copied to or from some workers."""


def show_copy_results(app: App, copied: Sequence[CopyResult], *, notes: Sequence[str], duration: timedelta) -> int:
    """Show the results of a copy and return 0. Raises the error of a single worker, or `CopyError` with the failed workers.

    Raises `NotFoundError` if the files were not found on any of the failed workers.
    """
    for note in notes:
        app.terminal.note(note)
    for one in copied:
        notes = list(one.notes[:_MAX_NOTES])
        if len(one.notes) > _MAX_NOTES:
            notes.append(f"and {len(one.notes) - _MAX_NOTES} more notes")
        for note in notes:
            app.terminal.note(f"worker {one.target.label}: {note}" if len(copied) > 1 else note)
    if app.format in {OutputFormat.JSON, OutputFormat.YAML}:
        app.terminal.data([_to_json(app, one) for one in copied], app.format)
    elif app.format is OutputFormat.NAME:
        app.terminal.names(f"{one.target.node.name.node_id}-{one.target.worker}" for one in copied if not one.error)
    failed = [one for one in copied if one.error]
    if not failed:
        app.terminal.note(_summary(copied, duration))
        return ExitCode.OK
    if unreached := [(one.target, one.ssh_stderr) for one in failed if one.ssh_stderr]:
        from tpuctl.ssh.ssh_errors import collect_failure_context, explain_ssh_failures  # noqa: PLC0415  # only for failures

        context = collect_failure_context(unreached[0][0], accepted_elsewhere=len(unreached) < len(copied))
        causes = explain_ssh_failures(unreached, context)
        if len(copied) == 1:
            raise causes[0]
        for cause in causes:
            app.show_error(cause)
    for one in failed:
        if not one.ssh_stderr:
            _show_problems(app, one, is_single=len(copied) == 1)
    raise _error_for(copied, failed)


def _summary(copied: Sequence[CopyResult], duration: timedelta) -> str:
    sizes = {(one.files, one.size) for one in copied}
    files, size = sum(one.files for one in copied), sum(one.size for one in copied)
    each = ""
    if len(sizes) == 1 and len(copied) > 1:
        files, size = sizes.pop()
        each = f" for each of {len(copied)} workers"
    words = f"{files} file{'' if files == 1 else 's'}, {format_size(size)}{each}"
    moved = sum(one.moved for one in copied)
    resumed = "" if moved >= sum(one.size for one in copied) else f"; {format_size(moved)} transferred"
    return f"copied {words} in {format_duration(duration)}{resumed}"


def _show_problems(app: App, one: CopyResult, *, is_single: bool) -> None:
    is_named = is_single or isinstance(one.error, UnexpectedAnswerError)
    label = "" if is_named else f"worker {one.target.label}: "
    lines = list(one.problems[:_MAX_NAMED])
    if len(one.problems) > _MAX_NAMED:
        lines.append(f"and {len(one.problems) - _MAX_NAMED} more files")
    if one.error and not one.problems and not is_single:
        lines.append(one.error.message)
    for text in lines:
        app.terminal.warn(f"{label}{text}")


def _error_for(copied: Sequence[CopyResult], failed: Sequence[CopyResult]) -> Exception:
    first = failed[0].error
    hints = dict.fromkeys(one.error.hint for one in failed if one.error and one.error.hint)
    # A problem with a file occurs again, unlike a broken connection.
    retry = "fix this, then repeat the command: complete files are not sent again"
    hint = "\n".join(hints) or (retry if failed[0].problems else None)
    if len(copied) == 1 and first is not None and not failed[0].problems:
        return first
    labels = ", ".join(one.target.label for one in failed)
    what = "files are missing" if all(one.problems for one in failed) else "the copy failed"
    message = f"{what} on {len(failed)} of {len(copied)} workers: {labels}"
    if len(copied) == 1:
        name = failed[0].target.node.name.node_id
        count = len(failed[0].problems)
        missing = f"1 file of `{name}` was" if count == 1 else f"{count} files of `{name}` were"
        return CopyError(f"{missing} not copied" + ("; the others were copied" if copied[0].files else ""), hint=hint)
    if all(isinstance(one.error, NotFoundError) for one in failed):
        return NotFoundError(message, hint=hint)
    return CopyError(message, hint=hint)


def _to_json(app: App, one: CopyResult) -> dict[str, Any]:
    body: dict[str, Any] = {
        "node": one.target.node.name.node_id,
        "worker": one.target.worker,
        "ok": one.error is None,
        "files": one.files,
        "bytes": one.size,
        "bytesMoved": one.moved,
        "seconds": round(one.duration.total_seconds(), 3),
    }
    body |= {"skipped": list(one.notes)} if one.notes else {}
    body |= {"problems": list(one.problems)} if one.problems else {}
    body |= {"error": {"kind": one.error.kind, "message": one.error.message}} if one.error else {}
    return body | ({"sandbox": True} if app.is_sandbox else {})


_MAX_SECONDS_LEFT = 10**9


class CopyShare(Protocol):
    """The progress of one worker's copy, in bytes."""

    @property
    def size(self) -> int | None:
        """The bytes to copy; None until known."""

    @property
    def arrived(self) -> int:
        """The bytes at the destination."""

    @property
    def total_moved(self) -> int:
        """The bytes sent over the network."""

    @property
    def has_ended(self) -> bool:
        """Whether the copy has ended."""


class CopyStatusLine:
    """The line, as a context manager that removes it at the end. Draws nothing unless stderr is a terminal."""

    def __init__(self, terminal: Terminal, clock: Clock, shares: Sequence[CopyShare]) -> None:
        self._terminal, self._clock, self._shares = terminal, clock, shares
        self._started = clock.monotonic()
        self._drawing: LiveArea | None = None

    def __enter__(self) -> Self:
        streams = self._terminal.streams
        with suppress(OSError, ValueError):  # a stream in memory has no descriptor
            if not self._terminal.is_redrawn or self._terminal.quiet or streams.stderr.fileno() < 0:
                return self
            from rich.console import Console  # noqa: PLC0415  # rich costs 40 ms, only for a terminal
            from rich.text import Text  # noqa: PLC0415  # as above

            from tpuctl.output.live import LiveArea  # noqa: PLC0415  # as above

            console = Console(
                file=streams.stderr,
                force_terminal=True,
                color_system="standard" if self._terminal.colors_err else None,
                legacy_windows=False,
                _environ={},  # `Terminal` knows these; with COLUMNS rich would ignore a new width
            )

            def line() -> Text:
                words = describe_copy(self._shares, self._clock.monotonic() - self._started)
                return Text(words[: max(0, console.width - 1)], no_wrap=True)

            stdin = streams.stdin if streams.stdin_is_terminal else None
            self._drawing = LiveArea(console, stdin, above=list, below=lambda: [line()], threaded=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawing:
            with suppress(OSError):
                self._drawing.end()


def describe_copy(shares: Sequence[CopyShare], elapsed: timedelta) -> str:
    """Return the line: percent, bytes, rate, time left, and how many workers have finished."""
    known = [share.size for share in shares if share.size is not None]
    ended = sum(share.has_ended for share in shares)
    workers = f"{ended} of {len(shares)} workers ended" if len(shares) > 1 else ""
    if not known:
        return "  ".join(filter(None, ("connecting", workers)))
    arrived, moved, size = sum(one.arrived for one in shares), sum(one.total_moved for one in shares), sum(known)
    # Copies of unknown size are assumed to be as large as the others.
    size = size * len(shares) // len(known)
    percent = f"{min(100, arrived * 100 // size) if size else 100:>3}%"
    rate = moved / max(elapsed.total_seconds(), 0.001)
    left = ""
    if moved and size > arrived:
        # A worker may announce more bytes than a duration can express.
        seconds = min(elapsed.total_seconds() * (size - arrived) / moved, _MAX_SECONDS_LEFT)
        left = format_duration(timedelta(seconds=seconds)) + " left"
    parts = (percent, f"{format_size(arrived)} of {format_size(size)}", f"{format_size(rate)}/s", left, workers)
    return "  ".join(filter(None, parts))

"""Run `tpuctl sync` for the chosen workers, once or continuously, and show the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.actions.sync import keep_synced, sync
from tpuctl.cli.keeping import keeping
from tpuctl.clock import SystemClock
from tpuctl.errors import ExitCode, InvalidInputError, RemoteCommandError, TpuctlError
from tpuctl.output import syncs
from tpuctl.output.meter import Meter
from tpuctl.output.terminal import Format
from tpuctl.remote.syncing.tree import read_tree, worker_folder
from tpuctl.remote.syncing.values import Brought, Order, Synced, Via

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member
    from tpuctl.remote.syncing.tree import Tree

_HINT = "repeat the command: complete files are not sent again"
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Wish:
    """The source folder and the request. `home` is the home folder on this machine."""

    source: Path
    home: Path | None
    order: Order

    @classmethod
    def of(cls, app: App, source: Path, options: dict[str, Any]) -> Wish:
        """Build it from the command's options. Raises `InvalidInputError` for an empty `--to`."""
        from pathlib import Path  # noqa: PLC0415  # above it is imported for types only

        text = app.invocation.environ.get("HOME", "").rstrip("/")
        folder = options["folder"]
        if folder is None:
            folder = worker_folder(source)
        elif not folder.strip():
            raise InvalidInputError("`--to` is empty", hint="use a path on the workers: `--to '~/code'`")
        elif text and (folder == text or folder.startswith(text + "/")):
            # The local shell has expanded the tilde.
            folder = "~" + folder[len(text) :]
        order = Order(folder=folder, delete=options["delete"], dry_run=options["dry_run"], via=Via(options["via"]))
        return cls(source, Path(text) if text else None, order)

    def read(self) -> Tree:
        """List the files to send now."""
        return read_tree(self.source, home=self.home)


def once(app: App, find: Callable[[], Sequence[Member]], wish: Wish) -> int:
    """Sync once, and show the results. Raises `RemoteCommandError` if a worker failed."""
    tree = wish.read()
    _note(app, tree.notes)
    members, clock = find(), _clock(app)
    with (
        app.going_on("some workers do not have all files yet", resume=app.command_line()),
        Meter(app.terminal, clock) as meter,
    ):
        synced = sync(members, tree, wish.order, clock=clock, tell=meter, ssh_options=keeping(app))
    _show(app, synced, dry_run=wish.order.dry_run)
    _note(app, syncs.remarks(synced))
    if text := syncs.summary(synced, dry_run=wish.order.dry_run):
        app.terminal.note(text)
    if synced.failed:
        raise _failure(app, synced)
    if synced.unreadable:
        raise TpuctlError(_describe_unreadable(synced), hint="all other files are synced")
    return ExitCode.OK


def keep(app: App, find: Callable[[], Sequence[Member]], wish: Wish) -> int:
    """Sync continuously, with a line for each round with changes or errors. SIGTERM ends it with exit code 0."""
    from tpuctl.cli.signals import TerminatedError  # noqa: PLC0415  # it imports the tree

    try:
        with app.going_on("changes are no longer synced", resume=app.command_line()):
            clock = _clock(app)
            _note(app, wish.read().notes)
            problems: frozenset[str] | None = None
            for result in keep_synced(find, wish.read, wish.order, clock=clock, ssh_options=keeping(app)):
                if isinstance(result, Synced):
                    has_changes = any(not one.is_empty for one in result.succeeded)
                    if has_changes and app.format in {Format.JSON, Format.YAML}:
                        _show(app, result, dry_run=False)
                    if has_changes:
                        _note(app, syncs.remarks(result))
                    if result.succeeded and (has_changes or problems is None):
                        app.terminal.note(f"{clock.now().astimezone():%H:%M:%S} {syncs.summary(result)}")
                current = _problems(result)
                for text in sorted(current - (problems or frozenset())):
                    app.terminal.warn(f"{text}; retrying")
                problems = current
    except TerminatedError:
        app.terminal.note("terminated: the sync has ended, and the workers keep their files")
    return ExitCode.OK


def _problems(result: Synced | TpuctlError) -> frozenset[str]:
    """Return the problems of a round. The texts stay the same while the problem lasts."""
    if isinstance(result, TpuctlError):
        return frozenset({result.message})
    unreadable = {_describe_unreadable(result)} if result.unreadable else set()
    return frozenset({f"{_worker_text(member)}: {error.message}" for member, error in result.failed} | unreadable)


def _show(app: App, synced: Synced, *, dry_run: bool) -> None:
    terminal = app.terminal
    if app.format in {Format.JSON, Format.YAML}:
        terminal.data(syncs.to_json(synced, sandbox=app.is_sandbox, dry_run=dry_run), app.format)
    elif app.format is Format.NAME:
        terminal.names(one.member.label for one in synced.results if isinstance(one.outcome, Brought))
    elif dry_run:
        if changes := syncs.change_rows(synced):
            terminal.table(syncs.CHANGES_HEADER, changes)
    else:
        terminal.table(syncs.HEADER, syncs.rows(synced))


def _failure(app: App, synced: Synced) -> RemoteCommandError:
    """Return the error for the failed workers. If there are several causes, show each of them first."""
    from tpuctl.remote.failures import explain_failures, look_around  # noqa: PLC0415  # only for failures

    unreached = [(member, error.ssh_stderr) for member, error in synced.failed if error.ssh_stderr is not None]
    accepted = len(unreached) < len(synced.results)
    causes: list[RemoteCommandError] = []
    if unreached:
        causes += explain_failures(unreached, look_around(unreached[0][0], accepted_elsewhere=accepted))
    causes += [
        RemoteCommandError(f"{_worker_text(member)} was not synced: {error.message}", hint=_HINT)
        for member, error in synced.failed
        if error.ssh_stderr is None
    ]
    if len(causes) == 1:
        return causes[0]
    for cause in causes:
        app.show_error(cause)
    names = ", ".join(member.label for member, _ in synced.failed)
    return RemoteCommandError(
        f"{len(synced.failed)} of {len(synced.results)} workers were not synced: {names}", hint=_HINT
    )


def _describe_unreadable(synced: Synced) -> str:
    reasons = [f"`{syncs.readable(name)}`: {why}" for name, why in sorted(synced.unreadable.items())]
    more = f" and {len(reasons) - _MAX_SHOWN} more" if len(reasons) > _MAX_SHOWN else ""
    return f"{syncs.counted(len(reasons), 'file')} not sent: {', '.join(reasons[:_MAX_SHOWN])}{more}"


def _worker_text(member: Member) -> str:
    return f"worker {member.worker} of `{member.node.name.node_id}`"


def _note(app: App, texts: Iterable[str]) -> None:
    for text in texts:
        app.terminal.note(*syncs.readable(text).split("\n"))


def _clock(app: App) -> Clock:
    """Return the clock of this machine, also with a sandbox: files change and connections break in real time."""
    return app.invocation.clock or SystemClock()

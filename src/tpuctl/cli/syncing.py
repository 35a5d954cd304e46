"""What `tpuctl sync` does once it knows its workers: sync them, once or again and again, and show how it ended."""

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
    from tpuctl.remote.syncing.values import Tree

_HINT = "what has arrived is not sent again: give the command once more"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Wish:
    """What to send, and what for. `home` is this machine's."""

    source: Path
    home: Path | None
    order: Order

    @classmethod
    def of(cls, app: App, source: Path, options: dict[str, Any]) -> Wish:
        """Return what the options ask for. Raises `InvalidInputError` for a folder on the worker that cannot be meant."""
        from pathlib import Path  # noqa: PLC0415  # above it is imported for types alone

        text = app.invocation.environ.get("HOME", "").rstrip("/")
        folder = options["folder"]
        if folder is None:
            folder = worker_folder(source)
        elif not folder.strip():
            raise InvalidInputError("`--to` names no folder", hint="give a path on the workers, like `--to '~/code'`")
        elif text and (folder == text or folder.startswith(text + "/")):
            # The shell here has taken the tilde for its own.
            folder = "~" + folder[len(text) :]
        order = Order(folder=folder, delete=options["delete"], look=options["dry_run"], via=Via(options["via"]))
        return cls(source, Path(text) if text else None, order)

    def read(self) -> Tree:
        """Return what is to be sent now."""
        return read_tree(self.source, home=self.home)


def once(app: App, find: Callable[[], Sequence[Member]], wish: Wish) -> int:
    """Sync, and show how it ended. Raises `RemoteCommandError` where a worker does not have it all."""
    tree = wish.read()
    _note(app, tree.notes)
    members, clock = find(), _clock(app)
    with (
        app.going_on("the files have not arrived everywhere", resume=app.command_line()),
        Meter(app.terminal, clock) as meter,
    ):
        synced = sync(members, tree, wish.order, clock=clock, tell=meter, ssh_options=keeping(app))
    _show(app, synced, dry_run=wish.order.look)
    _note(app, syncs.remarks(synced))
    if said := syncs.summary(synced, dry_run=wish.order.look):
        app.terminal.note(said)
    if synced.failed:
        raise _failure(app, synced)
    if synced.left_out:
        raise TpuctlError(_left_out(synced), hint="all else has arrived")
    return ExitCode.OK


def keep(app: App, find: Callable[[], Sequence[Member]], wish: Wish) -> int:
    """Sync again and again, with a line for each round in which something was done or went wrong. SIGTERM is no failure."""
    from tpuctl.cli.signals import TerminatedError  # noqa: PLC0415  # it imports the tree

    try:
        with app.going_on("nothing is synced any more", resume=app.command_line()):
            _keep(app, find, wish, _clock(app))
    except TerminatedError:
        app.terminal.note("terminated: the sync ends, the workers keep what they have")
    return ExitCode.OK


def _keep(app: App, find: Callable[[], Sequence[Member]], wish: Wish, clock: Clock) -> None:
    _note(app, wish.read().notes)
    wrong: frozenset[str] | None = None
    for ending in keep_synced(find, wish.read, wish.order, clock=clock, ssh_options=keeping(app)):
        if isinstance(ending, Synced):
            _show_round(app, ending, clock, is_first=wrong is None)
        now_wrong = _wrong(ending)
        for text in sorted(now_wrong - (wrong or frozenset())):
            app.terminal.warn(f"{text}; it is tried again")
        wrong = now_wrong


def _show_round(app: App, synced: Synced, clock: Clock, *, is_first: bool) -> None:
    has_done = any(not one.is_nothing for one in synced.brought)
    if has_done and app.format in {Format.JSON, Format.YAML}:
        _show(app, synced, dry_run=False)
    if has_done:
        _note(app, syncs.remarks(synced))
    if synced.brought and (has_done or is_first):
        app.terminal.note(f"{clock.now().astimezone():%H:%M:%S} {syncs.summary(synced)}")


def _wrong(ending: Synced | TpuctlError) -> frozenset[str]:
    """Return what went wrong in a round, in words that stay the same while it does."""
    if isinstance(ending, TpuctlError):
        return frozenset({ending.message})
    left_out = {_left_out(ending)} if ending.left_out else set()
    return frozenset({f"{_place(member)}: {error.message}" for member, error in ending.failed} | left_out)


def _show(app: App, synced: Synced, *, dry_run: bool) -> None:
    terminal = app.terminal
    if app.format in {Format.JSON, Format.YAML}:
        terminal.data(syncs.to_json(synced, sandbox=app.is_sandbox, dry_run=dry_run), app.format)
    elif app.format is Format.NAME:
        terminal.names(ending.member.label for ending in synced.endings if isinstance(ending.brought, Brought))
    elif dry_run:
        if changes := syncs.change_rows(synced):
            terminal.table(syncs.CHANGES_HEADER, changes)
    else:
        terminal.table(syncs.HEADER, syncs.rows(synced))


def _failure(app: App, synced: Synced) -> RemoteCommandError:
    """Return what says which workers do not have the tree, after each cause has been told where there are several."""
    from tpuctl.remote.failures import explain_failures, look_around  # noqa: PLC0415  # only for failures

    unreached = [(member, error.ssh_said) for member, error in synced.failed if error.ssh_said is not None]
    got_in = len(unreached) < len(synced.endings)
    causes: list[RemoteCommandError] = []
    if unreached:
        causes += explain_failures(unreached, look_around(unreached[0][0], accepted_elsewhere=got_in))
    causes += [
        RemoteCommandError(f"{_place(member)} was not synced: {error.message}", hint=_HINT)
        for member, error in synced.failed
        if error.ssh_said is None
    ]
    if len(causes) == 1:
        return causes[0]
    for cause in causes:
        app.show_error(cause)
    names = ", ".join(member.label for member, _ in synced.failed)
    return RemoteCommandError(
        f"{len(synced.failed)} of {len(synced.endings)} workers were not synced: {names}", hint=_HINT
    )


def _left_out(synced: Synced) -> str:
    reasons = [f"`{syncs.readable(name)}`: {why}" for name, why in sorted(synced.left_out.items())]
    more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    return f"{syncs.counted(len(reasons), 'file')} not sent: {', '.join(reasons[:_SHOWN])}{more}"


def _place(member: Member) -> str:
    return f"worker {member.worker} of `{member.node.name.node_id}`"


def _note(app: App, texts: Iterable[str]) -> None:
    for text in texts:
        app.terminal.note(*syncs.readable(text).split("\n"))


def _clock(app: App) -> Clock:
    """Return the clock by which files change and links break: this machine's, whatever time it is in the sandbox."""
    return app.invocation.clock or SystemClock()

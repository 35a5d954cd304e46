"""The files of a whole job: those synced to the workers before it, and those collected after it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from tpuctl.actions.copying import download
from tpuctl.actions.sync import sync
from tpuctl.cli.keeping import keeping
from tpuctl.cli.syncing import Wish
from tpuctl.clock import SystemClock
from tpuctl.errors import InvalidInputError, NotFoundError, RemoteCommandError, TpuctlError
from tpuctl.escaping import visible
from tpuctl.output import syncs
from tpuctl.output.meter import Meter
from tpuctl.private import create_file
from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.copying.values import Tally
from tpuctl.remote.copying.values import Wish as Copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.remote.copying.values import Copied
    from tpuctl.remote.member import Member

# The default folder of libtpu's logs (Cloud TPU's troubleshooting guide).
_ALWAYS = ("/tmp/tpu_logs",)  # noqa: S108  # on the worker


def check_source(app: App, source: Path) -> None:
    """Raise what is wrong with a folder to sync, before a node is created for it."""
    _order(app, source).read()


def make_log_folder(log_folder: Path) -> None:
    """Create the folder for logs, before the node. Raises `InvalidInputError` if it is not writable."""
    try:
        log_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_logs(log_folder, (error.strerror or str(error)).lower()) from error
    if not os.access(log_folder, os.W_OK | os.X_OK):
        raise _no_logs(log_folder, "permission denied")


def log_folder(app: App, node: str) -> Path:
    """Return the default log folder of a node; git and sync ignore it. Raises `InvalidInputError`."""
    parent = app.invocation.folder / "tpuctl-logs"
    for path in (parent, parent / node):
        # In a cloned repository the link may lead anywhere, and the user did not choose its target.
        if path.is_symlink():
            raise _no_logs(path, "it is a symlink")
    try:
        parent.mkdir(exist_ok=True)
        with create_file(parent / ".gitignore") as file:
            file.write(b"*\n")
    except OSError as error:
        raise _no_logs(parent, (error.strerror or str(error)).lower()) from error
    return parent / node


def bring(app: App, members: Sequence[Member], folder: Path) -> str:
    """Sync a folder to the workers, and return its path there. Raises `RemoteCommandError` if it failed on one."""
    wish = _order(app, folder)
    tree, clock = wish.read(), SystemClock()
    with Meter(app.terminal, clock) as meter:
        synced = sync(members, tree, wish.order, clock=clock, tell=meter, ssh_options=keeping(app))
    if synced.failed:
        names = ", ".join(member.label for member, _ in synced.failed)
        reasons = "\n".join(sorted({visible(error.message) for _, error in synced.failed}))
        raise RemoteCommandError(f"syncing `{tree.folder}` failed on worker {names}", hint=reasons)
    if said := syncs.summary(synced, dry_run=False):
        app.terminal.note(said)
    return wish.order.folder


def collect(app: App, members: Sequence[Member], paths: Sequence[str], folder: Path) -> None:
    """Copy libtpu's logs and these paths from every worker. A failure is only a warning."""
    for path in (*_ALWAYS, *paths):
        try:
            copied = download(
                members,
                (path,),
                app.invocation.folder,
                str(folder),
                wish=Copy(recurse=True, preserve=True),
                tallies=[Tally() for _ in members],
                clock=SystemClock(),
            )
        except TpuctlError as error:
            app.terminal.warn(f"`{path}` was not collected: {error.message}")
            continue
        if any(one.files for one in copied):
            app.terminal.note(f"collected `{path}` into `{folder}`")
        is_unexpected = any(isinstance(one.error, UnexpectedAnswerError) for one in copied)
        if (path in paths or is_unexpected) and (why := _why_not(copied)):
            app.terminal.warn(f"`{path}` was not collected: {why}")
    for member in members:
        # Created for files that did not exist.
        with suppress(OSError):
            (folder / member.label).rmdir()


def _why_not(copied: Sequence[Copied]) -> str | None:
    """Return why a path was not copied completely; a path that only some workers have is no reason."""
    wrong = [one for one in copied if one.error and not isinstance(one.error, NotFoundError)]
    if wrong:
        labels = ", ".join(one.member.label for one in wrong)
        return f"{wrong[0].error.message if wrong[0].error else ''} (worker {labels})"
    if any(one.files for one in copied):
        return None
    return "no worker has it" if any(one.error for one in copied) else "it has no files"


def _order(app: App, folder: Path) -> Wish:
    return Wish.of(app, folder, {"folder": None, "delete": True, "dry_run": False, "via": "auto"})


def _no_logs(folder: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"no logs can be written to `{folder}`: {why}", hint="name another folder with `--log-dir`"
    )

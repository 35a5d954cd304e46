"""The files of a whole job: what its command finds on the workers, and what it leaves there."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tpuctl.actions.copying import download
from tpuctl.actions.sync import sync
from tpuctl.cli.keeping import keeping
from tpuctl.cli.syncing import Wish
from tpuctl.clock import SystemClock
from tpuctl.errors import RemoteCommandError, TpuctlError
from tpuctl.output import syncs
from tpuctl.output.meter import Meter
from tpuctl.remote.copying.values import Tally
from tpuctl.remote.copying.values import Wish as Copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tpuctl.cli.app import App
    from tpuctl.remote.member import Member


def bring(app: App, members: Sequence[Member], folder: Path) -> str:
    """Bring a folder to the workers, and return where it is there. Raises `RemoteCommandError` where one has not got it."""
    wish = Wish.of(app, folder, {"folder": None, "delete": True, "dry_run": False, "via": "auto"})
    tree, clock = wish.read(), SystemClock()
    with Meter(app.terminal, clock) as meter:
        synced = sync(members, tree, wish.order, clock=clock, tell=meter, ssh_options=keeping(app))
    if synced.failed:
        names = ", ".join(member.label for member, _ in synced.failed)
        reasons = "\n".join(sorted({error.message for _, error in synced.failed}))
        raise RemoteCommandError(f"`{tree.folder}` did not get to worker {names}", hint=reasons)
    if said := syncs.summary(synced, dry_run=False):
        app.terminal.note(said)
    return wish.order.folder


def collect(app: App, members: Sequence[Member], paths: Sequence[str], folder: Path) -> None:
    """Copy what there is of these paths from every worker. What cannot be copied is told; it changes nothing else."""
    for path in paths:
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
    for member in members:
        # Made for what there might have been.
        with suppress(OSError):
            (folder / member.label).rmdir()

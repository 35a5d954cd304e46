"""`tpuctl scp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import cli_command, fanout_option, worker_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.cli.app import App
    from tpuctl.remote.copying.addresses import Route
    from tpuctl.remote.copying.values import Wish
    from tpuctl.remote.member import Member
    from tpuctl.remote.onboard.copy_sending import Listing


@cli_command("scp")
@click.argument("places", metavar="SRC... DST", nargs=-1, required=True, type=click.UNPROCESSED)
@worker_option
@click.option("-r", "--recurse", is_flag=True, help="Copy folders with all that is in them.")
@click.option("-p", "--preserve", is_flag=True, help="Keep times and modes.")
@click.option(
    "-l",
    "--selector",
    metavar="KEY=VALUE",
    multiple=True,
    help="The nodes that have this label, as :PATH; may be repeated.",
)
@fanout_option("copies")
@click.option("--scp-flag", hidden=True, multiple=True, help="Of gcloud; refused: no scp is started.")
@reach_options
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
    """Copy files to all workers of a node, or from them.

    One side is NODE:PATH, USER@NODE:PATH, ZONE/NODE:PATH or several nodes A,B:PATH; with -l it is :PATH. On workers, a
    path begins in the login's home, and ~ and wildcards are expanded there. What comes from several workers goes into a
    folder for each: DST/0, DST/1, or DST/NODE-0 for several nodes.

    A file appears under its name once it is whole. The same command, given again, goes on where a broken one ended.

    \b
    Examples:
      tpuctl scp train.py config.yaml trainer:
      tpuctl scp -r data trainer:/mnt/disks/data --worker 0
      tpuctl scp 'trainer:/tmp/tpu_logs/*' logs
    """
    from tpuctl.actions.copying import look  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above
    from tpuctl.remote.copying.addresses import route  # noqa: PLC0415  # as above
    from tpuctl.remote.copying.values import Wish  # noqa: PLC0415  # as above

    if scp_flag:
        hint = "ssh's options go into `~/.ssh/config`; `-p`, `-r` and `--worker` are tpuctl's own"
        raise InvalidInputError("`--scp-flag` has nothing to act on: no `scp` is started, only `ssh`", hint=hint)
    way, workers = route(places, has_labels=bool(selector)), WorkerSet.parse(worker)
    wish, folder = Wish(recurse=recurse, preserve=preserve, fanout=fanout), app.invocation.folder
    listing = look(way.sources, folder, wish) if way.is_upload else None
    chosen = members(app, find_nodes(app, way.nodes, selector), workers)
    await_key(app, chosen)
    return _copy(app, way, chosen, listing, wish)


def _copy(app: App, way: Route, chosen: Sequence[Member], listing: Listing | None, wish: Wish) -> int:
    from tpuctl.actions.copying import download, upload  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.copied import show_copied  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.output.progress.copying import CopyLine  # noqa: PLC0415  # as above
    from tpuctl.remote.copying.values import Tally  # noqa: PLC0415  # as above

    tallies = [Tally() for _ in chosen]
    # Copies take real time, also in a sandbox that is quicker.
    clock = app.invocation.clock or SystemClock()
    going_on = "what has arrived is kept beside where it belongs, as `.NAME.tpuctl-…`"
    with app.going_on(going_on, resume=app.command_line()), CopyLine(app.terminal, clock, tallies):
        started = clock.monotonic()
        if listing is not None:
            copied = upload(chosen, listing, way.target, wish=wish, tallies=tallies, clock=clock)
        else:
            copied = download(
                chosen, way.sources, app.invocation.folder, way.target, wish=wish, tallies=tallies, clock=clock
            )
    return show_copied(app, copied, notes=listing.notes if listing else (), duration=clock.monotonic() - started)

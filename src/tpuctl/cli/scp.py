"""`tpuctl scp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import cli_command, fanout_option, worker_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from tpuctl.cli.app import App


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
    from tpuctl.actions.copying import download, look, upload  # noqa: PLC0415  # completion and --help do not need it
    from tpuctl.cli.copied import show_copied  # noqa: PLC0415  # as above
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above
    from tpuctl.output.progress.copying import CopyLine  # noqa: PLC0415  # as above
    from tpuctl.remote.copying.addresses import route  # noqa: PLC0415  # as above
    from tpuctl.remote.copying.values import Tally, Wish  # noqa: PLC0415  # as above

    if scp_flag:
        hint = "put options of ssh in `~/.ssh/config`; `-p`, `-r` and `--worker` are options of tpuctl"
        raise InvalidInputError("`--scp-flag` is not supported: tpuctl starts `ssh`, not `scp`", hint=hint)
    request, workers = route(places, has_labels=bool(selector)), WorkerSet.parse(worker)
    options, folder = Wish(recurse=recurse, preserve=preserve, fanout=fanout), app.invocation.folder
    listing = look(request.sources, folder, options) if request.is_upload else None
    chosen = members(app, find_nodes(app, request.nodes, selector), workers)
    await_key(app, chosen)
    tallies = [Tally() for _ in chosen]
    # Copies take real time, also in a sandbox with a faster clock.
    clock = app.invocation.clock or SystemClock()
    kept = "the received parts stay beside their destination, as `.NAME.tpuctl-…`"
    with app.going_on(kept, resume=app.command_line()), CopyLine(app.terminal, clock, tallies):
        started = clock.monotonic()
        if listing is not None:
            copied = upload(chosen, listing, request.target, wish=options, tallies=tallies, clock=clock)
        else:
            copied = download(
                chosen,
                request.sources,
                app.invocation.folder,
                request.target,
                wish=options,
                tallies=tallies,
                clock=clock,
            )
    return show_copied(app, copied, notes=listing.notes if listing else (), duration=clock.monotonic() - started)

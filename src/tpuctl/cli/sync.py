"""`tpuctl sync`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import cli_command, complete_node, worker_option
from tpuctl.cli.reach_options import reach_options
from tpuctl.errors import InvalidInputError
from tpuctl.userfile import expand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

    from tpuctl.cli.app import App
    from tpuctl.remote.member import Member


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the node first, then the folder."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only for completion

    if ctx.params.get("words"):
        return [CompletionItem(incomplete, type="dir")]
    return [CompletionItem(name) for name in complete_node(ctx, param, incomplete)]


@cli_command("sync")
@click.argument("words", metavar="[NODE] [DIR]", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete)
@click.option("--to", "folder", metavar="PATH", help="Folder on the workers. [default: ~/NAME-OF-DIR]")
@click.option(
    "-l",
    "--selector",
    metavar="KEY=VALUE",
    multiple=True,
    help="In place of NODE: the nodes that have this label; may be repeated.",
)
@worker_option
@click.option("--delete", is_flag=True, help="Delete on the workers what a sync put there and DIR no longer has.")
@click.option("--watch", is_flag=True, help="Go on, and sync whenever something has changed.")
@click.option("--dry-run", is_flag=True, help="List what would be sent and deleted; change nothing.")
@click.option(
    "--via",
    type=click.Choice(["auto", "rsync", "ssh"]),
    default="auto",
    show_default=True,
    help="How files travel; auto: by rsync where both ends have it, from 1 MB on.",
)
@reach_options
def command(app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, **options: Any) -> int:
    """Bring the files of DIR (this folder, if none is named) to every worker; only what differs is sent.

    In a git tree these are the files that git tracks or would track: never .git, nor what .gitignore names. Elsewhere all.
    Symlinks stay symlinks; empty folders are left out. A file on a worker is the old one or the new one, never half of it.
    What a worker had that no sync put there is never deleted; where it is replaced, a copy stays below ~/.tpuctl/sync.

    \b
    Examples:
      tpuctl sync trainer
      tpuctl sync trainer src --to '~/code/src' --delete
      tpuctl sync -l team=vision --watch
    """
    from tpuctl.cli.members import await_key, find_nodes, members  # noqa: PLC0415  # --help need not wait for it
    from tpuctl.cli.syncing import Wish, keep, once  # noqa: PLC0415  # as above
    from tpuctl.model.worker_set import WorkerSet  # noqa: PLC0415  # as above

    if options["watch"] and options["dry_run"]:
        raise InvalidInputError("`--watch` and `--dry-run` exclude each other", hint="leave one of them out")
    nodes, place = _split(app, words, selector)
    workers, wish = WorkerSet.parse(worker), Wish.of(app, place, options)

    def find() -> Sequence[Member]:
        found = members(app, find_nodes(app, nodes, selector), workers, only_looks=options["dry_run"])
        await_key(app, found)
        return found

    return keep(app, find, wish) if options["watch"] else once(app, find, wish)


def _split(app: App, words: tuple[str, ...], selector: tuple[str, ...]) -> tuple[tuple[str, ...], Path]:
    """Return the node that is named, and the folder."""
    nodes, rest = ((), words) if selector else (words[:1], words[1:])
    if not selector and not nodes:
        raise InvalidInputError(
            "which node?", hint="name it, or use `-l KEY=VALUE` for several: `tpuctl sync NODE [DIR]`"
        )
    if len(rest) > 1:
        raise InvalidInputError(
            "`tpuctl sync` takes one folder",
            hint="it is `tpuctl sync NODE [DIR]`, or `tpuctl sync -l KEY=VALUE [DIR]` for several nodes",
        )
    place = app.invocation.folder / expand(Path(rest[0])) if rest else app.invocation.folder
    if not place.exists():
        raise InvalidInputError(f"there is no folder `{place}`", hint="several nodes are chosen with `-l KEY=VALUE`")
    return nodes, place

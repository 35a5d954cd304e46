"""`tpuctl sync`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, option, takes_options, worker_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_folder, complete_label, complete_node

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the node first, then the folder."""
    if ctx.params.get("words"):
        return complete_folder(ctx, param, incomplete)
    return complete_node(ctx, param, incomplete)


@dataclass(frozen=True, slots=True)
class SyncFlags:
    """What to sync, and how."""

    delete: bool = option(
        "--delete", is_flag=True, help="Delete files that an earlier sync put on the workers and DIR no longer has."
    )
    watch: bool = option("--watch", is_flag=True, help="Keep running, and sync after every change.")
    dry_run: bool = option(
        "--dry-run",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="List the files to send and to delete, and change nothing.",
    )


@cli_command("sync")
@click.argument("words", metavar="[NODE] [DIR]", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete)
@grouped_option(
    "--to", "folder", group=OptionGroup.FILES, metavar="PATH", help="Folder on the workers. [default: ~/NAME-OF-DIR]"
)
@grouped_option(
    "-l",
    "--selector",
    group=OptionGroup.SELECTION,
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete_label,
    help="Label of the nodes to sync to, instead of NODE. Repeatable.",
)
@worker_option
@takes_options(SyncFlags, "flags", group=OptionGroup.FILES)
@route_options
@body_in("tpuctl.workers.commands.sync_run:run_sync")
def command() -> None:
    """Sync the files of DIR (default: the current folder) to every worker; only differences are sent.

    In a git tree, only files that git tracks or would track are sent: not .git, and no file that .gitignore names. Elsewhere,
    all files are sent. Symlinks stay symlinks; empty folders are skipped. Files are replaced atomically. Files that no sync put
    on a worker are never deleted; if one is replaced, a copy stays below ~/.tpuctl/sync.

    \b
    Examples:
      tpuctl sync trainer
      tpuctl sync trainer src --to '~/code/src' --delete
      tpuctl sync -l team=vision --watch
    """

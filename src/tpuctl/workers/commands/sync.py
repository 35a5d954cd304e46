"""`tpuctl sync`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, option, takes_options, worker_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_folder, complete_label, complete_node
from tpuctl.errors import InvalidInputError
from tpuctl.files import expand_user_path
from tpuctl.models.node import WorkerSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

    from tpuctl.app.app import App
    from tpuctl.ssh.connection import Target


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
def command(
    app: App, *, words: tuple[str, ...], folder: str | None, selector: tuple[str, ...], worker: str, flags: SyncFlags
) -> int:
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
    from tpuctl.workers.commands.node_selection import find_nodes  # noqa: PLC0415  # not needed by --help
    from tpuctl.workers.commands.sync_rendering import sync_continuously, sync_once  # noqa: PLC0415  # as above
    from tpuctl.workers.file_tree import read_tree  # noqa: PLC0415  # as above
    from tpuctl.workers.syncing import SyncRequest  # noqa: PLC0415  # as above
    from tpuctl.workers.targets import await_key, find_targets  # noqa: PLC0415  # as above

    if flags.watch and flags.dry_run:
        raise InvalidInputError("`--watch` and `--dry-run` exclude each other", hint="remove one of them")
    nodes, source = _parse_words(app, words, selector)
    home = app.invocation.environ.get("HOME", "").rstrip("/")
    workers = WorkerSet.parse(worker)
    request = SyncRequest(folder=_worker_folder(folder, source, home), delete=flags.delete, dry_run=flags.dry_run)
    read = partial(read_tree, source, app.invocation.environ)

    def find() -> Sequence[Target]:
        found = find_targets(app, find_nodes(app, nodes, selector), workers, read_only=request.dry_run)
        await_key(app, found)
        return found

    sync = sync_continuously if flags.watch else sync_once
    return sync(app, find, read, request)


def _parse_words(app: App, words: tuple[str, ...], selector: tuple[str, ...]) -> tuple[tuple[str, ...], Path]:
    """Return the named node (none with `-l`), and the folder."""
    nodes, rest = ((), words) if selector else (words[:1], words[1:])
    if not selector and not nodes:
        raise InvalidInputError(
            "no node is named", hint="use `tpuctl sync NODE [DIR]`, or `-l KEY=VALUE` for several nodes"
        )
    if len(rest) > 1:
        raise InvalidInputError(
            "`tpuctl sync` takes one folder",
            hint="use `tpuctl sync NODE [DIR]`, or `tpuctl sync -l KEY=VALUE [DIR]` for several nodes",
        )
    source = app.invocation.folder / expand_user_path(Path(rest[0])) if rest else app.invocation.folder
    if not source.exists():
        raise InvalidInputError(f"no such folder: `{source}`", hint="choose several nodes with `-l KEY=VALUE`")
    return nodes, source


def _worker_folder(folder: str | None, source: Path, home: str) -> str:
    """Return the folder on the workers. Raises `InvalidInputError`."""
    from tpuctl.workers.file_tree import default_worker_folder  # noqa: PLC0415  # --help does not need it

    if folder is None:
        return default_worker_folder(source)
    if not folder.strip():
        raise InvalidInputError("`--to` is empty", hint="use a path on the workers: `--to '~/code'`")
    # The local shell has expanded the tilde.
    return "~" + folder[len(home) :] if home and f"{folder}/".startswith(f"{home}/") else folder

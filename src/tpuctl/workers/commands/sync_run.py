"""The body of `tpuctl sync`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.files import expand_user_path
from tpuctl.models.node import WorkerSet
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.file_tree import default_worker_folder, read_tree
from tpuctl.workers.run_tree import run_command_after_sync
from tpuctl.workers.sync_rendering import sync_continuously, sync_once
from tpuctl.workers.syncing import SyncRequest
from tpuctl.workers.targets import await_key, find_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.commands.sync import SyncFlags


def run_sync(
    app: App, *, words: tuple[str, ...], folder: str | None, selector: tuple[str, ...], worker: str, flags: SyncFlags
) -> int:
    """Sync the files of DIR (default: the current folder) to every worker; only differences are sent."""
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

    if flags.watch:
        return sync_continuously(app, find, read, request)
    selection = [*nodes, *(word for label in selector for word in ("-l", label))]
    next_command = run_command_after_sync(app, selection, source, request.folder)
    return sync_once(app, find, read, request, next_command=next_command)


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
    if folder is None:
        return default_worker_folder(source)
    if not folder.strip():
        raise InvalidInputError("`--to` is empty", hint="use a path on the workers: `--to '~/code'`")
    # The local shell has expanded the tilde.
    return "~" + folder[len(home) :] if home and f"{folder}/".startswith(f"{home}/") else folder

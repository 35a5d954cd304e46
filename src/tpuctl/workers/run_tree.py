"""The tree of files that `tpuctl run` syncs to the workers first: which one, what of it is sent, where the command runs then.

Nothing is sent unless the current directory is in a tree, or the user names a folder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.clock import SystemClock
from tpuctl.command_text import join_command
from tpuctl.durations import format_size
from tpuctl.errors import ExitCode, InvalidInputError, NotConfirmedError, TpuctlError
from tpuctl.files import expand_user_path
from tpuctl.output.terminal import StatusLine
from tpuctl.workers.copy_progress import show_copies
from tpuctl.workers.file_tree import count_ignored, default_worker_folder, read_tree
from tpuctl.workers.sync_rendering import (
    counted,
    note_remarks,
    printable_name,
    sync_failure,
    sync_summary,
    unreadable_error,
)
from tpuctl.workers.syncing import SyncRequest, sync_workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.file_tree import FileTree
    from tpuctl.workers.runner import RunRequest
    from tpuctl.workers.syncing import SyncPlan, SyncResult

# More is sent only if the user agrees, or names the folder.
LARGEST_UNASKED = 10**9
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class RunTree:
    """A folder to sync. `below`: where in it the command runs; `is_approved`: the user named it, or has agreed to its size."""

    folder: Path
    below: PurePosixPath = field(default_factory=PurePosixPath)
    is_approved: bool = False

    @property
    def worker_folder(self) -> str:
        """The folder on the workers."""
        return default_worker_folder(self.folder)

    def run_folder(self, files: FileTree) -> str:
        """Return the folder on the workers in which the command runs: the nearest one that has files of the tree."""
        for below in (self.below, *self.below.parents):
            if below.name and any(entry.path.startswith(f"{below}/") for entry in files.entries):
                return f"{self.worker_folder}/{below}"
        return self.worker_folder


def find_run_tree(app: App, *, sync: str | None, no_sync: bool, workdir: str | None) -> RunTree | None:
    """Return the tree to sync: the folder `sync`; without it and without a `workdir` that of the current directory, if any.

    That is its git tree, else the folder of its `tpuctl.yaml`; never the home directory or `/`. Raises `InvalidInputError`.
    """
    here = app.invocation.folder.resolve()
    if sync is not None:
        if no_sync:
            raise InvalidInputError("`--sync` and `--no-sync` exclude each other", hint="leave one of them out")
        return _tree_at((here / expand_user_path(Path(sync))).resolve(), here, is_approved=True)
    if no_sync or workdir:
        return None
    home = app.invocation.environ.get("HOME")
    too_wide = {Path("/"), *([Path(home).resolve()] if home else [])}
    git_tree = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    if git_tree is not None and git_tree not in too_wide:
        return _tree_at(git_tree, here)
    file = None if app.names_project_file else app.project_file
    if file is not None and (folder := file.path.parent.resolve()) not in too_wide:
        return _tree_at(folder, here)
    if git_tree is not None:
        app.terminal.note(
            f"`{git_tree}` is a git tree and not synced as a whole: name a folder in it with `--sync DIR`"
        )
    return None


def _tree_at(folder: Path, here: Path, *, is_approved: bool = False) -> RunTree:
    below = here.relative_to(folder).as_posix() if here.is_relative_to(folder) else "."
    return RunTree(folder, PurePosixPath(below), is_approved)


def run_command_after_sync(app: App, selection: Sequence[str], source: Path, folder: str) -> str:
    """Return the command that runs something in a folder of the workers to which `source` was synced."""
    tree = find_run_tree(app, sync=None, no_sync=False, workdir=None)
    is_default = tree is not None and (tree.folder, tree.worker_folder) == (source.resolve(), folder)
    return join_command(["tpuctl", "run", *selection, *([] if is_default else ["--workdir", folder]), "--", "COMMAND"])


def approved(app: App, tree: RunTree) -> RunTree:
    """Return the tree with the agreement of the user to its size, before a node is created for it.

    Raises what is wrong with its folder, and `InvalidInputError` or `NotConfirmedError` if it is too large.
    """
    files = _read(app, tree)
    if not tree.is_approved:
        _approve_size(app, tree, files.size(range(len(files.entries))))
    return replace(tree, is_approved=True)


def sync_before_run(
    app: App, targets: Sequence[Target], tree: RunTree, request: RunRequest
) -> tuple[list[Target], RunRequest, ExitCode]:
    """Sync a tree to the workers. Return those to run on, the request with the folder, and the exit code of the others.

    A worker without the tree is left out, with an error, if the request allows that; with its whole node if only the workers
    of a node start together. Otherwise its error is raised. Says what is sent the first time, and later what has changed.
    """
    files = _read(app, tree)
    request = request if request.folder else replace(request, folder=tree.run_folder(files))
    with app.in_flight(
        "some workers do not have all files yet; the command was not started", resume=app.command_line()
    ):
        synced = _sync(app, targets, tree, files, where=request.folder or "")
    if synced.unreadable:
        raise unreadable_error(synced, hint="the command was not started; leave the files out with .gitignore")
    if not synced.failed:
        return [*targets], request, ExitCode.OK
    error = sync_failure(app, synced)
    failed = {target.label for target, _ in synced.failed}
    if not request.allow_unreachable:
        nodes = {target.node.name for target, _ in synced.failed} if request.by_node else None
        failed |= {target.label for target in targets if nodes is None or target.node.name in nodes}
    left = [target for target in targets if target.label not in failed]
    where = "there" if left else "on any worker"
    error.hint = "\n".join(filter(None, [f"the command was not started {where}", error.hint]))
    if not left:
        raise error
    app.show_error(error)
    return left, request, error.exit_code


def describe_tree(tree: RunTree, files: FileTree, *, to: str) -> list[str]:
    """Return what is sent of a tree, in a few lines; `to` says where to."""
    sizes = Counter({entry.path: entry.size for entry in files.entries})
    shown, size = printable_name(str(tree.folder)), format_size(sizes.total())
    lines = [f"sending `{shown}` to {to}: {counted(len(sizes), 'file')}, {size}; `--no-sync` sends nothing"]
    if len(sizes) > 1:
        largest = sizes.most_common(_MOST_NAMED)
        lines.append(
            f"  largest: {', '.join(f'`{printable_name(name)}` {format_size(size)}' for name, size in largest)}"
        )
    if ignored := count_ignored(tree.folder):
        lines.append(f"  left out: {counted(ignored, 'file or folder', 'files or folders')} that git ignores")
    return [*lines, *(f"  {printable_name(note)}" for note in files.notes)]


def _sync(app: App, targets: Sequence[Target], tree: RunTree, files: FileTree, *, where: str) -> SyncResult:
    """Sync to the workers, and say what is sent."""
    clock, options = app.invocation.clock or SystemClock(), shared_connection_options(app)
    request, lock = SyncRequest(folder=tree.worker_folder, delete=True), Lock()
    is_said = False
    if not tree.is_approved and files.size(range(len(files.entries))) > LARGEST_UNASKED:
        # Most of it may be there.
        planned = sync_workers(targets, files, replace(request, dry_run=True), clock=clock, ssh_options=options)
        _approve_size(app, tree, max((changes.size for _, changes in planned.succeeded), default=0))
    with StatusLine(app.terminal, clock) as line:

        def describe(plan: SyncPlan) -> None:
            nonlocal is_said
            with lock:
                if is_said or not plan.is_first:
                    return
                is_said = True
                line.clear()
                to = f"`{tree.worker_folder}` on {counted(len(targets), 'worker')}"
                app.terminal.note(*describe_tree(tree, files, to=to))
                if where != tree.worker_folder:
                    app.terminal.note(f"  the command runs in `{where}`")

        synced = sync_workers(
            targets,
            files,
            request,
            clock=clock,
            on_progress=show_copies(line, clock),
            ssh_options=options,
            on_plan=describe,
        )
    note_remarks(app, synced)
    if any(not changes.is_empty for _, changes in synced.succeeded) and (text := sync_summary(synced, request)):
        app.terminal.note(text)
    return synced


def _read(app: App, tree: RunTree) -> FileTree:
    """List the files of a tree. Raises why that is impossible: git is missing, or there is nothing to send."""
    try:
        return read_tree(tree.folder, app.invocation.environ)
    except TpuctlError as error:
        if not tree.is_approved:  # the user has not named the folder
            error.hint = "\n".join(filter(None, [error.hint, "run without the files of this tree: add `--no-sync`"]))
        raise


def _approve_size(app: App, tree: RunTree, size: int) -> None:
    """Ask before a large tree is sent. Raises `InvalidInputError` without a terminal, `NotConfirmedError` after a no."""
    if size <= LARGEST_UNASKED:
        return
    hint = "leave data out with .gitignore, name the folder with `--sync DIR`, or send nothing with `--no-sync`"
    if not app.terminal.may_ask:
        raise InvalidInputError(
            f"`{tree.folder}` has {format_size(size)} to send, and at most {format_size(LARGEST_UNASKED)} is sent unasked",
            hint=hint,
        )
    if not app.terminal.confirm(f"send {format_size(size)} of `{tree.folder}` to each worker?", yes=False):
        raise NotConfirmedError("nothing was sent", hint=hint)

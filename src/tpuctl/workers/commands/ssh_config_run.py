"""The body of `tpuctl ssh-config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import entries_file
from tpuctl.errors import InvalidInputError
from tpuctl.files import expand_user_path, output_path
from tpuctl.ssh.ssh_config import check_prefix, read_ssh_config
from tpuctl.workers.commands.ssh_config_writing import (
    new_entries,
    offer_include,
    remove_entries,
    show_entries,
    without_known_hosts,
    write_entries,
)

if TYPE_CHECKING:
    from tpuctl.app.app import App


def run_ssh_config(
    app: App,
    *,
    nodes: tuple[str, ...],
    all_nodes: bool,
    prefix: str | None,
    remove: bool,
    prints: bool,
    file: str | None,
    yes: bool,
) -> None:
    """Write ssh host entries for workers."""
    if nodes and all_nodes:
        raise InvalidInputError("cannot combine node names with `--all`", hint="use one of them")
    if not nodes and not all_nodes and (remove or prints):
        raise InvalidInputError("no node is named", hint="name the nodes, or use `--all`")

    path = entries_file(app)
    # The user's own file may be a link.
    if file is not None and app.invocation.folder / expand_user_path(Path(file)) != path:
        path = output_path(Path(file), app.invocation.folder)
    if not nodes and not all_nodes:
        show_entries(app, read_ssh_config(path).entries)
        return
    if remove:
        remove_entries(app, path, nodes)
        return
    old = () if prints else read_ssh_config(path).entries
    entries = new_entries(app, nodes, prefix=None if prefix is None else check_prefix(prefix), old=old)
    if all_nodes:
        entries = without_known_hosts(app, path, entries)
    if prints:
        for entry in entries:
            app.terminal.document(entry.text())
        return
    write_entries(app, path, entries)
    if file is None:
        offer_include(app, path, yes=yes)
    show_entries(app, entries)

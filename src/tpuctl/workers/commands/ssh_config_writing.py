"""The actions of `tpuctl ssh-config`: build, write, remove and show entries, and offer the Include line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import account_ssh_folder, cloud_label, entries_file, make_entry, ssh_folder
from tpuctl.command_text import command_word
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.files import real_path
from tpuctl.models.node import ALL_WORKERS
from tpuctl.names import parse_node_reference
from tpuctl.nodes.lookup import select_nodes
from tpuctl.nodes.selection import Selection
from tpuctl.output.terminal import Cell, table_view
from tpuctl.ssh.ssh_config import (
    UserHosts,
    add_include,
    change_ssh_config,
    check_host_conflicts,
    include_line,
    is_included,
    known_host,
    read_ssh_config,
)
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.targets import find_targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tpuctl.app.app import App
    from tpuctl.names import NodeName
    from tpuctl.ssh.ssh_config import SshConfigEntry, SshConfigText


def new_entries(
    app: App, nodes: Sequence[str], *, prefix: str | None, old: Iterable[SshConfigEntry]
) -> list[SshConfigEntry]:
    """Return the entries for the named nodes, or for all nodes that ssh can reach. Nodes in `old` keep their prefix.

    Raises the error of a named node. Without names, unreachable nodes are skipped with a note.
    """
    prefixes = {entry.name: entry.prefix for entry in old if entry.cloud == cloud_label(app)}
    entries = []
    for node in find_nodes(app, nodes) if nodes else select_nodes(app, Selection(is_all=True)).complete():
        try:
            connections = [target.connection for target in find_targets(app, [node], ALL_WORKERS)]
        except ConflictError as error:
            if nodes:
                raise
            app.terminal.note(f"skipped: {error.message}")
            continue
        kept = prefixes.get(node.name, "") if prefix is None else prefix
        entries.append(make_entry(app, node, connections, prefix=kept))
    return entries


def without_known_hosts(app: App, path: Path, entries: Sequence[SshConfigEntry]) -> list[SshConfigEntry]:
    """Leave out, with a warning, each entry with a host name that already means another host.

    For entries whose nodes the user did not name: others in the project chose these names.
    """
    taken = _user_hosts(app, path)
    found = {entry.name: known_host(entry, taken) for entry in entries}
    for name, known in found.items():
        if known is not None:
            app.terminal.warn(
                f"skipped: the ssh host `{known[0]}` is already used: {known[1]}",
                f"  `tpuctl ssh-config {command_word('node', name.node_id)} --prefix PREFIX` writes it under another name",
            )
    return [entry for entry in entries if found[entry.name] is None]


def _user_hosts(app: App, path: Path) -> UserHosts:
    files = (path.with_name("config"), path) if path == entries_file(app) else (path,)
    return UserHosts.read(*files, folder=ssh_folder(app.invocation.environ))


def write_entries(app: App, path: Path, entries: Sequence[SshConfigEntry]) -> None:
    """Write entries, which replace those of the same nodes. Raises `NameTakenError` before anything is written."""
    taken = _user_hosts(app, path)

    def with_entries(text: SshConfigText) -> SshConfigText:
        check_host_conflicts(entries, text.entries, taken)
        return text.changed(new=entries)

    change_ssh_config(path, with_entries)


def remove_entries(app: App, path: Path, nodes: Sequence[str]) -> None:
    """Remove the entries of nodes, which need not exist any more; without names, all entries of this cloud.

    Makes no request. Raises `NotFoundError` for a name without an entry, before anything is removed.
    """
    cloud = cloud_label(app)
    entries = [entry for entry in read_ssh_config(path).entries if entry.cloud == cloud]
    gone: dict[NodeName, SshConfigEntry] = {}
    for text in nodes or [str(entry.name) for entry in entries]:
        meant = parse_node_reference(text)
        found = [
            entry
            for entry in entries
            if entry.name.node_id == meant.node_id
            and (meant.zone or app.place.zone) in {None, entry.name.zone}
            and (meant.project or app.project) == entry.name.project
        ]
        if not found:
            hint = "`tpuctl ssh-config` lists the entries"
            raise NotFoundError(f"`{path}` has no entry for `{meant.node_id}`", hint=hint)
        gone |= {entry.name: entry for entry in found}
    change_ssh_config(path, lambda text: text.changed(without=gone.values()))
    show_entries(app, list(gone.values()))


def offer_include(app: App, path: Path, *, yes: bool) -> None:
    """Add the Include line to `~/.ssh/config` if it is missing and the user agrees; else print the line."""
    config, plain = path.with_name("config"), account_ssh_folder()
    is_plain = real_path(config.parent) == real_path(plain)
    if not is_included(config, path):
        line = include_line(path, home=plain.parent if is_plain else None)
        streams = app.invocation.streams
        may_ask = streams.stdin_is_terminal and not app.invocation.environ.get("CI")
        if (yes or may_ask) and app.terminal.confirm(f"add `{line}` at the top of {config}?", yes=yes):
            add_include(config, line)
        else:
            app.terminal.warn(
                f"{config} does not include the entries: add this as its first line, or repeat with `--yes`",
                f"  {line}",
            )
    if not is_plain:
        app.terminal.warn(
            f"HOME is not the home of this account, so plain ssh reads {plain}/config: "
            f"use `ssh -F {command_word('path', path)}`"
        )


def show_entries(app: App, entries: Sequence[SshConfigEntry]) -> None:
    """Show entries with their hosts and nodes."""
    rows = []
    for entry in entries:
        name, cloud = entry.name, entry.cloud.partition(" ")[0]
        texts = (entry.hosts[0], str(entry.workers), name.node_id, name.zone, name.project, cloud)
        rows.append(tuple(map(Cell, texts)))
    view = table_view(
        ("HOST", "WORKERS", "NODE", "ZONE", "PROJECT", "CLOUD"),
        rows,
        value=lambda: [
            {
                "nodeId": entry.name.node_id,
                "zone": entry.name.zone,
                "project": entry.name.project,
                "id": entry.id,
                "cloud": entry.cloud,
                "hosts": list(entry.hosts),
            }
            for entry in entries
        ],
        names=lambda: [host for entry in entries for host in entry.hosts],
        empty="no entries; write one with `tpuctl ssh-config NODE`",
        is_marked=False,
    )
    app.show(view)

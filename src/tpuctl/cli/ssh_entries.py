"""Entries of the ssh configuration: build them for nodes, refresh them after `up`, remove them after `down`."""

from __future__ import annotations

import pwd
from contextlib import contextmanager
from os import getuid
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.names import NodeName, NodeReference
    from tpuctl.remote.ssh import Connection
    from tpuctl.remote.ssh_config import Entry, Text

_FILE_NAME = "tpuctl_config"
# Shared options that are stored in an entry, and used again when it is rewritten.
_STORED_OPTIONS = ("user", "ssh_key", "iap", "internal_ip")


def ssh_folder(environ: Mapping[str, str]) -> Path:
    """Return the `.ssh` below HOME, which tpuctl uses. ssh itself uses the home of the account (`plain_ssh_folder`)."""
    home = environ.get("HOME")
    return (Path(home) if home else plain_ssh_folder().parent) / ".ssh"


def plain_ssh_folder() -> Path:
    """Return the folder where plain `ssh` looks for its configuration; it ignores HOME (ssh_config(5))."""
    try:
        return Path(pwd.getpwuid(getuid()).pw_dir) / ".ssh"
    except KeyError:  # a container may run with a user id that has no account
        return Path.home() / ".ssh"


def entries_file(app: App) -> Path:
    """Return the file of entries that `~/.ssh/config` includes."""
    return ssh_folder(app.invocation.environ) / _FILE_NAME


def cloud_of(app: App) -> str:
    """Return a label of this cloud, because other clouds may have nodes of the same names."""
    if app.is_sandbox:
        return f"sandbox {app.sandbox_path.absolute()}"
    return app.settings.text("endpoint") or "google"


def make_entry(app: App, node: Node, connections: Sequence[Connection], *, prefix: str) -> Entry:
    """Return the entry for a node, with the shared options that the user gave."""
    from tpuctl.remote.ssh_config import entry_of  # noqa: PLC0415  # most commands write no entry

    given = {key: app.settings[key] for key in _STORED_OPTIONS}
    options = {key: str(one.value) for key, one in given.items() if one and one.source.kind is SourceKind.FLAG}
    if "ssh_key" in options:
        # It may be relative to the current folder.
        options["ssh_key"] = str(connections[0].identity.absolute())
    return entry_of(node, connections, cloud=cloud_of(app), prefix=prefix, options=options)


def refresh(app: App, nodes: Iterable[Node]) -> None:
    """Rewrite the entries of nodes that have one, or of all nodes if the setting `ssh_config` is on.

    Each creation of a node changes its addresses, id and host keys. An error is only a warning, because the nodes are up.
    """
    from tpuctl.model import NodeState  # noqa: PLC0415  # --help and completion do not need it

    always = app.settings.is_on("ssh_config")
    usable = [node for node in nodes if node.state is NodeState.READY]
    if not usable or not (always or entries_file(app).exists()):
        return
    from tpuctl.remote.ssh_config import TakenNames, change, check_clashes, read  # noqa: PLC0415  # most have no entries

    path, cloud = entries_file(app), cloud_of(app)
    with _errors_as_warnings(app, "ssh configuration not refreshed"):
        old = {entry.name: entry for entry in read(path).entries if entry.cloud == cloud}
        found = [_rebuild_entry(app, node, old.get(node.name)) for node in usable if always or node.name in old]
        taken = TakenNames.read(path.with_name("config"), path, folder=path.parent)

        def with_refreshed(text: Text) -> Text:
            check_clashes(found, text.entries, taken)
            return text.changed(new=found)

        if found:
            change(path, with_refreshed)


def forget(app: App, names: Iterable[NodeName], absent: Iterable[NodeReference]) -> None:
    """Remove the entries of deleted nodes, and of names without a node in any zone."""
    path = entries_file(app)
    if not path.exists():
        return
    from tpuctl.remote.ssh_config import change  # noqa: PLC0415  # most users have no entries

    gone, cloud = set(names), cloud_of(app)
    nowhere = {(one.project or app.place.project, one.node_id) for one in absent}

    def is_gone(entry: Entry) -> bool:
        name = entry.name
        return entry.cloud == cloud and (name in gone or (name.project, name.node_id) in nowhere)

    with _errors_as_warnings(app, "ssh configuration entries not removed"):
        change(path, lambda text: text.changed(without=filter(is_gone, text.entries)))


def _rebuild_entry(app: App, node: Node, old: Entry | None) -> Entry:
    """Return a new entry for a node, with the options and the prefix of the old one."""
    if old is None or not old.options:
        return make_entry(app, node, app.workers.connections(node), prefix=old.prefix if old else "")
    other = app.again(dict(old.options))
    try:
        return make_entry(other, node, other.workers.connections(node), prefix=old.prefix)
    finally:
        other.close()


@contextmanager
def _errors_as_warnings(app: App, what: str) -> Iterator[None]:
    try:
        yield
    except TpuctlError as error:
        lines = (f"  {line}" for line in (error.hint or "").splitlines())
        app.terminal.warn(f"{what}: {error.message}", *lines)

"""Adding our ssh key to a node whose workers do not accept it yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.model import Node


def let_in(app: App, node: Node) -> None:
    """Make a node's workers accept our key: through the OS Login profile if they use OS Login, else in the node's metadata.

    Does nothing if the key is there, or in the project's metadata. Workers read a change within some seconds.
    """
    from tpuctl.remote.keys import with_key  # noqa: PLC0415  # only for nodes without our key

    entry = app.workers.key_entry(node)
    if entry is None:
        return
    now = app.clock.now()
    app.terminal.note(f"adding our ssh key to the metadata of `{node.name.node_id}`")
    app.client.change_metadata(
        node.name, lambda metadata: {**metadata, "ssh-keys": with_key(metadata.get("ssh-keys", ""), entry, now=now)}
    )
    app.workers.note_admission(node)

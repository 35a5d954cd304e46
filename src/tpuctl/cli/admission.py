"""Being let in by a node's workers: our key where the node has it not yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.remote.keys import with_key

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.model import Node


def let_in(app: App, node: Node) -> None:
    """Put our key into the node's metadata where it is missing: the node was made elsewhere."""
    entry = app.workers.key_entry()
    if entry is not None and with_key(node.metadata.get("ssh-keys", ""), entry) != node.metadata.get("ssh-keys", ""):
        app.terminal.note(f"adding our ssh key to the metadata of `{node.name.node_id}`")
        app.client.change_metadata(
            node.name, lambda metadata: {**metadata, "ssh-keys": with_key(metadata.get("ssh-keys", ""), entry)}
        )

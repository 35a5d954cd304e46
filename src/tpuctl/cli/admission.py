"""Being let in by a node's workers: our key where they do not know it yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.remote.keys import with_key

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.model import Node


def let_in(app: App, node: Node) -> None:
    """Have our key known to the workers: in the profile of OS Login where they use that, else in the node's metadata.

    Nothing is done where it is there, or in the project's metadata. Its workers learn of a change within some seconds.
    """
    entry = app.workers.key_entry(node)
    if entry is None:
        return
    now = app.clock.now()
    app.terminal.note(f"adding our ssh key to the metadata of `{node.name.node_id}`")
    app.client.change_metadata(
        node.name, lambda metadata: {**metadata, "ssh-keys": with_key(metadata.get("ssh-keys", ""), entry, now=now)}
    )
    app.workers.note_admission(node)

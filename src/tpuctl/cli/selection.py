"""Which nodes are chosen by label, or as all there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.actions.locate import incomplete
from tpuctl.cli.notation import pairs
from tpuctl.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.cli.app import App
    from tpuctl.names import NodeName


def select(app: App, nodes: Sequence[str], *, all_nodes: bool | None, labels: Sequence[str]) -> list[NodeName] | None:
    """Return the nodes that `--all` or `-l` choose now; nothing where nodes are named.

    A command that has no `--all` gives nothing for `all_nodes`.

    Raises `InvalidInputError` where nothing or too much chooses, `NotFoundError` where nothing is chosen, and
    `ServiceUnavailableError` where a zone could not be asked.
    """
    ways = sum((bool(nodes), bool(all_nodes), bool(labels)))
    if ways != 1:
        what = "which nodes?" if ways == 0 else "nodes are chosen in several ways"
        all_of_them = "" if all_nodes is None else "`--all`, or "
        raise InvalidInputError(what, hint=f"name them, or use {all_of_them}`-l KEY=VALUE`")
    if nodes:
        return None
    wanted = pairs("-l", tuple(labels))
    if labels and not wanted:
        # All nodes would match.
        raise InvalidInputError("`-l` names no label", hint="write `-l KEY=VALUE`")
    listing = app.client.list_nodes(app.project, app.zones)
    if listing.unreachable:
        raise incomplete(listing.unreachable)
    chosen = [node.name for node in listing.nodes if all(node.labels.get(key) == wanted[key] for key in wanted)]
    if not chosen:
        raise NotFoundError(f"no node of project {app.project} is meant", hint="run `tpuctl list` to see what there is")
    return chosen

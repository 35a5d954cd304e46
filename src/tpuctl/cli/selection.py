"""Selection of nodes by label, or of all nodes."""

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
    """Return the nodes that `--all` or `-l` select now; None if nodes are named.

    `all_nodes` is None for a command without `--all`. Raises `InvalidInputError` unless there is exactly one kind of selection,
    `NotFoundError` if no node matches, and `ServiceUnavailableError` if a zone did not answer.
    """
    kinds = sum((bool(nodes), bool(all_nodes), bool(labels)))
    if kinds != 1:
        what = "no nodes given" if kinds == 0 else "nodes are selected in several ways"
        all_option = "" if all_nodes is None else "`--all`, or "
        raise InvalidInputError(what, hint=f"name them, or use {all_option}`-l KEY=VALUE`")
    if nodes:
        return None
    wanted = pairs("-l", tuple(labels))
    if labels and not wanted:
        # Without a label all nodes would match.
        raise InvalidInputError("`-l` names no label", hint="write `-l KEY=VALUE`")
    listing = app.client.list_nodes(app.project, app.zones)
    if listing.unreachable:
        raise incomplete(listing.unreachable)
    chosen = [node.name for node in listing.nodes if all(node.labels.get(key) == wanted[key] for key in wanted)]
    if not chosen:
        raise NotFoundError(f"no node of project {app.project} matches", hint="run `tpuctl list` to see all nodes")
    return chosen

"""What a destructive command says first about nodes in use: who uses them, what for and since when. `--if-idle`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tpuctl.errors import ConflictError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.node_use import NodeUse

# A broken node must stay deletable: a question does not wait longer for its workers.
LOOK_TIMEOUT: Final = timedelta(seconds=5)


def use_in_question(app: App, nodes: Sequence[Node], *, if_idle: bool, yes: bool) -> str:
    """Return the beginning of a question about nodes in use; empty if they are idle, or if the user is not asked.

    Of several nodes it has their number, after a line for each one in use, those of others first.

    Raises `ConflictError` with `if_idle` unless all of them are known to be idle.
    """
    if not nodes or not (if_idle or (app.terminal.may_ask and not yes)):
        return ""
    from tpuctl.app.app import owner_identity  # noqa: PLC0415  # only for a question
    from tpuctl.nodes.expiry import owner_label  # noqa: PLC0415  # as above

    uses = find_node_uses(app, nodes)
    if if_idle:
        require_idle(nodes, uses)
    examined = [node for node in nodes if uses[node.name].uses or uses[node.name].was_examined]
    busy = [node for node in examined if not uses[node.name].is_idle]
    if len(nodes) == 1:
        return "".join(f"{describe_use(node, uses[node.name])}; " for node in busy)
    mine = owner_label(owner_identity(app))
    for node in sorted(busy, key=lambda node: node.owner == mine):
        app.terminal.note(describe_use(node, uses[node.name]))
    sure = sum(bool(uses[node.name].uses) for node in busy)
    counts = [f"{sure} in use"] * bool(sure) + [f"{len(busy) - sure} that may be in use"] * (sure < len(busy))
    return f"{' and '.join(counts)}: " if counts else ""


def require_free(app: App, nodes: Sequence[Node]) -> None:
    """Raise `ConflictError` if a node is known to be in use, is another user's, or is kept by its label.

    A node whose workers do not answer counts as free: a broken one must stay deletable.
    """
    from tpuctl.nodes.node_lookup import user_label  # noqa: PLC0415  # `node_lookup` imports much

    if not nodes:
        return
    uses, mine = find_node_uses(app, nodes), user_label(app)
    reasons = []
    for node in nodes:
        if uses[node.name].uses:
            reasons.append(describe_use(node, uses[node.name]))
        elif not node.owner or node.owner != mine:
            creator = f"was created by {node.owner}" if node.owner else "has no label that says who created it"
            reasons.append(f"`{node.name.node_id}` {creator}")
        elif node.is_kept:
            reasons.append(f"`{node.name.node_id}` is kept by its label `tpuctl-keep`")
    if reasons:
        raise ConflictError(
            reasons[0], details=reasons[1:], hint="nothing was done; pass `yes=True` to do it all the same"
        )


def find_node_uses(app: App, nodes: Sequence[Node], *, counts_leases: bool = True) -> Mapping[NodeName, NodeUse]:
    """Return what uses the nodes: what their workers report within 5 s, and other runs of tpuctl that hold their leases.

    A run that only keeps a node alive, such as `watch`, is no obstacle for one more command: see `counts_leases`.
    """
    from tpuctl.app.ssh_options import present_connection_options  # noqa: PLC0415  # as below
    from tpuctl.nodes.idle_workers import examine_uses  # noqa: PLC0415  # only if workers are asked

    uses = examine_uses(app.workers, nodes, LOOK_TIMEOUT, ssh_options=present_connection_options(app))
    if not counts_leases:
        return uses
    return {node.name: _with_lease(app, node.name, uses[node.name]) for node in nodes}


def describe_use(node: Node, use: NodeUse) -> str:
    """Return who uses a node in one line; empty if it is idle."""
    if use.is_idle:
        return ""
    created = f" (created by {node.owner})" if node.owner else ""
    verb = "is in use" if use.uses else "may be in use"
    return f"`{node.name.node_id}`{created} {verb}: {use.words}"


def use_details(use: NodeUse | None) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of what uses a node; nothing if its workers were not asked and no other run holds it."""
    lines = [] if use is None else [*use.uses, *([use.unknown] if use.unknown and use.was_examined else [])]
    for index, line in enumerate(lines):
        yield "" if index else "in use", line, "yellow"


def _with_lease(app: App, name: NodeName, use: NodeUse) -> NodeUse:
    """Return the use with the run of tpuctl that holds the lease; without an answer of its store that is unknown."""
    try:
        lease = app.leases.holder(name)
    except TpuctlError as error:
        return replace(use, unknown=use.unknown or f"the holder of its lease is unknown: {error.message}")
    return replace(use, uses=(*use.uses, str(lease))) if lease and not lease.record.ended else use


def require_idle(nodes: Sequence[Node], uses: Mapping[NodeName, NodeUse]) -> None:
    """Raise `ConflictError`, which says who uses them, unless all nodes are known to be idle."""
    busy = [text for node in nodes if (text := describe_use(node, uses[node.name]))]
    if busy:
        hint = "nothing was done; leave out `--if-idle` to do it all the same"
        raise ConflictError(busy[0], details=busy[1:], hint=hint)

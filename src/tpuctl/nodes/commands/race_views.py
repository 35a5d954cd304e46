"""What commands say of races that left several requests: who goes on with them, or how to end them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.nodes.lookup import list_requests
from tpuctl.nodes.race_rules import race_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName


def lease_holder(app: App, name: NodeName) -> str:
    """Return who works on a node, or why that is unknown; empty if it is free."""
    try:
        lease = app.services.leases.holder(name)
    except TpuctlError as error:
        return error.message
    return "" if lease is None or lease.record.ended else str(lease)


def sees_runs(app: App) -> bool:
    """Return whether the leases here are those of all runs that the journal has."""
    # A journal in a bucket has the runs of all machines, leases on this machine only its own.
    return bool(app.settings.text("lease")) or not app.settings.text("journal")


def race_lines(
    app: App, nodes: Sequence[Node], requests: Sequence[QueuedResource], *, only_killed: bool = False
) -> list[str]:
    """Return a line for each race that has living nodes or requests in several zones, of which one is wanted.

    With `only_killed` only for those that the journal here has as begun and not ended, and that no run holds.
    """
    from tpuctl.nodes.race import journaled_races  # noqa: PLC0415  # with the controller; most projects have no race

    lines = []
    for (node_id, race_id), names in race_members(app.project, nodes, requests).items():
        known = journaled_races(app.services.journal, names).get(race_id)
        holder = next(filter(None, (lease_holder(app, name) for name in names)), "")
        is_killed = known is not None and known.is_open and not holder and sees_runs(app)
        if len(names) < 2 or (only_killed and not is_killed):
            continue
        ends = f"`tpuctl up {node_id}` keeps one, `tpuctl down {node_id}` deletes all"
        whose = "a race that is not open in the journal here; where it was begun, " + ends
        if is_killed:
            whose = f"a race whose run has ended: {ends}"
        elif holder:
            whose = f"a race that goes on: {holder}"
        lines.append(f"`{node_id}` is requested in {', '.join(name.zone for name in names)} by {whose}")
    return lines


def race_lines_of(app: App, node_id: str) -> list[str]:
    """Return the lines of the races for one node; none if the API does not answer: they are extra information."""
    try:
        nodes, requests = (
            app.services.client.list_nodes(app.project).nodes,
            list_requests(app.services.client, app.project, ()),
        )
    except TpuctlError:
        return []
    own = [node for node in nodes if node.name.node_id == node_id]
    return race_lines(app, own, [one for one in requests.queued_resources if one.queued_resource_id == node_id])

"""Reading nodes: get and list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, faults, paging, rendering, resource_names
from tpuctl.sandbox.refusals import invalid, not_found

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import NodeRecord, Session


def get(session: Session, call: Call) -> Json:
    """Answer nodes.get."""
    return rendering.node(find(session, str(call.params["name"])), session.now, call.version)


def find(session: Session, name: str) -> NodeRecord:
    """Return an existing node. Raises `ApiError` 404, or 403 for an unknown zone."""
    where = resource_names.parse(name)
    catalog.check_location(where.project, where.zone)
    node = session.node(*where)
    if node is None or not session.exists(node):
        raise not_found(name)
    return node


def list_(session: Session, call: Call) -> Json:
    """Answer nodes.list for a zone, or for all with `locations/-`, ordered by zone and name.

    Every page names the unreachable zones in `unreachable`.
    """
    where = resource_names.parse(str(call.params["parent"]))
    everywhere = where.zone == resource_names.ANYWHERE
    if not everywhere:
        catalog.check_location(where.project, where.zone)
    place = paging.position(call)
    if place and len(place) != 2:
        raise invalid("The page token is not valid.")
    limit = paging.size(call)
    unreachable = faults.unreachable_zones(session, where.project, catalog.zones()) if everywhere else ()
    after = (place[0], place[1]) if place else ("", "")
    rows = session.nodes(where.project, zone=None if everywhere else where.zone, after=after, limit=limit + 1)
    shown: list[Json] = []
    last, next_token = after, ""
    for count, node in enumerate(rows):
        if count == limit:
            next_token = paging.token(*last)
            break
        last = (node.zone, node.node_id)
        if node.zone not in unreachable and session.exists(node):
            shown.append(rendering.node(node, session.now, call.version))
    answer: Json = {"nodes": shown} if shown else {}
    if unreachable:
        answer["unreachable"] = [f"projects/{where.project}/locations/{zone}" for zone in unreachable]
    return {**answer, "nextPageToken": next_token} if next_token else answer

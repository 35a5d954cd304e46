"""The rule about the node's name: whether another node or queued resource has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.names import short
from tpuctl.preflight import own_commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model import Node
    from tpuctl.names import NodeName
    from tpuctl.preflight.facts import Facts, Held
    from tpuctl.preflight.wanted import Wanted


@rule("TPU306", "name of the node free")
def name_is_free(facts: Facts) -> Iterator[Found]:
    """Find nodes and queued resources with the same name, in all zones.

    A warning for one in another zone, and for a live one in this zone: `up` uses it, and `create` refuses. A note for a dead
    record in this zone, which `up` deletes first. A note if the node itself exists and differs from the requested one: `up`
    recreates it only with `--replace`. The nodes and queued resources of the project are read once, and an error is reported
    here; the rules of quota and grants need them too. Zones that did not answer are `unknown`.
    """
    wanted = facts.wanted
    if not wanted.creates or facts.held is None:
        return
    subject = wanted.name.node_id if wanted.name else wanted.project
    match facts.held:
        case Known(held):
            found = [*_differing(wanted), *(_namesakes(wanted, wanted.name, held) if wanted.name else ())]
            yield from found
            if held.unreachable:
                zones = ", ".join(held.unreachable)
                does_not = "it does not" if len(held.unreachable) == 1 else "they do not"
                permission = f"`tpu.nodes.list` on project `{wanted.project}`"
                yield Found(
                    level=Level.UNKNOWN,
                    subject=subject,
                    text=f"the nodes in {zones} could not be read: {does_not} answer",
                    why="nodes there count against quota and grants, and may have the same name",
                    remedies=(Remedy(f"check again; reading it takes the permission {permission}"),),
                    facts={"unreachable": list(held.unreachable), "permission": "tpu.nodes.list"},
                    is_passing=True,
                )
            elif wanted.name and not found:
                text = f"the name `{subject}` is free"
                yield Found(level=Level.OK, subject=subject, text=text, facts={"nodeId": subject})
        case Absent() | Unknown() as fact:
            what = "the nodes and queued resources of the project, and their use of quota and grants,"
            yield unread(fact, subject, what, permission="tpu.nodes.list", project=wanted.project)


def _differing(wanted: Wanted) -> Iterator[Found]:
    """Yield how the existing node differs from the requested one."""
    node = wanted.replaces
    if node is None or node.state.is_dead:
        return
    differences = wanted.spec.differences(node)
    if differences:
        node_id = node.name.node_id
        yield Found(
            level=Level.NOTE,
            subject=node_id,
            text=f"`{node_id}` exists ({node.state}) and differs: {'; '.join(map(str, differences))}",
            why="`up` refuses it without `--replace`, which deletes the node and its boot disk",
            remedies=(Remedy("to recreate it", own_commands.again(wanted, more=("--replace",))),),
            facts={
                "nodeId": node_id,
                "zone": node.name.zone,
                "state": str(node.state),
                "differences": [difference.field for difference in differences],
            },
        )


def _namesakes(wanted: Wanted, name: NodeName, held: Held) -> Iterator[Found]:
    own = [node for node in (wanted.node, wanted.replaces) if node]
    for node in held.nodes:
        if node.name.node_id == name.node_id and not any(node.name == known.name for known in own):
            yield _of_node(wanted, node)
    seen = {node.name for node in held.nodes}
    owners = {node.queued_resource for node in own}
    for request in held.requests:
        # An existing node is reported instead of its request.
        is_there = any(there.zone == request.zone and there.node_id == name.node_id for there in seen)
        if request.owns(name.node_id) and not is_there and request.name not in owners:
            zone, node_id, is_dead = request.zone, name.node_id, request.state.is_dead
            request_id = short(request.name)
            will = "requested" if is_dead else "will create"
            command = own_commands.take_down(wanted.project, zone, node_id, all_nodes=len(request.node_ids) > 1)
            yield Found(
                level=Level.NOTE if is_dead else Level.WARNING,
                subject=node_id,
                text=f"the queued resource `{request_id}` in {zone} ({request.state}) {will} a node `{node_id}`",
                why="it has ended, and its record holds name and quota"
                if is_dead
                else "there may be two nodes with this name, each of them billed",
                remedies=(Remedy("delete the request if you do not need it", command),),
                facts={"nodeId": node_id, "zone": zone, "queuedResource": request_id, "state": str(request.state)},
            )


def _of_node(wanted: Wanted, node: Node) -> Found:
    zone, node_id, is_here = node.name.zone, node.name.node_id, node.name.zone == wanted.zone
    is_dead = node.state.is_dead
    what = f"the record of a dead node `{node_id}`" if is_dead else f"a node `{node_id}`"
    command = own_commands.take_down(wanted.project, zone, node_id)
    if is_here:
        what_up_does = "`up` deletes it first" if is_dead else "`up` uses it"
        why, advice = f"{what_up_does}; `create` refuses", "delete it first if you want a new one"
    else:
        why = "two nodes with the same name are easily confused, and each is billed"
        advice = "delete that one if you do not need it, or choose another name"
    return Found(
        level=Level.NOTE if is_dead else Level.WARNING,
        subject=node_id,
        text=f"{what} is in {zone} ({node.state})",
        why=why,
        remedies=(Remedy(advice, command),),
        facts={"nodeId": node_id, "zone": zone, "state": str(node.state)},
    )

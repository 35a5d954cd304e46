"""Which node a bundle is about. One that is gone has still left traces: in the journal, and among the operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.actions.locate import search
from tpuctl.errors import ConflictError, NodeNowhereError, TpuctlError
from tpuctl.names import NodeName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.bundling.questions import Questions
    from tpuctl.actions.locate import Finder, Place
    from tpuctl.model import Node
    from tpuctl.names import NodeReference


@dataclass(frozen=True, slots=True)
class Subject:
    """The node's name, the node if there is one, and else why not: an error, or nothing where the API says that it is gone."""

    name: NodeName
    node: Node | None
    error: TpuctlError | None = None


def find_subject(
    finder: Finder, place: Place, reference: NodeReference, known: Sequence[NodeName], questions: Questions
) -> Subject:
    """Return what a name means; `known` are the nodes that the journal has.

    Raises `ConflictError` where it means several, `NodeNowhereError` where neither the API nor the journal knows it, and why
    the API could not be asked where the journal does not know it either.
    """
    name = place.name(reference)
    node, failure = None, None
    try:
        node = questions.ask(lambda: finder.find_node(name) if name else search(finder, place, reference))
    except ConflictError:
        raise
    except TpuctlError as error:
        failure = error
    if node is not None:
        return Subject(node.name, node)
    if name is None:
        name = _remembered(place, reference, known)
    if name is None:
        raise failure or NodeNowhereError(reference.node_id, reference.project or place.project)
    return Subject(name, None, failure)


def _remembered(place: Place, reference: NodeReference, known: Sequence[NodeName]) -> NodeName | None:
    project = reference.project or place.project
    found = [name for name in known if (name.project, name.node_id) == (project, reference.node_id)]
    if len(found) > 1:
        zones = ", ".join(f"{name.zone}/{name.node_id}" for name in found)
        raise ConflictError(
            f"the journal knows {len(found)} nodes `{reference.node_id}`: {zones}",
            hint="name the zone: `--zone ZONE` or `ZONE/NODE`",
        )
    return found[0] if found else None

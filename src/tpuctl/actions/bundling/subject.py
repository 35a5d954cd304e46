"""The node of a bundle. A deleted node is still known to the journal and to its operations."""

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
    """The node of a bundle."""

    name: NodeName
    node: Node | None
    error: TpuctlError | None = None  # why there is no node; None if the API says that it does not exist


def find_subject(
    finder: Finder, place: Place, reference: NodeReference, known: Sequence[NodeName], questions: Questions
) -> Subject:
    """Find the node with a name; `known` are the nodes in the journal.

    Raises `ConflictError` if there are several, `NodeNowhereError` if neither the API nor the journal knows it, and the error
    of the API if the journal does not know it either.
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
        project = reference.project or place.project
        in_journal = [one for one in known if (one.project, one.node_id) == (project, reference.node_id)]
        if len(in_journal) > 1:
            zones = ", ".join(f"{one.zone}/{one.node_id}" for one in in_journal)
            raise ConflictError(
                f"the journal knows {len(in_journal)} nodes `{reference.node_id}`: {zones}",
                hint="name the zone: `--zone ZONE` or `ZONE/NODE`",
            )
        if not in_journal:
            raise failure or NodeNowhereError(reference.node_id, project)
        name = in_journal[0]
    return Subject(name, None, failure)

"""A node for one run: brought up before, and taken down after where this run made it, whatever happened in between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.actions.bring_up import bring_up
from tpuctl.actions.tear_down import find_target, tear_down
from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.events import EventKind, to_all
from tpuctl.model import REMOVAL_LABEL, NodeState
from tpuctl.names import NodeReference

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.actions.cloud import Cloud, Context
    from tpuctl.actions.locate import Place
    from tpuctl.actions.observation import Task
    from tpuctl.events import Event
    from tpuctl.model import Node
    from tpuctl.names import NodeName
    from tpuctl.readiness import Policy


class OneOff:
    """One node of one run. It remembers whether this run made the node: only then it may remove it.

    `was_taken_over`: an earlier run of the same spec made it, was to remove it, and did not; this run counts as its maker.
    `is_removed`: there is none any more, or soon; `was_deleted`: because this run asked for that.
    """

    def __init__(self, task: Task, found: Node | None, *, removes: bool) -> None:
        spec = task.spec.to_be_removed() if task.spec and removes else task.spec
        self._task = replace(task, spec=spec)
        self._node: Node | None = None
        self.was_there = found is not None
        mark = spec.labels.get(REMOVAL_LABEL) if spec else None
        self.was_taken_over = found is not None and mark is not None and found.labels.get(REMOVAL_LABEL) == mark
        self.was_made = self.was_taken_over
        self.is_removed = False
        self.was_deleted = False

    @property
    def name(self) -> NodeName:
        """The node's full name."""
        return self._task.name

    def note(self, event: Event) -> None:
        """Take notice of a creation, and of one that somebody else was quicker with; a listener for the events of the run."""
        if event.kind is EventKind.ACTION and event.data.get("verb") == "create":
            self.was_made = True
        elif event.data.get("exists"):
            self.leave()

    def leave(self) -> None:
        """Leave the node to another run, which made it or uses it."""
        self.was_made = self.was_taken_over = False

    def bring_up(self, context: Callable[[Callable[[Event], None]], Context], tell: Callable[[Event], None]) -> Node:
        """Bring the node up and return it. Raises what kept it from being usable."""
        (ending,) = bring_up(context(to_all(self.note, tell)), [self._task])
        if isinstance(ending, TpuctlError):
            raise ending
        if ending.node is None:
            raise ConflictError(f"`{self._task.name.node_id}` is gone again")
        self._node = ending.node
        return ending.node

    def remove(self, context: Context, place: Place, *, policy: Policy, wait: bool) -> None:
        """Delete the node that this run made; `is_removed` tells that it is gone, or about to be.

        With `wait` it returns once all of it is gone. Raises what keeps it from being deleted: then it bills on.
        """
        name = self._task.name
        target = find_target(context, place, NodeReference(name.node_id, name.zone, name.project))
        if target is None:
            self.is_removed = True
            return
        if self._node is not None and target.node is not None and target.node.id != self._node.id:
            raise ConflictError(
                f"`{name.node_id}` was made anew by somebody else, and is left alone",
                hint=f"see `tpuctl status {name.node_id}`",
            )
        (ending,) = tear_down(context, [target], policy, by="run", wait=wait)
        if isinstance(ending, TpuctlError):
            raise ending
        self.is_removed = self.was_deleted = True

    def is_left(self, cloud: Cloud) -> bool | None:
        """Tell whether the node that the run has used is there to stay; nothing where the API does not say."""
        try:
            node = cloud.find_node(self._task.name)
        except TpuctlError:
            return None
        return (
            node is not None
            and node.state is not NodeState.DELETING
            and (self._node is None or node.id == self._node.id)
        )

"""A node for one run: created before it, and deleted after it in any case if this run created the node."""

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
    """The node of one run. It records whether this run created the node: only then may the run delete it.

    `was_taken_over`: an earlier run of the same spec with `--rm` created it and did not delete it; this run counts as its
    creator. `is_removed`: the node does not exist, or soon will not; `was_deleted`: because this run deleted it.
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
        """Record a creation by this run, or that another client created the node first; a listener for the run's events."""
        if event.kind is EventKind.ACTION and event.data.get("verb") == "create":
            self.was_made = True
        elif event.data.get("exists"):
            self.leave()

    def leave(self) -> None:
        """Leave the node to another run, which created it or uses it."""
        self.was_made = self.was_taken_over = False

    def bring_up(self, context: Callable[[Callable[[Event], None]], Context], tell: Callable[[Event], None]) -> Node:
        """Bring the node up and return it. Raises why it is not usable."""
        (ending,) = bring_up(context(to_all(self.note, tell)), [self._task])
        if isinstance(ending, TpuctlError):
            raise ending
        if ending.node is None:
            raise ConflictError(f"`{self._task.name.node_id}` no longer exists")
        self._node = ending.node
        return ending.node

    def remove(self, context: Context, place: Place, *, policy: Policy, wait: bool) -> None:
        """Delete the node that this run created, and set `is_removed`.

        With `wait`, return only when the deletion is complete. Raises why the node is not deleted: then it is still billed.
        """
        name = self._task.name
        target = find_target(context, place, NodeReference(name.node_id, name.zone, name.project))
        if target is None:
            self.is_removed = True
            return
        if self._node is not None and target.node is not None and target.node.id != self._node.id:
            raise ConflictError(
                f"another client recreated `{name.node_id}`; leaving the new node untouched",
                hint=f"see `tpuctl status {name.node_id}`",
            )
        (ending,) = tear_down(context, [target], policy, by="run", wait=wait)
        if isinstance(ending, TpuctlError):
            raise ending
        self.is_removed = self.was_deleted = True

    def is_left(self, cloud: Cloud) -> bool | None:
        """Return whether the node of this run still exists and is not being deleted; None if the API does not answer."""
        try:
            node = cloud.find_node(self._task.name)
        except TpuctlError:
            return None
        return (
            node is not None
            and node.state is not NodeState.DELETING
            and (self._node is None or node.id == self._node.id)
        )

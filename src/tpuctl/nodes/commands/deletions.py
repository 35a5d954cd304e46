"""What `delete`, `down` and `queue cancel` do in the frame of a change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.nodes.commands.change_frame import Change, Chosen, show_refusals
from tpuctl.nodes.commands.request_views import find_named_request, nodes_of_request
from tpuctl.nodes.commands.selected_changes import DeletionChoice, describe_groups, select_groups, show_groups
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.deletion import delete_targets, existing_nodes, find_named, note_missing, search_place
from tpuctl.nodes.locate import IncompleteListError
from tpuctl.nodes.node_lookup import near_node, nothing_selected_error
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.rendering import deleted_view
from tpuctl.nodes.tear_down import DeletionTarget, absent_error, check_whole_request, distinct_targets, request_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tpuctl.models.node import Node
    from tpuctl.nodes.selection import Selection


@dataclass(kw_only=True)
class Deletion(Change[DeletionTarget]):
    """Delete nodes with the queued resources that own them, after every name was looked up, and wait until they are gone."""

    selection: Selection
    by: str  # the command
    is_strict: bool = False  # every name must exist, and something must match
    found: DeletionChoice = field(init=False)

    def find(self) -> DeletionChoice:
        """Return what the selection means."""
        app = self.app
        with app.progress(events=self.options.events) as progress:
            context = app.context(progress)
            if not self.selection.is_by_name:
                return select_groups(app, context, self.selection)
            references = [app.reference(name.text, allow_queued=True) for name in self.selection.names]
            targets, missing = find_named(app, context, references)
            return DeletionChoice(self.selection, targets=tuple(targets), missing=tuple(missing))

    def choose(self) -> Chosen[DeletionTarget]:
        """Find what is deleted, and note what is missing."""
        app, found = self.app, self.find()
        self.found = found
        if found.missing and self.is_strict:
            error = absent_error(found.missing[0], search_place(app))
            if near := near_node(app, found.missing[0]):
                error.hint = f"did you mean `{near.name.zone}/{near.name.node_id}`?\n{error.hint}"
            raise error
        if not (found.targets or found.missing or found.kept):
            if found.unreachable:
                raise IncompleteListError(found.unreachable)
            if self.is_strict:
                raise nothing_selected_error(app, self.selection)
            app.terminal.note(f"no node or queued resource of project {app.project} matches: {self.selection}")
        for target in found.targets:
            # Of a selection every node of a queued resource matches.
            check_whole_request(target, all_nodes=self.options.all_nodes or not self.selection.is_by_name)
        if self.options.dry_run:
            note_missing(app, found.missing, self.by)
        return Chosen(found.targets, unreachable=found.unreachable)

    def steps(self, items: Sequence[DeletionTarget]) -> Iterable[PlanStep]:
        """Return the deletions."""
        return [step for target in distinct_targets(items) for step in _plan_deletion(target)]

    def ask(self, items: Sequence[DeletionTarget]) -> None:
        """Show what a selection deletes, and ask."""
        if self._is_selection(items):
            show_groups(self.app, self.found)
        super().ask(items)

    def question(self, items: Sequence[DeletionTarget]) -> str:
        """Return what is deleted."""
        if self._is_selection(items):
            return f"delete {describe_groups(self.found, self.app.project)}"
        once = distinct_targets(items)
        what = ", ".join(f"{_description(target)} `{target.name.node_id}` in {target.name.zone}" for target in once)
        disks = sum(target.node is not None for target in once)
        also = {0: "", 1: ", with its boot disk"}.get(disks, ", with their boot disks")
        if racing := [f"{request.zone} ({request.state})" for target in once for request in target.other_requests]:
            also += f", and the requests of the same race in {', '.join(racing)}"
        return f"delete {what}{also}"

    def interrupted_nodes(self, items: Sequence[DeletionTarget]) -> Sequence[Node]:
        """Return the nodes that exist."""
        if self._is_selection(items):
            return self.found.nodes
        return list(chain.from_iterable(existing_nodes(self.app, target) for target in items))

    def _is_selection(self, items: Sequence[DeletionTarget]) -> bool:
        """Return whether these are what the selection matched, not what another client created meanwhile."""
        return bool(self.found.groups) and tuple(items) == self.found.targets

    def act(self, chosen: Chosen[DeletionTarget]) -> int:
        """Delete, and show what is gone. Return the exit code."""
        app, found = self.app, self.found
        deletion = delete_targets(
            app,
            chosen.items,
            found.missing,
            approve=self.ask,
            listen=lambda: app.progress(events=self.options.events),
            by=self.by,
            timeout=self.timeout,
            wait=self.options.wait,
            all_nodes=self.options.all_nodes,
            # A node that does not exist meets no condition.
            ends_creations=not self.selection.has_conditions,
            recheck=lambda target: found.recheck(app, target),
            still_meant=lambda current: found.require_selected(app, current),
        )
        errors = [result for _, result in deletion.results if isinstance(result, TpuctlError)]
        gone = [target.asked for target, result in deletion.results if not isinstance(result, TpuctlError)]
        is_only = len(errors) == 1 and not gone and not found.unreachable
        note_missing(app, deletion.missing, self.by)
        absent = [reference.node_id for reference in deletion.missing] if self.by == "down" else []
        app.show(deleted_view([*gone, *absent]))
        if is_only:
            raise errors[0]
        return show_refusals(app, errors)


@dataclass(kw_only=True)
class RequestDeletion(Deletion):
    """Delete queued resources. Asks only about those whose nodes exist."""

    by: str = "queue cancel"

    def find(self) -> DeletionChoice:
        """Return the queued resources of the names, each with the first of its nodes that exists."""
        targets = distinct_targets(self._targets())
        return DeletionChoice(self.selection, targets=tuple(targets))

    def _targets(self) -> Iterator[DeletionTarget]:
        for name in self.selection.names:
            reference = self.app.reference(name.text, allow_queued=True)
            request = find_named_request(self.app, reference)
            nodes = nodes_of_request(self.app, request, reference)
            yield request_target(request, tuple(nodes.values()), reference, reference.project or self.app.project)

    def question(self, items: Sequence[DeletionTarget]) -> str:
        """Return which nodes are deleted with their requests."""
        what = ", ".join(
            f"the queued resource `{target.request.queued_resource_id}` ({target.request.state}) with its node "
            f"`{target.node.name.node_id}` ({target.node.state})"
            for target in items
            if target.request and target.node
        )
        return f"delete {what} and all data on it" if what else ""

    def interrupted_nodes(self, items: Sequence[DeletionTarget]) -> Sequence[Node]:
        """Return the nodes of requests that have one."""
        return super().interrupted_nodes([target for target in items if target.node])


def _plan_deletion(target: DeletionTarget) -> tuple[PlanStep, ...]:
    """Return the steps that delete a target."""
    if target.other_requests:
        reason = "requested by the same race"
        others = (
            PlanStep(Verb.DELETE, replace(target.name, zone=one.zone), reason, one.name)
            for one in target.other_requests
        )
        return (*others, *_plan_deletion(replace(target, race=None)))
    description = _description(target).removesuffix(" of")
    steps = [
        PlanStep(Verb.DELETE, target.name, description, request.name, force=not request.state.is_dead)
        for request in target.requests
    ]
    is_own_step = target.has_own_node or not steps
    return (*steps, PlanStep(Verb.DELETE, target.name, description)) if is_own_step else tuple(steps)


def _description(target: DeletionTarget) -> str:
    """Return in words what is deleted."""
    kept = ", kept by its label `tpuctl-keep`" if target.node and target.node.is_kept else ""
    node = f"the {target.node.accelerator_type} node ({target.node.state}{kept})" if target.node else ""
    if target.request is None:
        return node
    request = f"the queued resource `{target.request.queued_resource_id}` ({target.request.state})"
    if len(target.request.node_ids) > 1:
        request += f" for {', '.join(target.request.node_ids)}"
    if target.next_request and node:
        node += f" and the queued resource `{target.next_request.queued_resource_id}` ({target.next_request.state}) of"
    return f"{request} with {node}" if node else f"{request} of"

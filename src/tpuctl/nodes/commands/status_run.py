"""The body of `tpuctl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.live_view import watch_view
from tpuctl.errors import ConflictError, NodeNotFoundError, NodeNotInProjectError, TpuctlError
from tpuctl.models.node import Node
from tpuctl.models.spec import RACE_LABEL
from tpuctl.nodes.commands.race_views import race_lines_of
from tpuctl.nodes.costs import CostFacts, node_costs
from tpuctl.nodes.lookup import IncompleteListError, find_request, nothing_selected_error, select_nodes_and_requests
from tpuctl.nodes.node_guard import describe_guard
from tpuctl.nodes.queue_rendering import request_details, state_begin, waiting_json, waiting_row
from tpuctl.nodes.rendering import NODE_COLUMNS, node_details, node_rows, nodes_json
from tpuctl.output.tables import choose_columns
from tpuctl.output.terminal import View
from tpuctl.prices import price_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tpuctl.app.app import App
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.kept_jobs import KeptJob
    from tpuctl.nodes.selection import Selection
    from tpuctl.output.terminal import Cell, Terminal


def run_status(app: App, *, selection: GivenSelection, watch: bool) -> int | None:
    """Show all details of nodes: state, health, workers, addresses, symptoms, maintenance, queued resource."""
    if not watch:
        _show_status(app, selection)
        return None
    return watch_view(app, lambda look: _show_status(look, selection))


def _show_status(app: App, selection: GivenSelection) -> None:
    """Show the details once."""
    found, silent = _find_all(app, selection.parse(app))

    def show(terminal: Terminal) -> None:
        nodes_found = [each for each in found if isinstance(each, Node)]
        uses: dict[NodeName, list[tuple[str, str, str]]] = {}
        chips: Iterable[tuple[str, str, str]] = ()
        if terminal.is_interactive:
            from tpuctl.nodes import usage  # noqa: PLC0415  # only if workers are asked

            found_uses = usage.find_node_uses(app, nodes_found)
            uses = {name: [*usage.use_details(use)] for name, use in found_uses.items()}
            if len(found) == len(nodes_found) == 1:
                chips = usage.chip_details(app, nodes_found[0], found_uses.get(nodes_found[0].name))
        for index, each in enumerate(found):
            if index:
                terminal.write("")
            terminal.details((*_details(app, each, uses), *chips))

    def show_rows(terminal: Terminal) -> None:
        layout = choose_columns(NODE_COLUMNS, None, sort=None, is_wide=False)
        layout.write(terminal, [row for each in found for row in _rows(app, each)])

    app.show(
        View(
            value=lambda: [value for each in found for value in _json(app, each)],
            names=lambda: [
                f"{each.name.zone}/{each.name.node_id}" if isinstance(each, Node) else each.short_name for each in found
            ],
            text=show,
            tsv=show_rows,
        )
    )
    for node_id in [_node_id(each) for each in found if RACE_LABEL in each.labels]:
        past = [app.services.journal.past(name) for name in app.services.journal.namesakes(app.project, node_id)]
        if any(not race.is_over for one in past for race in one.races.values()):
            for line in race_lines_of(app, node_id):
                app.terminal.note(line)
    if silent:
        raise IncompleteListError(silent)


def _node_id(found: Node | QueuedResource) -> str:
    return found.name.node_id if isinstance(found, Node) else found.queued_resource_id


def _find_all(app: App, selection: Selection) -> tuple[list[Node | QueuedResource], tuple[str, ...]]:
    """Return the nodes of a selection, the queued resources without a node that match, and the zones that did not answer.

    Raises `NotFoundError` if there is none.
    """
    if selection.is_by_name:
        return [_find(app, name.text) for name in selection.names], ()

    nodes, requests, silent = select_nodes_and_requests(app, selection)
    if not nodes and not requests:
        raise IncompleteListError(silent) if silent else nothing_selected_error(app, selection)
    return [*nodes, *requests], silent


def _find(app: App, text: str) -> Node | QueuedResource:
    """Return the node of a name; if it does not exist, the queued resource that requests it."""
    try:
        return _find_one(app, text)
    except ConflictError as error:
        error.hint = "\n".join(filter(None, (error.hint, *race_lines_of(app, app.reference(text).node_id))))
        raise


def _find_one(app: App, text: str) -> Node | QueuedResource:
    try:
        return app.services.find(text)
    except (NodeNotFoundError, NodeNotInProjectError):
        reference = app.reference(text)
        try:
            request = find_request(app.services.client, app.place, reference)
        except ConflictError:
            raise  # there are several: those of a race
        except TpuctlError:
            # The user may see nodes only: the node is absent all the same.
            request = None
        if request is None or not request.owns(reference.node_id):
            raise
        return request


def _details(
    app: App, found: Node | QueuedResource, uses: Mapping[NodeName, Iterable[tuple[str, str, str]]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the details of a node, what uses it and the queued resource that owns it, or of the queued resource alone."""
    if isinstance(found, Node):
        yield from node_details(found, app.now())
        yield from uses.get(found.name, ())
        request = _owner(app, found)
        if guard := describe_guard(app.services.journal.past(found.name), found, app.now()):
            yield "guard", guard, ""
        yield "cost", _cost_words(app, found, request), ""
        for job in _kept_jobs(app, found):
            yield "job", job.words, ""
        if request:
            yield "queued", f"{request.queued_resource_id} {request.state}", ""
        return

    begin = state_begin(app.services.journal, found, app.project)
    yield from request_details(found, begin, app.now(), nodes={}, project=app.project)


def _kept_jobs(app: App, node: Node) -> list[KeptJob]:
    """Return the jobs of `run --keep` of a node: those that are not over, and the one that began last."""
    jobs = [place.job for place in app.services.journal.kept_jobs(node.name.project, node.name.node_id)]
    return [job for job in jobs if job.outcome is None or job is jobs[-1]]


def _cost_words(app: App, node: Node, request: QueuedResource | None) -> str:
    """Return what a node costs for an hour and has cost so far, and where the prices are from."""
    facts = CostFacts(app.now(), (request,) if request else (), app.settings.grants(), app.services.journal.past)
    (cost,) = node_costs([node], facts)
    note = f", {cost.note}" if cost.note else ""
    return f"{cost.per_hour.short}/h · {cost.so_far.short} so far ({price_source()}{note})"


def _owner(app: App, node: Node) -> QueuedResource | None:
    """Return the queued resource that owns a node; None also if it cannot be fetched: it is only extra information."""
    try:
        return app.services.client.get_queued_resource(node.queued_resource) if node.queued_resource else None
    except TpuctlError:
        return None


def _json(app: App, found: Node | QueuedResource) -> list[dict[str, Any]]:
    """Return the JSON of a node, or of the queued resource that requests it."""
    if isinstance(found, Node):
        request = _owner(app, found)
        values = nodes_json(app, [found], (request,) if request else (), app.services.journal.past)
        jobs = [job.to_json() for job in _kept_jobs(app, found)]
        return [{**value, **({"keptJobs": jobs} if jobs else {})} for value in values]

    return [waiting_json(found, app.project, app.now())]


def _rows(app: App, found: Node | QueuedResource) -> list[tuple[Cell, ...]]:
    if isinstance(found, Node):
        return node_rows([found], app.now())

    return [waiting_row(found, app.now())]

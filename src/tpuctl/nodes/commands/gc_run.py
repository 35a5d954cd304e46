"""The body of `tpuctl gc`: what it finds, shows and deletes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import close_shared_connections, remove_ssh_entries
from tpuctl.errors import ExitCode, InvalidInputError, worst_exit_code
from tpuctl.models.billing import billed_tier, covering_grants
from tpuctl.models.node import NodeState
from tpuctl.nodes.commands.race_views import lease_holder, race_lines, sees_runs
from tpuctl.nodes.commands.selection_options import shortest_age
from tpuctl.nodes.garbage import GarbageFacts, GarbageRules, busy_candidates, find_garbage, idle_candidates
from tpuctl.nodes.garbage_removal import RemovalOutcome, remove_garbage
from tpuctl.nodes.garbage_rendering import GARBAGE_COLUMNS, garbage_json, garbage_row, left_lines, sum_line
from tpuctl.nodes.lookup import IncompleteListError, list_requests
from tpuctl.nodes.policies import deadline, within_deadline
from tpuctl.nodes.race import find_lost_requests
from tpuctl.nodes.selection import parse_label_conditions
from tpuctl.nodes.usage import find_idleness
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.commands.gc import GarbageOptions
    from tpuctl.nodes.garbage import GarbageItem, Idleness
    from tpuctl.nodes.garbage_removal import RemovalResult
    from tpuctl.nodes.race import LostRequests
    from tpuctl.nodes.resource_group import ResourceGroup
    from tpuctl.output.terminal import Terminal


def run_gc(
    app: App,
    *,
    options: GarbageOptions,
    selector: tuple[str, ...],
    timeout: timedelta | str | None,
    events: str | None,
) -> int:
    """Show what is dead or forgotten in all zones, with what it costs and holds of the quota; with --yes delete it."""
    if options.yes and options.dry_run:
        raise InvalidInputError("`--yes` and `--dry-run` exclude one another", hint="leave out one of them")
    limit, rules = deadline(app, timeout), _rules(app, options, selector)
    with within_deadline(app, limit):
        facts = _fetch(app, rules, is_deleting=options.yes)
    items = find_garbage(facts, rules, app.now())
    wanted = [item for item in items if item.is_deleted]
    code: int = ExitCode.OK
    if options.yes and wanted:
        code = _delete(app, items, rules, timeout=limit, events=events)
    else:
        _show(app, items)
        _note_left(app, items)
        if wanted:
            _note_sum(app, wanted, f"to delete: {len(wanted)}", then=_confirming_command(app))
        elif not items:
            where = ", ".join(app.zones) or "any zone"
            app.terminal.note(f"nothing to delete in {where} of project {app.project}")
    for line in race_lines(app, facts.nodes, facts.requests, only_killed=True):
        app.terminal.note(line)
    if facts.unreachable:
        error = IncompleteListError(sorted(facts.unreachable))
        if code == ExitCode.OK:
            raise error
        app.show_error(error)
    return code


def _rules(app: App, options: GarbageOptions, selector: tuple[str, ...]) -> GarbageRules:
    """Return the rules that the options name. Raises `InvalidInputError` for a duration below a minute."""
    return GarbageRules(
        expired=options.expired,
        older_than=shortest_age("--older-than", options.older_than, "3d"),
        idle=shortest_age("--idle", options.idle, "1d"),
        waiting_for=shortest_age("--waiting-for", options.waiting_for, "6h"),
        everyones=options.everyones,
        owner=app.services.owner_label,
        labels=parse_label_conditions(selector),
        if_idle=options.if_idle,
    )


def _fetch(app: App, rules: GarbageRules, *, is_deleting: bool) -> GarbageFacts:
    """Return nodes and queued resources, the leases of what would be deleted, and whether workers are idle that must be.

    Without `is_deleting` also who uses the READY nodes of others that would be deleted.
    """
    client, project, zones = app.services.client, app.project, app.zones
    nodes, requests = client.list_nodes(project, zones), list_requests(client, project, zones)
    races = _find_lost(app, nodes.nodes, requests.queued_resources)
    tiers = {node.name: billed_tier(node, requests.queued_resources) for node in nodes.nodes}
    facts = GarbageFacts(
        project=project,
        nodes=nodes.nodes,
        requests=requests.queued_resources,
        unreachable=frozenset((*nodes.unreachable, *requests.unreachable)),
        covered=tuple(covering_grants(nodes.nodes, tiers, app.settings.grants(), app.now().date())),
        lost=races.lost,
        unproven=frozenset(name for name in races.unproven if not lease_holder(app, name)),
    )
    wanted = [item.group for item in find_garbage(facts, rules, app.now()) if item.is_deleted]
    asked = idle_candidates(facts, rules, app.now())
    holders = ((name, lease_holder(app, name)) for group in (*wanted, *asked) for name in group.names)
    facts = replace(facts, leases={name: holder for name, holder in holders if holder})
    # What is deleted all the same is not asked.
    busy = busy_candidates(facts, rules, app.now()) if rules.if_idle or not is_deleting else ()
    return replace(facts, idleness=_examine(app, [*idle_candidates(facts, rules, app.now()), *busy]))


def _find_lost(app: App, nodes: Sequence[Node], requests: Sequence[QueuedResource]) -> LostRequests:
    """Return what lost a race that is over, according to the journal. Leases are still to be checked."""
    return find_lost_requests(
        app.services.journal, app.project, nodes, requests, now=app.now(), sees_runs=sees_runs(app)
    )


def _lost_now(app: App) -> Mapping[NodeName, str]:

    client, project = app.services.client, app.project
    return _find_lost(app, client.list_nodes(project).nodes, list_requests(client, project, ()).queued_resources).lost


def _delete(
    app: App, items: Sequence[GarbageItem], rules: GarbageRules, *, timeout: timedelta | None, events: str | None
) -> int:
    """Delete the items, show the outcomes, and return the exit code."""
    wanted = [item for item in items if item.is_deleted]
    with (
        app.in_flight("the deletions that were requested continue", resume=app.command_line()),
        app.progress(events=events) as progress,
    ):
        results = remove_garbage(
            app.services.context(progress),
            wanted,
            rules,
            examine=lambda group: _examine(app, [group]),
            find_lost=lambda: _lost_now(app),
            timeout=timeout,
        )
    deleted = [result.item for result in results if result.outcome is RemovalOutcome.DELETED]
    nodes = [node for item in deleted for node in item.group.nodes]
    close_shared_connections(app, nodes)
    remove_ssh_entries(app, [node.name for node in nodes], [])
    _show(app, items, results)
    kept = {
        result.item.group.label: result.text
        for result in results
        if result.outcome in {RemovalOutcome.LEFT, RemovalOutcome.GONE}
    }
    _note_left(app, items, kept)
    _note_sum(app, deleted, f"deleted: {len(deleted)}")
    errors = [result.error for result in results if result.error is not None]
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK


def _examine(app: App, groups: Sequence[ResourceGroup]) -> Mapping[NodeName, Idleness]:
    """Return whether the workers of groups are idle."""
    nodes = [node for group in groups for node in group.nodes if node.state is NodeState.READY]
    return find_idleness(app, nodes)


def _show(app: App, items: Sequence[GarbageItem], results: Sequence[RemovalResult] = ()) -> None:
    """Show what would be deleted; with results what was deleted. JSON has also what is left alone."""
    by_label = {result.item.group.label: result for result in results}
    shown = [item for item in items if item.is_deleted]
    if results:
        shown = [result.item for result in results if result.outcome is RemovalOutcome.DELETED]

    def show(terminal: Terminal) -> None:
        if shown or not terminal.is_interactive:
            terminal.table(GARBAGE_COLUMNS, [garbage_row(item) for item in shown])

    app.show(
        View(
            value=lambda: [garbage_json(item, by_label.get(item.group.label)) for item in items],
            names=lambda: [item.group.label for item in shown],
            text=show,
        )
    )


def _note_left(app: App, items: Sequence[GarbageItem], results: Mapping[str, str] | None = None) -> None:

    for line in left_lines(items, results or {}):
        app.terminal.note(line)


def _note_sum(app: App, items: Sequence[GarbageItem], what: str, *, then: str = "") -> None:

    held = f", which {'hold' if then else 'held'} {sum_line(items)}" if items else ""
    app.terminal.note(f"{what}{held}", *([f"  hint: delete with `{then}`"] if then else []))


def _confirming_command(app: App) -> str:
    """Return the command that deletes what this one shows."""
    words = [word for word in app.command_line().split(" ") if word != "--dry-run"]
    return " ".join([*words, "--yes"])

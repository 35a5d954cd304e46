"""Render nodes in every format: table, JSON, details, results of commands."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tpuctl.command_text import quote_word
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.billing import Billing
from tpuctl.models.node import EXPIRY_LABEL, Health, Node, NodeState, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import GROUP_LABEL
from tpuctl.names import last_segment
from tpuctl.nodes.expiry import expiry_note, is_expired
from tpuctl.output.column_widths import KEPT, Column, Kind
from tpuctl.output.tables import choose_columns
from tpuctl.output.terminal import Cell, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.models.billing import Dollars
    from tpuctl.names import NodeName
    from tpuctl.nodes.costs import NodeRate
    from tpuctl.nodes.past import Past
    from tpuctl.output.terminal import Terminal

# Names and order are a contract with scripts (docs/nodes.md): a new column is wide, and goes before the last.
NODE_COLUMNS = (
    Column("name", Kind.NAME, priority=KEPT + 4),
    Column("zone", Kind.ZONE, priority=11),
    Column("type", Kind.TYPE, priority=KEPT + 2),
    Column("state", Kind.STATE, priority=KEPT + 3),
    Column("health", Kind.HEALTH, priority=13),
    Column("chips", Kind.NUMBER, priority=12),
    Column("age", Kind.TIME, priority=10),
    Column("tier", Kind.WORD, priority=KEPT + 1),
    Column("workers", Kind.NUMBER, is_wide=True),
    Column("owner", is_wide=True),
    Column("price", Kind.NUMBER, "$/H", is_wide=True, on_terminal=True, unit="$/h", priority=KEPT + 1),
    Column("version", Kind.WORD, is_wide=True),
    Column("expires", Kind.TIME, is_wide=True),
    Column("labels", Kind.TEXT, is_wide=True),
    Column("lease", Kind.TEXT, "HELD BY", is_wide=True),
    Column("use", Kind.TEXT, "IN USE", is_wide=True),
    Column("duty", Kind.NUMBER, is_wide=True, is_on_request=True),
    Column("note", Kind.TEXT, priority=KEPT),
)

NODE_STATE_STYLES: Mapping[str, str] = {
    NodeState.READY: "green",
    NodeState.STOPPED: "dim",
    NodeState.PREEMPTED: "red",
    NodeState.TERMINATED: "red",
    NodeState.UNKNOWN: "red",
    NodeState.HIDDEN: "red",
}


def state_style(state: str) -> str:
    """Return the one style of a state of a node or a request, in every table."""
    return NODE_STATE_STYLES.get(state, "yellow")


def node_rows(
    nodes: Sequence[Node],
    now: datetime,
    rates: Sequence[NodeRate] = (),
    *,
    holders: Mapping[NodeName, str] | None = None,
    uses: Mapping[NodeName, str] | None = None,
    duties: Mapping[NodeName, Cell] | None = None,
    is_wide: bool = True,
) -> list[tuple[Cell, ...]]:
    """Return one row for each node.

    `rates` are those of the same nodes; without them the prices are empty. `holders` are the runs of tpuctl that hold leases,
    `uses` say what runs on the nodes, `duties` are the duty cycles of their chips. Without
    `is_wide` all wide columns are empty.
    """
    wide = [_NO_WIDE_CELLS] * len(nodes)
    if is_wide:
        prices = [dollars_cell(cost.per_hour) for cost in rates] or [_NO_CELL] * len(nodes)
        held, used, duty = holders or {}, uses or {}, duties or {}
        wide = [
            (
                *_wide_cells(node, now, price, held.get(node.name, ""), used.get(node.name, "")),
                duty.get(node.name, _NO_CELL),
            )
            for node, price in zip(nodes, prices, strict=True)
        ]
    return [_node_row(node, now, cells) for node, cells in zip(nodes, wide, strict=True)]


def _node_row(node: Node, now: datetime, wide: tuple[Cell, ...]) -> tuple[Cell, ...]:
    tier = node.tier
    health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
    return (
        Cell(node.name.node_id),
        Cell(node.name.zone),
        Cell(node.accelerator_type),
        Cell(str(node.state), style=state_style(node.state)),
        Cell(health, style=_health_style(node.health)),
        chips_cell(node.chips),
        age_cell(node.created, now),
        Cell(str(tier), style="dim" if tier is Tier.ON_DEMAND else ""),
        *wide,
        _note_cell(node, now),
    )


def _note_cell(node: Node, now: datetime) -> Cell:
    note = node_note(node, now)
    # Only these have times, which are absolute in a pipe.
    has_time = node.upcoming_maintenance is not None or EXPIRY_LABEL in node.labels
    return Cell(note, node_note(node, None) if has_time else note, style="yellow")


def _wide_cells(node: Node, now: datetime, price: Cell, holder: str, use: str) -> tuple[Cell, ...]:
    expires = node.expires
    return (
        Cell(str(node.workers)),
        Cell(node.owner or ""),
        price,
        Cell(node.runtime_version),
        Cell(format_duration(expires - now), format_timestamp(expires)) if expires else _NO_CELL,
        _labels_cell(node.labels),
        Cell(holder),
        Cell(use),
    )


def _labels_cell(labels: Mapping[str, str]) -> Cell:
    """Return the labels of the user and of the group; in a pipe then also tpuctl's own, which other columns show."""
    own = {key: value for key, value in labels.items() if key.startswith("tpuctl-") and key != GROUP_LABEL}
    users = {key: value for key, value in labels.items() if key not in own}
    return Cell(label_words(users), plain=",".join(filter(None, (label_words(users), label_words(own)))))


_NO_CELL = Cell("")
_NO_WIDE_CELLS = (_NO_CELL,) * sum(column.is_wide for column in NODE_COLUMNS)


def chips_cell(chips: int | None) -> Cell:
    """Return the cell of a number of chips, `?` if it is unknown."""
    return Cell("?" if chips is None else str(chips))


def age_cell(created: datetime | None, now: datetime) -> Cell:
    """Return the cell of an age, empty if it is unknown."""
    if created is None:
        return _NO_CELL
    age = now - created
    return Cell(format_duration(age), plain=format_timestamp(created), rank=age.total_seconds())


def dollars_cell(dollars: Dollars) -> Cell:
    """Return the cell of an amount, `?` if it is unknown."""
    return Cell(dollars.short, plain=dollars.plain, rank=None if dollars.amount is None else float(dollars.amount))


def label_words(labels: Mapping[str, str]) -> str:
    """Return labels as `KEY=VALUE,KEY=VALUE`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def unreachable_row(columns: Sequence[Column], zone: str) -> tuple[Cell, ...]:
    """Return the row of a zone that could not be listed, for a table with names, zones and notes."""
    cells = {"name": Cell("?", style="yellow"), "zone": Cell(zone), "note": Cell("could not be listed", style="yellow")}
    return tuple(cells.get(column.name, _NO_CELL) for column in columns)


def node_totals(nodes: Sequence[Node], requests: int = 0, *, is_complete: bool = True) -> str:
    """Return the last line of a list: `200 nodes, 1,600 chips, 3 not READY`."""
    parts = [
        ("" if is_complete else "at least ") + count_words(len(nodes), "node"),
        chip_words([node.chips for node in nodes]),
    ]
    others = sum(node.state is not NodeState.READY for node in nodes)
    unhealthy = sum(node.state is NodeState.READY and node.health not in _FINE for node in nodes)
    parts += [f"{others:,} not READY"] if others else []
    parts += [f"{unhealthy:,} not HEALTHY"] if unhealthy else []
    parts += [f"{count_words(requests, 'request')} waiting"] if requests else []
    return ", ".join(parts)


_FINE = frozenset({Health.HEALTHY, Health.HEALTH_UNSPECIFIED})


def chip_words(counts: Sequence[int | None]) -> str:
    """Return the sum of numbers of chips, of which some may be unknown: `1,600 chips`, `at least 8 chips`."""
    return ("at least " if None in counts else "") + count_words(sum(filter(None, counts)), "chip")


def count_words(count: int, word: str) -> str:
    """Return a count with its word: `1 node`, `1,600 chips`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def node_json(node: Node, rate: NodeRate, now: datetime, *, since: datetime | None) -> dict[str, Any]:
    """Return the API's own fields, and those that users look for (docs/nodes.md).

    A node with the label of its end also has `expires`, null if the label is not a time.
    """
    name = node.name
    expires = {"expires": node.expires and format_timestamp(node.expires)} if EXPIRY_LABEL in node.labels else {}
    return {
        **node.raw,
        "kind": "node",
        "nodeId": name.node_id,
        "zone": name.zone,
        "project": name.project,
        "workers": node.workers,
        "chips": node.chips,
        "tier": str(rate.tier),
        "owner": node.owner,
        **age_json(node.created, now),
        "billing": billing_json(rate, since),
        **expires,
    }


def age_json(created: datetime | None, now: datetime) -> dict[str, Any]:
    """Return the creation as a time without fraction, which `jq`'s `fromdateiso8601` reads, and the age in seconds."""
    if created is None:
        return {"created": None, "ageSeconds": None}
    return {"created": format_timestamp(created), "ageSeconds": int((now - created).total_seconds())}


def billing_json(rate: NodeRate, since: datetime | None) -> dict[str, Any]:
    """Return whether a node is billed now, for what, at which price, and since when."""
    is_free = rate.billing is Billing.NOTHING or rate.grant is not None
    return {
        "isBilled": None if rate.billing is Billing.UNKNOWN else not is_free,
        "billed": str(Billing.NOTHING if is_free else rate.billing),
        "perHour": rate.per_hour.to_json(),
        "tier": str(rate.tier),
        "since": format_timestamp(since) if since and not is_free else None,
        "note": rate.note,
    }


def nodes_json(
    app: App,
    nodes: Sequence[Node],
    requests: Sequence[QueuedResource] = (),
    past: Callable[[NodeName], Past] | None = None,
) -> list[dict[str, Any]]:
    """Return the JSON of nodes.

    `requests` are the queued resources that own some: they know the tiers. Without the `past` of the journal a node counts
    as billed since its creation.
    """
    from tpuctl.nodes.costs import CostFacts, billed_since, node_rates  # noqa: PLC0415  # not for tables
    from tpuctl.nodes.past import Past  # noqa: PLC0415  # as above

    now = app.now()
    facts = CostFacts(now, requests, app.settings.grants(), past or (lambda _: Past()))
    rates = node_rates(nodes, facts)
    begins = [billed_since(node, facts.past(node.name)) for node in nodes]
    return [node_json(node, rate, now, since=since) for node, rate, since in zip(nodes, rates, begins, strict=True)]


def node_details(node: Node, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each detail of a node."""
    yield "name", node.name.node_id, "bold"
    yield "zone", node.name.zone, ""
    yield "project", node.name.project, ""
    yield "state", str(node.state), state_style(node.state)
    if node.health is Health.HEALTH_UNSPECIFIED and node.state is NodeState.READY:
        yield "health", "not reported yet", ""
    elif node.health is not Health.HEALTH_UNSPECIFIED:
        text = f"{node.health} ({node.health_description})" if node.health_description else str(node.health)
        yield "health", text, _health_style(node.health)
    shape = (node.raw.get("acceleratorConfig") or {}).get("topology")
    yield "type", f"{node.accelerator_type}{f' ({shape})' if shape else ''}, {count_words(node.workers, 'worker')}", ""
    yield "version", node.runtime_version, ""
    yield "tier", str(node.tier), ""
    if node.owner:
        yield "owner", node.owner, ""
    if node.created:
        yield "created", f"{format_timestamp(node.created)} ({format_duration(now - node.created)} ago)", ""
    if node.expires:
        yield (
            "expires",
            f"{format_timestamp(node.expires)} ({expiry_note(node, now).removeprefix('expires ')})",
            _expiry_style(node, now),
        )
    for index, endpoint in enumerate(node.endpoints[:8]):
        addresses = " / ".join(filter(None, (endpoint.external, endpoint.internal)))
        yield f"worker {index}", addresses, ""
    if len(node.endpoints) > 8:
        yield "", f"and {len(node.endpoints) - 8} more workers", "dim"
    if node.labels:
        yield "labels", ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items())), ""
    if node.raw.get("tags"):
        yield "tags", ", ".join(node.raw["tags"]), ""
    if disks := node.raw.get("dataDisks"):
        modes = {"READ_ONLY": " (read-only)"}
        text = ", ".join(f"{last_segment(disk['sourceDisk'])}{modes.get(disk.get('mode'), '')}" for disk in disks)
        yield "data disks", text, ""
    if node.raw.get("description"):
        yield "description", node.raw["description"], ""
    if text := node_note(node, now, has_expiry=node.expires is None):
        yield "note", text, "yellow"


def node_note(node: Node, now: datetime | None, *, has_expiry: bool = True) -> str:
    """Return what users need to know beyond the state, most urgent first. Without `now` times are absolute.

    Without `has_expiry` the end of its time is left out.
    """
    parts = []
    if node.is_preempted:
        parts.append("preempted: `up` recreates it, `down` frees its quota")
    elif node.state is NodeState.TERMINATED:
        parts.append("terminated: `down` frees its quota")
    if node.state is NodeState.READY and node.health_description:
        parts.append(node.health_description)
    symptoms = node.symptoms
    if symptoms:
        last = symptoms[-1]
        worker = f" on worker {last.worker}" if last.worker else ""
        more = f" (+{len(symptoms) - 1} more)" if len(symptoms) > 1 else ""
        parts.append(f"{last.kind}{worker}{more}")
    if maintenance := node.upcoming_maintenance:
        when = ""
        if maintenance.start and now is None:
            when = f" at {format_timestamp(maintenance.start)}"
        elif maintenance.start and now is not None:
            left = maintenance.start - now
            when = f" in {format_duration(left)}" if left.total_seconds() > 0 else " now"
        parts.append(f"maintenance{when}")
    if has_expiry and (expiry := expiry_note(node, now)):
        parts.append(expiry)
    if node.queued_resource:
        parts.append(f"of queued resource {last_segment(node.queued_resource)}")
    if node.is_kept:
        parts.append("kept")
    if not node.state.is_known:
        parts.append("this version of tpuctl does not know this state")
    return "; ".join(parts)


def dead_request_line(requests: Sequence[QueuedResource]) -> str | None:
    """Return a line about ended queued resources that still hold quota, None if there are none."""
    dead = [request for request in requests if request.state.is_dead]
    if not dead:
        return None
    shown = dead[:3]
    named = ", ".join(f"{request.zone}/{request.queued_resource_id}" for request in shown)
    more = f" and {len(dead) - 3} more" if len(dead) > 3 else ""
    count, verb = count_words(len(dead), "queued resource"), "hold" if len(dead) > 1 else "holds"
    nodes = [quote_word(f"{request.zone}/{request.node_ids[0]}") for request in shown if request.node_ids]
    together = " --all-nodes" if any(len(request.node_ids) > 1 for request in shown) else ""
    remedy = f"; to delete: `tpuctl down {' '.join(nodes)}{together}`" if nodes else ""
    return f"{count} ended and still {verb} quota: {named}{more}{remedy}"


def _expiry_style(node: Node, now: datetime) -> str:
    return "red" if is_expired(node, now) else ""


def _health_style(health: Health) -> str:
    return "green" if health is Health.HEALTHY else "red"


def nodes_view(
    app: App,
    nodes: Sequence[Node],
    *,
    is_list: bool = True,
    failed_scripts: Mapping[NodeName, Sequence[int]] = MappingProxyType({}),
) -> View:
    """Return the view of nodes that a command changed: name and state, or the whole nodes as JSON.

    Without `is_list` the JSON of one node is an object. `failed_scripts`: the workers of some nodes on which the startup
    script failed.
    """

    def show(terminal: Terminal) -> None:
        if terminal.is_interactive or terminal.is_tsv:
            layout = choose_columns(NODE_COLUMNS, None, sort=None, is_wide=False)
            layout.write(terminal, node_rows(nodes, app.now(), is_wide=False))
        else:
            terminal.rows([(Cell(node.name.node_id), Cell(str(node.state))) for node in nodes])

    def value() -> Any:  # JSON
        values = nodes_json(app, nodes)
        for node, entry in zip(nodes, values, strict=True):
            if (failed := failed_scripts.get(node.name)) is not None:
                entry["startup"] = {"state": "failed" if failed else "done", "failedWorkers": [*failed]}
        return values if is_list or len(values) != 1 else values[0]

    return View(value=value, names=lambda: node_labels(nodes), text=show)


def node_labels(nodes: Sequence[Node]) -> list[str]:
    """Return `ZONE/NAME` of each node."""
    return [f"{node.name.zone}/{node.name.node_id}" for node in nodes]


def expiry_view(app: App, nodes: Sequence[Node], *, is_list: bool) -> View:
    """Return the view of nodes whose end a command changed: name and end, or the whole nodes as JSON."""
    now = app.now()

    def show(terminal: Terminal) -> None:
        rows = [
            (
                Cell(node.name.node_id),
                Cell(node.name.zone),
                Cell(
                    expiry_note(node, now).removeprefix("expires ") or "never",
                    plain=format_timestamp(node.expires) if node.expires else "never",
                ),
            )
            for node in nodes
        ]
        terminal.table((Column("name", Kind.NAME), Column("zone", Kind.ZONE), Column("expires", Kind.TIME)), rows)

    return replace(nodes_view(app, nodes, is_list=is_list), text=show)


def deleted_view(node_ids: Sequence[str]) -> View:
    """Return the view of deleted nodes; on a terminal the progress has shown them already."""
    return View(
        value=lambda: [{"nodeId": node_id, "state": None} for node_id in node_ids],
        names=lambda: node_ids,
        text=lambda terminal: None if terminal.is_interactive else terminal.names(node_ids),
    )

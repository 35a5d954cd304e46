"""Render nodes in every format: table, JSON, details, the timeline of the journal, results of commands."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_timestamp, parse_timestamp
from tpuctl.errors import ExitCode, TpuctlError, worst_exit_code
from tpuctl.models.node import Health, Node, NodeState, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.names import last_segment
from tpuctl.nodes.journal_entries import is_repair, usable_spans
from tpuctl.output.terminal import Cell
from tpuctl.output.views import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.output.terminal import Terminal

    _JournalEntry = Mapping[str, Any]  # JSON

NODE_HEADER = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "AGE", "TIER", "NOTE")

_NODE_STATE_STYLES = {
    NodeState.READY: "green",
    NodeState.STOPPED: "dim",
    NodeState.PREEMPTED: "red",
    NodeState.TERMINATED: "red",
    NodeState.UNKNOWN: "red",
    NodeState.HIDDEN: "red",
}


def node_rows(nodes: Sequence[Node], now: datetime) -> list[tuple[Cell, ...]]:
    """Return one row for each node."""
    table: list[tuple[Cell, ...]] = []
    for node in nodes:
        created = node.created
        age = Cell(format_duration(now - created), plain=format_timestamp(created)) if created else Cell("")
        health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
        table.append(
            (
                Cell(node.name.node_id),
                Cell(node.name.zone),
                Cell(node.accelerator_type),
                Cell(str(node.state), style=_NODE_STATE_STYLES.get(node.state, "yellow")),
                Cell(health, style=_health_style(node.health)),
                Cell(str(node.workers)),
                age,
                Cell(str(node.tier), style="dim" if node.tier is Tier.ON_DEMAND else ""),
                Cell(node_note(node, now), plain=node_note(node, None), style="yellow"),
            )
        )
    return table


def unreachable_rows(zones: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Return one row for each zone that did not answer."""
    blank = Cell("?", style="yellow")
    return [(blank, Cell(zone), *[Cell("")] * 6, Cell("zone did not answer", style="yellow")) for zone in zones]


def node_json(node: Node) -> dict[str, Any]:
    """Return the API's own fields, and those that users look for: nodeId, zone, project, workers."""
    name = node.name
    added = {"nodeId": name.node_id, "zone": name.zone, "project": name.project, "workers": node.workers}
    return {**node.raw, **added}


def node_details(node: Node, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each detail of a node."""
    yield "name", node.name.node_id, "bold"
    yield "zone", node.name.zone, ""
    yield "project", node.name.project, ""
    yield "state", str(node.state), _NODE_STATE_STYLES.get(node.state, "yellow")
    if node.health is not Health.HEALTH_UNSPECIFIED:
        text = f"{node.health} ({node.health_description})" if node.health_description else str(node.health)
        yield "health", text, _health_style(node.health)
    shape = (node.raw.get("acceleratorConfig") or {}).get("topology")
    workers = f"{node.workers} worker{'s' if node.workers > 1 else ''}"
    yield "type", f"{node.accelerator_type}{f' ({shape})' if shape else ''}, {workers}", ""
    yield "version", node.runtime_version, ""
    yield "tier", str(node.tier), ""
    if node.created:
        yield "created", f"{format_timestamp(node.created)} ({format_duration(now - node.created)} ago)", ""
    for index, endpoint in enumerate(node.endpoints[:8]):
        addresses = " / ".join(filter(None, (endpoint.external, endpoint.internal)))
        yield f"worker {index}", addresses, ""
    if len(node.endpoints) > 8:
        yield "", f"and {len(node.endpoints) - 8} more workers", "dim"
    if node.labels:
        yield "labels", ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items())), ""
    if node.raw.get("tags"):
        yield "tags", ", ".join(node.raw["tags"]), ""
    if node.raw.get("description"):
        yield "description", node.raw["description"], ""
    if text := node_note(node, now):
        yield "note", text, "yellow"


def node_note(node: Node, now: datetime | None) -> str:
    """Return what users need to know beyond the state, most urgent first. Without `now` times are absolute."""
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
    if node.queued_resource:
        parts.append(f"of queued resource {last_segment(node.queued_resource)}")
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
    count = f"{len(dead)} queued resource{'s' if len(dead) > 1 else ''}"
    verb = "hold" if len(dead) > 1 else "holds"
    nodes = [shlex.quote(f"{request.zone}/{request.node_ids[0]}") for request in shown if request.node_ids]
    together = " --all-nodes" if any(len(request.node_ids) > 1 for request in shown) else ""
    remedy = f"; to delete: `tpuctl down {' '.join(nodes)}{together}`" if nodes else ""
    return f"{count} ended and still {verb} quota: {named}{more}{remedy}"


def _health_style(health: Health) -> str:
    return "green" if health is Health.HEALTHY else "red"


TIMELINE_HEADER = ("TIME (UTC)", "WHAT", "FOR", "", "WHY")

_GONE = "gone"
_TIMELINE_STATE_STYLES = {
    "READY": "green",
    "STOPPED": "dim",
    "PREEMPTED": "red",
    "TERMINATED": "red",
    "UNKNOWN": "red",
    _GONE: "dim",
}
_EVENT_MARKS = {"usable": "✓", "recovered": "✓", "preempted": "!", "maintenance": "!", "gave-up": "!", "note": "·"}
_MARK_STYLES = {"✓": "green", "→": "cyan", "!": "red", "·": ""}
_BEGINNINGS = frozenset({"create", "start", "restart", "bringing-up"})
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line: a state with its end, or an event. The last state that was seen has no end."""

    at: datetime
    what: str
    why: str = ""
    is_state: bool = False
    health: str = ""
    node_id: str | None = None
    until: datetime | None = None

    def lasted(self, now: datetime) -> timedelta | None:
        """Return how long the state lasted, until now if it has no end; None for an event, and while the node is gone."""
        return max((self.until or now) - self.at, timedelta()) if self.is_state and self.what != _GONE else None


def timeline_lines(entries: Sequence[_JournalEntry]) -> list[TimelineLine]:
    """Return the timeline of a node, oldest first: states, how long each lasted, and actions between them.

    Equal states seen by two writers are one line.
    """
    found: list[TimelineLine] = []
    state = left = begun = None  # index of the open state; time of its deletion request; start of the way to usable
    for at, entry in _dated(entries):
        event = str(entry.get("event"))
        if event == "state":
            known, health = entry.get("state"), entry.get("health")
            line = TimelineLine(
                at,
                str(known) if known else _GONE,
                is_state=True,
                health="" if health in {None, "HEALTH_UNSPECIFIED"} else str(health),
                node_id=entry.get("id"),
            )
            if state is not None and replace(found[state], at=at, until=None) == line:
                continue
            _end(found, state, at)
            state, left = len(found), None
            found.append(line)
            continue
        if event == "create":
            _end(found, state, left or at)
            state = left = None
        if event == "delete":
            left = at
        if event != "bringing-up" or begun is None:  # the line before says the same
            found.append(TimelineLine(at, event, _why(event, entry, at - begun if begun else None)))
        begun = (begun or at) if event in _BEGINNINGS else None if event in {"usable", "delete"} else begun
    _end(found, state, left)
    return found


def timeline_since(found: Sequence[TimelineLine], since: datetime | None, last: int | None) -> list[TimelineLine]:
    """Return the lines that last beyond `since`, of these the `last` ones."""
    recent = [line for line in found if since is None or (line.until or line.at) >= since or _is_open(line)]
    return recent[-last:] if last else recent


def timeline_rows(found: Sequence[TimelineLine], now: datetime, *, width: int) -> list[tuple[Cell, ...]]:
    """Return a row for each line, for a terminal of that width; with bars to scale if there is room for them."""
    is_narrow = width < 100
    lengths = [line.lasted(now) for line in found]
    longest = max((length for length in lengths if length), default=timedelta())
    texts = [
        (
            f"  {_words(line)}" if line.is_state else f"{_EVENT_MARKS.get(line.what, '→')} {line.what}",
            "" if length is None else format_duration(length),
        )
        for line, length in zip(found, lengths, strict=True)
    ]
    used = (14 if is_narrow else 19) + max(len(what) for what, _ in texts) + max(len(length) for _, length in texts) + 8
    room = min(width - used - min(max(len(line.why) for line in found), 30), 32) if found else 0
    return [
        (
            Cell(f"{line.at:%m-%d %H:%M:%S}" if is_narrow else f"{line.at:%Y-%m-%d %H:%M:%S}", style="dim"),
            Cell(what, style=_style(line)),
            Cell(text),
            Cell(_bar(length, longest, room) if room >= 6 else "", style=_style(line)),
            Cell(_reason(line)),
        )
        for line, (what, text), length in zip(found, texts, lengths, strict=True)
    ]


def timeline_plain_rows(found: Sequence[TimelineLine], now: datetime) -> list[tuple[Cell, ...]]:
    """Return a row for each line, for a program: time, word, duration in seconds, reason."""
    return [
        (
            Cell(format_timestamp(line.at)),
            Cell(_words(line)),
            Cell("" if length is None else f"{length.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"),
            Cell(_reason(line)),
        )
        for line in found
        for length in (line.lasted(now),)
    ]


def timeline_totals(
    entries: Sequence[_JournalEntry], now: datetime, *, since: datetime | None = None
) -> list[tuple[str, str, str]]:
    """Return label, text and style of the totals: usable time, repairs, preemptions, time to usable."""
    found = timeline_lines(entries)
    if not found:
        return []
    dated = [(at, entry) for at, entry in _dated(entries) if since is None or at >= since]
    begin = max(found[0].at, since) if since else found[0].at
    end = now if any(_is_open(line) for line in found) else found[-1].until or found[-1].at
    whole = max(end - begin, timedelta())
    usable = sum((span.within(begin, end) for span in usable_spans(entries)), timedelta())
    share = f" ({usable / whole:.0%})" if whole else ""
    repairs = [str(entry["event"]).replace("delete", "recreation") for _, entry in dated if is_repair(entry)]
    summary = [
        ("usable", f"{format_duration(usable)} of {format_duration(whole)}{share}" if usable else "never", ""),
        ("repairs", ", ".join(_count(repairs.count(word), word) for word in sorted({*repairs})) or "none", ""),
        ("preempted", _count(sum(entry.get("event") == "preempted" for _, entry in dated), "time"), ""),
    ]
    if times := _times_to_usable(dated):
        import statistics  # noqa: PLC0415  # 4 ms, not needed by `list`

        median = format_duration(timedelta(seconds=statistics.median(times)))
        summary.append(("time to usable", median + (f" (median of {len(times)})" if len(times) > 1 else ""), ""))
    return [entry for entry in summary if entry != ("preempted", "0 times", "")]


def _is_open(line: TimelineLine) -> bool:
    return line.is_state and line.until is None and line.what != _GONE


def _end(found: list[TimelineLine], index: int | None, at: datetime | None) -> None:
    if index is not None:
        found[index] = replace(found[index], until=at)


def _why(event: str, entry: _JournalEntry, took: timedelta | None) -> str:
    reason = str(entry.get("reason") or entry.get("text") or "")
    if event == "create" and isinstance(spec := entry.get("spec"), dict):
        what = f"{spec.get('accelerator_type')} with {spec.get('runtime_version')}, {spec.get('tier') or 'on-demand'}"
        return f"{reason}: {what}" if reason else what
    if event == "usable":
        recorded = entry.get("took")
        took = timedelta(seconds=recorded) if isinstance(recorded, int | float) else took
        return ", ".join(filter(None, (entry.get("level"), f"after {format_duration(took)}" if took else None)))
    if event == "setup":
        return "done" if entry.get("ok") else "failed"
    return reason


def _times_to_usable(dated: Sequence[tuple[datetime, _JournalEntry]]) -> list[float]:
    times: list[float] = []
    begun: datetime | None = None
    for at, entry in dated:
        event, took = entry.get("event"), entry.get("took")
        if event == "usable":
            if isinstance(took, int | float):
                times.append(took)
            elif begun:
                times.append((at - begun).total_seconds())
            begun = None
        elif event == "delete":
            begun = None
        elif event in _BEGINNINGS:
            begun = begun or at
    return times


def _words(line: TimelineLine) -> str:
    return f"{line.what} {line.health}" if line.health else line.what


def _reason(line: TimelineLine) -> str:
    return "as last seen" if _is_open(line) else line.why


def _style(line: TimelineLine) -> str:
    if not line.is_state:
        return _MARK_STYLES[_EVENT_MARKS.get(line.what, "→")]
    is_unwell = line.health not in {"", "HEALTHY"}
    return "red" if is_unwell else _TIMELINE_STATE_STYLES.get(line.what, "yellow")


def _bar(length: timedelta | None, longest: timedelta, room: int) -> str:
    """Return a bar to scale; at least a thin one for a state that lasted at all."""
    if not length or not longest:
        return ""
    whole, rest = divmod(max(round(length / longest * room * 8), 1), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _dated(entries: Sequence[_JournalEntry]) -> list[tuple[datetime, _JournalEntry]]:
    """Return the entries with a time, sorted by it: several machines may have written, each with its own clock."""
    dated = [(at, entry) for entry in entries if (at := parse_timestamp(entry.get("at")))]
    return sorted(dated, key=lambda each: each[0])


def nodes_view(nodes: Sequence[Node], now: datetime, *, is_list: bool = True) -> View:
    """Return the view of nodes that a command changed: name and state, or the whole nodes as JSON.

    Without `is_list` the JSON of one node is an object.
    """
    values = [node_json(node) for node in nodes]

    def show(terminal: Terminal) -> None:
        if terminal.is_interactive:
            terminal.table(NODE_HEADER, node_rows(nodes, now))
        else:
            terminal.table((), [(Cell(node.name.node_id), Cell(str(node.state))) for node in nodes])

    return View(
        value=lambda: values if is_list or len(values) != 1 else values[0],
        names=lambda: [node.name.node_id for node in nodes],
        text=show,
    )


def show_node(app: App, node: Node) -> None:
    """Show a node that a command changed, and update its entries in ssh's config."""
    from tpuctl.app.ssh_options import refresh_ssh_entries  # noqa: PLC0415  # `list` needs only the renderers

    refresh_ssh_entries(app, [node])
    app.show(nodes_view([node], app.now(), is_list=False))


def show_results(app: App, results: Sequence[NodeResult | TpuctlError]) -> int:
    """Show the nodes that reached their goal, then each error. Return the worst exit code.

    Updates the nodes' entries in ssh's config. Raises the error of a single node.
    """
    from tpuctl.app.ssh_options import refresh_ssh_entries  # noqa: PLC0415  # as above

    errors = [result for result in results if isinstance(result, TpuctlError)]
    if errors and len(results) == 1:
        raise errors[0]
    nodes = [result.node for result in results if not isinstance(result, TpuctlError) and result.node]
    refresh_ssh_entries(app, nodes)
    if nodes or not errors:
        app.show(nodes_view(nodes, app.now(), is_list=len(results) > 1))
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK


def deleted_view(node_ids: Sequence[str]) -> View:
    """Return the view of deleted nodes; on a terminal the progress has shown them already."""
    return View(
        value=lambda: [{"nodeId": node_id, "state": None} for node_id in node_ids],
        names=lambda: node_ids,
        text=lambda terminal: None if terminal.is_interactive else terminal.names(node_ids),
        is_marked=False,
    )

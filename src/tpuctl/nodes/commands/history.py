"""`tpuctl history`: the timeline of a node from its journal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import DurationType, cli_command, node_argument
from tpuctl.app.value_completion import complete_job
from tpuctl.config.settings import SourceKind
from tpuctl.durations import format_duration, format_timestamp, parse_timestamp
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.models.node import QueuedState
from tpuctl.names import check_zone
from tpuctl.nodes.kept_jobs import JOB_EVENTS, Verdict
from tpuctl.nodes.past import PassedEnd, Past, past_of
from tpuctl.nodes.queue_rendering import INITIATORS
from tpuctl.nodes.rendering import NODE_STATE_STYLES, count_words
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.names import NodeName, NodeReference
    from tpuctl.nodes.kept_jobs import JobAttempt
    from tpuctl.output.terminal import Terminal

    _JournalEntry = Mapping[str, Any]  # JSON

_GCLOUD_SOURCES = frozenset({SourceKind.GCLOUD, SourceKind.CLOUDSDK})


@cli_command("history", is_short=True)
@node_argument
@grouped_option(
    "--since",
    type=DurationType(),
    metavar="TIME",
    help="Age of the oldest entry to show: 90m, 2h or 7d. [default: all]",
)
@grouped_option(
    "--last", "-n", type=click.IntRange(1), metavar="N", help="Number of lines to show, the newest. [default: all]"
)
@grouped_option(
    "--job",
    metavar="JOB",
    shell_complete=complete_job,
    help="Job of `tpuctl run --keep`, whose attempts are shown: how each ended, why, and what it cost.",
)
def command(app: App, *, node: str, since: timedelta | str | None, last: int | None, job: str | None) -> None:
    """Show the states of a node and of its queued resource, how long each lasted, and what tpuctl did to it and why.

    Reads the journal, not the cloud: it has only what tpuctl did and saw.

    \b
    Examples:
      tpuctl history trainer
      tpuctl history trainer --since 1d -n 20
      tpuctl history trainer --job train
      tpuctl history trainer -o json | jq -r '.[] | select(.event == "preempted").at'
    """
    if job is not None:
        _show_job(app, app.reference(node), job, last=last)
        return
    name = _find_in_journal(app, app.reference(node))
    app.services.journal.check(name)
    now = app.clock.now()
    begin = now - since if isinstance(since, timedelta) else None
    entries = app.services.journal.entries(name)
    past = past_of(entries, name.zone)
    lines = _timeline_lines(entries, past, now)
    lasting = [line for line in lines if begin is None or (line.until or line.at) >= begin or _is_open(line)]
    found = lasting[-last:] if last else lasting

    def recent_entries() -> list[dict[str, Any]]:
        recent = [entry for entry in entries if not begin or ((at := parse_timestamp(entry.get("at"))) and at >= begin)]
        return recent[-last:] if last else recent

    def show(terminal: Terminal) -> None:
        if not found:
            when = f" in the last {format_duration(since)}" if isinstance(since, timedelta) else ""
            terminal.note(f"the journal has no entry of `{name.node_id}`{when}")
        elif not terminal.is_interactive:
            terminal.table(_COLUMNS, _timeline_plain_rows(found, now))
        else:
            terminal.table(
                (*_COLUMNS[:-1], _BAR_COLUMN, _COLUMNS[-1]), _timeline_rows(found, now, width=terminal.streams.width)
            )
            terminal.write("")
            terminal.details(_timeline_totals(lines, past, now, since=begin))

    names = (lambda: [line.what for line in found]) if found else None
    app.show(View(value=recent_entries, names=names, text=show))


def _find_in_journal(app: App, reference: NodeReference) -> NodeName:
    """Return the one node of the journal with this name, without a request to the cloud; of several the one that is not gone.

    Raises `NotFoundError` or `ConflictError` if it is not exactly one.
    """
    known = app.services.journal.names()
    project = reference.project or (app.project if app.is_sandbox or app.settings["project"] else None)
    zone = reference.zone or next(iter(app.zones), None)
    there = [name for name in known if project in {None, name.project} and zone in {None, name.zone}]
    found = app.services.journal.without_losers([name for name in there if name.node_id == reference.node_id])
    setting = app.settings["zone"]
    if len(found) > 1 and setting and setting.source.kind not in _GCLOUD_SOURCES:
        preferred = check_zone(app.settings.required("zone"))
        found = [name for name in found if name.zone == preferred] or found
    if len(found) > 1:
        there_now = [name for name in found if app.services.journal.past(name).may_have_node]
        found = there_now if len(there_now) == 1 else found
    if len(found) > 1:
        where = ", ".join(f"{name.zone}/{name.node_id}" for name in found)
        raise ConflictError(
            f"the journal has {len(found)} nodes `{reference.node_id}`: {where}",
            hint="name the zone: `--zone ZONE` or `ZONE/NODE`; for different projects `--project ID`",
        )
    if not found:
        app.services.journal.check()
        from tpuctl.nodes.lookup import near_name  # noqa: PLC0415  # only for an unknown name

        near = near_name(reference.node_id, (name.node_id for name in there))
        suggestion = f"did you mean `{near}`?\n" if near else ""
        where = f" in {zone}" if zone else ""
        raise NotFoundError(
            f"the journal has no node `{reference.node_id}`{where}",
            hint=f"{suggestion}`tpuctl status {reference.node_id}` asks the cloud; "
            "the journal has only what tpuctl did and saw",
        )
    return found[0]


_ATTEMPT_COLUMNS = (
    Column("attempt", Kind.NAME),
    Column("started", Kind.TIME, "STARTED (UTC)"),
    Column("zone", Kind.WORD),
    Column("tier", Kind.WORD),
    Column("for", Kind.TIME),
    Column("verdict", Kind.STATE),
    Column("cost", Kind.WORD),
    Column("why", Kind.TEXT),
)


def _show_job(app: App, reference: NodeReference, name: str, *, last: int | None) -> None:
    """Show the attempts of a kept job, in all zones. Raises `NotFoundError`."""
    places = app.services.journal.kept_jobs(reference.project or app.project, reference.node_id)
    job = next((place.job for place in reversed(places) if place.job.name == name), None)
    if job is None:
        known = ", ".join(f"`{place.job.name}`" for place in places)
        raise NotFoundError(
            f"the journal has no kept job `{name}` of `{reference.node_id}`",
            hint=f"it has {known}" if known else f"`tpuctl jobs {reference.node_id}` lists the jobs on its workers",
        )
    attempts = job.attempts[-last:] if last else job.attempts

    def row(attempt: JobAttempt, *, is_script: bool) -> tuple[Cell, ...]:
        lasted = (attempt.ended or app.now()) - attempt.began
        verdict = str(attempt.verdict or "running")
        style = {Verdict.SUCCEEDED: "green", None: "yellow"}.get(attempt.verdict, "red")
        return (
            Cell(str(attempt.number)),
            Cell(format_timestamp(attempt.began) if is_script else f"{attempt.began:%Y-%m-%d %H:%M:%S}"),
            Cell(attempt.zone),
            Cell(attempt.tier),
            Cell(f"{lasted.total_seconds():.3f}s" if is_script else format_duration(max(lasted, timedelta()))),
            Cell(verdict, style=style),
            Cell("" if attempt.cost is None else f"${attempt.cost:.2f}"),
            Cell(attempt.evidence),
        )

    def show(terminal: Terminal) -> None:
        terminal.table(_ATTEMPT_COLUMNS, [row(one, is_script=not terminal.is_interactive) for one in attempts])
        if terminal.is_interactive:
            is_priced = any(attempt.cost is not None for attempt in job.attempts)
            cost = f"; ${job.cost:.2f} by list prices" if is_priced else ""
            terminal.note(f"{job.name}: {job.outcome or 'not over'}{cost}")

    value = {**job.to_json(), "attempts": [one.to_json() for one in attempts]}
    app.show(View(value=lambda: value, names=lambda: [str(one.number) for one in attempts], text=show))


_COLUMNS = (
    Column("time", Kind.TIME, "TIME (UTC)"),
    Column("what", Kind.STATE),
    Column("for", Kind.TIME),
    Column("why", Kind.TEXT),
)
# To scale; only on a terminal.
_BAR_COLUMN = Column("bar", Kind.TIME, " ", priority=1)

_GONE = "gone"
_EXPIRED = "expired"
_STATE_STYLES: Mapping[str, str] = {**NODE_STATE_STYLES, _GONE: "dim"}
_EVENT_MARKS = {"usable": "✓", "recovered": "✓", "preempted": "!", "maintenance": "!", "gave-up": "!", "note": "·"}
_MARK_STYLES = {"✓": "green", "→": "cyan", "!": "red", "·": ""}
_BEGINNINGS = frozenset({"create", "start", "restart", "bringing-up"})
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class _TimelineLine:
    """One line: a state with its end, or an event. The last state that was seen has no end."""

    at: datetime
    what: str
    why: str = ""
    is_state: bool = False
    health: str = ""
    node_id: str | None = None
    until: datetime | None = None
    # It ended before `until`, while no run looked.
    has_unknown_end: bool = False

    def lasted(self, now: datetime) -> timedelta | None:
        """Return how long the state lasted, until now if it has no end; None for an event, and while the node is gone."""
        if not self.is_state or self.what == _GONE or self.has_unknown_end:
            return None
        return max((self.until or now) - self.at, timedelta())


def _timeline_lines(entries: Sequence[_JournalEntry], past: Past, now: datetime) -> list[_TimelineLine]:
    """Return the timeline of a node, oldest first: states, how long each lasted, and actions between them.

    Equal states seen by two writers are one line. The last state has no end, unless a guard ended the node.
    """
    found: list[_TimelineLine] = []
    state = left = None  # index of the open state; time of its deletion request
    request = waiting = None  # the last line of the queued resource; its index while that state is open
    is_on_way = False
    passed = filter(None, (*past.passed_ends, past.passed_end(now)))
    for at, entry in _dated([*entries, *map(_expiry_entry, passed)]):
        event = str(entry.get("event"))
        if event == "request":
            line = _request_line(at, entry)
            if request is None or replace(request, at=at) != line:
                _end(found, waiting, at)
                # ACTIVE lasts as long as the node, whose own states follow.
                request, waiting = line, len(found) if line.is_state else None
                found.append(line)
            continue
        if event in {"create", "delete"}:
            _end(found, waiting, at)
            request = waiting = None
        if event == "state":
            known, health = entry.get("state"), entry.get("health")
            line = _TimelineLine(
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
        if event == "create" and state is not None:
            is_gone = found[state].what == _GONE
            found[state] = replace(found[state], until=left or at, has_unknown_end=left is None)
            if not is_gone:
                found.append(_TimelineLine(at, _GONE, "when is not known: no run looked", is_state=True))
            state = left = None
        if event == _EXPIRED and entry.get("ok"):
            _end(found, state, left or at)
            state = left = None
        if event == "delete":
            left = at
        if event == "job-running":
            continue
        if event != "bringing-up" or not is_on_way:  # the line before says the same
            found.append(_TimelineLine(at, event, _why(event, entry, past.times_to_usable.get(at))))
        is_on_way = event in _BEGINNINGS or (is_on_way and event not in {"usable", "delete"})
    _end(found, state, left)
    return found


def _expiry_entry(passed: PassedEnd) -> _JournalEntry:
    """Return what the journal would have of the end of a node's time, if a guard could write to it."""
    if passed.has_guard:
        why = "the guard on worker 0 deletes it, unless it was extended elsewhere"
    else:
        why = "any clean-up may delete it; the journal knows of no guard on it"
    return {
        "at": passed.at.isoformat(),
        "event": _EXPIRED,
        "text": f"its time ended: {why}",
        "ok": passed.has_guard,
    }


def _request_line(at: datetime, entry: _JournalEntry) -> _TimelineLine:
    """Return the line for a state of the node's queued resource."""
    state, initiator = str(entry.get("state")), str(entry.get("text") or "")
    return _TimelineLine(
        at, f"request {state}", INITIATORS.get(initiator, initiator), is_state=state != QueuedState.ACTIVE
    )


def _timeline_rows(found: Sequence[_TimelineLine], now: datetime, *, width: int) -> list[tuple[Cell, ...]]:
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


def _timeline_plain_rows(found: Sequence[_TimelineLine], now: datetime) -> list[tuple[Cell, ...]]:
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


def _timeline_totals(
    lines: Sequence[_TimelineLine], past: Past, now: datetime, *, since: datetime | None = None
) -> list[tuple[str, str, str]]:
    """Return label, text and style of the totals: usable time, repairs, preemptions, time to usable."""
    if not lines:
        return []
    begin = max(lines[0].at, since) if since else lines[0].at
    end = now if any(_is_open(line) for line in lines) else lines[-1].until or lines[-1].at
    whole = max(end - begin, timedelta())
    usable = sum((span.within(begin, end) for span in past.usable), timedelta())
    if usable:
        share = f" ({usable / whole:.0%})" if whole else ""
        usable_text = f"{format_duration(usable)} of {format_duration(whole)}{share}"
    else:
        usable_text = "never" if any(line.is_state for line in lines) else "unknown: the journal has no state of it"
    repairs = [event.replace("delete", "recreation") for at, event in past.repairs if at >= begin]
    summary = [
        ("usable", usable_text, ""),
        ("repairs", ", ".join(count_words(repairs.count(word), word) for word in sorted({*repairs})) or "none", ""),
        ("preempted", count_words(sum(at >= begin for at in past.preemptions), "time"), ""),
    ]
    if times := [took.total_seconds() for at, took in past.times_to_usable.items() if at >= begin]:
        import statistics  # noqa: PLC0415  # 4 ms, not needed by `list`

        median = format_duration(timedelta(seconds=statistics.median(times)))
        summary.append(("time to usable", median + (f" (median of {len(times)})" if len(times) > 1 else ""), ""))
    return [entry for entry in summary if entry != ("preempted", "0 times", "")]


def _is_open(line: _TimelineLine) -> bool:
    return line.is_state and line.until is None and line.what != _GONE


def _end(found: list[_TimelineLine], index: int | None, at: datetime | None) -> None:
    if index is not None:
        found[index] = replace(found[index], until=at)


def _why(event: str, entry: _JournalEntry, took: timedelta | None) -> str:
    reason = str(entry.get("reason") or entry.get("text") or "")
    if event == "create" and isinstance(spec := entry.get("spec"), dict):
        what = f"{spec.get('accelerator_type')} with {spec.get('runtime_version')}, {spec.get('tier') or 'on-demand'}"
        what += f", one of {spec['slices']} slices" if spec.get("slices") else ""
        return f"{reason}: {what}" if reason else what
    if event == "usable":
        return ", ".join(filter(None, (entry.get("level"), f"after {format_duration(took)}" if took else None)))
    if event == "race":
        return _race_words(entry)
    if event in JOB_EVENTS:
        number = f" attempt {entry['attempt']}" if entry.get("attempt") else ""
        return ": ".join(filter(None, (f"{entry.get('job')}{number}", entry.get("verdict"), reason)))
    if event == "setup":
        return "done" if entry.get("ok") else "failed"
    return reason


def _race_words(entry: _JournalEntry) -> str:
    """Return what an entry of a race says: its zones, then the zone that won, then its end."""
    winner = entry.get("winner")
    if entry.get("over"):
        return "over"
    if winner:
        return f"{winner} won"
    zones = entry.get("zones")
    return f"in {', '.join(map(str, zones))}" if isinstance(zones, list) else ""


def _words(line: _TimelineLine) -> str:
    return f"{line.what} {line.health}" if line.health else line.what


def _reason(line: _TimelineLine) -> str:
    return "as last seen" if _is_open(line) else line.why


def _style(line: _TimelineLine) -> str:
    if not line.is_state:
        return _MARK_STYLES[_EVENT_MARKS.get(line.what, "→")]
    is_unwell = line.health not in {"", "HEALTHY"}
    return "red" if is_unwell else _STATE_STYLES.get(line.what, "yellow")


def _bar(length: timedelta | None, longest: timedelta, room: int) -> str:
    """Return a bar to scale; at least a thin one for a state that lasted at all."""
    if not length or not longest:
        return ""
    whole, rest = divmod(max(round(length / longest * room * 8), 1), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _dated(entries: Sequence[_JournalEntry]) -> list[tuple[datetime, _JournalEntry]]:
    """Return the entries with a time, sorted by it: several machines may have written, each with its own clock."""
    dated = [(at, entry) for entry in entries if (at := parse_timestamp(entry.get("at")))]
    return sorted(dated, key=lambda each: each[0])

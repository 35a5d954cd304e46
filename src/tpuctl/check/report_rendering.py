"""How findings are shown: for people, as rows with tabs and as JSON. Their text comes from the rules."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tpuctl.app.hints import report_with_typed_options
from tpuctl.check.colocation import TB, Relation
from tpuctl.check.findings import ACCEPTED_MARK, CheckReport, Finding, Level
from tpuctl.escaping import escape_unprintable
from tpuctl.names import region_of_zone
from tpuctl.output.column_widths import text_width
from tpuctl.output.prose import MAX_WIDTH, MIN_WIDTH, wrap_text
from tpuctl.output.terminal import Cell, Terminal, View, column_lines, styled

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.check.facts import WantedNode
    from tpuctl.check.zone_ranking import BucketProximity, ZoneRank, ZoneRanking

# Version of the JSON. Within a version fields may be added; none is removed or changes its meaning.
FINDINGS_SCHEMA_VERSION = 2

_LEVEL_STYLES = {
    Level.ERROR: "red",
    Level.WARNING: "yellow",
    Level.UNKNOWN: "magenta",
    Level.NOTE: "dim",
}
_LEVEL_PLURALS = {Level.ERROR: "errors", Level.WARNING: "warnings", Level.NOTE: "notes"}
_LEVEL_WIDTH = max(map(len, Level))
FINDINGS_COLUMNS = ("LEVEL", "ID", "SUBJECT", "TEXT", "WHY", "ADVICE")
# Up to this many subjects are named for which the text is the same.
_MAX_SUBJECTS = 5


def findings_view(
    report: CheckReport,
    *,
    about: Mapping[str, Any] | None = None,
    elapsed: timedelta | None = None,
    verbose: bool = False,
    can_fix: bool = False,
) -> View:
    """Return the view of a report; its text has a summary on stderr.

    JSON always has the names of the rules that were run, the text only with `verbose`. `can_fix`: the current command has
    `--fix`.
    `about` has additional JSON fields that describe what was checked; for a node they are its `target`.
    """

    def write(terminal: Terminal) -> None:
        width, colored = terminal.streams.width, terminal.colors_out
        terminal.note(report_summary(report, elapsed))
        terminal.page(findings_page(report, width=width, colored=colored, verbose=verbose, can_fix=can_fix))

    def write_rows(terminal: Terminal) -> None:
        rows = map(_finding_texts, report.findings)
        terminal.tsv(FINDINGS_COLUMNS, ([Cell(text) for text in row] for row in rows))
        terminal.note(report_summary(report, elapsed))

    return View(
        value=lambda: report_to_json(report, about or {}),
        text=write,
        names=lambda: dict.fromkeys(finding.id for finding in report.findings),
        tsv=write_rows,
        is_report=True,
    )


def _finding_texts(finding: Finding) -> tuple[str, ...]:
    """Return the columns of one finding."""
    found = finding.found
    text = f"{found.text} {ACCEPTED_MARK}" if finding.is_downgraded else found.text
    advice = "; ".join(one.text + (f": `{one.command}`" if one.command else "") for one in found.remedies)
    return str(finding.level), finding.id, found.subject, text, found.why or "", advice


# GitHub shows ten annotations of each level for a step.
_MAX_ANNOTATIONS = 10


def announce_findings(app: App, report: CheckReport) -> None:
    """Show errors and warnings as annotations, and all findings in the summary; in GitHub Actions only."""
    report, summary = report_with_typed_options(app, report), app.summary
    for level, kind in ((Level.ERROR, "error"), (Level.WARNING, "warning")):
        for finding in [one for one in report.of(level) if not one.is_downgraded][:_MAX_ANNOTATIONS]:
            app.terminal.annotate(kind, f"{finding.id} {finding.found.subject}", (finding.found.text,))
    if summary:
        summary.table(("level", "id", "subject", "text", "why", "advice"), map(_finding_texts, report.findings))
        summary.note(report_summary(report))


def findings_page(
    report: CheckReport, *, width: int, colored: bool, verbose: bool = False, can_fix: bool = False
) -> Iterator[str]:
    """Yield the lines for people: the worst first, findings of one subject together; with `verbose` what was examined."""
    subjects = list(dict.fromkeys(finding.found.subject for finding in report.findings))
    shown = sorted(report.findings, key=lambda one: (one.level.rank, subjects.index(one.found.subject)))
    for finding, *others in _fold_findings(shown):
        yield from finding_lines(finding, width=width, colored=colored, can_fix=can_fix)
        if others:
            # The subject of the block counts as named.
            names = [other.found.subject for other in others]
            named, more = ", ".join(names[: _MAX_SUBJECTS - 1]), len(names) - _MAX_SUBJECTS + 1
            text = f"the same is true of {named}" + (f" and {more} more" if more > 0 else "")
            yield from readable_lines(text, first="  ", rest="    ", width=width)
        yield ""
    if verbose:
        yield "examined:"
        yield from (f"  {id_}  {title}" for id_, title in sorted(report.examined.items()))


def _fold_findings(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """Yield groups of findings with the same text for many subjects, and single findings, in their order.

    Findings worse than a note are not grouped if they have a command, as each command must be shown.
    """
    alike: dict[object, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_finding_gist(finding), []).append(finding)
    for finding in findings:
        same = alike[_finding_gist(finding)]
        has_command = any(remedy.command for remedy in finding.found.remedies)
        if len(same) <= _MAX_SUBJECTS or (has_command and finding.level is not Level.NOTE):
            yield [finding]
        elif finding is same[0]:
            yield same


def _finding_gist(finding: Finding) -> tuple[object, ...]:
    """Return the text of a finding without the name of its subject."""
    found = finding.found
    bucket = f"gs://{found.subject.removeprefix('gs://').partition('/')[0]}"
    texts = (found.text, found.why or "", *(remedy.text for remedy in found.remedies))
    gist = (text.replace(found.subject, "").replace(bucket, "") for text in texts)
    return (finding.id, finding.level, finding.accepted, *gist)


def finding_lines(finding: Finding, *, width: int, colored: bool, can_fix: bool = False) -> Iterator[str]:
    """Yield the lines of one finding: level, id and subject; text; reason; remedies.

    Text is wrapped. A command has its own unbroken line, so that it can be copied.
    """
    found = finding.found
    yield _finding_header(finding, colored=colored)
    yield from readable_lines(found.text, first="  ", rest="  ", width=width)
    if found.why:
        yield from readable_lines(found.why, first="  why: ", rest="       ", width=width)
    for remedy in found.remedies:
        text = f"{remedy.text} (`--fix` does this)" if can_fix and remedy.change else remedy.text
        yield from readable_lines(text + (":" if remedy.command else ""), first="  → ", rest="    ", width=width)
        if remedy.command:
            yield "      " + styled(escape_unprintable(remedy.command), "cyan", colored=colored)


def report_summary(report: CheckReport, elapsed: timedelta | None = None) -> str:
    """Return the counts of a report: `2 errors, 1 warning, 3 unknown; 31 rules examined in 0.6 s`."""
    counts = [(level, len(report.of(level))) for level in Level]
    words = [f"{count} {_LEVEL_PLURALS.get(level, level) if count > 1 else level}" for level, count in counts if count]
    took = f" in {elapsed.total_seconds():.1f} s" if elapsed is not None else ""
    rules = f"{len(report.examined)} rule{'' if len(report.examined) == 1 else 's'} examined"
    return f"{', '.join(words) or 'no problem found'}; {rules}{took}"


def report_to_json(report: CheckReport, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report for scripts. Every field is always present; null or empty without a value."""
    return {
        "schemaVersion": FINDINGS_SCHEMA_VERSION,
        **about,
        "summary": {str(level): len(report.of(level)) for level in Level},
        "findings": [finding_to_json(finding) for finding in report.findings],
        "examined": [{"id": id_, "title": title} for id_, title in sorted(report.examined.items())],
    }


def wanted_to_json(wanted: WantedNode) -> dict[str, Any]:
    """Return the target of the check. `nodeId` is null if no node was named."""
    spec = wanted.spec
    return {
        "project": wanted.project,
        "zone": wanted.zone,
        "nodeId": wanted.name.node_id if wanted.name else None,
        "acceleratorType": spec.accelerator_type,
        "topology": spec.topology,
        "runtimeVersion": spec.runtime_version,
        "tier": str(spec.tier) if spec.tier else None,
        "creates": wanted.creates,
        "purpose": str(wanted.purpose),
        "buckets": [use.url for use in wanted.buckets],
        "machine": wanted.machine,
    }


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return one finding for scripts; every field is always present."""
    found = finding.found
    return {
        "id": finding.id,
        "title": finding.title,
        "level": str(finding.level),
        "accepted": finding.is_downgraded,
        "subject": found.subject,
        "text": found.text,
        "why": found.why,
        "remedies": [
            {"text": remedy.text, "command": remedy.command, "fixable": remedy.change is not None}
            for remedy in found.remedies
        ],
        "facts": json.loads(json.dumps(dict(found.facts))),
    }


def _finding_header(finding: Finding, *, colored: bool) -> str:
    level = styled(f"{finding.level:{_LEVEL_WIDTH}}", _LEVEL_STYLES[finding.level], colored=colored)
    about = styled(f"{finding.id}  {escape_unprintable(finding.found.subject)}", "bold", colored=colored)
    return f"{level}  {about}" + (f"  {ACCEPTED_MARK}" if finding.is_downgraded else "")


def readable_lines(text: str, *, first: str, rest: str, width: int) -> Iterator[str]:
    """Yield the text in lines of readable width, escaped."""
    return wrap_text(escape_unprintable(text), first=first, rest=rest, width=min(max(width, MIN_WIDTH), MAX_WIDTH))


ZONE_HEADER = ("ZONE", "BUCKETS", "TO READ 1 TB", "PER HOUR", "NOTES")
# Version of the JSON. Within a version fields may be added; none is removed or changes its meaning.
ZONES_SCHEMA_VERSION = 1

# Words and colors.
_RELATIONS = {
    Relation.SAME_ZONE: ("same zone", "green"),
    Relation.SAME_REGION: ("same region", "green"),
    Relation.DUAL_REGION: ("in its dual-region", "green"),
    Relation.MULTI_REGION: ("in its multi-region", "yellow"),
    Relation.SAME_AREA: ("same continent", "red"),
    Relation.OTHER_AREA: ("other continent", "red"),
    Relation.UNKNOWN: ("unknown", "magenta"),
}
# Up to this many buckets are named; more are counted by relation.
_MAX_BUCKETS = 2
# Up to this many regions are named with their co-located bucket locations.
_MAX_REGIONS = 3


def ranking_view(ranking: ZoneRanking) -> View:
    """Return the view of the zones, the best first; its text has notes on stderr."""
    rows = [_zone_row(zone) for zone in ranking.zones]

    def write(terminal: Terminal) -> None:
        width = terminal.streams.width
        if rows:
            terminal.page(_zones_page(rows, width=width, colored=terminal.colors_out))
        for note in _ranking_notes(ranking):
            terminal.note(*readable_lines(note, first="", rest="  ", width=width))

    def write_rows(terminal: Terminal) -> None:
        terminal.tsv(ZONE_HEADER, rows)
        for note in _ranking_notes(ranking):
            terminal.note(note)

    return View(
        value=lambda: ranking_to_json(ranking),
        text=write,
        names=lambda: (zone.zone for zone in ranking.zones),
        tsv=write_rows,
        is_report=True,
    )


def _zone_row(zone: ZoneRank) -> tuple[Cell, ...]:
    """Return the table row of one zone."""
    style = _RELATIONS[zone.worst][1] if zone.worst else ""
    # `-o tsv` has each location of each bucket; for a single one only the relation.
    words = [(proximity.use.url, _relation_words(proximity)) for proximity in zone.buckets]
    listed = words[0][1] if len(words) == 1 else ", ".join(f"{url} {where}" for url, where in words)
    notes = "; ".join(_zone_notes(zone))
    return (
        Cell(zone.zone),
        Cell(_buckets_words(zone), listed, style),
        Cell(_price_words(zone)),
        Cell(str(zone.price)),
        Cell(notes),
    )


def _zones_page(rows: Sequence[Sequence[Cell]], *, width: int, colored: bool) -> Iterator[str]:
    """Yield the lines for people: columns if they fit, else notes below their row, else each zone on its own lines.

    Words are never broken, at any width.
    """
    if _columns_fit(ZONE_HEADER, rows, width):
        yield from column_lines(ZONE_HEADER, rows, width=None, colored=colored)
        return
    shorter = [each[:-1] for each in rows]
    if _columns_fit(ZONE_HEADER[:-1], shorter, width):
        header, *lines = column_lines(ZONE_HEADER[:-1], shorter, width=None, colored=colored)
        yield header
        for line, each in zip(lines, rows, strict=True):
            yield line
            yield from _lines_below(each[-1:], width)
        return
    for zone, where, egress, node, further in rows:
        yield styled(escape_unprintable(zone.text), "bold", colored=colored)
        to_read = Cell(f"to read 1 TB: {egress.text}" if egress.text else "")
        yield from _lines_below((where, to_read, Cell(f"per hour: {node.text}"), further), width)


def _columns_fit(header: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    return all(text_width(line) <= width for line in column_lines(header, rows, width=None, colored=False))


def _lines_below(cells: Iterable[Cell], width: int) -> Iterator[str]:
    for cell in cells:
        if cell.text:
            yield from readable_lines(cell.text, first="  ", rest="    ", width=width)


def _ranking_notes(ranking: ZoneRanking) -> Iterator[str]:
    """Yield notes about the whole ranking: what is unknown, and which bucket locations would be co-located."""
    what = ranking.accelerator_type
    for bucket in ranking.unplaced:
        missing = f"; reading it takes the permission `{bucket.permission}`" if bucket.permission else ""
        yield f"`gs://{bucket.use.bucket}` is ignored: {bucket.reason}{missing}"
    if ranking.offline is not None:
        yield f"the zones are from the documentation, and may be outdated: {ranking.offline}"
    if not ranking.zones:
        yield f"no known zone offers {what}; `tpuctl types` lists all types"
        return
    if all(zone.is_apart for zone in ranking.zones):
        regions = {region_of_zone(zone.zone): " or ".join(zone.locations) for zone in ranking.zones}
        places = [f"{locations} for {region}" for region, locations in regions.items()][:_MAX_REGIONS]
        yield f"no zone with {what} is near every bucket; co-located buckets would be in {', '.join(places)}"


def ranking_to_json(ranking: ZoneRanking) -> dict[str, Any]:
    """Return the ranking for scripts. Every field is always present; null or empty without a value."""
    return {
        "schemaVersion": ZONES_SCHEMA_VERSION,
        "acceleratorType": ranking.accelerator_type,
        "zones": [_zone_to_json(zone) for zone in ranking.zones],
        "unplaced": [
            {"bucket": bucket.use.url, "reason": bucket.reason, "permission": bucket.permission}
            for bucket in ranking.unplaced
        ],
        "offline": ranking.offline,
    }


def _zone_to_json(zone: ZoneRank) -> dict[str, Any]:
    quota = zone.quota
    return {
        "zone": zone.zone,
        "region": region_of_zone(zone.zone),
        "relation": str(zone.worst) if zone.worst else None,
        **_price_to_json(zone.span),
        "nodePrice": zone.price.to_json(),
        "singleTenant": zone.single_tenant,
        "grants": [str(grant) for grant in zone.grants],
        "quotaLimit": quota.limit if quota else None,
        "quotaLeft": quota.left if quota else None,
        "quotaSuffices": quota.suffices if quota else None,
        "coLocated": list(zone.locations),
        "buckets": [
            {
                "bucket": proximity.use.url,
                "location": proximity.placement.location if proximity.placement else None,
                "relation": str(proximity.relation),
                **_price_to_json(proximity.price.cost(TB) if proximity.price else None),
                "priceDate": proximity.price.seen if proximity.price else None,
            }
            for proximity in zone.buckets
        ],
    }


def _price_to_json(span: tuple[Decimal, Decimal] | None) -> dict[str, float | None]:
    low, high = map(float, span) if span else (None, None)
    return {"pricePerTBLow": low, "pricePerTBHigh": high}


def _buckets_words(zone: ZoneRank) -> str:
    """Return the relation of the buckets to the zone: of a single one, of two with names, else counts, the nearest first.

    Several locations in one bucket count once.
    """
    places = {proximity.use.bucket: proximity for proximity in zone.buckets}
    if len(places) > _MAX_BUCKETS:
        relations = sorted((proximity.relation for proximity in places.values()), key=lambda relation: relation.rank)
        counts = Counter("co-located" if each.is_colocated else _RELATIONS[each][0] for each in relations)
        return ", ".join(f"{count} {group}" for group, count in counts.items())
    words = [_relation_words(proximity) for proximity in places.values()]
    if len(words) == 1:
        return words[0]
    return ", ".join(f"gs://{name} {where}" for name, where in zip(places, words, strict=True))


def _relation_words(proximity: BucketProximity) -> str:
    place = f" ({proximity.placement.location})" if proximity.placement else ""
    return _RELATIONS[proximity.relation][0] + place


def _price_words(zone: ZoneRank) -> str:
    if zone.span is None:
        return "unknown" if zone.buckets else ""
    low, high = zone.span
    more = " or more" if len(zone.prices) < len(zone.buckets) else ""
    if not high:
        return f"free{more}"
    billed = [price for price in zone.prices if not price.is_free]
    basis = ", ".join(sorted({"your settings" if price.is_own else f"list of {price.seen}" for price in billed}))
    return f"{f'${low:,}' if low == high else f'${low:,} to ${high:,}'}{more} ({basis})"


def _zone_notes(zone: ZoneRank) -> Iterator[str]:
    quota = zone.quota
    if zone.grants:
        yield f"grant: {' and '.join(map(str, zone.grants))}"
    if quota and quota.limit == 0:
        yield "the quota is 0"
    elif quota and quota.limit is not None:
        needed = f", {quota.needed} needed" if quota.suffices is False else ""
        if quota.left is None:
            yield f"quota of {quota.limit} {quota.unit}{needed}"
        else:
            yield f"{quota.left} of {quota.limit} {quota.unit} of quota left{needed}"
    if zone.single_tenant:
        yield "single tenant: only by agreement with Google"


# Shorter waits need no notice.
_NOTICE_AFTER = timedelta(seconds=2)


@contextmanager
def waiting_notice(terminal: Terminal, *, after: timedelta = _NOTICE_AFTER) -> Iterator[None]:
    """Show one notice on stderr of a terminal if the block takes longer, in real time, than `after`."""
    if not terminal.is_redrawn or terminal.quiet:
        yield
        return
    timer = threading.Timer(after.total_seconds(), terminal.note, ["still waiting for the cloud …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # So that the notice never interleaves with later output.
        timer.join()

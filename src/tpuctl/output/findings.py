"""How findings are shown: on a terminal, in a pipe and as JSON. Their text comes from the rules."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tpuctl.escaping import visible
from tpuctl.output.tables import Cell, styled, text_width
from tpuctl.output.terminal import Format
from tpuctl.preflight.findings import Level
from tpuctl.preflight.lines import ACCEPTED, is_milder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta

    from tpuctl.output.terminal import Terminal
    from tpuctl.preflight.evaluation import Report
    from tpuctl.preflight.findings import Finding
    from tpuctl.preflight.wanted import Wanted

# Version of the JSON. Within a version fields may be added; none is removed or changes its meaning.
SCHEMA_VERSION = 1

_STYLES = {Level.ERROR: "red", Level.WARNING: "yellow", Level.UNKNOWN: "magenta", Level.NOTE: "dim", Level.OK: "green"}
_PLURALS = {Level.ERROR: "errors", Level.WARNING: "warnings", Level.NOTE: "notes"}
_WORD = max(map(len, Level))
# Up to this many subjects are named for which the text is the same.
_NAMED = 5
# Longer lines are hard to read, shorter ones hard to wrap.
_WIDEST, _NARROWEST = 100, 40
# Words, and commands in backticks, which must stay on one line to be copied.
_WORDS = re.compile(r"(?:`[^`]*`|\S)+")


def show_findings(
    terminal: Terminal,
    report: Report,
    form: Format,
    *,
    wanted: Wanted | None = None,
    about: Mapping[str, Any] | None = None,
    elapsed: timedelta | None = None,
    verbose: bool = False,
    can_fix: bool = False,
    sandbox: bool = False,
) -> None:
    """Show a report on stdout; for a table also a summary on stderr.

    JSON always has the checks that are ok, other formats only with `verbose`. `can_fix`: the current command has `--fix`.
    `about` has additional JSON fields that describe what was checked; for a node they are its `target`.
    """
    if form in {Format.JSON, Format.YAML}:
        target = {"target": target_to_json(wanted)} if wanted else {}
        terminal.data(report_to_json(report, {**target, **(about or {})}, sandbox=sandbox), form)
        return
    if form is Format.NAME:
        terminal.names(dict.fromkeys(finding.id for finding in report.findings if finding.level is not Level.OK))
        return
    if terminal.is_interactive:
        width, colored = terminal.streams.width, terminal.colors_out
        terminal.page(page(report, width=width, colored=colored, verbose=verbose, can_fix=can_fix))
    else:
        terminal.table((), [_row(finding) for finding in report.findings if verbose or finding.level is not Level.OK])
    terminal.note(summary(report, elapsed))


def page(report: Report, *, width: int, colored: bool, verbose: bool = False, can_fix: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal: the worst first, findings of one subject together, one line for all that are ok."""
    shown = [finding for finding in report.findings if finding.level is not Level.OK]
    subjects = list(dict.fromkeys(finding.found.subject for finding in shown))
    in_order = sorted(shown, key=lambda one: (one.level.rank, subjects.index(one.found.subject)))
    for finding, *others in _folded(in_order):
        yield from block(finding, width=width, colored=colored, can_fix=can_fix)
        if others:
            # The subject of the block counts as named.
            names = [other.found.subject for other in others]
            named, more = ", ".join(names[: _NAMED - 1]), len(names) - _NAMED + 1
            text = f"the same is true of {named}" + (f" and {more} more" if more > 0 else "")
            yield from wrapped(text, first="  ", rest="    ", width=width)
        yield ""
    fine = report.of(Level.OK)
    if verbose:
        for finding in fine:
            yield f"{_header(finding, colored=colored)}  {visible(finding.found.text)}"
    elif fine:
        yield styled(f"{len(fine)} check{'' if len(fine) == 1 else 's'} ok", _STYLES[Level.OK], colored=colored)


def _folded(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return groups of findings with the same text for many subjects, and single findings, in their order.

    Findings worse than a note are not grouped if they have a command, as each command must be shown.
    """
    alike: dict[Any, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_gist(finding), []).append(finding)
    groups: list[list[Finding]] = []
    for finding in findings:
        same = alike[_gist(finding)]
        has_command = any(remedy.command for remedy in finding.found.remedies)
        if len(same) <= _NAMED or (has_command and finding.level is not Level.NOTE):
            groups.append([finding])
        elif finding is same[0]:
            groups.append(same)
    return groups


def _gist(finding: Finding) -> tuple[object, ...]:
    """Return the text of a finding without the name of its subject."""
    found = finding.found
    bucket = found.subject.removeprefix("gs://").partition("/")[0]
    texts = (found.text, found.why or "", *(remedy.text for remedy in found.remedies))
    gist = tuple(text.replace(found.subject, "").replace(f"gs://{bucket}", "") for text in texts)
    return (finding.id, finding.level, finding.accepted, *gist)


def block(finding: Finding, *, width: int, colored: bool, can_fix: bool = False) -> Iterator[str]:
    """Yield the lines of one finding: level, id and subject; text; reason; remedies.

    Text is wrapped. A command has its own unbroken line, so that it can be copied.
    """
    found = finding.found
    yield _header(finding, colored=colored)
    yield from wrapped(found.text, first="  ", rest="  ", width=width)
    if found.why:
        yield from wrapped(found.why, first="  why: ", rest="       ", width=width)
    for remedy in found.remedies:
        colon = ":" if remedy.command else ""
        yield from wrapped(
            (f"{remedy.text} (`--fix` does this)" if can_fix and remedy.change else remedy.text) + colon,
            first="  → ",
            rest="    ",
            width=width,
        )
        if remedy.command:
            yield "      " + styled(visible(remedy.command), "cyan", colored=colored)


def summary(report: Report, elapsed: timedelta | None = None) -> str:
    """Return the counts of a report: `2 errors, 1 warning, 3 unknown, 1 note, 17 ok in 0.6 s`."""
    counts = [(level, len(report.of(level))) for level in Level]
    words = [f"{count} {_PLURALS.get(level, level) if count > 1 else level}" for level, count in counts if count]
    took = f" in {elapsed.total_seconds():.1f} s" if elapsed is not None else ""
    return (", ".join(words) or "nothing was checked") + took


def to_json(report: Report, wanted: Wanted, *, sandbox: bool) -> dict[str, Any]:
    """Return the report on a wanted node for scripts, as `report_to_json` does."""
    return report_to_json(report, {"target": target_to_json(wanted)}, sandbox=sandbox)


def report_to_json(report: Report, about: Mapping[str, Any], *, sandbox: bool) -> dict[str, Any]:
    """Return a report for scripts. Every field is always present; null or empty without a value."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        **about,
        "summary": {str(level): len(report.of(level)) for level in Level},
        "findings": [finding_to_json(finding) for finding in report.findings],
        **({"sandbox": True} if sandbox else {}),
    }


def target_to_json(wanted: Wanted) -> dict[str, Any]:
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
        "accepted": is_milder(finding),
        "subject": found.subject,
        "text": found.text,
        "why": found.why,
        "remedies": [
            {"text": remedy.text, "command": remedy.command, "fixable": remedy.change is not None}
            for remedy in found.remedies
        ],
        "facts": json.loads(json.dumps(dict(found.facts))),
    }


def _row(finding: Finding) -> tuple[Cell, ...]:
    """Return all of the finding in one row, as the log of a CI job may be the only source of information."""
    found = finding.found
    text = f"{found.text} {ACCEPTED}" if is_milder(finding) else found.text
    advice = [remedy.text + (f": `{remedy.command}`" if remedy.command else "") for remedy in found.remedies]
    return tuple(map(Cell, (str(finding.level), finding.id, found.subject, text, found.why or "", "; ".join(advice))))


def _header(finding: Finding, *, colored: bool) -> str:
    level = styled(f"{finding.level:{_WORD}}", _STYLES[finding.level], colored=colored)
    about = styled(f"{finding.id}  {visible(finding.found.subject)}", "bold", colored=colored)
    return f"{level}  {about}" + (f"  {ACCEPTED}" if is_milder(finding) else "")


def wrapped(text: str, *, first: str, rest: str, width: int) -> Iterator[str]:
    """Yield the text in lines of readable width. Words and quoted commands are never broken, even if they are longer."""
    room = min(max(width, _NARROWEST), _WIDEST)
    line, words = first, _WORDS.findall(visible(text))
    for index, word in enumerate(words):
        if index and text_width(line) + text_width(word) > room:
            yield line.rstrip()
            line = rest
        line += word + " "
    yield line.rstrip()

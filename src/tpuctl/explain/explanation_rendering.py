"""Render verdicts on a log, explanations of ids, and topics: as text for people, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.check.report_rendering import readable_lines
from tpuctl.durations import format_timestamp
from tpuctl.escaping import escape_unprintable
from tpuctl.explain.conclusion import Confidence
from tpuctl.explain.unrecognised import SEARCH_TERM
from tpuctl.output.terminal import Cell, styled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpuctl.explain.conclusion import Conclusion, Explanation
    from tpuctl.explain.log_lines import LogPlace, Sighting
    from tpuctl.explain.lookup import IdEntry, Topic
    from tpuctl.explain.messages import Message

# Version of the JSON. A version may gain fields; no field is removed or changes its meaning.
SCHEMA_VERSION = 1

_STYLES = {Confidence.HIGH: "red", Confidence.MEDIUM: "yellow", Confidence.LOW: "dim"}
_MAX_WORKERS_NAMED = 8
_MULTIPLICATION_SIGN = "\N{MULTIPLICATION SIGN}"


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the verdicts for scripts. Every field is always present, null or empty without a value."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "verdicts": [_verdict_to_json(one) for one in explanation.conclusions],
        "harmless": [_verdict_to_json(one) for one in explanation.harmless],
        "suspicious": [
            {
                "line": place.line,
                "text": place.text,
                "file": place.source,
                "worker": place.worker,
                "time": _format_log_time(place.time),
            }
            for place in explanation.suspicious
        ],
        "lines": explanation.lines,
        "bytes": explanation.size,
    }


EXPLANATION_COLUMNS = (
    "ID", "ACTION", "WHERE", "CONFIDENCE", "SYMPTOM OF", "LINE", "COUNT", "WORKER", "MEANING", "ADVICE",
)  # fmt: skip


def explanation_rows(explanation: Explanation) -> Iterator[tuple[Cell, ...]]:
    """Yield one complete row for each verdict."""
    for one in explanation.conclusions:
        first, message = one.sighting.first, one.sighting.message
        words = (
            *(one.id, one.action, message.where, one.confidence, one.symptom_of or "", first.line or ""),
            *(one.sighting.count, first_failed_worker(one) or "", one.meaning, "; ".join(one.remedy)),
        )
        yield tuple(Cell(str(word)) for word in words)


def render_explanation(explanation: Explanation, *, width: int, colored: bool) -> Iterator[str]:
    """Yield the lines for a person: each cause with its evidence and remedy, then its symptoms, then what is harmless."""
    by_id = {one.id: one for one in explanation.conclusions}
    symptoms: dict[str, list[Conclusion]] = {}
    for one in explanation.conclusions:
        root = one
        for _ in by_id:
            if root.symptom_of is None or root.symptom_of not in by_id:
                break
            root = by_id[root.symptom_of]
        if one.symptom_of is not None:
            symptoms.setdefault(root.id, []).append(one)
    for one in explanation.conclusions:
        if one.symptom_of is None:
            yield from _render_cause(one, width=width, colored=colored)
            for symptom in symptoms.get(one.id, ()):
                head = styled(f"  symptom: {symptom.id}", "yellow", colored=colored)
                yield "  ".join(filter(None, (head, _where_met(symptom), _repeats(symptom.sighting))))
                yield from _hang("    ", symptom.meaning, width)
                # An uncertain cause must not hide the remedy of the symptom.
                for line in symptom.remedy if symptom.confidence is not Confidence.HIGH else ():
                    yield from _hang("    → ", line, width)
            yield ""
    if explanation.harmless:
        named = ", ".join(f"`{one.id}` ({_where_met(one)})" for one in explanation.harmless)
        yield from readable_lines(f"harmless: {named}", first="", rest="  ", width=width)


def render_suspects(explanation: Explanation, *, colored: bool) -> Iterator[str]:
    """Yield the lines that look most like an error, with their numbers."""
    numbers = [_numbered(place) for place in explanation.suspicious]
    digits = max(map(len, numbers), default=0)
    for number, place in zip(numbers, explanation.suspicious, strict=True):
        yield styled(f"{number:>{digits}}", "dim", colored=colored) + f"  {_text(place)}"


def first_failed_worker(conclusion: Conclusion) -> str | None:
    """Return the worker that logged the message first, or the one that it names; None if the log names none."""
    sighting = conclusion.sighting
    blamed = sighting.facts.get("tasks", "").split(",")[0]
    # The name of a task ends with the number of its worker: `/job:jax_worker/replica:0/task:37`.
    named = sighting.facts.get("worker") or sighting.facts.get("task", "").rpartition(":")[2] or blamed
    if named or not sighting.workers:
        return named or sighting.first.worker
    timed = [place.time for place in sighting.workers.values() if place.time is not None]
    if len(timed) == len(sighting.workers) and len({time.tzinfo is None for time in timed}) == 1:
        return min(sighting.workers, key=lambda worker: sighting.workers[worker].time or timed[0])
    return next(iter(sighting.workers))


def _render_cause(conclusion: Conclusion, *, width: int, colored: bool) -> Iterator[str]:
    sighting, confidence = conclusion.sighting, conclusion.confidence
    head = styled(conclusion.id, _STYLES[confidence], colored=colored)
    head += styled(f"  {_where_met(conclusion)}", "bold", colored=colored)
    yield head if confidence is Confidence.HIGH else f"{head}  ({confidence} confidence)"
    yield from _hang("  ", conclusion.meaning, width)
    if conclusion.why:
        yield from _hang("  why: ", conclusion.why, width)
    if repeats := _repeats(sighting):
        yield f"  {repeats}"
    if len(sighting.workers) > 1:
        worker = first_failed_worker(conclusion)
        others = [other for other in sighting.workers if other != worker]
        more = f" and {len(others) - _MAX_WORKERS_NAMED} more" if len(others) > _MAX_WORKERS_NAMED else ""
        named = ", ".join(others[:_MAX_WORKERS_NAMED])
        yield from _hang("  ", f"first on {_worker(worker)}, then on {named}{more}", width)
    if sighting.first.line:
        evidence = f"{_numbered(sighting.first)} │ {_text(sighting.first)}"
        for line in readable_lines(evidence, first="  ", rest="    ", width=width):
            yield styled(line, "dim", colored=colored)
    for line in conclusion.remedy:
        yield from _hang("  → ", line, width)
    if term := sighting.facts.get(SEARCH_TERM):
        yield from _hang("  search for: ", term, width)
    if topics := sighting.message.topics:
        yield from _hang("  ", f"more: {_topic_commands(topics)}", width)


def _hang(first: str, text: str, width: int) -> Iterator[str]:
    """Yield a text whose further lines are indented as far as the first."""
    return readable_lines(text, first=first, rest=" " * len(first), width=width)


def _topic_commands(topics: Sequence[str]) -> str:
    return ", ".join(f"`tpuctl explain --topic {topic}`" for topic in topics)


def _where_met(conclusion: Conclusion) -> str:
    first, worker = conclusion.sighting.first, first_failed_worker(conclusion)
    if not first.line:
        return first.text
    blamed = conclusion.sighting.facts.get("tasks", "")
    workers = f"workers {blamed}" if "," in blamed else _worker(worker) if worker else ""
    parts = [workers, f"line {_numbered(first)}"]
    return ", ".join(part for part in parts if part)


def _text(place: LogPlace) -> str:
    # Logs contain many tabs, which are unreadable as escapes.
    return escape_unprintable(place.text.replace("\t", " "))


def _numbered(place: LogPlace) -> str:
    return f"{place.source}:{place.line}" if place.source else str(place.line)


def _repeats(sighting: Sighting) -> str:
    """Return how often and when, such as `10:04 to 12:04`: with dates if it took days, by lines without times."""
    if sighting.count < 2:
        return ""
    first, last = sighting.first, sighting.last
    if first.time is None or last.time is None:
        return f"{_MULTIPLICATION_SIGN}{sighting.count}, lines {first.line} to {last.line}"
    early, late = first.time, last.time
    if (early.tzinfo is None) == (late.tzinfo is None) and late < early:
        early, late = late, early
    form = "%H:%M" if early.date() == late.date() else "%Y-%m-%d %H:%M"
    if early.date() == late.date() and f"{early:{form}}" == f"{late:{form}}":
        form = "%H:%M:%S"
    return f"{_MULTIPLICATION_SIGN}{sighting.count}, {early:{form}} to {late:{form}}"


def _worker(worker: str | None) -> str:
    return f"worker {worker}" if worker and worker.isdigit() else str(worker)


def _verdict_to_json(conclusion: Conclusion) -> dict[str, Any]:
    sighting = conclusion.sighting
    message = sighting.message
    facts: dict[str, Any] = dict(sighting.facts)
    if (use := sighting.memory) is not None:
        # The sizes that the log gives, in bytes.
        sizes = {"used_bytes": use.used, "limit_bytes": use.limit, "over_bytes": use.over}
        facts |= {"space": use.space, **{name: size for name, size in sizes.items() if size is not None}}
        if use.allocations:
            facts["largest"] = [
                {"bytes": one.size, "shape": one.shape, "operator": one.operator, "padding_bytes": one.padding}
                for one in use.allocations
            ]
    return {
        "id": conclusion.id,
        "action": str(conclusion.action),
        "where": str(message.where),
        "confidence": str(conclusion.confidence),
        "symptom_of": conclusion.symptom_of,
        "facts": facts,
        "first_line": sighting.first.line or None,
        "count": sighting.count,
        "remedy": list(conclusion.remedy),
        "meaning": conclusion.meaning,
        "why": conclusion.why,
        "evidence": sighting.first.text,
        "file": sighting.first.source,
        "worker": first_failed_worker(conclusion),
        "workers": list(sighting.workers),
        "last_line": sighting.last.line or None,
        "first_time": _format_log_time(sighting.first.time),
        "last_time": _format_log_time(sighting.last.time),
        "recovered_line": conclusion.recovered.line if conclusion.recovered else None,
        "retriable": message.retriable,
        "topics": list(message.topics),
    }


def _format_log_time(time: datetime | None) -> str | None:
    """Return a time of the log: RFC 3339 in UTC if it has a zone, else unchanged."""
    if time is None:
        return None
    return time.isoformat() if time.tzinfo is None else format_timestamp(time)


def render_entry(entry: IdEntry, *, width: int, colored: bool) -> Iterator[str]:
    """Yield what an id means, its usual causes, and what to do."""
    title = f"  {entry.title}" if entry.title else ""
    yield styled(entry.id, "bold", colored=colored) + title
    yield from _hang("  ", entry.meaning, width)
    for cause in entry.causes:
        yield from _hang("  cause: ", cause, width)
    for line in entry.remedy:
        yield from _hang("  → ", line, width)
    message = entry.message
    details = {
        "kind of remedy": str(message.action) if message else "",
        "check first": str(message.check_first or "").replace("-", " ") if message else "",
        "more": _topic_commands(message.topics) if message else "",
        "exit code": "" if entry.exit_code is None else str(entry.exit_code),
        "see also": _listed(entry.related),
        "source": message.source if message else "",
    }
    for label, text in details.items():
        if text:
            yield from readable_lines(f"{label}: {text}", first="  ", rest="    ", width=width)


def entry_to_json(entry: IdEntry) -> dict[str, Any]:
    """Return the explanation of an id for scripts. Every field is always present, null or empty without a value."""
    message = entry.message
    return {
        "id": entry.id,
        "origin": str(entry.origin),
        "title": entry.title,
        "meaning": entry.meaning,
        "causes": list(entry.causes),
        "remedy": list(entry.remedy),
        "exit_code": entry.exit_code,
        "related": list(entry.related),
        "action": str(message.action) if message else None,
        "where": str(message.where) if message else None,
        "check_first": str(message.check_first) if message and message.check_first else None,
        "retriable": message.retriable if message else None,
        "topics": list(message.topics) if message else [],
        "source": message.source if message else None,
    }


def render_topic(topic: Topic, about: Sequence[Message], *, width: int, colored: bool) -> Iterator[str]:
    """Yield the advice on a topic, and the messages that name it."""
    yield styled(topic.id, "bold", colored=colored) + f"  {topic.title}"
    for paragraph in topic.text:
        yield from _hang("  ", paragraph, width)
        yield ""
    for line in topic.advice:
        yield from _hang("  → ", line, width)
    for command in topic.commands:
        yield "      " + styled(escape_unprintable(command), "cyan", colored=colored)
    if topic.see:
        yield from readable_lines(f"see also: {_listed(topic.see)}", first="  ", rest="    ", width=width)
    if others := [message.id for message in about if message.id not in topic.see]:
        yield from readable_lines(f"messages on this topic: {_listed(others)}", first="  ", rest="    ", width=width)
    yield from readable_lines(f"source: {topic.source}", first="  ", rest="    ", width=width)


def topic_to_json(topic: Topic, about: Sequence[Message]) -> dict[str, Any]:
    """Return a topic for scripts."""
    return {
        "id": topic.id,
        "title": topic.title,
        "text": list(topic.text),
        "advice": list(topic.advice),
        "commands": list(topic.commands),
        "see": list(topic.see),
        "messages": [message.id for message in about],
        "source": topic.source,
    }


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(f"`{id_}`" for id_ in ids)

"""The check right before a node is created: errors prevent it, warnings are shown, and no query is sent twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tpuctl import __version__
from tpuctl.check.facts import CheckFacts, CheckSettings, Fact, Unknown, WantedNode
from tpuctl.check.findings import (
    ALL_CHECKS,
    CheckReport,
    Finding,
    Level,
    RuleResult,
    evaluate_rules,
    warning_line,
)
from tpuctl.check.gathering import FactGatherer, Sources
from tpuctl.check.rules import RULES
from tpuctl.check.rules.quota_rules import (
    BUDGET_CHECK,
    PRICE_CHECK,
    budget_excess,
    price_is_within_limit,
    project_is_within_budget,
)
from tpuctl.check.zone_ranking import ZoneRanking, rank_zones
from tpuctl.decoding import ShapeError, decoder_of, encode
from tpuctl.durations import format_timestamp
from tpuctl.errors import CheckFailedError, TpuctlError
from tpuctl.files import read_json_cache, write_json_cache
from tpuctl.models.api_values import ApiText, ApiTime
from tpuctl.models.events import EventKind, NodeEvent

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.clock import Clock
    from tpuctl.cloud.tpu import NodeListing
    from tpuctl.models.node import Node, Tier
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName

# Answers serve all nodes of one run, and the results of later runs, for as long.
_KEPT_FOR = timedelta(minutes=10)
_SHOWN_LEVELS = (Level.WARNING, Level.UNKNOWN)


class PreflightCheck:
    """Checks each node of one run before it is created. `real` is the real clock, as a network takes real time."""

    def __init__(
        self,
        sources: Callable[[], Sources],
        settings: CheckSettings,
        memory: CheckCache,
        *,
        accepted: frozenset[str],
        timeout: timedelta,
        real: Clock,
        now: Callable[[], datetime],
        identity: str,
        only_limits: bool = False,
    ) -> None:
        self._sources, self.settings, self._memory = sources, settings, memory
        self._accepted, self._timeout, self._real, self._now = accepted, timeout, real, now
        self._identity = identity
        # Only the limits on the cost are checked: `watch` waits for what else may be missing.
        self._only_limits = only_limits
        self._gatherer: tuple[FactGatherer, datetime] | None = None
        # Quota, grants and price depend on the capacity type, and a search tries several.
        self._passed: dict[tuple[NodeName, Tier | None], datetime] = {}
        self.siblings: Mapping[NodeName, NodeSpec] = {}

    def check(
        self, name: NodeName, spec: NodeSpec, *, replaces: Node | None, tell: Callable[[NodeEvent], None]
    ) -> None:
        """Return if the node may be created. `replaces` is the node that is deleted first.

        Raises `CheckFailedError` with the errors and how to fix them, `CredentialsError`.
        """
        now, passed = self._now(), self._passed.get((name, spec.tier))
        if self._only_limits:
            self._check_limits(name, spec, replaces=replaces)
            return
        if ALL_CHECKS in self._accepted or (passed is not None and now - passed < _KEPT_FOR):
            return
        others = tuple(spec for other, spec in self.siblings.items() if other != name)
        wanted = self.settings.wanted(name.project, name.zone, spec, name=name, replaces=replaces, siblings=others)
        key = check_key(wanted, self._accepted, self._identity)
        # What else is billed may have changed since: a budget is checked with what is there now.
        cached = None if wanted.budget is not None else self._memory.get(key)
        findings = _findings_from_cache(cached)
        if findings is None:
            report = self.report(wanted)
            if errors := report.of(Level.ERROR):
                raise check_failed_error(errors, wanted.what)
            findings = report.of(*_SHOWN_LEVELS)
        self._passed[name, spec.tier] = now
        # The node that is created now uses quota and grants, so that cached results for other nodes are outdated.
        self._memory.clear(keep=key)
        for line in warning_lines(findings):
            tell(NodeEvent(EventKind.NOTE, now, name, line, {"check": True}))

    def _check_limits(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None) -> None:
        # One queued resource requests all slices of a group.
        others = (spec,) * (len(spec.queued_slices(name)) - 1)
        wanted = self.settings.wanted(name.project, name.zone, spec, name=name, replaces=replaces, siblings=others)
        resources = self._new_gatherer().resources(name.project) if wanted.budget is not None else None
        facts = CheckFacts(now=self._now(), wanted=wanted, project=Unknown("not needed"), resources=resources)
        report = evaluate_rules(facts, (price_is_within_limit, project_is_within_budget), accepted=self._accepted)
        if errors := report.of(Level.ERROR):
            raise check_failed_error(errors, wanted.what)

    def warn_if_over_budget(self, name: NodeName, spec: NodeSpec, *, tell: Callable[[NodeEvent], None]) -> None:
        """Warn if concurrent runs together exceed the budget. Call it right after a creation.

        Nothing is deleted, and an answer that is missing is not said: the check before the creation had it.
        """
        if self.settings.budget is None or self._accepted & {ALL_CHECKS, BUDGET_CHECK}:
            return
        now, wanted = self._now(), self.settings.wanted(name.project, name.zone, spec, name=name)
        with suppress(TpuctlError):
            resources = self._new_gatherer().resources(name.project)
            if excess := budget_excess(wanted, resources, now):
                tell(NodeEvent(EventKind.NOTE, now, name, f"{excess}; nothing was deleted", {"check": True}))

    @property
    def max_price(self) -> Decimal | None:
        """The price limit in dollars per hour; None without one, and if its check is skipped."""
        return None if self._accepted & {ALL_CHECKS, PRICE_CHECK} else self.settings.max_price

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query of the last report."""
        return self._gatherer is not None and self._gatherer[0].has_answer

    def discard_answers(self) -> None:
        """Discard all answers, as something was changed; the next report sends its queries again."""
        self._gatherer = None

    def ranking(self, project: str, spec: NodeSpec, zones: tuple[str, ...]) -> ZoneRanking:
        """Return the zones that offer the type of a spec, or those of `zones` that do, the best first."""
        settings, now = self.settings, self._now()
        found = self._new_gatherer().zone_facts(settings.wanted(project, "", spec))
        return rank_zones(
            spec,
            project=project,
            today=now.date(),
            zones=zones,
            grants=settings.grants,
            egress_prices=settings.egress_prices,
            **found._asdict(),
        )

    def nodes(self, project: str) -> Fact[NodeListing]:
        """Return the nodes of all zones. The next report shares their deadline and does not list them again."""
        self._gatherer = self._new_gatherer(), self._now()
        return self._gatherer[0].nodes(project)

    def report(self, wanted: WantedNode) -> CheckReport:
        """Run the rules on the current facts and return the report; cache it if it has no errors. Raises `CredentialsError`."""
        now = self._now()
        if self._gatherer is None or now - self._gatherer[1] > _KEPT_FOR:
            self._gatherer = self._new_gatherer(), now
        facts = self._gatherer[0].facts(wanted, now)
        report = evaluate_rules(facts, RULES, accepted=self._accepted)
        if report.of(Level.ERROR):
            # The situation has changed, and other cached results may be wrong too.
            self._memory.clear()
        elif report.is_lasting:
            cached = [_finding_to_cache(finding) for finding in report.of(*_SHOWN_LEVELS)]
            self._memory.put(check_key(wanted, self._accepted, self._identity), cached)
        return report

    def _new_gatherer(self) -> FactGatherer:
        return FactGatherer(self._sources(), self._real, self._timeout)


_NOT_READ_BY_RULES = {"metadata", "labels", "description", "setup", "named", "ttl", "expires"}


def check_key(wanted: WantedNode, accepted: frozenset[str], identity: str) -> str:
    """Return the cache key of a check: a hash of everything that rules read, and of the identity of the caller."""
    parts = [
        *(__version__, identity, wanted.project, wanted.zone, str(wanted.name)),
        # Fewer rules apply to an existing node, so that its result does not permit to create it.
        *(wanted.creates, wanted.replaces and wanted.replaces.id),
        [
            {name: value for name, value in spec.to_json().items() if name not in _NOT_READ_BY_RULES}
            for spec in (wanted.spec, *wanted.siblings)
        ],
        sorted(accepted),
        {entry.name: getattr(wanted, entry.name) for entry in fields(CheckSettings)},
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def check_failed_error(errors: tuple[Finding, ...], what: str) -> CheckFailedError:
    """Return the error with all findings and their remedies."""
    count = f"{what} was not created: the check found {len(errors)} error{'s' * (len(errors) > 1)}"
    lines = []
    for finding in errors:
        lines.append(f"  {finding.headline}")
        lines += [f"    {finding.found.why}"] if finding.found.why else []
        lines += [
            f"    → {remedy.text}" + (f": `{remedy.command}`" if remedy.command else "")
            for remedy in finding.found.remedies
        ]
    ids = tuple(dict.fromkeys(finding.id for finding in errors))
    skip = " ".join(f"--skip-check {id_}" for id_ in ids)
    limits = [f"`{_LIMITS[id_]}`" for id_ in ids if id_ in _LIMITS]
    if not limits:
        return CheckFailedError(count, details=lines, hint=f"fix it, or continue with `{skip}`")
    hint = f"raise the limit with {' and '.join(limits)}, or choose what costs less"
    return CheckFailedError(count, details=lines, hint=f"{hint}\n`{skip}` creates it without any limit on its cost")


# How to raise the limit that a check holds.
_LIMITS = {PRICE_CHECK: "--max-price PRICE", BUDGET_CHECK: "--budget PRICE"}


def warning_lines(findings: tuple[Finding, ...]) -> list[str]:
    """Return a line for each warning, and one line for everything that could not be read."""
    lines = [warning_line(finding) for finding in findings if finding.level is Level.WARNING]
    unknown = dict.fromkeys(finding.id for finding in findings if finding.level is Level.UNKNOWN)
    if unknown:
        lines.append(f"not checked, because it could not be read: {', '.join(unknown)} (`tpuctl check` says why)")
    return lines


@dataclass(frozen=True, slots=True)
class _CachedFinding:
    id: ApiText
    level: Level
    subject: ApiText
    text: ApiText
    accepted: bool
    why: ApiText | None = None


def _finding_to_cache(finding: Finding) -> dict[str, Any]:
    found = finding.found
    return encode(
        _CachedFinding(finding.id, found.level, found.subject, found.text, accepted=finding.accepted, why=found.why)
    )


def _findings_from_cache(cached: Any) -> tuple[Finding, ...] | None:  # JSON
    """Return the cached findings; None if the value does not have the form that `_finding_to_cache` writes."""
    try:
        entries = decoder_of(tuple[_CachedFinding, ...])(cached)
    except ShapeError:
        return None
    return tuple(
        Finding(entry.id, "", RuleResult(entry.level, entry.subject, entry.text, entry.why), accepted=entry.accepted)
        for entry in entries
    )


_MAX_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    at: ApiTime
    said: Any


class CheckCache:
    """A cache file of recent checks without errors, readable by its owner only.

    Entries are kept for ten minutes by `clock`. A file that cannot be read or written is ignored.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock

    def get(self, key: str) -> Any:  # JSON, as it was stored
        """Return the cached value; None if it is missing or too old."""
        entry = self._entries().get(key)
        return entry.said if entry else None

    def put(self, key: str, value: Any) -> None:  # JSON
        """Store a value and remove entries that are too old."""
        self._write({**self._entries(), key: _CacheEntry(self._clock.now(), value)})

    def clear(self, *, keep: str = "") -> None:
        """Remove all entries, except that of the key `keep`."""
        entries = self._entries()
        if kept := {key: entry for key, entry in entries.items() if key == keep}:
            self._write(kept)
        elif entries:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write(self, entries: Mapping[str, _CacheEntry]) -> None:
        newest = list(entries.items())[-_MAX_ENTRIES:]
        written = {
            key: {"at": format_timestamp(entry.at), "said": entry.said} for key, entry in newest if entry.at is not None
        }
        write_json_cache(self._path, written)

    def _entries(self) -> dict[str, _CacheEntry]:
        now = self._clock.now()
        return {
            key: entry
            for key, entry in read_json_cache(self._path, _CacheEntry).items()
            if entry.at is not None and timedelta() <= now - entry.at < _KEPT_FOR
        }

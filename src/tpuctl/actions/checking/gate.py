"""The check right before a node is created: errors prevent it, warnings are shown, and no query is sent twice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl import __version__
from tpuctl.errors import CheckFailedError
from tpuctl.events import Event, EventKind
from tpuctl.preflight.evaluation import ALL, Report, evaluate
from tpuctl.preflight.findings import Finding, Found, Level
from tpuctl.preflight.lines import head, warning_line
from tpuctl.preflight.wanted import Wishes
from tpuctl.shapes import Fields, ListOf, Scalar, Shape, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpuctl.actions.checking.gathering import Gathering
    from tpuctl.actions.checking.sources import Sources
    from tpuctl.actions.cloud import NodeListing
    from tpuctl.clock import Clock
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.preflight.fact import Fact
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule
    from tpuctl.preflight.wanted import Wanted
    from tpuctl.preflight.zones import Ranking

# Answers serve all nodes of one run, but not for longer than they are cached between runs.
_LASTS = timedelta(minutes=10)
_SAID = (Level.WARNING, Level.UNKNOWN)


class Memory(Protocol):
    """A cache of recent checks without errors."""

    def get(self, key: str) -> Any:  # JSON
        """Return the cached value; None if it is missing or too old."""

    def put(self, key: str, value: Any) -> None:  # JSON
        """Store a value."""

    def clear(self, *, keep: str = "") -> None:
        """Remove all entries, except that of the key `keep`."""


class Gate:
    """Checks each node of one run before it is created. `real` is the real clock, as a network takes real time."""

    def __init__(
        self,
        sources: Callable[[], Sources],
        wishes: Wishes,
        memory: Memory,
        *,
        accepted: frozenset[str],
        timeout: timedelta,
        real: Clock,
        now: Callable[[], datetime],
        identity: str,
    ) -> None:
        self._sources, self._wishes, self._memory = sources, wishes, memory
        self._accepted, self._timeout, self._real, self._now = accepted, timeout, real, now
        self._identity = identity
        self._gathering: tuple[Gathering, datetime] | None = None
        self._passed: dict[NodeName, datetime] = {}
        self.siblings: Mapping[NodeName, NodeSpec] = {}

    def check(self, name: NodeName, spec: NodeSpec, *, replaces: Node | None, tell: Callable[[Event], None]) -> None:
        """Return if the node may be created. `replaces` is the node that is deleted first.

        Raises `CheckFailedError` with the errors and how to fix them, `CredentialsError`.
        """
        now = self._now()
        if ALL in self._accepted or (name in self._passed and now - self._passed[name] < _LASTS):
            return
        others = tuple(spec for other, spec in self.siblings.items() if other != name)
        wanted = self._wishes.wanted(name.project, name.zone, spec, name=name, replaces=replaces, siblings=others)
        key = question_key(wanted, self._accepted, self._identity)
        remembered = self._memory.get(key)
        findings = _read(remembered)
        if findings is None:
            report = self.report(wanted)
            if errors := report.of(Level.ERROR):
                raise failure(errors, wanted.what)
            findings = report.of(*_SAID)
        self._passed[name] = now
        # The node that is created now uses quota and grants, so that cached results for other nodes are outdated.
        self._memory.clear(keep=key)
        for line in said(findings):
            tell(Event(EventKind.NOTE, now, name, line, {"check": True}))

    @property
    def wishes(self) -> Wishes:
        """What the user says about every node."""
        return self._wishes

    @property
    def has_answer(self) -> bool:
        """Return whether the cloud has answered any query of the last report."""
        return self._gathering is not None and self._gathering[0].has_answer

    def discard_answers(self) -> None:
        """Discard all answers, as something was changed; the next report sends its queries again."""
        self._gathering = None

    def ranking(self, project: str, spec: NodeSpec, zones: tuple[str, ...]) -> Ranking:
        """Return the zones that offer the type of a spec, or those of `zones` that do, the best first."""
        from tpuctl.preflight.zones import rank  # noqa: PLC0415  # only needed without a zone

        wishes, now = self._wishes, self._now()
        found = self._new_gathering().everywhere(wishes.wanted(project, "", spec))
        return rank(
            spec,
            project=project,
            today=now.date(),
            zones=zones,
            offers=found.offers,
            buckets=found.buckets,
            quotas=found.quotas,
            held=found.held,
            grants=wishes.grants,
            egress_prices=wishes.egress_prices,
        )

    def nodes(self, project: str) -> Fact[NodeListing]:
        """Return the nodes of all zones. The next report shares their deadline and does not list them again."""
        self._gathering = self._new_gathering(), self._now()
        return self._gathering[0].nodes(project)

    def report(self, wanted: Wanted) -> Report:
        """Run the rules on the current facts and return the report; cache it if it has no errors. Raises `CredentialsError`."""
        now = self._now()
        if self._gathering is None or now - self._gathering[1] > _LASTS:
            self._gathering = self._new_gathering(), now
        facts = self._gathering[0].facts(wanted, now, meanwhile=_rules)
        report = evaluate(facts, _rules(), accepted=self._accepted)
        if report.of(Level.ERROR):
            # The situation has changed, and other cached results may be wrong too.
            self._memory.clear()
        elif report.is_lasting:
            key = question_key(wanted, self._accepted, self._identity)
            said = [
                {
                    "id": finding.id,
                    "accepted": finding.accepted,
                    "level": str(finding.found.level),
                    "subject": finding.found.subject,
                    "text": finding.found.text,
                    "why": finding.found.why,
                }
                for finding in report.of(*_SAID)
            ]
            self._memory.put(key, said)
        return report

    def _new_gathering(self) -> Gathering:
        from tpuctl.actions.checking.gathering import Gathering  # noqa: PLC0415  # 20 ms, and most runs create nothing

        return Gathering(self._sources(), self._real, self._timeout)


def question_key(wanted: Wanted, accepted: frozenset[str], identity: str) -> str:
    """Return the cache key of a check: a hash of everything that rules read, and of the identity of the caller."""
    wishes = {entry.name: getattr(wanted, entry.name) for entry in fields(Wishes)}
    about = [
        *(__version__, identity, wanted.project, wanted.zone, str(wanted.name)),
        # Fewer rules apply to an existing node, so that its result does not permit to create it.
        *(wanted.creates, wanted.replaces and wanted.replaces.id),
        *(_weighed(wanted.spec), [_weighed(other) for other in wanted.siblings], sorted(accepted), wishes),
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()


def _weighed(spec: NodeSpec) -> dict[str, Any]:
    """Return the parts of a spec that rules read."""
    unseen = {"metadata", "labels", "description", "setup", "named"}
    return {name: value for name, value in spec.to_json().items() if name not in unseen}


def failure(errors: tuple[Finding, ...], what: str) -> CheckFailedError:
    """Return the error with all findings and their remedies."""
    count = f"{what} was not created: the check found {len(errors)} error{'s' * (len(errors) > 1)}"
    lines = []
    for finding in errors:
        lines.append(f"  {head(finding)}")
        lines += [f"    {finding.found.why}"] if finding.found.why else []
        lines += [
            f"    → {remedy.text}" + (f": `{remedy.command}`" if remedy.command else "")
            for remedy in finding.found.remedies
        ]
    skip = " ".join(f"--skip-check {id_}" for id_ in dict.fromkeys(finding.id for finding in errors))
    return CheckFailedError(count, details=lines, hint=f"fix it, or continue with `{skip}`")


def said(findings: tuple[Finding, ...]) -> list[str]:
    """Return a line for each warning, and one line for everything that could not be read."""
    lines = [warning_line(finding) for finding in findings if finding.level is Level.WARNING]
    unknown = dict.fromkeys(finding.id for finding in findings if finding.level is Level.UNKNOWN)
    if unknown:
        lines.append(f"not checked, because it could not be read: {', '.join(unknown)} (`tpuctl check` says why)")
    return lines


def _rules() -> tuple[Rule[Facts], ...]:
    from tpuctl.preflight.rules import RULES  # noqa: PLC0415  # 20 ms, which pass while queries are running

    return RULES


_FIELDS: Fields = {
    **dict.fromkeys(("id", "subject", "text", "why"), str),
    "accepted": bool,
    "level": Scalar("a level", lambda value: value in list(Level)),
}
_REMEMBERED = ListOf(Shape("", _FIELDS, required=("id", "level", "subject", "text", "accepted"), nullable=True))


def _read(remembered: Any) -> tuple[Finding, ...] | None:  # written by `report`
    """Return the cached findings; None if the value does not have the form that `report` writes."""
    try:
        _REMEMBERED.check(remembered)
    except ShapeError:
        return None
    return tuple(
        Finding(
            entry["id"],
            "",
            Found(level=Level(entry["level"]), subject=entry["subject"], text=entry["text"], why=entry.get("why")),
            accepted=entry["accepted"],
        )
        for entry in remembered
    )

"""From which addresses the firewall rules of a network allow a TCP port. Pure; IPv4 only, as workers have no IPv6.

Rules apply in the order of their priority number; at the same number, deny rules come first. Traffic that no rule
matches is denied [API field text of Firewall]. Hierarchical and network firewall policies belong to other APIs and are
not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tpuctl.names import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.model.network import FirewallRule

SSH = 22
# Source range of the tunnels of Identity-Aware Proxy [documentation of IAP TCP forwarding].
IAP_RANGE = "35.235.240.0/20"
_PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
# Never a source address outside: reserved ranges, and those of Google's health checks [documentation].
_RESERVED = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "35.191.0.0/16", "130.211.0.0/22")
_LAST = 2**32 - 1
_TCP = ("tcp", "6", "all")

# First and last address, as numbers.
Span = tuple[int, int]


class Area(Enum):
    """Where a connection comes from: outside Google Cloud, a private address, or a tunnel of Identity-Aware Proxy."""

    OUTSIDE = "outside"
    INSIDE = "inside"
    IAP = "iap"

    @property
    def spans(self) -> list[Span]:
        """The addresses of the area."""
        match self:
            case Area.OUTSIDE:
                return _without([(0, _LAST)], _spans((*_PRIVATE, *_RESERVED, IAP_RANGE)))
            case Area.INSIDE:
                return _spans(_PRIVATE)
            case Area.IAP:
                return _spans((IAP_RANGE,))


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that rules apply to. `account` is None if unknown."""

    network: str
    tags: frozenset[str]
    account: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The addresses that a rule decides, without those that an earlier rule has decided."""

    rule: str
    denies: bool
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """From which addresses a port can be reached.

    `for_machines` are rules that allow machines of the network by tag or account; they never apply to outside addresses
    [API field text].
    """

    verdicts: tuple[Verdict, ...]
    for_machines: tuple[str, ...]

    def reach(self, area: Area) -> tuple[str, ...]:
        """Return the ranges of an area that can reach the port, as few as possible."""
        from ipaddress import IPv4Address, summarize_address_range  # noqa: PLC0415  # as above

        return tuple(
            str(network)
            for first, last in _common(area.spans, self._allowed)
            for network in summarize_address_range(IPv4Address(first), IPv4Address(last))
        )

    def covers(self, area: Area) -> bool:
        """Return whether every address of an area can reach the port."""
        return not _without(area.spans, self._allowed)

    def allowed_by(self, area: Area) -> tuple[str, ...]:
        """Return the rules that allow addresses of an area."""
        return self._deciding(area, denies=False)

    def denied_by(self, area: Area) -> tuple[str, ...]:
        """Return the rules that deny addresses of an area."""
        return self._deciding(area, denies=True)

    @property
    def _allowed(self) -> list[Span]:
        return _merged(span for verdict in self.verdicts if not verdict.denies for span in verdict.spans)

    def _deciding(self, area: Area, *, denies: bool) -> tuple[str, ...]:
        spans = area.spans
        return tuple(one.rule for one in self.verdicts if one.denies is denies and _common(spans, one.spans))


def openings(rules: Iterable[FirewallRule], target: Target, *, port: int = SSH) -> tuple[Opening, Opening]:
    """Return the smallest and the largest set of addresses that can reach the port.

    They differ only if rules apply to service accounts and the target's account is unknown.
    """
    ordered = sorted(
        (rule for rule in rules if _concerns(rule, target.network, port)),
        key=lambda rule: (rule.priority, not rule.denies, rule.name),
    )
    meant = [(rule, _is_for(rule, target)) for rule in ordered]
    least = [rule for rule, is_for in meant if (rule.denies if is_for is None else is_for)]
    most = [rule for rule, is_for in meant if (not rule.denies if is_for is None else is_for)]
    return _opening(least), _opening(most)


def _concerns(rule: FirewallRule, network: str, port: int) -> bool:
    if not rule.is_ingress or rule.is_disabled or rule.network != network:
        return False
    listed = [rule.protocols[name] for name in _TCP if name in rule.protocols]
    if not all(listed):
        return True  # a protocol without ports means all of them
    for text in (text for ports in listed for text in ports):
        first, _, last = text.partition("-")
        low, high = whole_number(first), whole_number(last or first)
        if low is not None and high is not None and low <= port <= high:
            return True
    return False


def _is_for(rule: FirewallRule, target: Target) -> bool | None:
    """Return whether a rule applies to the target; None if that depends on an unknown account."""
    if rule.target_tags:
        return bool(target.tags & set(rule.target_tags))
    if rule.target_accounts:
        return None if target.account is None else target.account in rule.target_accounts
    return True


def _opening(ordered: Iterable[FirewallRule]) -> Opening:
    undecided: list[Span] = [(0, _LAST)]
    verdicts: list[Verdict] = []
    machines: list[str] = []
    for rule in ordered:
        by_machine = bool(rule.source_tags or rule.source_accounts)
        if by_machine and not rule.denies:
            machines.append(rule.name)
        # A rule without sources applies to all of them [API field text].
        spans = _spans(rule.source_ranges if rule.source_ranges or by_machine else ("0.0.0.0/0",))
        if decided := _common(undecided, spans):
            verdicts.append(Verdict(rule.name, rule.denies, tuple(decided)))
            undecided = _without(undecided, spans)
    return Opening(tuple(verdicts), tuple(machines))


def _spans(ranges: Iterable[str]) -> list[Span]:
    from ipaddress import IPv4Network  # noqa: PLC0415  # only where rules are judged

    networks = [IPv4Network(text, strict=False) for text in ranges if ":" not in text]
    return _merged((int(network[0]), int(network[-1])) for network in networks)


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    left = _merged(spans)
    for start, end in taken:
        kept = [(first, min(last, start - 1)) for first, last in left if first < start]
        left = kept + [(max(first, end + 1), last) for first, last in left if last > end]
    return sorted(left)


def _common(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    both = list(spans)
    return _without(both, _without(both, others))

"""The network of the node: whether it exists, has a subnetwork in the region, and allows ssh.

Each unreadable fact is reported once: the network by TPU601, the subnetwork by TPU602, the firewall rules by TPU604. If the
network does not exist, the rules about its contents are silent. Hierarchical and network firewall policies belong to other
APIs and are not read. Only IPv4 is considered, as workers have no IPv6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from typing import TYPE_CHECKING, Any

from tpuctl.check.facts import Absent, Known, NetworkInterface, Unknown, value_or_none
from tpuctl.check.findings import (
    Level,
    OpenFirewall,
    Remedy,
    RuleResult,
    check_rule,
    create_network_command,
    enable_private_access_command,
    list_networks_command,
    list_subnetworks_command,
    unread_result,
)
from tpuctl.models.compute_resources import FirewallRule
from tpuctl.names import parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.check.facts import CheckFacts
    from tpuctl.check.findings import CheckRule
    from tpuctl.models.compute_resources import Subnetwork


_MAX_NAMES = 4
_USE_IAP = "connect through Identity-Aware Proxy: `--iap`"


@check_rule("TPU604", "the firewall allows ssh")
def firewall_allows_ssh(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether firewall rules allow ssh (TCP port 22) to the workers.

    Rules apply in the order of their priority, deny rules before allow rules; rules for tags or service accounts apply if the
    node has one of them. With external addresses it is a warning if no outside address is allowed, and a note if only some
    are, as your address is unknown. Without external addresses, or with `--internal-ip`, it is a warning if no machine of the
    network is allowed. With `--iap` TPU605 checks instead. It is never an error, because hierarchical and network firewall
    policies are not read and may decide otherwise. Source: API field text of Firewall.
    """
    interface, wanted = _effective_interface(facts), facts.wanted
    subject = _network_subject(interface)
    if isinstance(facts.firewalls, Unknown | Absent):
        what, permission = "the firewall rules, which decide whether ssh is allowed,", "compute.firewalls.list"
        yield unread_result(facts.firewalls, subject, what, permission=permission, project=interface.project)
        return
    if wanted.iap or not isinstance(facts.firewalls, Known) or isinstance(facts.network, Absent):
        return
    from_inside = wanted.internal_ip or not interface.has_external_addresses
    judge = _ssh_from_inside if from_inside else _ssh_from_outside
    found, other = (
        judge(facts, interface, one) for one in port_access(facts.firewalls.value, _firewall_target(facts, interface))
    )
    # They differ if the result depends on the workers' account and that is unknown; TPU506 reports it.
    if found == other:
        yield found


@check_rule("TPU605", "the firewall allows Identity-Aware Proxy")
def firewall_allows_iap(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether firewall rules allow tunnels of Identity-Aware Proxy (35.235.240.0/20) to TCP port 22 of the workers.

    Checked if ssh uses such a tunnel (`--iap`), and if workers have no external address: it is a warning if they do not. Rules
    apply as in TPU604. Hierarchical and network firewall policies are not read and may decide otherwise. Source: documentation
    of IAP TCP forwarding.
    """
    interface, wanted = _effective_interface(facts), facts.wanted
    rules = value_or_none(facts.firewalls)
    is_asked = wanted.iap or not (interface.has_external_addresses or wanted.internal_ip)
    if rules is None or not is_asked or isinstance(facts.network, Absent):
        return
    subject = _network_subject(interface)
    least, most = port_access(rules, _firewall_target(facts, interface))
    if least.covers(SourceArea.IAP):
        text = (
            f"tunnels of Identity-Aware Proxy can reach port 22 ({_join_rule_names(least.allowed_by(SourceArea.IAP))})"
        )
        yield RuleResult(Level.OK, subject, text, facts={"sourceRanges": [IAP_RANGE]})
    elif not most.covers(SourceArea.IAP):
        yield RuleResult(
            Level.WARNING,
            subject,
            f"no firewall rule of network `{interface.network}` allows tunnels of Identity-Aware Proxy ({IAP_RANGE}) "
            f"to port 22{_denied_words(most, SourceArea.IAP)}",
            why="ssh through a tunnel fails with error 4003"
            if wanted.iap
            else "without external addresses, ssh needs a tunnel or a machine inside the network",
            remedies=(_allow_iap_remedy(rules, facts, interface),),
            facts={"network": interface.network, "sourceRanges": [IAP_RANGE]},
        )


def _effective_interface(facts: CheckFacts) -> NetworkInterface:
    """Return the interface; if only a subnetwork is named, in the network of that subnetwork."""
    interface, found = NetworkInterface.of(facts.wanted), value_or_none(facts.subnetwork)
    if interface.is_named or not interface.subnetwork or found is None or not found.network:
        return interface
    return replace(interface, network=found.network)


def _network_subject(interface: NetworkInterface) -> str:
    return f"network {interface.network}"


def _firewall_target(facts: CheckFacts, interface: NetworkInterface) -> FirewallTarget:
    return FirewallTarget(interface.network, frozenset(facts.wanted.spec.tags), facts.account)


def _ssh_from_outside(facts: CheckFacts, interface: NetworkInterface, access: PortAccess) -> RuleResult:
    subject, ranges, rules = (
        _network_subject(interface),
        access.reach(SourceArea.OUTSIDE),
        access.allowed_by(SourceArea.OUTSIDE),
    )
    values = {"network": interface.network, "rules": list(rules)}
    if access.covers(SourceArea.OUTSIDE):
        text = f"ssh is allowed from everywhere ({_join_rule_names(rules)})"
        return RuleResult(Level.OK, subject, text, facts=values | {"sourceRanges": ["0.0.0.0/0"]})
    if ranges:
        more = f" and {len(ranges) - _MAX_NAMES} more ranges" if len(ranges) > _MAX_NAMES else ""
        return RuleResult(
            Level.NOTE,
            subject,
            f"ssh is allowed only from {', '.join(ranges[:_MAX_NAMES])}{more}; tpuctl does not know your address",
            why=f"because of {_join_rule_names(rules)}",
            facts=values | {"sourceRanges": list(ranges)},
        )
    known_rules = value_or_none(facts.firewalls) or ()
    if access.covers(SourceArea.IAP):
        use_iap = Remedy(_USE_IAP)
    else:
        allow_iap = _allow_iap_remedy(known_rules, facts, interface)
        # Its command, not its change: with the change alone ssh still does not use the tunnel.
        use_iap = Remedy(f"{_USE_IAP}, and {allow_iap.text}", allow_iap.command)
    command = (
        f"`gcloud compute firewall-rules create {_unused_rule_name(known_rules, 'allow-ssh')} --project={interface.project} "
        f"--network={interface.network} --direction=INGRESS --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32`"
    )
    if denied := access.denied_by(SourceArea.OUTSIDE):
        command += f", with a `--priority` before {_join_rule_names(denied)}"
    return RuleResult(
        Level.WARNING,
        subject,
        f"no firewall rule of network `{interface.network}` allows ssh (tcp:22) from outside"
        f"{_denied_words(access, SourceArea.OUTSIDE)}",
        why="tpuctl cannot connect to external addresses of the workers, nor find out when they are ready",
        remedies=(
            use_iap,
            Remedy(f"or allow your own address: {command}"),
            Remedy("or run tpuctl on a machine of the network, with `--internal-ip`"),
        ),
        facts=values | {"sourceRanges": []},
    )


def _ssh_from_inside(_: CheckFacts, interface: NetworkInterface, access: PortAccess) -> RuleResult:
    subject = _network_subject(interface)
    values: dict[str, Any] = {"network": interface.network}  # JSON
    if access.reach(SourceArea.INSIDE):
        rules = access.allowed_by(SourceArea.INSIDE)
        text = f"ssh is allowed from inside the network ({_join_rule_names(rules)})"
        return RuleResult(Level.OK, subject, text, facts=values | {"rules": list(rules)})
    if access.for_machines:
        text = f"ssh is allowed only from machines with a tag or account of {_join_rule_names(access.for_machines)}"
        values |= {"rules": list(access.for_machines)}
        return RuleResult(Level.NOTE, subject, text, facts=values)
    return RuleResult(
        Level.WARNING,
        subject,
        f"no firewall rule of network `{interface.network}` allows ssh (tcp:22) from inside it"
        f"{_denied_words(access, SourceArea.INSIDE)}",
        why="workers are reached at their internal addresses, and no machine of the network is allowed",
        remedies=(Remedy(_USE_IAP), Remedy("or allow tcp:22 from the network's own ranges")),
        facts=values,
    )


def _allow_iap_remedy(rules: tuple[FirewallRule, ...], facts: CheckFacts, interface: NetworkInterface) -> Remedy:
    """Return the rule that allows tunnels; text only if an existing deny rule would still come first."""
    name = _unused_rule_name(rules, "allow-ssh-from-iap", f"allow-ssh-from-iap-{interface.network}"[:63].rstrip("-"))
    new = OpenFirewall(interface.project, interface.network, name, (IAP_RANGE,))
    as_rule = FirewallRule(
        name=new.name,
        network=new.network,
        is_ingress=True,
        is_disabled=False,
        denies=False,
        priority=1000,  # the default [API field text]
        source_ranges=new.source_ranges,
        source_tags=(),
        source_accounts=(),
        target_tags=(),
        target_accounts=(),
        protocols={"tcp": new.ports},
    )
    least, _ = port_access((*rules, as_rule), _firewall_target(facts, interface))
    if least.covers(SourceArea.IAP):
        return Remedy.by(new, f"allow its range {IAP_RANGE}")
    return Remedy(
        f"allow its range {IAP_RANGE} by a rule with a priority before {_join_rule_names(least.denied_by(SourceArea.IAP))}"
    )


def _unused_rule_name(rules: tuple[FirewallRule, ...], *names: str) -> str:
    """Return the first name that no rule of the project has; names are unique in a project [API]."""
    taken = {one.name for one in rules}
    numbered = (f"{names[-1][:60]}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (*names, *numbered) if name not in taken)


def _join_rule_names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + more


def _denied_words(access: PortAccess, area: SourceArea) -> str:
    denied = access.denied_by(area)
    return f"; {_join_rule_names(denied)} {'deny' if len(denied) > 1 else 'denies'} it" if denied else ""


_USES_DEFAULT = "the API uses network `default` if none is named"


@check_rule("TPU601", "the network exists")
def network_exists(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the node's network exists: the named one, else `default`.

    It is an error if it does not exist; a warning for an existing node. Many organisations have no network `default`. A legacy
    network is a warning: it has no subnetworks, can no longer be created, and whether Cloud TPU accepts it is unverified. A
    network of another project (Shared VPC) is looked up there. Source: API field text of NetworkConfig; documentation of VPC
    networks.
    """
    interface = NetworkInterface.of(facts.wanted)
    name, project, subject = interface.network, interface.project, f"network {interface.network}"
    where = {"network": name, "networkProject": project}
    match facts.network:
        case None:
            return
        case Unknown() as fact:
            yield unread_result(fact, subject, f"network `{name}`", permission="compute.networks.get", project=project)
        case Absent():
            yield _missing_network_result(facts, interface, subject)
        case Known(value) if value.is_legacy:
            yield RuleResult(
                Level.WARNING,
                subject,
                f"network `{name}` is a legacy network without subnetworks",
                why="legacy networks lack many features, and Cloud TPU may reject them",
                remedies=(Remedy("name a network with subnetworks: `--network`", list_networks_command(project)),),
                facts={**where, "mode": "legacy"},
            )
        case Known(value):
            mode = "auto" if value.is_auto else "custom"
            text = f"network `{name}` exists, in {mode} mode"
            yield RuleResult(Level.OK, subject, text, facts={**where, "mode": mode})


@check_rule("TPU602", "a subnetwork in the region")
def subnetwork_is_in_region(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the node's network has a subnetwork in the region of the zone.

    It is an error if the named subnetwork does not exist there, or is in another region or another network; a warning for an
    existing node. It is a warning if none is named and the network is in custom mode: the API then uses a subnetwork `default`,
    which is not looked up. A subnetwork without a named network is a warning unless it belongs to `default`, which the API
    uses then. A network in auto mode has a subnetwork with its own name in every region; a missing one is a warning. Source:
    API field text of NetworkConfig; documentation of VPC networks.
    """
    interface, region = NetworkInterface.of(facts.wanted), facts.wanted.region
    name = interface.subnetwork or interface.network
    where = {"subnetwork": name, "region": region}
    if interface.region not in {None, region}:
        yield _misplaced_subnetwork_result(interface, interface.region, facts)
        return
    match facts.subnetwork:
        case None:
            return
        case Unknown() if facts.is_without_zone:
            return  # the region may not exist either; TPU301 reports that
        case Unknown() as fact:
            what, permission = f"subnetwork `{name}` in {region}", "compute.subnetworks.get"
            yield unread_result(fact, _subnetwork_subject(name), what, permission=permission, project=interface.project)
        case Known(value) if interface.subnetwork and value.region not in {"", region}:
            yield _misplaced_subnetwork_result(interface, value.region, facts)
        case Known(value) if interface.subnetwork:
            values = {"subnetwork": value.name, "region": value.region, "network": value.network}
            if value.network in {"", interface.network}:
                text = f"subnetwork `{value.name}` is in {region} and belongs to network `{interface.network}`"
                yield RuleResult(Level.OK, _subnetwork_subject(value.name), text, facts=values)
                return
            named = interface.is_named
            yield RuleResult(
                _creation_level(facts) if named else Level.WARNING,
                _subnetwork_subject(value.name),
                f"subnetwork `{value.name}` belongs to network `{value.network}`, "
                + (f"not to `{interface.network}`" if named else "and no network is named"),
                why=None if named else _USES_DEFAULT,
                remedies=(Remedy(f"name its network: `--network={value.network}`"),),
                facts=values,
            )
        case Absent() if interface.subnetwork:
            yield _misplaced_subnetwork_result(interface, None, facts)
        case Known() | Absent() as fact:
            yield from _judge_default_subnetwork(fact, interface, facts, where)


@check_rule("TPU603", "access to Google APIs")
def private_access_is_on(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether workers without external addresses can reach Google APIs and buckets.

    It is a warning if the node has no external addresses and its subnetwork lacks Private Google Access. Cloud NAT would work
    too, and is not read. Source: API field text of `enableExternalIps`.
    """
    interface, found = NetworkInterface.of(facts.wanted), value_or_none(facts.subnetwork)
    if found is None or interface.has_external_addresses:
        return
    if found.private_google_access:
        text = f"subnetwork `{found.name}` has Private Google Access"
        yield RuleResult(Level.OK, _subnetwork_subject(found.name), text, facts={"privateIpGoogleAccess": True})
        return
    command = enable_private_access_command(interface.project, found.region or facts.wanted.region, found.name)
    yield RuleResult(
        Level.WARNING,
        _subnetwork_subject(found.name),
        f"the workers have no external address, and subnetwork `{found.name}` has no Private Google Access",
        why="they can reach neither Google APIs nor buckets, except through Cloud NAT, which is not read",
        remedies=(Remedy("enable it; this is free and breaks nothing", command),),
        facts={"privateIpGoogleAccess": False, "subnetwork": found.name, "region": found.region},
    )


def _subnetwork_subject(name: str) -> str:
    return f"subnetwork {name}"


def _creation_level(facts: CheckFacts) -> Level:
    """Return the level of a problem that prevents creation; an existing node was created in spite of it."""
    return Level.ERROR if facts.wanted.creates else Level.WARNING


def _missing_network_result(facts: CheckFacts, interface: NetworkInterface, subject: str) -> RuleResult:
    name, project = interface.network, interface.project
    where = {"network": name, "networkProject": project}
    listed = Remedy("name one of the project's networks: `--network`", list_networks_command(project))
    if not interface.is_named and interface.subnetwork:
        subnetwork = value_or_none(facts.subnetwork)
        return RuleResult(
            Level.WARNING,
            subject,
            f"no network is named with subnetwork `{interface.subnetwork}`, and project `{project}` has no `default`",
            why=_USES_DEFAULT,
            remedies=(
                Remedy(f"name it: `--network={subnetwork.network}`") if subnetwork and subnetwork.network else listed,
            ),
            facts=where,
        )
    if name != "default":
        text = f"project `{project}` has no network `{name}`"
        return RuleResult(_creation_level(facts), subject, text, remedies=(listed,), facts=where)
    create = "or create it; a new network has no firewall rules, so that ssh must be allowed as well"
    return RuleResult(
        _creation_level(facts),
        subject,
        f"project `{project}` has no network `default`, and no other is named",
        why="a node needs a network; many organisations delete `default` or never create it",
        remedies=(listed, Remedy(create, create_network_command(project, "default"))),
        facts=where,
    )


def _judge_default_subnetwork(
    fact: Known[Subnetwork] | Absent, interface: NetworkInterface, facts: CheckFacts, where: dict[str, str]
) -> Iterator[RuleResult]:
    """Judge a node whose spec names no subnetwork; `fact` is the subnetwork with the network's own name."""
    network, region, subject = value_or_none(facts.network), facts.wanted.region, _subnetwork_subject(interface.network)
    if network is None or network.is_legacy:
        return
    belongs = isinstance(fact, Known) and fact.value.network in {"", network.name}
    listed = list_subnetworks_command(interface.project, network.name)
    # If none is named, the API uses the subnetwork `default` in networks of every mode [API field text].
    if belongs and (network.is_auto or network.name == "default"):
        text = f"network `{network.name}` has a subnetwork in {region}"
        yield RuleResult(Level.OK, subject, text, facts=where)
    elif network.is_auto:
        yield RuleResult(
            Level.WARNING,
            subject,
            f"network `{network.name}` is in auto mode, but has no subnetwork `{network.name}` in {region}",
            why="a node needs a subnetwork in the region of its zone",
            remedies=(Remedy("name another: `--subnetwork`", listed),),
            facts=where,
        )
    elif facts.wanted.creates:
        flag = f"`--subnetwork={network.name}`" if belongs else "`--subnetwork`"
        yield RuleResult(
            Level.WARNING,
            subject,
            f"network `{network.name}` is in custom mode, and no subnetwork is named",
            why=f"such a network has no default; the API uses a subnetwork called `default` in {region}, if it exists",
            remedies=(Remedy(f"name one in {region}: {flag}", listed),),
            facts=where,
        )


def _misplaced_subnetwork_result(interface: NetworkInterface, found_in: str | None, facts: CheckFacts) -> RuleResult:
    """Return the finding that the subnetwork is not in the region of the node; `found_in` is None if it does not exist."""
    region, name = facts.wanted.region, interface.subnetwork or interface.network
    project = interface.project
    text = (
        f"project `{project}` has no subnetwork `{name}` in {region}"
        if found_in is None
        else f"subnetwork `{name}` is in region {found_in}, the node in {region}"
    )
    return RuleResult(
        _creation_level(facts),
        _subnetwork_subject(name),
        text,
        why="the subnetwork of a node must be in the region of its zone",
        remedies=(
            Remedy(f"name one in {region}: `--subnetwork`", list_subnetworks_command(project, interface.network)),
        ),
        facts={"subnetwork": name, "region": region},
    )


SSH_PORT = 22
# Source range of the tunnels of Identity-Aware Proxy [documentation of IAP TCP forwarding].
IAP_RANGE = "35.235.240.0/20"
_PRIVATE_RANGES = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
# Never a source address outside: reserved ranges, and those of Google's health checks [documentation].
_RESERVED_RANGES = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "35.191.0.0/16", "130.211.0.0/22")
_LAST_ADDRESS = 2**32 - 1
_TCP_PROTOCOLS = ("tcp", "6", "all")

# First and last address, as numbers.
AddressSpan = tuple[int, int]


class SourceArea(Enum):
    """Where a connection comes from: outside Google Cloud, a private address, or a tunnel of Identity-Aware Proxy."""

    OUTSIDE = "outside"
    INSIDE = "inside"
    IAP = "iap"

    @property
    def spans(self) -> list[AddressSpan]:
        """The addresses of the area."""
        match self:
            case SourceArea.OUTSIDE:
                return _subtract_spans(
                    [(0, _LAST_ADDRESS)], _address_spans((*_PRIVATE_RANGES, *_RESERVED_RANGES, IAP_RANGE))
                )
            case SourceArea.INSIDE:
                return _address_spans(_PRIVATE_RANGES)
            case SourceArea.IAP:
                return _address_spans((IAP_RANGE,))


@dataclass(frozen=True, slots=True)
class FirewallTarget:
    """The machine that rules apply to. `account` is None if unknown."""

    network: str
    tags: frozenset[str]
    account: str | None


@dataclass(frozen=True, slots=True)
class FirewallVerdict:
    """The addresses that a rule decides, without those that an earlier rule has decided."""

    rule: str
    denies: bool
    spans: tuple[AddressSpan, ...]


@dataclass(frozen=True, slots=True)
class PortAccess:
    """From which addresses a port can be reached.

    `for_machines` are rules that allow machines of the network by tag or account; they never apply to outside addresses
    [API field text].
    """

    verdicts: tuple[FirewallVerdict, ...]
    for_machines: tuple[str, ...]

    def reach(self, area: SourceArea) -> tuple[str, ...]:
        """Return the ranges of an area that can reach the port, as few as possible."""
        return tuple(
            str(network)
            for first, last in _intersect_spans(area.spans, self._allowed)
            for network in summarize_address_range(IPv4Address(first), IPv4Address(last))
        )

    def covers(self, area: SourceArea) -> bool:
        """Return whether every address of an area can reach the port."""
        return not _subtract_spans(area.spans, self._allowed)

    def allowed_by(self, area: SourceArea) -> tuple[str, ...]:
        """Return the rules that allow addresses of an area."""
        return self._deciding(area, denies=False)

    def denied_by(self, area: SourceArea) -> tuple[str, ...]:
        """Return the rules that deny addresses of an area."""
        return self._deciding(area, denies=True)

    @property
    def _allowed(self) -> list[AddressSpan]:
        return _merge_spans(span for verdict in self.verdicts if not verdict.denies for span in verdict.spans)

    def _deciding(self, area: SourceArea, *, denies: bool) -> tuple[str, ...]:
        spans = area.spans
        return tuple(one.rule for one in self.verdicts if one.denies is denies and _intersect_spans(spans, one.spans))


def port_access(
    rules: Iterable[FirewallRule], target: FirewallTarget, *, port: int = SSH_PORT
) -> tuple[PortAccess, PortAccess]:
    """Return the smallest and the largest set of addresses that can reach the port.

    Rules apply in the order of their priority number; at the same number, deny rules come first. Traffic that no rule
    matches is denied [API field text of Firewall].

    They differ only if rules apply to service accounts and the target's account is unknown.
    """
    ordered = sorted(
        (rule for rule in rules if _applies_to_port(rule, target.network, port)),
        key=lambda rule: (rule.priority, not rule.denies, rule.name),
    )
    applicable = [(rule, _applies_to_target(rule, target)) for rule in ordered]
    least = [rule for rule, is_for in applicable if (rule.denies if is_for is None else is_for)]
    most = [rule for rule, is_for in applicable if (not rule.denies if is_for is None else is_for)]
    return _evaluate_rules(least), _evaluate_rules(most)


def _applies_to_port(rule: FirewallRule, network: str, port: int) -> bool:
    if not rule.is_ingress or rule.is_disabled or rule.network != network:
        return False
    listed = [rule.protocols[name] for name in _TCP_PROTOCOLS if name in rule.protocols]
    if not all(listed):
        return True  # a protocol without ports means all of them
    for text in (text for ports in listed for text in ports):
        first, _, last = text.partition("-")
        low, high = parse_whole_number(first), parse_whole_number(last or first)
        if low is not None and high is not None and low <= port <= high:
            return True
    return False


def _applies_to_target(rule: FirewallRule, target: FirewallTarget) -> bool | None:
    """Return whether a rule applies to the target; None if that depends on an unknown account."""
    if rule.target_tags:
        return bool(target.tags & set(rule.target_tags))
    if rule.target_accounts:
        return None if target.account is None else target.account in rule.target_accounts
    return True


def _evaluate_rules(ordered: Iterable[FirewallRule]) -> PortAccess:
    undecided: list[AddressSpan] = [(0, _LAST_ADDRESS)]
    verdicts: list[FirewallVerdict] = []
    machines: list[str] = []
    for rule in ordered:
        by_machine = bool(rule.source_tags or rule.source_accounts)
        if by_machine and not rule.denies:
            machines.append(rule.name)
        # A rule without sources applies to all of them [API field text].
        spans = _address_spans(rule.source_ranges if rule.source_ranges or by_machine else ("0.0.0.0/0",))
        if decided := _intersect_spans(undecided, spans):
            verdicts.append(FirewallVerdict(rule.name, rule.denies, tuple(decided)))
            undecided = _subtract_spans(undecided, spans)
    return PortAccess(tuple(verdicts), tuple(machines))


def _address_spans(ranges: Iterable[str]) -> list[AddressSpan]:
    networks = [IPv4Network(text, strict=False) for text in ranges if ":" not in text]
    return _merge_spans((int(network[0]), int(network[-1])) for network in networks)


def _merge_spans(spans: Iterable[AddressSpan]) -> list[AddressSpan]:
    merged: list[AddressSpan] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _subtract_spans(spans: Iterable[AddressSpan], taken: Iterable[AddressSpan]) -> list[AddressSpan]:
    left = _merge_spans(spans)
    for start, end in taken:
        kept = [(first, min(last, start - 1)) for first, last in left if first < start]
        left = kept + [(max(first, end + 1), last) for first, last in left if last > end]
    return sorted(left)


def _intersect_spans(spans: Iterable[AddressSpan], others: Iterable[AddressSpan]) -> list[AddressSpan]:
    both = list(spans)
    return _subtract_spans(both, _subtract_spans(both, others))


NETWORK_RULES: tuple[CheckRule[CheckFacts], ...] = (
    network_exists,
    subnetwork_is_in_region,
    private_access_is_on,
    firewall_allows_ssh,
    firewall_allows_iap,
)

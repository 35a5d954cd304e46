"""The network of the node: whether it exists, has a subnetwork in the region, and allows ssh.

Each unreadable fact is reported once: the network by TPU601, the subnetwork by TPU602, the firewall rules by TPU604. If the
network does not exist, the rules about its contents are silent. Hierarchical and network firewall policies belong to other
APIs and are not read. Only IPv4 is considered, as workers have no IPv6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Network, collapse_addresses
from typing import Any

from tpuctl.check.facts import Absent, CheckFacts, Known, NetworkInterface, Unknown, value_or_none
from tpuctl.check.findings import (
    CheckRule,
    Level,
    OpenFirewall,
    Remedy,
    RuleResult,
    check_rule,
    gcloud_command,
    note,
    some_of,
    ticked,
    unread_result,
    warning,
)
from tpuctl.command_text import fill_text, fitting
from tpuctl.models.compute_resources import FirewallRule, Subnetwork
from tpuctl.models.worker_ports import COORDINATOR, COORDINATOR_VARIABLE, MEGASCALE, WORKER_PORTS, port_use
from tpuctl.names import parse_whole_number

_MAX_NAMES = 4
_USE_IAP = "connect through Identity-Aware Proxy: `--iap`"
_USES_DEFAULT = "the API uses network `default` if none is named"


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
    if isinstance(facts.firewalls, Unknown | Absent):
        what, permission = "the firewall rules, which decide whether ssh is allowed,", "compute.firewalls.list"
        subject = f"network {interface.network}"
        yield unread_result(facts.firewalls, subject, what, permission=permission, project=interface.project)
        return
    if wanted.iap or not isinstance(facts.firewalls, Known) or isinstance(facts.network, Absent):
        return
    from_inside = wanted.internal_ip or not interface.has_external_addresses
    judge = _ssh_from_inside if from_inside else _ssh_from_outside
    least, most = port_access(facts.firewalls.value, _firewall_target(facts, interface))
    found = judge(facts, interface, least)
    # They differ if the result depends on the workers' account and that is unknown; TPU506 reports it.
    if found is not None and found == judge(facts, interface, most):
        yield found


@check_rule("TPU605", "the firewall allows Identity-Aware Proxy")
def firewall_allows_iap(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether firewall rules allow tunnels of Identity-Aware Proxy (35.235.240.0/20) to TCP port 22 of the workers.

    Checked if ssh uses such a tunnel (`--iap`), and if workers have no external address: it is a warning if they do not. Rules
    apply as in TPU604. Hierarchical and network firewall policies are not read and may decide otherwise. Source: documentation
    of IAP TCP forwarding.
    """
    interface, wanted = _effective_interface(facts), facts.wanted
    rules, subject = value_or_none(facts.firewalls), f"network {interface.network}"
    is_asked = wanted.iap or not (interface.has_external_addresses or wanted.internal_ip)
    if rules is None or not is_asked or isinstance(facts.network, Absent):
        return
    _, most = port_access(rules, _firewall_target(facts, interface))
    if not most.covers(SourceArea.IAP):
        why = "without external addresses, ssh needs a tunnel or a machine inside the network"
        yield warning(
            subject,
            f"no firewall rule of network `{interface.network}` allows tunnels of Identity-Aware Proxy ({IAP_RANGE}) "
            f"to port 22{_denied_words(most, SourceArea.IAP)}",
            _allow_iap_remedy(rules, facts, interface),
            why="ssh through a tunnel fails with error 4003" if wanted.iap else why,
            facts={"network": interface.network, "sourceRanges": [IAP_RANGE]},
        )


@check_rule("TPU606", "the firewall lets workers reach one another")
def firewall_allows_workers(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether firewall rules let the workers of a slice connect to one another: libtpu at 8471, JAX's coordinator.

    The coordinator listens at port 8482 from JAX 0.8.1 on, which Compute Engine's own rule for TPUs does not open, and at 8476
    before. It is a warning if a port of these is closed to private addresses. A program over several slices needs 8080 and 8081
    too, which count for a group (`--slices`). Rules apply as in TPU604; those for sources by tag or account count as open.
    `tpuctl doctor NODE` tries them all.
    Source: JAX's cloud_tpu_cluster.py; jax#35905; documentation of multislice.
    """
    interface, rules, accelerator = (
        _effective_interface(facts),
        value_or_none(facts.firewalls),
        facts.wanted.accelerator,
    )
    if rules is None or isinstance(facts.network, Absent) or accelerator is None:
        return
    is_group = bool(facts.wanted.spec.slices)
    if accelerator.workers < 2 and not is_group:
        return
    target = _firewall_target(facts, interface)
    closed = []
    for port in WORKER_PORTS:
        _, most = port_access(rules, target, port=port)
        if not (most.reach(SourceArea.INSIDE) or most.for_machines):
            closed.append(port)
    if not closed or (set(closed) <= set(MEGASCALE) and not is_group):
        return
    subnetwork = value_or_none(facts.subnetwork)
    new = OpenFirewall(
        interface.project,
        interface.network,
        _unused_rule_name(rules, "allow-tpu-workers"),
        ((subnetwork and subnetwork.ip_range) or "10.0.0.0/8",),
        tuple(map(str, closed)),
    )
    remedies = [Remedy.by(new, "let the addresses of the workers reach these ports")]
    if set(closed) & set(WORKER_PORTS[:3]) == {COORDINATOR}:
        remedies.append(Remedy(f"or set `{COORDINATOR_VARIABLE}` for programs with JAX 0.8.1 or later"))
    yield warning(
        f"network {interface.network}",
        f"no firewall rule of network `{interface.network}` lets workers reach one another at "
        f"{', '.join(f'{port} ({port_use(port)})' for port in closed)}",
        *remedies,
        why="a program of the slice waits for the other workers, and fails after minutes",
        facts={"network": interface.network, "ports": closed},
    )


def _effective_interface(facts: CheckFacts) -> NetworkInterface:
    """Return the interface; if only a subnetwork is named, in the network of that subnetwork."""
    interface, found = NetworkInterface.of(facts.wanted), value_or_none(facts.subnetwork)
    if interface.is_named or not interface.subnetwork or found is None or not found.network:
        return interface
    return replace(interface, network=found.network)


def _firewall_target(facts: CheckFacts, interface: NetworkInterface) -> FirewallTarget:
    return FirewallTarget(interface.network, frozenset(facts.wanted.spec.tags), facts.account)


def _ssh_from_outside(facts: CheckFacts, interface: NetworkInterface, access: PortAccess) -> RuleResult | None:
    names = access.allowed_by(SourceArea.OUTSIDE)
    subject, network, project = f"network {interface.network}", interface.network, interface.project
    if access.covers(SourceArea.OUTSIDE):
        return None
    ranges = access.reach(SourceArea.OUTSIDE)
    values = {"network": network, "rules": list(names), "sourceRanges": list(ranges)}
    if ranges:
        more = f" and {len(ranges) - _MAX_NAMES} more ranges" if len(ranges) > _MAX_NAMES else ""
        where = f"{', '.join(ranges[:_MAX_NAMES])}{more}"
        text, why = f"ssh is allowed only from {where}; tpuctl does not know your address", _join_rule_names(names)
        return note(subject, text, why=f"because of {why}", facts=values)
    rules = value_or_none(facts.firewalls) or ()
    use_iap = Remedy(_USE_IAP)
    if not access.covers(SourceArea.IAP):
        allow_iap = _allow_iap_remedy(rules, facts, interface)
        # Its command, not its change: with the change alone ssh still does not use the tunnel.
        use_iap = Remedy(f"{_USE_IAP}, and {allow_iap.text}", allow_iap.command)
    command = fill_text(
        "`gcloud compute firewall-rules create {firewall_rule} --project={project} "
        "--network={network} --direction=INGRESS --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32`",
        {"firewall_rule": _unused_rule_name(rules, "allow-ssh"), "project": project, "network": network},
    )
    if denied := access.denied_by(SourceArea.OUTSIDE):
        command += f", with a `--priority` before {_join_rule_names(denied)}"
    denied_words = _denied_words(access, SourceArea.OUTSIDE)
    return warning(
        subject,
        f"no firewall rule of network `{network}` allows ssh (tcp:22) from outside{denied_words}",
        use_iap,
        f"or allow your own address: {command}",
        "or run tpuctl on a machine of the network, with `--internal-ip`",
        why="tpuctl cannot connect to external addresses of the workers, nor find out when they are ready",
        facts=values,
    )


def _ssh_from_inside(_: CheckFacts, interface: NetworkInterface, access: PortAccess) -> RuleResult | None:
    subject, network = f"network {interface.network}", interface.network
    values: dict[str, Any] = {"network": network}  # JSON
    if access.reach(SourceArea.INSIDE):
        return None
    if names := access.for_machines:
        text = f"ssh is allowed only from machines with a tag or account of {_join_rule_names(names)}"
        return note(subject, text, facts=values | {"rules": list(names)})
    denied_words = _denied_words(access, SourceArea.INSIDE)
    return warning(
        subject,
        f"no firewall rule of network `{network}` allows ssh (tcp:22) from inside it{denied_words}",
        _USE_IAP,
        "or allow tcp:22 from the network's own ranges",
        why="workers are reached at their internal addresses, and no machine of the network is allowed",
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
    earlier = _join_rule_names(least.denied_by(SourceArea.IAP))
    return Remedy(f"allow its range {IAP_RANGE} by a rule with a priority before {earlier}")


def _unused_rule_name(rules: tuple[FirewallRule, ...], *names: str) -> str:
    """Return the first name that no rule of the project has; names are unique in a project [API]."""
    taken = {one.name for one in rules}
    numbered = (f"{names[-1][:60]}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (*names, *numbered) if name not in taken)


def _join_rule_names(names: tuple[str, ...]) -> str:
    return some_of(ticked(names), _MAX_NAMES)


def _denied_words(access: PortAccess, area: SourceArea) -> str:
    denied = access.denied_by(area)
    return f"; {_join_rule_names(denied)} {'deny' if len(denied) > 1 else 'denies'} it" if denied else ""


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
    values = {"network": name, "networkProject": project}
    match facts.network:
        case Unknown() as fact:
            yield unread_result(fact, subject, f"network `{name}`", permission="compute.networks.get", project=project)
        case Absent():
            yield _missing_network_result(facts, interface)
        case Known(value) if value.is_legacy:
            listing = gcloud_command("compute networks list", project=project)
            yield warning(
                subject,
                f"network `{name}` is a legacy network without subnetworks",
                Remedy("name a network with subnetworks: `--network`", listing),
                why="legacy networks lack many features, and Cloud TPU may reject them",
                facts={**values, "mode": "legacy"},
            )


def _missing_network_result(facts: CheckFacts, interface: NetworkInterface) -> RuleResult:
    name, project, subject = interface.network, interface.project, f"network {interface.network}"
    values = {"network": name, "networkProject": project}
    listed = Remedy(
        "name one of the project's networks: `--network`", gcloud_command("compute networks list", project=project)
    )
    if not interface.is_named and interface.subnetwork:
        named, found = f"no network is named with subnetwork `{interface.subnetwork}`", value_or_none(facts.subnetwork)
        remedy = Remedy(f"name it: `--network={found.network}`") if found and found.network else listed
        text = f"{named}, and project `{project}` has no `default`"
        return warning(subject, text, remedy, why=_USES_DEFAULT, facts=values)
    if name != "default":
        text = f"project `{project}` has no network `{name}`"
        return RuleResult.of(_creation_level(facts), subject, text, listed, facts=values)
    create = gcloud_command("compute networks create", "default", subnet_mode="auto", project=project)
    return RuleResult.of(
        _creation_level(facts),
        subject,
        f"project `{project}` has no network `default`, and no other is named",
        listed,
        Remedy("or create it; a new network has no firewall rules, so that ssh must be allowed as well", create),
        why="a node needs a network; many organisations delete `default` or never create it",
        facts=values,
    )


def _creation_level(facts: CheckFacts) -> Level:
    """Return the level of a problem that prevents creation; an existing node was created in spite of it."""
    return Level.ERROR if facts.wanted.creates else Level.WARNING


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
    match facts.subnetwork:
        case _ if interface.region not in {None, region}:
            yield _misplaced_subnetwork_result(interface, interface.region, facts)
        case Unknown() if facts.is_without_zone:
            pass  # the region may not exist either; TPU301 reports that
        case Unknown() as fact:
            what, permission = f"subnetwork `{name}` in {region}", "compute.subnetworks.get"
            yield unread_result(fact, f"subnetwork {name}", what, permission=permission, project=interface.project)
        case Known(value) if interface.subnetwork and value.region not in {"", region}:
            yield _misplaced_subnetwork_result(interface, value.region, facts)
        case Known(value) if interface.subnetwork:
            subject = f"subnetwork {value.name}"
            values = {"subnetwork": value.name, "region": value.region, "network": value.network}
            if value.network in {"", interface.network}:
                return
            text = f"subnetwork `{value.name}` belongs to network `{value.network}`"
            remedy = f"name its network: `--network={value.network}`"
            if interface.is_named:
                text += f", not to `{interface.network}`"
                yield RuleResult.of(_creation_level(facts), subject, text, remedy, facts=values)
            else:
                text += ", and no network is named"
                yield warning(subject, text, remedy, why=_USES_DEFAULT, facts=values)
        case Absent() if interface.subnetwork:
            yield _misplaced_subnetwork_result(interface, None, facts)
        case Known() | Absent() as fact:
            yield from _judge_default_subnetwork(fact, interface, facts)


def _judge_default_subnetwork(
    fact: Known[Subnetwork] | Absent, interface: NetworkInterface, facts: CheckFacts
) -> Iterator[RuleResult]:
    """Judge a node whose spec names no subnetwork; `fact` is the subnetwork with the network's own name."""
    network, region = value_or_none(facts.network), facts.wanted.region
    if network is None or network.is_legacy:
        return
    subject, values = f"subnetwork {interface.network}", {"subnetwork": interface.network, "region": region}
    belongs = isinstance(fact, Known) and fact.value.network in {"", network.name}
    listing = _list_subnetworks_command(interface.project, network.name)
    # If none is named, the API uses the subnetwork `default` in networks of every mode [API field text].
    if belongs and (network.is_auto or network.name == "default"):
        return
    if network.is_auto:
        text = f"network `{network.name}` is in auto mode, but has no subnetwork `{network.name}` in {region}"
        why = "a node needs a subnetwork in the region of its zone"
        other = Remedy("name another: `--subnetwork`", listing)
        yield warning(subject, text, other, why=why, facts=values)
    elif facts.wanted.creates:
        flag = f"`--subnetwork={network.name}`" if belongs else "`--subnetwork`"
        text = f"network `{network.name}` is in custom mode, and no subnetwork is named"
        why = f"such a network has no default; the API uses a subnetwork called `default` in {region}, if it exists"
        remedy = Remedy(f"name one in {region}: {flag}", listing)
        yield warning(subject, text, remedy, why=why, facts=values)


def _misplaced_subnetwork_result(interface: NetworkInterface, found_in: str | None, facts: CheckFacts) -> RuleResult:
    """Return the finding that the subnetwork is not in the region of the node; `found_in` is None if it does not exist."""
    region, name, project = facts.wanted.region, interface.subnetwork or interface.network, interface.project
    text = f"subnetwork `{name}` is in region {found_in}, the node in {region}"
    if found_in is None:
        text = f"project `{project}` has no subnetwork `{name}` in {region}"
    return RuleResult.of(
        _creation_level(facts),
        f"subnetwork {name}",
        text,
        Remedy(f"name one in {region}: `--subnetwork`", _list_subnetworks_command(project, interface.network)),
        why="the subnetwork of a node must be in the region of its zone",
        facts={"subnetwork": name, "region": region},
    )


def _list_subnetworks_command(project: str, network: str) -> str:
    return gcloud_command("compute networks subnets list", network=network, project=project)


@check_rule("TPU603", "access to Google APIs")
def private_access_is_on(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether workers without external addresses can reach Google APIs and buckets.

    It is a warning if the node has no external addresses and its subnetwork lacks Private Google Access. Cloud NAT would work
    too, and is not read. Source: API field text of `enableExternalIps`.
    """
    interface, found = NetworkInterface.of(facts.wanted), value_or_none(facts.subnetwork)
    if found is None or interface.has_external_addresses or found.private_google_access:
        return
    subject = f"subnetwork {found.name}"
    place = {"region": found.region or facts.wanted.region, "project": interface.project}
    words = "compute networks subnets update"
    command = gcloud_command(words, fitting("subnetwork", found.name), **place, enable_private_ip_google_access=True)
    yield warning(
        subject,
        f"the workers have no external address, and subnetwork `{found.name}` has no Private Google Access",
        Remedy("enable it; this is free and breaks nothing", command),
        why="they can reach neither Google APIs nor buckets, except through Cloud NAT, which is not read",
        facts={"privateIpGoogleAccess": False, "subnetwork": found.name, "region": found.region},
    )


SSH_PORT = 22
# Source range of the tunnels of Identity-Aware Proxy [documentation of IAP TCP forwarding].
IAP_RANGE = "35.235.240.0/20"
_EVERYWHERE = (IPv4Network("0.0.0.0/0"),)
_IAP = (IPv4Network(IAP_RANGE),)
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")))
# Never a source address outside: reserved ranges, and those of Google's health checks [documentation].
_RESERVED = tuple(
    map(
        IPv4Network,
        ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "35.191.0.0/16", "130.211.0.0/22"),
    )
)
_TCP_PROTOCOLS = ("tcp", "6", "all")


class SourceArea(Enum):
    """Where a connection comes from: outside Google Cloud, a private address, or a tunnel of Identity-Aware Proxy."""

    OUTSIDE = "outside"
    INSIDE = "inside"
    IAP = "iap"

    @property
    def ranges(self) -> list[IPv4Network]:
        """The addresses of the area."""
        if self is SourceArea.OUTSIDE:
            return _exclude(_EVERYWHERE, (*_PRIVATE, *_RESERVED, *_IAP))
        return list(_PRIVATE if self is SourceArea.INSIDE else _IAP)


@dataclass(frozen=True, slots=True)
class FirewallTarget:
    """The machine that rules apply to. `account` is None if unknown."""

    network: str
    tags: frozenset[str]
    account: str | None


@dataclass(frozen=True, slots=True)
class PortAccess:
    """From which addresses a port can be reached.

    `decisions` are the rules with the ranges that each decides, without those that an earlier rule has decided.
    `for_machines` are rules that allow machines of the network by tag or account; they never apply to outside addresses
    [API field text].
    """

    decisions: tuple[tuple[FirewallRule, tuple[IPv4Network, ...]], ...]
    for_machines: tuple[str, ...]

    def reach(self, area: SourceArea) -> tuple[str, ...]:
        """Return the ranges of an area that can reach the port, as few as possible."""
        return tuple(map(str, collapse_addresses(_common(area.ranges, self._allowed))))

    def covers(self, area: SourceArea) -> bool:
        """Return whether every address of an area can reach the port."""
        return not _exclude(area.ranges, self._allowed)

    def allowed_by(self, area: SourceArea) -> tuple[str, ...]:
        """Return the rules that allow addresses of an area."""
        return self._deciding(area, denies=False)

    def denied_by(self, area: SourceArea) -> tuple[str, ...]:
        """Return the rules that deny addresses of an area."""
        return self._deciding(area, denies=True)

    def _deciding(self, area: SourceArea, *, denies: bool) -> tuple[str, ...]:
        return tuple(
            rule.name for rule, ranges in self.decisions if rule.denies is denies and _common(area.ranges, ranges)
        )

    @property
    def _allowed(self) -> list[IPv4Network]:
        return [one for rule, ranges in self.decisions if not rule.denies for one in ranges]


def port_access(
    rules: Iterable[FirewallRule], target: FirewallTarget, *, port: int = SSH_PORT
) -> tuple[PortAccess, PortAccess]:
    """Return the smallest and the largest set of addresses that can reach a TCP port.

    Rules apply in the order of their priority number; at the same number, deny rules come first. Traffic that no rule
    matches is denied [API field text of Firewall].

    They differ only if rules apply to service accounts and the target's account is unknown.
    """
    relevant = [rule for rule in rules if _applies_to_port(rule, target.network, port)]
    relevant.sort(key=lambda rule: (rule.priority, not rule.denies, rule.name))
    applicable = [(rule, _applies_to_target(rule, target)) for rule in relevant]
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
    undecided = list(_EVERYWHERE)
    decisions, machines = [], []
    for rule in ordered:
        by_machine = bool(rule.source_tags or rule.source_accounts)
        if by_machine and not rule.denies:
            machines.append(rule.name)
        # A rule without sources applies to all of them [API field text].
        named = rule.source_ranges if rule.source_ranges or by_machine else map(str, _EVERYWHERE)
        ranges = [IPv4Network(text, strict=False) for text in named if ":" not in text]
        if decided := _common(undecided, ranges):
            decisions.append((rule, tuple(decided)))
            undecided = _exclude(undecided, ranges)
    return PortAccess(tuple(decisions), tuple(machines))


def _common(some: Iterable[IPv4Network], others: Sequence[IPv4Network]) -> list[IPv4Network]:
    """Return the addresses in both. Of two ranges that overlap, one contains the other."""
    return [one if one.subnet_of(other) else other for one in some for other in others if one.overlaps(other)]


def _exclude(ranges: Iterable[IPv4Network], taken: Iterable[IPv4Network]) -> list[IPv4Network]:
    left = list(ranges)
    for one in taken:
        inside = [other.address_exclude(one) for other in left if one.subnet_of(other)]
        left = [other for other in left if not other.overlaps(one)] + [part for parts in inside for part in parts]
    return left


NETWORK_RULES: tuple[CheckRule[CheckFacts], ...] = (
    network_exists,
    subnetwork_is_in_region,
    private_access_is_on,
    firewall_allows_ssh,
    firewall_allows_iap,
    firewall_allows_workers,
)

"""Whether the firewall lets ssh in: from outside, from the network itself, from Identity-Aware Proxy.

Firewall rules that could not be read are reported by TPU604.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, OpenFirewall, Remedy, rule
from tpuctl.preflight.firewall import IAP_RANGE, Area, Target, openings
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.network import FirewallRule
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.firewall import Opening

_SHOWN = 4
_USE_IAP = "reach the workers through Identity-Aware Proxy: `--iap`"


@rule("TPU604", "the firewall lets ssh in")
def ssh_in(facts: Facts) -> Iterator[Found]:
    """Check whether firewall rules let ssh (tcp port 22) reach the workers.

    Rules count in the order of their priority, what denies before what allows; those that name tags or service accounts
    count where the node has one of them. With external addresses it is a warning where nobody from outside gets in, and a note
    where only some addresses do, as yours is not known. Without external addresses, or with `--internal-ip`, it is a warning
    where no machine of the network gets in. With `--iap` TPU605 asks instead. It is never an error, since hierarchical and
    network firewall policies are not read, and may say otherwise. Source: API field text of Firewall.
    """
    interface, wanted = _interface(facts), facts.wanted
    subject = _subject(interface)
    if isinstance(facts.firewalls, Unknown | Absent):
        what, permission = "the firewall rules, and with them whether ssh gets in,", "compute.firewalls.list"
        yield unread(facts.firewalls, subject, what, permission=permission, project=interface.project)
        return
    if wanted.iap or not isinstance(facts.firewalls, Known) or isinstance(facts.network, Absent):
        return
    from_inside = wanted.internal_ip or not interface.has_external_addresses
    judge = _from_inside if from_inside else _from_outside
    found, other = (judge(facts, interface, one) for one in openings(facts.firewalls.value, _target(facts, interface)))
    # Where they differ it hangs on the workers' account, which is not known: TPU506 says so.
    if found == other:
        yield found


@rule("TPU605", "the firewall lets Identity-Aware Proxy in")
def iap_in(facts: Facts) -> Iterator[Found]:
    """Check whether firewall rules let tunnels of Identity-Aware Proxy (35.235.240.0/20) reach tcp port 22 of the workers.

    Asked where ssh goes that way (`--iap`), and where workers have no external address: it is a warning where they do not.
    Rules count as in TPU604. Hierarchical and network firewall policies are not read, and may say otherwise. Source:
    documentation of IAP TCP forwarding.
    """
    interface, wanted = _interface(facts), facts.wanted
    rules = known(facts.firewalls)
    is_asked = wanted.iap or not (interface.has_external_addresses or wanted.internal_ip)
    if rules is None or not is_asked or isinstance(facts.network, Absent):
        return
    subject = _subject(interface)
    least, most = openings(rules, _target(facts, interface))
    if least.covers(Area.IAP):
        text = f"tunnels of Identity-Aware Proxy reach port 22 ({_names(least.allowed_by(Area.IAP))})"
        yield Found(level=Level.OK, subject=subject, text=text, facts={"sourceRanges": [IAP_RANGE]})
    elif not most.covers(Area.IAP):
        yield Found(
            level=Level.WARNING,
            subject=subject,
            text=f"no firewall rule of network `{interface.network}` lets tunnels of Identity-Aware Proxy ({IAP_RANGE}) "
            f"reach port 22{_denied(most, Area.IAP)}",
            why="ssh through a tunnel ends with error 4003"
            if wanted.iap
            else "without external addresses ssh comes through a tunnel, or from inside the network",
            remedies=(_let_iap_in(rules, facts, interface),),
            facts={"network": interface.network, "sourceRanges": [IAP_RANGE]},
        )


def _interface(facts: Facts) -> Interface:
    """Return the interface; where only a subnetwork is named, in that one's network."""
    interface, found = Interface.of(facts.wanted), known(facts.subnetwork)
    if interface.is_named or not interface.subnetwork or found is None or not found.network:
        return interface
    return replace(interface, network=found.network)


def _subject(interface: Interface) -> str:
    return f"network {interface.network}"


def _target(facts: Facts, interface: Interface) -> Target:
    return Target(interface.network, frozenset(facts.wanted.spec.tags), facts.account)


def _from_outside(facts: Facts, interface: Interface, opening: Opening) -> Found:
    subject, ranges, rules = _subject(interface), opening.reach(Area.OUTSIDE), opening.allowed_by(Area.OUTSIDE)
    told = {"network": interface.network, "rules": list(rules)}
    if opening.covers(Area.OUTSIDE):
        text = f"ssh is let in from everywhere ({_names(rules)})"
        return Found(level=Level.OK, subject=subject, text=text, facts=told | {"sourceRanges": ["0.0.0.0/0"]})
    if ranges:
        more = f" and {len(ranges) - _SHOWN} more ranges" if len(ranges) > _SHOWN else ""
        return Found(
            level=Level.NOTE,
            subject=subject,
            text=f"ssh is let in from {', '.join(ranges[:_SHOWN])}{more} only; whether you come from there is not known",
            why=f"{_names(rules)} {'say' if len(rules) > 1 else 'says'} so",
            facts=told | {"sourceRanges": list(ranges)},
        )
    denied = _denied(opening, Area.OUTSIDE)
    return Found(
        level=Level.WARNING,
        subject=subject,
        text=f"no firewall rule of network `{interface.network}` lets ssh (tcp:22) in from outside{denied}",
        why="tpuctl cannot reach the workers at their external addresses, nor tell when they are usable",
        remedies=tuple(_ways_from_outside(facts, interface, opening)),
        facts=told | {"sourceRanges": []},
    )


def _ways_from_outside(facts: Facts, interface: Interface, opening: Opening) -> Iterator[Remedy]:
    rules = known(facts.firewalls) or ()
    if opening.covers(Area.IAP):
        yield Remedy(_USE_IAP)
    else:
        let_in = _let_iap_in(rules, facts, interface)
        # Its command, not its change: with that alone ssh still goes another way.
        yield Remedy(f"{_USE_IAP}, and {let_in.text}", let_in.command)
    command = (
        f"`gcloud compute firewall-rules create {_free_name(rules, 'allow-ssh')} --project={interface.project} "
        f"--network={interface.network} --direction=INGRESS --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32`"
    )
    if denied := opening.denied_by(Area.OUTSIDE):
        command += f", with a `--priority` that comes before {_names(denied)}"
    yield Remedy(f"or let your own address in: {command}")
    yield Remedy("or run tpuctl on a machine of the network, with `--internal-ip`")


def _from_inside(_: Facts, interface: Interface, opening: Opening) -> Found:
    subject = _subject(interface)
    told: dict[str, Any] = {"network": interface.network}  # JSON
    if opening.reach(Area.INSIDE):
        rules = opening.allowed_by(Area.INSIDE)
        text = f"ssh is let in from inside the network ({_names(rules)})"
        return Found(level=Level.OK, subject=subject, text=text, facts=told | {"rules": list(rules)})
    if opening.for_machines:
        text = f"ssh is let in only from machines that have a tag or account of {_names(opening.for_machines)}"
        told |= {"rules": list(opening.for_machines)}
        return Found(level=Level.NOTE, subject=subject, text=text, facts=told)
    denied = _denied(opening, Area.INSIDE)
    return Found(
        level=Level.WARNING,
        subject=subject,
        text=f"no firewall rule of network `{interface.network}` lets ssh (tcp:22) in from inside it{denied}",
        why="the workers are reached by their internal addresses, and no machine of the network may",
        remedies=(Remedy(_USE_IAP), Remedy("or let the network's own ranges reach tcp:22")),
        facts=told,
    )


def _let_iap_in(rules: tuple[FirewallRule, ...], facts: Facts, interface: Interface) -> Remedy:
    """Return the rule that lets tunnels in; only words where a rule that comes first would still keep them out."""
    name = _free_name(rules, "allow-ssh-from-iap", f"allow-ssh-from-iap-{interface.network}"[:63].rstrip("-"))
    new = OpenFirewall(interface.project, interface.network, name, (IAP_RANGE,))
    least, _ = openings((*rules, _as_rule(new)), _target(facts, interface))
    if least.covers(Area.IAP):
        return Remedy.by(new, f"let its range {IAP_RANGE} in")
    return Remedy(f"let its range {IAP_RANGE} in by a rule that comes before {_names(least.denied_by(Area.IAP))}")


def _as_rule(new: OpenFirewall) -> FirewallRule:
    """Return the rule that a change would make; 1000 is the priority of one that names none [API field text]."""
    from tpuctl.model.network import FirewallRule  # noqa: PLC0415  # only where one is missing

    return FirewallRule(
        name=new.name,
        network=new.network,
        is_ingress=True,
        is_disabled=False,
        denies=False,
        priority=1000,
        source_ranges=new.source_ranges,
        source_tags=(),
        source_accounts=(),
        target_tags=(),
        target_accounts=(),
        protocols={"tcp": new.ports},
    )


def _free_name(rules: tuple[FirewallRule, ...], *names: str) -> str:
    """Return the first name that no rule of the project has; names are unique in a project [API]."""
    taken = {one.name for one in rules}
    numbered = (f"{names[-1][:60]}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (*names, *numbered) if name not in taken)


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more


def _denied(opening: Opening, area: Area) -> str:
    denied = opening.denied_by(area)
    return f"; {_names(denied)} {'keep' if len(denied) > 1 else 'keeps'} it out" if denied else ""

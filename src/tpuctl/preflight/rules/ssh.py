"""Whether the firewall lets ssh in: from outside, from the network itself, from Identity-Aware Proxy.

Firewall rules that could not be read are reported by TPU604.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, OpenFirewall, Remedy, rule
from tpuctl.preflight.firewall import IAP_RANGE, Target, openings
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.network import FirewallRule
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.firewall import Opening

_SHOWN = 4


@rule("TPU604", "the firewall lets ssh in")
def ssh_in(facts: Facts) -> Iterator[Found]:
    """Look whether firewall rules let ssh (tcp port 22) reach the workers.

    Rules count in the order of their priority, what denies before what allows; those that name tags or service accounts count where
    the node has one of them. With external addresses it is an error where nobody from outside gets in, and a note where only
    some addresses do, as yours is not known. Without external addresses, or with `--internal-ip`, it is a warning where no
    machine of the network gets in. With `--iap` TPU605 asks instead. Hierarchical and network firewall policies are not read,
    and may say otherwise. Source: API field text of Firewall.
    """
    interface, wanted = _interface(facts), facts.wanted
    subject = f"network {interface.network}"
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
        yield replace(found, subject=subject)


@rule("TPU605", "the firewall lets Identity-Aware Proxy in")
def iap_in(facts: Facts) -> Iterator[Found]:
    """Look whether firewall rules let tunnels of Identity-Aware Proxy (35.235.240.0/20) reach tcp port 22 of the workers.

    Asked where ssh goes that way (`--iap`): then it is an error where they do not; and where workers have no external address:
    then it is a warning, as ssh from inside the network may do. Rules count as in TPU604. Hierarchical and network firewall
    policies are not read, and may say otherwise. Source: documentation of IAP TCP forwarding.
    """
    interface, wanted = _interface(facts), facts.wanted
    rules = known(facts.firewalls)
    is_asked = wanted.iap or not (interface.has_external_addresses or wanted.internal_ip)
    if rules is None or not is_asked or isinstance(facts.network, Absent):
        return
    subject = f"network {interface.network}"
    least, most = openings(rules, _target(facts, interface))
    if least.covers(IAP_RANGE):
        text = f"tunnels of Identity-Aware Proxy reach port 22 ({_names(least.allowed_by)})"
        yield Found(level=Level.OK, subject=subject, text=text, facts={"sourceRanges": [IAP_RANGE]})
    elif not most.covers(IAP_RANGE):
        yield Found(
            level=Level.ERROR if wanted.iap else Level.WARNING,
            subject=subject,
            text=f"no firewall rule of network `{interface.network}` lets tunnels of Identity-Aware Proxy ({IAP_RANGE}) "
            f"reach port 22{_denied(most)}",
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


def _target(facts: Facts, interface: Interface) -> Target:
    return Target(interface.network, frozenset(facts.wanted.spec.tags), facts.account)


def _from_outside(facts: Facts, interface: Interface, opening: Opening) -> Found:
    ranges = opening.outside
    told = {"network": interface.network, "sourceRanges": list(ranges[:_SHOWN])}
    if opening.is_everywhere:
        text = f"ssh is let in from everywhere ({_names(opening.allowed_by)})"
        return Found(level=Level.OK, subject="", text=text, facts=told | {"sourceRanges": ["0.0.0.0/0"]})
    if ranges:
        more = f" and {len(ranges) - _SHOWN} more ranges" if len(ranges) > _SHOWN else ""
        return Found(
            level=Level.NOTE,
            subject="",
            text=f"ssh is let in only from {', '.join(ranges[:_SHOWN])}{more}; whether that is you is not known",
            why=f"rules: {_names(opening.allowed_by)}",
            facts=told | {"rules": list(opening.allowed_by)},
        )
    rules = known(facts.firewalls) or ()
    iap = "reach the workers through Identity-Aware Proxy: `--iap`"
    is_open = opening.covers(IAP_RANGE)
    let_in = None if is_open else _let_iap_in(rules, facts, interface)
    command = (
        f"`gcloud compute firewall-rules create {_free_name(rules, 'allow-ssh')} --project={interface.project} "
        f"--network={interface.network} --direction=INGRESS --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32`"
    )
    return Found(
        level=Level.ERROR,
        subject="",
        text=f"no firewall rule of network `{interface.network}` lets ssh (tcp:22) in from outside{_denied(opening)}",
        why="tpuctl cannot reach the workers at their external addresses, and cannot tell when they are usable",
        remedies=(
            # Not a change: with it alone ssh still goes another way.
            Remedy(iap if let_in is None else f"{iap}, and {let_in.text}", let_in and let_in.command),
            Remedy(f"or let your own address in: {command}"),
            Remedy("or run tpuctl on a machine of the network, with `--internal-ip`"),
        ),
        facts=told,
    )


def _from_inside(facts: Facts, interface: Interface, opening: Opening) -> Found:
    told = {"network": interface.network}
    if opening.inside:
        return Found(level=Level.OK, subject="", text=f"ssh is let in ({_names(opening.allowed_by)})", facts=told)
    if opening.for_machines:
        text = f"ssh is let in only from machines that have the tag or account of {_names(opening.for_machines)}"
        return Found(level=Level.NOTE, subject="", text=text, facts=told | {"rules": list(opening.for_machines)})
    iap = "reach the workers through Identity-Aware Proxy: `--iap`"
    return Found(
        level=Level.WARNING,
        subject="",
        text=f"no firewall rule of network `{interface.network}` lets ssh (tcp:22) in from inside it{_denied(opening)}",
        why="the workers are reached by their internal addresses, and no machine of the network may",
        remedies=(Remedy(iap), Remedy("or let the network's own ranges reach tcp:22")),
        facts=told,
    )


def _let_iap_in(rules: tuple[FirewallRule, ...], facts: Facts, interface: Interface) -> Remedy:
    """Return the rule that lets tunnels in; only words where a rule that comes first would still keep them out."""
    name = _free_name(rules, "allow-ssh-from-iap", f"allow-ssh-from-iap-{interface.network}"[:63].rstrip("-"))
    new = OpenFirewall(interface.project, interface.network, name, (IAP_RANGE,))
    least, _ = openings((*rules, _as_rule(new)), _target(facts, interface))
    if least.covers(IAP_RANGE):
        return Remedy.by(new, f"let its range {IAP_RANGE} in")
    return Remedy(f"let its range {IAP_RANGE} in by a rule that comes before {_names(least.denied_by)}")


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


def _denied(opening: Opening) -> str:
    return f"; {_names(opening.denied_by)} keeps it out" if opening.denied_by else ""

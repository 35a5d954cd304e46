"""Whether the firewall allows ssh: from outside, from inside the network, and from Identity-Aware Proxy.

Firewall rules that could not be read are reported by TPU604.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.model.network import FirewallRule
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, OpenFirewall, Remedy, rule
from tpuctl.preflight.firewall import IAP_RANGE, Area, Target, openings
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.firewall import Opening

_SHOWN = 4
_USE_IAP = "connect through Identity-Aware Proxy: `--iap`"


@rule("TPU604", "the firewall allows ssh")
def ssh_in(facts: Facts) -> Iterator[Found]:
    """Check whether firewall rules allow ssh (TCP port 22) to the workers.

    Rules apply in the order of their priority, deny rules before allow rules; rules for tags or service accounts apply if the
    node has one of them. With external addresses it is a warning if no outside address is allowed, and a note if only some
    are, as your address is unknown. Without external addresses, or with `--internal-ip`, it is a warning if no machine of the
    network is allowed. With `--iap` TPU605 checks instead. It is never an error, because hierarchical and network firewall
    policies are not read and may decide otherwise. Source: API field text of Firewall.
    """
    interface, wanted = _interface(facts), facts.wanted
    subject = _subject(interface)
    if isinstance(facts.firewalls, Unknown | Absent):
        what, permission = "the firewall rules, which decide whether ssh is allowed,", "compute.firewalls.list"
        yield unread(facts.firewalls, subject, what, permission=permission, project=interface.project)
        return
    if wanted.iap or not isinstance(facts.firewalls, Known) or isinstance(facts.network, Absent):
        return
    from_inside = wanted.internal_ip or not interface.has_external_addresses
    judge = _from_inside if from_inside else _from_outside
    found, other = (judge(facts, interface, one) for one in openings(facts.firewalls.value, _target(facts, interface)))
    # They differ if the result depends on the workers' account and that is unknown; TPU506 reports it.
    if found == other:
        yield found


@rule("TPU605", "the firewall allows Identity-Aware Proxy")
def iap_in(facts: Facts) -> Iterator[Found]:
    """Check whether firewall rules allow tunnels of Identity-Aware Proxy (35.235.240.0/20) to TCP port 22 of the workers.

    Checked if ssh uses such a tunnel (`--iap`), and if workers have no external address: it is a warning if they do not. Rules
    apply as in TPU604. Hierarchical and network firewall policies are not read and may decide otherwise. Source: documentation
    of IAP TCP forwarding.
    """
    interface, wanted = _interface(facts), facts.wanted
    rules = known(facts.firewalls)
    is_asked = wanted.iap or not (interface.has_external_addresses or wanted.internal_ip)
    if rules is None or not is_asked or isinstance(facts.network, Absent):
        return
    subject = _subject(interface)
    least, most = openings(rules, _target(facts, interface))
    if least.covers(Area.IAP):
        text = f"tunnels of Identity-Aware Proxy can reach port 22 ({_names(least.allowed_by(Area.IAP))})"
        yield Found(level=Level.OK, subject=subject, text=text, facts={"sourceRanges": [IAP_RANGE]})
    elif not most.covers(Area.IAP):
        yield Found(
            level=Level.WARNING,
            subject=subject,
            text=f"no firewall rule of network `{interface.network}` allows tunnels of Identity-Aware Proxy ({IAP_RANGE}) "
            f"to port 22{_denied(most, Area.IAP)}",
            why="ssh through a tunnel fails with error 4003"
            if wanted.iap
            else "without external addresses, ssh needs a tunnel or a machine inside the network",
            remedies=(_let_iap_in(rules, facts, interface),),
            facts={"network": interface.network, "sourceRanges": [IAP_RANGE]},
        )


def _interface(facts: Facts) -> Interface:
    """Return the interface; if only a subnetwork is named, in the network of that subnetwork."""
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
    about = {"network": interface.network, "rules": list(rules)}
    if opening.covers(Area.OUTSIDE):
        text = f"ssh is allowed from everywhere ({_names(rules)})"
        return Found(level=Level.OK, subject=subject, text=text, facts=about | {"sourceRanges": ["0.0.0.0/0"]})
    if ranges:
        more = f" and {len(ranges) - _SHOWN} more ranges" if len(ranges) > _SHOWN else ""
        return Found(
            level=Level.NOTE,
            subject=subject,
            text=f"ssh is allowed only from {', '.join(ranges[:_SHOWN])}{more}; tpuctl does not know your address",
            why=f"because of {_names(rules)}",
            facts=about | {"sourceRanges": list(ranges)},
        )
    known_rules = known(facts.firewalls) or ()
    if opening.covers(Area.IAP):
        use_iap = Remedy(_USE_IAP)
    else:
        let_in = _let_iap_in(known_rules, facts, interface)
        # Its command, not its change: with the change alone ssh still does not use the tunnel.
        use_iap = Remedy(f"{_USE_IAP}, and {let_in.text}", let_in.command)
    command = (
        f"`gcloud compute firewall-rules create {_free_name(known_rules, 'allow-ssh')} --project={interface.project} "
        f"--network={interface.network} --direction=INGRESS --allow=tcp:22 --source-ranges=YOUR_ADDRESS/32`"
    )
    if denied := opening.denied_by(Area.OUTSIDE):
        command += f", with a `--priority` before {_names(denied)}"
    return Found(
        level=Level.WARNING,
        subject=subject,
        text=f"no firewall rule of network `{interface.network}` allows ssh (tcp:22) from outside"
        f"{_denied(opening, Area.OUTSIDE)}",
        why="tpuctl cannot connect to external addresses of the workers, nor find out when they are ready",
        remedies=(
            use_iap,
            Remedy(f"or allow your own address: {command}"),
            Remedy("or run tpuctl on a machine of the network, with `--internal-ip`"),
        ),
        facts=about | {"sourceRanges": []},
    )


def _from_inside(_: Facts, interface: Interface, opening: Opening) -> Found:
    subject = _subject(interface)
    about: dict[str, Any] = {"network": interface.network}  # JSON
    if opening.reach(Area.INSIDE):
        rules = opening.allowed_by(Area.INSIDE)
        text = f"ssh is allowed from inside the network ({_names(rules)})"
        return Found(level=Level.OK, subject=subject, text=text, facts=about | {"rules": list(rules)})
    if opening.for_machines:
        text = f"ssh is allowed only from machines with a tag or account of {_names(opening.for_machines)}"
        about |= {"rules": list(opening.for_machines)}
        return Found(level=Level.NOTE, subject=subject, text=text, facts=about)
    return Found(
        level=Level.WARNING,
        subject=subject,
        text=f"no firewall rule of network `{interface.network}` allows ssh (tcp:22) from inside it"
        f"{_denied(opening, Area.INSIDE)}",
        why="workers are reached at their internal addresses, and no machine of the network is allowed",
        remedies=(Remedy(_USE_IAP), Remedy("or allow tcp:22 from the network's own ranges")),
        facts=about,
    )


def _let_iap_in(rules: tuple[FirewallRule, ...], facts: Facts, interface: Interface) -> Remedy:
    """Return the rule that allows tunnels; text only if an existing deny rule would still come first."""
    name = _free_name(rules, "allow-ssh-from-iap", f"allow-ssh-from-iap-{interface.network}"[:63].rstrip("-"))
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
    least, _ = openings((*rules, as_rule), _target(facts, interface))
    if least.covers(Area.IAP):
        return Remedy.by(new, f"allow its range {IAP_RANGE}")
    return Remedy(f"allow its range {IAP_RANGE} by a rule with a priority before {_names(least.denied_by(Area.IAP))}")


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
    return f"; {_names(denied)} {'deny' if len(denied) > 1 else 'denies'} it" if denied else ""

"""The network of the node: whether it is there, and a subnetwork in the region, and whether ssh gets in.

What could not be read is reported once: the network by TPU601, the subnetwork by TPU602, the firewall rules by TPU604. Where
the network does not exist, the rules that look into it are silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.rules.ssh import iap_in, ssh_in
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.network import Subnetwork
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule


@rule("TPU601", "the network exists")
def network(facts: Facts) -> Iterator[Found]:
    """Check whether the node's network exists: the one that is named, else `default`.

    It is an error where it does not, for a node that is there a warning; many organisations have no network `default`. A
    network of the legacy kind is a warning: it has no subnetworks, cannot be made any more, and whether Cloud TPU takes it is
    unverified. A network of another project (Shared VPC) is looked for there. Source: API field text of NetworkConfig;
    documentation of VPC networks.
    """
    interface = Interface.of(facts.wanted)
    name, project, subject = interface.network, interface.project, f"network {interface.network}"
    where = {"network": name, "networkProject": project}
    match facts.network:
        case None:
            return
        case Unknown() as fact:
            yield unread(fact, subject, f"network `{name}`", permission="compute.networks.get", project=project)
        case Absent():
            yield _without_network(facts, interface, subject)
        case Known(value) if value.is_legacy:
            yield Found(
                level=Level.WARNING,
                subject=subject,
                text=f"network `{name}` is of the legacy kind, without subnetworks",
                why="such networks lack much of what newer ones have, and Cloud TPU may refuse one",
                remedies=(Remedy("name a network with subnetworks: `--network`", commands.list_networks(project)),),
                facts={**where, "mode": "legacy"},
            )
        case Known(value):
            mode = "auto" if value.is_auto else "custom"
            text = f"network `{name}` exists, in {mode} mode"
            yield Found(level=Level.OK, subject=subject, text=text, facts={**where, "mode": mode})


@rule("TPU602", "a subnetwork in the region")
def subnetwork(facts: Facts) -> Iterator[Found]:
    """Check whether the node's network has a subnetwork in the region of the zone.

    It is an error where the named one does not exist there, or is in another region or another network; for a node that is
    there a warning. It is a warning where none is named and the network is in custom mode, which does not choose one itself:
    the API says that it takes one called `default`, which is not looked for. A subnetwork without a network is a warning where
    it is not one of `default`, as the API takes that network then. A network in auto mode has a subnetwork of its own name in
    every region; that it lacks one is a warning. Source: API field text of NetworkConfig; documentation of VPC networks.
    """
    interface, region = Interface.of(facts.wanted), facts.wanted.region
    name = interface.subnetwork or interface.network
    where = {"subnetwork": name, "region": region}
    if interface.region not in {None, region}:
        yield _misplaced(interface, f"in region {interface.region}", facts)
        return
    match facts.subnetwork:
        case None:
            return
        case Unknown() if facts.is_without_zone:
            return  # then there may be no such region either: TPU301 says so
        case Unknown() as fact:
            what, permission = f"subnetwork `{name}` in {region}", "compute.subnetworks.get"
            yield unread(fact, _subject(name), what, permission=permission, project=interface.project)
        case Known(value) if interface.subnetwork:
            yield from _judged(value, interface, facts)
        case Absent() if interface.subnetwork:
            yield _misplaced(interface, "not there", facts)
        case Known() | Absent() as fact:
            yield from _unnamed(fact, interface, facts, where)


@rule("TPU603", "a way to Google's APIs")
def private_access(facts: Facts) -> Iterator[Found]:
    """Check whether workers without external addresses can reach Google's APIs and buckets.

    It is a warning where the node has none and its subnetwork lacks Private Google Access: Cloud NAT would be a way too, and
    is not read. Source: API field text of `enableExternalIps`.
    """
    interface, found = Interface.of(facts.wanted), known(facts.subnetwork)
    if found is None or interface.has_external_addresses:
        return
    if found.private_google_access:
        text = f"subnetwork `{found.name}` has Private Google Access"
        yield Found(level=Level.OK, subject=_subject(found.name), text=text, facts={"privateIpGoogleAccess": True})
        return
    command = commands.enable_private_access(interface.project, found.region or facts.wanted.region, found.name)
    yield Found(
        level=Level.WARNING,
        subject=_subject(found.name),
        text=f"the workers will have no external address, and subnetwork `{found.name}` has no Private Google Access",
        why="they reach neither Google's APIs nor buckets; only Cloud NAT, which is not read, would let them",
        remedies=(Remedy("turn it on; it costs nothing and breaks nothing", command),),
        facts={"privateIpGoogleAccess": False, "subnetwork": found.name, "region": found.region},
    )


def _subject(name: str) -> str:
    return f"subnetwork {name}"


def _level(facts: Facts) -> Level:
    """Return how bad it is that a node cannot be made so: one that is there was made."""
    return Level.ERROR if facts.wanted.creates else Level.WARNING


def _without_network(facts: Facts, interface: Interface, subject: str) -> Found:
    name, project = interface.network, interface.project
    where = {"network": name, "networkProject": project}
    listed = Remedy("name one of the project's networks: `--network`", commands.list_networks(project))
    if not interface.is_named and interface.subnetwork:
        its = known(facts.subnetwork)
        return Found(
            level=Level.WARNING,
            subject=subject,
            text=f"no network is named beside subnetwork `{interface.subnetwork}`, and project `{project}` has no `default`",
            why="the API says that it takes network `default` where none is named",
            remedies=(Remedy(f"name it: `--network={its.network}`") if its and its.network else listed,),
            facts=where,
        )
    if name != "default":
        text = f"project `{project}` has no network `{name}`"
        return Found(level=_level(facts), subject=subject, text=text, remedies=(listed,), facts=where)
    made = "or make one of that name; it comes without firewall rules, so that ssh has to be let in as well"
    return Found(
        level=_level(facts),
        subject=subject,
        text=f"project `{project}` has no network `default`, and no other is named",
        why="many organisations delete that network or never make it; a node needs one",
        remedies=(listed, Remedy(made, commands.create_network(project, "default"))),
        facts=where,
    )


def _judged(value: Subnetwork, interface: Interface, facts: Facts) -> Iterator[Found]:
    """Judge a subnetwork that is named and exists."""
    where = {"subnetwork": value.name, "region": value.region, "network": value.network}
    subject = _subject(value.name)
    if value.region not in {"", facts.wanted.region}:
        yield _misplaced(interface, f"in region {value.region}", facts)
    elif value.network in {"", interface.network}:
        text = f"subnetwork `{value.name}` is in {facts.wanted.region} and of network `{interface.network}`"
        yield Found(level=Level.OK, subject=subject, text=text, facts=where)
    else:
        named = interface.is_named
        yield Found(
            level=_level(facts) if named else Level.WARNING,
            subject=subject,
            text=f"subnetwork `{value.name}` is of network `{value.network}`, "
            + (f"not of `{interface.network}`" if named else "and no network is named"),
            why=None if named else "the API says that it takes network `default` where none is named",
            remedies=(Remedy(f"name its network: `--network={value.network}`"),),
            facts=where,
        )


def _unnamed(
    fact: Known[Subnetwork] | Absent, interface: Interface, facts: Facts, where: dict[str, str]
) -> Iterator[Found]:
    """Judge a node that leaves the subnetwork to its network; `fact` is the one of the network's own name."""
    its, region, subject = known(facts.network), facts.wanted.region, _subject(interface.network)
    if its is None or its.is_legacy:
        return
    belongs = isinstance(fact, Known) and fact.value.network in {"", its.name}
    listed = commands.list_subnetworks(interface.project, its.name)
    # The API takes the subnetwork `default` where none is named [API field text], whatever the mode of the network.
    if belongs and (its.is_auto or its.name == "default"):
        yield Found(
            level=Level.OK, subject=subject, text=f"network `{its.name}` has a subnetwork in {region}", facts=where
        )
    elif its.is_auto:
        yield Found(
            level=Level.WARNING,
            subject=subject,
            text=f"network `{its.name}` is in auto mode, yet it has no subnetwork `{its.name}` in {region}",
            why="a node needs one in the region of its zone",
            remedies=(Remedy("name another: `--subnetwork`", listed),),
            facts=where,
        )
    elif facts.wanted.creates:
        yield Found(
            level=Level.WARNING,
            subject=subject,
            text=f"network `{its.name}` is in custom mode, and no subnetwork is named",
            why=f"such a network chooses none; the API takes one called `default` in {region}, if there is one",
            remedies=(Remedy(f"name one of {region}: `--subnetwork={its.name}`" if belongs else f"name one of {region}: "
                             "`--subnetwork`", listed),),
            facts=where,
        )  # fmt: skip


def _misplaced(interface: Interface, place: str, facts: Facts) -> Found:
    """Return the error that a subnetwork is not in the region of the node."""
    region, name = facts.wanted.region, interface.subnetwork or interface.network
    project = interface.project
    text = (
        f"project `{project}` has no subnetwork `{name}` in {region}"
        if place == "not there"
        else f"subnetwork `{name}` is {place}, the node in {region}"
    )
    return Found(
        level=_level(facts),
        subject=_subject(name),
        text=text,
        why="the subnetwork of a node is in the region of its zone",
        remedies=(
            Remedy(f"name one of {region}: `--subnetwork`", commands.list_subnetworks(project, interface.network)),
        ),
        facts={"subnetwork": name, "region": region},
    )


RULES: tuple[Rule[Facts], ...] = (network, subnetwork, private_access, ssh_in, iap_in)

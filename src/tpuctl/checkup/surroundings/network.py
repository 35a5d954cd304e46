"""The way to the cloud: proxy, names, hosts, certificates, and whether both sides have the same time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_duration
from tpuctl.preflight.fact import Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.fact import Fact
    from tpuctl.preflight.findings import Rule

_LATE = timedelta(seconds=60)
# A signed assertion for a token counts for an hour, and may be a few minutes off [google-auth source: jwt, clock skew].
_TOO_LATE = timedelta(minutes=5)
_GOOGLE = ".googleapis.com"
_SYNC = Remedy("let the machine keep its time", "sudo timedatectl set-ntp true")


@rule("TPU931", "the proxy")
def proxy(seen: Surroundings) -> Iterator[Found]:
    """Look which proxy is used: that of `HTTPS_PROXY` or `ALL_PROXY`, else gcloud's, and what `NO_PROXY` leaves out.

    It is an error where its URL cannot be used: no request can be sent. It is a note where Google's hosts go past it.
    """
    network = seen.network
    source = f", from {network.proxy_source}" if network.proxy_source else ""
    facts = {"source": network.proxy_source, "bypassed": list(network.bypassed)}
    match network.proxy:
        case Unknown(reason):
            remedy = Remedy("write it like `http://HOST:PORT`, or unset it")
            text = f"the proxy cannot be used{source}: {reason}"
            why = "no request can be sent"
            yield Found(level=Level.ERROR, subject="proxy", text=text, why=why, remedies=(remedy,), facts=facts)
            return
        case Known(url):
            facts |= {"proxy": url}
            past = [name for name in network.bypassed if name.endswith(_GOOGLE)]
            if past:
                text = f"`NO_PROXY` leads past the proxy {url}{source} for {', '.join(past)}"
                why = "where only the proxy reaches the internet they cannot be reached"
                yield Found(level=Level.NOTE, subject="proxy", text=text, why=why, facts=facts)
            else:
                yield Found(level=Level.OK, subject="proxy", text=f"requests go through {url}{source}", facts=facts)
        case _:
            yield Found(level=Level.OK, subject="proxy", text="no proxy is set", facts=facts)
    if network.other_proxies:
        names = " and ".join(f"`{name}`" for name in network.other_proxies)
        text = f"{names} {'names' if len(network.other_proxies) == 1 else 'name'} another proxy, which is not used"
        remedy = Remedy("let them name the same, or unset those that are not meant")
        yield Found(level=Level.NOTE, subject="proxy", text=text, remedies=(remedy,), facts=facts)


@rule("TPU932", "names")
def names(seen: Surroundings) -> Iterator[Found]:
    """Look whether the names of the hosts that are called can be resolved; where a proxy is used it looks them up itself.

    It is an error where one cannot, and unknown where the deadline came first.
    """
    asked = {host.name: host.addresses for host in seen.network.hosts if host.addresses is not None}
    for subject, fact in _grouped(asked):
        said = "whether the name resolves is not known" if fact.is_passing else "the name cannot be resolved"
        yield Found(
            level=Level.UNKNOWN if fact.is_passing else Level.ERROR,
            subject=subject,
            text=f"{said}: {fact.reason}",
            remedies=(
                Remedy("look at the network, and at the name servers in `/etc/resolv.conf`"),
                Remedy("where only a proxy reaches the internet name it: `HTTPS_PROXY=http://HOST:PORT`"),
            ),
            is_passing=fact.is_passing,
        )
    fine = {name: list(fact.value) for name, fact in asked.items() if isinstance(fact, Known)}
    if fine:
        text = ", ".join(f"{name} is {addresses[0] if addresses else 'known'}" for name, addresses in fine.items())
        yield Found(level=Level.OK, subject="names", text=text, facts={"addresses": fine})


@rule("TPU933", "the services are reached")
def reached(seen: Surroundings) -> Iterator[Found]:
    """Send a request without an account to each host that is called; any answer will do.

    It is an error where none comes, and unknown where the deadline came first. What is said of a name is not said twice. A
    sandbox that cannot be opened is an error, and no other cloud is called in its place.
    """
    hosts, closed = seen.network.hosts, seen.network.closed
    if closed is not None:
        why = "commands in the sandbox end with this; no other cloud was called in its place"
        remedies = (*map(Remedy, closed.advice), Remedy("see what else helps", "tpuctl explain sandbox"))
        yield Found(level=Level.ERROR, subject="the sandbox", text=closed.reason, why=why, remedies=remedies)
        return
    nameless = {host.name for host in hosts if isinstance(host.addresses, Unknown) and not host.addresses.is_passing}
    for subject, fact in _grouped({host.name: host.answer for host in hosts if host.name not in nameless}):
        yield Found(
            level=Level.UNKNOWN if fact.is_passing else Level.ERROR,
            subject=subject,
            text=fact.reason if fact.is_passing else f"no answer: {fact.reason}",
            remedies=_ways_out(fact.reason, by_proxy=isinstance(seen.network.proxy, Known)),
            is_passing=fact.is_passing,
        )
    fine = {host.name: host.answer.value for host in hosts if isinstance(host.answer, Known)}
    if fine:
        took = {name: round(answer.took.total_seconds() * 1000) for name, answer in fine.items()}
        text = ", ".join(f"{name} answers in {milliseconds} ms" for name, milliseconds in took.items())
        yield Found(level=Level.OK, subject="services", text=text, facts={"milliseconds": took})


@rule("TPU934", "the clock")
def clock(seen: Surroundings) -> Iterator[Found]:
    """Compare the clock of this machine with the `Date` of an answer.

    More than a minute is a warning, more than five an error: tokens and signatures are refused (`invalid_grant`). At an
    endpoint of this machine, which may be a sandbox with a time of its own, it is a note. The time zone does not matter.
    """
    network, ahead = seen.network, seen.network.ahead
    if ahead is None:
        text = "whether the clock is right is not known: no host has answered with its time"
        yield Found(level=Level.UNKNOWN, subject="clock", text=text, is_passing=True)
        return
    off = abs(ahead)
    facts = {"secondsBehind": round(ahead.total_seconds()), "timeZone": network.time_zone}
    if off <= _LATE:
        text = (
            f"the clock is right to within {max(1, round(off.total_seconds()))} s; the time zone is {network.time_zone}"
        )
        yield Found(level=Level.OK, subject="clock", text=text, facts=facts)
        return
    is_behind = ahead > timedelta()
    text = f"the clock of this machine is {format_duration(off)} {'behind' if is_behind else 'ahead'}"
    if network.is_local:
        text += f"{'' if is_behind else ' of'} that of the endpoint, which is on this machine and may have a time of its own"
        yield Found(level=Level.NOTE, subject="clock", text=text, facts=facts)
        return
    is_far = off > _TOO_LATE
    yield Found(
        level=Level.ERROR if is_far else Level.WARNING,
        subject="clock",
        text=text,
        why=f"Google {'refuses' if is_far else 'may refuse'} tokens and signatures of another time (`invalid_grant`)",
        remedies=(_SYNC,),
        facts=facts,
    )


@rule("TPU935", "certificates of one's own")
def authorities(seen: Surroundings) -> Iterator[Found]:
    """Look whether the file of authorities that gcloud's `core/custom_ca_certs_file` names can be read. Else an error."""
    entry = seen.network.ca_file
    if entry is None:
        return
    subject = str(entry.path)
    if entry.is_there and not entry.problem:
        text = "servers are trusted by the authorities in this file"
        yield Found(level=Level.OK, subject=subject, text=text)
        return
    text = f"the authorities to trust cannot be read: {entry.problem or 'there is no such file'}"
    unset = Remedy("name a file that is there, or unset it", "gcloud config unset core/custom_ca_certs_file")
    yield Found(level=Level.ERROR, subject=subject, text=text, why="no server is trusted", remedies=(unset,))


def _grouped(facts: Mapping[str, Fact[Any]]) -> Iterator[tuple[str, Unknown]]:
    """Yield each reason once, with the hosts that it is true of."""
    found: dict[Unknown, list[str]] = {}
    for name, fact in facts.items():
        if isinstance(fact, Known):
            continue
        gap = fact if isinstance(fact, Unknown) else Unknown(fact.reason)
        found.setdefault(replace(gap, reason=gap.reason.removeprefix(f"{name} ")), []).append(name)
    yield from ((", ".join(names), gap) for gap, names in found.items())


def _ways_out(reason: str, *, by_proxy: bool) -> tuple[Remedy, ...]:
    if "certificate" in reason:
        return (
            Remedy(
                "where a proxy inspects TLS name its authority",
                "gcloud config set core/custom_ca_certs_file FILE",
            ),
        )
    if by_proxy:
        return (Remedy("see whether the proxy is up and the right one: `HTTPS_PROXY`, `NO_PROXY`"),)
    return (Remedy("look at the network, the firewall, and whether a proxy is needed: `HTTPS_PROXY=http://HOST:PORT`"),)


RULES: tuple[Rule[Surroundings], ...] = (proxy, names, reached, clock, authorities)

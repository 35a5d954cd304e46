"""Rules about the network between this machine and the cloud: proxy, host names, answers, certificates and clock."""

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
# A signed assertion for a token is valid for an hour, with a few minutes of tolerance [google-auth source: jwt, clock skew].
_TOO_LATE = timedelta(minutes=5)
_GOOGLE = ".googleapis.com"
_SYNC = Remedy("enable time synchronization", "sudo timedatectl set-ntp true")


@rule("TPU931", "proxy")
def proxy(environment: Surroundings) -> Iterator[Found]:
    """Check the proxy: that of `HTTPS_PROXY` or `ALL_PROXY`, else gcloud's; and the hosts that `NO_PROXY` excludes.

    An error if its URL cannot be used: no request can be sent. A note if it is not used for Google's hosts.
    """
    network = environment.network
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
            bypassed = [name for name in network.bypassed if name.endswith(_GOOGLE)]
            if bypassed:
                text = f"`NO_PROXY` excludes {', '.join(bypassed)} from the proxy {url}{source}"
                why = "they cannot be reached if only the proxy has access to the internet"
                yield Found(level=Level.NOTE, subject="proxy", text=text, why=why, facts=facts)
            else:
                yield Found(level=Level.OK, subject="proxy", text=f"requests go through {url}{source}", facts=facts)
        case _:
            yield Found(level=Level.OK, subject="proxy", text="no proxy is set", facts=facts)
    if network.other_proxies:
        names = " and ".join(f"`{name}`" for name in network.other_proxies)
        text = f"{names} {'names' if len(network.other_proxies) == 1 else 'name'} another proxy, which is not used"
        remedy = Remedy("set them all to the same proxy, or unset the others")
        yield Found(level=Level.NOTE, subject="proxy", text=text, remedies=(remedy,), facts=facts)


@rule("TPU932", "host names")
def names(environment: Surroundings) -> Iterator[Found]:
    """Check that the names of the hosts that commands call can be resolved; a proxy resolves names itself.

    An error if one cannot be resolved, unknown if there was no result before the deadline.
    """
    asked = {host.name: host.addresses for host in environment.network.hosts if host.addresses is not None}
    for subject, fact in _grouped(asked):
        problem = "the name was not resolved in time" if fact.is_passing else "the name cannot be resolved"
        yield Found(
            level=Level.UNKNOWN if fact.is_passing else Level.ERROR,
            subject=subject,
            text=f"{problem}: {fact.reason}",
            remedies=(
                Remedy("check the network, and the name servers in `/etc/resolv.conf`"),
                Remedy("if only a proxy has access to the internet, set it: `HTTPS_PROXY=http://HOST:PORT`"),
            ),
            is_passing=fact.is_passing,
        )
    fine = {name: list(fact.value) for name, fact in asked.items() if isinstance(fact, Known)}
    if fine:
        text = ", ".join(f"{name} is {addresses[0] if addresses else 'known'}" for name, addresses in fine.items())
        yield Found(level=Level.OK, subject="names", text=text, facts={"addresses": fine})


@rule("TPU933", "services answer")
def reached(environment: Surroundings) -> Iterator[Found]:
    """Send a request without credentials to each host that commands call; any answer is fine.

    An error if no answer comes, unknown if none came before the deadline. Hosts whose name TPU932 could not resolve are left
    out. A sandbox that cannot be opened is an error, and no other cloud is called in its place.
    """
    hosts, closed = environment.network.hosts, environment.network.closed
    if closed is not None:
        why = "commands in the sandbox fail with this error; no other cloud was called in its place"
        remedies = (*map(Remedy, closed.advice), Remedy("see other solutions", "tpuctl explain sandbox"))
        yield Found(level=Level.ERROR, subject="the sandbox", text=closed.reason, why=why, remedies=remedies)
        return
    nameless = {host.name for host in hosts if isinstance(host.addresses, Unknown) and not host.addresses.is_passing}
    for subject, fact in _grouped({host.name: host.answer for host in hosts if host.name not in nameless}):
        yield Found(
            level=Level.UNKNOWN if fact.is_passing else Level.ERROR,
            subject=subject,
            text=fact.reason if fact.is_passing else f"no answer: {fact.reason}",
            remedies=_connection_remedies(fact.reason, by_proxy=isinstance(environment.network.proxy, Known)),
            is_passing=fact.is_passing,
        )
    fine = {host.name: host.answer.value for host in hosts if isinstance(host.answer, Known)}
    if fine:
        took = {name: round(answer.took.total_seconds() * 1000) for name, answer in fine.items()}
        text = ", ".join(f"{name} answers in {milliseconds} ms" for name, milliseconds in took.items())
        yield Found(level=Level.OK, subject="services", text=text, facts={"milliseconds": took})


@rule("TPU934", "clock")
def clock(environment: Surroundings) -> Iterator[Found]:
    """Compare the clock of this machine with the `Date` of an answer.

    A difference of more than a minute is a warning, of more than five an error: tokens and signatures are refused
    (`invalid_grant`). A note for an endpoint on this machine, which may be a sandbox with its own clock. The time zone does not
    matter.
    """
    network, ahead = environment.network, environment.network.ahead
    if ahead is None:
        text = "the clock could not be checked: no host answered with its time"
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
        text += (
            f"{'' if is_behind else ' of'} that of the endpoint, which is on this machine and may have its own clock"
        )
        yield Found(level=Level.NOTE, subject="clock", text=text, facts=facts)
        return
    is_far = off > _TOO_LATE
    yield Found(
        level=Level.ERROR if is_far else Level.WARNING,
        subject="clock",
        text=text,
        why=f"Google {'refuses' if is_far else 'may refuse'} tokens and signatures with a wrong time (`invalid_grant`)",
        remedies=(_SYNC,),
        facts=facts,
    )


@rule("TPU935", "custom CA certificates")
def authorities(environment: Surroundings) -> Iterator[Found]:
    """Check that the file of gcloud's `core/custom_ca_certs_file` can be read; else an error."""
    entry = environment.network.ca_file
    if entry is None:
        return
    subject = str(entry.path)
    if entry.is_there and not entry.problem:
        text = "servers are verified with the CA certificates in this file"
        yield Found(level=Level.OK, subject=subject, text=text)
        return
    text = f"the CA certificates cannot be read: {entry.problem or 'there is no such file'}"
    unset = Remedy("set an existing file, or unset it", "gcloud config unset core/custom_ca_certs_file")
    yield Found(level=Level.ERROR, subject=subject, text=text, why="no server can be verified", remedies=(unset,))


def _grouped(facts: Mapping[str, Fact[Any]]) -> Iterator[tuple[str, Unknown]]:
    """Yield each reason once, with the hosts that it applies to."""
    found: dict[Unknown, list[str]] = {}
    for name, fact in facts.items():
        if isinstance(fact, Known):
            continue
        gap = fact if isinstance(fact, Unknown) else Unknown(fact.reason)
        found.setdefault(replace(gap, reason=gap.reason.removeprefix(f"{name} ")), []).append(name)
    yield from ((", ".join(names), gap) for gap, names in found.items())


def _connection_remedies(reason: str, *, by_proxy: bool) -> tuple[Remedy, ...]:
    if "certificate" in reason:
        return (
            Remedy(
                "if a proxy inspects TLS, set its CA certificate",
                "gcloud config set core/custom_ca_certs_file FILE",
            ),
        )
    if by_proxy:
        return (Remedy("check that the proxy is running and correct: `HTTPS_PROXY`, `NO_PROXY`"),)
    return (
        Remedy("check the network and the firewall, and whether a proxy is needed: `HTTPS_PROXY=http://HOST:PORT`"),
    )


RULES: tuple[Rule[Surroundings], ...] = (proxy, names, reached, clock, authorities)

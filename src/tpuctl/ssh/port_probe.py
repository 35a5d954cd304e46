"""Which ports of one worker the others reach: it listens for a moment, and they connect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from tpuctl.decoding import Line, Most, Range
from tpuctl.ssh.answers import decode_answer
from tpuctl.ssh.channel import on_each_worker, open_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tpuctl.errors import TpuctlError
    from tpuctl.ssh.channel import AgentChannel
    from tpuctl.ssh.connection import Connection, Target

# A packet that a firewall drops has no answer. Within a region an answer takes a millisecond.
_PATIENCE = timedelta(seconds=2)
OPEN = "open"
_IN_USE = "in use"
_MOST_PORTS = 64


@dataclass(frozen=True, slots=True)
class _PortState:
    port: Annotated[int, Range(1, 65535)]
    state: Annotated[str, Line(80)]


@dataclass(frozen=True, slots=True)
class _Answer:
    ports: Annotated[tuple[_PortState, ...], Most(_MOST_PORTS)]

    def by_port(self) -> dict[int, str]:
        return {one.port: one.state for one in self.ports}


@dataclass(frozen=True, slots=True)
class PortProbe:
    """The state of each port of the listener from each other worker: `open`, `refused`, `no answer`, or an error message.

    Workers are named by the labels of their targets. `unheard` are the ports at which the listener could not listen, `failed`
    the workers that could not be asked.
    """

    listener: str
    ports: tuple[int, ...]
    states: Mapping[str, Mapping[int, str]]
    unheard: Mapping[int, str]
    failed: Mapping[str, TpuctlError]

    def closed(self) -> dict[int, dict[str, str]]:
        """Return the ports that some workers do not reach, with the state that each of these saw."""
        found: dict[int, dict[str, str]] = {}
        for label, states in self.states.items():
            for port in self.ports:
                if port not in self.unheard and (state := states.get(port, "unknown")) != OPEN:
                    found.setdefault(port, {})[label] = state
        return found


def probe_ports(
    targets: Sequence[Target],
    address: str,
    ports: Sequence[int],
    *,
    timeout: timedelta,
    ssh_options: Callable[[Connection], tuple[str, ...] | None] = lambda _: None,
) -> PortProbe:
    """Let the first worker, which has this internal address, listen, and the others connect.

    `timeout` limits each worker; `ssh_options` returns the options of a shared connection, None for a new one. Raises
    `AgentError` and `UnexpectedAnswerError` of the listener, and `SshProgramMissingError`.
    """
    request = {"address": address, "ports": list(ports)}

    def opened(target: Target, *, listens: bool, seconds: float) -> AbstractContextManager[AgentChannel]:
        about = {**request, "listens": listens, "seconds": seconds}
        options = ssh_options(target.connection)
        return open_agent(target, "port_probe", about, connect_within=timeout, shared=options)

    def connect(target: Target) -> Mapping[int, str]:
        with opened(target, listens=False, seconds=_PATIENCE.total_seconds()) as channel:
            return decode_answer(_Answer, channel.read(timeout + _PATIENCE)).by_port()

    listener, *others = targets
    with opened(listener, listens=True, seconds=3 * timeout.total_seconds()) as channel:
        # A port at which a program listens already answers as well.
        heard = decode_answer(_Answer, channel.read(timeout)).by_port()
        outcomes = on_each_worker(connect, others)
        channel.close_stdin()
    states = {outcome.item.label: outcome.get() for outcome in outcomes if outcome.error is None}
    failed = {outcome.item.label: outcome.error for outcome in outcomes if outcome.error is not None}
    unheard = {port: state for port, state in heard.items() if state not in {OPEN, _IN_USE}}
    return PortProbe(listener.label, tuple(ports), states, unheard, failed)

"""Port forwards of `--forward`: a service name or a port of a worker, and the local port."""

from __future__ import annotations

import errno
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

from tpuctl.errors import ConflictError, InvalidInputError

# The default ports of TensorBoard and Jupyter [their documentation].
_NAMES = {"tensorboard": 6006, "jupyter": 8888}
_PORTS = re.compile(r"(?:(?P<local>\d{1,5}):)?(?P<remote>\d{1,5})", re.ASCII)
# How many ports above a port in use are tried.
_MAX_TRIES = 100
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of a worker and the local port that forwards to it. `is_fixed`: the user named the local port."""

    local: int
    remote: int
    is_fixed: bool

    @classmethod
    def parse(cls, text: str) -> Forward:
        """Parse `tensorboard`, `jupyter`, `PORT` or `LOCAL:PORT`. Raises `InvalidInputError`."""
        if remote := _NAMES.get(text):
            return cls(remote, remote, is_fixed=False)
        match = _PORTS.fullmatch(text)
        remote = int(match["remote"]) if match else 0
        local = int(match["local"] or remote) if match else 0
        if match is None or not (0 < local <= _MAX_PORT and 0 < remote <= _MAX_PORT):
            hint = "use `tensorboard`, `jupyter`, PORT or LOCAL:PORT; for another host `-L LOCAL:HOST:PORT`"
            raise InvalidInputError(f"`--forward {text}` is not a port", hint=hint)
        return cls(local, remote, is_fixed=match["local"] is not None)

    @property
    def options(self) -> tuple[str, ...]:
        """The options for ssh. Services on workers often listen on the loopback address only."""
        return ("-L", f"{self.local}:localhost:{self.remote}")


def settle(forwards: list[Forward]) -> list[Forward]:
    """Return the forwards with free local ports: the next free port, or the port that the user named.

    Raises `ConflictError` if a named port is in use or not permitted.
    """
    chosen: list[Forward] = []
    for forward in forwards:
        used = {one.local for one in chosen}
        last = forward.local if forward.is_fixed else min(forward.local + _MAX_TRIES, _MAX_PORT)
        candidates = (
            port for port in range(forward.local, last + 1) if port not in used and _port_problem(port) is None
        )
        port = next(candidates, None)
        if port is None:
            why = _port_problem(forward.local) or "it is already forwarded"
            raise ConflictError(
                f"the local port {forward.local} cannot be used: {why}",
                hint=f"name another port: `--forward LOCAL:{forward.remote}`"
                + (f", or let tpuctl choose: `--forward {forward.remote}`" if forward.is_fixed else ""),
            )
        chosen.append(Forward(port, forward.remote, forward.is_fixed))
    return chosen


def _port_problem(port: int) -> str | None:
    """Return why ssh cannot listen on a local port, None if it can. ssh needs one of the two loopback addresses."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "another program listens on it"
                if error.errno == errno.EACCES:
                    return "ports below 1024 need administrator rights"
    return None

"""`--forward`: a port of a worker on this machine, under the name of what listens there or its number."""

from __future__ import annotations

import errno
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

from tpuctl.errors import ConflictError, InvalidInputError

# What TensorBoard and Jupyter listen on unless told otherwise [their documentation].
_NAMES = {"tensorboard": 6006, "jupyter": 8888}
_PORTS = re.compile(r"(?:(?P<local>\d{1,5}):)?(?P<remote>\d{1,5})", re.ASCII)
# How many ports above the one that is taken are tried.
_TRIES = 100
_LAST = 65535


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of the worker and the local port that leads there. A local port that the user did not name may be another."""

    local: int
    remote: int
    is_fixed: bool

    @classmethod
    def parse(cls, text: str) -> Forward:
        """Read `tensorboard`, `jupyter`, `PORT` or `LOCAL:PORT`. Raises `InvalidInputError`."""
        if remote := _NAMES.get(text):
            return cls(remote, remote, is_fixed=False)
        match = _PORTS.fullmatch(text)
        remote = int(match["remote"]) if match else 0
        local = int(match["local"] or remote) if match else 0
        if match is None or not (0 < local <= _LAST and 0 < remote <= _LAST):
            hint = "say `tensorboard`, `jupyter`, PORT or LOCAL:PORT; other hosts with `-L LOCAL:HOST:PORT`"
            raise InvalidInputError(f"`--forward {text}` names no port", hint=hint)
        return cls(local, remote, is_fixed=match["local"] is not None)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ssh. What listens on a worker often listens on its loopback address alone."""
        return ("-L", f"{self.local}:localhost:{self.remote}")


def settle(forwards: list[Forward]) -> list[Forward]:
    """Return the forwards with local ports that are free now: the next free one, unless the user named it.

    Raises `ConflictError` for a named one that is taken, or may not be used.
    """
    settled: list[Forward] = []
    for forward in forwards:
        used = {one.local for one in settled}
        last = forward.local if forward.is_fixed else min(forward.local + _TRIES, _LAST)
        candidates = (port for port in range(forward.local, last + 1) if port not in used and _obstacle(port) is None)
        port = next(candidates, None)
        if port is None:
            why = _obstacle(forward.local) or "it is forwarded already"
            raise ConflictError(
                f"the local port {forward.local} cannot be used: {why}",
                hint=f"name another one: `--forward LOCAL:{forward.remote}`"
                + (f", or leave the choice to tpuctl: `--forward {forward.remote}`" if forward.is_fixed else ""),
            )
        settled.append(Forward(port, forward.remote, forward.is_fixed))
    return settled


def _obstacle(port: int) -> str | None:
    """Return why ssh could not listen on a local port, or nothing where it can: it takes both loopback addresses, or one."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "something listens there"
                if error.errno == errno.EACCES:
                    return "ports below 1024 are the administrator's"
    return None

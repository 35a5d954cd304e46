"""Runs on a worker: listens at ports for a moment, or connects to those of another worker.

It must run under Python 3.8 and import little.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import time

from tpuctl.ssh.agent.link import ClientLink

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

# Connections that wait until they are accepted: one of each worker of a large slice.
BACKLOG = 256
STATES = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "no answer", errno.EADDRINUSE: "in use"}


def serve_port_probe(link: ClientLink, request: dict[str, Any]) -> None:
    """Say at which ports it listens, and do so until the client goes; or say which ports of another worker it reaches."""
    address, seconds = place_of(request["address"]), request["seconds"]
    if not request["listens"]:
        answer(link, reached_ports(address, request["ports"], seconds))
        return
    servers: list[Any] = []
    states: dict[int, str] = {}
    for port in request["ports"]:
        try:
            servers.append(listening(address, port))
            states[port] = "open"
        except OSError as error:
            states[port] = state_of(error)
    answer(link, states)
    until = time.monotonic() + seconds
    while link.is_open and time.monotonic() < until:
        ready = select.select([0, *servers], [], [], max(0.0, until - time.monotonic()))[0]
        if 0 in ready:
            link.frames()
        for server in servers:
            if server in ready:
                try:
                    server.accept()[0].close()
                except OSError:  # the other worker has closed it
                    continue


def answer(link: ClientLink, states: dict[int, str]) -> None:
    """Send the state of each port."""
    ports = [{"port": port, "state": state} for port, state in states.items()]
    link.send(b"x", json.dumps({"ports": ports}).encode("ascii"))


def listening(address: str, port: int) -> socket.socket:
    """Return a socket that listens at a port. Raises `OSError`."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    server.listen(BACKLOG)
    return server


def reached_ports(address: str, ports: list[int], seconds: float) -> dict[int, str]:
    """Connect to all ports at the same time, and return how each answered."""
    states: dict[int, str] = {}
    waiting: dict[socket.socket, int] = {}
    for port in ports:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(0)
        code = connection.connect_ex((address, port))
        if code in (0, errno.EINPROGRESS):
            waiting[connection] = port
        else:
            states[port] = state_of(OSError(code, os.strerror(code)))
    until = time.monotonic() + seconds
    while waiting and time.monotonic() < until:
        for connection in select.select([], list(waiting), [], max(0.0, until - time.monotonic()))[1]:
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            states[waiting.pop(connection)] = state_of(OSError(code, os.strerror(code))) if code else "open"
    states.update(dict.fromkeys(waiting.values(), "no answer"))
    return states


def state_of(error: OSError) -> str:
    """Return an error as the state of a port."""
    return STATES.get(error.errno or 0, (error.strerror or str(error)).lower())


def place_of(address: str) -> str:
    """Return where an address of a worker is: the workers of a sandbox have loopback addresses of one machine."""
    prefix = os.environ.get("TPUCTL_SANDBOX_NETWORK")
    return "%s.%s" % (prefix, ".".join(address.split(".")[2:])) if prefix else address

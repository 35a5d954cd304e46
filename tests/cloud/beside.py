"""Clients of the other APIs: on a scripted server, and on both faces of the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from tests.cloud.scripted_api import Reply, Script, ScriptedServer
from tpuctl.clock import ManualClock
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.requests import ApiClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.errors import TpuctlError
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState

C = TypeVar("C", bound=ApiClient)


@contextmanager
def scripted(kind: type[C], script: Script, *, clock: ManualClock | None = None) -> Iterator[tuple[C, ScriptedServer]]:
    """Return a client of a scripted server, over a real socket; delays are simulated."""
    with ScriptedServer(script) as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        try:
            chance = Random(1)  # noqa: S311  # the same in each run
            yield kind(factory, clock or ManualClock(), endpoint=server.url, random=chance), server
        finally:
            factory.close()


@contextmanager
def on_face(kind: type[C], face: str, sandbox_state: SandboxState) -> Iterator[C]:
    """Return a client of the sandbox, in process, where hosts are Google's, or over http."""
    if face == "in process":
        yield kind(lambda: SandboxHttp(sandbox_state), sandbox_state.clock)
        return
    with open_server(sandbox_state).start() as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        yield kind(factory, sandbox_state.clock, endpoint=server.url)
        factory.close()


FACES = ("in process", "over http")


def older(code: int, reason: str, message: str) -> Reply:
    """Return a refusal in the format of Cloud Storage and Compute Engine."""
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return Reply({"error": {"code": code, "message": message, "errors": errors}}, code)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the class and the id of what it raises."""
    try:
        return call()
    except TpuctlError as error:
        return type(error).__name__, error.error_id

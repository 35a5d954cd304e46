"""A sandbox with a manual clock, and its API without HTTP. A test file may define its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.response_schema import schema_errors, schema_errors_of_all
from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import ApiError, Call
from tpuctl.sandbox.service import METHODS
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Api:
    """The methods of `tpu.projects.locations`, called without HTTP."""

    zone = "projects/sandbox/locations/us-central2-b"
    body: dict[str, Any] = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}  # noqa: RUF012  # never changed

    def __init__(self, sandbox_state: SandboxState) -> None:
        self._state = sandbox_state

    def __call__(
        self, method: str, body: dict[str, Any] | None = None, *, version: str = "v2", **params: object
    ) -> Any:
        """Return the response, which must fit the schema; for an error its (code, message without the error id)."""
        method = f"tpu.projects.locations.{method}"
        with self._state.write() as session:
            try:
                answer = METHODS[method](session, Call(version, method, params, body or {}))
            except ApiError as error:
                return error.code, error.message.partition(" [EID")[0]
        assert schema_errors(version, method, answer) == []
        return answer

    def create(self, node_id: str = "node", **change: Any) -> Any:
        """Create a v4-8."""
        return self("nodes.create", {**self.body, **change}, parent=self.zone, nodeId=node_id)

    def state(self, node_id: str = "node") -> object:
        """Return a node's state, or the status code of the error."""
        found = self("nodes.get", name=f"{self.zone}/nodes/{node_id}")
        return found["state"] if isinstance(found, dict) else found[0]

    def health(self, node_id: str = "node") -> str:
        """Return a node's health, empty when unset."""
        return str(self("nodes.get", name=f"{self.zone}/nodes/{node_id}").get("health", ""))


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that moves only by `sleep`."""
    return ManualClock()


@pytest.fixture
def sandbox_state(tmp_path: Path, clock: ManualClock) -> Iterator[SandboxState]:
    """Yield an empty sandbox in which a READY node is HEALTHY at once; at the end all resources must fit the schema."""
    with SandboxState.open(tmp_path / "sandbox" / "sandbox.db", clock=clock) as sandbox_state:
        administration.set_setting(sandbox_state, "health_lag", [0, 0])
        yield sandbox_state
        assert schema_errors_of_all(sandbox_state) == []


@pytest.fixture
def api(sandbox_state: SandboxState) -> Api:
    """Return the API of the sandbox."""
    return Api(sandbox_state)

"""The API clients of the checks, connected to a sandbox in the same process."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Sandbox
from tpuctl.check.gathering import Sources
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.tpu import TpuClient
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState


def sources(sandbox: Sandbox, kind: Callable[[SandboxState], SandboxHttp] = SandboxHttp) -> Sources:
    """Return the clients; `kind` is the transport."""
    sandbox_state = sandbox.state

    def http() -> SandboxHttp:
        return kind(sandbox_state)

    return Sources(
        tpu=TpuClient(http, sandbox_state.clock),
        buckets=BucketsClient(http, sandbox_state.clock),
        compute=ComputeClient(http, sandbox_state.clock),
        projects=ProjectsClient(http, sandbox_state.clock),
    )

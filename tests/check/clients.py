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
    world = sandbox.world

    def http() -> SandboxHttp:
        return kind(world)

    return Sources(
        tpu=TpuClient(http, world.clock),
        buckets=BucketsClient(http, world.clock),
        compute=ComputeClient(http, world.clock),
        projects=ProjectsClient(http, world.clock),
    )

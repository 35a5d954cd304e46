"""The clients through which checks ask, of a sandbox in the same process."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Sandbox
from tpuctl.actions.checking.sources import Sources
from tpuctl.api.buckets import BucketsClient
from tpuctl.api.compute import ComputeClient
from tpuctl.api.projects import ProjectsClient
from tpuctl.api.tpu import TpuClient
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.world import World


def sources(sandbox: Sandbox, kind: Callable[[World], SandboxHttp] = SandboxHttp) -> Sources:
    """Return the clients; `kind` is what carries their requests."""
    world = sandbox.world

    def http() -> SandboxHttp:
        return kind(world)

    return Sources(
        tpu=TpuClient(http, world.clock),
        buckets=BucketsClient(http, world.clock),
        compute=ComputeClient(http, world.clock),
        projects=ProjectsClient(http, world.clock),
    )

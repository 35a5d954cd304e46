"""The clients through which checks ask, of a sandbox in the same process."""

from __future__ import annotations

from tests.conftest import Sandbox
from tpuctl.actions.checking.sources import Sources
from tpuctl.api.buckets import BucketsClient
from tpuctl.api.compute import ComputeClient
from tpuctl.api.projects import ProjectsClient
from tpuctl.api.tpu import TpuClient
from tpuctl.sandbox.in_process import SandboxHttp


def sources(sandbox: Sandbox) -> Sources:
    world = sandbox.world

    def http() -> SandboxHttp:
        return SandboxHttp(world)

    return Sources(
        tpu=TpuClient(http, world.clock),
        buckets=BucketsClient(http, world.clock),
        compute=ComputeClient(http, world.clock),
        projects=ProjectsClient(http, world.clock),
    )

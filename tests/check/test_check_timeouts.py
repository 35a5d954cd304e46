"""A check does not wait long for a service that is down."""

from __future__ import annotations

from datetime import timedelta

from tests.conftest import Console, Sandbox
from tpuctl.clock import ManualClock
from tpuctl.sandbox.request_log import read_log


def test_lists_of_service_down_are_retried_once(tpuctl: Console, sandbox: Sandbox, clock: ManualClock) -> None:
    sandbox.fault("http-error", method="tpu.projects.locations.nodes.list", status=503, count=0)
    before = clock.now()

    out, _, _ = tpuctl("check", "v4-8", "--zone", "us-central2-b")

    assert "TPU306" in out
    assert clock.now() - before < timedelta(seconds=3)
    paths = [entry.path.partition("?")[0].rpartition("/")[2] for entry in read_log(sandbox.state.path)]
    assert paths.count("nodes") == 2

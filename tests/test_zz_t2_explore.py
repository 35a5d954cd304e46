from __future__ import annotations
from datetime import timedelta
import pytest
from tests.conftest import Console, Sandbox

def show(r):
    print("-----out"); print(r[0], end=""); print("-----err", r[2]); print(r[1], end="")

def test_x(tpuctl: Console, sandbox: Sandbox) -> None:
    h = timedelta(hours=3)
    show(tpuctl("list", terminal=True)); show(tpuctl("list"))
    sandbox.add_node("alpha", age=h)
    sandbox.add_node("beta", state="PREEMPTED", zone="us-central1-a", acceleratorType="v5litepod-8", schedulingConfig={"spot": True}, age=h)
    sandbox.add_node("gamma", zone="us-central1-a", acceleratorType="v5litepod-16", queued_resource="waiting", age=h,
       symptoms=[{"symptomType": "LOW_MEMORY", "workerId": "1", "createTime": "2026-01-01T00:00:00Z"}])
    sandbox.add_node("delta", zone="us-east5-a", acceleratorType="v6e-8", health="UNHEALTHY_TENSORFLOW", healthDescription="libtpu died", age=h)
    sandbox.add_node("eps", state="STOPPED", age=h)
    sandbox.add_node("zeta", age=h, upcomingMaintenance={"type":"SCHEDULED","maintenanceStatus":"PENDING","windowStartTime":"2026-01-01T05:00:00Z"})
    sandbox.add_node("eta", state="TERMINATED", age=h)
    sandbox.add_queued_resource("old", state="SUSPENDED", node_ids=("gone",))
    sandbox.add_queued_resource("waiting", zone="us-central1-a", state="ACTIVE", node_ids=("gamma",))
    show(tpuctl("list", terminal=True, NO_COLOR="1")); show(tpuctl("list")); show(tpuctl("list", "-o", "name")); 
    show(tpuctl("list", "--zone", "us-central1-a,us-east5-a"))
    show(tpuctl("list", "--zone", "us-central1-a", "--zone", "us-east5-a", "-o", "json", terminal=True))
    sandbox.fault("unreachable", zone="us-east5-a", count=0)
    show(tpuctl("list", terminal=True, NO_COLOR="1")); show(tpuctl("list")); show(tpuctl("list", "-o", "json"))
    show(tpuctl("status", "alpha"));show(tpuctl("status", "delta"))
    show(tpuctl("status", "us-east5-a/delta"))
    show(tpuctl("status", "gamma", terminal=True, NO_COLOR="1"))


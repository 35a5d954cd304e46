"""What begins to gather, in a project that has a thing of each kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.checking.clients import sources
from tests.checking.wishes import OTHER, ZONE
from tests.conftest import Sandbox
from tpuctl.actions.checking.gathering import Gathering
from tpuctl.clock import ManualClock
from tpuctl.sandbox import admin, provision


@pytest.fixture
def gathering(sandbox: Sandbox) -> Callable[[], Gathering]:
    """Return a function that gathers facts in a project with each kind of resource, some of them twice."""
    world = sandbox.world
    with world.write() as session:
        for project in ("sandbox", "host"):
            provision.add_project(session, project)
        for name, location in (("near", "US-CENTRAL2"), ("far", "EUROPE-WEST1")):
            provision.add_bucket(session, name, location=location)
            provision.add_object(session, name, "train/0", b"abc")
        provision.add_disk(session, "one", zone=ZONE)
        provision.add_disk(session, "two", zone=ZONE)
        provision.add_disk(session, "two", zone=OTHER, sizeGb="77")
        provision.add_instance(session, "loader", zone=ZONE)
        for zone in (ZONE, OTHER):
            provision.add_instance(session, "other", zone=zone)
        provision.add_network(session, "shared", project="host")
        provision.add_subnetwork(session, "below", region="europe-west4", network="shared", project="host")
        provision.add_firewall(session, "only-here", project="host", network="shared")
    admin.set_setting(
        world,
        "reservations",
        [
            {"name": f"projects/{project}/locations/{zone}/reservations/of-{zone}", "state": "ACTIVE"}
            for project in ("sandbox", "host")
            for zone in (ZONE, OTHER)
        ],
    )
    # Its time is not that of the clients, whose pauses would use it up.
    return lambda: Gathering(sources(sandbox), ManualClock(), timedelta(seconds=15))

"""A `FactGatherer` for a project with each kind of resource."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.check.clients import sources
from tests.check.whole_node import OTHER, ZONE
from tests.conftest import Sandbox
from tpuctl.check.gathering import FactGatherer
from tpuctl.clock import ManualClock
from tpuctl.sandbox import administration


@pytest.fixture
def gathering(sandbox: Sandbox) -> Callable[[], FactGatherer]:
    """Return a function that gathers facts in a project with each kind of resource, some of them twice."""
    sandbox_state = sandbox.state
    with sandbox_state.write() as session:
        for project in ("sandbox", "host"):
            administration.add_project(session, project)
        for name, location in (("near", "US-CENTRAL2"), ("far", "EUROPE-WEST1")):
            administration.add_bucket(session, name, location=location)
            administration.add_object(session, name, "train/0", b"abc")
        administration.add_disk(session, "one", zone=ZONE)
        administration.add_disk(session, "two", zone=ZONE)
        administration.add_disk(session, "two", zone=OTHER, sizeGb="77")
        administration.add_instance(session, "loader", zone=ZONE)
        for zone in (ZONE, OTHER):
            administration.add_instance(session, "other", zone=zone)
        administration.add_network(session, "shared", project="host")
        administration.add_subnetwork(session, "below", region="europe-west4", network="shared", project="host")
        administration.add_firewall(session, "only-here", project="host", network="shared")
    administration.set_setting(
        sandbox_state,
        "reservations",
        [
            {"name": f"projects/{project}/locations/{zone}/reservations/of-{zone}", "state": "ACTIVE"}
            for project in ("sandbox", "host")
            for zone in (ZONE, OTHER)
        ],
    )
    # Its time is not that of the clients, whose pauses would use it up.
    return lambda: FactGatherer(sources(sandbox), ManualClock(), timedelta(seconds=15))

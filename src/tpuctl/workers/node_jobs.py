"""The jobs of all nodes. Changes nothing: no ssh key is made or registered for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import present_connection_options
from tpuctl.durations import format_duration
from tpuctl.errors import TpuctlError
from tpuctl.fan_out import FanOutTimeoutError
from tpuctl.models.node import NodeState
from tpuctl.nodes.lookup import by_zone_and_name
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.workers.targets import find_targets
from tpuctl.workers.worker_jobs import JobListing, JobScope, list_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node, WorkerSet
    from tpuctl.ssh.connection import Target

# A node that does not answer must not hold back the jobs of the others.
_ASKED_FOR = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class AllJobs:
    """The jobs of the READY nodes, each listed for its node; why those of others are unknown; the zones without an answer."""

    listing: JobListing
    nodes: Sequence[Node]
    silent: Mapping[str, str]
    unreachable: tuple[str, ...]


def list_all_jobs(app: App, workers: WorkerSet, *, limit: int) -> AllJobs:
    """Return the newest jobs of all READY nodes of the zones of the flag, or of all zones."""
    found = app.services.client.list_nodes(app.project, app.zones)
    nodes = [node for node in sorted(found.nodes, key=by_zone_and_name) if node.state is NodeState.READY]
    targets: list[Target] = []
    silent: dict[str, str] = {}
    for node in nodes:
        try:
            if obstacle := app.services.workers.obstacle(node):
                silent[node.name.node_id] = obstacle
                continue
            targets += find_targets(app, [node], workers, read_only=True)
        except TpuctlError as error:
            silent[node.name.node_id] = error.message
    present = present_connection_options(app)
    scope = JobScope(targets, lambda connection: present(connection) or ())
    listing = list_jobs(scope, limit=limit, within=_ASKED_FOR)
    for target, failure in zip(listing.silent, listing.failures, strict=True):
        text = explain_agent_errors([failure])[0].message
        if isinstance(failure, FanOutTimeoutError):
            text = f"no answer within {format_duration(_ASKED_FOR)}"
        silent.setdefault(target.node.name.node_id, text)
    return AllJobs(replace(listing, silent=(), failures=()), nodes, silent, found.unreachable)

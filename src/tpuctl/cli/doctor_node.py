"""Check a node and its workers. Nothing is changed: no key is created, and none is put on the node."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.actions.checkup.node import gather
from tpuctl.actions.checkup.workers import examine, facts_of
from tpuctl.actions.locate import locate
from tpuctl.api.operation_list import OperationsClient
from tpuctl.api.retry import SHORT_PATIENCE
from tpuctl.api.tpu import TpuClient
from tpuctl.checkup.catalogue import OF_NODES, OF_WORKERS
from tpuctl.cli.connect import http_access
from tpuctl.clock import SystemClock
from tpuctl.errors import TpuctlError
from tpuctl.preflight.evaluation import findings_of
from tpuctl.remote.gate import check_state
from tpuctl.remote.known_hosts import remember_host_keys
from tpuctl.remote.member import Member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.preflight.findings import Finding


# A worker may be slow to accept ssh without being broken.
_PATIENCE = timedelta(seconds=30)


def findings_of_node(app: App, node: str, options: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the findings about a node and its workers.

    `timeout` of the options limits each worker. A fact that cannot be read is a finding; an error that prevents finding the
    node itself is raised.
    """
    timeout = options.get("timeout")
    patience = timeout if isinstance(timeout, timedelta) else _PATIENCE
    _, _, name = node.rpartition("@")
    if name != node:
        app.log_in_as(node.removesuffix(f"@{name}"))
    factory, endpoint = http_access(app)
    # Short retries: users do not want to wait for a diagnosis.
    client = TpuClient(factory, app.clock, endpoint=endpoint, policy=SHORT_PATIENCE)
    operations = OperationsClient(factory, app.clock, endpoint=endpoint)
    found = locate(client, app.place, app.reference(name))
    obstacle, remedy = _obstacle(app, found)
    facts = gather(found, client, operations, app.journal, now=app.now(), obstacle=obstacle, remedy=remedy)
    findings = [*findings_of(facts, OF_NODES)]
    if obstacle is None:
        members, wayless = _ways(app, found)
        # Workers use the real clock, in the sandbox too.
        examined = examine(members, SystemClock(), patience=patience)
        has_own_key = app.settings["ssh_key"] is not None
        reports = facts_of(found, examined, app.now(), wayless=wayless, has_own_key=has_own_key)
        findings += findings_of(reports, OF_WORKERS)
    return tuple(findings)


def _obstacle(app: App, node: Node) -> tuple[str | None, str | None]:
    """Return why no worker can be examined, and what helps; None if they can."""
    try:
        check_state(node)  # rules cover its warnings
        if obstacle := app.workers.obstacle(node):
            return obstacle, None
        app.workers.learn_host_keys(node)
    except TpuctlError as error:
        return error.message, error.hint
    return None, None


def _ways(app: App, node: Node) -> tuple[list[Member], dict[int, TpuctlError]]:
    """Return the ssh route to each worker, and for workers without one the error."""
    found, wayless = [], {}
    for worker in range(node.workers):
        try:
            found.append(Member(node, worker, app.workers.connection(node, worker, makes_key=False), str(worker)))
        except TpuctlError as error:
            wayless[worker] = error
    # Without known host keys ssh would refuse to connect, or trust any host that answers. They are saved on this machine.
    remember_host_keys([member.way for member in found])
    return found, wayless

"""What `tpuctl doctor NODE` finds on a node and its workers. Nothing is changed: no key is made, none is put on the node."""

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
    from collections.abc import Iterator, Mapping

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.preflight.findings import Finding


# A worker that is slow to let us in is not one that is broken.
_PATIENCE = timedelta(seconds=30)


def findings_of_node(app: App, node: str, options: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return what is found on a node, and then on its workers.

    Of the options `timeout` is how long each worker has. What cannot be read of the node, or on a worker, is a finding; raises
    what keeps the node itself from being found.
    """
    timeout = options.get("timeout")
    patience = timeout if isinstance(timeout, timedelta) else _PATIENCE
    _, _, name = node.rpartition("@")
    if name != node:
        app.log_in_as(node.removesuffix(f"@{name}"))
    factory, endpoint = http_access(app)
    # Nobody waits for a checkup as long as for what it is about.
    client = TpuClient(factory, app.clock, endpoint=endpoint, policy=SHORT_PATIENCE)
    operations = OperationsClient(factory, app.clock, endpoint=endpoint)
    found = locate(client, app.place, app.reference(name))
    return tuple(_findings(app, found, client, operations, patience))


def _findings(
    app: App, node: Node, client: TpuClient, operations: OperationsClient, patience: timedelta
) -> Iterator[Finding]:
    obstacle, remedy = _obstacle(app, node)
    facts = gather(node, client, operations, app.journal, now=app.now(), obstacle=obstacle, remedy=remedy)
    yield from findings_of(facts, OF_NODES)
    if obstacle is None:
        yield from _of_workers(app, node, patience)


def _of_workers(app: App, node: Node, patience: timedelta) -> Iterator[Finding]:
    ways, wayless = _ways(app, node)
    # Workers know no clock but the real one, the sandbox's as well.
    examined = examine(ways, SystemClock(), patience=patience)
    has_own_key = app.settings["ssh_key"] is not None
    seen = facts_of(node, examined, app.now(), wayless=wayless, has_own_key=has_own_key)
    yield from findings_of(seen, OF_WORKERS)


def _obstacle(app: App, node: Node) -> tuple[str | None, str | None]:
    """Return why no worker can be asked, and what helps; nothing where some may."""
    try:
        check_state(node)  # what it warns of, the rules say
        if obstacle := app.workers.obstacle(node):
            return obstacle, None
        app.workers.learn_host_keys(node)
    except TpuctlError as error:
        return error.message, error.hint
    return None, None


def _ways(app: App, node: Node) -> tuple[list[Member], dict[int, TpuctlError]]:
    """Return the way to each worker that has one, and by worker why others have none."""
    found, wayless = [], {}
    for worker in range(node.workers):
        try:
            found.append(Member(node, worker, app.workers.connection(node, worker, makes_key=False), str(worker)))
        except TpuctlError as error:
            wayless[worker] = error
    # Without them ssh would refuse to connect, or trust whatever answers. They are kept on this machine.
    remember_host_keys([member.way for member in found])
    return found, wayless

"""What `tpuctl doctor NODE` finds on a node and its workers. Nothing is changed: no key is made, none is put on the node."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.preflight.findings import Finding
    from tpuctl.remote.member import Member


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
    found = app.find(name)
    return tuple(_findings(app, found, patience))


def _findings(app: App, node: Node, patience: timedelta) -> Iterator[Finding]:
    from tpuctl.actions.checkup.node import gather  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.checkup.node_catalogue import RULES_OF_NODES  # noqa: PLC0415  # as above
    from tpuctl.checkup.node_rule import judged  # noqa: PLC0415  # as above

    obstacle, remedy = _obstacle(app, node)
    facts = gather(node, app.client, app.journal, now=app.now(), obstacle=obstacle, remedy=remedy)
    yield from judged(facts, RULES_OF_NODES)
    if obstacle is None:
        yield from _of_workers(app, node, patience)


def _of_workers(app: App, node: Node, patience: timedelta) -> Iterator[Finding]:
    from tpuctl.actions.checkup.workers import examine, facts_of  # noqa: PLC0415  # as above
    from tpuctl.checkup.node_catalogue import RULES_OF_WORKERS  # noqa: PLC0415  # as above
    from tpuctl.checkup.node_rule import judged  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above

    ways, wayless = _ways(app, node)
    # Workers know no clock but the real one, the sandbox's as well.
    examined = examine(ways, SystemClock(), patience=patience)
    seen = facts_of(node, examined, app.now(), wayless=wayless)
    yield from judged(seen, RULES_OF_WORKERS)


def _obstacle(app: App, node: Node) -> tuple[str | None, str | None]:
    """Return why no worker can be asked, and what helps; nothing where some may."""
    from tpuctl.remote.gate import check_state  # noqa: PLC0415  # as above

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
    from tpuctl.remote.known_hosts import remember_host_keys  # noqa: PLC0415  # as above
    from tpuctl.remote.member import Member  # noqa: PLC0415  # as above

    found, wayless = [], {}
    for worker in range(node.workers):
        try:
            found.append(Member(node, worker, app.workers.connection(node, worker, makes_key=False), str(worker)))
        except TpuctlError as error:
            wayless[worker] = error
    # Without them ssh would refuse to connect, or trust whatever answers. They are kept on this machine.
    remember_host_keys([member.way for member in found])
    return found, wayless

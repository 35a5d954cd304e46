"""The bodies of `tpuctl ray`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tpuctl.errors import BrokenNodeError, ExitCode, InvalidInputError
from tpuctl.models.node import WorkerSet
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell, View
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.ray_cluster import RayCluster
from tpuctl.workers.ray_plan import plan_ray
from tpuctl.workers.targets import await_key, find_targets

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.output.terminal import Terminal
    from tpuctl.workers.ray_cluster import RayStatus

_COLUMNS = (
    Column("worker"),
    Column("address"),
    Column("chips", Kind.NUMBER),
    Column("slice"),
    Column("state", Kind.TEXT),
)


def run_up(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    head: str | None,
    port: int,
    program: str | None,
    install: str | None,
    timeout: timedelta | str,
) -> int:
    """Start a Ray cluster, and wait until Ray has all of it."""
    if isinstance(timeout, str):
        raise InvalidInputError(
            "`--timeout forever` would wait for a worker that cannot join", hint="give a time, such as `10m`"
        )
    status = _cluster(app, nodes, selector, head=head, port=port, program=program).start(
        install=install, timeout=timeout
    )
    _show(app, status)
    name = status.plan.head.target.node.name.node_id
    app.terminal.note(f"reach the dashboard, and submit jobs through it: `tpuctl ssh {name} --forward 8265 -N`")
    app.terminal.note("`ray job submit --address http://127.0.0.1:8265 -- python3 train.py`")
    return ExitCode.OK


def run_status(
    app: App, *, nodes: tuple[str, ...], selector: tuple[str, ...], head: str | None, port: int, program: str | None
) -> int:
    """Show what Ray has."""
    cluster = _cluster(app, nodes, selector, head=head, port=port, program=program)
    cluster.require_started()
    status = cluster.status()
    _show(app, status)
    if status.problems:
        names = " ".join(status.plan.slices)
        raise BrokenNodeError(
            f"Ray lacks {len(status.problems)} of {len(status.plan.members)} workers",
            hint=f"start them: `tpuctl ray up {names}`",
        )
    return ExitCode.OK


def run_down(
    app: App, *, nodes: tuple[str, ...], selector: tuple[str, ...], head: str | None, port: int, program: str | None
) -> int:
    """End the jobs of a Ray cluster."""
    ended = _cluster(app, nodes, selector, head=head, port=port, program=program).stop()
    app.show(
        View(
            value=lambda: {"ended": list(ended)},
            text=lambda terminal: terminal.note(f"Ray ended on {len(ended)} worker{'s' * (len(ended) > 1)}"),
        )
    )
    return ExitCode.OK


def _cluster(
    app: App,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    *,
    head: str | None,
    port: int,
    program: str | None = None,
) -> RayCluster:
    if not nodes and not selector:
        raise InvalidInputError("no node given", hint="name one, or use `-l KEY=VALUE`")
    found = find_nodes(app, nodes, selector)
    targets = find_targets(app, found, WorkerSet.parse("all"), names_nodes=True)
    await_key(app, targets)
    typed = shlex.join([*nodes, *(word for one in selector for word in ("-l", one))])
    return RayCluster(app, plan_ray(found, targets, head=head, port=port, program=program), typed)


def _show(app: App, status: RayStatus) -> None:
    plan = status.plan
    hosts = {host.address: host for host in status.hosts}

    def value() -> dict[str, Any]:
        return {
            "address": plan.address,
            "head": {"nodeId": plan.head.target.node.name.node_id, "worker": plan.head.target.worker},
            "chips": sum(host.chips for host in status.hosts),
            "workers": [
                {
                    "nodeId": one.target.node.name.node_id,
                    "zone": one.target.node.name.zone,
                    "worker": one.target.worker,
                    "address": one.address,
                    "chips": hosts[one.address].chips if one.address in hosts else None,
                    "problem": status.problems.get(one.target.label),
                }
                for one in plan.members
            ],
        }

    def show(terminal: Terminal) -> None:
        rows = []
        for one in plan.members:
            host, problem = hosts.get(one.address), status.problems.get(one.target.label)
            state = problem or ("head" if one is plan.head else "joined")
            style = "red" if problem else "green"
            cells = (Cell(one.target.label), Cell(one.address), Cell(f"{host.chips:g}" if host else ""))
            rows.append((*cells, Cell(host.slice if host else ""), Cell(state, style=style)))
        terminal.table(_COLUMNS, rows)
        chips = sum(host.chips for host in status.hosts)
        terminal.note(f"Ray at {plan.address}: {len(status.hosts)} hosts, {chips:g} chips, {len(plan.slices)} slices")

    app.show(View(value=value, text=show))

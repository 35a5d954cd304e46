"""`tpuctl sandbox status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.clock import format_timestamp
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.sandbox.faults import Fault


@cli_command("status", asks_trust=False, without=OF_THE_CLOUD)
def command(app: App) -> None:
    """Show what is in the sandbox: its file, its time and speed, its nodes, the faults and events to come.

    \b
    Examples:
      tpuctl sandbox status
      tpuctl sandbox status -o json | jq .faults
    """
    from tpuctl.sandbox import admin, forecast  # noqa: PLC0415  # only for the sandbox

    seen = admin.status(app.world)
    with app.world.read() as session:
        events = session.events()
    values: dict[str, Any] = {
        "path": str(seen.path),
        "now": format_timestamp(seen.now),
        "speed": seen.speed,
        "nodes": seen.states,
        "queuedResources": seen.queued_states,
        "faults": [{"id": fault_id, **_described(fault)} for fault_id, fault in seen.faults],
        "events": [{"at": format_timestamp(event.at), "text": event.document.get("text")} for event in events],
    }
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data(values, app.format)
        return
    rows = [("path", values["path"]), ("now", values["now"]), ("speed", f"{seen.speed:g} times real time")]
    rows += [(f"nodes of {project}", _counted(states)) for project, states in seen.states.items()]
    rows += [(f"queued resources of {project}", _counted(states)) for project, states in seen.queued_states.items()]
    rows += [(f"fault {fault_id}", forecast.event(fault)) for fault_id, fault in seen.faults]
    rows += [(event["at"], event["text"]) for event in values["events"]]
    app.terminal.details([(label, text, "") for label, text in rows])


def _described(fault: Fault) -> dict[str, Any]:
    """Return what a fault says, without what it leaves open."""
    values = {
        "kind": str(fault.kind),
        "node": fault.node,
        "zone": fault.zone,
        "call": fault.method,
        "times": fault.count,
    }
    values |= {"state": fault.state} if fault.kind == "hang" else {}
    values |= {"health": fault.health} if fault.kind == "unhealthy" else {}
    values |= {"message": fault.message}
    return {name: value for name, value in values.items() if value not in {"", "*", None}}


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())

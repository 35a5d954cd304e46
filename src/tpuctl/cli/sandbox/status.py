"""`tpuctl sandbox status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.cli.options import OF_THE_CLOUD, cli_command
from tpuctl.clock import format_timestamp
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("status", asks_trust=False, without=OF_THE_CLOUD)
def command(app: App) -> None:
    """Show the sandbox: its file, time and speed, nodes, remaining faults and planned events.

    \b
    Examples:
      tpuctl sandbox status
      tpuctl sandbox status -o json | jq .faults
    """
    from tpuctl.sandbox import admin, forecast  # noqa: PLC0415  # only for the sandbox

    summary = admin.status(app.world)
    with app.world.read() as session:
        events = session.events()
    faults = []
    for fault_id, fault in summary.faults:
        fields = {
            "kind": str(fault.kind),
            "node": fault.node,
            "zone": fault.zone,
            "call": fault.method,
            "times": fault.count,
            "state": fault.state if fault.kind == "hang" else "",
            "health": fault.health if fault.kind == "unhealthy" else "",
            "message": fault.message,
        }
        # Only the values that were set.
        faults.append({"id": fault_id, **{key: value for key, value in fields.items() if value not in {"", "*", None}}})
    values: dict[str, Any] = {
        "path": str(summary.path),
        "now": format_timestamp(summary.now),
        "speed": summary.speed,
        "nodes": summary.states,
        "queuedResources": summary.queued_states,
        "faults": faults,
        "events": [{"at": format_timestamp(event.at), "text": event.document.get("text")} for event in events],
    }
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data(values, app.format)
        return
    rows = [("path", values["path"]), ("now", values["now"]), ("speed", f"{summary.speed:g} times real time")]
    rows += [(f"nodes of {project}", _counted(states)) for project, states in summary.states.items()]
    rows += [(f"queued resources of {project}", _counted(states)) for project, states in summary.queued_states.items()]
    rows += [(f"fault {fault_id}", forecast.event(fault)) for fault_id, fault in summary.faults]
    rows += [(event["at"], event["text"]) for event in values["events"]]
    app.terminal.details([(label, text, "") for label, text in rows])


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())

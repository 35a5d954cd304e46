"""`tpuctl sandbox fault`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import OF_THE_CLOUD, Duration, cli_command
from tpuctl.errors import InvalidInputError
from tpuctl.model import Health

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.sandbox.faults import Fault


@cli_command("fault", without=OF_THE_CLOUD)
@click.argument("kind", required=False)
@click.option("--node", metavar="NAME", default="*", help="Node, or a pattern. It need not exist yet.")
@click.option("--zone", metavar="ZONE", default="*", help="Zone, or a pattern.")
@click.option("--call", metavar="METHOD", default="*", help="API method, or a pattern: '*.nodes.create'.")
@click.option("--after", type=Duration(), metavar="TIME", help="Only after so much time of the sandbox. [default: now]")
@click.option("--state", metavar="STATE", help="For hang: the state in which it hangs.")
@click.option(
    "--health",
    type=click.Choice([str(health) for health in Health]),
    metavar="HEALTH",
    help="For unhealthy: what it reports. [default: UNHEALTHY_TENSORFLOW]",
)
@click.option("--worker", type=click.IntRange(min=0), help="For missing-chip: which worker. [default: 0]")
@click.option("--times", type=click.IntRange(min=0), default=1, show_default=True, help="How often; 0 means always.")
@click.option(
    "--duration", type=Duration(), metavar="TIME", help="For hang, slow, maintenance, ssh-key-late: how long."
)
@click.option("--status", type=click.IntRange(400, 599), help="For http-error: the status. [default: 503]")
@click.option("--retry-after", type=click.IntRange(min=0), metavar="SECONDS", help="For http-error: when to try again.")
@click.option("--code", type=int, help="For operation-error: the google.rpc code. [default: 8, no capacity]")
@click.option("--message", metavar="TEXT", help="For errors: the text.")
@click.option("--remove", "fault_id", type=int, metavar="ID", help="Remove a fault, as `sandbox status` numbers it.")
def command(app: App, *, kind: str | None, fault_id: int | None, after: Any, **options: Any) -> None:
    """Make something go wrong in the sandbox, to rehearse what you would do.

    KIND is one of: unhealthy, hang, preempt, maintenance, missing-chip, operation-error, quota, ssh-key-late, drop-before,
    drop-after, http-error, slow, unauthenticated, unreachable.

    \b
    Examples:
      tpuctl sandbox fault preempt --node trainer --after 2h
      tpuctl sandbox fault hang --state CREATING --node 'train-*'
      tpuctl sandbox fault drop-after --call '*.nodes.create'
    """
    from tpuctl.sandbox import faults  # noqa: PLC0415  # only for the sandbox

    if fault_id is not None:
        with app.world.write() as session:
            text = "is removed" if faults.remove_fault(session, fault_id) else "does not exist"
        app.terminal.note(f"fault {fault_id} {text}")
        return
    app.terminal.note(_set(app, _fault(kind, options), _duration(after) or timedelta()))


def _set(app: App, fault: Fault, after: timedelta) -> str:
    """Set a fault and return what will happen, and when."""
    from tpuctl.sandbox import faults, forecast, scenarios  # noqa: PLC0415  # only for the sandbox

    speed = app.world.speed
    with app.world.write() as session:
        moment = forecast.when(session.now + after, session.now, speed)
        if after:
            scenarios.plan_fault(session, fault, after)
            return f"{moment}: {forecast.event(fault)}"
        number = faults.add_fault(session, fault)
        if faults.get_fault(session, number) is None:
            return f"now: {forecast.event(fault)}"
    return f"fault {number}: {forecast.event(fault)}"


def _fault(kind: str | None, options: dict[str, Any]) -> Fault:
    from tpuctl.sandbox.seeding import wishes  # noqa: PLC0415  # only for the sandbox

    options["duration"] = _duration(options["duration"])
    options["retryAfter"] = options.pop("retry_after")
    return wishes.fault({"kind": kind or "", **{key: value for key, value in options.items() if value is not None}})


def _duration(given: timedelta | str | None) -> timedelta | None:
    """Return a duration; nothing for `forever`, which is what a fault without one has."""
    if isinstance(given, str) and given != "forever":
        raise InvalidInputError(f"`{given}` is not a duration")
    return given if isinstance(given, timedelta) else None

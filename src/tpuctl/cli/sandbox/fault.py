"""`tpuctl sandbox fault`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import OF_THE_CLOUD, Duration, cli_command
from tpuctl.cli.sandbox.told import tell
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.model import Health

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.sandbox.faults import Fault

# Options of some kinds only; the others would ignore them.
_ONLY_FOR = {
    "state": ("hang",),
    "health": ("unhealthy",),
    "worker": ("missing-chip",),
    "duration": ("hang", "slow", "maintenance", "startup-slow", "ssh-key-late"),
    "status": ("http-error",),
    "retry_after": ("http-error",),
    "code": ("operation-error",),
    "message": ("operation-error", "http-error", "quota", "unauthenticated"),
}


@cli_command("fault", asks_trust=False, without=OF_THE_CLOUD)
@click.argument("kind", required=False)
@click.option("--node", metavar="NAME", default="*", help="Node name or glob; need not exist yet. [default: all]")
@click.option("--zone", metavar="ZONE", default="*", help="Zone name or glob. [default: all]")
@click.option("--call", metavar="METHOD", default="*", help="API method or glob: '*.nodes.create'. [default: all]")
@click.option("--after", type=Duration(), metavar="TIME", help="Delay in sandbox time. [default: none]")
@click.option("--state", metavar="STATE", help="State of the node for `hang`. [default: CREATING]")
@click.option(
    "--health",
    type=click.Choice([str(health) for health in Health]),
    metavar="HEALTH",
    help="Reported health for `unhealthy`. [default: UNHEALTHY_TENSORFLOW]",
)
@click.option(
    "--worker", type=click.IntRange(min=0), metavar="N", help="Index of the worker for `missing-chip`. [default: 0]"
)
@click.option(
    "--times",
    type=click.IntRange(min=0),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of occurrences; 0: until the fault is removed.",
)
@click.option(
    "--duration",
    type=Duration(),
    metavar="TIME",
    help="Duration in sandbox time. [default: hang and startup-slow forever, slow 30s, maintenance 10m, ssh-key-late 1m]",
)
@click.option(
    "--status", type=click.IntRange(400, 599), metavar="N", help="HTTP status for `http-error`. [default: 503]"
)
@click.option(
    "--retry-after",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Retry-After header for `http-error`, in seconds.",
)
@click.option("--code", type=int, metavar="N", help="google.rpc code for `operation-error`. [default: 8, no capacity]")
@click.option(
    "--message", metavar="TEXT", help="Error message for operation-error, http-error, quota and unauthenticated."
)
@click.option("--remove", "fault_id", type=int, metavar="ID", help="Id of a fault to remove, from `sandbox status`.")
def command(app: App, *, kind: str | None, fault_id: int | None, after: Any, **options: Any) -> None:
    """Add a fault to the sandbox, to practise failures, or remove one.

    KIND is one of: unhealthy, hang, preempt, maintenance, missing-chip, startup-slow, startup-fails, operation-error, quota,
    ssh-key-late, drop-before, drop-after, http-error, slow, unauthenticated, unreachable.

    \b
    Examples:
      tpuctl sandbox fault preempt --node trainer --after 2h
      tpuctl sandbox fault hang --state CREATING --node 'train-*'
      tpuctl sandbox fault drop-after --call '*.nodes.create'
      tpuctl sandbox fault --remove 1
    """
    if fault_id is not None:
        if kind is not None:
            raise InvalidInputError(f"`{kind}` and `--remove` exclude each other", hint="leave one of them out")
        from tpuctl.sandbox import faults, forecast  # noqa: PLC0415  # only for the sandbox

        with app.world.write() as session:
            is_removed = faults.remove_fault(session, fault_id)
            known = faults.list_faults(session)
        if not is_removed:
            existing = "\n".join(f"fault {number}: {forecast.event(fault)}" for number, fault in known)
            raise NotFoundError(f"no fault {fault_id} in the sandbox", hint=existing or "the sandbox has no faults")
        tell(app, f"removed fault {fault_id}", id=fault_id, removed=True)
        return
    if after == "forever":
        raise InvalidInputError("`--after` cannot be `forever`", hint="give a duration such as 2h")
    number, text = _set(app, _fault(kind, options), after or timedelta())
    tell(app, f"fault {number}: {text}" if number else text, id=number, text=text)


def _set(app: App, fault: Fault, after: timedelta) -> tuple[int | None, str]:
    """Add a fault. Return its number, None if it is planned or used up already, and its description."""
    from tpuctl.sandbox import faults, forecast, scenarios  # noqa: PLC0415  # only for the sandbox

    speed = app.world.speed
    with app.world.write() as session:
        moment = forecast.when(session.now + after, session.now, speed)
        if after:
            scenarios.plan_fault(session, fault, after)
            return None, f"{moment}: {forecast.event(fault)}"
        number = faults.add_fault(session, fault)
        if faults.get_fault(session, number) is None:
            return None, f"now: {forecast.event(fault)}"
    return number, forecast.event(fault)


def _fault(kind: str | None, options: dict[str, Any]) -> Fault:
    from tpuctl.sandbox.seeding import wishes  # noqa: PLC0415  # only for the sandbox

    word = str(wishes.kind(kind or ""))
    given = {key: value for key, value in options.items() if value is not None}
    for key in ("node", "zone", "call"):
        if not given[key]:
            raise InvalidInputError(f"`--{key}` is empty and would match nothing", hint="leave it out to match all")
    for key, kinds in _ONLY_FOR.items():
        if key in given and word not in kinds:
            flag = "--" + key.replace("_", "-")
            raise InvalidInputError(f"`{word}` has no `{flag}`", hint=f"`{flag}` is for {', '.join(kinds)}")
    if given.get("duration") == "forever":
        # The default of hang and startup-slow; all others have a default length.
        del given["duration"]
        if word not in {"hang", "startup-slow"}:
            raise InvalidInputError(f"`{word}` cannot last forever", hint="give a duration such as 10m")
    if given.get("duration") == timedelta():
        raise InvalidInputError("`--duration` is 0s", hint="give a duration such as 10m")
    if "retry_after" in given:
        given["retryAfter"] = given.pop("retry_after")
    return wishes.fault({"kind": word, **given})

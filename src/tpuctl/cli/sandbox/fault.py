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

# Options that only some kinds of fault have; the others would ignore them.
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


@cli_command("fault", without=OF_THE_CLOUD)
@click.argument("kind", required=False)
@click.option("--node", metavar="NAME", default="*", help="Node, or a pattern. It need not exist yet.")
@click.option("--zone", metavar="ZONE", default="*", help="Zone, or a pattern.")
@click.option("--call", metavar="METHOD", default="*", help="API method, or a pattern: '*.nodes.create'.")
@click.option("--after", type=Duration(), metavar="TIME", help="Only after so much time of the sandbox. [default: now]")
@click.option("--state", metavar="STATE", help="For hang: the state in which it hangs. [default: CREATING]")
@click.option(
    "--health",
    type=click.Choice([str(health) for health in Health]),
    metavar="HEALTH",
    help="For unhealthy: what it reports. [default: UNHEALTHY_TENSORFLOW]",
)
@click.option("--worker", type=click.IntRange(min=0), metavar="N", help="For missing-chip: which worker. [default: 0]")
@click.option(
    "--times",
    type=click.IntRange(min=0),
    metavar="N",
    default=1,
    show_default=True,
    help="How often; 0: until it is removed.",
)
@click.option(
    "--duration",
    type=Duration(),
    metavar="TIME",
    help="How long. [default: hang and startup-slow forever, slow 30s, maintenance 10m, ssh-key-late 1m]",
)
@click.option("--status", type=click.IntRange(400, 599), metavar="N", help="For http-error: the status. [default: 503]")
@click.option("--retry-after", type=click.IntRange(min=0), metavar="SECONDS", help="For http-error: when to try again.")
@click.option(
    "--code", type=int, metavar="N", help="For operation-error: the google.rpc code. [default: 8, no capacity]"
)
@click.option("--message", metavar="TEXT", help="For operation-error, http-error, quota, unauthenticated: the text.")
@click.option("--remove", "fault_id", type=int, metavar="ID", help="Remove a fault, as `sandbox status` numbers it.")
def command(app: App, *, kind: str | None, fault_id: int | None, after: Any, **options: Any) -> None:
    """Make something go wrong in the sandbox, to rehearse what you would do.

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
        _remove(app, fault_id)
        tell(app, f"fault {fault_id} is removed", id=fault_id, removed=True)
        return
    if after == "forever":
        raise InvalidInputError("`--after forever` never comes", hint="give a duration such as 2h")
    number, text = _set(app, _fault(kind, options), after or timedelta())
    tell(app, f"fault {number}: {text}" if number else text, id=number, text=text)


def _remove(app: App, fault_id: int) -> None:
    from tpuctl.sandbox import faults, forecast  # noqa: PLC0415  # only for the sandbox

    with app.world.write() as session:
        if faults.remove_fault(session, fault_id):
            return
        known = faults.list_faults(session)
    there = "\n".join(f"there is {number}: {forecast.event(fault)}" for number, fault in known)
    raise NotFoundError(f"there is no fault {fault_id} in the sandbox", hint=there or "there is none at all")


def _set(app: App, fault: Fault, after: timedelta) -> tuple[int | None, str]:
    """Set a fault. Return its number, nothing where it has none to remove it by, and what will happen when."""
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
            raise InvalidInputError(f"`--{key}` is empty: nothing would match", hint="leave it out to match all")
    for key, kinds in _ONLY_FOR.items():
        if key in given and word not in kinds:
            flag = "--" + key.replace("_", "-")
            raise InvalidInputError(f"`{flag}` would be ignored by `{word}`", hint=f"it is for {', '.join(kinds)}")
    if given.get("duration") == "forever":
        # What a fault without a duration has: hang and startup-slow last for ever, all others have a length of their own.
        del given["duration"]
        if word not in {"hang", "startup-slow"}:
            raise InvalidInputError(f"`{word}` cannot last for ever", hint="give a duration such as 10m")
    if given.get("duration") == timedelta():
        raise InvalidInputError("`--duration` is 0s: nothing would happen", hint="give a duration such as 10m")
    if "retry_after" in given:
        given["retryAfter"] = given.pop("retry_after")
    return wishes.fault({"kind": word, **given})

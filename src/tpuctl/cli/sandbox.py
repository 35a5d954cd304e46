"""`tpuctl sandbox`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import OF_THE_CLOUD, Duration, cli_command, yes_option
from tpuctl.cli.tree import Group
from tpuctl.clock import format_duration, format_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.cli.app import App
    from tpuctl.sandbox.faults import Fault


@click.group("sandbox", cls=Group)
def command() -> None:
    """Try tpuctl without an account, a network or a bill: a Cloud TPU API on this machine.

    `export TPUCTL_SANDBOX=1` makes every command use it. A cloud minute takes a second there (TPUCTL_SANDBOX_SPEED, when the
    sandbox is made); workers are real shells over real ssh.
    """


@cli_command("status", short_help="Show what is in the sandbox.", without=OF_THE_CLOUD)
def status(app: App) -> None:
    """Show what is in the sandbox: its file, its time and speed, its nodes, the faults to come."""
    from tpuctl.sandbox import admin  # noqa: PLC0415  # only for the sandbox

    seen = admin.status(app.world)
    values: dict[str, Any] = {
        "path": str(seen.path),
        "now": format_timestamp(seen.now),
        "speed": seen.speed,
        "nodes": seen.states,
        "queuedResources": seen.queued_states,
        "faults": [{"id": fault_id, **_described(fault)} for fault_id, fault in seen.faults],
    }
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data(values, app.format)
        return
    rows = [("path", values["path"]), ("now", values["now"]), ("speed", f"{seen.speed:g} times real time")]
    rows += [(f"nodes of {project}", _counted(states)) for project, states in seen.states.items()]
    rows += [(f"queued resources of {project}", _counted(states)) for project, states in seen.queued_states.items()]
    rows += [(f"fault {fault_id}", _in_words(fault)) for fault_id, fault in seen.faults]
    app.terminal.details([(label, text, "") for label, text in rows])


@cli_command("reset", short_help="Remove everything in the sandbox.", without=OF_THE_CLOUD)
@yes_option
def reset(app: App, *, yes: bool) -> None:
    """Remove everything in the sandbox: its nodes, its faults, and the files on its workers. Nothing real is touched."""
    from tpuctl.sandbox import admin  # noqa: PLC0415  # only for the sandbox

    path = app.sandbox_path
    if not app.terminal.confirm(f"remove the sandbox in {path.parent}?", yes=yes):
        app.terminal.note("nothing was done")
        return
    app.terminal.note("the sandbox is empty" if admin.reset(path) else "there was no sandbox")


@cli_command("advance", short_help="Move the sandbox's time on.", without=OF_THE_CLOUD)
@click.argument("time", type=Duration(), metavar="TIME")
def advance(app: App, *, time: timedelta | str) -> None:
    """Move the sandbox's time on, for every process that uses it.

    \b
    Examples:
      tpuctl sandbox advance 10m
    """
    from tpuctl.sandbox import admin  # noqa: PLC0415  # only for the sandbox

    if isinstance(time, str):
        raise InvalidInputError("the sandbox's time cannot move on for ever", hint="give a duration such as 10m")
    now = admin.advance(app.world, time)
    app.terminal.note(f"it is {format_timestamp(now)} in the sandbox, {format_duration(time)} later")


@cli_command("serve", short_help="Offer the sandbox on a port of this machine, to any client.", without=OF_THE_CLOUD)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port. [default: a free one]")
def serve(app: App, *, port: int) -> None:
    """Offer the sandbox on a port of this machine, to gcloud, Google's libraries, curl, until Ctrl-C.

    \b
    Examples:
      tpuctl sandbox serve --port 8090
      TPUCTL_ENDPOINT=http://127.0.0.1:8090 tpuctl list --project sandbox
    """
    from tpuctl.cli.main import TerminatedError  # noqa: PLC0415  # loaded long before
    from tpuctl.sandbox import server  # noqa: PLC0415  # only for the sandbox

    world = app.world
    try:
        opened = server.serve(world, port, log=app.terminal.note if app.is_verbose else None)
    except OSError as error:
        raise InvalidInputError(
            f"port {port} cannot be used: {error.strerror}", hint="leave `--port` out to take a free one"
        ) from error
    app.terminal.write(opened.url)
    app.terminal.streams.stdout.flush()
    app.terminal.note(_HOW_TO_USE.format(url=opened.url))
    try:
        opened.serve_forever()
    except (KeyboardInterrupt, TerminatedError):
        # This is how a server is meant to end: no message, exit code 0.
        pass
    finally:
        opened.close()


@cli_command("fault", short_help="Make something go wrong in the sandbox.", without=OF_THE_CLOUD)
@click.argument("kind", required=False)
@click.option("--node", metavar="NAME", default="*", help="Node, or a pattern. It need not exist yet.")
@click.option("--zone", "where", metavar="ZONE", default="*", help="Zone, or a pattern.")
@click.option("--call", "method", metavar="METHOD", default="*", help="API method, or a pattern: '*.nodes.create'.")
@click.option("--state", metavar="STATE", help="For hang: the state in which it hangs.")
@click.option("--health", metavar="HEALTH", help="For unhealthy: what it reports. [default: UNHEALTHY_TENSORFLOW]")
@click.option("--times", type=click.IntRange(min=0), default=1, show_default=True, help="How often; 0 means always.")
@click.option("--duration", type=Duration(), metavar="TIME", help="For hang, slow, ssh-key-late: how long.")
@click.option("--status", type=click.IntRange(400, 599), help="For http-error: the status. [default: 503]")
@click.option("--code", type=int, help="For operation-error: the google.rpc code.")
@click.option("--message", metavar="TEXT", help="For errors: the text.")
@click.option("--remove", "fault_id", type=int, metavar="ID", help="Remove a fault, as `sandbox status` numbers it.")
def fault(app: App, *, kind: str | None, fault_id: int | None, **options: Any) -> None:
    """Make something go wrong in the sandbox, to rehearse what you would do.

    KIND is one of: unhealthy, hang, preempt, maintenance, operation-error, ssh-key-late, drop-before, drop-after, http-error,
    slow, unauthenticated, unreachable.

    \b
    Examples:
      tpuctl sandbox fault unhealthy --node trainer
      tpuctl sandbox fault hang --state CREATING --node 'train-*'
      tpuctl sandbox fault drop-after --call '*.nodes.create'
    """
    from tpuctl.sandbox import faults  # noqa: PLC0415  # only for the sandbox

    with app.world.write() as session:
        if fault_id is not None:
            text = "is removed" if faults.remove_fault(session, fault_id) else "does not exist"
            app.terminal.note(f"fault {fault_id} {text}")
            return
        made = _fault(kind, options)
        number = faults.add_fault(session, made)
    app.terminal.note(f"fault {number}: {_in_words(made)}")


for _entry in (status, reset, advance, serve, fault):
    command.add_command(_entry)

_HOW_TO_USE = """point clients at it:
  export TPUCTL_ENDPOINT={url}
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU={url}/ CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE={url}/
  export CLOUDSDK_AUTH_DISABLE_CREDENTIALS=1 CLOUDSDK_CORE_CHECK_GCE_METADATA=0 CLOUDSDK_CORE_PROJECT=sandbox
Ctrl-C ends it"""


def _fault(kind: str | None, options: dict[str, Any]) -> Fault:
    from tpuctl.names import nearest  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.faults import Fault, FaultKind  # noqa: PLC0415  # as above

    known = [str(entry) for entry in FaultKind]
    if kind not in known:
        near = nearest(kind or "", known)
        hint = f"did you mean `{near}`?" if near else f"use one of {', '.join(known)}"
        raise InvalidInputError(f"`{kind}` is not a kind of fault" if kind else "which kind of fault?", hint=hint)
    if options["duration"] == "forever":
        options["duration"] = None
    names = {"where": "zone", "times": "count"}
    given = {names.get(name, name): value for name, value in options.items() if value is not None}
    return Fault(FaultKind(kind), **given)


def _described(fault: Fault) -> dict[str, Any]:
    """Return what a fault says, without what it leaves open."""
    values = {
        "kind": str(fault.kind),
        "node": fault.node,
        "zone": fault.zone,
        "call": fault.method,
        "times": fault.count,
    }
    values |= {"state": fault.state, "health": fault.health, "message": fault.message}
    return {name: value for name, value in values.items() if value not in {"", "*", None}}


def _in_words(fault: Fault) -> str:
    parts = _described(fault)
    kind, times = parts.pop("kind"), parts.pop("times", 0)
    how_often = "until it is removed" if times == 0 else "once" if times == 1 else f"{times} times"
    return " ".join([kind, *(f"{name}={value}" for name, value in parts.items()), how_often])


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())

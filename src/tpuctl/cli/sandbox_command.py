"""`tpuctl sandbox`: serve the local cloud, give it nodes, faults and scenarios, advance its clock, read its log."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, DurationType, LazyGroup, cli_command, yes_option
from tpuctl.app.signals import TerminatedError
from tpuctl.app.state_paths import preflight_cache_file
from tpuctl.app.value_completion import (
    complete_file,
    complete_node,
    complete_state,
    complete_tier,
    complete_type,
    complete_values,
    complete_zone,
)
from tpuctl.clock import SystemClock
from tpuctl.command_text import command_word
from tpuctl.config.settings import SourceKind
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import InvalidInputError, NotConfirmedError, NotFoundError
from tpuctl.files import MIB, expand_user_path, read_text_stream, read_user_text
from tpuctl.models.node import Health
from tpuctl.output.terminal import Cell, View, table_view
from tpuctl.sandbox.fault_kinds import KIND_KEYS, FaultKey, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.app.app import App
    from tpuctl.sandbox.faults import Fault
    from tpuctl.sandbox.request_log import LoggedCall
    from tpuctl.sandbox.stock import StockLevel

_SANDBOX_HELP = """Try tpuctl without an account, a network or a bill: a Cloud TPU API on this machine.

`export TPUCTL_SANDBOX=1` makes every command use it. Its clock runs 60 times as fast as real time (TPUCTL_SANDBOX_SPEED,
read when the sandbox is created); workers are real shells over real ssh.
"""
_SANDBOX_COMMANDS = {
    "status": (
        "tpuctl.cli.sandbox_command:sandbox_status",
        "Show the nodes, faults and planned events of the sandbox.",
    ),
    "reset": ("tpuctl.cli.sandbox_command:sandbox_reset", "Remove everything in the sandbox."),
    "advance": ("tpuctl.cli.sandbox_command:sandbox_advance", "Advance the clock of the sandbox."),
    "fault": ("tpuctl.cli.sandbox_command:sandbox_fault", "Add a fault to the sandbox, or remove one."),
    "stock": ("tpuctl.cli.sandbox_command:sandbox_stock", "Show or set how many nodes fit in a zone."),
    "seed": ("tpuctl.cli.sandbox_command:sandbox_seed", "Add resources to the sandbox from a file."),
    "scenario": ("tpuctl.cli.sandbox_command:sandbox_scenario", "Plan events in the sandbox from a file."),
    "log": ("tpuctl.cli.sandbox_command:sandbox_log", "Show the requests that the sandbox received."),
    "serve": ("tpuctl.cli.sandbox_command:sandbox_serve", "Serve the sandbox on a local port, for any client."),
    "env": ("tpuctl.cli.sandbox_command:sandbox_env", "Print the environment that makes gcloud use a served sandbox."),
}

sandbox_group = LazyGroup(
    _SANDBOX_COMMANDS,
    name="sandbox",
    help=_SANDBOX_HELP,
    no_args_is_help=True,
)


@cli_command("serve", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@grouped_option(
    "--port", type=click.IntRange(0, 65535), metavar="PORT", default=0, help="Port to listen on. [default: a free one]"
)
def sandbox_serve(app: App, *, port: int) -> None:
    """Serve the sandbox on a local port, for gcloud, Google's libraries and curl, until Ctrl-C.

    Prints the URL on stdout, and the variables for gcloud on stderr; `tpuctl sandbox env` prints them in another terminal.
    For tpuctl, TPUCTL_ENDPOINT=URL is sufficient: its `ssh` finds the workers of your own sandbox.

    \b
    Examples:
      tpuctl sandbox serve --port 8090
      eval "$(tpuctl sandbox env)" && gcloud compute tpus tpu-vm list
      TPUCTL_ENDPOINT=http://127.0.0.1:8090 tpuctl list --project sandbox
    """
    from tpuctl.sandbox.http_server import open_server  # noqa: PLC0415  # not needed by --help
    from tpuctl.sandbox.shims import record_served_address, remove_served_address  # noqa: PLC0415  # only for the sandbox

    sandbox = app.services.sandbox
    try:
        opened = open_server(sandbox, port, log=app.terminal.note if app.is_verbose else None)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on port {port}: {error.strerror}", hint="leave `--port` out to use a free port"
        ) from error
    app.terminal.write(opened.url)
    app.terminal.flush()
    record_served_address(sandbox.path, opened.url)
    try:
        app.terminal.note(*_how_to_use(app, opened.url))
        opened.serve_forever()
    except (KeyboardInterrupt, TerminatedError):
        # The normal end of a server: no message, exit code 0.
        pass
    finally:
        remove_served_address(sandbox.path, opened.url)
        opened.close()


def _how_to_use(app: App, url: str) -> list[str]:
    from tpuctl.sandbox.administration import DEFAULT_PROJECT, DEFAULT_ZONE  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.shims import gcloud_environment, shell_exports  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.sshd.daemon import SshdUnavailableError  # noqa: PLC0415  # only for the sandbox

    lines = ["for tpuctl:", f"  export TPUCTL_ENDPOINT={url} TPUCTL_PROJECT={DEFAULT_PROJECT}"]
    try:
        variables = gcloud_environment(
            app.services.sandbox.path, url, project=DEFAULT_PROJECT, zone=DEFAULT_ZONE, environ=app.invocation.environ
        )
    except SshdUnavailableError as error:
        return [*lines, f"no environment for gcloud: {error.message}"]
    lines += ['for gcloud (or run `eval "$(tpuctl sandbox env)"`):']
    # For a reader the new folder of PATH is enough.
    folder = variables.pop("PATH").partition(":")[0]
    shown = [f"export PATH={command_word('path', folder)}:$PATH", *shell_exports(variables).splitlines()]
    return [*lines, *(f"  {line}" for line in shown), "press Ctrl-C to stop"]


_UNUSED_DEFAULT = ("output", *(name for name in CLOUD_OPTIONS if name not in {"project", "zone"}))


@cli_command("env", without=_UNUSED_DEFAULT)
@grouped_option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of the served sandbox. [default: that of the running server]",
)
def sandbox_env(app: App, *, port: int | None) -> None:
    """Print shell variables that make gcloud use the served sandbox, with ssh to its workers.

    The variables put an `ssh` and an `scp` first on PATH that reach the workers of the sandbox, and make gcloud ignore your
    accounts and configurations. gcloud still stores its ssh key in ~/.ssh; to avoid that, set HOME too.

    \b
    Examples:
      eval "$(tpuctl sandbox env)"
      gcloud compute tpus tpu-vm ssh trainer --worker=all --command=hostname
    """
    from tpuctl.sandbox.administration import DEFAULT_PROJECT, DEFAULT_ZONE  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.shims import gcloud_environment, read_served_address, shell_exports  # noqa: PLC0415  # only for the sandbox

    state_file = app.sandbox_path
    url = f"http://127.0.0.1:{port}" if port else read_served_address(state_file)
    variables = gcloud_environment(
        state_file,
        url,
        project=_ours(app, "project") or DEFAULT_PROJECT,
        zone=_ours(app, "zone") or DEFAULT_ZONE,
        environ=app.invocation.environ,
    )
    app.terminal.document(shell_exports(variables))


def _ours(app: App, key: str) -> str | None:
    """Return a setting unless it comes from gcloud, whose project is a real one."""
    setting = app.settings_with({"zone": app.zones[0]} if app.zones else {})[key]
    if setting is None or setting.source.kind in {SourceKind.GCLOUD, SourceKind.CLOUDSDK}:
        return None
    return str(setting.value)


@cli_command("status", asks_trust=False, without=CLOUD_OPTIONS)
def sandbox_status(app: App) -> None:
    """Show the sandbox: its file, time and speed, nodes, remaining faults and planned events.

    \b
    Examples:
      tpuctl sandbox status
      tpuctl sandbox status -o json | jq .faults
    """
    from tpuctl.sandbox.administration import read_status  # noqa: PLC0415  # not needed by --help
    from tpuctl.sandbox.faults import describe_fault  # noqa: PLC0415  # only for the sandbox

    summary = read_status(app.services.sandbox)
    with app.services.sandbox.read() as session:
        events = [event for event in session.events() if not event.is_tick]
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
    rows = [("path", values["path"]), ("now", values["now"]), ("speed", f"{summary.speed:g} times real time")]
    rows += [(f"nodes of {project}", _format_counts(states)) for project, states in summary.states.items()]
    rows += [
        (f"queued resources of {project}", _format_counts(states)) for project, states in summary.queued_states.items()
    ]
    rows += [(f"fault {fault_id}", describe_fault(fault)) for fault_id, fault in summary.faults]
    rows += [(event["at"], event["text"]) for event in values["events"]]
    app.show(
        View(
            value=lambda: values,
            text=lambda terminal: terminal.details([(label, text, "") for label, text in rows]),
            is_marked=False,
        )
    )


def _format_counts(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())


# A seed may describe thousands of nodes.
_SEED_LIMIT = 64 * MIB


@cli_command("seed", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("file", metavar="FILE", shell_complete=complete_file)
def sandbox_seed(app: App, *, file: str) -> None:
    """Add the resources of a YAML file (- for stdin) to the sandbox: all or none.

    Kinds, each a list: nodes, queuedResources, buckets, objects, anywhereCaches, quotas, stock, stockouts, reservations,
    faults, networks, subnetworks, firewalls, disks, instances, services, projects, roles, iamPolicies, orgPolicies; and
    `settings`. Entries have the fields of the API; a node needs only a name. An entry replaces an existing resource of the same
    name.

    \b
    Examples:
      tpuctl sandbox seed team.yaml
      printf 'nodes: [{name: trainer, acceleratorType: v4-8}]' | tpuctl sandbox seed -
    """
    from tpuctl.sandbox.seeding import apply_seed, read_seed  # noqa: PLC0415  # only for the sandbox

    source, text = read_seed_source(app, file)
    entries = read_seed(text, source)
    apply_seed(app.services.sandbox, entries)
    counted = Counter(entry.kind for entry in entries)
    app.terminal.note(", ".join(f"{count} {kind}" for kind, count in counted.items()) or f"{source} is empty")


def read_seed_source(app: App, file: str) -> tuple[str, str]:
    """Return the name and the text of a file, or of stdin for `-`. Raises `InvalidInputError`."""
    if file == "-":
        return "stdin", read_text_stream(app.invocation.streams.stdin, limit=_SEED_LIMIT)
    return file, read_user_text(
        app.invocation.folder / expand_user_path(Path(file)), limit=_SEED_LIMIT, what=f"`{file}`"
    )


@cli_command("scenario", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("file", metavar="FILE", shell_complete=complete_file)
def sandbox_scenario(app: App, *, file: str) -> None:
    """Plan the events of a YAML file (- for stdin), from now on in sandbox time. No process needs to keep running.

    Each step has `at:` and one of `fault:`, `preempt:`, `seed:`, `stock:`, `stockout:`, `end-stockouts:`, `remove-fault:`.
    `tpuctl sandbox status` shows planned events, `tpuctl sandbox log` past ones.

    \b
    Examples:
      tpuctl sandbox scenario examples/scenarios/preemption-at-night.yaml
    """
    from tpuctl.sandbox.faults import describe_time  # noqa: PLC0415  # not needed by --help
    from tpuctl.sandbox.scenarios import play_scenario, read_scenario  # noqa: PLC0415  # only for the sandbox

    source, text = read_seed_source(app, file)
    scenario = read_scenario(text, source)
    begin = play_scenario(app.services.sandbox, scenario)
    lines = [scenario.description] if scenario.description else []
    speed = app.services.sandbox.speed
    lines += [f"{describe_time(begin + step.at, begin, speed)}: {step.text}" for step in scenario.steps]
    for line in lines or [f"{source} has no steps"]:
        app.terminal.note(line)


def _fault_kinds(_ctx: click.Context) -> Iterator[str]:
    return map(str, FaultKind)


def _flag(key: str) -> str:
    return "--" + KIND_KEYS[key].field.replace("_", "-")


def _kind_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that only some kinds of faults have, from their table."""
    for key, row in reversed([*KIND_KEYS.items()]):
        if row.is_option:
            command = grouped_option(_flag(key), key, **_option_of(key, row))(command)
    return command


def _option_of(key: str, row: FaultKey) -> dict[str, Any]:
    lowest, highest = row.bounds
    default = row.default or ", ".join(
        f"{kind} {format_duration(kind.duration) if kind.duration else 'forever'}"
        for kind in FaultKind
        if key in kind.keys
    )
    values: dict[str, Any] = {
        "group": OptionGroup.TIMING if row.type == "duration" else OptionGroup.EFFECT,
        "metavar": {"duration": "TIME", "integer": "N"}.get(row.type, "TEXT"),
        "help": f"{row.help}, for {', '.join(row.kinds(key))}. [default: {default}]",
    }
    if key == "state":
        return {**values, "shell_complete": complete_state}
    if key == "health":
        return {**values, "type": click.Choice([str(health) for health in Health])}
    if row.choices:
        return {**values, "type": click.Choice(row.choices)}
    return {**values, "type": {"duration": DurationType(), "integer": click.IntRange(lowest, highest)}.get(row.type)}


@cli_command("fault", asks_trust=False, without=CLOUD_OPTIONS)
@click.argument("kind", required=False, shell_complete=complete_values(_fault_kinds))
@grouped_option(
    "--node",
    group=OptionGroup.SELECTION,
    metavar="NAME",
    default="*",
    shell_complete=complete_node,
    help="Name or glob of nodes, existing or future. [default: all]",
)
@grouped_option(
    "--zone",
    group=OptionGroup.SELECTION,
    metavar="ZONE",
    default="*",
    shell_complete=complete_zone,
    help="Zone name or glob. [default: all]",
)
@grouped_option(
    "--call",
    group=OptionGroup.SELECTION,
    metavar="METHOD",
    default="*",
    help="API method or glob, such as '*.nodes.create'. [default: all]",
)
@grouped_option(
    "--after",
    group=OptionGroup.TIMING,
    type=DurationType(),
    metavar="TIME",
    help="Delay until the fault begins, in sandbox time. [default: none]",
)
@grouped_option(
    "--times",
    group=OptionGroup.TIMING,
    type=click.IntRange(min=0),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of times that the fault occurs; 0: until it is removed.",
)
@_kind_options
@grouped_option(
    "--remove",
    "fault_id",
    group=OptionGroup.EFFECT,
    type=int,
    metavar="ID",
    help="Id of a fault to remove, from `sandbox status`.",
)
def sandbox_fault(app: App, *, kind: str | None, fault_id: int | None, after: Any, **options: Any) -> None:
    """Add a fault to the sandbox, to test how programs handle failures, or remove one.

    KIND of a node: unhealthy, hang, preempt, maintenance, missing-chip, slow-chip, collective-hangs, startup-slow,
    startup-fails, operation-error, ssh-key-late. KIND of the next ssh connection to a worker: ssh-refused, ssh-dropped,
    ssh-slow. KIND of a queued resource: fall-back and survives-delete; with `--node` for
    its node: suspend, late-node. KIND of an API call: drop-before and drop-after (the connection ends before or after the
    effect), already-exists (after the effect of a create), http-error, slow, unauthenticated, quota (of creates). KIND of a
    zone: unreachable.

    \b
    Examples:
      tpuctl sandbox fault preempt --node trainer --after 2h
      tpuctl sandbox fault hang --state CREATING --node 'train-*'
      tpuctl sandbox fault ssh-refused --node trainer --worker 1 --times 0
      tpuctl sandbox fault drop-after --call '*.nodes.create'
      tpuctl sandbox fault --remove 1
    """
    from tpuctl.sandbox import faults, scenarios  # noqa: PLC0415  # not needed by --help
    from tpuctl.sandbox.faults import describe_fault  # noqa: PLC0415  # only for the sandbox

    if fault_id is not None:
        if kind is not None:
            raise InvalidInputError(f"`{kind}` and `--remove` exclude each other", hint="leave one of them out")
        with app.services.sandbox.write() as session:
            is_removed = faults.remove_fault(session, fault_id)
            known = faults.list_faults(session)
        if not is_removed:
            existing = "\n".join(f"fault {number}: {describe_fault(fault)}" for number, fault in known)
            raise NotFoundError(f"no fault {fault_id} in the sandbox", hint=existing or "the sandbox has no faults")
        report_change(app, f"removed fault {fault_id}", id=fault_id, removed=True)
        return
    if after == "forever":
        raise InvalidInputError("`--after` cannot be `forever`", hint="give a duration such as 2h")
    fault = _parse_options(kind, options)
    text = describe_fault(fault)
    number: int | None = None  # of a fault that waits for its occasion
    speed = app.services.sandbox.speed
    with app.services.sandbox.write() as session:
        if after:
            text = f"{faults.describe_time(session.now + after, session.now, speed)}: {text}"
            scenarios.plan_fault(session, fault, after)
        else:
            number = faults.add_fault(session, fault)
            if faults.get_fault(session, number) is None:
                number, text = None, f"now: {text}"
    report_change(app, f"fault {number}: {text}" if number else text, id=number, text=text)


def _parse_options(kind: str | None, options: dict[str, Any]) -> Fault:
    from tpuctl.sandbox.faults import parse_fault  # noqa: PLC0415  # not needed by --help

    word = FaultKind.named(kind or "")
    values = {key: value for key, value in options.items() if value is not None}
    for key in ("node", "zone", "call"):
        if not values[key]:
            raise InvalidInputError(f"`--{key}` is empty and would match nothing", hint="leave it out to match all")
    for key in values.keys() & KIND_KEYS.keys():
        if key not in word.keys:
            kinds = ", ".join(KIND_KEYS[key].kinds(key))
            raise InvalidInputError(f"`{word}` has no `{_flag(key)}`", hint=f"`{_flag(key)}` is for {kinds}")
    if values.get("duration") == "forever":
        del values["duration"]
        if word.duration:
            raise InvalidInputError(f"`{word}` cannot last forever", hint="give a duration such as 10m")
    if values.get("duration") == timedelta():
        raise InvalidInputError("`--duration` is 0s", hint="give a duration such as 10m")
    return parse_fault({"kind": word, **values})


_STOCK_HEADER = ("ZONE", "TYPE", "TIER", "NODES", "FREE", "FROM", "UNTIL")


@cli_command("stock", asks_trust=False, without=CLOUD_OPTIONS)
@click.argument("action", type=click.Choice(["set", "clear"]), metavar="[set|clear]", required=False)
@grouped_option(
    "--zone",
    group=OptionGroup.SELECTION,
    metavar="ZONE",
    shell_complete=complete_zone,
    help="Zone name or glob. [default: all]",
)
@grouped_option(
    "--type",
    "accelerator_type",
    metavar="TYPE",
    shell_complete=complete_type,
    help="Accelerator type or glob, such as 'v6e-*'. [default: all]",
)
@grouped_option(
    "--tier",
    metavar="TIER",
    shell_complete=complete_tier,
    help="Tier: on-demand, spot, reserved, best-effort or flex-start. [default: all, from one stock]",
)
@grouped_option(
    "--nodes", type=click.IntRange(min=0), metavar="N", help="Number of nodes that fit, used ones included."
)
@grouped_option(
    "--after",
    group=OptionGroup.TIMING,
    type=DurationType(),
    metavar="TIME",
    help="Delay until the stock holds, in sandbox time. [default: none]",
)
@grouped_option(
    "--duration",
    group=OptionGroup.TIMING,
    type=DurationType(),
    metavar="TIME",
    help="Length in sandbox time, during which it limits beside other stock. [default: until the next one is set]",
)
def sandbox_stock(app: App, *, action: str | None, **options: Any) -> None:
    """Show the stock of the sandbox: how many nodes fit in a zone, by type and tier. Set it, or clear it.

    Without stock set a place is unlimited; with 0 nodes it has no capacity. Creations and waiting queued resources take from
    the stock; a deletion, a stop and a preemption give it back. A smaller stock takes no node away. An entry for a narrower
    place replaces a wider one there.

    \b
    Examples:
      tpuctl sandbox stock set --type v6e-8 --tier spot --nodes 0
      tpuctl sandbox stock set --zone us-east5-b --type v6e-8 --tier spot --nodes 1 --after 20m
      tpuctl sandbox stock
      tpuctl sandbox stock clear
    """
    from tpuctl.sandbox.faults import describe_time  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.stock import describe_level, put_level, remove_levels, show_stock  # noqa: PLC0415  # as above

    given = _parse_stock_options(action, options)
    if action is None:
        with app.services.sandbox.read() as session:
            entries = [
                {**_level_json(entry.level), "used": entry.used, "free": entry.free}
                for entry in show_stock(session, **given)
            ]
        columns = ("zone", "acceleratorType", "tier", "nodes", "free", "from", "until")
        app.show(
            table_view(
                _STOCK_HEADER,
                [[Cell("-" if entry[name] is None else str(entry[name])) for name in columns] for entry in entries],
                value=lambda: entries,
                empty="the stock is unlimited everywhere",
                is_marked=False,
            )
        )
    elif action == "clear":
        with app.services.sandbox.write() as session:
            count = remove_levels(session, **given)
        report_change(app, f"removed {count} stock {'entry' if count == 1 else 'entries'}", removed=count)
    else:
        with app.services.sandbox.write() as session:
            level = put_level(session, **given)
            begin = describe_time(
                session.now + given.get("after", timedelta()), session.now, app.services.sandbox.speed
            )
        lasting = f", for {format_duration(given['duration'])}" if "duration" in given else ""
        text = f"{begin}: {describe_level(level)}{lasting}"
        report_change(app, text, text=text, **_level_json(level))


def _parse_stock_options(action: str | None, options: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in options.items() if value is not None}
    for key, flag in (("zone", "--zone"), ("accelerator_type", "--type"), ("tier", "--tier")):
        if given.get(key) == "":
            raise InvalidInputError(f"`{flag}` is empty and would match nothing", hint="leave it out to match all")
    for key in ("after", "duration"):
        if given.get(key) == "forever":
            raise InvalidInputError(
                f"`--{key}` cannot be `forever`", hint="give a duration such as 2h, or leave it out"
            )
    amount = next((f"--{key}" for key in ("nodes", "after", "duration") if key in given), None)
    if action != "set" and amount:
        raise InvalidInputError(f"`{amount}` needs `set`", hint="run `tpuctl sandbox stock set --nodes N`")
    if action == "set" and "nodes" not in given:
        raise InvalidInputError("`tpuctl sandbox stock set` needs `--nodes N`", hint="`--nodes 0` is no capacity")
    return given


def _level_json(level: StockLevel) -> dict[str, Any]:
    return {
        "zone": level.zone,
        "acceleratorType": level.accelerator_type,
        "tier": level.tier,
        "project": level.project,
        "nodes": level.nodes,
        "from": format_timestamp(datetime.fromtimestamp(level.begin, UTC)),
        "until": format_timestamp(datetime.fromtimestamp(level.until, UTC)) if level.until is not None else None,
    }


@cli_command("advance", asks_trust=False, without=CLOUD_OPTIONS)
@click.argument("time", type=DurationType(), metavar="TIME")
def sandbox_advance(app: App, *, time: timedelta | str) -> None:
    """Advance the clock of the sandbox by TIME (10m, 2h), for every process that uses it.

    \b
    Examples:
      tpuctl sandbox advance 10m
    """
    from tpuctl.sandbox.administration import advance_clock  # noqa: PLC0415  # only for the sandbox

    if isinstance(time, str):
        raise InvalidInputError("the sandbox cannot advance by `forever`", hint="give a duration such as 10m")
    now = advance_clock(app.services.sandbox, time)
    text = f"sandbox time is now {format_timestamp(now)}, {format_duration(time)} later"
    report_change(app, text, now=format_timestamp(now))


_FOLLOW_INTERVAL = timedelta(milliseconds=200)
_LOG_HEADER = ("TIME", "METHOD", "STATUS", "CLIENT", "PATH")


@cli_command("log", asks_trust=False, without=CLOUD_OPTIONS)
@grouped_option(
    "--since", type=DurationType(), metavar="TIME", help="Age of the oldest request, in sandbox time. [default: all]"
)
@grouped_option("--follow", "-f", is_flag=True, help="Continue with new requests until Ctrl-C.")
def sandbox_log(app: App, *, since: timedelta | str | None, follow: bool) -> None:
    """Show the last requests to the sandbox (about 20 000), with client and response status.

    Times are in sandbox time. Method EVENT: an event that a scenario or `fault --after` planned. Status `-`: a fault dropped
    the connection. Headers and bodies are not stored.

    \b
    Examples:
      tpuctl sandbox log --since 10m
      tpuctl sandbox log --follow -o json
    """
    from tpuctl.sandbox.request_log import follow_log, read_log  # noqa: PLC0415  # only for the sandbox

    sandbox = app.services.sandbox
    with sandbox.read() as session:
        begin = session.now - since if isinstance(since, timedelta) else None
    coming = follow_log(sandbox.path)
    next(coming) if follow else ()
    entries = list(read_log(sandbox.path, since=begin))
    if not follow:
        app.show(
            table_view(
                _LOG_HEADER,
                [_log_cells(entry) for entry in entries],
                value=lambda: [_log_json(entry) for entry in entries],
                is_marked=False,
            )
        )
    try:
        while follow:
            for entry in entries:
                app.show_entry(_log_json(entry), _log_cells(entry))
            app.terminal.flush()
            SystemClock().sleep(_FOLLOW_INTERVAL)
            entries = list(next(coming))
    except (KeyboardInterrupt, TerminatedError):
        # The normal end of `--follow`.
        return


def _log_json(entry: LoggedCall) -> dict[str, Any]:
    return {
        "at": format_timestamp(entry.at),
        "method": entry.method,
        "path": entry.path,
        "status": entry.status or None,
        "client": entry.client,
    }


def _log_cells(entry: LoggedCall) -> list[Cell]:
    from tpuctl.sandbox.request_log import EVENT_METHOD, client_name  # noqa: PLC0415  # only for the sandbox

    client = "-" if entry.method == EVENT_METHOD else client_name(entry.client)
    status = str(entry.status) if entry.status else "-"
    return [Cell(text) for text in (format_timestamp(entry.at), entry.method, status, client, entry.path)]


@cli_command("reset", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@yes_option
def sandbox_reset(app: App, *, yes: bool) -> None:
    """Remove the sandbox: its nodes, its faults, and the files on its workers. No real resource is affected.

    \b
    Examples:
      tpuctl sandbox reset --yes
    """
    from tpuctl.sandbox import shims  # noqa: PLC0415  # only for the sandbox
    from tpuctl.sandbox.administration import reset_sandbox  # noqa: PLC0415  # not needed by --help
    from tpuctl.sandbox.shims import read_served_address, record_served_address  # noqa: PLC0415  # not needed by --help

    path = app.sandbox_path
    if not app.terminal.confirm(f"remove the sandbox in {path.parent}?", yes=yes):
        raise NotConfirmedError("nothing was removed")
    # The results of earlier checks do not apply to a new sandbox.
    preflight_cache_file(app.invocation.environ, sandbox=True).unlink(missing_ok=True)
    try:
        served_at = read_served_address(path)
    except shims.NotServedError:
        served_at = None
    app.terminal.note("removed the sandbox" if reset_sandbox(path) else "there was no sandbox")
    if served_at:
        # The server continues with the new sandbox.
        record_served_address(path, served_at)


def report_change(app: App, sentence: str, /, **values: Any) -> None:  # JSON
    """Report a change: on stderr as a sentence, or on stdout as one object in the requested format."""
    app.show(View(value=lambda: values, text=lambda terminal: terminal.note(sentence), is_marked=False))

"""`tpuctl sandbox`: serve the local cloud, give it nodes, faults and scenarios, advance its clock, read its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import CLOUD_OPTIONS, DurationType, LazyGroup, cli_command, yes_option
from tpuctl.app.value_completion import (
    complete_file,
    complete_node,
    complete_state,
    complete_tier,
    complete_type,
    complete_values,
    complete_zone,
)
from tpuctl.durations import format_duration
from tpuctl.models.node import Health
from tpuctl.sandbox.fault_kinds import KIND_KEYS, FaultKey, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
@body_in("tpuctl.cli.sandbox_run:run_sandbox_serve")
def sandbox_serve() -> None:
    """Serve the sandbox on a local port, for gcloud, Google's libraries and curl, until Ctrl-C.

    Prints the URL on stdout, and the variables for gcloud on stderr; `tpuctl sandbox env` prints them in another terminal.
    For tpuctl, TPUCTL_ENDPOINT=URL is sufficient: its `ssh` finds the workers of your own sandbox.

    \b
    Examples:
      tpuctl sandbox serve --port 8090
      eval "$(tpuctl sandbox env)" && gcloud compute tpus tpu-vm list
      TPUCTL_ENDPOINT=http://127.0.0.1:8090 tpuctl list --project sandbox
    """


_UNUSED_DEFAULT = ("output", *(name for name in CLOUD_OPTIONS if name not in {"project", "zone"}))


@cli_command("env", without=_UNUSED_DEFAULT)
@grouped_option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of the served sandbox. [default: that of the running server]",
)
@body_in("tpuctl.cli.sandbox_run:run_sandbox_env")
def sandbox_env() -> None:
    """Print shell variables that make gcloud use the served sandbox, with ssh to its workers.

    The variables put an `ssh` and an `scp` first on PATH that reach the workers of the sandbox, and make gcloud ignore your
    accounts and configurations. gcloud still stores its ssh key in ~/.ssh; to avoid that, set HOME too.

    \b
    Examples:
      eval "$(tpuctl sandbox env)"
      gcloud compute tpus tpu-vm ssh trainer --worker=all --command=hostname
    """


@cli_command("status", asks_trust=False, without=CLOUD_OPTIONS)
@body_in("tpuctl.cli.sandbox_run:run_sandbox_status")
def sandbox_status() -> None:
    """Show the sandbox: its file, time and speed, nodes, remaining faults and planned events.

    \b
    Examples:
      tpuctl sandbox status
      tpuctl sandbox status -o json | jq .faults
    """


@cli_command("seed", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@body_in("tpuctl.cli.sandbox_run:run_sandbox_seed")
def sandbox_seed() -> None:
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


@cli_command("scenario", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@body_in("tpuctl.cli.sandbox_run:run_sandbox_scenario")
def sandbox_scenario() -> None:
    """Plan the events of a YAML file (- for stdin), from now on in sandbox time. No process needs to keep running.

    Each step has `at:` and one of `fault:`, `preempt:`, `seed:`, `stock:`, `stockout:`, `end-stockouts:`, `remove-fault:`.
    `tpuctl sandbox status` shows planned events, `tpuctl sandbox log` past ones.

    \b
    Examples:
      tpuctl sandbox scenario examples/scenarios/preemption-at-night.yaml
    """


def _fault_kinds(_ctx: click.Context) -> Iterator[str]:
    return map(str, FaultKind)


def _kind_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that only some kinds of faults have, from their table."""
    for key, row in reversed([*KIND_KEYS.items()]):
        if row.is_option:
            command = grouped_option(row.flag, key, **_option_of(key, row))(command)
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
@body_in("tpuctl.cli.sandbox_run:run_sandbox_fault")
def sandbox_fault() -> None:
    """Add a fault to the sandbox, to test how programs handle failures, or remove one.

    KIND of a node: unhealthy, hang, preempt, maintenance, missing-chip, straggler, duty-zero, startup-slow,
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
@body_in("tpuctl.cli.sandbox_run:run_sandbox_stock")
def sandbox_stock() -> None:
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


@cli_command("advance", asks_trust=False, without=CLOUD_OPTIONS)
@click.argument("time", type=DurationType(), metavar="TIME")
@body_in("tpuctl.cli.sandbox_run:run_sandbox_advance")
def sandbox_advance() -> None:
    """Advance the clock of the sandbox by TIME (10m, 2h), for every process that uses it.

    \b
    Examples:
      tpuctl sandbox advance 10m
    """


@cli_command("log", asks_trust=False, without=CLOUD_OPTIONS)
@grouped_option(
    "--since", type=DurationType(), metavar="TIME", help="Age of the oldest request, in sandbox time. [default: all]"
)
@grouped_option("--follow", "-f", is_flag=True, help="Continue with new requests until Ctrl-C.")
@body_in("tpuctl.cli.sandbox_run:run_sandbox_log")
def sandbox_log() -> None:
    """Show the last requests to the sandbox (about 20 000), with client and response status.

    Times are in sandbox time. Method EVENT: an event that a scenario or `fault --after` planned. Status `-`: a fault dropped
    the connection. Headers and bodies are not stored.

    \b
    Examples:
      tpuctl sandbox log --since 10m
      tpuctl sandbox log --follow -o json
    """


@cli_command("reset", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@yes_option
@body_in("tpuctl.cli.sandbox_run:run_sandbox_reset")
def sandbox_reset() -> None:
    """Remove the sandbox: its nodes, its faults, and the files on its workers. No real resource is affected.

    \b
    Examples:
      tpuctl sandbox reset --yes
    """

"""The command tree: the table of all commands. The module of a command is imported when the command is called."""

from __future__ import annotations

from functools import cache
from typing import Any

import click

from tpuctl import __version__
from tpuctl.app.options import LazyGroup, apply_global_options, shared_options

# title: {command: (module that defines `command`, line for `tpuctl --help`)}
_SECTIONS = {
    "Nodes": {
        "up": ("tpuctl.nodes.commands.up", "Create, start or repair nodes, and wait until they are usable."),
        "down": ("tpuctl.nodes.commands.changes:down", "Delete nodes and queued resources; succeeds if they are gone."),
        "list": ("tpuctl.nodes.commands.list_nodes", "List nodes in all zones."),
        "status": ("tpuctl.nodes.commands.status", "Show all details of nodes."),
        "check": ("tpuctl.check.commands.check", "Check type, quota, data and permissions before a node costs money."),
        "explain": ("tpuctl.explain.command", "Find the cause of a failure in a log or message, and its fix."),
        "wait": ("tpuctl.nodes.commands.wait", "Wait until nodes are usable, stopped or deleted."),
        "watch": ("tpuctl.workers.commands.watch", "Keep nodes usable: recreate preempted ones, repair broken ones."),
        "history": ("tpuctl.nodes.commands.history", "Show the states, repairs and preemptions of a node."),
        "cost": ("tpuctl.nodes.commands.cost", "Show what nodes cost: per hour, and so far."),
        "reset": ("tpuctl.nodes.commands.reset", "Restart a node, keeping its boot disk."),
        "start": ("tpuctl.nodes.commands.changes:start", "Start stopped nodes."),
        "stop": ("tpuctl.nodes.commands.changes:stop", "Stop nodes, keeping their boot disks."),
        "create": ("tpuctl.nodes.commands.create", "Create a node; fails if it exists."),
        "delete": ("tpuctl.nodes.commands.changes:delete", "Delete nodes; fails if they do not exist."),
        "queue": ("tpuctl.nodes.commands.queue:queue_group", "Show, await and cancel requests that wait for capacity."),
        "extend": ("tpuctl.nodes.commands.extend", "Move or remove the end of the time of nodes."),
        "gc": ("tpuctl.nodes.commands.gc", "Find and delete dead, expired and forgotten nodes and requests."),
        "update": ("tpuctl.nodes.commands.update", "Change a node's labels, tags, metadata, disks or addresses."),
        "maintenance": ("tpuctl.nodes.commands.maintenance", "Show the announced maintenance of a node, or start it."),
    },
    "Workers": {
        "ssh": ("tpuctl.workers.commands.ssh", "Open a shell on a worker, or run a command on it."),
        "run": ("tpuctl.workers.commands.run", "Run a command on all workers at once."),
        "scp": ("tpuctl.workers.commands.scp", "Copy files to or from all workers of a node."),
        "sync": ("tpuctl.workers.commands.sync", "Copy the files of a working tree to every worker."),
        "test": ("tpuctl.workers.commands.test", "Test the chips of all workers: count, products, all-reduce."),
        "top": ("tpuctl.workers.commands.top", "Show what the chips of workers do: memory, duty cycle, program."),
        "stacks": ("tpuctl.workers.commands.stacks", "Show where the programs that hold the TPU are."),
        "env": ("tpuctl.workers.commands.env", "Print environment variables for training scripts (shell syntax)."),
        "unstick": ("tpuctl.workers.commands.unstick", "Find and terminate processes that hold the TPU on workers."),
        "ssh-config": (
            "tpuctl.workers.commands.ssh_config_command",
            "Configure ssh, rsync and editors to reach workers.",
        ),
        "ssh-key": ("tpuctl.workers.commands.ssh_key", "Show or renew the ssh key that workers accept."),
        "attributes": (
            "tpuctl.nodes.commands.guest_attributes",
            "Show the guest attributes of workers, such as host keys.",
        ),
    },
    "Jobs on workers": {
        "ray": ("tpuctl.workers.commands.ray", "Make one Ray cluster of all workers of nodes, and end it."),
        "jobs": ("tpuctl.workers.commands.jobs", "List the jobs of nodes and their exit codes."),
        "logs": ("tpuctl.workers.commands.logs", "Print the output of a job on its workers."),
        "attach": ("tpuctl.workers.commands.attach", "Follow the output of a job until it ends."),
        "kill": ("tpuctl.workers.commands.kill", "Send a signal to a job's processes on all workers."),
    },
    "More": {
        "doctor": ("tpuctl.doctor.command", "Find problems on this machine, in the project, and on a node."),
        "bundle": ("tpuctl.support.command", "Collect a support bundle in one file, without secrets."),
        "types": ("tpuctl.nodes.commands.catalogue:types", "List the accelerator types offered in each zone."),
        "versions": ("tpuctl.nodes.commands.catalogue:versions", "List the runtime versions offered in a zone."),
        "config": ("tpuctl.cli.config_command", "Show and change settings."),
        "trust": ("tpuctl.app.trust", "Review a project's tpuctl.yaml and trust it."),
        "sandbox": (
            "tpuctl.cli.sandbox_command:sandbox_group",
            "Try tpuctl locally: no account, no network, no costs.",
        ),
        "completion": ("tpuctl.cli.completion", "Complete commands and values with the Tab key."),
        "schema": ("tpuctl.cli.schema_command", "Print the JSON Schema of a command's output."),
        "version": ("tpuctl.cli.version", "Print the version."),
        "options": ("tpuctl.cli.help_command:options_command", "Show the options of every command."),
        "help": ("tpuctl.cli.help_command:help_command", "Explain a topic or a command."),
    },
}
_ALIASES = {"ls": "list", "rm": "delete", "describe": "status", "exec": "ssh", "get-guest-attributes": "attributes"}
# Commands of other tools, and ours. One of two words counts before that of its first alone.
_FOREIGN_COMMANDS = {
    "pause": "stop",
    "resume": "start",
    "restart": "reset --mode restart",
    "reboot": "reset --mode reboot",
    "recreate": "reset --mode recreate",
    "show": "status",
    "get": "status",
    "destroy": "down",
    "remove": "delete",
    "launch": "up",
    "connect": "ssh",
    "accelerator-types": "types",
    "attach-disk": "update NODE --attach-disk DISK",
    "detach-disk": "update NODE --detach-disk DISK",
    "perform-maintenance": "maintenance NODE --perform",
    "simulate-maintenance-event": "sandbox fault maintenance",
    "queued-resources": "queue",
    "queued-resources create": "up NODE --queue",
    "queued-resources list": "queue list",
    "queued-resources describe": "queue status",
    "queued-resources delete": "queue cancel",
    "queued-resources reset": "queue retry",
    "queued-resources perform-maintenance": "maintenance NODE --perform",
    "queued-resources ssh": "ssh",
    "queued-resources scp": "scp",
    "locations": "types",
    "info": "status",
    "topics": "help",
}
_HELP = """Create Google Cloud TPUs, keep them usable, and run programs on them.

\b
  tpuctl up trainer --type v4-32 --zone us-central2-b
  tpuctl run trainer -- nproc
  tpuctl down trainer

Try it without an account: `export TPUCTL_SANDBOX=1`. A NODE is a name, ZONE/NODE, or a full resource name.
"""


def command_names() -> list[str]:
    """Return the names of the commands and groups, in the order of `--help`."""
    return [name for commands in _SECTIONS.values() for name in commands]


@cache
def command_tree() -> LazyGroup:
    """Return the whole tree, the same each time."""

    @click.pass_context
    def callback(ctx: click.Context, /, **options: Any) -> None:  # click's own signature
        apply_global_options(ctx, options)

    tree = LazyGroup(
        {name: entry for commands in _SECTIONS.values() for name, entry in commands.items()},
        name="tpuctl",
        sections=_SECTIONS,
        aliases=_ALIASES,
        elsewhere=_FOREIGN_COMMANDS,
        help=_HELP,
        epilog="Topics, such as selection, levels, exit-codes and settings: tpuctl help",
        params=[*shared_options()],
        callback=callback,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    return click.version_option(__version__, "-V", "--version", message="tpuctl %(version)s")(tree)

"""`tpuctl sandbox`: its commands."""

from __future__ import annotations

from tpuctl.cli.groups import Tree

_HELP = """Try tpuctl without an account, a network or a bill: a Cloud TPU API on this machine.

`export TPUCTL_SANDBOX=1` makes every command use it. Its clock runs 60 times as fast as real time (TPUCTL_SANDBOX_SPEED,
read when the sandbox is created); workers are real shells over real ssh.
"""
_COMMANDS = {
    "status": ("sandbox.status", "Show the nodes, faults and planned events of the sandbox."),
    "reset": ("sandbox.reset", "Remove everything in the sandbox."),
    "advance": ("sandbox.advance", "Advance the clock of the sandbox."),
    "fault": ("sandbox.fault", "Add a fault to the sandbox, or remove one."),
    "seed": ("sandbox.seed", "Add resources to the sandbox from a file."),
    "scenario": ("sandbox.scenario", "Plan events in the sandbox from a file."),
    "log": ("sandbox.log", "Show the requests that the sandbox received."),
    "serve": ("sandbox.serve", "Serve the sandbox on a local port, for any client."),
    "env": ("sandbox.env", "Print the environment that makes gcloud use a served sandbox."),
}

command = Tree(
    _COMMANDS,
    name="sandbox",
    help=_HELP,
    no_args_is_help=True,
)

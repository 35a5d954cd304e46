"""`tpuctl sandbox`: its commands, one file each."""

from __future__ import annotations

from tpuctl.cli.groups import Tree

_HELP = """Try tpuctl without an account, a network or a bill: a Cloud TPU API on this machine.

`export TPUCTL_SANDBOX=1` makes every command use it. A cloud minute takes a second there (TPUCTL_SANDBOX_SPEED, when the
sandbox is made); workers are real shells over real ssh.
"""
_COMMANDS = {
    "status": ("sandbox.status", "Show what is in the sandbox, and what is to come."),
    "reset": ("sandbox.reset", "Remove everything in the sandbox."),
    "advance": ("sandbox.advance", "Move the sandbox's time on."),
    "fault": ("sandbox.fault", "Make something go wrong in the sandbox."),
    "seed": ("sandbox.seed", "Fill the sandbox from a file."),
    "scenario": ("sandbox.scenario", "Let a story happen in the sandbox, from a file."),
    "log": ("sandbox.log", "Show the requests that the sandbox got."),
    "serve": ("sandbox.serve", "Offer the sandbox on a port of this machine, to any client."),
    "env": ("sandbox.env", "Print what points gcloud at a served sandbox."),
}

command = Tree(
    _COMMANDS,
    name="sandbox",
    help=_HELP,
    no_args_is_help=True,
)

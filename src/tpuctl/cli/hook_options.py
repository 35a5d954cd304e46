"""The options for hooks, and the `Hooks` made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.events import EventKind
from tpuctl.settings import SETTINGS, SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.hooks import Hooks

_KINDS = {
    "on_preempt": (EventKind.PREEMPTED, "the service preempted a node"),
    "on_recover": (EventKind.RECOVERED, "a node is usable again"),
    "on_maintenance": (EventKind.MAINTENANCE, "maintenance of a node is announced or begins"),
    "on_give_up": (EventKind.GAVE_UP, "a node is given up"),
}
# Settings that choose cloud, identity, journal and leases: given as flags, they apply inside hooks too.
_PASSED_ON = (
    "endpoint", "impersonate_service_account", "quota_project", "user", "ssh_key", "ssh_key_expire_after", "journal", "lease",
)  # fmt: skip


def hook_options(*kinds: EventKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for a hook of each kind of event, for all kinds if none is named."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, when) in reversed(_KINDS.items()):
            if kind in kinds or not kinds:
                flag = "--" + name.replace("_", "-")
                text = f"Local command to run when {when}; gets the event as JSON on stdin."
                function = click.option(flag, name, metavar="CMD", help=text)(function)
        return function

    return decorate


def take_hooks(app: App, options: dict[str, Any]) -> Hooks:
    """Remove the hook options from a command's options, and return the hooks. An empty command is no hook."""
    from tpuctl.hooks import RETRY_PAUSES, Hooks  # noqa: PLC0415  # not needed by --help and completion

    given = {kind: options.pop(name, None) for name, (kind, _) in _KINDS.items()}
    terminal, commands = app.terminal, {kind: text for kind, text in given.items() if text}
    # The live display would overwrite the output of a hook.
    tell = terminal.note if terminal.is_redrawn and not terminal.quiet else None
    # With these variables `tpuctl` in a hook uses the same cloud as this run. `0` is set too: a project file in the hook's
    # working directory may choose the sandbox.
    variables = {"TPUCTL_SANDBOX": "1" if app.is_sandbox else "0"}
    for key in _PASSED_ON:
        setting, variable = app.settings[key], SETTINGS[key].environment
        if setting and variable and setting.source.kind is SourceKind.FLAG:
            variables[variable] = str(setting.value)
    return Hooks(commands, app.invocation.environ, extra=variables, tell=tell, pauses=RETRY_PAUSES, clock=app.clock)

"""The options that name hooks, and the `Hooks` that they make."""

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
    "on_preempt": (EventKind.PREEMPTED, "the service took a node back"),
    "on_recover": (EventKind.RECOVERED, "a node is usable again"),
    "on_maintenance": (EventKind.MAINTENANCE, "maintenance of a node is announced, or begins"),
    "on_give_up": (EventKind.GAVE_UP, "nothing more is done for a node"),
}
# What says which cloud is talked to, as whom, and where is noted what: given by flag, it counts inside a hook too.
_PASSED_ON = (
    "endpoint", "impersonate_service_account", "quota_project", "user", "ssh_key", "ssh_key_expire_after", "journal", "lease",
)  # fmt: skip


def hook_options(*kinds: EventKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for a hook of each kind of event; of all four where none is named."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, when) in reversed(_KINDS.items()):
            if kind in kinds or not kinds:
                flag = "--" + name.replace("_", "-")
                text = f"Command to run on this machine when {when}; gets the event as JSON on stdin."
                function = click.option(flag, name, metavar="CMD", help=text)(function)
        return function

    return decorate


def take_hooks(app: App, options: dict[str, Any]) -> Hooks:
    """Take the options that name hooks out of a command's options, and return the hooks. An empty command is none."""
    from tpuctl.hooks import RETRY_PAUSES, Hooks  # noqa: PLC0415  # completion and --help need not wait for it

    given = {kind: options.pop(name, None) for name, (kind, _) in _KINDS.items()}
    terminal, commands = app.terminal, {kind: text for kind, text in given.items() if text}
    # On a screen that is drawn anew a hook's own words would be drawn over.
    tell = terminal.note if terminal.is_redrawn and not terminal.quiet else None
    return Hooks(
        commands, app.invocation.environ, extra=_same_cloud(app), tell=tell, pauses=RETRY_PAUSES, clock=app.clock
    )


def _same_cloud(app: App) -> dict[str, str]:
    """Return the variables by which `tpuctl` in a hook talks to the cloud that this run talks to."""
    # `0` too: a project file in the hook's working directory may ask for the sandbox.
    found = {"TPUCTL_SANDBOX": "1" if app.is_sandbox else "0"}
    for key in _PASSED_ON:
        setting, variable = app.settings[key], SETTINGS[key].environment
        if setting and variable and setting.source.kind is SourceKind.FLAG:
            found[variable] = str(setting.value)
    return found

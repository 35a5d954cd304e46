"""The options of levels, repair and hooks, and the `Hooks` made of them."""

# a call that declares an option returns a field

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.config.settings import SETTINGS, SourceKind
from tpuctl.errors import InvalidInputError
from tpuctl.models.events import EventKind
from tpuctl.nodes.conditions import USABLE_CONDITIONS, Repair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.app.app import App
    from tpuctl.nodes.hooks import Hooks


def setting_option(
    key: str, kind: click.ParamType[Any] | None, metavar: str | None = None
) -> Any:  # a field, see `option`
    """Declare the option of a setting with the help text and default of the setting."""
    spec = SETTINGS[key]
    text = f"{spec.description[:1].upper()}{spec.description[1:]}. [default: {spec.default or 'none'}]"
    metavar = "N" if isinstance(kind, click.IntRange) else metavar
    return option(f"--{key.replace('_', '-')}", type=kind, metavar=metavar, help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions(GivenOptions):
    """The options of repair. Each is a setting of the same name; its thresholds are settings only."""

    repair: str | None = setting_option("repair", click.Choice([str(step) for step in Repair]))
    max_reboots: int | None = setting_option("max_reboots", click.IntRange(min=0))
    max_restarts: int | None = setting_option("max_restarts", click.IntRange(min=0))
    max_recreates: int | None = setting_option("max_recreates", click.IntRange(min=0))

    @property
    def as_settings(self) -> dict[str, str]:
        """The given options, as values of their settings."""
        return {key: str(value) for key, value in self.given.items()}


repair_options = takes_options(RepairOptions, "repairs", group=OptionGroup.REPAIR)


def level_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--for LEVEL`."""
    levels = click.Choice([str(level) for level in USABLE_CONDITIONS])
    text = "Condition for a usable node, see `tpuctl help levels`. [default: ssh]"
    return grouped_option("--for", "goal", group=OptionGroup.READINESS, type=levels, help=text)(function)


def probe_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--probe CMD`."""
    text = "Shell command that must succeed on every worker, instead of a count of its chips; implies --for devices."
    return grouped_option("--probe", group=OptionGroup.READINESS, metavar="CMD", help=text)(function)


def failed_startup_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--allow-failed-startup`."""
    text = "Accept a node whose startup script failed, with --for startup or devices."
    return grouped_option("--allow-failed-startup", group=OptionGroup.READINESS, is_flag=True, help=text)(function)


_HOOKS = {
    "on_preempt": (EventKind.PREEMPTED, "the service preempted a node"),
    "on_usable": (EventKind.REACHED, "a node is usable, for the first time or again"),
    "on_recover": (EventKind.RECOVERED, "a node is usable again after a repair or a preemption"),
    "on_maintenance": (EventKind.MAINTENANCE, "maintenance of a node is announced or begins"),
    "on_job_stall": (EventKind.JOB_STALLED, "a kept job prints nothing, or its chips are idle"),
    "on_job_end": (EventKind.JOB_ENDED, "a kept job is over"),
    "on_give_up": (EventKind.GAVE_UP, "a node is given up, or another hook failed"),
}
_NODE_KINDS = frozenset(kind for kind, _ in _HOOKS.values()) - {EventKind.JOB_STALLED, EventKind.JOB_ENDED}
# A path at the beginning of a shell command, without characters that a shell replaces.
_PROGRAM_PATH = re.compile(r"[\w.-]*/[\w./-]+(?=\s|$)")
# Settings that choose cloud, identity, journal and leases: given as flags, they apply inside hooks too.
_INHERITED_SETTINGS = (
    "endpoint", "impersonate_service_account", "quota_project", "user", "ssh_key", "ssh_key_expire_after", "journal", "lease",
)  # fmt: skip


def hook_options(*kinds: EventKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for a hook of each kind of event, for all kinds of nodes if none is named."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, when) in reversed(_HOOKS.items()):
            if kind in (kinds or _NODE_KINDS):
                flag = "--" + name.replace("_", "-")
                text = f"Local command to run when {when}; gets the event as JSON on stdin."
                function = grouped_option(flag, name, group=OptionGroup.HOOKS, metavar="CMD", help=text)(function)
        return function

    return decorate


def build_hooks(app: App, commands: Mapping[EventKind, str | None]) -> Hooks:
    """Return the hooks of these events; that of `reached` runs for `recovered` too. An empty command is no hook.

    Raises `InvalidInputError` for the path of a program that does not exist: a hook may run only in a week.
    """
    from tpuctl.nodes.hooks import Hooks  # noqa: PLC0415  # not needed by --help and completion

    given = {kind: text for kind, text in commands.items() if text}
    for name, (kind, _) in _HOOKS.items():
        program = _PROGRAM_PATH.match(given.get(kind) or "")
        if program and not (app.invocation.folder / program[0]).exists():
            flag = "--" + name.replace("_", "-")
            raise InvalidInputError(
                f"`{flag}`: there is no program `{program[0]}`",
                hint="write the path of an existing program, or a shell command",
            )
    # With these variables `tpuctl` in a hook uses the same cloud as this run. `0` is set too: a project file in the hook's
    # working directory may choose the sandbox.
    variables = {"TPUCTL_SANDBOX": "1" if app.is_sandbox else "0"}
    for key in _INHERITED_SETTINGS:
        setting, variable = app.settings[key], SETTINGS[key].environment
        if setting and variable and setting.source.kind is SourceKind.FLAG:
            variables[variable] = str(setting.value)
    hooks = {kind: (text,) for kind, text in given.items()}
    if on_usable := hooks.get(EventKind.REACHED):
        hooks[EventKind.RECOVERED] = (*hooks.get(EventKind.RECOVERED, ()), *on_usable)
    return Hooks(hooks, app.invocation.environ, extra=variables, show=app.terminal.note_output, clock=app.clock)

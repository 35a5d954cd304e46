"""`tpuctl watch` of nodes: its options, and what it does. `workers` adds the supervision of a job, and registers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import events_option, force_lease_option
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import spec_options
from tpuctl.nodes.commands.idle_options import idle_options
from tpuctl.nodes.commands.policy_options import hook_options, level_option, probe_option, repair_options
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.commands.time_options import MomentType

if TYPE_CHECKING:
    from collections.abc import Callable


@selection_options(without=("types", "states", "older_than"))
@spec_options
@level_option
@probe_option
@grouped_option(
    "--until",
    group=OptionGroup.LIFETIME,
    type=MomentType(),
    metavar="TIME",
    help="Time at which the watch ends: 8h from now, 18:30, or a time in RFC 3339. [default: never]",
)
@repair_options
@idle_options
@grouped_option(
    "--recreate-deleted", group=OptionGroup.REPAIR, is_flag=True, help="Recreate a node that another client deleted."
)
@hook_options()
@route_options
@force_lease_option
@events_option
@grouped_option(
    "--yes",
    "-y",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Also repair nodes that may be in use, and apply --idle to nodes of other owners.",
)
@body_in("tpuctl.nodes.commands.watch_run:run_watch")
def watch() -> None:
    """Keep nodes usable; the help of the command is where its options are completed (`workers/commands/watch.py`)."""


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `watch`."""
    options = function.__dict__.setdefault("__click_params__", [])
    options.extend(watch.__dict__["__click_params__"])
    return function

"""The options that choose the route to workers. They become settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.app import App
from tpuctl.app.option_help import OptionGroup, grouped_option

if TYPE_CHECKING:
    from collections.abc import Callable


def _store_as_setting(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # click's
    """Store the value of an option as a setting of the app, so that the command needs no parameter for it."""
    app = ctx.find_object(App)
    if app is not None and value is not None and param.name is not None:
        app.set_options({param.name: "true" if value else "false"})


def route_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--iap` and `--internal-ip/--external-ip`. They become settings, not parameters of the command."""
    function = grouped_option(
        "--internal-ip/--external-ip",
        "internal_ip",
        group=OptionGroup.ACCESS,
        default=None,
        expose_value=False,
        callback=_store_as_setting,
        help="Connect to internal or to external addresses of workers. [default: internal in the node's own network]",
    )(function)
    return grouped_option(
        "--iap",
        "--tunnel-through-iap",
        "iap",
        group=OptionGroup.ACCESS,
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_store_as_setting,
        help="Tunnel ssh through Identity-Aware Proxy; needs gcloud.",
    )(function)

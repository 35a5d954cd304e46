"""The options that say by which way workers are reached, for all that use ssh, and what the settings make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.errors import InvalidInputError
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.readiness import Policy
    from tpuctl.remote.reach import Reach, Surroundings, Way


def _take(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # click's
    """Hand what was given to the app as a setting: the command itself need not know of it."""
    from tpuctl.cli.app import App  # noqa: PLC0415  # not needed by --help

    app = ctx.find_object(App)
    if app is not None and value is not None and param.name is not None:
        app.take({param.name: "true" if value else "false"})


def reach_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--iap` and `--internal-ip/--external-ip`. They become settings, and are no parameters of the command."""
    function = click.option(
        "--internal-ip/--external-ip",
        "internal_ip",
        default=None,
        expose_value=False,
        callback=_take,
        help="Use the workers' internal or external addresses. [default: internal in the node's own network]",
    )(function)
    return click.option(
        "--iap",
        "--tunnel-through-iap",
        "iap",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_take,
        help="Tunnel through Identity-Aware Proxy, with gcloud.",
    )(function)


def reach(app: App) -> Reach:
    """Return how workers are to be reached. Nothing is asked yet.

    Raises `InvalidInputError` where two ways were asked for in the same place; else the nearer place wins.
    """
    import shutil  # noqa: PLC0415  # most commands reach no worker

    from tpuctl.remote.reach import Reach  # noqa: PLC0415  # as above

    impersonate = app.settings["impersonate_service_account"]
    return Reach(
        way=_way(app),
        here=_Once(app),
        gcloud=lambda: shutil.which("gcloud"),
        impersonate=str(impersonate.value) if impersonate else None,
    )


def with_reachable_goal(
    app: App, policy: Policy, name: NodeName, *, goal: str | None, node: Node | None, spec: NodeSpec | None = None
) -> Policy:
    """Return the policy for one node: it goes for `healthy` where ssh cannot get to the workers and no `goal` was named."""
    from dataclasses import replace as with_goal  # noqa: PLC0415  # most commands reach no worker

    from tpuctl.readiness import Goal  # noqa: PLC0415  # as above

    if goal is not None or policy.goal is not Goal.SSH:
        return policy
    if node is not None and not policy.replace and not node.state.is_dead:
        obstacle = app.workers.obstacle(node)
    else:
        obstacle = app.workers.obstacle_of_new(name, spec) if spec is not None else None
    if obstacle is None:
        return policy
    app.terminal.note(f"{name.node_id}: waiting until it is healthy, not until ssh answers: {obstacle}")
    return with_goal(policy, goal=Goal.HEALTHY)


def _way(app: App) -> Way | None:
    from tpuctl.remote.reach import Way  # noqa: PLC0415  # as above

    settings, order = app.settings, list(SourceKind)
    iap, internal = settings["iap"], settings["internal_ip"]
    if iap and not settings.is_on("iap"):
        iap = None
    if iap and internal:
        nearer = order.index(iap.source.kind) - order.index(internal.source.kind)
        if nearer == 0:
            flag = "--internal-ip" if settings.is_on("internal_ip") else "--external-ip"
            raise InvalidInputError(f"`--iap` and `{flag}` exclude each other", hint="leave one of them out")
        iap = iap if nearer < 0 else None
    if iap:
        return Way.IAP
    if internal is None:
        return None
    return Way.INTERNAL if settings.is_on("internal_ip") else Way.EXTERNAL


class _Once:
    """Where this machine is, asked once; with another endpoint than Google's only where GCE_METADATA_HOST is set."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._found: list[Surroundings | None] = []

    def __call__(self) -> Surroundings | None:
        """Return where this machine is."""
        if not self._found:
            self._found.append(self._look())
        return self._found[0]

    def _look(self) -> Surroundings | None:
        from tpuctl.remote.surroundings import surroundings  # noqa: PLC0415  # as above

        environ = self._app.invocation.environ
        is_elsewhere = self._app.settings["endpoint"] is not None and not environ.get("GCE_METADATA_HOST")
        return None if is_elsewhere else surroundings(environ)

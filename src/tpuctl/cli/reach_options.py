"""The options `--iap` and `--internal-ip`, and the route to workers that follows from the settings."""

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


def _store_as_setting(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # click's
    """Store the value of an option as a setting of the app, so that the command needs no parameter for it."""
    from tpuctl.cli.app import App  # noqa: PLC0415  # --help does not need it

    app = ctx.find_object(App)
    if app is not None and value is not None and param.name is not None:
        app.take({param.name: "true" if value else "false"})


def reach_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--iap` and `--internal-ip/--external-ip`. They become settings, not parameters of the command."""
    function = click.option(
        "--internal-ip/--external-ip",
        "internal_ip",
        default=None,
        expose_value=False,
        callback=_store_as_setting,
        help="Connect to internal or external addresses of workers. [default: internal in the node's own network]",
    )(function)
    return click.option(
        "--iap",
        "--tunnel-through-iap",
        "iap",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_store_as_setting,
        help="Tunnel ssh through Identity-Aware Proxy; needs gcloud.",
    )(function)


def reach(app: App) -> Reach:
    """Return the router for workers. It makes no request yet.

    If the settings contain two routes, the source with the higher precedence wins. Raises `InvalidInputError` if both have the
    same source.
    """
    import shutil  # noqa: PLC0415  # most commands connect to no worker

    from tpuctl.remote.reach import Reach  # noqa: PLC0415  # as above

    impersonate = app.settings["impersonate_service_account"]
    return Reach(
        way=_chosen_route(app),
        here=_CachedMetadata(app),
        gcloud=lambda: shutil.which("gcloud"),
        impersonate=str(impersonate.value) if impersonate else None,
    )


def with_reachable_goal(
    app: App, policy: Policy, name: NodeName, *, goal: str | None, node: Node | None, spec: NodeSpec | None = None
) -> Policy:
    """Return the policy for one node. Its goal becomes `healthy` if ssh cannot reach the workers and no `goal` was given."""
    from dataclasses import replace as with_goal  # noqa: PLC0415  # most commands connect to no worker

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


def _chosen_route(app: App) -> Way | None:
    from tpuctl.remote.reach import Way  # noqa: PLC0415  # as above

    settings, order = app.settings, list(SourceKind)
    iap, internal = settings["iap"], settings["internal_ip"]
    if iap and not settings.is_on("iap"):
        iap = None
    if iap and internal:
        nearer = order.index(iap.source.kind) - order.index(internal.source.kind)
        if nearer == 0:
            flag = "--internal-ip" if settings.is_on("internal_ip") else "--external-ip"
            raise InvalidInputError(f"`--iap` and `{flag}` exclude each other", hint="remove one of them")
        iap = iap if nearer < 0 else None
    if iap:
        return Way.IAP
    if internal is None:
        return None
    return Way.INTERNAL if settings.is_on("internal_ip") else Way.EXTERNAL


class _CachedMetadata:
    """The networks of this machine, fetched once. With another endpoint than Google's only if GCE_METADATA_HOST is set."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._found: list[Surroundings | None] = []

    def __call__(self) -> Surroundings | None:
        """Return the networks of this machine. None if they are unknown."""
        from tpuctl.remote.surroundings import surroundings  # noqa: PLC0415  # as above

        if not self._found:
            environ = self._app.invocation.environ
            is_other_endpoint = self._app.settings["endpoint"] is not None and not environ.get("GCE_METADATA_HOST")
            self._found.append(None if is_other_endpoint else surroundings(environ))
        return self._found[0]

"""The context of the actions that a run does in the cloud."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tpuctl.app.spec_building import chosen_by_file
from tpuctl.nodes.actuator import ActionContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.events import NodeEvent


def action_context(
    app: App, tell: Callable[[NodeEvent], None], *, preflight: PreflightCheck | None = None
) -> ActionContext:
    """Return the context of actions, as `Services.context` says."""
    services, file = app.services, app.project_file
    return ActionContext(
        cloud=services.client,
        clock=app.clock,
        journal=services.journal,
        workers=services.workers,
        leases=services.leases,
        emit=tell,
        server_now=app.now,
        random=app.invocation.random or Random(),  # noqa: S311  # jitter, not a secret
        preflight=preflight,
        project_file=file.path.name if file else "",
        chosen_by_file=chosen_by_file(app),
        owner=lambda: services.owner_label,
    )

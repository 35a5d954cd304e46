"""`tpuctl run --multislice`: one job over several slices."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.inspection import METADATA_ADDRESS
from tpuctl.nodes.lookup import select_nodes
from tpuctl.workers.captured_run import run_captured
from tpuctl.workers.commands.node_selection import find_selected_nodes
from tpuctl.workers.multislice import COORDINATOR, DEFAULT_PORT, NAMES, check_count, plan_slices
from tpuctl.workers.runner import RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.commands.run import RunFlags
    from tpuctl.workers.multislice import SlicePlan

# What the service wrote for the machine [JAX source, cloud_tpu_cluster.py], or the sandbox's file of it.
_SHOW_OWN = r"""
if [ -n "${TPUCTL_METADATA_ROOT-}" ]; then cat "$TPUCTL_METADATA_ROOT/instance/attributes/tpu-env"
else curl -sf -m 5 -H 'Metadata-Flavor: Google' http://ADDRESS/computeMetadata/v1/instance/attributes/tpu-env
fi | grep '^MEGASCALE_' | head -c 2000
""".replace("ADDRESS", METADATA_ADDRESS)
_OWN = re.compile(r"^(MEGASCALE_[A-Z_]{1,40}): *'([^'\n]{0,100})'\r?$", re.MULTILINE | re.ASCII)


def check_multislice(flags: RunFlags, workers: WorkerSet, request: RunRequest, names: tuple[str, ...]) -> None:
    """Raise `InvalidInputError` for what one job over several slices cannot be combined with."""
    refused = {
        "--batch": flags.batch is not None,
        "--allow-unreachable": flags.allow_unreachable,
        "--worker": workers != WorkerSet.parse("all"),
    }
    for option in (option for option, is_used in refused.items() if is_used):
        raise InvalidInputError(
            f"cannot combine `--multislice` and `{option}`: the job runs on all workers of all slices or on none",
            hint="leave one of them out",
        )
    for name in (name for name in NAMES if name in request.environment.given):
        hint = "use `--megascale-port PORT`" if name == NAMES[-1] else "leave the variable out"
        raise InvalidInputError(f"`--multislice` computes `{name}` for each start", hint=hint)
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"`{doubled}` is named twice: each slice of a job is a node of its own", hint="name each node once"
        )


def find_slice_names(app: App, selection: GivenSelection) -> list[str]:
    """Return the names of the slices of a kept job: those of a pattern exist, those that are named need not."""
    # With `--keep` the type is that of the nodes to create.
    selection = replace(selection, options=replace(selection.options, types=()))
    names = [*selection.names]
    if selection.is_pattern:
        names = [str(node.name) for node in select_nodes(app, selection.parse(app)).complete()]
    check_count(len(names))
    return names


def plan_job(app: App, flags: RunFlags, selection: GivenSelection) -> SlicePlan:
    """Return the plan of one job over the nodes of a selection. Raises the error of a node that cannot be reached."""
    nodes, errors = find_selected_nodes(app, selection)
    if errors:
        # A slice that is left out would be waited for, or would be missing without a word.
        for error in errors[1:]:
            app.show_error(error)
        raise errors[0]
    return plan_slices(nodes, port=flags.megascale_port or DEFAULT_PORT, checks_types=not flags.skip_validation)


def as_one_job(app: App, plan: SlicePlan, request: RunRequest, targets: Sequence[Target]) -> RunRequest:
    """Return the request with the variables of each slice; the command ends everywhere when it fails on one worker."""
    order = ", ".join(node.name.node_id for node in plan.nodes[:4]) + (", …" if len(plan.nodes) > 4 else "")
    app.terminal.note(f"{len(plan.nodes)} slices ({order}) meet at {plan.coordinator}:{plan.port}")
    _note_other_values(app, plan, [target for target in targets if target.worker == 0 and target.node.is_multislice])
    environment = replace(request.environment, slices=plan)
    return replace(request, environment=environment, fail_fast=not request.detach)


def _note_other_values(app: App, plan: SlicePlan, targets: list[Target]) -> None:
    """Say where the values that the service gave to nodes of one request differ: those of this run count."""
    if not targets:
        return
    limit = timedelta(seconds=30)
    request = RunRequest(line=_SHOW_OWN, shown="tpuctl run", takes_stdin=False, timeout=limit, allow_unreachable=True)
    for run in run_captured(app, targets, request).workers:
        ours = plan.variables(run.node)
        # The service may leave out the port.
        host = {name: value.partition(":")[0] if name == COORDINATOR else value for name, value in ours.items()}
        for name, value in _OWN.findall(run.stdout):
            if name in ours and value not in {ours[name], host[name]}:
                app.terminal.note(
                    f"`{run.node.node_id}`: {name} is {ours[name]} for this run; the service gave {value}"
                )

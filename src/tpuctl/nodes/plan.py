"""The next step of a command, without running it, and the equivalent gcloud commands. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

from tpuctl.accelerators import find_accelerator_type
from tpuctl.command_text import join_command
from tpuctl.durations import format_timestamp
from tpuctl.errors import ConflictError
from tpuctl.escaping import gcloud_pairs
from tpuctl.models.node import NodeState, Tier
from tpuctl.models.spec import FIELDS
from tpuctl.models.spec_fields import option_values
from tpuctl.names import last_segment
from tpuctl.nodes.conditions import (
    Create,
    Delete,
    DeleteRequest,
    Done,
    Fail,
    Now,
    ObservedState,
    Policy,
    Reboot,
    Requeue,
    Restart,
    Start,
    Verb,
)
from tpuctl.nodes.decide import decide
from tpuctl.nodes.queueing import queue_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec, QueueWindow
    from tpuctl.names import NodeName


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan."""

    verb: Verb
    name: NodeName
    reason: str
    # The full name of the queued resource that owns the node: the deletion goes through it.
    queued_resource: str | None = None
    force: bool = True
    # A deletion is followed by a creation, once the node is gone.
    is_recreation: bool = False
    # When the queued resource that a creation makes may be provisioned; None for a node that is created directly.
    window: QueueWindow | None = None
    spec: NodeSpec | None = None  # of the node that is created
    # The API fields that an update replaces, and those that the node has.
    changes: Mapping[str, Any] = field(default_factory=dict)
    present: Mapping[str, Any] = field(default_factory=dict)


class ResetMode(StrEnum):
    """How a node is reset."""

    AUTO = "auto"
    RESTART = "restart"
    REBOOT = "reboot"
    RECREATE = "recreate"


def reset_mode(node: Node, wanted: ResetMode) -> ResetMode:
    """Return how to reset a node. `auto` never deletes it: it restarts the node if that is possible, else it reboots.

    Raises `ConflictError` if the wanted mode is impossible; its hint names the others.
    """
    name = node.name.node_id
    why_not = node.why_not_restartable()
    if wanted is ResetMode.RECREATE:
        if node.queued_resource:
            owner = last_segment(node.queued_resource)
            hint = f"`tpuctl reset {name} --mode reboot` keeps it; `tpuctl down {name}` deletes it with its queued resource"
            text = f"`{name}` belongs to the queued resource `{owner}` and cannot be recreated on its own"
            raise ConflictError(text, hint=hint)
        return wanted
    if wanted is ResetMode.RESTART and why_not:
        hint = f"`tpuctl reset {name} --mode reboot` keeps it; `--mode recreate` deletes and recreates it"
        raise ConflictError(f"`{name}` cannot be restarted: {why_not}", hint=hint)
    if node.state is NodeState.READY:
        return ResetMode.REBOOT if wanted is ResetMode.REBOOT or why_not else ResetMode.RESTART
    if node.state is NodeState.STOPPED and not why_not and wanted is not ResetMode.REBOOT:
        return ResetMode.RESTART
    hint = f"`tpuctl reset {name} --mode recreate` deletes and recreates it (its boot disk is lost)"
    if node.state.is_dead:
        hint += f"; `tpuctl up {name}` creates it again with what it had"
    elif node.state is not NodeState.STOPPED:
        hint += f"; `tpuctl up {name}` waits until it is usable"
    elif not node.why_not_startable():
        hint = f"`tpuctl start {name}` starts it and keeps its boot disk"
    raise ConflictError(f"`{name}` is {node.state}, but only a READY node can be reset in place", hint=hint)


def next_step(
    policy: Policy, seen: ObservedState, now: datetime, *, spec: NodeSpec | None, expires: datetime | None = None
) -> PlanStep | None:
    """Return the next step of `up` for an observed state, None if it is done. `now` is the service's time.

    A node that is created has the `spec`, and its time ends when it `expires`. Raises the error that `up` would fail with.
    """
    window = queue_window(policy, policy.timeout, now).ended_by(expires) if seen.is_queued else None
    match decision := decide(replace(policy, timeout=None), seen, Now(timedelta(), now)):
        case Done():
            return None
        case Fail(error):
            raise error
        case DeleteRequest(reason, owner, force):
            return PlanStep(Verb.DELETE, seen.name, reason, owner, force=force, is_recreation=True)
        case Create(reason):
            return PlanStep(Verb.CREATE, seen.name, reason, window=window, spec=spec)
        case Requeue() | Delete() | Start() | Restart() | Reboot():
            verb = _VERBS[type(decision)]
            return PlanStep(verb, seen.name, decision.reason, is_recreation=verb is Verb.DELETE)
        case _:
            assert_never(decision)


_VERBS: dict[type, Verb] = {
    Requeue: Verb.WAIT,
    Delete: Verb.DELETE,
    Start: Verb.START,
    Restart: Verb.STOP,
    Reboot: Verb.REBOOT,
}


def gcloud_commands(step: PlanStep, *, account: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the gcloud commands equivalent to a step, quoted for bash or zsh; none for a wait.

    `account` are gcloud's flags for the identity and the quota project. An update of the API replaces fields, and gcloud
    merges instead: its flags contain the difference from the fields that the node has.
    """
    spec, changes, present = step.spec, step.changes, step.present
    where = (step.name.node_id, "--zone", step.name.zone, "--project", step.name.project, *account)
    group = ("compute", "tpus", "tpu-vm")
    base = ("gcloud", *group)
    match step.verb:
        case Verb.CREATE:
            if spec is None:
                return ()
            if step.window is not None:
                return (join_command(_queue_command(step.name, where, spec, step.window)),)
            # Only `gcloud alpha` accepts `--type` for these generations [gcloud 528 source].
            is_new_shape = _shape_flags(spec)[0] in {"--type=v5litepod", "--type=v5p", "--type=v6e"}
            needs_alpha = is_new_shape or spec.api_version == "v2alpha1"
            track = ("gcloud", "alpha") if needs_alpha else ("gcloud",)
            return (join_command((*track, *group, "create", *where, *_create_flags(spec))),)
        case Verb.DELETE if step.queued_resource:
            owner = (last_segment(step.queued_resource), *where[1:])
            flags = ["--force", "--quiet"] if step.force else ["--quiet"]
            return (join_command(("gcloud", "compute", "tpus", "queued-resources", "delete", *owner, *flags)),)
        case Verb.DELETE:
            return (join_command((*base, "delete", *where, "--quiet")),)
        case Verb.START | Verb.STOP:
            return (join_command((*base, step.verb, *where)),)
        case Verb.REBOOT:
            return (join_command((*base, "ssh", *where, "--worker=all", "--command=sudo reboot")),)
        case Verb.UPDATE:
            # gcloud changes one disk at a time.
            updates = [_update_flags(changes, present), *([flag] for flag in _disk_flags(changes, present))]
            return tuple(join_command((*base, "update", *where, *each)) for each in updates if each)
        case Verb.WAIT:
            return ()


def _queue_command(name: NodeName, where: Sequence[str], spec: NodeSpec, window: QueueWindow) -> tuple[str, ...]:
    """Return gcloud's command for a queued resource with the id of its node or group [gcloud 528 source: queued_resources]."""
    is_alpha = spec.api_version == "v2alpha1"
    flags = [flag for flag in _create_flags(spec) if not flag.startswith(("--version=", "--queue-count="))]
    flags = [flag for flag in flags if flag not in {"--preemptible", "--reserved", *map("--{}".format, Tier)}]
    match spec.tier:
        case Tier.SPOT | Tier.PREEMPTIBLE:
            # In alpha, `--spot` without a model is overwritten by STANDARD [gcloud 528 source].
            flags.append("--provisioning-model=spot" if is_alpha else "--spot")
        case Tier.BEST_EFFORT:
            flags.append("--best-effort")
        case Tier.FLEX_START:
            flags.append("--provisioning-model=flex-start")
        case Tier.RESERVED if spec.reservation is None:
            flags.append("--reserved")
    if spec.run_for is not None:
        flags.append(f"--max-run-duration={spec.run_for.total_seconds():.0f}s")
    if window.valid_after is not None:
        flags.append(f"--valid-after-time={format_timestamp(window.valid_after)}")
    if window.valid_until is not None:
        flags.append(f"--valid-until-duration={window.valid_until.total_seconds():.0f}s")
    ids = [f"--node-id={name.node_id}"]
    if slices := spec.queued_slices(name):
        where = (spec.request_name(name).node_id, *where[1:])
        ids = [f"--node-count={len(slices)}", f"--node-prefix={where[0]}"]
    node = (*ids, f"--runtime-version={spec.runtime_version}")
    track = ("gcloud", "alpha") if is_alpha or spec.reservation else ("gcloud",)
    return (*track, "compute", "tpus", "queued-resources", "create", *where, *node, *flags)


def _create_flags(spec: NodeSpec) -> list[str]:
    flags = _shape_flags(spec)
    flags.append(f"--version={spec.runtime_version}")
    if spec.reservation is not None:
        flags.append(f"--reservation={spec.reservation}")
        flags += ["--provisioning-model=reservation-bound"] if spec.is_calendar else []
    elif spec.tier and spec.tier is not Tier.ON_DEMAND:
        flags.append(f"--{spec.tier}")
    for option, value in option_values(FIELDS, spec, for_gcloud=True):
        if option.names[0] != "--reservation":
            flags.append(option.names[0] if value is True else f"{option.names[0]}={value}")
    return flags


def _shape_flags(spec: NodeSpec) -> list[str]:
    accelerator = find_accelerator_type(spec.accelerator_type)
    if accelerator is None or spec.topology in {None, accelerator.topology}:
        return [f"--accelerator-type={spec.accelerator_type}"]
    return [f"--type={accelerator.generation.prefix}", f"--topology={spec.topology}"]


def _update_flags(changes: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    flags: list[str] = []
    for kind in ("labels", "metadata"):
        if kind in changes:
            old, new = present.get(kind) or {}, changes[kind]
            changed = {key: value for key, value in new.items() if old.get(key) != value}
            flags += [f"--update-{kind}={gcloud_pairs(changed)}"] if changed else []
            flags += [f"--remove-{kind}={','.join(key for key in old if key not in new)}"] if old.keys() - new else []
    if "tags" in changes:
        old, new = present.get("tags") or [], changes["tags"]
        flags += [f"--add-tags={','.join(tag for tag in new if tag not in old)}"] if set(new) - set(old) else []
        flags += [f"--remove-tags={','.join(tag for tag in old if tag not in new)}"] if set(old) - set(new) else []
    if "description" in changes:
        flags.append(f"--description={changes['description']}")
    if "networkConfig" in changes:
        flags.append("--no-internal-ips" if changes["networkConfig"]["enableExternalIps"] else "--internal-ips")
    return flags


def _disk_flags(changes: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    if "dataDisks" not in changes:
        return []
    old, new = present.get("dataDisks") or [], changes["dataDisks"]
    return [
        *(f"--detach-disk={disk['sourceDisk']}" for disk in old if disk not in new),
        *(
            f"--attach-disk=source={disk['sourceDisk']},mode={disk['mode'].lower().replace('_', '-')}"
            for disk in new
            if disk not in old
        ),
    ]

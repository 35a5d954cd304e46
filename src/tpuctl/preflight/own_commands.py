"""The tpuctl commands that findings suggest, each complete. tpuctl never runs them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.model.states import Tier
from tpuctl.preflight.wanted import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model import NodeSpec
    from tpuctl.preflight.wanted import Wanted

_MODES = {"READ_WRITE": "read-write", "READ_ONLY": "read-only"}


def again(
    wanted: Wanted,
    *,
    zone: str | None = None,
    accelerator_type: str | None = None,
    tier: Tier | None = None,
    more: tuple[str, ...] = (),
) -> str:
    """Return the command that creates or checks the same node in another zone, with another type or tier.

    It repeats all options of the node. It is a `tpuctl check` if the node has no name, if a part of the spec cannot be
    written as an option, or if that part would not fit in the other zone.
    """
    spec = wanted.spec
    makes = wanted.name is not None and _can_be_written(spec, is_moved=zone not in {None, wanted.zone})
    words = ["tpuctl", "up" if makes else "check", *([wanted.name.node_id] if wanted.name else ())]
    words += [f"--project={wanted.project}", f"--zone={zone or wanted.zone}"]
    words += _kind(wanted, accelerator_type or spec.accelerator_type, more)
    if tier := tier or spec.tier:
        words.append(f"--{tier}")
    words += _surroundings(spec)
    for use in wanted.buckets:
        flag = "--bucket" if use.reads and use.writes else "--data-bucket" if use.reads else "--checkpoint-bucket"
        words.append(f"{flag}={use.url}")
    if wanted.dataset_size is not None:
        words.append(f"--dataset-size={wanted.dataset_size}")
    if wanted.billing_project:
        words.append(f"--billing-project={wanted.billing_project}")
    if wanted.no_billing_outside_grants:
        words.append("--no-billing-outside-grants")
    if wanted.iap != wanted.internal_ip:  # mutually exclusive as options; different sources of settings may set both
        words.append("--iap" if wanted.iap else "--internal-ip")
    if not makes:
        words += [f"--for={wanted.purpose}"] if wanted.purpose is Purpose.SERVE else []
        words += [f"--vm={wanted.machine}"] if wanted.machine else []
        more = tuple(word for word in more if word != "--replace")  # only `up` has this option
    return shlex.join([*words, *more])


def types_of(wanted: Wanted) -> str:
    """Show where a type is offered now."""
    return shlex.join(["tpuctl", "types", wanted.spec.accelerator_type, f"--project={wanted.project}"])


def delete(project: str, zone: str, node_id: str) -> str:
    """Delete a node, or the record of a dead one."""
    return shlex.join(["tpuctl", "delete", f"{zone}/{node_id}", f"--project={project}"])


def take_down(project: str, zone: str, node_id: str, *, all_nodes: bool = False) -> str:
    """Delete the queued resource of a node, including the node."""
    words = ["tpuctl", "down", f"{zone}/{node_id}", f"--project={project}"]
    return shlex.join([*words, *(["--all-nodes"] if all_nodes else [])])


def _can_be_written(spec: NodeSpec, *, is_moved: bool) -> bool:
    """Return whether options can express the whole spec.

    Scripts and keys are too long; disks and subnetworks cannot move. The ssh key that tpuctl adds itself, a single
    line, needs no option.
    """
    stays = bool(spec.data_disks) or "/" in (spec.subnetwork or "")
    is_ours = set(spec.metadata) == {"ssh-keys"} and "\n" not in spec.metadata["ssh-keys"].strip()
    has_metadata = bool(spec.metadata) and not is_ours
    return not (has_metadata or spec.setup or spec.kept or (is_moved and stays))


def _kind(wanted: Wanted, accelerator_type: str, more: tuple[str, ...]) -> Iterator[str]:
    """Yield type, shape and image. An image fits one generation only, and the default image need not be named."""
    from tpuctl.accelerators import find  # noqa: PLC0415  # reads the table

    spec, accelerator, other = wanted.spec, wanted.accelerator, find(accelerator_type)
    if spec.topology and accelerator and accelerator_type == spec.accelerator_type:
        yield from (f"--type={accelerator.generation.name}", f"--topology={spec.topology}")
    else:
        yield f"--type={accelerator_type}"
    usual = accelerator.runtime_version if accelerator else None
    is_asked = "runtime_version" in spec.named or (not spec.named and spec.runtime_version != usual)
    is_alike = accelerator_type == spec.accelerator_type or (
        accelerator is not None and other is not None and accelerator.generation == other.generation
    )
    is_given = any(word.startswith("--version=") for word in more)
    if spec.runtime_version and is_asked and is_alike and not is_given:
        yield f"--version={spec.runtime_version}"


def _surroundings(spec: NodeSpec) -> Iterator[str]:
    """Yield the remaining options that create the node."""
    plain = {
        "--network": spec.network,
        "--subnetwork": spec.subnetwork,
        "--range": spec.cidr_block,
        "--queue-count": spec.queue_count,
        "--service-account": spec.service_account,
        "--scopes": ",".join(spec.scopes),
        "--labels": ",".join(f"{key}={value}" for key, value in spec.labels.items()),
        "--tags": ",".join(spec.tags),
        "--description": spec.description,
    }
    yield from (f"{flag}={value}" for flag, value in plain.items() if value)
    yield from (f"--data-disk=source={disk.source},mode={_MODES.get(disk.mode, disk.mode)}" for disk in spec.data_disks)
    if spec.internal_ips:
        yield "--internal-ips"
    if spec.shielded_secure_boot:
        yield "--shielded-secure-boot"

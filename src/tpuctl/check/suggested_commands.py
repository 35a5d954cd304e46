"""The tpuctl commands that findings suggest, each complete. tpuctl never runs them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.check.facts import Purpose
from tpuctl.models.node import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.check.facts import WantedNode
    from tpuctl.models.spec import NodeSpec

_DISK_MODES = {"READ_WRITE": "read-write", "READ_ONLY": "read-only"}


def create_or_check_command(
    wanted: WantedNode,
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
    makes = wanted.name is not None and _fits_in_command(spec, is_moved=zone not in {None, wanted.zone})
    words = ["tpuctl", "up" if makes else "check", *([wanted.name.node_id] if wanted.name else ())]
    words += [f"--project={wanted.project}", f"--zone={zone or wanted.zone}"]
    words += _type_options(wanted, accelerator_type or spec.accelerator_type, more)
    if tier := tier or spec.tier:
        words.append(f"--{tier}")
    words += _creation_options(spec)
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


def list_types_command(wanted: WantedNode) -> str:
    """Show where a type is offered now."""
    return shlex.join(["tpuctl", "types", wanted.spec.accelerator_type, f"--project={wanted.project}"])


def delete_node_command(project: str, zone: str, node_id: str) -> str:
    """Delete a node, or the record of a dead one."""
    return shlex.join(["tpuctl", "delete", f"{zone}/{node_id}", f"--project={project}"])


def delete_queued_resource_command(project: str, zone: str, node_id: str, *, all_nodes: bool = False) -> str:
    """Delete the queued resource of a node, including the node."""
    words = ["tpuctl", "down", f"{zone}/{node_id}", f"--project={project}"]
    return shlex.join([*words, *(["--all-nodes"] if all_nodes else [])])


def _fits_in_command(spec: NodeSpec, *, is_moved: bool) -> bool:
    """Return whether options can express the whole spec.

    Scripts and keys are too long; disks and subnetworks cannot move. The ssh key that tpuctl adds itself, a single
    line, needs no option.
    """
    stays = bool(spec.data_disks) or "/" in (spec.subnetwork or "")
    is_ours = set(spec.metadata) == {"ssh-keys"} and "\n" not in spec.metadata["ssh-keys"].strip()
    has_metadata = bool(spec.metadata) and not is_ours
    return not (has_metadata or spec.setup or spec.kept or (is_moved and stays))


def _type_options(wanted: WantedNode, accelerator_type: str, more: tuple[str, ...]) -> Iterator[str]:
    """Yield type, shape and image. An image fits one generation only, and the default image need not be named."""
    from tpuctl.accelerators import find_accelerator_type  # noqa: PLC0415  # reads the table

    spec, accelerator, other = wanted.spec, wanted.accelerator, find_accelerator_type(accelerator_type)
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


def _creation_options(spec: NodeSpec) -> Iterator[str]:
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
    yield from (
        f"--data-disk=source={disk.source},mode={_DISK_MODES.get(disk.mode, disk.mode)}" for disk in spec.data_disks
    )
    if spec.internal_ips:
        yield "--internal-ips"
    if spec.shielded_secure_boot:
        yield "--shielded-secure-boot"


# The gcloud commands that findings suggest, complete and valid for gcloud 528. tpuctl never runs them.


def list_projects_command() -> str:
    """List the projects that the account can see."""
    return _gcloud("projects", "list")


def restore_project_command(project: str) -> str:
    """Cancel the deletion of a project."""
    return _gcloud("projects", "undelete", project)


def list_billing_accounts_command() -> str:
    """List the billing accounts that the account can see."""
    return _gcloud("billing", "accounts", "list")


def list_networks_command(project: str) -> str:
    """List the networks of a project."""
    return _gcloud("compute", "networks", "list", f"--project={project}")


def create_network_command(project: str, name: str) -> str:
    """Create a network with a subnetwork in every region, without firewall rules."""
    return _gcloud("compute", "networks", "create", name, "--subnet-mode=auto", f"--project={project}")


def list_subnetworks_command(project: str, network: str) -> str:
    """List the subnetworks of a network, with their regions."""
    return _gcloud("compute", "networks", "subnets", "list", f"--network={network}", f"--project={project}")


def enable_private_access_command(project: str, region: str, subnetwork: str) -> str:
    """Enable Private Google Access on a subnetwork."""
    place = (f"--region={region}", f"--project={project}")
    return _gcloud("compute", "networks", "subnets", "update", subnetwork, *place, "--enable-private-ip-google-access")


def list_machines_command(project: str) -> str:
    """List the virtual machines of a project."""
    return _gcloud("compute", "instances", "list", f"--project={project}")


def start_machine_command(project: str, zone: str, name: str) -> str:
    """Start a virtual machine."""
    return _gcloud("compute", "instances", "start", name, f"--zone={zone}", f"--project={project}")


def stop_machine_command(project: str, zone: str, name: str) -> str:
    """Stop a virtual machine."""
    return _gcloud("compute", "instances", "stop", name, f"--zone={zone}", f"--project={project}")


def set_scopes_command(project: str, zone: str, name: str, *, account: str | None = None) -> str:
    """Give a stopped virtual machine the scope `cloud-platform`, so that IAM alone decides; optionally set its account."""
    words = ["compute", "instances", "set-service-account", name, f"--zone={zone}", f"--project={project}"]
    words += [f"--service-account={account}"] if account else []
    return _gcloud(*words, "--scopes=cloud-platform")


def list_disks_command(project: str) -> str:
    """List the disks of a project, with their zones."""
    return _gcloud("compute", "disks", "list", f"--project={project}")


def describe_disk_command(project: str, zone: str, name: str) -> str:
    """Show the status of a disk and the machines that it is attached to."""
    return _gcloud("compute", "disks", "describe", name, f"--zone={zone}", f"--project={project}")


def _gcloud(*words: str) -> str:
    return shlex.join(("gcloud", *words))

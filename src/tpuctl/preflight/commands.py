"""The gcloud commands that findings suggest, complete and valid for gcloud 528. tpuctl never runs them."""

from __future__ import annotations

import shlex


def list_projects() -> str:
    """List the projects that the account can see."""
    return _gcloud("projects", "list")


def restore_project(project: str) -> str:
    """Cancel the deletion of a project."""
    return _gcloud("projects", "undelete", project)


def list_billing_accounts() -> str:
    """List the billing accounts that the account can see."""
    return _gcloud("billing", "accounts", "list")


def list_networks(project: str) -> str:
    """List the networks of a project."""
    return _gcloud("compute", "networks", "list", f"--project={project}")


def create_network(project: str, name: str) -> str:
    """Create a network with a subnetwork in every region, without firewall rules."""
    return _gcloud("compute", "networks", "create", name, "--subnet-mode=auto", f"--project={project}")


def list_subnetworks(project: str, network: str) -> str:
    """List the subnetworks of a network, with their regions."""
    return _gcloud("compute", "networks", "subnets", "list", f"--network={network}", f"--project={project}")


def enable_private_access(project: str, region: str, subnetwork: str) -> str:
    """Enable Private Google Access on a subnetwork."""
    place = (f"--region={region}", f"--project={project}")
    return _gcloud("compute", "networks", "subnets", "update", subnetwork, *place, "--enable-private-ip-google-access")


def list_machines(project: str) -> str:
    """List the virtual machines of a project."""
    return _gcloud("compute", "instances", "list", f"--project={project}")


def start_machine(project: str, zone: str, name: str) -> str:
    """Start a virtual machine."""
    return _gcloud("compute", "instances", "start", name, f"--zone={zone}", f"--project={project}")


def stop_machine(project: str, zone: str, name: str) -> str:
    """Stop a virtual machine."""
    return _gcloud("compute", "instances", "stop", name, f"--zone={zone}", f"--project={project}")


def set_scopes(project: str, zone: str, name: str, *, account: str | None = None) -> str:
    """Give a stopped virtual machine the scope `cloud-platform`, so that IAM alone decides; optionally set its account."""
    words = ["compute", "instances", "set-service-account", name, f"--zone={zone}", f"--project={project}"]
    words += [f"--service-account={account}"] if account else []
    return _gcloud(*words, "--scopes=cloud-platform")


def list_disks(project: str) -> str:
    """List the disks of a project, with their zones."""
    return _gcloud("compute", "disks", "list", f"--project={project}")


def describe_disk(project: str, zone: str, name: str) -> str:
    """Show the status of a disk and the machines that it is attached to."""
    return _gcloud("compute", "disks", "describe", name, f"--zone={zone}", f"--project={project}")


def _gcloud(*words: str) -> str:
    return shlex.join(("gcloud", *words))

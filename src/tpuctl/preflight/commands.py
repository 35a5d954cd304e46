"""The gcloud commands that findings advise, each complete and as gcloud 528 takes it. None of them is run from here."""

from __future__ import annotations

import shlex


def list_projects() -> str:
    """Show the projects that the account may see."""
    return _gcloud("projects", "list")


def restore_project(project: str) -> str:
    """Call back the deletion of a project."""
    return _gcloud("projects", "undelete", project)


def list_billing_accounts() -> str:
    """Show the billing accounts that the account may see."""
    return _gcloud("billing", "accounts", "list")


def list_networks(project: str) -> str:
    """Show the networks of a project."""
    return _gcloud("compute", "networks", "list", f"--project={project}")


def create_network(project: str, name: str) -> str:
    """Make a network with a subnetwork in every region; it comes without firewall rules."""
    return _gcloud("compute", "networks", "create", name, "--subnet-mode=auto", f"--project={project}")


def list_subnetworks(project: str, network: str) -> str:
    """Show the subnetworks of a network, with their regions."""
    return _gcloud("compute", "networks", "subnets", "list", f"--network={network}", f"--project={project}")


def enable_private_access(project: str, region: str, subnetwork: str) -> str:
    """Turn Private Google Access on."""
    place = (f"--region={region}", f"--project={project}")
    return _gcloud("compute", "networks", "subnets", "update", subnetwork, *place, "--enable-private-ip-google-access")


def list_machines(project: str) -> str:
    """Show the virtual machines of a project."""
    return _gcloud("compute", "instances", "list", f"--project={project}")


def start_machine(project: str, zone: str, name: str) -> str:
    """Start a virtual machine."""
    return _gcloud("compute", "instances", "start", name, f"--zone={zone}", f"--project={project}")


def stop_machine(project: str, zone: str, name: str) -> str:
    """Stop a virtual machine."""
    return _gcloud("compute", "instances", "stop", name, f"--zone={zone}", f"--project={project}")


def set_scopes(project: str, zone: str, name: str, *, account: str | None = None) -> str:
    """Give a stopped virtual machine the scope that leaves everything to IAM, and an account where one is named."""
    words = ["compute", "instances", "set-service-account", name, f"--zone={zone}", f"--project={project}"]
    words += [f"--service-account={account}"] if account else []
    return _gcloud(*words, "--scopes=cloud-platform")


def list_disks(project: str) -> str:
    """Show the disks of a project, with their zones."""
    return _gcloud("compute", "disks", "list", f"--project={project}")


def describe_disk(project: str, zone: str, name: str) -> str:
    """Show a disk: its status, and what it is attached to."""
    return _gcloud("compute", "disks", "describe", name, f"--zone={zone}", f"--project={project}")


def _gcloud(*words: str) -> str:
    return shlex.join(("gcloud", *words))

"""Add resources of the APIs beside the TPU API: buckets and objects, networks, disks, services, policies.

For seeds and tests: nothing is checked against existing resources, a record of the same name is replaced. Each function takes
a sandbox, or a session if several changes belong together. `fields` are the API's own, in its spelling; they override
the service's defaults. All return the document as the API shows it, unless they say otherwise.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox import catalog, cloudbilling, iam, orgpolicy, projects, serviceusage
from tpuctl.sandbox.admin import PROJECT, ZONE
from tpuctl.sandbox.calls import Media
from tpuctl.sandbox.compute import firewalls, machines, networks, places
from tpuctl.sandbox.storage import buckets, caches, objects
from tpuctl.sandbox.world import Session, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.sandbox.calls import Json


@contextmanager
def _held(sandbox: World | Session) -> Iterator[Session]:
    if isinstance(sandbox, Session):
        yield sandbox
        return
    with sandbox.write() as session:
        yield session


def add_bucket(
    sandbox: World | Session,
    name: str,
    *,
    project: str = PROJECT,
    location: str = "US",
    denied: Sequence[str] = (),
    **fields: Any,
) -> Json:
    """Add a bucket. `denied` are the permissions that the caller lacks on it; `("*",)`: a bucket of another owner, 403."""
    with _held(sandbox) as session:
        return buckets.add(session, project, name, fields={**fields, "location": location}, denied=tuple(denied))


def add_object(sandbox: World | Session, bucket: str, name: str, content: bytes | str = b"", **fields: Any) -> Json:
    """Add an object, or a new generation of it. Raises `ApiError` 404 for a bucket that does not exist."""
    media = Media(content.encode() if isinstance(content, str) else content, str(fields.get("contentType", "")))
    with _held(sandbox) as session:
        return objects.store(session, bucket, name, media=media, fields=fields)


def add_cache(sandbox: World | Session, bucket: str, zone: str, **fields: Any) -> Json:
    """Add an Anywhere Cache of a bucket (`state`, `ttl`, …). Raises `ApiError` 404 for a bucket that does not exist."""
    with _held(sandbox) as session:
        return caches.add(session, bucket, zone, fields=fields)


def add_network(sandbox: World | Session, name: str, *, project: str = PROJECT, **fields: Any) -> Json:
    """Add a network; it gets a subnetwork in every region unless `autoCreateSubnetworks` is false."""
    with _held(sandbox) as session:
        return networks.add_network(session, project, name, fields=fields)


def remove_network(sandbox: World | Session, name: str, *, project: str = PROJECT) -> None:
    """Remove a network; `default`, which every project has, too."""
    with _held(sandbox) as session:
        networks.remove_network(session, project, name)


def add_subnetwork(
    sandbox: World | Session, name: str, *, region: str, network: str = "default", project: str = PROJECT, **fields: Any
) -> Json:
    """Add a subnetwork (`privateIpGoogleAccess`, `ipCidrRange`, …), or change one of an auto-mode network."""
    with _held(sandbox) as session:
        return networks.add_subnetwork(session, project, name, fields={**fields, "region": region, "network": network})


def add_firewall(sandbox: World | Session, name: str, *, project: str = PROJECT, **fields: Any) -> Json:
    """Add a firewall rule (`network`, `allowed`, `sourceRanges`, …)."""
    with _held(sandbox) as session:
        return firewalls.add(session, project, name, fields=fields)


def remove_firewall(sandbox: World | Session, name: str, *, project: str = PROJECT) -> None:
    """Remove a firewall rule; those of default networks (`default-allow-ssh`) too."""
    with _held(sandbox) as session:
        firewalls.remove(session, project, name)


def add_disk(sandbox: World | Session, name: str, *, zone: str = ZONE, project: str = PROJECT, **fields: Any) -> Json:
    """Add a persistent disk (`sizeGb`, `status`, `users`, …)."""
    with _held(sandbox) as session:
        return machines.add_disk(session, project, zone, name, fields=fields)


def add_instance(
    sandbox: World | Session, name: str, *, zone: str = ZONE, project: str = PROJECT, **fields: Any
) -> Json:
    """Add a virtual machine (`status`, `serviceAccounts`, `machineType`, …)."""
    with _held(sandbox) as session:
        return machines.add_instance(session, project, zone, name, fields=fields)


def set_region_quota(
    sandbox: World | Session,
    region: str,
    metric: str,
    *,
    limit: float,
    usage: float | None = None,
    project: str = PROJECT,
) -> None:
    """Set a quota of Compute Engine in a region (`IN_USE_ADDRESSES`); without `usage` the usage is counted."""
    with _held(sandbox) as session:
        places.set_quota(session, project, region, metric=metric, limit=limit, usage=usage)


def add_project(sandbox: World | Session, project: str, *, denied: Sequence[str] = (), **fields: Any) -> Json:
    """Add a project. As soon as one is added, only added projects are known.

    `denied` are the permissions that the caller lacks on it. Its number follows from its name: `projectNumber` is ignored.
    """
    with _held(sandbox) as session:
        return projects.add(session, project, fields=fields, denied=tuple(denied))


def set_services(sandbox: World | Session, states: Mapping[str, str | bool], *, project: str = PROJECT) -> None:
    """Enable or disable services: `{"tpu.googleapis.com": "DISABLED"}`, or booleans."""
    with _held(sandbox) as session:
        for name, state in states.items():
            serviceusage.set_state(session, project, name, enabled=state in {True, "ENABLED"})


def set_billing(
    sandbox: World | Session, *, enabled: bool, project: str = PROJECT, account: str = cloudbilling.ACCOUNT
) -> None:
    """Enable or disable a project's billing; `account` is `billingAccounts/012345-567890-ABCDEF`."""
    with _held(sandbox) as session:
        cloudbilling.set_billing(session, project, enabled=enabled, account=account)


def set_iam_policy(
    sandbox: World | Session, bindings: Sequence[Mapping[str, Any]], *, bucket: str = "", project: str = PROJECT
) -> None:
    """Replace the IAM policy of a bucket; without `bucket`, of the project."""
    kind, name = ("storage.bucket", bucket) if bucket else ("project", project)
    with _held(sandbox) as session:
        iam.put_policy(session, kind, name, {"bindings": [dict(binding) for binding in bindings]})


def set_org_policy(
    sandbox: World | Session, constraint: str, spec: Mapping[str, Any], *, project: str = PROJECT
) -> Json:
    """Set an organisation policy on a project; `spec` as the API has it: `{"rules": [{"enforce": True}]}`."""
    with _held(sandbox) as session:
        return orgpolicy.put(session, project, constraint, dict(spec))


def add_role(sandbox: World | Session, name: str, *, project: str = PROJECT, **fields: Any) -> Json:
    """Add a custom role of a project (`title`, `includedPermissions`, …)."""
    with _held(sandbox) as session:
        return iam.add_role(session, project, name, fields=fields)


def project_number(project: str) -> str:
    """Return the number of a project, as it appears in service accounts and buckets."""
    return str(catalog.project_number(project))

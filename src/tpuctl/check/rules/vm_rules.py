"""Rules about the virtual machine that works with the node, and about the data disks of the node.

Each unreadable fact is reported once: the machine by TPU701, each disk by TPU703.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.check.facts import Absent, Known, Purpose, Unknown, value_or_none
from tpuctl.check.findings import (
    Level,
    Remedy,
    RuleResult,
    check_rule,
    describe_disk_command,
    list_disks_command,
    list_machines_command,
    set_scopes_command,
    start_machine_command,
    stop_machine_command,
    unread_result,
)
from tpuctl.models.spec import DataDisk
from tpuctl.names import last_segment, region_of_zone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.check.facts import CheckFacts, Fact, WantedNode
    from tpuctl.check.findings import CheckRule
    from tpuctl.models.compute_resources import ComputeInstance, PersistentDisk


_DISK_PATH = re.compile(r"(?:.*?projects/(?P<project>[^/]+)/)?(?:(?P<scope>zones|regions)/(?P<place>[^/]+)/)?.*")
_BALANCED = ("pd-balanced",)
# Disk.status that changes by itself [API compute v1].
_TRANSIENT_STATUSES = frozenset({"CREATING", "RESTORING"})
# Disk types of each generation [documentation of storage options and of durable block storage; they differ in parts].
_DOCUMENTED_DISK_TYPES = {
    "v2": _BALANCED,
    "v3": _BALANCED,
    "v4": _BALANCED,
    "v5e": (*_BALANCED, "hyperdisk-ml"),
    "v5p": (*_BALANCED, "hyperdisk-ml"),
    "v6e": ("hyperdisk-balanced", "hyperdisk-ml"),
}


@dataclass(frozen=True, slots=True)
class _RequestedDisk:
    """One disk as the node requests it. `zone` and `region` are from its path; None if the path lacks them."""

    disk: DataDisk
    fact: Fact[PersistentDisk]
    name: str
    project: str
    zone: str | None
    region: str | None

    @property
    def subject(self) -> str:
        return f"disk {self.name}"


@check_rule("TPU703", "data disks are in the node's zone")
def disk_is_in_zone(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check the location of the data disks of a new node.

    It is an error if a disk does not exist or is in another zone, or if a regional disk is in another region. A regional disk
    of the node's region is a note: it can be attached only in the two zones of its replicas, which are not read. A disk that
    is named without its path is a warning, as the API needs the full path. Source: API field text of AttachedDisk;
    documentation of Persistent Disk.
    """
    for requested in _requested_disks(facts):
        yield _disk_place_result(requested, facts.wanted)


@check_rule("TPU704", "data disks can be attached")
def disk_is_attachable(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the data disks of a new node can be attached to it.

    It is an error if a disk is not READY; a warning if it is about to become READY. It is an error to attach a disk READ_WRITE
    if it is attached elsewhere, to several workers, or to several nodes of the command: only READ_ONLY disks may be shared. A
    READ_ONLY disk that is attached elsewhere is a note, as it must be READ_ONLY there too. The disks of a node that is
    replaced become free. A disk type that the documentation does not name for the TPU's generation is a note: named are
    `pd-balanced` for v2 to v5p, `hyperdisk-balanced` for v6e, and `hyperdisk-ml` for v5e, v5p and v6e; how the service handles
    another type is unverified. Source: documentation of durable block storage for Cloud TPU and of disks shared between
    machines; API field `status` of Disk.
    """
    for requested in _requested_disks(facts):
        if isinstance(requested.fact, Known):
            value = requested.fact.value
            found = [
                *_attach_problems(requested, value, facts.wanted),
                *_undocumented_type_results(requested, value, facts.wanted),
            ]
            values = {"sourceDisk": requested.disk.source, "mode": requested.disk.mode}
            text = f"disk `{requested.name}` can be attached {requested.disk.mode}"
            yield from found or [RuleResult(Level.OK, requested.subject, text, facts=values)]


def _requested_disks(facts: CheckFacts) -> Iterator[_RequestedDisk]:
    for disk in facts.wanted.spec.data_disks:
        fact = facts.disks.get(disk.source)
        path = _DISK_PATH.fullmatch(disk.source)
        if fact is None or path is None:
            continue
        place = {path["scope"]: path["place"]}
        project = path["project"] or facts.wanted.project
        yield _RequestedDisk(disk, fact, last_segment(disk.source), project, place.get("zones"), place.get("regions"))


def _disk_place_result(requested: _RequestedDisk, wanted: WantedNode) -> RuleResult:
    if requested.region:
        is_near = requested.region == wanted.region
        other = Remedy(f"name a disk in {wanted.zone}: `--data-disk`", list_disks_command(requested.project))
        return RuleResult(
            Level.NOTE if is_near else Level.ERROR,
            requested.subject,
            f"disk `{requested.name}` is a regional disk of {requested.region}"
            + ("; the zones of its replicas are not read" if is_near else f", the node is in {wanted.region}"),
            why=f"it can be attached only in the two zones of its replicas, and the node is in {wanted.zone}",
            remedies=() if is_near else (other,),
            facts={"sourceDisk": requested.disk.source, "region": requested.region},
        )
    if requested.zone not in {None, wanted.zone}:
        return _misplaced_disk_result(requested, wanted, str(requested.zone))
    values = {"sourceDisk": requested.disk.source, "zone": wanted.zone}
    match requested.fact:
        case Unknown() as fact:
            what, permission = f"disk `{requested.name}` in {wanted.zone}", "compute.disks.get"
            return unread_result(fact, requested.subject, what, permission=permission, project=requested.project)
        case Absent():
            return RuleResult(
                Level.ERROR,
                requested.subject,
                f"project `{requested.project}` has no disk `{requested.name}` in {wanted.zone}",
                remedies=(
                    Remedy("name a disk in the node's zone: `--data-disk`", list_disks_command(requested.project)),
                ),
                facts=values,
            )
        case Known(value) if value.zone not in {"", wanted.zone}:
            return _misplaced_disk_result(requested, wanted, value.zone)
        case Known() if requested.zone is None:
            path = f"projects/{requested.project}/zones/{wanted.zone}/disks/{requested.name}"
            mode = requested.disk.mode.lower().replace("_", "-")
            return RuleResult(
                Level.WARNING,
                requested.subject,
                f"disk `{requested.name}` is named without its path",
                why="the API needs the full path of a disk",
                remedies=(Remedy(f"write `--data-disk=source={path},mode={mode}`"),),
                facts=values,
            )
        case Known():
            text = f"disk `{requested.name}` is in {wanted.zone}"
            return RuleResult(Level.OK, requested.subject, text, facts=values)


def _misplaced_disk_result(requested: _RequestedDisk, wanted: WantedNode, zone: str) -> RuleResult:
    place = f"{zone}, another zone of that region" if region_of_zone(zone) == wanted.region else zone
    return RuleResult(
        Level.ERROR,
        requested.subject,
        f"the node is in {wanted.zone}, disk `{requested.name}` in {place}",
        why="a disk can be attached only in its own zone",
        remedies=(
            Remedy(f"name a disk in {wanted.zone}: `--data-disk`", list_disks_command(requested.project)),
            Remedy("or copy it to that zone through a snapshot"),
        ),
        facts={"sourceDisk": requested.disk.source, "zone": zone},
    )


def _attach_problems(requested: _RequestedDisk, value: PersistentDisk, wanted: WantedNode) -> Iterator[RuleResult]:
    values = {
        "sourceDisk": requested.disk.source,
        "mode": requested.disk.mode,
        "status": value.status,
        "users": list(value.users),
    }
    shown = Remedy("show the disk", describe_disk_command(requested.project, value.zone or wanted.zone, value.name))
    read_only = Remedy(f"attach it READ_ONLY: `--data-disk=source={requested.disk.source},mode=read-only`")
    writes = requested.disk.mode != "READ_ONLY"

    def obstacle(text: str, why: str, *remedies: Remedy, level: Level = Level.ERROR) -> RuleResult:
        return RuleResult(level, requested.subject, text, why=why, remedies=remedies, facts=values)

    # Other nodes of the same command that use the disk.
    sharing = [
        other
        for spec in wanted.siblings
        for other in spec.data_disks
        if _is_same_disk(other.source, requested.disk.source)
    ]
    if value.status not in {"READY", ""}:
        level = Level.WARNING if value.status in _TRANSIENT_STATUSES else Level.ERROR
        text = f"disk `{requested.name}` is {value.status}"
        yield obstacle(text, "only a READY disk can be attached", shown, level=level)
    if writes and wanted.spec.workers > 1:
        text = f"disk `{requested.name}` would be attached READ_WRITE to a slice of {wanted.spec.workers} workers"
        yield obstacle(text, "every worker gets the disk, and only READ_ONLY disks may be shared", read_only)
    elif sharing and any(one.mode != "READ_ONLY" for one in (requested.disk, *sharing)):
        text = f"disk `{requested.name}` would be attached to several nodes at once, and not READ_ONLY to all of them"
        yield obstacle(text, "only READ_ONLY disks may be shared", read_only)
    own = [node.raw.get("dataDisks") or () for node in (wanted.node, wanted.replaces) if node is not None]
    has_disk = any(
        _is_same_disk(str(one.get("sourceDisk") or ""), requested.disk.source) for disks in own for one in disks
    )
    if value.users and not has_disk:
        users = ", ".join(f"`{name}`" for name in value.users[:4]) + (" and more" if len(value.users) > 4 else "")
        text = f"disk `{requested.name}` is already attached to {users}"
        if writes:
            yield obstacle(text, "a disk that is attached READ_WRITE cannot be attached elsewhere", read_only, shown)
        else:
            yield obstacle(text, "this works only if it is READ_ONLY there too", shown, level=Level.NOTE)


def _undocumented_type_results(
    requested: _RequestedDisk, value: PersistentDisk, wanted: WantedNode
) -> Iterator[RuleResult]:
    """Yield a note if the documentation does not name the disk type for the TPU's generation."""
    accelerator = wanted.accelerator
    kinds = _DOCUMENTED_DISK_TYPES.get(accelerator.generation.name) if accelerator else None
    if not accelerator or not kinds or value.kind in {"", *kinds}:
        return
    listed = " or ".join(f"`{name}`" for name in kinds)
    yield RuleResult(
        Level.NOTE,
        requested.subject,
        f"disk `{requested.name}` is a `{value.kind}`; {listed} is documented for {accelerator.generation.name}",
        why="creating the node may fail with another disk type",
        facts={"sourceDisk": requested.disk.source, "type": value.kind},
    )


def _is_same_disk(one: str, other: str) -> bool:
    """Return whether two paths name one disk. Projects are not compared: one may be named by its number."""
    places = [found[0] for found in (re.findall(r"(?:zones|regions)/([^/]+)", text) for text in (one, other)) if found]
    return last_segment(one) == last_segment(other) and len(set(places)) <= 1


_SCOPE_PREFIX = "https://www.googleapis.com/auth/"
_PROJECT_IN_LINK = re.compile(r"(?:.*/)?projects/([^/]+)/.*")
# Which scopes allow reading objects, and which allow writing [API storage v1, the scopes of objects.get and objects.insert].
_READING_SCOPES = frozenset(
    {
        *("cloud-platform", "cloud-platform.read-only"),
        *("devstorage.read_only", "devstorage.read_write", "devstorage.full_control"),
    }
)
_WRITING_SCOPES = frozenset({"cloud-platform", "devstorage.read_write", "devstorage.full_control"})


@check_rule("TPU701", "the virtual machine is near the node")
def machine_is_near(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check the location of the virtual machine that `--vm` names.

    It is an error if the machine does not exist or is in another region than the node: traffic between regions is billed, and
    slow. Another zone of the region is a warning. A machine that is not running is a note. Source: documentation of Cloud TPU
    (machine, node and bucket together) and of network pricing.
    """
    wanted, project = facts.wanted, _machine_project(facts.wanted)
    name = last_segment(wanted.machine or "")
    match facts.machine:
        case None:
            return
        case Unknown() as fact:
            what, permission = f"virtual machine `{name}`", "compute.instances.list"
            yield unread_result(fact, _machine_subject(name), what, permission=permission, project=project)
        case Absent():
            yield RuleResult(
                Level.ERROR,
                _machine_subject(name),
                f"project `{project}` has no virtual machine `{name}`",
                remedies=(Remedy("name one of these: `--vm`", list_machines_command(project)),),
                facts={"instance": name},
            )
        case Known(value):
            yield _machine_place_result(value, wanted)
            if value.status not in {"RUNNING", ""}:
                start = start_machine_command(project, value.zone, value.name)
                yield RuleResult(
                    Level.NOTE,
                    _machine_subject(value.name),
                    f"virtual machine `{value.name}` is not running, but {value.status}",
                    remedies=(Remedy("start it", start),),
                    facts={"instance": value.name, "status": value.status},
                )


@check_rule("TPU702", "the scopes of the virtual machine")
def machine_scopes_suffice(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check whether the scopes of that virtual machine allow it to use the buckets like the node.

    Scopes limit programs on the machine in addition to the account's roles. It is a warning if they do not allow reading the
    buckets, or writing to those that are written to, and if the machine has no account: tpuctl does not know whether its
    programs need the buckets or have their own credentials. Source: API storage v1, the scopes of `objects.get` and
    `objects.insert`.
    """
    value, uses = value_or_none(facts.machine), facts.wanted.buckets
    if value is None or not uses:
        return
    scopes = {scope.removeprefix(_SCOPE_PREFIX) for scope in value.scopes}
    values = {"instance": value.name, "scopes": list(value.scopes)}
    unreadable = [use.url for use in uses if use.reads and not scopes & _READING_SCOPES]
    writes = facts.wanted.purpose is Purpose.TRAIN
    unwritable = [use.url for use in uses if writes and use.writes and not scopes & _WRITING_SCOPES]
    if value.account and not unreadable and not unwritable:
        text = f"the scopes of virtual machine `{value.name}` are sufficient for its buckets"
        yield RuleResult(Level.OK, _machine_subject(value.name), text, facts=values)
        return
    what = "read" if not unwritable else "write to" if not unreadable else "read or write to"
    urls = ", ".join(dict.fromkeys(unreadable + unwritable))
    yield RuleResult(
        Level.WARNING,
        _machine_subject(value.name),
        f"the scopes of virtual machine `{value.name}` do not allow it to {what} buckets"
        if value.account
        else f"virtual machine `{value.name}` has no service account",
        why=f"its programs cannot {what} {urls} with its account, whichever roles the account has"
        if value.account
        else "its programs need their own credentials",
        remedies=tuple(_wider_scopes_remedies(value, facts)),
        facts=values,
    )


def _machine_place_result(value: ComputeInstance, wanted: WantedNode) -> RuleResult:
    subject, values = _machine_subject(value.name), {"instance": value.name, "zone": value.zone}
    if value.zone == wanted.zone:
        text = f"virtual machine `{value.name}` is in {value.zone} too"
        return RuleResult(Level.OK, subject, text, facts=values)
    is_near = region_of_zone(value.zone) == wanted.region
    return RuleResult(
        Level.WARNING if is_near else Level.ERROR,
        subject,
        f"virtual machine `{value.name}` is in {value.zone}, the node in {wanted.zone}"
        + (", another zone of that region" if is_near else ", another region"),
        why="traffic between zones is billed, and slower than within a zone"
        if is_near
        else "traffic between regions is billed, and slow",
        remedies=(
            Remedy(
                f"use a virtual machine in {wanted.zone}, or create the node in {value.zone} if it is offered there"
            ),
        ),
        facts=values,
    )


def _wider_scopes_remedies(value: ComputeInstance, facts: CheckFacts) -> Iterator[Remedy]:
    """Yield how to give the machine sufficient scopes; it must be stopped for that [documentation]."""
    project, found = _machine_project(facts.wanted), value_or_none(facts.project)
    account = None
    if not value.account:
        account = found.default_account if found and project == facts.wanted.project else None
        if account is None:
            yield Remedy(
                f"stop it and give it an account: `gcloud compute instances set-service-account {value.name} "
                f"--zone={value.zone} --project={project} --service-account=ACCOUNT --scopes=cloud-platform`"
            )
            return
    if value.status not in {"TERMINATED", "STOPPED"}:
        yield Remedy(
            "stop it, as scopes can only be changed while it is stopped",
            stop_machine_command(project, value.zone, value.name),
        )
    text = "set the scope `cloud-platform`, so that only IAM decides, and start it again"
    yield Remedy(text, set_scopes_command(project, value.zone, value.name, account=account))


def _machine_subject(name: str) -> str:
    return f"vm {name}"


def _machine_project(wanted: WantedNode) -> str:
    """Return the project of the machine: that of its link, else the node's."""
    found = _PROJECT_IN_LINK.fullmatch(wanted.machine or "")
    return found[1] if found else wanted.project


VM_RULES: tuple[CheckRule[CheckFacts], ...] = (
    machine_is_near,
    machine_scopes_suffice,
    disk_is_in_zone,
    disk_is_attachable,
)

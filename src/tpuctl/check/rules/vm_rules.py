"""Rules about the virtual machine that works with the node, and about the data disks of the node.

Each unreadable fact is reported once: the machine by TPU701, each disk by TPU703.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.check.facts import Absent, CheckFacts, Fact, Known, Purpose, Unknown, WantedNode, value_or_none
from tpuctl.check.findings import (
    CheckRule,
    Level,
    Remedy,
    RuleResult,
    check_rule,
    error,
    gcloud_command,
    note,
    ticked,
    unread_result,
    warning,
)
from tpuctl.check.rules.iam_rules import READING_SCOPES, SCOPE_PREFIX
from tpuctl.command_text import fill_text, fitting
from tpuctl.models.compute_resources import ComputeInstance, PersistentDisk
from tpuctl.models.node import DataDisk
from tpuctl.names import last_segment, region_of_zone

_DISK_PATH = re.compile(r"(?:.*?projects/(?P<project>[^/]+)/)?(?:(?P<scope>zones|regions)/(?P<place>[^/]+)/)?.*")
_PROJECT_IN_LINK = re.compile(r"(?:.*/)?projects/([^/]+)/.*")
# Disk.status that changes by itself [API compute v1].
_TRANSIENT_STATUSES = frozenset({"CREATING", "RESTORING"})
# Disk types of each generation [documentation of storage options and of durable block storage; they differ in parts].
_DOCUMENTED_DISK_TYPES = {
    "v2": ("pd-balanced",),
    "v3": ("pd-balanced",),
    "v4": ("pd-balanced",),
    "v5e": ("pd-balanced", "hyperdisk-ml"),
    "v5p": ("pd-balanced", "hyperdisk-ml"),
    "v6e": ("hyperdisk-balanced", "hyperdisk-ml"),
}
# The scopes of objects.insert [API storage v1].
_WRITING_SCOPES = frozenset({"cloud-platform", "devstorage.read_write", "devstorage.full_control"})


@dataclass(frozen=True, slots=True)
class _RequestedDisk:
    """One disk as the node requests it. `zone` and `region` are from its path; None if the path lacks them."""

    disk: DataDisk
    fact: Fact[PersistentDisk]
    project: str
    zone: str | None
    region: str | None

    @property
    def name(self) -> str:
        return last_segment(self.disk.source)

    def result(
        self, level: Level, text: str, *remedies: Remedy | str, why: str | None = None, **values: object
    ) -> RuleResult:
        """Return a result about this disk."""
        facts = {"sourceDisk": self.disk.source, **values}
        return RuleResult.of(level, f"disk {self.name}", text, *remedies, why=why, facts=facts)


def _requested_disks(facts: CheckFacts) -> Iterator[_RequestedDisk]:
    for disk in facts.wanted.spec.data_disks:
        fact, path = facts.disks.get(disk.source), _DISK_PATH.fullmatch(disk.source)
        if fact is not None and path is not None:
            place, project = {path["scope"]: path["place"]}, path["project"] or facts.wanted.project
            yield _RequestedDisk(disk, fact, project, place.get("zones"), place.get("regions"))


@check_rule("TPU703", "data disks are in the node's zone")
def disk_is_in_zone(facts: CheckFacts) -> Iterator[RuleResult]:
    """Check the location of the data disks of a new node.

    It is an error if a disk does not exist or is in another zone, or if a regional disk is in another region. A regional disk
    of the node's region is a note: it can be attached only in the two zones of its replicas, which are not read. A disk that
    is named without its path is a warning, as the API needs the full path. Source: API field text of AttachedDisk;
    documentation of Persistent Disk.
    """
    for requested in _requested_disks(facts):
        if found := _disk_place_result(requested, facts.wanted):
            yield found


def _disk_place_result(requested: _RequestedDisk, wanted: WantedNode) -> RuleResult | None:
    name, fact, project = requested.name, requested.fact, requested.project
    listing = gcloud_command("compute disks list", project=project)
    other = Remedy(f"name a disk in {wanted.zone}: `--data-disk`", listing)
    found_in = requested.zone or (fact.value.zone if isinstance(fact, Known) else None) or wanted.zone
    if requested.region:
        is_near = requested.region == wanted.region
        text = f"disk `{name}` is a regional disk of {requested.region}"
        text += "; the zones of its replicas are not read" if is_near else f", the node is in {wanted.region}"
        why = f"it can be attached only in the two zones of its replicas, and the node is in {wanted.zone}"
        level, remedies = (Level.NOTE, ()) if is_near else (Level.ERROR, (other,))
        return requested.result(level, text, *remedies, why=why, region=requested.region)
    if found_in != wanted.zone:
        place = f"{found_in}, another zone of that region" if region_of_zone(found_in) == wanted.region else found_in
        return requested.result(
            Level.ERROR,
            f"the node is in {wanted.zone}, disk `{name}` in {place}",
            other,
            "or copy it to that zone through a snapshot",
            why="a disk can be attached only in its own zone",
            zone=found_in,
        )
    match fact:
        case Unknown():
            what, permission = f"disk `{name}` in {wanted.zone}", "compute.disks.get"
            return unread_result(fact, f"disk {name}", what, permission=permission, project=project)
        case Absent():
            text = f"project `{project}` has no disk `{name}` in {wanted.zone}"
            remedy = Remedy("name a disk in the node's zone: `--data-disk`", listing)
            return requested.result(Level.ERROR, text, remedy, zone=wanted.zone)
        case Known() if requested.zone is None:
            path = f"projects/{project}/zones/{wanted.zone}/disks/{name}"
            return requested.result(
                Level.WARNING,
                f"disk `{name}` is named without its path",
                f"write `--data-disk=source={path},mode={requested.disk.mode.lower().replace('_', '-')}`",
                why="the API needs the full path of a disk",
                zone=wanted.zone,
            )
        case Known():
            return None


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
            yield from _attach_problems(requested, requested.fact.value, facts.wanted)


def _attach_problems(requested: _RequestedDisk, value: PersistentDisk, wanted: WantedNode) -> Iterator[RuleResult]:
    name, source, mode = requested.name, requested.disk.source, requested.disk.mode
    zone = value.zone or wanted.zone
    shown = Remedy(
        "show the disk",
        gcloud_command("compute disks describe", fitting("disk", value.name), zone=zone, project=requested.project),
    )
    read_only = f"attach it READ_ONLY: `--data-disk=source={source},mode=read-only`"
    writes = mode != "READ_ONLY"

    def obstacle(level: Level, text: str, why: str, *remedies: Remedy | str) -> RuleResult:
        values = {"mode": mode, "status": value.status, "users": list(value.users)}
        return requested.result(level, f"disk `{name}` {text}", *remedies, why=why, **values)

    if value.status not in {"READY", ""}:
        level = Level.WARNING if value.status in _TRANSIENT_STATUSES else Level.ERROR
        yield obstacle(level, f"is {value.status}", "only a READY disk can be attached", shown)
    # Other nodes of the same command that use the disk.
    modes = [other.mode for spec in wanted.siblings for other in spec.data_disks if _is_same_disk(other.source, source)]
    if writes and wanted.spec.workers > 1:
        text = f"would be attached READ_WRITE to a slice of {wanted.spec.workers} workers"
        yield obstacle(
            Level.ERROR, text, "every worker gets the disk, and only READ_ONLY disks may be shared", read_only
        )
    elif modes and {mode, *modes} != {"READ_ONLY"}:
        text = "would be attached to several nodes at once, and not READ_ONLY to all of them"
        yield obstacle(Level.ERROR, text, "only READ_ONLY disks may be shared", read_only)
    own = [disk for node in (wanted.node, wanted.replaces) if node for disk in node.raw.get("dataDisks") or ()]
    if value.users and not any(_is_same_disk(str(disk.get("sourceDisk") or ""), source) for disk in own):
        users = ", ".join(ticked(value.users[:4])) + (" and more" if len(value.users) > 4 else "")
        if writes:
            why = "a disk that is attached READ_WRITE cannot be attached elsewhere"
            yield obstacle(Level.ERROR, f"is already attached to {users}", why, read_only, shown)
        else:
            why = "this works only if it is READ_ONLY there too"
            yield obstacle(Level.NOTE, f"is already attached to {users}", why, shown)
    generation = wanted.accelerator.generation.name if wanted.accelerator else ""
    kinds = _DOCUMENTED_DISK_TYPES.get(generation)
    if kinds and value.kind not in {"", *kinds}:
        listed = " or ".join(ticked(kinds))
        text = f"disk `{name}` is a `{value.kind}`; {listed} is documented for {generation}"
        yield requested.result(
            Level.NOTE, text, why="creating the node may fail with another disk type", type=value.kind
        )


def _is_same_disk(one: str, other: str) -> bool:
    """Return whether two paths name one disk. Projects are not compared: one may be named by its number."""
    places = [found[0] for found in (re.findall(r"(?:zones|regions)/([^/]+)", text) for text in (one, other)) if found]
    return last_segment(one) == last_segment(other) and len(set(places)) <= 1


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
        case Unknown() as fact:
            what, permission = f"virtual machine `{name}`", "compute.instances.list"
            yield unread_result(fact, f"vm {name}", what, permission=permission, project=project)
        case Absent():
            text = f"project `{project}` has no virtual machine `{name}`"
            listing = gcloud_command("compute instances list", project=project)
            remedy = Remedy("name one of these: `--vm`", listing)
            yield error(f"vm {name}", text, remedy, facts={"instance": name})
        case Known(value):
            if value.zone != wanted.zone:
                yield _machine_place_result(value, wanted)
            if value.status not in {"RUNNING", ""}:
                start = gcloud_command(
                    "compute instances start", fitting("instance", value.name), zone=value.zone, project=project
                )
                text = f"virtual machine `{value.name}` is not running, but {value.status}"
                values = {"instance": value.name, "status": value.status}
                yield note(f"vm {value.name}", text, Remedy("start it", start), facts=values)


def _machine_place_result(value: ComputeInstance, wanted: WantedNode) -> RuleResult:
    subject, values = f"vm {value.name}", {"instance": value.name, "zone": value.zone}
    text = f"virtual machine `{value.name}` is in {value.zone}, the node in {wanted.zone}"
    remedy = f"use a virtual machine in {wanted.zone}, or create the node in {value.zone} if it is offered there"
    if region_of_zone(value.zone) == wanted.region:
        text, why = (
            f"{text}, another zone of that region",
            "traffic between zones is billed, and slower than within a zone",
        )
        return warning(subject, text, remedy, why=why, facts=values)
    text, why = f"{text}, another region", "traffic between regions is billed, and slow"
    return error(subject, text, remedy, why=why, facts=values)


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
    scopes = {scope.removeprefix(SCOPE_PREFIX) for scope in value.scopes}
    trains = facts.wanted.purpose is Purpose.TRAIN
    unreadable = [use.url for use in uses if use.reads and not scopes & READING_SCOPES]
    unwritable = [use.url for use in uses if trains and use.writes and not scopes & _WRITING_SCOPES]
    subject, values = f"vm {value.name}", {"instance": value.name, "scopes": list(value.scopes)}
    if value.account and not unreadable and not unwritable:
        return
    what = "read" if not unwritable else "write to" if not unreadable else "read or write to"
    text = f"virtual machine `{value.name}` has no service account"
    why = "its programs need their own credentials"
    if value.account:
        text = f"the scopes of virtual machine `{value.name}` do not allow it to {what} buckets"
        urls = ", ".join(dict.fromkeys(unreadable + unwritable))
        why = f"its programs cannot {what} {urls} with its account, whichever roles the account has"
    remedies = _wider_scopes_remedies(value, facts)
    yield warning(subject, text, *remedies, why=why, facts=values)


def _wider_scopes_remedies(value: ComputeInstance, facts: CheckFacts) -> Iterator[Remedy]:
    """Yield how to give the machine sufficient scopes; it must be stopped for that [documentation]."""
    project, found = _machine_project(facts.wanted), value_or_none(facts.project)
    is_own = found is not None and project == facts.wanted.project
    account = found.default_account if found and is_own and not value.account else None
    if not value.account and account is None:
        yield Remedy(
            fill_text(
                "stop it and give it an account: `gcloud compute instances set-service-account {instance} "
                "--zone={zone} --project={project} --service-account=ACCOUNT --scopes=cloud-platform`",
                {"instance": value.name, "zone": value.zone, "project": project},
            )
        )
        return
    place = {"zone": value.zone, "project": project}
    if value.status not in {"TERMINATED", "STOPPED"}:
        stop = gcloud_command("compute instances stop", fitting("instance", value.name), **place)
        yield Remedy("stop it, as scopes can only be changed while it is stopped", stop)
    yield Remedy(
        "set the scope `cloud-platform`, so that only IAM decides, and start it again",
        gcloud_command(
            "compute instances set-service-account",
            fitting("instance", value.name),
            **place,
            service_account=account,
            scopes="cloud-platform",
        ),
    )


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

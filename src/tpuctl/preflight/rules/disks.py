"""The data disks of a new node: their location, whether they can be attached, and their type.

An unreadable disk is reported by TPU703.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.model.spec import DataDisk
from tpuctl.names import region_of, short
from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.unread import unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.machine import Disk
    from tpuctl.preflight.fact import Fact
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.wanted import Wanted

_PATH = re.compile(r"(?:.*?projects/(?P<project>[^/]+)/)?(?:(?P<scope>zones|regions)/(?P<place>[^/]+)/)?.*")
_BALANCED = ("pd-balanced",)
# Disk.status that changes by itself [API compute v1].
_SOON = frozenset({"CREATING", "RESTORING"})
# Disk types of each generation [documentation of storage options and of durable block storage; they differ in parts].
_KINDS = {
    "v2": _BALANCED,
    "v3": _BALANCED,
    "v4": _BALANCED,
    "v5e": (*_BALANCED, "hyperdisk-ml"),
    "v5p": (*_BALANCED, "hyperdisk-ml"),
    "v6e": ("hyperdisk-balanced", "hyperdisk-ml"),
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One disk as the node requests it. `zone` and `region` are from its path; None if the path lacks them."""

    disk: DataDisk
    fact: Fact[Disk]
    name: str
    project: str
    zone: str | None
    region: str | None

    @property
    def subject(self) -> str:
        return f"disk {self.name}"


@rule("TPU703", "data disks are in the node's zone")
def disk_place(facts: Facts) -> Iterator[Found]:
    """Check the location of the data disks of a new node.

    It is an error if a disk does not exist or is in another zone, or if a regional disk is in another region. A regional disk
    of the node's region is a note: it can be attached only in the two zones of its replicas, which are not read. A disk that
    is named without its path is a warning, as the API needs the full path. Source: API field text of AttachedDisk;
    documentation of Persistent Disk.
    """
    for asked in _asked(facts):
        yield _placed(asked, facts.wanted)


@rule("TPU704", "data disks can be attached")
def attachable(facts: Facts) -> Iterator[Found]:
    """Check whether the data disks of a new node can be attached to it.

    It is an error if a disk is not READY; a warning if it is about to become READY. It is an error to attach a disk READ_WRITE
    if it is attached elsewhere, to several workers, or to several nodes of the command: only READ_ONLY disks may be shared. A
    READ_ONLY disk that is attached elsewhere is a note, as it must be READ_ONLY there too. The disks of a node that is
    replaced become free. A disk type that the documentation does not name for the TPU's generation is a note: named are
    `pd-balanced` for v2 to v5p, `hyperdisk-balanced` for v6e, and `hyperdisk-ml` for v5e, v5p and v6e; how the service handles
    another type is unverified. Source: documentation of durable block storage for Cloud TPU and of disks shared between
    machines; API field `status` of Disk.
    """
    for asked in _asked(facts):
        if isinstance(asked.fact, Known):
            value = asked.fact.value
            found = [*_obstacles(asked, value, facts.wanted), *_unlisted(asked, value, facts.wanted)]
            about = {"sourceDisk": asked.disk.source, "mode": asked.disk.mode}
            text = f"disk `{asked.name}` can be attached {asked.disk.mode}"
            yield from found or [Found(level=Level.OK, subject=asked.subject, text=text, facts=about)]


def _asked(facts: Facts) -> Iterator[_Asked]:
    for disk in facts.wanted.spec.data_disks:
        fact = facts.disks.get(disk.source)
        path = _PATH.fullmatch(disk.source)
        if fact is None or path is None:
            continue
        place = {path["scope"]: path["place"]}
        project = path["project"] or facts.wanted.project
        yield _Asked(disk, fact, short(disk.source), project, place.get("zones"), place.get("regions"))


def _placed(asked: _Asked, wanted: Wanted) -> Found:
    if asked.region:
        is_near = asked.region == wanted.region
        other = Remedy(f"name a disk in {wanted.zone}: `--data-disk`", commands.list_disks(asked.project))
        return Found(
            level=Level.NOTE if is_near else Level.ERROR,
            subject=asked.subject,
            text=f"disk `{asked.name}` is a regional disk of {asked.region}"
            + ("; the zones of its replicas are not read" if is_near else f", the node is in {wanted.region}"),
            why=f"it can be attached only in the two zones of its replicas, and the node is in {wanted.zone}",
            remedies=() if is_near else (other,),
            facts={"sourceDisk": asked.disk.source, "region": asked.region},
        )
    if asked.zone not in {None, wanted.zone}:
        return _misplaced(asked, wanted, str(asked.zone))
    about = {"sourceDisk": asked.disk.source, "zone": wanted.zone}
    match asked.fact:
        case Unknown() as fact:
            what, permission = f"disk `{asked.name}` in {wanted.zone}", "compute.disks.get"
            return unread(fact, asked.subject, what, permission=permission, project=asked.project)
        case Absent():
            return Found(
                level=Level.ERROR,
                subject=asked.subject,
                text=f"project `{asked.project}` has no disk `{asked.name}` in {wanted.zone}",
                remedies=(Remedy("name a disk in the node's zone: `--data-disk`", commands.list_disks(asked.project)),),
                facts=about,
            )
        case Known(value) if value.zone not in {"", wanted.zone}:
            return _misplaced(asked, wanted, value.zone)
        case Known() if asked.zone is None:
            path = f"projects/{asked.project}/zones/{wanted.zone}/disks/{asked.name}"
            mode = asked.disk.mode.lower().replace("_", "-")
            return Found(
                level=Level.WARNING,
                subject=asked.subject,
                text=f"disk `{asked.name}` is named without its path",
                why="the API needs the full path of a disk",
                remedies=(Remedy(f"write `--data-disk=source={path},mode={mode}`"),),
                facts=about,
            )
        case Known():
            text = f"disk `{asked.name}` is in {wanted.zone}"
            return Found(level=Level.OK, subject=asked.subject, text=text, facts=about)


def _misplaced(asked: _Asked, wanted: Wanted, zone: str) -> Found:
    place = f"{zone}, another zone of that region" if region_of(zone) == wanted.region else zone
    return Found(
        level=Level.ERROR,
        subject=asked.subject,
        text=f"the node is in {wanted.zone}, disk `{asked.name}` in {place}",
        why="a disk can be attached only in its own zone",
        remedies=(
            Remedy(f"name a disk in {wanted.zone}: `--data-disk`", commands.list_disks(asked.project)),
            Remedy("or copy it to that zone through a snapshot"),
        ),
        facts={"sourceDisk": asked.disk.source, "zone": zone},
    )


def _obstacles(asked: _Asked, value: Disk, wanted: Wanted) -> Iterator[Found]:
    about = {
        "sourceDisk": asked.disk.source,
        "mode": asked.disk.mode,
        "status": value.status,
        "users": list(value.users),
    }
    shown = Remedy("show the disk", commands.describe_disk(asked.project, value.zone or wanted.zone, value.name))
    read_only = Remedy(f"attach it READ_ONLY: `--data-disk=source={asked.disk.source},mode=read-only`")
    writes = asked.disk.mode != "READ_ONLY"

    def obstacle(text: str, why: str, *remedies: Remedy, level: Level = Level.ERROR) -> Found:
        return Found(level=level, subject=asked.subject, text=text, why=why, remedies=remedies, facts=about)

    # Other nodes of the same command that use the disk.
    sharing = [
        other for spec in wanted.siblings for other in spec.data_disks if _is_same(other.source, asked.disk.source)
    ]
    if value.status not in {"READY", ""}:
        level = Level.WARNING if value.status in _SOON else Level.ERROR
        text = f"disk `{asked.name}` is {value.status}"
        yield obstacle(text, "only a READY disk can be attached", shown, level=level)
    if writes and wanted.spec.workers > 1:
        text = f"disk `{asked.name}` would be attached READ_WRITE to a slice of {wanted.spec.workers} workers"
        yield obstacle(text, "every worker gets the disk, and only READ_ONLY disks may be shared", read_only)
    elif sharing and any(one.mode != "READ_ONLY" for one in (asked.disk, *sharing)):
        text = f"disk `{asked.name}` would be attached to several nodes at once, and not READ_ONLY to all of them"
        yield obstacle(text, "only READ_ONLY disks may be shared", read_only)
    own = [node.raw.get("dataDisks") or () for node in (wanted.node, wanted.replaces) if node is not None]
    has_disk = any(_is_same(str(one.get("sourceDisk") or ""), asked.disk.source) for disks in own for one in disks)
    if value.users and not has_disk:
        users = ", ".join(f"`{name}`" for name in value.users[:4]) + (" and more" if len(value.users) > 4 else "")
        text = f"disk `{asked.name}` is already attached to {users}"
        if writes:
            yield obstacle(text, "a disk that is attached READ_WRITE cannot be attached elsewhere", read_only, shown)
        else:
            yield obstacle(text, "this works only if it is READ_ONLY there too", shown, level=Level.NOTE)


def _unlisted(asked: _Asked, value: Disk, wanted: Wanted) -> Iterator[Found]:
    """Yield a note if the documentation does not name the disk type for the TPU's generation."""
    accelerator = wanted.accelerator
    kinds = _KINDS.get(accelerator.generation.name) if accelerator else None
    if not accelerator or not kinds or value.kind in {"", *kinds}:
        return
    listed = " or ".join(f"`{name}`" for name in kinds)
    yield Found(
        level=Level.NOTE,
        subject=asked.subject,
        text=f"disk `{asked.name}` is a `{value.kind}`; {listed} is documented for {accelerator.generation.name}",
        why="creating the node may fail with another disk type",
        facts={"sourceDisk": asked.disk.source, "type": value.kind},
    )


def _is_same(one: str, other: str) -> bool:
    """Return whether two paths name one disk. Projects are not compared: one may be named by its number."""
    places = [found[0] for found in (re.findall(r"(?:zones|regions)/([^/]+)", text) for text in (one, other)) if found]
    return short(one) == short(other) and len(set(places)) <= 1

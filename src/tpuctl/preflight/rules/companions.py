"""Resources beside the node: the virtual machine that works with it, and its data disks.

Each unreadable fact is reported once: the machine by TPU701, each disk by TPU703.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.names import region_of, short
from tpuctl.preflight import commands
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules.disks import attachable, disk_place
from tpuctl.preflight.unread import unread
from tpuctl.preflight.wanted import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.model.machine import Machine
    from tpuctl.preflight.facts import Facts
    from tpuctl.preflight.findings import Rule
    from tpuctl.preflight.wanted import Wanted

_SCOPE = "https://www.googleapis.com/auth/"
_PROJECT = re.compile(r"(?:.*/)?projects/([^/]+)/.*")
# Which scopes allow reading objects, and which allow writing [API storage v1, the scopes of objects.get and objects.insert].
_READING = frozenset(
    {
        *("cloud-platform", "cloud-platform.read-only"),
        *("devstorage.read_only", "devstorage.read_write", "devstorage.full_control"),
    }
)
_WRITING = frozenset({"cloud-platform", "devstorage.read_write", "devstorage.full_control"})


@rule("TPU701", "the machine beside the node")
def machine_place(facts: Facts) -> Iterator[Found]:
    """Check the location of the virtual machine that `--vm` names.

    It is an error if the machine does not exist or is in another region than the node: traffic between regions is billed, and
    slow. Another zone of the region is a warning. A machine that is not running is a note. Source: documentation of Cloud TPU
    (machine, node and bucket together) and of network pricing.
    """
    wanted, project = facts.wanted, _project(facts.wanted)
    name = short(wanted.machine or "")
    match facts.machine:
        case None:
            return
        case Unknown() as fact:
            what, permission = f"virtual machine `{name}`", "compute.instances.list"
            yield unread(fact, _subject(name), what, permission=permission, project=project)
        case Absent():
            yield Found(
                level=Level.ERROR,
                subject=_subject(name),
                text=f"project `{project}` has no virtual machine `{name}`",
                remedies=(Remedy("name one of these: `--vm`", commands.list_machines(project)),),
                facts={"instance": name},
            )
        case Known(value):
            yield _placed(value, wanted)
            if value.status not in {"RUNNING", ""}:
                start = commands.start_machine(project, value.zone, value.name)
                yield Found(
                    level=Level.NOTE,
                    subject=_subject(value.name),
                    text=f"virtual machine `{value.name}` is not running, but {value.status}",
                    remedies=(Remedy("start it", start),),
                    facts={"instance": value.name, "status": value.status},
                )


@rule("TPU702", "the machine's scopes")
def machine_scopes(facts: Facts) -> Iterator[Found]:
    """Check whether the scopes of that virtual machine allow it to use the buckets like the node.

    Scopes limit programs on the machine in addition to the account's roles. It is a warning if they do not allow reading the
    buckets, or writing to those that are written to, and if the machine has no account: tpuctl does not know whether its
    programs need the buckets or have their own credentials. Source: API storage v1, the scopes of `objects.get` and
    `objects.insert`.
    """
    value, uses = known(facts.machine), facts.wanted.buckets
    if value is None or not uses:
        return
    scopes = {scope.removeprefix(_SCOPE) for scope in value.scopes}
    about = {"instance": value.name, "scopes": list(value.scopes)}
    unreadable = [use.url for use in uses if use.reads and not scopes & _READING]
    writes = facts.wanted.purpose is Purpose.TRAIN
    unwritable = [use.url for use in uses if writes and use.writes and not scopes & _WRITING]
    if value.account and not unreadable and not unwritable:
        text = f"the scopes of virtual machine `{value.name}` are sufficient for its buckets"
        yield Found(level=Level.OK, subject=_subject(value.name), text=text, facts=about)
        return
    what = "read" if not unwritable else "write to" if not unreadable else "read or write to"
    urls = ", ".join(dict.fromkeys(unreadable + unwritable))
    yield Found(
        level=Level.WARNING,
        subject=_subject(value.name),
        text=f"the scopes of virtual machine `{value.name}` do not allow it to {what} buckets"
        if value.account
        else f"virtual machine `{value.name}` has no service account",
        why=f"its programs cannot {what} {urls} with its account, whichever roles the account has"
        if value.account
        else "its programs need their own credentials",
        remedies=tuple(_widen(value, facts)),
        facts=about,
    )


def _placed(value: Machine, wanted: Wanted) -> Found:
    subject, about = _subject(value.name), {"instance": value.name, "zone": value.zone}
    if value.zone == wanted.zone:
        text = f"virtual machine `{value.name}` is in {value.zone} too"
        return Found(level=Level.OK, subject=subject, text=text, facts=about)
    is_near = region_of(value.zone) == wanted.region
    return Found(
        level=Level.WARNING if is_near else Level.ERROR,
        subject=subject,
        text=f"virtual machine `{value.name}` is in {value.zone}, the node in {wanted.zone}"
        + (", another zone of that region" if is_near else ", another region"),
        why="traffic between zones is billed, and slower than within a zone"
        if is_near
        else "traffic between regions is billed, and slow",
        remedies=(
            Remedy(
                f"use a virtual machine in {wanted.zone}, or create the node in {value.zone} if it is offered there"
            ),
        ),
        facts=about,
    )


def _widen(value: Machine, facts: Facts) -> Iterator[Remedy]:
    """Yield how to give the machine sufficient scopes; it must be stopped for that [documentation]."""
    project, found = _project(facts.wanted), known(facts.project)
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
            commands.stop_machine(project, value.zone, value.name),
        )
    text = "set the scope `cloud-platform`, so that only IAM decides, and start it again"
    yield Remedy(text, commands.set_scopes(project, value.zone, value.name, account=account))


def _subject(name: str) -> str:
    return f"vm {name}"


def _project(wanted: Wanted) -> str:
    """Return the project of the machine: that of its link, else the node's."""
    found = _PROJECT.fullmatch(wanted.machine or "")
    return found[1] if found else wanted.project


RULES: tuple[Rule[Facts], ...] = (machine_place, machine_scopes, disk_place, attachable)

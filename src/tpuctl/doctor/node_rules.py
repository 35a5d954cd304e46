"""Rules about a node as the API reports it: its state, health, tier, operations, and what it was created with."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.findings import Level, Remedy, RuleResult, check_rule
from tpuctl.check.runtime_images import ImageFit, judge_image
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.node import Health, NodeState, QueuedState, Tier
from tpuctl.names import last_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.doctor.doctor_facts import NodeFacts

_SHOWN = 3
_STARTING_STATES = frozenset(
    {NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING}
)
_STOPPING_STATES = frozenset({NodeState.STOPPING, NodeState.DELETING, NodeState.HIDING, NodeState.UNHIDING})
_MAINTENANCE_NOTICE = timedelta(hours=24)
# A preemptible node is taken after 24 hours at the latest [documentation].
_PREEMPTIBLE_LIFETIME = timedelta(hours=24)
_HEALTH_REASONS = {
    Health.TIMEOUT: "the node does not answer the service",
    Health.UNHEALTHY_TENSORFLOW: "the machine learning software on the node does not run correctly",
    Health.UNHEALTHY_MAINTENANCE: "the service maintains the hardware, and moves the node by itself",
}


@check_rule("TPU950", "state of the node")
def check_node_state(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check the state of the node.

    An error if the node is dead, hidden or UNKNOWN; a warning if it is stopped, starting or stopping.
    """
    node, name = facts.node, facts.node.name.node_id
    level, text = Level.OK, "it is READY"
    remedies: tuple[Remedy, ...] = ()
    if node.is_preempted:
        level, text = Level.ERROR, f"it is {node.state}: the service took it back, with its boot disk"
        remedies = (_tpuctl_remedy("recreate it", "up", name), _tpuctl_remedy("free its name and quota", "down", name))
    elif node.state is NodeState.TERMINATED:
        level, text = Level.ERROR, "it is TERMINATED: only its record is left"
        remedies = (_tpuctl_remedy("recreate it", "up", name), _tpuctl_remedy("free its name and quota", "down", name))
    elif node.state in {NodeState.HIDDEN, NodeState.UNKNOWN}:
        level, text = Level.ERROR, f"it is {node.state}, and does not recover by itself"
        remedies = (_tpuctl_remedy("delete it, then create it again with `tpuctl up`", "down", name),)
    elif node.state is NodeState.STOPPED:
        level, text, remedies = Level.WARNING, "it is STOPPED", (_tpuctl_remedy("start it", "up", name),)
    elif node.state in _STARTING_STATES:
        level, text = Level.WARNING, f"it is {node.state}, and not READY yet"
        remedies = (_tpuctl_remedy("wait until it is usable", "wait", name),)
    elif node.state in _STOPPING_STATES:
        level, text, remedies = (
            Level.WARNING,
            f"it is {node.state}",
            (_tpuctl_remedy("see its progress", "status", name),),
        )
    elif node.state is not NodeState.READY:
        level, text = Level.UNKNOWN, f"it is {node.state}, a state that this version of tpuctl does not know"
    details = {"state": str(node.state), "createTime": node.raw.get("createTime")}
    yield RuleResult(level=level, subject=name, text=text, remedies=remedies, facts=details)


@check_rule("TPU951", "health of the node")
def check_node_health(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check the health that the service reports for a READY node: an error unless HEALTHY; a warning during maintenance.

    An unset health is a note: it is normal for a while after a start [API field text; observed].
    """
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    description = f" ({node.health_description})" if node.health_description else ""
    found = {"health": str(node.health), "healthDescription": node.health_description}
    match node.health:
        case Health.HEALTHY:
            yield RuleResult(level=Level.OK, subject=name, text="it is HEALTHY", facts=found)
        case Health.HEALTH_UNSPECIFIED:
            text = "the service reports no health, which is normal for a while after a start"
            yield RuleResult(level=Level.NOTE, subject=name, text=text, facts=found)
        case Health.UNHEALTHY_MAINTENANCE:
            remedies = (_tpuctl_remedy("wait until it is healthy", "wait", f"{name} --for healthy"),)
            why = _HEALTH_REASONS[node.health]
            yield RuleResult(
                level=Level.WARNING,
                subject=name,
                text=f"it is {node.health}{description}",
                why=why,
                remedies=remedies,
                facts=found,
            )
        case _:
            why = _HEALTH_REASONS.get(node.health, "this version of tpuctl does not know that health")
            remedies = (_tpuctl_remedy("reboot or restart it", "reset", name),)
            yield RuleResult(
                level=Level.ERROR,
                subject=name,
                text=f"it is {node.health}{description}",
                why=why,
                remedies=remedies,
                facts=found,
            )


@check_rule("TPU952", "symptoms reported by the service")
def check_symptoms(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show the symptoms that the service reports for its workers [API v2, Symptom]: a warning."""
    node, reported = facts.node, facts.node.symptoms
    if not reported:
        yield RuleResult(level=Level.OK, subject=node.name.node_id, text="the service reports no symptoms")
        return
    parts = []
    for one in reported[-_SHOWN:][::-1]:
        where = f" on worker {one.worker}" if one.worker else ""
        when = f", {format_duration(facts.now - one.at)} ago" if one.at else ""
        parts.append(f"{one.kind}{where}{f' ({one.details})' if one.details else ''}{when}")
    more = f", and {len(reported) - _SHOWN} older" if len(reported) > _SHOWN else ""
    yield RuleResult(
        level=Level.WARNING,
        subject=node.name.node_id,
        text=f"the service reports {', '.join(parts)}{more}",
        why="the cause of failures there may be the hardware, not your program",
        remedies=(_tpuctl_remedy("if it continues, reset the node", "reset", node.name.node_id),),
        facts={"symptoms": [{"symptomType": one.kind, "workerId": one.worker} for one in reported]},
    )


@check_rule("TPU953", "announced maintenance")
def check_maintenance(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show announced maintenance: a warning from 24 hours before its window, else a note."""
    node, maintenance = facts.node, facts.node.upcoming_maintenance
    if maintenance is None:
        yield RuleResult(level=Level.OK, subject=node.name.node_id, text="no maintenance is announced")
        return
    is_near = maintenance.start is None or maintenance.start - facts.now < _MAINTENANCE_NOTICE
    when = "at an unknown time"
    if maintenance.start:
        left = maintenance.start - facts.now
        begins = f"in {format_duration(left)}" if left > timedelta() else "now, or has begun"
        when = f"{begins} ({format_timestamp(maintenance.start)})"
    yield RuleResult(
        level=Level.WARNING if is_near else Level.NOTE,
        subject=node.name.node_id,
        text=f"maintenance ({maintenance.kind}, {maintenance.status}) comes {when}",
        why="programs on its workers are terminated then",
        remedies=(Remedy("write a checkpoint before that, and let `tpuctl watch` bring the node up again"),),
        facts={
            "windowStartTime": format_timestamp(maintenance.start) if maintenance.start else None,
            "type": maintenance.kind,
        },
    )


@check_rule("TPU954", "how long the node may stay")
def check_tier(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show the tier: a note if the service may take the node back at any moment.

    It may do so with spot and preemptible nodes, and does with preemptible ones after 24 hours at the latest [documentation].
    """
    node, age = facts.node, facts.now - facts.node.created if facts.node.created else None
    old = f", and it was created {format_duration(age)} ago" if age is not None else ""
    found = {"tier": str(node.tier), "ageSeconds": round(age.total_seconds()) if age is not None else None}
    if node.tier.can_start_again:
        yield RuleResult(level=Level.OK, subject=node.name.node_id, text=f"its tier is {node.tier}{old}", facts=found)
        return
    left = ""
    if node.tier is Tier.PREEMPTIBLE and age is not None and age < _PREEMPTIBLE_LIFETIME:
        left = f", and in {format_duration(_PREEMPTIBLE_LIFETIME - age)} at the latest"
    yield RuleResult(
        level=Level.NOTE,
        subject=node.name.node_id,
        text=f"its tier is {node.tier}{old}: the service may take it at any moment{left}",
        why="it cannot be started again after that, only recreated, without the contents of its boot disk",
        remedies=(_tpuctl_remedy("recreate it automatically when that happens", "watch", node.name.node_id),),
        facts=found,
    )


@check_rule("TPU955", "queued resource of the node")
def check_queued_resource(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check the state of the queued resource that owns the node.

    An error if it is suspended or failed, since the node ends with it; a warning for every other state but ACTIVE.
    """
    match facts.request:
        case None:
            return
        case Known(request):
            name, id_ = facts.node.name.node_id, request.queued_resource_id
            found = {
                "queuedResource": request.name,
                "state": str(request.state),
                "stateInitiator": request.initiator,
            }
            if request.state is QueuedState.ACTIVE:
                yield RuleResult(
                    level=Level.OK, subject=name, text=f"its queued resource `{id_}` is ACTIVE", facts=found
                )
                return
            by = " by the service" if request.initiator == "SERVICE" else ""
            is_ending = request.state.is_dead or request.state in {QueuedState.SUSPENDING, QueuedState.DELETING}
            remedies = (
                _tpuctl_remedy("delete it with its queued resource", "down", name),
                _tpuctl_remedy("request it again", "up", name),
            )
            yield RuleResult(
                level=Level.ERROR if is_ending else Level.WARNING,
                subject=name,
                text=f"its queued resource `{id_}` is {request.state}{by}",
                why="a node ends with the queued resource that owns it",
                remedies=remedies if is_ending else (),
                facts=found,
            )
        case Absent():
            text = (
                f"the queued resource `{last_segment(facts.node.queued_resource or '')}` that it names does not exist"
            )
            yield RuleResult(level=Level.WARNING, subject=facts.node.name.node_id, text=text)
        case Unknown() as fact:
            text = f"its queued resource could not be read: {fact.reason}"
            name = facts.node.name.node_id
            yield RuleResult(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


@check_rule("TPU956", "last change that failed")
def check_last_failure(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show the last change of the node that failed without a later success: a note.

    The source is tpuctl's journal, which does not record changes by other programs.
    """
    match facts.failure:
        case Known(last):
            when = f", {format_duration(facts.now - last.at)} ago" if last.at else ""
            yield RuleResult(
                level=Level.NOTE,
                subject=facts.node.name.node_id,
                text=f"the last change failed{when}: {last.text}",
                remedies=(_tpuctl_remedy("see its history", "history", facts.node.name.node_id),),
                facts={"error": last.error},
            )
        case Absent():
            yield RuleResult(level=Level.OK, subject=facts.node.name.node_id, text="no recent change by tpuctl failed")
        case Unknown(reason):
            text = f"the journal could not be read: {reason}"
            yield RuleResult(level=Level.UNKNOWN, subject=facts.node.name.node_id, text=text)


@check_rule("TPU962", "operations of the node")
def check_operations(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check the newest API operation on the node, of any client, as far back as the API lists them.

    A failed one is a warning on a node that is not READY, else a note; one in progress is a note.
    """
    name = facts.node.name.node_id
    match facts.operations:
        case Known(()) | Absent():
            yield RuleResult(level=Level.OK, subject=name, text="the API lists no operation on it")
        case Known((newest, *_)):
            level, remedies = Level.OK, tuple[Remedy, ...]()
            when = f", {format_duration(facts.now - newest.began)} ago" if newest.began else ""
            if newest.error is not None:
                level = Level.NOTE if facts.node.state is NodeState.READY else Level.WARNING
                text = f"the newest operation on it, {newest.verb}{when}, failed: {newest.error}"
                if newest.error_id:
                    remedies = (Remedy("see what that means", f"tpuctl explain {newest.error_id}"),)
            elif not newest.is_done:
                level, begun = Level.NOTE, when.removeprefix(",") or " at an unknown time"
                text = f"an operation on it is in progress: {newest.verb}, begun{begun}"
                remedies = (_tpuctl_remedy("see its progress", "status", name),)
            else:
                text = f"the newest operation on it, {newest.verb}{when}, succeeded"
            details = {"verb": newest.verb, "done": newest.is_done, "error": newest.error, "errorId": newest.error_id}
            yield RuleResult(level=level, subject=name, text=text, remedies=remedies, facts=details)
        case Unknown() as fact:
            text = f"its operations could not be listed: {fact.reason}"
            yield RuleResult(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


def _tpuctl_remedy(text: str, verb: str, rest: str) -> Remedy:
    return Remedy(text, f"tpuctl {verb} {rest}")


NODE_CONDITION_RULES = (
    check_node_state,
    check_node_health,
    check_symptoms,
    check_maintenance,
    check_tier,
    check_queued_resource,
    check_last_failure,
    check_operations,
)


_LEVELS = {
    ImageFit.FITS: Level.OK,
    ImageFit.DOUBTFUL: Level.WARNING,
    ImageFit.MISFIT: Level.ERROR,
    ImageFit.UNKNOWN: Level.NOTE,
}
# The first leaves everything to IAM; the others allow at least Cloud Storage.
_ALL_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_STORAGE = ("devstorage.read_write", "devstorage.full_control")


@check_rule("TPU957", "runtime version of the node")
def check_image(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check by its name that the image fits the accelerator, with the table of TPU303.

    With another image the node becomes READY, but programs do not find its chips [observed]. API v2 cannot change the image.
    """
    node, name = facts.node, last_segment(facts.node.runtime_version)
    if node.accelerator is None or not name:
        return
    verdict = judge_image(name, node.accelerator)
    better = verdict.better or node.accelerator.runtime_version
    fits = verdict.match is ImageFit.FITS
    recreate = f"tpuctl up {node.name.node_id} --version={better} --replace"
    yield RuleResult(
        level=_LEVELS[verdict.match],
        subject=node.name.node_id,
        text=f"`{name}` fits {node.accelerator.name}"
        if fits
        else f"`{name}` on {node.accelerator.name}: {verdict.reason}",
        why=None
        if fits
        else "with an image that does not fit, a node becomes READY but programs do not find its chips",
        remedies=() if fits else (Remedy(f"recreate the node with `{better}`", recreate),),
        facts={"runtimeVersion": name, "match": str(verdict.match), "better": verdict.better},
    )


@check_rule("TPU958", "addresses of the workers")
def check_addresses(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check that a READY node has an address for each worker of its type; a note if none of them is external."""
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    endpoints = node.endpoints
    found = {
        "workers": node.workers,
        "endpoints": len(endpoints),
        "external": sum(one.external is not None for one in endpoints),
    }
    without_address = sum(one.address is None for one in endpoints)
    if len(endpoints) < node.workers or without_address:
        has = len(endpoints) - without_address
        text = f"it lists {has or 'no'} address{'es' if has != 1 else ''} for {node.workers} workers"
        wait = Remedy("wait until all of them are listed", f"tpuctl wait {name} --for healthy")
        why = "a worker without an address cannot be reached, and may not exist"
        yield RuleResult(level=Level.ERROR, subject=name, text=text, why=why, remedies=(wait,), facts=found)
    elif not found["external"]:
        text = "its workers have internal addresses only: connect with `--iap`, or from inside their network"
        yield RuleResult(level=Level.NOTE, subject=name, text=text, facts=found)
    else:
        yield RuleResult(level=Level.OK, subject=name, text="every worker has an address", facts=found)


@check_rule("TPU959", "service account of the node")
def check_service_account(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check that the scopes of the node's service account allow Cloud Storage; TPU201 checks what IAM grants."""
    given = facts.node.raw.get("serviceAccount") or {}
    scopes, name = tuple(given.get("scope") or ()), facts.node.name.node_id
    if not scopes:
        return
    found = {"email": given.get("email"), "scopes": list(scopes)}
    if _ALL_SCOPES in scopes or any(scope.endswith(_STORAGE) for scope in scopes):
        yield RuleResult(
            level=Level.OK, subject=name, text="its scopes allow programs to use Cloud Storage", facts=found
        )
        return
    reads = any("devstorage.read_only" in scope for scope in scopes)
    yield RuleResult(
        level=Level.WARNING,
        subject=name,
        text=f"its scopes {'allow programs only to read from' if reads else 'do not allow programs to use'} Cloud Storage",
        why="programs cannot write checkpoints and logs there, even with the right IAM roles",
        remedies=(
            Remedy(
                "recreate the node with the scope that leaves everything to IAM",
                f"tpuctl up {name} --scopes=cloud-platform --replace",
            ),
        ),
        facts=found,
    )


@check_rule("TPU960", "disks and shielding of the node")
def check_disks_and_secure_boot(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show the attached data disks, and whether secure boot is on; disks are not mounted automatically [API v2, dataDisks]."""
    raw = facts.node.raw
    disks = [
        (last_segment(str(one.get("sourceDisk") or "")), str(one.get("mode") or ""))
        for one in raw.get("dataDisks") or ()
    ]
    shielded = bool((raw.get("shieldedInstanceConfig") or {}).get("enableSecureBoot"))
    named = ", ".join(f"`{name}`" for name, _ in disks)
    text = f"data disks: {named}" if disks else "it has no data disk"
    yield RuleResult(
        level=Level.OK,
        subject=facts.node.name.node_id,
        text=text + ("; secure boot is on" if shielded else ""),
        facts={"dataDisks": [{"name": name, "mode": mode} for name, mode in disks], "enableSecureBoot": shielded},
    )


@check_rule("TPU961", "what the workers publish")
def check_guest_attributes(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check that the workers publish host keys and instance names as guest attributes [observed; gcloud 528 source].

    A note if they do not: ssh then trusts the first key that it sees, and Identity-Aware Proxy tunnels do not find them.
    """
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    match facts.published:
        case Known(workers):
            silent = sum(not any(key.startswith("hostkeys/") for key in one) for one in workers)
            silent += max(0, node.workers - len(workers))
            if not silent:
                yield RuleResult(level=Level.OK, subject=name, text="every worker publishes its host keys")
                return
            which = "none of its workers publishes" if silent >= node.workers else f"{silent} of its workers publish no"
            yield RuleResult(
                level=Level.NOTE,
                subject=name,
                text=f"{which} host keys",
                why="ssh trusts the first key that it sees, and `--iap` needs what they publish",
                remedies=(
                    Remedy("check that `compute.disableGuestAttributesAccess` is not enforced in the organization"),
                ),
                facts={"silent": silent},
            )
        case Absent():
            pass
        case Unknown() as fact:
            text = f"the guest attributes of its workers could not be read: {fact.reason}"
            yield RuleResult(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


@check_rule("TPU965", "whether the workers can be examined")
def check_workers_can_be_examined(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show why the workers were not examined, if so: the state of the node, or what is missing on this machine."""
    if facts.obstacle is not None:
        yield RuleResult(
            level=Level.UNKNOWN,
            subject=facts.node.name.node_id,
            text=f"its workers were not examined: {facts.obstacle}",
            remedies=(Remedy(facts.remedy),) if facts.remedy else (),
            is_passing=facts.node.state is not NodeState.READY,
        )


NODE_EQUIPMENT_RULES = (
    check_image,
    check_addresses,
    check_service_account,
    check_disks_and_secure_boot,
    check_guest_attributes,
    check_workers_can_be_examined,
)

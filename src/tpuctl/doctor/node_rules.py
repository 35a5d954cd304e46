"""Rules about a node as the API reports it: its state, health, tier, operations, and what it was created with."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.findings import Level, Remedy
from tpuctl.check.rules.zone_rules import ImageFit, judge_image
from tpuctl.doctor.verdicts import Verdict, error, node_rule, note, ok, on_node, unknown, unread, verdict, warning
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.node import Health, NodeState, QueuedState, Tier
from tpuctl.names import last_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.doctor.doctor_facts import NodeFacts

_SHOWN = 3
_MAINTENANCE_NOTICE = timedelta(hours=24)
# A preemptible node is taken after 24 hours at the latest [documentation].
_PREEMPTIBLE_LIFETIME = timedelta(hours=24)
_RECREATE, _FREE = on_node("recreate it", "up"), on_node("free its name and quota", "down")
_SEE_PROGRESS = on_node("see its progress", "status")
_DELETE = on_node("delete it, then create it again with `tpuctl up`", "down")
_WAIT = on_node("wait until it is usable", "wait")
# The verdict about each state, in which `{}` stands for it.
_STATES = {
    NodeState.READY: ok("it is {}"),
    NodeState.STOPPED: warning("it is {}", on_node("start it", "up")),
    NodeState.TERMINATED: error("it is {}: only its record is left", _RECREATE, _FREE),
    **dict.fromkeys((NodeState.HIDDEN, NodeState.UNKNOWN), error("it is {}, and does not recover by itself", _DELETE)),
    **dict.fromkeys(
        (NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING),
        warning("it is {}, and not READY yet", _WAIT),
    ),
    **dict.fromkeys(
        (NodeState.STOPPING, NodeState.DELETING, NodeState.HIDING, NodeState.UNHIDING),
        warning("it is {}", _SEE_PROGRESS),
    ),
}
_PREEMPTED = error("it is {}: the service took it back, with its boot disk", _RECREATE, _FREE)
_NEW_STATE = unknown("it is {}, a state that this version of tpuctl does not know")
_HEALTH_REASONS = {
    Health.TIMEOUT: "the node does not answer the service",
    Health.UNHEALTHY_TENSORFLOW: "the machine learning software on the node does not run correctly",
    Health.UNHEALTHY_MAINTENANCE: "the service maintains the hardware, and moves the node by itself",
}


@node_rule("TPU950", "state of the node")
def check_node_state(facts: NodeFacts) -> Iterator[Verdict]:
    """Check the state of the node.

    An error if the node is dead, hidden or UNKNOWN; a warning if it is stopped, starting or stopping.
    """
    node = facts.node
    found = _PREEMPTED if node.is_preempted else _STATES.get(node.state, _NEW_STATE)
    details = {"state": str(node.state), "createTime": node.raw.get("createTime")}
    yield verdict(found.level, found.text.format(node.state), *found.remedies, facts=details)


@node_rule("TPU951", "health of the node")
def check_node_health(facts: NodeFacts) -> Iterator[Verdict]:
    """Check the health that the service reports for a READY node: an error unless HEALTHY; a warning during maintenance.

    An unset health is a note: it is normal for a while after a start [API field text; observed].
    """
    node, health = facts.node, facts.node.health
    if node.state is not NodeState.READY:
        return
    found = {"health": str(health), "healthDescription": node.health_description}
    text = f"it is {health}" + (f" ({node.health_description})" if node.health_description else "")
    why = _HEALTH_REASONS.get(health, "this version of tpuctl does not know that health")
    match health:
        case Health.HEALTHY:
            yield ok("it is HEALTHY", facts=found)
        case Health.HEALTH_UNSPECIFIED:
            yield note("the service reports no health, which is normal for a while after a start", facts=found)
        case Health.UNHEALTHY_MAINTENANCE:
            yield warning(text, on_node("wait until it is healthy", "wait", "--for", "healthy"), why=why, facts=found)
        case _:
            yield error(text, on_node("reboot or restart it", "reset"), why=why, facts=found)


@node_rule("TPU952", "symptoms reported by the service")
def check_symptoms(facts: NodeFacts) -> Iterator[Verdict]:
    """Show the symptoms that the service reports for its workers [API v2, Symptom]: a warning."""
    reported = facts.node.symptoms
    if not reported:
        yield ok("the service reports no symptoms")
        return
    parts = []
    for one in reported[-_SHOWN:][::-1]:
        where = f" on worker {one.worker}" if one.worker else ""
        when = f", {format_duration(facts.now - one.at)} ago" if one.at else ""
        parts.append(f"{one.kind}{where}{f' ({one.details})' if one.details else ''}{when}")
    more = f", and {len(reported) - _SHOWN} older" if len(reported) > _SHOWN else ""
    yield warning(
        f"the service reports {', '.join(parts)}{more}",
        on_node("if it continues, reset the node", "reset"),
        why="the cause of failures there may be the hardware, not your program",
        facts={"symptoms": [{"symptomType": one.kind, "workerId": one.worker} for one in reported]},
    )


@node_rule("TPU953", "announced maintenance")
def check_maintenance(facts: NodeFacts) -> Iterator[Verdict]:
    """Show announced maintenance: a warning from 24 hours before its window, else a note."""
    maintenance = facts.node.upcoming_maintenance
    if maintenance is None:
        yield ok("no maintenance is announced")
        return
    start, when, is_near = None, "at an unknown time", True
    if maintenance.start:
        start, left = format_timestamp(maintenance.start), maintenance.start - facts.now
        when = (f"in {format_duration(left)}" if left > timedelta() else "now, or has begun") + f" ({start})"
        is_near = left < _MAINTENANCE_NOTICE
    yield verdict(
        Level.WARNING if is_near else Level.NOTE,
        f"maintenance ({maintenance.kind}, {maintenance.status}) comes {when}",
        Remedy("write a checkpoint before that, and let `tpuctl watch` bring the node up again"),
        why="programs on its workers are terminated then",
        facts={"windowStartTime": start, "type": maintenance.kind},
    )


@node_rule("TPU954", "how long the node may stay")
def check_tier(facts: NodeFacts) -> Iterator[Verdict]:
    """Show the tier: a note if the service may take the node back at any moment.

    It may do so with spot and preemptible nodes, and does with preemptible ones after 24 hours at the latest [documentation].
    """
    node, age = facts.node, facts.now - facts.node.created if facts.node.created else None
    text = f"its tier is {node.tier}" + (f", and it was created {format_duration(age)} ago" if age is not None else "")
    found = {"tier": str(node.tier), "ageSeconds": round(age.total_seconds()) if age is not None else None}
    if node.tier.can_start_again:
        yield ok(text, facts=found)
        return
    left = ""
    if node.tier is Tier.PREEMPTIBLE and age is not None and age < _PREEMPTIBLE_LIFETIME:
        left = f", and in {format_duration(_PREEMPTIBLE_LIFETIME - age)} at the latest"
    yield note(
        f"{text}: the service may take it at any moment{left}",
        on_node("recreate it automatically when that happens", "watch"),
        why="it cannot be started again after that, only recreated, without the contents of its boot disk",
        facts=found,
    )


@node_rule("TPU955", "queued resource of the node")
def check_queued_resource(facts: NodeFacts) -> Iterator[Verdict]:
    """Check the state of the queued resource that owns the node.

    An error if it is suspended or failed, since the node ends with it; a warning for every other state but ACTIVE.
    """
    match facts.request:
        case Known(request):
            text = f"its queued resource `{request.queued_resource_id}` is {request.state}"
            by = " by the service" if request.initiator == "SERVICE" else ""
            why = "a node ends with the queued resource that owns it"
            found = {
                "queuedResource": request.name,
                "state": str(request.state),
                "stateInitiator": request.initiator,
            }
            if request.state is QueuedState.ACTIVE:
                yield ok(text, facts=found)
            elif request.state.is_dead or request.state in {QueuedState.SUSPENDING, QueuedState.DELETING}:
                delete = on_node("delete it with its queued resource", "down")
                yield error(f"{text}{by}", delete, on_node("request it again", "up"), why=why, facts=found)
            else:
                yield warning(f"{text}{by}", why=why, facts=found)
        case Absent():
            name = last_segment(facts.node.queued_resource or "")
            yield warning(f"the queued resource `{name}` that it names does not exist")
        case Unknown() as fact:
            yield unread("its queued resource could not be read", fact)


@node_rule("TPU956", "last change that failed")
def check_last_failure(facts: NodeFacts) -> Iterator[Verdict]:
    """Show the last change of the node that failed without a later success: a note.

    The source is tpuctl's journal, which does not record changes by other programs.
    """
    match facts.failure:
        case Known(last):
            when = f", {format_duration(facts.now - last.at)} ago" if last.at else ""
            history = on_node("see its history", "history")
            yield note(f"the last change failed{when}: {last.text}", history, facts={"error": last.error})
        case Absent():
            yield ok("no recent change by tpuctl failed")
        case Unknown() as fact:
            yield unread("the journal could not be read", fact)


@node_rule("TPU962", "operations of the node")
def check_operations(facts: NodeFacts) -> Iterator[Verdict]:
    """Check the newest API operation on the node, of any client, as far back as the API lists them.

    A failed one is a warning on a node that is not READY, else a note; one in progress is a note.
    """
    match facts.operations:
        case Known(()) | Absent():
            yield ok("the API lists no operation on it")
        case Known((newest, *_)):
            when = f"{format_duration(facts.now - newest.began)} ago" if newest.began else ""
            text = f"the newest operation on it, {newest.verb}{when and f', {when}'},"
            found = {"verb": newest.verb, "done": newest.is_done, "error": newest.error, "errorId": newest.error_id}
            if newest.error is not None:
                level = Level.NOTE if facts.node.state is NodeState.READY else Level.WARNING
                explain = (
                    [Remedy("see what that means", f"tpuctl explain {newest.error_id}")] if newest.error_id else ()
                )
                yield verdict(level, f"{text} failed: {newest.error}", *explain, facts=found)
            elif newest.is_done:
                yield ok(f"{text} succeeded", facts=found)
            else:
                text = f"an operation on it is in progress: {newest.verb}, begun {when or 'at an unknown time'}"
                yield note(text, _SEE_PROGRESS, facts=found)
        case Unknown() as fact:
            yield unread("its operations could not be listed", fact)


_IMAGE_LEVELS = {
    ImageFit.FITS: Level.OK,
    ImageFit.DOUBTFUL: Level.WARNING,
    ImageFit.MISFIT: Level.ERROR,
    ImageFit.UNKNOWN: Level.NOTE,
}
# The first leaves everything to IAM; the others allow at least Cloud Storage.
_ALL_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_STORAGE = ("devstorage.read_write", "devstorage.full_control")


@node_rule("TPU957", "runtime version of the node")
def check_image(facts: NodeFacts) -> Iterator[Verdict]:
    """Check by its name that the image fits the accelerator, with the table of TPU303.

    With another image the node becomes READY, but programs do not find its chips [observed]. API v2 cannot change the image.
    """
    accelerator, name = facts.node.accelerator, last_segment(facts.node.runtime_version)
    if accelerator is None or not name:
        return
    judged = judge_image(name, accelerator)
    found = {"runtimeVersion": name, "match": str(judged.match), "better": judged.better}
    if judged.match is ImageFit.FITS:
        yield ok(f"`{name}` fits {accelerator.name}", facts=found)
        return
    better = judged.better or accelerator.runtime_version
    yield verdict(
        _IMAGE_LEVELS[judged.match],
        f"`{name}` on {accelerator.name}: {judged.reason}",
        on_node(f"recreate the node with `{better}`", "up", f"--version={better}", "--replace"),
        why="with an image that does not fit, a node becomes READY but programs do not find its chips",
        facts=found,
    )


@node_rule("TPU958", "addresses of the workers")
def check_addresses(facts: NodeFacts) -> Iterator[Verdict]:
    """Check that a READY node has an address for each worker of its type; a note if none of them is external."""
    node, endpoints = facts.node, facts.node.endpoints
    if node.state is not NodeState.READY:
        return
    external = sum(one.external is not None for one in endpoints)
    found = {"workers": node.workers, "endpoints": len(endpoints), "external": external}
    with_address = sum(one.address is not None for one in endpoints)
    if len(endpoints) < node.workers or with_address < len(endpoints):
        yield error(
            f"it lists {with_address or 'no'} address{'es' if with_address != 1 else ''} for {node.workers} workers",
            on_node("wait until all of them are listed", "wait", "--for", "healthy"),
            why="a worker without an address cannot be reached, and may not exist",
            facts=found,
        )
    elif not external:
        text = "its workers have internal addresses only: connect with `--iap`, or from inside their network"
        yield note(text, facts=found)
    else:
        yield ok("every worker has an address", facts=found)


@node_rule("TPU959", "service account of the node")
def check_service_account(facts: NodeFacts) -> Iterator[Verdict]:
    """Check that the scopes of the node's service account allow Cloud Storage; TPU201 checks what IAM grants."""
    given = facts.node.raw.get("serviceAccount") or {}
    scopes = tuple(given.get("scope") or ())
    if not scopes:
        return
    found = {"email": given.get("email"), "scopes": list(scopes)}
    if _ALL_SCOPES in scopes or any(scope.endswith(_STORAGE) for scope in scopes):
        yield ok("its scopes allow programs to use Cloud Storage", facts=found)
        return
    reads = any("devstorage.read_only" in scope for scope in scopes)
    recreate = "recreate the node with the scope that leaves everything to IAM"
    yield warning(
        f"its scopes {'allow programs only to read from' if reads else 'do not allow programs to use'} Cloud Storage",
        on_node(recreate, "up", "--scopes=cloud-platform", "--replace"),
        why="programs cannot write checkpoints and logs there, even with the right IAM roles",
        facts=found,
    )


@node_rule("TPU960", "disks and shielding of the node")
def check_disks_and_secure_boot(facts: NodeFacts) -> Iterator[Verdict]:
    """Show the attached data disks, and whether secure boot is on; disks are not mounted automatically [API v2, dataDisks]."""
    raw = facts.node.raw
    disks = [
        {"name": last_segment(str(one.get("sourceDisk") or "")), "mode": str(one.get("mode") or "")}
        for one in raw.get("dataDisks") or ()
    ]
    shielded = bool((raw.get("shieldedInstanceConfig") or {}).get("enableSecureBoot"))
    named = ", ".join(f"`{one['name']}`" for one in disks)
    text = (f"data disks: {named}" if disks else "it has no data disk") + ("; secure boot is on" if shielded else "")
    yield ok(text, facts={"dataDisks": disks, "enableSecureBoot": shielded})


@node_rule("TPU961", "what the workers publish")
def check_guest_attributes(facts: NodeFacts) -> Iterator[Verdict]:
    """Check that the workers publish host keys and instance names as guest attributes [observed; gcloud 528 source].

    A note if they do not: ssh then trusts the first key that it sees, and Identity-Aware Proxy tunnels do not find them.
    """
    node = facts.node
    if node.state is not NodeState.READY:
        return
    match facts.published:
        case Known(workers):
            with_keys = sum(any(key.startswith("hostkeys/") for key in one) for one in workers)
            silent = max(node.workers, len(workers)) - with_keys
            if not silent:
                yield ok("every worker publishes its host keys")
                return
            which = "none of its workers publishes" if silent >= node.workers else f"{silent} of its workers publish no"
            yield note(
                f"{which} host keys",
                Remedy("check that `compute.disableGuestAttributesAccess` is not enforced in the organization"),
                why="ssh trusts the first key that it sees, and `--iap` needs what they publish",
                facts={"silent": silent},
            )
        case Unknown() as fact:
            yield unread("the guest attributes of its workers could not be read", fact)


@node_rule("TPU965", "whether the workers can be examined")
def check_workers_can_be_examined(facts: NodeFacts) -> Iterator[Verdict]:
    """Show why the workers were not examined, if so: the state of the node, or what is missing on this machine."""
    if facts.obstacle is not None:
        yield unknown(
            f"its workers were not examined: {facts.obstacle}",
            *((Remedy(facts.remedy),) if facts.remedy else ()),
            is_passing=facts.node.state is not NodeState.READY,
        )

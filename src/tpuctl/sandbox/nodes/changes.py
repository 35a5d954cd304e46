"""Changes of nodes: start, stop, delete, patch, reimage, if the node's state allows it."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox import capacity, catalog, consequences, faults, lifecycle, operations
from tpuctl.sandbox.capacity import Tier
from tpuctl.sandbox.failures import failure
from tpuctl.sandbox.faults import FaultKind, Target
from tpuctl.sandbox.lifecycle import GONE, Verb
from tpuctl.sandbox.nodes.legacy import API_VERSIONS
from tpuctl.sandbox.nodes.reading import find
from tpuctl.sandbox.refusals import bad_request, failed_precondition, invalid

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import NodeRecord, Session


def stop(session: Session, call: Call) -> Json:
    """Answer nodes.stop. Rejected for slices (API field text) and for nodes of queued resources (observed)."""
    node = begin(session, call)
    if node.queued_resource:
        raise failed_precondition("StopNode is not supported for queued resources")
    if node.workers > 1:
        raise bad_request("This operation is only available with single TPU nodes.")
    allow(session, Verb.STOP, node)
    pace = consequences.pace(session, node)
    if error := _failing(session, call, node):
        node = keep(session, node, lifecycle.fail(node.timeline, session.now, pace, during="STOPPING", then="READY"))
        return _failed(session, node, call, error)
    node = keep(session, node, lifecycle.stop(node.timeline, session.now, pace))
    return operations.begin(session, node, "stop", call, goal="STOPPED")


def start(session: Session, call: Call) -> Json:
    """Answer nodes.start. Rejected for spot and preemptible nodes (gcloud's help); may fail for lack of capacity (observed)."""
    node = begin(session, call)
    scheduling = node.document["schedulingConfig"]
    if scheduling.get("preemptible"):
        raise bad_request("Preemptible TPUs cannot be restarted.")
    if scheduling.get("spot"):
        raise bad_request("Spot VM TPUs cannot be restarted, and must be recreated again.")
    allow(session, Verb.START, node)
    pace = consequences.pace(session, node)
    error = _failing(session, call, node) or capacity.shortage(
        session, capacity.node_demand(node.project, node.zone, node.document)
    )
    if error:
        node = keep(session, node, lifecycle.fail(node.timeline, session.now, pace, during="STARTING", then="STOPPED"))
        return _failed(session, node, call, error)
    node = keep(session, node, lifecycle.start(node.timeline, session.now, pace))
    return operations.begin(session, node, "start", call, goal="READY")


def delete(session: Session, call: Call) -> Json:
    """Answer nodes.delete, in any state. A repeat while DELETING starts another operation with the same end (unverified)."""
    if repeated := operations.repeated(session, call):
        return repeated
    node = begin(session, call)
    allow(session, Verb.DELETE, node)
    pace = consequences.pace(session, node)
    if error := _failing(session, call, node):
        state = getattr(node.phase(session.now), "state", "READY")
        node = keep(session, node, lifecycle.fail(node.timeline, session.now, pace, during="DELETING", then=state))
        return _failed(session, node, call, error)
    timeline = lifecycle.delete(node.timeline, session.now, pace)
    node = keep(session, node, timeline, initiator="USER")
    return operations.begin(session, node, "delete", call, goal=GONE)


def reimage(session: Session, call: Call) -> Json:
    """Answer nodes.reimage (v1, v1alpha1): REIMAGING, then READY with the requested version, by default the current one.

    Rejected for TPU VMs, whose API has no such method; that, and the states in which it is allowed, are unverified.
    """
    node = begin(session, call)
    if node.document.get("apiVersion") not in API_VERSIONS.values():
        raise bad_request("reimage is not supported for TPU VMs.")  # unverified words
    version = str(call.body.get("tensorflowVersion") or node.document["runtimeVersion"])
    catalog.check_tensorflow_version(version)
    allow(session, Verb.REIMAGE, node)
    timeline = lifecycle.reimage(node.timeline, session.now, consequences.pace(session, node))
    node = replace(node, document={**node.document, "runtimeVersion": version})
    node = keep(session, node, timeline)
    return operations.begin(session, node, "reimage", call, goal="READY")


_SNAKE = re.compile(r"_([a-z])")
_PATCHABLE = ("description", "tags", "labels", "metadata", "networkConfig.enableExternalIps", "dataDisks")


def patch(session: Session, call: Call) -> Json:
    """Answer nodes.patch: set the fields of the mask to the values of the body, at once.

    The allowed fields are those of the API's field text, and `dataDisks`, which gcloud sends.
    """
    node = begin(session, call)
    paths = [
        _SNAKE.sub(lambda m: m[1].upper(), path.strip()) for path in str(call.params.get("updateMask") or "").split(",")
    ]
    unknown = [path for path in paths if path not in _PATCHABLE]
    if unknown:
        raise invalid(f"Invalid update mask: the field {unknown[0]!r} cannot be updated.")  # unverified
    allow(session, Verb.UPDATE, node)
    state = getattr(node.phase(session.now), "state", "")
    if state == "CREATING" and "labels" in paths and not session.setting("allow_labels_while_creating", default=False):
        raise _refusal(Verb.UPDATE, state)  # observed: labels cannot be set on pending nodes
    document = copy.deepcopy(node.document)
    for path in paths:
        if path == "networkConfig.enableExternalIps":
            wanted = bool((call.body.get("networkConfig") or {}).get("enableExternalIps", False))
            for config in document.get("networkConfigs") or [document["networkConfig"]]:
                config["enableExternalIps"] = wanted
        elif value := copy.deepcopy(call.body.get(path)):
            document[path] = value
        else:
            document.pop(path, None)  # in the mask but not in the body: cleared
    for disk in document.get("dataDisks", []):
        disk.setdefault("mode", "READ_WRITE")
    if document.get("metadata", {}).get("ssh-keys") != node.document.get("metadata", {}).get("ssh-keys"):
        before = str(node.document.get("metadata", {}).get("ssh-keys", ""))
        node = replace(node, keys_before=before, keys_changed=session.now)
    node = replace(node, document=document)
    session.put_node(node)
    return operations.begin(session, node, "update", call, goal="", ended=session.now)


def begin(session: Session, call: Call) -> NodeRecord:
    """Record a call that changes a node, and return the node."""
    session.log_request(call.method, str(call.params["name"]))
    return find(session, str(call.params["name"]))


def allow(session: Session, verb: Verb, node: NodeRecord) -> None:
    """Raise `ApiError` 400 unless the node's state allows a verb."""
    phase = node.phase(session.now)
    if phase and not lifecycle.is_allowed(verb, phase.state, session.settings()):
        raise _refusal(verb, phase.state)


def _refusal(verb: Verb, state: str) -> Exception:
    return bad_request(f"{verb} is not supported while in state {state}")


def _failing(session: Session, call: Call, node: NodeRecord) -> Json | None:
    target = Target(call.method, node.project, node.zone, node.node_id)
    fault = faults.take(session, FaultKind.OPERATION_ERROR, target)
    return failure(fault, target, Tier.of(node.document["schedulingConfig"])) if fault else None


def _failed(session: Session, node: NodeRecord, call: Call, error: Json) -> Json:
    verb = call.method.rpartition(".")[2]
    return operations.begin(session, node, verb, call, goal="", ended=node.timeline[-1].at, error=error)


def keep(session: Session, node: NodeRecord, timeline: lifecycle.Timeline, *, initiator: str = "USER") -> NodeRecord:
    """Store a node with a new timeline and matching faults applied, and return it."""
    timeline = faults.plan(session, node, timeline, consequences.pace(session, node))
    return consequences.keep(session, node, timeline, initiator=initiator)

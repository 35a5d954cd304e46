"""Nodes changed: start, stop, delete, patch, each as far as the node's state allows."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox import consequences, faults, lifecycle, operations
from tpuctl.sandbox.faults import FaultKind, Target
from tpuctl.sandbox.lifecycle import GONE, Verb
from tpuctl.sandbox.nodes.creation import failure
from tpuctl.sandbox.nodes.reading import find
from tpuctl.sandbox.refusals import bad_request, failed_precondition, invalid

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.faults import Fault
    from tpuctl.sandbox.world import NodeRecord, Session


def stop(session: Session, call: Call) -> Json:
    """Answer nodes.stop; refused for slices (API field text) and for nodes of queued resources (observed)."""
    node = _begin(session, call)
    if node.queued_resource:
        raise failed_precondition("StopNode is not supported for queued resources")
    if node.workers > 1:
        raise bad_request("This operation is only available with single TPU nodes.")
    _allow(session, Verb.STOP, node)
    pace = consequences.pace(session, node)
    if fault := _failing(session, call, node):
        node = _keep(session, node, lifecycle.fail(node.timeline, session.now, pace, during="STOPPING", then="READY"))
        return _failed(session, node, call, fault)
    node = _keep(session, node, lifecycle.stop(node.timeline, session.now, pace))
    return operations.begin(session, node, "stop", call, goal="STOPPED")


def start(session: Session, call: Call) -> Json:
    """Answer nodes.start; refused for spot and preemptible nodes (gcloud's help), may lack capacity (observed)."""
    node = _begin(session, call)
    scheduling = node.document["schedulingConfig"]
    if scheduling.get("preemptible"):
        raise bad_request("Preemptible TPUs cannot be restarted.")
    if scheduling.get("spot"):
        raise bad_request("Spot VM TPUs cannot be restarted, and must be recreated again.")
    _allow(session, Verb.START, node)
    pace = consequences.pace(session, node)
    if fault := _failing(session, call, node):
        node = _keep(session, node, lifecycle.fail(node.timeline, session.now, pace, during="STARTING", then="STOPPED"))
        return _failed(session, node, call, fault)
    node = _keep(session, node, lifecycle.start(node.timeline, session.now, pace))
    return operations.begin(session, node, "start", call, goal="READY")


def delete(session: Session, call: Call) -> Json:
    """Answer nodes.delete, from any state; a repeat while DELETING begins another operation with the same end (unverified)."""
    if repeated := operations.repeated(session, call):
        return repeated
    node = _begin(session, call)
    _allow(session, Verb.DELETE, node)
    pace = consequences.pace(session, node)
    if fault := _failing(session, call, node):
        state = getattr(node.phase(session.now), "state", "READY")
        node = _keep(session, node, lifecycle.fail(node.timeline, session.now, pace, during="DELETING", then=state))
        return _failed(session, node, call, fault)
    timeline = lifecycle.delete(node.timeline, session.now, pace)
    node = _keep(session, node, timeline, initiator="USER")
    return operations.begin(session, node, "delete", call, goal=GONE)


_SNAKE = re.compile(r"_([a-z])")
_PATCHABLE = ("description", "tags", "labels", "metadata", "networkConfig.enableExternalIps", "dataDisks")


def patch(session: Session, call: Call) -> Json:
    """Answer nodes.patch: sets what the mask names to what the body says, done at once.

    What the mask may name is the API's field text, and `dataDisks`, which gcloud sends.
    """
    node = _begin(session, call)
    paths = [
        _SNAKE.sub(lambda m: m[1].upper(), path.strip()) for path in str(call.params.get("updateMask") or "").split(",")
    ]
    unknown = [path for path in paths if path not in _PATCHABLE]
    if unknown:
        raise invalid(f"Invalid update mask: the field {unknown[0]!r} cannot be updated.")  # unverified
    _allow(session, Verb.UPDATE, node)
    state = getattr(node.phase(session.now), "state", "")
    if state == "CREATING" and "labels" in paths and not session.setting("allow_labels_while_creating", default=False):
        raise _refusal(Verb.UPDATE, state)  # observed: labels cannot be set on pending nodes
    document = copy.deepcopy(node.document)
    for path in paths:
        _set(document, path, call.body)
    if document.get("metadata", {}).get("ssh-keys") != node.document.get("metadata", {}).get("ssh-keys"):
        before = str(node.document.get("metadata", {}).get("ssh-keys", ""))
        node = replace(node, keys_before=before, keys_changed=session.now)
    node = replace(node, document=document)
    session.put_node(node)
    return operations.begin(session, node, "update", call, goal="", ended=session.now)


def _set(document: Json, path: str, body: Json) -> None:
    if path == "networkConfig.enableExternalIps":
        wanted = bool((body.get("networkConfig") or {}).get("enableExternalIps", False))
        for config in document.get("networkConfigs") or [document["networkConfig"]]:
            config["enableExternalIps"] = wanted
        return
    value = copy.deepcopy(body.get(path))
    if value:
        document[path] = value
    else:
        document.pop(path, None)  # named by the mask and not in the body: cleared
    for disk in document.get("dataDisks", []):
        disk.setdefault("mode", "READ_WRITE")


def _begin(session: Session, call: Call) -> NodeRecord:
    session.log_request(call.method, str(call.params["name"]))
    return find(session, str(call.params["name"]))


def _allow(session: Session, verb: Verb, node: NodeRecord) -> None:
    phase = node.phase(session.now)
    if phase and not lifecycle.is_allowed(verb, phase.state, session.settings()):
        raise _refusal(verb, phase.state)


def _refusal(verb: Verb, state: str) -> Exception:
    return bad_request(f"{verb} is not supported while in state {state}")


def _failing(session: Session, call: Call, node: NodeRecord) -> Fault | None:
    return faults.take(session, FaultKind.OPERATION_ERROR, Target(call.method, node.project, node.zone, node.node_id))


def _failed(session: Session, node: NodeRecord, call: Call, fault: Fault) -> Json:
    verb = call.method.rpartition(".")[2]
    ended = node.timeline[-1].at
    return operations.begin(session, node, verb, call, goal="", ended=ended, error=failure(fault, node.zone))


def _keep(session: Session, node: NodeRecord, timeline: lifecycle.Timeline, *, initiator: str = "USER") -> NodeRecord:
    timeline = faults.plan(session, node, timeline, consequences.pace(session, node))
    return consequences.keep(session, node, timeline, initiator=initiator)

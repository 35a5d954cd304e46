"""Changes of virtual machines: start, stop, and a new service account. All complete at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog
from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.compute import machines, operations

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session


def start(session: Session, call: Call) -> Json:
    """Answer instances.start."""
    return _changed(session, call, {"status": "RUNNING"}, verb="start")


def stop(session: Session, call: Call) -> Json:
    """Answer instances.stop."""
    return _changed(session, call, {"status": "TERMINATED"}, verb="stop")


def set_service_account(session: Session, call: Call) -> Json:
    """Answer instances.setServiceAccount: only for a stopped machine (documentation)."""
    machine = machines.get_instance(session, call)
    if machine["status"] != "TERMINATED":
        # Observed: the words that users of gcloud quote.
        message = "The instance must be stopped before the service account can be changed."
        raise ApiError(400, "INVALID_ARGUMENT", message, reason="resourceNotReady")
    email = str(call.body.get("email") or "default")
    if email == "default":
        email = f"{catalog.project_number(str(call.params['project']))}-compute@developer.gserviceaccount.com"
    account = {"email": email, "scopes": call.body.get("scopes") or []}
    return _changed(session, call, {"serviceAccounts": [account]}, verb="setServiceAccount")


def _changed(session: Session, call: Call, change: Json, *, verb: str) -> Json:
    project, zone, name = (str(call.params[key]) for key in ("project", "zone", "instance"))
    machine = machines.get_instance(session, call)
    path = f"projects/{project}/zones/{zone}/instances/{name}"
    session.log_request(call.method, path)
    session.resources.put(machines.INSTANCE, project, f"{zone}/{name}", {**machine, **change})
    return operations.begin(session, call, verb, target=path)

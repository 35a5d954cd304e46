"""Cloud Billing: whether a project is billed, and to which account. There is one account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, projects
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "cloudbilling.info"
ACCOUNT = "billingAccounts/000000-000000-000000"


def set_billing(session: Session, project: str, *, enabled: bool, account: str = ACCOUNT) -> None:
    """Enable or disable billing."""
    session.resources.put(KIND, "", project, {"enabled": enabled, "account": account})


def is_enabled(session: Session, project: str) -> bool:
    """Return whether a project is billed; the default is true."""
    found = session.resources.get(KIND, "", project)
    return bool(found["enabled"]) if found else True


def disabled(project: str, service: str) -> ApiError:
    """Return the error of a service in a project without billing (observed: published error bodies of several services)."""
    number = catalog.project_number(project)
    url = f"https://console.developers.google.com/billing/enable?project={number}"
    message = (
        f"This API method requires billing to be enabled. Please enable billing on project #{number} by visiting {url} then "
        "retry. If you enabled billing for this project recently, wait a few minutes for the action to propagate to our "
        "systems and retry."
    )
    links = [{"description": "Google developers console billing", "url": url}]
    metadata = {"service": service, "consumer": f"projects/{number}"}
    info: Json = {"reason": "BILLING_DISABLED", "domain": "googleapis.com", "metadata": metadata}
    return ApiError(
        403,
        "PERMISSION_DENIED",
        message,
        {"@type": "type.googleapis.com/google.rpc.Help", "links": links},
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info},
    )


def get_billing_info(session: Session, call: Call) -> Json:
    """Answer projects.getBillingInfo."""
    project = projects.named(session, str(call.params["name"]).partition("/")[2])
    if not projects.is_known(session, project):
        raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")
    found = session.resources.get(KIND, "", project) or {"enabled": True, "account": ACCOUNT}
    return {
        "name": f"projects/{project}/billingInfo",
        "projectId": project,
        # API field text: empty if the project has none. Whether the name of a closed account stays is unverified.
        "billingAccountName": found["account"],
        "billingEnabled": bool(found["enabled"]),
    }


def update_billing_info(session: Session, call: Call) -> Json:
    """Answer projects.updateBillingInfo: an empty account name disables billing (API method text)."""
    project = projects.named(session, str(call.params["name"]).partition("/")[2])
    if not projects.is_known(session, project):
        raise ApiError(403, "PERMISSION_DENIED", "The caller does not have permission")
    session.log_request(call.method, f"projects/{project}")
    account = str(call.body.get("billingAccountName") or "")
    set_billing(session, project, enabled=bool(account), account=account)
    return get_billing_info(session, call)


def list_accounts(session: Session, call: Call) -> Json:
    """Answer billingAccounts.list: the one that bills every project."""
    del session, call
    account = {"name": ACCOUNT, "open": True, "displayName": "Sandbox", "currencyCode": "USD"}
    return {"billingAccounts": [account]}

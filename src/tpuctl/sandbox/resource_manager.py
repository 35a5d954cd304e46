"""Projects: Cloud Resource Manager v1 and v3, IAM policies and roles, and Cloud Billing.

Every project is known once it is used; if projects were added (`put_project`), only those are known. The caller owns the
sandbox and has every permission except those that a resource lists as `denied`. There is one billing account.
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.api_calls import (
    DEFAULT_PROJECT,
    ApiError,
    answers,
    error_info,
    error_of,
    etag_of,
    help_detail,
    list_response,
)
from tpuctl.sandbox.catalog import default_service_account, number_of_project
from tpuctl.sandbox.representation import millisecond_timestamp
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

_DEFAULT_CREATE_TIME = "2026-01-01T00:00:00.000Z"


@answers("cloudresourcemanager.projects.get")
def _get_project(session: StateSession, call: Call) -> Json:
    project = _checked_project(session, call, permission="resourcemanager.projects.get")
    return _project_document(session, project, call.version)


@answers("cloudresourcemanager.projects.list")
def _list_projects(session: StateSession, call: Call) -> Json:
    """List the caller's projects: those that were added, by default `sandbox`. Filters are ignored."""
    projects = _list_known_projects(session) or (DEFAULT_PROJECT,)
    mine = [
        _project_document(session, project, call.version)
        for project in projects
        if not is_permission_denied("resourcemanager.projects.get", denied_permissions(session, project))
    ]
    return list_response(call, "projects", mine)


@answers("cloudresourcemanager.projects.undelete")
def _undelete_project(session: StateSession, call: Call) -> Json:
    project = _checked_project(session, call, permission="resourcemanager.projects.undelete")
    denied = denied_permissions(session, project)
    put_project(session, project, denied=denied, **{**_describe_project(session, project), "state": "ACTIVE"})
    return {} if call.version == "v1" else {"done": True, "response": _project_document(session, project, call.version)}


def _project_document(session: StateSession, project: str, version: str) -> Json:
    defaults = {"displayName": project, "state": "ACTIVE", "createTime": _DEFAULT_CREATE_TIME}
    about = {**defaults, **_describe_project(session, project)}
    labels = {"labels": about["labels"]} if about.get("labels") else {}
    common = {"projectId": project, "createTime": about["createTime"], **labels}
    if version == "v1":
        number = str(number_of_project(project))
        return {**common, "projectNumber": number, "name": about["displayName"], "lifecycleState": about["state"]}
    parent = {"parent": about["parent"]} if about.get("parent") else {}
    shown = {key: about[key] for key in ("displayName", "state")}
    return {
        **common,
        **shown,
        **parent,
        "name": f"projects/{number_of_project(project)}",
        "etag": 'W/"0123456789abcdef"',
    }


@answers("cloudresourcemanager.projects.getIamPolicy")
def _get_project_policy(session: StateSession, call: Call) -> Json:
    project = _checked_project(session, call, permission="resourcemanager.projects.getIamPolicy")
    requested = int((call.body.get("options") or {}).get("requestedPolicyVersion") or 1)
    return read_iam_policy(session, "project", project, default=_default_project_policy(project), version=requested)


@answers("cloudresourcemanager.projects.setIamPolicy")
def _set_project_policy(session: StateSession, call: Call) -> Json:
    """Replace the policy: 409 if the etag is not the current one."""
    project = _checked_project(session, call, permission="resourcemanager.projects.setIamPolicy")
    policy = call.body.get("policy") or {}
    # Observed: the words that terraform and gcloud users quote.
    message = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
    conflict = ApiError(409, "ABORTED", message)
    default = _default_project_policy(project)
    return replace_iam_policy(session, "project", project, policy, default=default, conflict=conflict)


@answers("cloudresourcemanager.projects.testIamPermissions")
def _test_project_permissions(session: StateSession, call: Call) -> Json:
    """Return the requested permissions that the caller has."""
    project = resolve_project(session, call["resource"])
    lacking = denied_permissions(session, project) if is_known_project(session, project) else ("*",)
    granted = allowed_permissions(call.body.get("permissions", []), lacking)
    return {"permissions": granted} if granted else {}


def _default_project_policy(project: str) -> Json:
    """Return the initial policy of a project: its owner, the default service account as editor, the TPU service agent."""
    number = number_of_project(project)
    return {
        "bindings": [
            {"role": "roles/editor", "members": [f"serviceAccount:{default_service_account(project)}"]},
            {"role": "roles/owner", "members": ["user:owner@example.com"]},
            {
                "role": "roles/tpu.serviceAgent",
                "members": [f"serviceAccount:service-{number}@cloud-tpu.iam.gserviceaccount.com"],
            },
        ]
    }


def _checked_project(session: StateSession, call: Call, *, permission: str) -> str:
    project = resolve_project(session, call["projectId"] or call["resource"] or call["name"])
    if is_known_project(session, project) and not is_permission_denied(
        permission, denied_permissions(session, project)
    ):
        return project
    if call.version == "v1":
        raise error_of(403)  # observed, for v1
    # Observed: falcon-integration-gateway#98.
    raise iam_denied_error(permission, project, domain="cloudresourcemanager.googleapis.com")


def iam_denied_error(permission: str, project: str, *, domain: str) -> ApiError:
    """Return the error of a permission that the caller lacks on a project; `domain` is the API that reports it."""
    resource = f"//cloudresourcemanager.googleapis.com/projects/{project}"
    message = f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
    metadata = {"permission": permission, "resource": f"projects/{project}"}
    return ApiError(403, "PERMISSION_DENIED", message, error_info("IAM_PERMISSION_DENIED", metadata, domain=domain))


PROJECT_KIND = "cloudresourcemanager.project"


def put_project(session: StateSession, /, project: str, *, denied: Iterable[str] = (), **fields: Any) -> Json:
    """Store a project and return it as v3 shows it. As soon as one is added, only added projects are known.

    `denied` are the permissions that the caller lacks on it. Its number follows from its name: `projectNumber` is ignored.
    """
    fields = {key: value for key, value in fields.items() if key not in {"projectNumber", "projectId"}}
    created = millisecond_timestamp(session.now)
    session.resources.put(
        PROJECT_KIND, "", project, {"fields": {"createTime": created, **fields}, "denied": list(denied)}
    )
    return {"name": f"projects/{number_of_project(project)}", "projectId": project, "state": "ACTIVE", **fields}


def _describe_project(session: StateSession, project: str) -> Json:
    """Return the fields that were given when a project was added; empty for a project that is known by use."""
    project_record = session.resources.get(PROJECT_KIND, "", project)
    return dict(project_record["fields"]) if project_record else {}


def denied_permissions(session: StateSession, project: str) -> tuple[str, ...]:
    """Return the permissions that the caller lacks on a project."""
    project_record = session.resources.get(PROJECT_KIND, "", project)
    return tuple(project_record["denied"]) if project_record else ()


def _list_known_projects(session: StateSession) -> tuple[str, ...]:
    return tuple(record.name for record in session.resources.list_records(PROJECT_KIND, ""))


def is_known_project(session: StateSession, project: str) -> bool:
    """Return whether a project exists."""
    return not (names := _list_known_projects(session)) or project in names


def resolve_project(session: StateSession, text: str) -> str:
    """Return the id of a project given by id or number, also after `projects/`; a number that no project has stays."""
    text = text.removeprefix("projects/")
    if not text.isdecimal():
        return text
    used = {*_list_known_projects(session), DEFAULT_PROJECT, *(node.project for node in session.nodes())}
    used |= {bucket.parent for bucket in session.resources.list_records("storage.bucket")}
    return next((project for project in used if str(number_of_project(project)) == text), text)


ROLE_KIND = "iam.role"
_WITH_CONDITIONS = 3  # API field text of Policy.version


def read_iam_policy(
    session: StateSession, kind: str, name: str, *, default: Json, version: int = _WITH_CONDITIONS
) -> Json:
    """Return a resource's policy with its etag; `default` is the initial policy.

    Only `version` 3 shows conditions. An older version omits the condition, and the role's name shows that there is one
    (documentation: troubleshooting `withcond`).
    """
    policy = session.resources.get("iam.policy", kind, name) or default
    bindings = policy.get("bindings") or []
    is_conditional = any(binding.get("condition") for binding in bindings)
    visible: Json = {**policy, "version": _WITH_CONDITIONS if is_conditional else 1, "etag": etag_of(policy)}
    visible.pop("serial", None)
    if is_conditional and version < _WITH_CONDITIONS:
        plain = []
        for binding in bindings:
            if condition := binding.get("condition"):
                digest = hashlib.blake2b(json.dumps(condition, sort_keys=True).encode(), digest_size=10).hexdigest()
                plain.append({"role": f"{binding['role']}_withcond_{digest}", "members": binding["members"]})
            else:
                plain.append(binding)
        visible |= {"version": 1, "bindings": plain}
    return visible


def replace_iam_policy(
    session: StateSession, kind: str, name: str, policy: Json, *, default: Json, conflict: ApiError
) -> Json:
    """Replace a policy and return it. Raises `conflict` if its etag is not the current one."""
    current = read_iam_policy(session, kind, name, default=default)
    # gcloud sends bytes back in the URL-safe alphabet.
    etag = str(policy.get("etag") or "").replace("-", "+").replace("_", "/")
    if etag not in {"", current["etag"]}:
        raise conflict
    conditional = any(binding.get("condition") for binding in policy.get("bindings") or [])
    if conditional and int(policy.get("version") or 0) < _WITH_CONDITIONS:
        # API field text of Policy.version: a policy with conditions must specify 3; the message is unverified.
        raise ApiError(400, "INVALID_ARGUMENT", "A policy with conditions must specify version 3.")
    put_iam_policy(session, kind, name, policy)
    return read_iam_policy(session, kind, name, default=default)


def put_iam_policy(session: StateSession, kind: str, name: str, policy: Json) -> None:
    """Store a policy, replacing the current one."""
    kept = {key: value for key, value in policy.items() if key in {"version", "bindings", "auditConfigs"} and value}
    # Each set changes the etag, even if it restores an earlier policy.
    kept["serial"] = session.next_incarnation(f"iam.policy/{kind}/{name}")
    session.resources.put("iam.policy", kind, name, kept)


def allowed_permissions(requested: Iterable[str], denied: Iterable[str]) -> list[str]:
    """Return the permissions that the caller has."""
    return [permission for permission in requested if not is_permission_denied(permission, denied)]


def is_permission_denied(permission: str, denied: Iterable[str]) -> bool:
    """Return whether a permission is denied; `denied` may contain patterns."""
    return any(fnmatchcase(permission, pattern) for pattern in denied)


def put_role(session: StateSession, /, name: str, *, project: str = DEFAULT_PROJECT, **fields: Any) -> Json:
    """Store a custom role of a project (`title`, `includedPermissions`, …) and return it; `name` is its id or full name."""
    role = name.rpartition("/")[2]
    document = {
        "name": f"projects/{project}/roles/{role}",
        "title": role,
        "stage": "GA",
        "etag": "BwUjMhCsNvY=",
        **fields,
    }
    session.resources.put(ROLE_KIND, project, role, document)
    return document


@answers("iam.projects.roles.get")
def _get_custom_role(session: StateSession, call: Call) -> Json:
    name = call["name"]
    _, owner, _, role = name.split("/")
    project = resolve_project(session, owner)
    if not is_known_project(session, project):
        raise ApiError(403, "PERMISSION_DENIED", f"You don't have permission to get the role at {name}.")  # unverified
    missing = ApiError(404, "NOT_FOUND", f"The role named {name} was not found.")
    return session.resources.fetch(ROLE_KIND, project, role, missing=missing)


@answers("iam.roles.get")
def _get_role(_session: StateSession, call: Call) -> Json:
    """Return a role with the permissions that matter to TPU clients: a part of the real role's."""
    name = call["name"]
    role = _load_roles().get(name.removeprefix("roles/"))
    if role is None:
        # Observed: what `gcloud iam roles describe` prints.
        raise ApiError(404, "NOT_FOUND", f"The role named {name} was not found.")
    return {
        "name": name,
        "title": role["title"],
        "stage": role.get("stage", "GA"),
        "etag": "AA==",
        "includedPermissions": sorted(_role_permissions(name.removeprefix("roles/"))),
    }


@cache
def _load_roles() -> dict[str, Any]:
    return dict(load_data("roles.yaml"))


def _role_permissions(role: str) -> set[str]:
    definition = _load_roles()[role]
    included = (_role_permissions(other) for other in definition.get("includes", []))
    return set(definition.get("permissions", [])).union(*included)


BILLING_KIND = "cloudbilling.info"
BILLING_ACCOUNT = "billingAccounts/000000-000000-000000"


def put_billing(
    session: StateSession, *, enabled: bool, project: str = DEFAULT_PROJECT, account: str = BILLING_ACCOUNT
) -> None:
    """Enable or disable a project's billing; `account` is `billingAccounts/012345-567890-ABCDEF`."""
    session.resources.put(BILLING_KIND, "", project, {"enabled": enabled, "account": account})


def is_billing_enabled(session: StateSession, project: str) -> bool:
    """Return whether a project is billed; the default is true."""
    billing = session.resources.get(BILLING_KIND, "", project)
    return bool(billing["enabled"]) if billing else True


def billing_disabled_error(project: str, service: str) -> ApiError:
    """Return the error of a service in a project without billing (observed: published error bodies of several services)."""
    number = number_of_project(project)
    url = f"https://console.developers.google.com/billing/enable?project={number}"
    message = (
        f"This API method requires billing to be enabled. Please enable billing on project #{number} by visiting {url} then "
        "retry. If you enabled billing for this project recently, wait a few minutes for the action to propagate to our "
        "systems and retry."
    )
    info = error_info("BILLING_DISABLED", {"service": service, "consumer": f"projects/{number}"})
    help_link = help_detail("Google developers console billing", url)
    return ApiError(403, "PERMISSION_DENIED", message, help_link, info)


@answers("cloudbilling.projects.getBillingInfo", "cloudbilling.projects.updateBillingInfo")
def _get_or_update_billing(session: StateSession, call: Call) -> Json:
    """Return, or first change, whether a project is billed: an empty account name disables billing (API method text)."""
    project = resolve_project(session, call["name"])
    if not is_known_project(session, project):
        raise error_of(403)
    if call.method.endswith(".updateBillingInfo"):
        account = str(call.body.get("billingAccountName") or "")
        put_billing(session, project=project, enabled=bool(account), account=account)
    billing = session.resources.get(BILLING_KIND, "", project) or {"enabled": True, "account": BILLING_ACCOUNT}
    return {
        "name": f"projects/{project}/billingInfo",
        "projectId": project,
        # API field text: empty if the project has none. Whether the name of a closed account stays is unverified.
        "billingAccountName": billing["account"],
        "billingEnabled": bool(billing["enabled"]),
    }


@answers("cloudbilling.billingAccounts.list")
def _list_billing_accounts(_session: StateSession, _call: Call) -> Json:
    """List the account that bills every project."""
    account = {"name": BILLING_ACCOUNT, "open": True, "displayName": "Sandbox", "currencyCode": "USD"}
    return {"billingAccounts": [account]}

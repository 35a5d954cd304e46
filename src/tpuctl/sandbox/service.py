"""The sandbox's Cloud APIs as one function from an HTTP request to a response, or a broken connection.

Both interfaces call it. It knows HTTP, JSON and Google's error bodies; `METHODS` lists the handlers of calls,
`check_admission` rejects what the real service rejects before its API sees it, `uploads.py` handles uploads and downloads.
"""

from __future__ import annotations

import html
from dataclasses import replace
from datetime import timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from tpuctl.sandbox import (  # noqa: F401  # they register their handlers
    catalog,
    compute_engine,
    guest_attributes,
    org_policy,
    os_login,
    storage_objects,
    tpu_nodes,
    tpu_operations,
    tpu_queued_resources,
)
from tpuctl.sandbox.api_calls import (
    HANDLERS,
    ApiError,
    Call,
    DroppedConnection,
    Handler,
    Request,
    Response,
    already_exists,
    error_info,
    error_of,
    help_detail,
)
from tpuctl.sandbox.catalog import number_of_project
from tpuctl.sandbox.discovery import APIS, check_request, decode_json, route_request
from tpuctl.sandbox.faults import Fault, FaultKind, FaultTarget, fault_duration, meets_call_fault, take_call_fault
from tpuctl.sandbox.request_log import log_call
from tpuctl.sandbox.resource_manager import (
    billing_disabled_error,
    denied_permissions,
    iam_denied_error,
    is_billing_enabled,
    is_known_project,
    is_permission_denied,
    resolve_project,
)
from tpuctl.sandbox.service_usage import is_service_enabled, service_disabled_error
from tpuctl.sandbox.uploads import read_upload, split_upload_path
from tpuctl.sandbox.worker_lookup import boots_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.sandbox.api_calls import Call
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.state_session import StateSession

# Calls that only read, and are sent as POST.
_READING_VERBS = ("get", "test", "wait")
_CHALLENGE = {"www-authenticate": 'Bearer realm="https://accounts.google.com/", error="invalid_token"'}


def answer_request(sandbox: SandboxState, request: Request) -> Response | DroppedConnection:
    """Return the response to a request. A write that is answered is committed.

    The `Date` header carries the sandbox time. An exception that is not an `ApiError` is a bug of the sandbox and
    propagates.
    """
    effective = request
    # googleapiclient sends a GET with more than 2048 characters as a POST that carries the query in its body.
    if request.method == "POST" and request.headers.get("x-http-method-override") == "GET":
        query = (*request.query, *parse_qsl(request.body.decode("latin-1"), keep_blank_values=True))
        effective = Request("GET", request.path, query, request.headers)
    answer: Response | DroppedConnection
    done: list[str] = []  # the API method of a write that was committed
    try:
        answer = _answer(sandbox, effective, done)
    except ApiError as error:
        challenge = _CHALLENGE if error.code == 401 else None
        answer = error.response(challenge, with_reasons=_has_reasons(request))
    if boots_folder(sandbox.path).exists():
        from tpuctl.sandbox.sshd.power import end_processes_of_powered_off  # noqa: PLC0415  # most sandboxes have no guests

        end_processes_of_powered_off(sandbox)
    now = sandbox.clock.now()
    status = 0 if isinstance(answer, DroppedConnection) else answer.status
    log_call(sandbox.path, request, status, now, call="".join(done))
    return answer if isinstance(answer, DroppedConnection) else dated(sandbox, answer, now)


def dated(sandbox: SandboxState, response: Response, now: datetime | None = None) -> Response:
    """Return a response with the `Date` header, from which clients compute ages."""
    date = format_datetime(now or sandbox.clock.now(), usegmt=True)
    return Response(response.status, response.body, {"date": date, **response.headers})


def _answer(sandbox: SandboxState, request: Request, done: list[str]) -> Response | DroppedConnection:
    direction, path = split_upload_path(request.path)
    is_upload = direction == "upload"
    # The host name determines the API; on the loopback port all APIs share one origin.
    name, _, domain = request.headers.get("host", "").partition(".")
    route = route_request(request.method, path, api=name if domain == "googleapis.com" and name in APIS else None)
    transfers = route and {"upload": route.method.takes_media, "download": route.method.gives_media}.get(
        direction, True
    )
    if route is None or not transfers:
        # Google's frontends answer an unknown path before any API sees it, with a page (observed on googleapis.com).
        page = (
            "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Error 404 (Not Found)!!1</title>\n"
            "<p><b>404.</b> <ins>That\N{RIGHT SINGLE QUOTATION MARK}s an error.</ins>\n"
            f"<p>The requested URL <code>{html.escape(request.path)}</code> was not found on this server.  "
            "<ins>That\N{RIGHT SINGLE QUOTATION MARK}s all we know.</ins>\n"
        )
        return Response(404, page.encode(), {"content-type": "text/html; charset=UTF-8"})
    call = read_upload(route, request) if is_upload else check_request(route, request.query, decode_json(request.body))
    params = dict(request.query)
    payer = request.headers.get("x-goog-user-project")
    if payer and call.method.startswith("storage."):
        call = replace(call, params={"userProject": payer, **call.params})
    if request.method == "GET" and "media" in {params.get("alt"), params.get("$alt")}:
        call = replace(call, wants_media=True)
    transaction = sandbox.read if request.method == "GET" else sandbox.write
    with transaction() as session:
        if not meets_call_fault(session, call):
            return _run_handler(session, call, request, done)
    match fault := take_call_fault(sandbox, call):
        case Fault(kind=FaultKind.DROP_BEFORE):
            return DroppedConnection()
        case Fault(kind=FaultKind.DROP_AFTER):
            with transaction() as session:
                _run_handler(session, call, request, done)
            return DroppedConnection()
        case Fault(kind=FaultKind.ALREADY_EXISTS):
            with transaction() as session:
                _run_handler(session, call, request, done)
            new = FaultTarget.of(call)
            raise already_exists(f"{call.params['parent']}/{call.method.split('.')[-2]}/{new.node}")
        case Fault(kind=FaultKind.UNAUTHENTICATED):
            raise error_of(401)
        case Fault(kind=FaultKind.UNREACHABLE):
            raise error_of(503, f"The location {FaultTarget.of(call).zone} is unreachable.")
        case Fault(kind=FaultKind.HTTP_ERROR):
            wait = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
            return error_of(fault.status, fault.message).response(wait, with_reasons=_has_reasons(request))
        case Fault(kind=FaultKind.SLOW):
            sandbox.clock.sleep(fault_duration(fault) or timedelta())
    with transaction() as session:
        return _run_handler(session, call, request, done)


def _run_handler(session: StateSession, call: Call, request: Request, done: list[str]) -> Response:
    handler = METHODS.get(call.method)
    if handler is None:
        raise error_of(501, f"{error_of(501).message} The sandbox does not serve {call.method}.")
    check_admission(session, call)
    is_write = request.method != "GET" and not call.method.rpartition(".")[2].startswith(_READING_VERBS)
    try:
        value = handler(session, call)
    except ApiError as error:
        if is_write and error.commits:
            done.append(call.method)
        raise
    if is_write:
        done.append(call.method)
    return value if isinstance(value, Response) else Response.of(value)


def _has_reasons(request: Request) -> bool:
    """Return whether the request is for an API with error bodies of the older form."""
    return split_upload_path(request.path)[1].startswith(("/compute/", "/storage/"))


# The handler of each method of the discovery documents. A method without one is not implemented: 501.
METHODS: Mapping[str, Handler] = HANDLERS

# These APIs manage projects, or most of their calls name none. They answer calls about unknown projects themselves, with
# their own errors, and they work without billing.
_PROJECT_APIS = frozenset(
    {"serviceusage", "cloudresourcemanager", "cloudbilling", "iam", "oslogin", "iamcredentials", "storage"}
)
_APIS_WITHOUT_BILLING = _PROJECT_APIS | {"orgpolicy"}
# These calls must work while Service Usage itself is disabled, or no call could enable it. The real service checks the project
# that the caller bills; for gcloud that is gcloud's own.
_ALWAYS_ALLOWED = frozenset({"serviceusage.services.enable"})


def check_admission(session: StateSession, call: Call) -> None:
    """Raise `ApiError` if a call may not reach its project.

    The project is unknown, has disabled the called service, has no billing, or denies the caller the needed permission.
    The APIs that manage projects reject unknown projects themselves.
    """
    api = call.method.partition(".")[0]
    params = call.params
    resource = str(params.get("name") or params.get("parent") or params.get("resource") or "")
    named = (
        resource.split("/")[1] if resource.startswith("projects/") else params.get("project") or params.get("projectId")
    )
    project = resolve_project(session, str(named or ""))
    if not project or project == "-":
        return
    if not is_known_project(session, project):
        if api in _PROJECT_APIS:
            return
        if api == "compute":
            # Compute answers before its frontends check the owner (observed: errors that gcloud and terraform users quote).
            raise ApiError(404, "NOT_FOUND", f"The resource 'projects/{project}' was not found")
        # The project does not exist or is not the caller's (observed: gemini-cli#1808).
        message = f"Permission denied on resource project {project}."
        metadata = {"service": f"{api}.googleapis.com", "consumer": f"projects/{project}", "containerInfo": project}
        info = error_info("CONSUMER_INVALID", metadata)
        localized = {"@type": "type.googleapis.com/google.rpc.LocalizedMessage", "locale": "en-US", "message": message}
        help_link = help_detail("Google developers console", "https://console.developers.google.com")
        raise ApiError(403, "PERMISSION_DENIED", message, info, localized, help_link)
    service = f"{api}.googleapis.com"
    if call.method not in _ALWAYS_ALLOWED and api != "storage" and not is_service_enabled(session, project, service):
        raise service_disabled_error(project, service)
    if api not in _APIS_WITHOUT_BILLING and not is_billing_enabled(session, project):
        raise billing_disabled_error(project, service)
    check_permissions(session, call, project)


# Permissions that are not named after the method. Source: the API's documentation of each method. The reference of
# Organization Policy v2 names `orgpolicy.policies.get`, which IAM's list of permissions does not have. The reference of Service
# Usage does not mention `batchGet` (unverified), and has `serviceusage.quota.get` in one table and `serviceusage.quotas.get` in
# another: IAM has the second.
_NAMED: Mapping[str, str] = {
    "cloudbilling.projects.getBillingInfo": "resourcemanager.projects.get",
    "iam.projects.roles.get": "iam.roles.get",
    "orgpolicy.projects.policies.getEffectivePolicy": "orgpolicy.policy.get",
    "serviceusage.services.batchGet": "serviceusage.services.get",
    "serviceusage.services.consumerQuotaMetrics.list": "serviceusage.quotas.get",
    # Unknown: IAM's list has no permission for these.
    "tpu.projects.locations.generateServiceIdentity": "",
    "tpu.projects.locations.operations.cancel": "",
    "tpu.projects.locations.operations.delete": "",
}
_VERBS = {"aggregatedList": "list", "insert": "create", "patch": "update", "wait": "get"}
# IAM's list of permissions (documentation: the role TPU Admin has all of them) has none for queued resources, reservations
# and guest attributes; that those of nodes apply is unverified.
_OF_NODES = frozenset({"queuedresources", "reservations"})
_TPU_VERBS = {
    **_VERBS,
    "getGuestAttributes": "get",
    "getMaintenanceInfo": "get",
    "performMaintenanceQueuedResource": "performMaintenance",
}


def check_permissions(session: StateSession, call: Call, project: str) -> None:
    """Raise `ApiError` 403, in the words of the API, if the caller lacks the permission that a call needs on a project.

    Cloud Storage and Resource Manager check permissions themselves: the first also on buckets, the second with its own errors.
    """
    denied = denied_permissions(session, project)
    permission = needed_permission(call.method) if denied else ""
    if not permission or not is_permission_denied(permission, denied):
        return
    match call.method.partition(".")[0]:
        case "compute":
            raise _compute_denied(call, project, permission)
        case "orgpolicy":
            # Observed for a create: terraform-google-org-policy#101.
            raise iam_denied_error(permission, project, domain="orgpolicy.googleapis.com")
        case "serviceusage":
            raise _service_usage_denied(call, project, permission)
        case "tpu":
            # Observed: tensorflow/tpu#296.
            name = str(call["name"] or call["parent"] or f"projects/{project}")
            node = f"/nodes/{call.params['nodeId']}" if call.params.get("nodeId") else ""
            raise ApiError(403, "PERMISSION_DENIED", f"Permission '{permission}' denied on '{name}{node}'")
        case "iam":
            message = f"You don't have permission to get the role at {call.params['name']}."  # unverified words
            raise ApiError(403, "PERMISSION_DENIED", message)
        case "cloudbilling":
            raise error_of(403)  # observed: users of gcloud
        case api:
            raise AssertionError(f"no permission check for {api}")


def needed_permission(method: str) -> str:
    """Return the permission that a method needs on its project.

    It is empty if the API itself checks permissions, and if none is needed or known.
    """
    if method in _NAMED:
        return _NAMED[method]
    api, *collections, verb = method.split(".")
    match api:
        case "compute":
            return f"compute.{collections[-1]}.{_VERBS.get(verb, verb)}"
        case "tpu":
            kind = collections[-1].lower()
            return f"tpu.{'nodes' if kind in _OF_NODES else kind}.{_TPU_VERBS.get(verb, verb)}"
        case "serviceusage" if collections[-1] == "services":
            return f"serviceusage.services.{verb}"
        case _:
            return ""


def _compute_denied(call: Call, project: str, permission: str) -> ApiError:
    """Return the error of Compute Engine (observed: alexandarp/terraform-gke#2, hashicorp/terraform#18873)."""
    collection = call.method.split(".")[-2]
    name = str(call.params.get(collection.removesuffix("s")) or call.body.get("name") or "")
    path = f"projects/{project}"  # lists need the permission on the project
    if name and collection in {"zones", "regions"}:
        path += f"/{collection}/{name}"
    elif name and collection != "projects":
        scope = next((f"{word}s/{call.params[word]}" for word in ("zone", "region") if word in call.params), "global")
        path += f"/{scope}/{collection}/{name}"
    return ApiError(403, "PERMISSION_DENIED", f"Required '{permission}' permission for '{path}'")


def _service_usage_denied(call: Call, project: str, permission: str) -> ApiError:
    """Return the error of Service Usage (observed for a list: aquasecurity/cloudsploit#1606; the others unverified)."""
    container = f"consumer container [projects/{number_of_project(project)}]"
    name = call["name"].rpartition("/services/")[2]
    verb = call.method.rpartition(".")[2]
    if permission == "serviceusage.quotas.get":
        message = f"Permission denied to get quota information for {container}"
    elif name:
        message = f"Permission denied to {verb} service [{name}]"
    else:
        message = f"Permission denied to list services for {container}"
    metadata = {"permission": permission, "resource": f"projects/{project}"}
    info = error_info("AUTH_PERMISSION_DENIED", metadata, domain="serviceusage.googleapis.com")
    return ApiError(403, "PERMISSION_DENIED", message, info)

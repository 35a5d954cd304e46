"""What a project is, who may do what in it, and how much it may hold. Raises tpuctl's exceptions.

Five APIs speak of that: Resource Manager, Service Usage, Cloud Billing, Organization Policy and IAM. Google's library is left
out: it would read a discovery document for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.cloud.errors import operation_error, query_errors
from tpuctl.cloud.failures import ApiRefusedError
from tpuctl.cloud.requests import ApiClient, GoogleApi, PlainRequest, all_pages, wait_until_done
from tpuctl.cloud.retry import SHORT_PATIENCE
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.models.operation import OPERATION, Operation
from tpuctl.models.project import TESTED_PERMISSIONS, IamPolicy, OrgPolicy, Project, QuotaLimit
from tpuctl.shapes import ListOf, Page, Shape

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_SERVICE_USAGE = "serviceusage"
# So many can be asked for by name [API serviceusage v1, names of batchGet].
_NAMED_AT_ONCE = 30
_SERVICE = Shape("serviceusage.v1 GoogleApiServiceusageV1Service", {"name": str, "state": str}, required=("name",))
_SERVICES = Page("serviceusage.v1 ListServicesResponse", "services")
_NAMED = Page("serviceusage.v1 BatchGetServicesResponse", "services")
_METRICS = Page("serviceusage.v1beta1 ListConsumerQuotaMetricsResponse", "metrics")
_BILLING = Shape("cloudbilling.v1 ProjectBillingInfo", {"name": str, "billingEnabled": bool}, required=("name",))
_ROLE = Shape("iam.v1 Role", {"includedPermissions": ListOf(str), "deleted": bool})
# How an endpoint says that it cannot be asked for services by name.
_NO_BATCHES = frozenset({400, 404, 501})
_PAGE_SIZE = 1000
_SERVICES_PAGE = 200  # the most there is [API serviceusage v1, pageSize]
_QUOTA_FIELDS = (
    "metrics(metric,displayName,consumerQuotaLimits(metric,unit,quotaBuckets(effectiveLimit,dimensions))),nextPageToken"
)


class ProjectsClient(ApiClient):
    """Calls the APIs about projects. A project is named by its id or its number."""

    api = GoogleApi("cloudresourcemanager", "v3")
    patience = SHORT_PATIENCE

    def project(self, project: str) -> Project:
        """Return a project; needs resourcemanager.projects.get.

        A project that does not exist raises `AccessError` too: the API hides which projects exist [documentation].
        """
        request = self._get(f"v3/{_name(project)}")
        with query_errors(_words(project), "resourcemanager.projects.get"):
            return self._caller.attempt(request, Project.from_api)

    def policy(self, project: str) -> IamPolicy:
        """Return the IAM policy of a project; needs resourcemanager.projects.getIamPolicy.

        It does not contain roles granted on a folder or the organisation [documentation].
        """
        # For a version below 3, the service refuses policies with conditions or omits the conditions [API field text].
        body = {"options": {"requestedPolicyVersion": 3}}
        request = PlainRequest.of(self._url(f"v3/{_name(project)}:getIamPolicy"), method="POST", body=body)
        with query_errors(_words(project), "resourcemanager.projects.getIamPolicy"):
            return self._caller.attempt(request, IamPolicy.from_api)

    def test_permissions(self, project: str, permissions: Collection[str]) -> frozenset[str]:
        """Return which of the permissions the caller has; needs none [API cloudresourcemanager v3].

        For a project that does not exist, the result is empty and no error is raised.
        """
        url = self._url(f"v3/{_name(project)}:testIamPermissions")
        request = PlainRequest.of(url, method="POST", body={"permissions": sorted(permissions)})
        with query_errors(_words(project), "resourcemanager.projects.get"):
            return self._caller.attempt(
                request, lambda data: frozenset(TESTED_PERMISSIONS.read(data).get("permissions") or ())
            )

    def services(self, project: str, names: Collection[str]) -> Mapping[str, bool]:
        """Return which of the services are enabled; needs serviceusage.services.get, or `.list` for more than 30.

        The permission for `batchGet` is unverified: its documentation names none.
        """
        if not names:
            return {}
        enabled = self._batch_enabled(project, sorted(names)) if len(names) <= _NAMED_AT_ONCE else None
        if enabled is None:

            def page(token: str | None) -> PlainRequest:
                query = {"filter": "state:ENABLED", "pageSize": _SERVICES_PAGE, "pageToken": token}
                query["fields"] = "services(name,state),nextPageToken"
                return self._get(f"v1/{_name(project)}/services", service=_SERVICE_USAGE, query=query)

            with query_errors(_words(project), "serviceusage.services.list"):
                enabled = all_pages(self._caller, page, _SERVICES, _service).items
        states = dict(enabled)
        return {name: states.get(name, False) for name in names}

    def enable(self, project: str, service: str) -> None:
        """Enable a service, and wait until it is enabled; needs serviceusage.services.enable.

        Raises `TimedOutError` after three minutes.
        """
        url = self._url(f"v1/{_name(project)}/services/{quote(service, safe='')}:enable", service=_SERVICE_USAGE)
        what = f"the service `{service}` in {_words(project)}"
        with query_errors(what, "serviceusage.services.enable"):
            # Enabling an enabled service is harmless.
            begun = self._caller.attempt(PlainRequest.of(url, method="POST", body={}), OPERATION.read)
            fetch = self._get(f"v1/{quote(str(begun.get('name')), safe='/')}", service=_SERVICE_USAGE)
            ended = wait_until_done(
                self._caller, begun, lambda: self._caller.attempt(fetch, OPERATION.read), what=f"enabling `{service}`"
            )
        if error := Operation.from_api(ended).error:
            raise operation_error(error)

    def quotas(self, project: str, service: str) -> tuple[QuotaLimit, ...]:
        """Return the limits of a service; needs serviceusage.quotas.get [IAM's list; the method's documentation has `quota`].

        A location without its own limit is not listed: the limit without a location applies [API serviceusage v1beta1].
        gcloud 528 (`alpha services quota list`) uses the same method. The API has limits of resources and of request rates.
        """

        def page(token: str | None) -> PlainRequest:
            path = f"v1beta1/{_name(project)}/services/{quote(service, safe='')}/consumerQuotaMetrics"
            query = {"view": "BASIC", "pageSize": _PAGE_SIZE, "pageToken": token, "fields": _QUOTA_FIELDS}
            return self._get(path, service=_SERVICE_USAGE, query=query)

        with query_errors(f"the quotas of `{service}` in {_words(project)}", "serviceusage.quotas.get"):
            metrics = all_pages(self._caller, page, _METRICS, QuotaLimit.all_from_api).items
        return tuple(limit for limits in metrics for limit in limits)

    def billing(self, project: str) -> bool:
        """Return whether the project is billed; needs resourcemanager.projects.get [API cloudbilling v1, method text]."""
        request = self._get(f"v1/{_name(project)}/billingInfo", service="cloudbilling")
        with query_errors(f"the billing of {_words(project)}", "resourcemanager.projects.get"):
            return self._caller.attempt(request, lambda data: bool(_BILLING.read(data).get("billingEnabled")))

    def org_policy(self, project: str, constraint: str) -> OrgPolicy:
        """Return the effective policy of a constraint, named with or without `constraints/`; needs orgpolicy.policy.get.

        This is the name of the permission in IAM roles; the documentation of the method has `orgpolicy.policies.get`.
        """
        short = constraint.removeprefix("constraints/")
        path = f"v2/{_name(project)}/policies/{quote(short, safe='')}:getEffectivePolicy"
        with query_errors(f"the organisation policy `{short}` of {_words(project)}", "orgpolicy.policy.get"):
            return self._caller.attempt(self._get(path, service="orgpolicy"), OrgPolicy.from_api)

    def role(self, name: str) -> frozenset[str]:
        """Return the permissions of a role, predefined (`roles/…`) or custom (`projects/P/roles/…`); needs iam.roles.get.

        A deleted role raises `NotFoundError`: it grants no permissions [documentation].
        """
        request = self._get(
            f"v1/{quote(name, safe='/:')}", service="iam", query={"fields": "includedPermissions,deleted"}
        )
        with query_errors(f"the role `{name}`", "iam.roles.get"):
            found = self._caller.attempt(request, _ROLE.read)
        if found.get("deleted"):
            raise NotFoundError(f"the role `{name}` is deleted")
        return frozenset(found.get("includedPermissions") or ())

    def _batch_enabled(self, project: str, names: list[str]) -> Sequence[tuple[str, bool]] | None:
        """Return the state of each service; None if the API does not support `batchGet`."""
        query = {"names": [f"{_name(project)}/services/{name}" for name in names], "fields": "services(name,state)"}
        request = self._get(f"v1/{_name(project)}/services:batchGet", service=_SERVICE_USAGE, query=query)

        def read(data: Mapping[str, Any]) -> list[tuple[str, bool]]:
            _NAMED.check(data)
            return _NAMED.items(data, _service)

        try:
            with query_errors(_words(project), "serviceusage.services.get"):
                return self._caller.attempt(request, read)
        except TpuctlError as error:
            cause = error.__cause__
            if isinstance(cause, ApiRefusedError) and cause.refusal.code in _NO_BATCHES:
                return None
            raise

    def _get(self, path: str, *, service: str | None = None, query: Mapping[str, Any] | None = None) -> PlainRequest:
        return PlainRequest.of(self._url(path, service=service), query=query)


def _name(project: str) -> str:
    return f"projects/{quote(project, safe=':')}"


def _words(project: str) -> str:
    return f"the project `{project}`"


def _service(data: Mapping[str, Any]) -> tuple[str, bool]:
    return str(_SERVICE.read(data)["name"]).rpartition("/")[2], data.get("state") == "ENABLED"

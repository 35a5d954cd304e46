"""Clients of the APIs around a TPU node: the project, Compute Engine and OS Login. They raise tpuctl's exceptions.

`ProjectsClient` reads a project with five APIs: Resource Manager, Service Usage, Cloud Billing, Organization Policy and IAM.
`ComputeClient` reads networks, machines, disks and quotas. `OsLoginClient` reads and adds the ssh keys of a Google account.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from tpuctl.cloud.errors import (
    PERMISSION_DENIED,
    AnswerLostError,
    ApiError,
    ErrorResponse,
    TransportError,
    operation_error,
    query_errors,
    translate,
)
from tpuctl.cloud.requests import FEW_RETRIES, ApiClient, ApiRequest, is_uncertain, read_page
from tpuctl.command_text import fill_text
from tpuctl.decoding import By, Text, decode, decoder_of, json_field
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.api_values import ApiInteger, ApiText, ApiTexts, LastSegment, OptionalText, api_integer
from tpuctl.models.compute_resources import (
    ComputeInstance,
    ComputeNetwork,
    FirewallRule,
    PersistentDisk,
    RegionQuota,
    Subnetwork,
)
from tpuctl.models.operation import Operation
from tpuctl.models.project import GrantedPermissions, IamPolicy, OrgPolicy, Project, QuotaLimit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# So many can be asked for by name [API serviceusage v1, names of batchGet].
_NAMED_AT_ONCE = 30
# How an endpoint says that it cannot be asked for services by name.
_NO_BATCHES = frozenset({400, 404, 501})
_PAGE_SIZE = 1000
_SERVICES_PAGE = 200  # the most there is [API serviceusage v1, pageSize]
_QUOTA_FIELDS = (
    "metrics(metric,displayName,consumerQuotaLimits(metric,unit,quotaBuckets(effectiveLimit,dimensions))),nextPageToken"
)


class ProjectsClient(ApiClient):
    """Calls the APIs about projects. A project is named by its id or its number."""

    retry_policy = FEW_RETRIES

    def project(self, project: str) -> Project:
        """Return a project; needs resourcemanager.projects.get.

        A project that does not exist raises `AccessError` too: the API hides which projects exist [documentation].
        """
        method, permission = "cloudresourcemanager.v3 projects.get", "resourcemanager.projects.get"
        return self._query(method, decoder_of(Project), _describe(project), permission, name=_name(project))

    def policy(self, project: str) -> IamPolicy:
        """Return the IAM policy of a project; needs resourcemanager.projects.getIamPolicy.

        It does not contain roles granted on a folder or the organisation [documentation].
        """
        # For a version below 3, the service refuses policies with conditions or omits the conditions [API field text].
        body = {"options": {"requestedPolicyVersion": 3}}
        method, permission = "cloudresourcemanager.v3 projects.getIamPolicy", "resourcemanager.projects.getIamPolicy"
        return self._query(
            method, decoder_of(IamPolicy), _describe(project), permission, resource=_name(project), body=body
        )

    def test_permissions(self, project: str, permissions: Collection[str]) -> frozenset[str]:
        """Return which of the permissions the caller has; needs none [API cloudresourcemanager v3].

        For a project that does not exist, the result is empty and no error is raised.
        """
        return self._query(
            "cloudresourcemanager.v3 projects.testIamPermissions",
            decoder_of(GrantedPermissions),
            _describe(project),
            "resourcemanager.projects.get",
            resource=_name(project),
            body={"permissions": sorted(permissions)},
        ).permissions

    def services(self, project: str, names: Collection[str]) -> Mapping[str, bool]:
        """Return which of the services are enabled; needs serviceusage.services.get, or `.list` for more than 30.

        The permission for `batchGet` is unverified: its documentation names none.
        """
        if not names:
            return {}
        enabled = self._batch_enabled(project, sorted(names)) if len(names) <= _NAMED_AT_ONCE else None
        if enabled is None:
            with query_errors(_describe(project), "serviceusage.services.list"):
                enabled = self._pages(
                    "serviceusage.v1 services.list",
                    "services",
                    _service,
                    parent=_name(project),
                    filter="state:ENABLED",
                    pageSize=_SERVICES_PAGE,
                    fields="services(name,state),nextPageToken",
                ).items
        states = dict(enabled)
        return {name: states.get(name, False) for name in names}

    def enable(self, project: str, service: str) -> None:
        """Enable a service, and wait until it is enabled; needs serviceusage.services.enable.

        If an answer is lost, the state of the service decides. Raises `TimedOutError` after three minutes, and
        `OutcomeUnknownError`.
        """
        name = f"{_name(project)}/services/{service}"
        request = self._build("serviceusage.v1 services.enable", name=name, body={})
        check = "check with `gcloud services list --enabled --project={project}` before you try again"

        def send() -> Operation:
            # Enabling an enabled service is harmless.
            begun = self._attempt(request, Operation.from_api)
            fetch = self._build("serviceusage.v1 operations.get", name=begun.name)
            return self._wait_until_done(begun, fetch, Operation.from_api, what=f"enabling `{service}`")

        def find_result() -> Operation | None:
            return Operation.unnamed() if self.services(project, (service,)).get(service) else None

        def unknown(failure: Exception) -> OutcomeUnknownError:
            return OutcomeUnknownError(
                f"enabling `{service}` in {_describe(project)} was sent, but its outcome is unknown: {failure}",
                hint=fill_text(check, {"project": project}),
            )

        with query_errors(f"the service `{service}` in {_describe(project)}", "serviceusage.services.enable"):
            ended = self._send_and_confirm(send, find_result, unknown, sends=1)
        if ended.error:
            raise operation_error(ended.error)

    def quotas(self, project: str, service: str) -> tuple[QuotaLimit, ...]:
        """Return the limits of a service; needs serviceusage.quotas.get [IAM's list; the method's documentation has `quota`].

        A location without its own limit is not listed: the limit without a location applies [API serviceusage v1beta1].
        gcloud 528 (`alpha services quota list`) uses the same method. The API has limits of resources and of request rates.
        """
        with query_errors(f"the quotas of `{service}` in {_describe(project)}", "serviceusage.quotas.get"):
            metrics = self._pages(
                "serviceusage.v1beta1 services.consumerQuotaMetrics.list",
                "metrics",
                QuotaLimit.all_from_api,
                parent=f"{_name(project)}/services/{service}",
                view="BASIC",
                pageSize=_PAGE_SIZE,
                fields=_QUOTA_FIELDS,
            ).items
        return tuple(limit for limits in metrics for limit in limits)

    def billing(self, project: str) -> bool:
        """Return whether the project is billed; needs resourcemanager.projects.get [API cloudbilling v1, method text]."""
        method, permission = "cloudbilling.v1 projects.getBillingInfo", "resourcemanager.projects.get"
        what = f"the billing of {_describe(project)}"
        return self._query(method, decoder_of(_Billing), what, permission, name=_name(project)).is_enabled

    def org_policy(self, project: str, constraint: str) -> OrgPolicy:
        """Return the effective policy of a constraint, named with or without `constraints/`; needs orgpolicy.policy.get.

        This is the name of the permission in IAM roles; the documentation of the method has `orgpolicy.policies.get`.
        """
        short = constraint.removeprefix("constraints/")
        return self._query(
            "orgpolicy.v2 projects.policies.getEffectivePolicy",
            OrgPolicy.from_json,
            f"the organisation policy `{short}` of {_describe(project)}",
            "orgpolicy.policy.get",
            name=f"{_name(project)}/policies/{short}",
        )

    def role(self, name: str) -> frozenset[str]:
        """Return the permissions of a role, predefined (`roles/…`) or custom (`projects/P/roles/…`); needs iam.roles.get.

        A deleted role raises `NotFoundError`: it grants no permissions [documentation].
        """
        method = "iam.v1 roles.get" if name.startswith("roles/") else "iam.v1 projects.roles.get"
        fields = "includedPermissions,deleted"
        role = self._query(method, decoder_of(_Role), f"the role `{name}`", "iam.roles.get", name=name, fields=fields)
        if role.is_deleted:
            raise NotFoundError(f"the role `{name}` is deleted")
        return frozenset(role.permissions)

    def _batch_enabled(self, project: str, names: list[str]) -> Sequence[tuple[str, bool]] | None:
        """Return the state of each service; None if the API does not support `batchGet`."""
        try:
            return self._query(
                "serviceusage.v1 services.batchGet",
                partial(read_page, "services", _service),
                _describe(project),
                "serviceusage.services.get",
                parent=_name(project),
                names=[f"{_name(project)}/services/{name}" for name in names],
                fields="services(name,state)",
            ).items
        except TpuctlError as error:
            cause = error.__cause__
            if isinstance(cause, ApiError) and cause.response.code in _NO_BATCHES:
                return None
            raise


def _name(project: str) -> str:
    return f"projects/{project}"


def _describe(project: str) -> str:
    return f"the project `{project}`"


@dataclass(frozen=True, slots=True)
class _Service:
    name: LastSegment
    state: ApiText = ""


def _service(data: Mapping[str, Any]) -> tuple[str, bool]:
    service = decode(_Service, data)
    return service.name, service.state == "ENABLED"


@dataclass(frozen=True, slots=True)
class _Billing:
    name: ApiText
    is_enabled: bool = json_field("billingEnabled", default=False)


@dataclass(frozen=True, slots=True)
class _Role:
    permissions: ApiTexts = json_field("includedPermissions", default=())
    is_deleted: bool = json_field("deleted", default=False)


_COMPUTE_PAGE_SIZE = 500  # the maximum [API compute v1, maxResults]
_FIREWALL_FIELDS = (
    "items(name,network,direction,disabled,priority,sourceRanges,sourceTags,sourceServiceAccounts,targetTags,"
    "targetServiceAccounts,allowed,denied),nextPageToken"
)


@dataclass(frozen=True, slots=True)
class _MetadataItem:
    key: ApiText
    value: ApiText = ""


@dataclass(frozen=True, slots=True)
class _ProjectMetadata:
    items: tuple[_MetadataItem, ...] = json_field("commonInstanceMetadata.items", default=())


@dataclass(frozen=True, slots=True)
class _Region:
    quotas: tuple[RegionQuota, ...] = ()
    warning_code: ApiText = json_field("quotaStatusWarning.code", default="")
    warning: ApiText = json_field("quotaStatusWarning.message", default="")


@dataclass(frozen=True, slots=True)
class _Problem:
    code: ApiText = ""
    message: ApiText = ""


@dataclass(frozen=True, slots=True)
class _ComputeOperation:
    name: ApiText
    status: ApiText
    problems: tuple[_Problem, ...] = json_field("error.errors", default=())
    http_status: ApiInteger = json_field("httpErrorStatusCode", default=0)

    @property
    def done(self) -> bool:
        return self.status == "DONE"


@dataclass(frozen=True, slots=True)
class _ZoneOfMachines:
    """A zone without any has a warning in their place [API compute v1]."""

    instances: tuple[ComputeInstance, ...] = ()


class ComputeClient(ApiClient):
    """Calls Compute Engine."""

    retry_policy = FEW_RETRIES

    def project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the project's commonInstanceMetadata. Raises `AccessError` without `compute.projects.get`."""
        request = self._build("compute.v1 projects.get", project=project, fields="commonInstanceMetadata/items")
        return {item.key: item.value for item in self._call(request, decoder_of(_ProjectMetadata)).items}

    def network(self, project: str, name: str) -> ComputeNetwork:
        """Return a network; needs compute.networks.get."""
        what, permission = f"the network `{name}` in {_describe(project)}", "compute.networks.get"
        method, read = "compute.v1 networks.get", decoder_of(ComputeNetwork)
        return self._query(method, read, what, permission, project=project, network=name)

    def subnetwork(self, project: str, region: str, name: str) -> Subnetwork:
        """Return a subnetwork; needs compute.subnetworks.get."""
        what, permission = f"the subnetwork `{name}` of {region} in {_describe(project)}", "compute.subnetworks.get"
        method, read = "compute.v1 subnetworks.get", decoder_of(Subnetwork)
        return self._query(method, read, what, permission, project=project, region=region, subnetwork=name)

    def firewalls(self, project: str) -> tuple[FirewallRule, ...]:
        """Return all firewall rules, without those of hierarchical policies; needs compute.firewalls.list."""
        with query_errors(_describe(project), "compute.firewalls.list"):
            return self._pages(
                "compute.v1 firewalls.list",
                "items",
                FirewallRule.from_json,
                project=project,
                maxResults=_COMPUTE_PAGE_SIZE,
                fields=_FIREWALL_FIELDS,
            ).items

    def region_quotas(self, project: str, region: str) -> Mapping[str, RegionQuota]:
        """Return the quotas of a region by metric; needs compute.regions.get.

        Raises `ServiceUnavailableError` if the API left them out because it could not read them.
        """
        answer = self._query(
            "compute.v1 regions.get",
            decoder_of(_Region),
            f"the region `{region}` in {_describe(project)}",
            "compute.regions.get",
            project=project,
            region=region,
            fields="quotas,quotaStatusWarning",
        )
        if not answer.quotas and (warning := answer.warning or answer.warning_code):
            message = f"cannot fetch the quotas of {region}: {warning}"
            raise ServiceUnavailableError(message, hint="try again in a few minutes")
        return {quota.metric: quota for quota in answer.quotas}

    def find_machine(self, project: str, name: str, *, zone: str | None = None) -> ComputeInstance:
        """Return the virtual machine of a name, in one zone or in any; needs compute.instances.list.

        Raises `ConflictError` if several zones have one, `NotFoundError` only if every relevant zone has answered.
        """
        with query_errors(_describe(project), "compute.instances.list"):
            listing = self._pages(
                "compute.v1 instances.aggregatedList",
                "items",
                decoder_of(_ZoneOfMachines),
                is_by_zone=True,
                project=project,
                filter=f"name={name}",
                # Without partial success, the failure of one zone would hide all others.
                returnPartialSuccess=True,
                maxResults=_COMPUTE_PAGE_SIZE,
                fields="items,nextPageToken,unreachables",
            )
        machines = [
            machine
            for listed in listing.items
            for machine in listed.instances
            if machine.name == name and zone in {None, machine.zone}
        ]
        if len(machines) == 1:
            return machines[0]
        what = f"virtual machine `{name}` in {f'{zone} of ' if zone else ''}{_describe(project)}"
        if machines:
            zones = ", ".join(sorted(machine.zone for machine in machines))
            hint = f"use the full name, such as `projects/{project}/zones/{machines[0].zone}/instances/{name}`"
            raise ConflictError(f"there is more than one {what}: in {zones}", hint=hint)
        if missing := [place for place in listing.unreachable if zone in {None, place}]:
            raise ServiceUnavailableError(f"{what} not found, but {', '.join(missing)} did not answer")
        raise NotFoundError(f"there is no {what}", hint="list them with `gcloud compute instances list`")

    def disk(self, project: str, zone: str, name: str) -> PersistentDisk:
        """Return a disk; needs compute.disks.get."""
        what, permission = f"the disk `{name}` of {zone} in {_describe(project)}", "compute.disks.get"
        method, read = "compute.v1 disks.get", decoder_of(PersistentDisk)
        return self._query(method, read, what, permission, project=project, zone=zone, disk=name)

    def open_firewall(
        self, project: str, network: str, name: str, source_ranges: Sequence[str], ports: Sequence[str]
    ) -> None:
        """Create an ingress rule that allows tcp ports, and wait until it is active; needs compute.firewalls.create.

        It also needs compute.networks.updatePolicy on the network [documentation of Compute Engine's methods].

        Raises `AlreadyExistsError` if the name is taken, `TimedOutError` after three minutes.
        """
        body = {
            "name": name,
            "network": network if "/" in network else f"projects/{project}/global/networks/{network}",
            "direction": "INGRESS",
            "sourceRanges": list(source_ranges),
            "allowed": [{"IPProtocol": "tcp", "ports": list(ports)}],
        }
        # One id for all retries: the service carries out a repeated request once [API field text of requestId].
        request_id = str(UUID(int=self._random.getrandbits(128), version=4))
        request = self._build("compute.v1 firewalls.insert", project=project, requestId=request_id, body=body)
        what = f"the firewall rule `{name}` in {_describe(project)}"
        with query_errors(what, "compute.firewalls.create"):
            try:
                begun = self._attempt(request, decoder_of(_ComputeOperation))
            except ApiError as error:
                if error.response.code != 409:
                    if not is_uncertain(error):
                        raise
                    raise _unknown_rule(what, name, project, error) from error
                see = "see `gcloud compute firewall-rules describe {firewall_rule} --project={project}`"
                hint = fill_text(see, {"firewall_rule": name, "project": project})
                raise AlreadyExistsError(f"{what} already exists", hint=hint) from error
            except AnswerLostError as error:
                raise _unknown_rule(what, name, project, error) from error
            fetch = self._build("compute.v1 globalOperations.get", project=project, operation=begun.name)
            ended = self._wait_until_done(begun, fetch, decoder_of(_ComputeOperation), what=f"creating {what}")
            if ended.problems:
                first, code = ended.problems[0], ended.http_status or 500
                raise ApiError(ErrorResponse(code=code, message=first.message, status=first.code or "UNKNOWN"))


def _unknown_rule(what: str, name: str, project: str, failure: Exception) -> OutcomeUnknownError:
    check = (
        "check with `gcloud compute firewall-rules describe {firewall_rule} --project={project}` before you try again"
    )
    return OutcomeUnknownError(
        f"the creation of {what} was sent, but its outcome is unknown: {failure}",
        hint=fill_text(check, {"firewall_rule": name, "project": project}),
    )


_ACCOUNT = re.compile(r"[^\s/?#%]+")
_USER_INFO = "https://openidconnect.googleapis.com/v1/userinfo"


def _moment(micros: Any) -> datetime | None:  # JSON
    seconds = _read_micros(micros) / 1e6
    return datetime.fromtimestamp(seconds, UTC) if micros else None


_read_micros = api_integer("a number of microseconds", 0, 10**17 - 1)


@dataclass(frozen=True, slots=True)
class LoginKey:
    """A public key of a profile. `expires` is None if it does not expire."""

    fingerprint: ApiText = ""
    public: ApiText = json_field("key", default="")
    expires: Annotated[datetime | None, By(_moment)] = json_field("expirationTimeUsec", default=None)


@dataclass(frozen=True, slots=True)
class _PosixAccount:
    # It enters the argv of ssh [documentation of useradd: what a POSIX account may be called].
    username: Annotated[
        str, Text(pattern=r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,255}", words="the name of a POSIX account")
    ] = ""
    is_primary: bool = json_field("primary", default=False)


@dataclass(frozen=True, slots=True)
class _Profile:
    accounts: tuple[_PosixAccount, ...] = json_field("posixAccounts", default=())
    keys: Mapping[str, LoginKey] = json_field("sshPublicKeys", default=None)


@dataclass(frozen=True, slots=True)
class LoginProfile:
    """The POSIX names of an account, the primary one first, and its keys."""

    logins: tuple[str, ...]
    keys: tuple[LoginKey, ...]

    @classmethod
    def from_json(cls, data: Any) -> LoginProfile:
        """Parse a LoginProfile. Raises `ShapeError`."""
        profile = decode(_Profile, data)
        accounts = sorted(profile.accounts, key=lambda account: not account.is_primary)
        keys = (profile.keys or {}).items()
        return cls(
            tuple(account.username for account in accounts if account.username),
            tuple(replace(key, fingerprint=key.fingerprint or name) for name, key in keys),
        )

    def key(self, public: str) -> LoginKey | None:
        """Return the key with the same type and blob, ignoring its comment; None if there is none."""
        return next((key for key in self.keys if key.public.split()[:2] == public.split()[:2]), None)


@dataclass(frozen=True, slots=True)
class _Imported:
    profile: LoginProfile = json_field("loginProfile")


@dataclass(frozen=True, slots=True)
class _User:
    email: OptionalText = None


class OsLoginClient(ApiClient):
    """Calls OS Login. An account is an e-mail address, also of a service account, or the unique id of one."""

    def profile(self, account: str, project: str) -> LoginProfile:
        """Return the profile of an account; empty if it has none."""
        request = self._build("oslogin.v1 users.getLoginProfile", name=_login_name(account), projectId=project)
        with _login_errors(account):
            try:
                return self._attempt(request, LoginProfile.from_json)
            except ApiError as error:
                if error.response.is_not_found:
                    return LoginProfile((), ())
                raise

    def import_key(
        self, account: str, public: str, *, project: str, region: str, expires: datetime | None = None
    ) -> LoginProfile:
        """Add a public key, with or without an expiry, and return the profile, which then has a POSIX account.

        The service answers once the key is active in `region` [API field text].
        """
        body = {"key": " ".join(public.split()[:2]), **_key_expiry(expires)}
        request = self._build(
            "oslogin.v1 users.importSshPublicKey",
            parent=_login_name(account),
            projectId=project,
            regions=[region],
            body=body,
        )
        with _login_errors(account):
            # The service adds a repeated key once, so that a retry is harmless.
            return self._attempt(request, decoder_of(_Imported)).profile

    def set_expiry(self, account: str, key: LoginKey, expires: datetime | None) -> None:
        """Change the expiry of an existing key; None removes it, which is unverified."""
        name = f"{_login_name(account)}/sshPublicKeys/{key.fingerprint}"
        request = self._build(
            "oslogin.v1 users.sshPublicKeys.patch",
            name=name,
            updateMask="expirationTimeUsec",
            body=_key_expiry(expires),
        )
        with _login_errors(account):
            self._attempt(request, lambda _: None)

    def caller(self) -> str | None:
        """Return the e-mail address of the caller from Google's OpenID service; None if it does not say.

        It is unverified that it says so for every kind of token with the scope cloud-platform.
        """
        try:
            return self._attempt(ApiRequest("GET", _USER_INFO), decoder_of(_User)).email
        except (ApiError, TransportError):
            return None


def _login_name(account: str) -> str:
    if not _ACCOUNT.fullmatch(account):
        raise InvalidInputError(
            f"`{account}` is not a valid account", hint="set it with `gcloud config set account EMAIL`"
        )
    return f"users/{account}"


def _key_expiry(expires: datetime | None) -> dict[str, str]:
    return {"expirationTimeUsec": str(int(expires.timestamp()) * 1_000_000)} if expires else {}


@contextmanager
def _login_errors(account: str) -> Iterator[None]:
    try:
        yield
    except (TransportError, ApiError) as failure:
        error = translate(failure)
        is_denied = isinstance(failure, ApiError) and failure.response.code == 403
        if is_denied and error.error_id in {None, PERMISSION_DENIED}:
            hint = (
                "OS Login only answers for your own account: check your identity with `tpuctl config show`\n"
                "a login needs `roles/compute.osLogin` (`roles/compute.osAdminLogin` for sudo), and "
                "`roles/iam.serviceAccountUser` on the node's service account"
            )
            raise AccessError(f"OS Login refuses `{account}`: {error.message}", hint=hint) from failure
        raise error from failure

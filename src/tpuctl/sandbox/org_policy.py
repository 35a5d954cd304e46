"""Organization Policy v2: the constraints on a project.

Projects have no organisation here: only policies of the project itself apply, and a constraint without a policy has its
default.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import DEFAULT_PROJECT, ApiError, answers, list_response
from tpuctl.sandbox.catalog import number_of_project
from tpuctl.sandbox.representation import millisecond_timestamp
from tpuctl.sandbox.resource_manager import resolve_project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

ORG_POLICY_KIND = "orgpolicy.policy"


def put_org_policy(session: StateSession, name: str, spec: Json, *, project: str = DEFAULT_PROJECT) -> Json:
    """Store a project's policy for a constraint and return it; `spec` as in the API: `{"rules": [{"enforce": True}]}`.

    The name is the constraint, with `constraints/` or not, or that of a policy, whose project it names.
    """
    parts = name.split("/")
    project, constraint = parts[1] if len(parts) == 4 else project, parts[-1]
    document = {**spec, "updateTime": millisecond_timestamp(session.now)}
    session.resources.put(ORG_POLICY_KIND, project, constraint, document)
    return _policy_document(session, project, constraint)


def org_policy_denies_all(session: StateSession, project: str, constraint: str) -> bool:
    """Return whether a list constraint denies all values."""
    return any(rule.get("denyAll") for rule in _effective_spec(session, project, constraint)["rules"])


def is_constraint_enforced(session: StateSession, project: str, constraint: str) -> bool:
    """Return whether a boolean constraint is enforced."""
    return any(rule.get("enforce") for rule in _effective_spec(session, project, constraint)["rules"])


@answers("orgpolicy.projects.policies.get")
def _get_policy(session: StateSession, call: Call) -> Json:
    """Return the policy of the project itself: 404 if it has none (API method text)."""
    return _policy_document(session, *_parse_policy_name(session, str(call.params["name"])))


@answers("orgpolicy.projects.policies.list")
def _list_policies(session: StateSession, call: Call) -> Json:
    """List the policies of the project itself."""
    project = resolve_project(session, str(call.params["parent"]).partition("/")[2])
    names = [found.name for found in session.resources.list_records(ORG_POLICY_KIND, project)]
    return list_response(call, "policies", [_policy_document(session, project, name) for name in names])


@answers("orgpolicy.projects.policies.getEffectivePolicy")
def _get_effective_policy(session: StateSession, call: Call) -> Json:
    """Return the effective policy: without an etag (API field text)."""
    project, constraint = _parse_policy_name(session, str(call.params["name"]))
    return {"name": _policy_name(project, constraint), "spec": _effective_spec(session, project, constraint)}


@answers("orgpolicy.projects.policies.create", "orgpolicy.projects.policies.patch")
def _create_or_patch_policy(session: StateSession, call: Call) -> Json:
    """Store a policy: a create needs a new one, and a patch replaces a whole one (API method text)."""
    is_new = call.method.endswith(".create")
    project, constraint = _parse_policy_name(session, str((call.body if is_new else call.params).get("name") or ""))
    session.log_request(call.method, _policy_name(project, constraint))
    if is_new and session.resources.get(ORG_POLICY_KIND, project, constraint) is not None:
        raise ApiError(409, "ALREADY_EXISTS", "Requested entity already exists")  # unverified words
    if not is_new:
        _check_etag(_policy_document(session, project, constraint), call.body.get("etag"))
    spec = {key: value for key, value in (call.body.get("spec") or {}).items() if key not in {"etag", "updateTime"}}
    return put_org_policy(session, constraint, spec, project=project)


@answers("orgpolicy.projects.policies.delete")
def _delete_policy(session: StateSession, call: Call) -> Json:
    project, constraint = _parse_policy_name(session, str(call.params["name"]))
    session.log_request(call.method, _policy_name(project, constraint))
    _check_etag(_policy_document(session, project, constraint), call.params.get("etag"))
    session.resources.delete(ORG_POLICY_KIND, project, constraint)
    return {}


def _check_etag(current: Json, given: object) -> None:
    if given and given != current["etag"]:
        raise ApiError(409, "ABORTED", "The etag is not that of the policy as it is.")  # unverified words


def _parse_policy_name(session: StateSession, name: str) -> tuple[str, str]:
    """Return project and constraint of a policy's name. Raises `ApiError` 404 for an unknown constraint."""
    parts = name.split("/")
    constraint = parts[-1]
    if len(parts) != 4 or default_policy_spec(constraint) is None:
        raise _policy_not_found()
    return resolve_project(session, parts[1]), constraint


def _policy_document(session: StateSession, project: str, constraint: str) -> Json:
    spec = session.resources.get(ORG_POLICY_KIND, project, constraint)
    if spec is None:
        raise _policy_not_found()
    digest = hashlib.blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=16).digest()
    etag = base64.b64encode(digest).decode()
    return {"name": _policy_name(project, constraint), "spec": {**spec, "etag": etag}, "etag": etag}


def _effective_spec(session: StateSession, project: str, constraint: str) -> Json:
    kept = session.resources.get(ORG_POLICY_KIND, project, constraint) or {}
    # API method text: the returned policy is evaluated and has no conditions. Resources here have no tags that match them.
    rules = [rule for rule in kept.get("rules") or [] if not rule.get("condition")]
    if rules:
        return {"rules": rules}
    # Documentation: the default of a constraint is shown as a rule.
    return {"rules": [default_policy_spec(constraint) or {}]}


def _policy_name(project: str, constraint: str) -> str:
    # API field text: answers name the project by its number.
    return f"projects/{number_of_project(project)}/policies/{constraint}"


def _policy_not_found() -> ApiError:
    return ApiError(404, "NOT_FOUND", "Requested entity was not found.")


# The constraints that concern TPUs and related resources. Source: the documentation's list of constraints, without those of
# services that the sandbox does not serve.
_LISTS: Mapping[str, tuple[str, ...]] = {
    "compute": (
        *("disablePrivateServiceConnectCreationForConsumers", "requireSslPolicy", "requireVpcFlowLogs"),
        *("restrictCloudNATUsage", "restrictCrossProjectServices", "restrictDedicatedInterconnectUsage"),
        *(
            "restrictLoadBalancerCreationForTypes",
            "restrictNonConfidentialComputing",
            "restrictPartnerInterconnectUsage",
        ),
        *("restrictPrivateServiceConnectConsumer", "restrictPrivateServiceConnectProducer"),
        *("restrictProtocolForwardingCreationForTypes", "restrictSharedVpcBackendServices"),
        *("restrictSharedVpcHostProjects", "restrictSharedVpcSubnetworks", "restrictVpcPeering", "restrictVpnPeerIPs"),
        *("storageResourceUseRestrictions", "trustedImageProjects", "vmCanIpForward", "vmExternalIpAccess"),
    ),
    "gcp": (
        *("resourceLocations", "restrictCmekCryptoKeyProjects", "restrictEndpointUsage", "restrictNonCmekServices"),
        *("restrictServiceUsage", "restrictTLSCipherSuites", "restrictTLSVersion"),
    ),
    "iam": (
        *("allowedPolicyMemberDomains", "serviceAccountKeyExpiryHours"),
        *("workloadIdentityPoolAwsAccounts", "workloadIdentityPoolProviders"),
    ),
    "storage": ("restrictAuthTypes", "retentionPolicySeconds", "softDeletePolicySeconds"),
}
_BOOLEANS: Mapping[str, tuple[str, ...]] = {
    "compute": (
        *("disableAllIpv6", "disableGlobalCloudArmorPolicy", "disableGlobalLoadBalancing"),
        *("disableGlobalSelfManagedSslCertificate", "disableGlobalSerialPortAccess", "disableGuestAttributesAccess"),
        *("disableHybridCloudIpv6", "disableInstanceDataAccessApis", "disableInternetNetworkEndpointGroup"),
        *("disableNestedVirtualization", "disableNonFIPSMachineTypes", "disableSerialPortAccess"),
        *("disableSerialPortLogging", "disableSshInBrowser", "disableVpcExternalIpv6", "disableVpcInternalIpv6"),
        *("requireOsConfig", "requireOsLogin", "requireShieldedVm", "restrictXpnProjectLienRemoval"),
        *("setNewProjectDefaultToZonalDNSOnly", "skipDefaultNetworkCreation"),
    ),
    "gcp": ("detailedAuditLoggingMode", "disableCloudLogging"),
    "iam": (
        *("automaticIamGrantsForDefaultServiceAccounts", "disableAuditLoggingExemption"),
        *("disableServiceAccountCreation", "disableServiceAccountKeyCreation", "disableServiceAccountKeyUpload"),
        *("disableWorkloadIdentityClusterCreation", "restrictCrossProjectServiceAccountLienRemoval"),
        *("managed.disableServiceAccountKeyCreation", "managed.disableServiceAccountKeyUpload"),
        "managed.preventPrivilegedBasicRolesForDefaultServiceAccounts",
    ),
    "storage": ("publicAccessPrevention", "secureHttpTransport", "uniformBucketLevelAccess"),
}
# Documentation: the constraints that restrict something by default.
_RESTRICTING: Mapping[str, Json] = {
    "compute.managed.blockPreviewFeatures": {"enforce": True},
    "compute.sharedReservationsOwnerProjects": {"denyAll": True},
    "iam.allowServiceAccountCredentialLifetimeExtension": {"denyAll": True},
    "iam.disableCrossProjectServiceAccountUsage": {"enforce": True},
    "iam.managed.disableServiceAccountApiKeyCreation": {"enforce": True},
    "iam.serviceAccountKeyExposureResponse": {"values": {"allowedValues": ["DISABLE_KEY"]}},
}


def default_policy_spec(constraint: str) -> Json | None:
    """Return the rule that a constraint has by default. None for a constraint that does not exist."""
    service, _, name = constraint.partition(".")
    if service == "custom" or name in _BOOLEANS.get(service, ()):
        return {"enforce": False}
    if name in _LISTS.get(service, ()):
        return {"allowAll": True}
    return _RESTRICTING.get(constraint)

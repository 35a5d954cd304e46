"""The constraints of Organization Policy that concern TPUs and related resources, and their defaults.

Source: the documentation's list of constraints. Constraints of services that the sandbox does not serve are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Json

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


def default(constraint: str) -> Json | None:
    """Return the rule that a constraint has by default. None for a constraint that does not exist."""
    service, _, name = constraint.partition(".")
    if service == "custom" or name in _BOOLEANS.get(service, ()):
        return {"enforce": False}
    if name in _LISTS.get(service, ()):
        return {"allowAll": True}
    return _RESTRICTING.get(constraint)

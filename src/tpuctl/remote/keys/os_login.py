"""OS Login: whether it is enabled for a node, and what it requires. Pure.

Names of the switches and their order: gcloud 528 source (util/ssh/ssh.py) and Google's guest agent. A value of the node
overrides that of the project, FALSE too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import AccessError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENABLED = "enable-oslogin"
_SECOND_FACTOR = "enable-oslogin-2fa"
_SECURITY_KEY = "enable-oslogin-sk"
_CERTIFICATES = "enable-oslogin-certificates"
SWITCHES = (ENABLED, _SECOND_FACTOR, _SECURITY_KEY, _CERTIFICATES)


class OsLoginError(AccessError):
    """OS Login denies the login, or requires what tpuctl cannot provide."""

    kind = "os_login"


def is_on(switch: str, metadata: Mapping[str, str], project_metadata: Mapping[str, str]) -> bool:
    """Tell whether a switch is on for a node with this metadata. The case of its value does not matter."""
    return metadata.get(switch, project_metadata.get(switch, "")).strip().lower() == "true"


def check_demands(node: str, account: str, metadata: Mapping[str, str], project_metadata: Mapping[str, str]) -> None:
    """Raise `OsLoginError` if OS Login requires more than a key of this account, so that no login is attempted.

    Service accounts need no second factor [Compute Engine documentation]. For TPU VMs gcloud supports a second factor, but
    neither certificates nor security keys (528 source).
    """
    if is_on(_CERTIFICATES, metadata, project_metadata):
        raise _requirement_error(node, "a certificate signed by OS Login", _CERTIFICATES)
    if is_on(_SECURITY_KEY, metadata, project_metadata):
        raise _requirement_error(node, "a security key registered with the account", _SECURITY_KEY)
    if is_on(_SECOND_FACTOR, metadata, project_metadata) and not account.endswith(".gserviceaccount.com"):
        ways = (
            f"log in with gcloud, which asks for it: `gcloud compute tpus tpu-vm ssh {node}`",
            "or use a service account, which needs none: `--impersonate-service-account`",
        )
        raise _requirement_error(node, f"a second factor of `{account}`", _SECOND_FACTOR, *ways)


def _requirement_error(node: str, what: str, switch: str, *ways: str) -> OsLoginError:
    off = f"if your organization allows it, disable it for this node: `tpuctl update {node} --metadata {switch}=FALSE`"
    message = f"OS Login on `{node}` requires {what} (`{switch}`)"
    return OsLoginError(message, hint="\n".join((*ways, off)))

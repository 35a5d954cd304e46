"""OS Login: whether a node's workers take their users and keys from there, and what else they ask for. Pure.

Names of the switches and their order: gcloud 528 source (util/ssh/ssh.py) and Google's guest agent. A node's own value goes
before the project's, FALSE too.
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
    """OS Login keeps us out, or asks for what tpuctl cannot give."""

    kind = "os_login"


def is_on(switch: str, metadata: Mapping[str, str], project_metadata: Mapping[str, str]) -> bool:
    """Tell whether a switch is on for a node with this metadata, in any case of letters."""
    return metadata.get(switch, project_metadata.get(switch, "")).strip().lower() == "true"


def check_demands(node: str, account: str, metadata: Mapping[str, str], project_metadata: Mapping[str, str]) -> None:
    """Raise `OsLoginError` where OS Login wants more than a key of this account: nothing is tried then.

    A service account is never asked for a second factor [Compute Engine documentation]. For TPU VMs gcloud can be asked for
    a second factor, but knows neither certificates nor security keys (528 source).
    """
    if is_on(_CERTIFICATES, metadata, project_metadata):
        raise _demands(node, "a certificate that it signs itself", _CERTIFICATES)
    if is_on(_SECURITY_KEY, metadata, project_metadata):
        raise _demands(node, "a security key that is registered with the account", _SECURITY_KEY)
    if is_on(_SECOND_FACTOR, metadata, project_metadata) and not account.endswith(".gserviceaccount.com"):
        ways = (
            f"log in with what can be asked for it: `gcloud compute tpus tpu-vm ssh {node}`",
            "or be a service account, which is not asked: `--impersonate-service-account`",
        )
        raise _demands(node, f"a second factor of `{account}`", _SECOND_FACTOR, *ways)


def _demands(node: str, what: str, switch: str, *ways: str) -> OsLoginError:
    off = f"where that is allowed, switch it off for this node: `tpuctl update {node} --metadata {switch}=FALSE`"
    message = f"OS Login lets nobody into `{node}` without {what} (`{switch}`)"
    return OsLoginError(message, hint="\n".join((*ways, off)))

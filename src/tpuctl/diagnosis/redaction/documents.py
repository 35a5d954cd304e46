"""Documents of the API without what their metadata may hide: a value is shown where it is known to be harmless."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Switches of the guest and of tpuctl [documentation of metadata; gcloud 528 source].
_HARMLESS = frozenset(
    {
        *("enable-oslogin", "enable-oslogin-2fa", "enable-oslogin-sk", "enable-guest-attributes", "enable-osconfig"),
        *("block-project-ssh-keys", "serial-port-enable", "serial-port-logging-enable", "disable-legacy-endpoints"),
        *("google-logging-enabled", "google-monitoring-enabled", "vmdnssetting", "agent-node-id", "accelerator-type"),
        *("framework", "tpu-env-version", "physical-topology", "agent-worker-number"),
    }
)
# They are read like a log: what looks like a secret in them is taken out elsewhere.
_SCRIPTS = frozenset({"startup-script", "shutdown-script", "startup-script-url", "shutdown-script-url"})
_SUSPECT = re.compile(r"(?i)passw(?:or)?d|passphrase|secret|credential|token|[-_]?key|_pass|auth|cookie")
_KEYS = frozenset({"ssh-keys", "sshkeys"})


def without_secrets(document: Any) -> Any:  # JSON
    """Return a document of the API, or a line of the journal, whose metadata values are hidden unless they are harmless.

    Of ssh keys the logins and fingerprints are left; scripts are left as they are. An operation's own metadata is none.
    """
    if isinstance(document, list | tuple):
        return [without_secrets(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {key: _value(key, value) for key, value in document.items()}


def without_suspects(document: Any) -> Any:  # JSON
    """Return a document in which every value is hidden whose name may be that of a secret; the form stays."""
    if isinstance(document, list):
        return [without_suspects(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        key: "[hidden]" if _SUSPECT.search(str(key)) and not isinstance(value, dict | list) else without_suspects(value)
        for key, value in document.items()
    }


def _value(key: Any, value: Any) -> Any:  # JSON
    return _metadata(value) if key == "metadata" and _is_of_node(value) else without_secrets(value)


def _is_of_node(value: Any) -> bool:
    return isinstance(value, dict) and "@type" not in value


def _metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _shown(key, value) for key, value in values.items()}


def _shown(key: str, value: Any) -> Any:  # JSON
    if key.lower() in _HARMLESS or key.lower() in _SCRIPTS:
        return value
    if key.lower() in _KEYS and isinstance(value, str):
        return "\n".join(_described(line) for line in value.splitlines() if line.strip())
    return f"[hidden: {len(str(value))} characters]"


def _described(line: str) -> str:
    """Return of a line `LOGIN:TYPE BASE64 COMMENT` the login, the type and the fingerprint as ssh shows it."""
    login, _, key = line.strip().partition(":")
    words = key.split()
    try:
        digest = hashlib.sha256(base64.b64decode(words[1], validate=True)).digest()
    except (IndexError, binascii.Error):
        return "[hidden: not a key]"
    return f"{login}:{words[0]} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

"""Documents of the API without the values of metadata, except values known to be harmless."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any

# Switches of the guest and of tpuctl [documentation of metadata; gcloud 528 source].
_HARMLESS = frozenset(
    {
        *("enable-oslogin", "enable-oslogin-2fa", "enable-oslogin-sk", "enable-guest-attributes", "enable-osconfig"),
        *("block-project-ssh-keys", "serial-port-enable", "serial-port-logging-enable", "disable-legacy-endpoints"),
        *("google-logging-enabled", "google-monitoring-enabled", "vmdnssetting", "agent-node-id", "accelerator-type"),
        *("framework", "tpu-env-version", "physical-topology", "agent-worker-number"),
    }
)
# Treated like a log: text redaction removes the secrets in them.
_SCRIPTS = frozenset({"startup-script", "shutdown-script", "startup-script-url", "shutdown-script-url"})
_SUSPECT = re.compile(r"(?i)passw(?:or)?d|passphrase|secret|credential|token|[-_]?key|_pass|auth|cookie")
_KEYS = frozenset({"ssh-keys", "sshkeys"})


def without_secrets(document: Any) -> Any:  # JSON
    """Return a document of the API, or a line of the journal, whose metadata values are hidden unless they are harmless.

    Keeps the logins and fingerprints of ssh keys, and scripts. The metadata of an operation is not metadata of a node.
    """
    if isinstance(document, list | tuple):
        return [without_secrets(one) for one in document]
    if not isinstance(document, dict):
        return document
    shown: dict[str, Any] = {}
    for key, value in document.items():
        if key == "metadata" and isinstance(value, dict) and "@type" not in value:
            shown[key] = {name: _shown(name, text) for name, text in value.items()}
        else:
            shown[key] = without_secrets(value)
    return shown


def without_suspects(document: Any) -> Any:  # JSON
    """Return a document with every value hidden whose name may be that of a secret; the structure stays."""
    if isinstance(document, list):
        return [without_suspects(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        key: "[hidden]" if _SUSPECT.search(str(key)) and not isinstance(value, dict | list) else without_suspects(value)
        for key, value in document.items()
    }


def _shown(key: str, value: Any) -> Any:  # JSON
    if key.lower() in _HARMLESS or key.lower() in _SCRIPTS:
        return value
    if key.lower() in _KEYS and isinstance(value, str):
        return "\n".join(_fingerprint(line) for line in value.splitlines() if line.strip())
    return f"[hidden: {len(str(value))} characters]"


def _fingerprint(line: str) -> str:
    """Return the login, the type and the fingerprint of a line `LOGIN:TYPE BASE64 COMMENT`, as ssh prints them."""
    login, _, key = line.strip().partition(":")
    words = key.split()
    try:
        digest = hashlib.sha256(base64.b64decode(words[1], validate=True)).digest()
    except (IndexError, binascii.Error):
        return "[hidden: not a key]"
    return f"{login}:{words[0]} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

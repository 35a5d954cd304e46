"""Runs on worker 0: the one door through which answers of the TPU API and of the metadata server reach the guard.

Whatever an answer has, it becomes one of the values here, or a `GuardError`. It must run under Python 3.8.
"""

from __future__ import annotations

import email.utils
import json
import re

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

LONGEST_RESPONSE = 1 << 20
# A token of Google lasts an hour.
LONGEST_TOKEN_TIME = 12 * 3600
LATEST_TIME = 10**11
EXPIRY_TEXT = re.compile(r"[1-9][0-9]{8,10}")
NODE_ID = re.compile(r"[0-9]{1,40}")
TOKEN_TEXT = re.compile(r"[\x21-\x7e]{1,8192}")
# The reason of Google's error model: ACCESS_TOKEN_SCOPE_INSUFFICIENT.
MISSING_SCOPE = b"SCOPE_INSUFFICIENT"


class GuardError(Exception):
    """A request failed. `kind`: permission, scope, account (the worker has none), api (no usable answer), refused."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class GuardedNode:
    """What the guard reads of its node. `expires`: the end of its time, None without one."""

    def __init__(self, node_id: str, state: str, labels: dict[str, str], owner: str) -> None:
        self.id, self.state, self.labels, self.owner = node_id, state, labels, owner

    @property
    def is_kept(self) -> bool:
        """Whether the node is never deleted."""
        return "tpuctl-keep" in self.labels

    @property
    def expires(self) -> int | None:
        """The end of the node's time as its label has it, None for none: without the label, or while the node is kept."""
        text = self.labels.get("tpuctl-expires", "")
        return int(text) if EXPIRY_TEXT.fullmatch(text) and not self.is_kept else None


def decode_object(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object, None for anything else."""
    try:
        value = json.loads(data) if len(data) <= LONGEST_RESPONSE else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def parse_node(answer: dict[str, Any]) -> GuardedNode:
    """Return a node. Raises `GuardError`: an odd record says neither that the node was recreated nor when it ends."""
    labels, owner = answer.get("labels"), answer.get("queuedResource")
    labels = {} if labels is None else labels
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        raise GuardError("api", "the node's labels are no map of texts")
    node_id, state = answer.get("id"), answer.get("state")
    if not isinstance(node_id, str) or not NODE_ID.fullmatch(node_id):
        raise GuardError("api", "the node has no valid id")
    if not isinstance(state, str):
        raise GuardError("api", "the node has no valid state")
    return GuardedNode(node_id, state, labels, owner if isinstance(owner, str) else "")


def parse_error(code: int, answer: dict[str, Any], data: bytes, what: str) -> GuardError | None:
    """Return the error of an answer, None for a 404 from the API."""
    error = answer.get("error")
    if not isinstance(error, dict):
        return GuardError("api", "%s: HTTP %d and no error of the API" % (what, code))
    if code == 404 and error.get("status") == "NOT_FOUND":
        return None
    text = "%s: HTTP %d, %s" % (what, code, printed(error.get("message")))
    if code == 403 and MISSING_SCOPE in data:
        return GuardError("scope", text)
    return GuardError("permission" if code in {401, 403} else "api" if code == 429 or code >= 500 else "refused", text)


def parse_token(code: int, answer: dict[str, Any]) -> tuple[str, int]:
    """Return a token of the metadata server and how many seconds it lasts, 0 if that is unknown. Raises `GuardError`."""
    if code == 404:
        raise GuardError("account", "this worker has no service account")
    token, lasts = answer.get("access_token"), answer.get("expires_in")
    if code != 200 or not isinstance(token, str) or not TOKEN_TEXT.fullmatch(token):
        raise GuardError("api", "the metadata server gave no token (HTTP %d)" % code)
    return token, lasts if type(lasts) is int and 0 <= lasts <= LONGEST_TOKEN_TIME else 0


def parse_missing(code: int, answer: dict[str, Any], needed: list[str]) -> list[str]:
    """Return which of the needed permissions the account surely lacks."""
    granted = answer.get("permissions", [])
    if code != 200 or "error" in answer or not isinstance(granted, list):
        return []
    return [one for one in needed if one not in granted]


def parse_date(text: str) -> int | None:
    """Return the time of a `Date` header in seconds since 1970, None if it is none."""
    try:
        parsed = email.utils.parsedate_tz(text)
        found = None if parsed is None else int(email.utils.mktime_tz(parsed))
    except (ValueError, TypeError, IndexError, OverflowError):  # such as a year beyond the calendar
        return None
    return found if found is not None and 0 < found < LATEST_TIME else None


def printed(value: Any) -> str:
    """Return a text from outside in one short line without control characters."""
    text = value if isinstance(value, str) else "no text"
    return "".join(char if char.isprintable() else "?" for char in text[:200])[:100]

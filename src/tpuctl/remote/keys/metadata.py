"""The value `ssh-keys` in the metadata of a node or a project: lines with authorized keys. Pure.

A line is `LOGIN:TYPE BASE64 COMMENT`, or `LOGIN:TYPE BASE64 google-ssh {"userName":"NAME","expireOn":"TIME"}`, which expires
at that time [Compute Engine documentation; gcloud 528 source: compute/ssh_utils.py].
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.shapes import parse_json

if TYPE_CHECKING:
    from tpuctl.remote.keys.pair import SshKey

_LINE = re.compile(r"(?P<login>[^:\s]+):(?P<kind>\S+)\s+(?P<blob>\S+)(?:\s+(?P<comment>.*))?")
_GOOGLE = "google-ssh"
# A line that expires sooner is replaced if the caller wants no expiry, because a session may reconnect for a while.
_MIN_VALIDITY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _MetadataKey:
    """A parsed line. `is_google`: it has the form that may expire; `expires` is None if it never does."""

    login: str
    kind: str
    blob: str
    is_google: bool
    expires: datetime | None

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

    def is_same(self, other: _MetadataKey) -> bool:
        return (self.login, self.kind, self.blob) == (other.login, other.kind, other.blob)


def metadata_entry(login: str, key: SshKey, *, expires: datetime | None = None) -> str:
    """Return the line that authorizes a key for `login`, as gcloud writes it. `expires` is rounded to seconds.

    The console rejects JSON with spaces, so it has none [gcloud 528 source].
    """
    kind, blob = key.public.split()[:2]
    if expires is None:
        return f"{login}:{kind} {blob} {login}"
    until = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")
    words = json.dumps({"userName": login, "expireOn": until}, separators=(",", ":"))
    return f"{login}:{kind} {blob} {_GOOGLE} {words}"


def holds_key(existing: str, entry: str, *, now: datetime | None = None) -> bool:
    """Tell whether a value authorizes the login and key of `entry`. Comments do not matter.

    A line that expires counts if it has half the remaining validity of `entry` at `now`, or an hour if `entry` never expires.
    Without `now` only lines that never expire count, and a line equal to `entry`.
    """
    wanted = _parse(entry)
    lines = [line.strip() for line in existing.splitlines()]
    if wanted is None or (now is None and entry in lines):
        return entry in lines
    found = (one for one in map(_parse, lines) if one is not None and one.is_same(wanted))
    return any(_is_valid_long_enough(one, wanted, now) for one in found)


def end_of(existing: str, entry: str) -> tuple[bool, datetime | None]:
    """Tell whether a value has the login and key of `entry`, and when the last of its lines expires (None: never)."""
    wanted = _parse(entry)
    found = [one for one in map(_parse, existing.splitlines()) if one and wanted and one.is_same(wanted)]
    ends = [one.expires for one in found if one.expires is not None]
    return bool(found), max(ends) if found and len(ends) == len(found) else None


def with_key(existing: str, entry: str, *, now: datetime | None = None) -> str:
    """Return the value with `entry` added, unchanged if it `holds_key` already.

    Replaces a line of the same login and key that expires. With `now`, removes expired lines of the same login in Google's
    form. All other lines stay unchanged, also lines that cannot be parsed.
    """
    if holds_key(existing, entry, now=now):
        return existing
    wanted = _parse(entry)
    kept = []
    for line in filter(str.strip, existing.splitlines()):
        found = _parse(line)
        if found is not None and wanted is not None and found.is_google and found.login == wanted.login:
            is_expired = now is not None and found.is_expired(now)
            if found.is_same(wanted) or is_expired:
                continue
        kept.append(line)
    return "\n".join([*kept, entry])


def _is_valid_long_enough(found: _MetadataKey, wanted: _MetadataKey, now: datetime | None) -> bool:
    if found.expires is None:
        return not found.is_google
    if now is None:
        return False
    least = (wanted.expires - now) / 2 if wanted.expires else _MIN_VALIDITY
    return found.expires - now >= least


def _parse(line: str) -> _MetadataKey | None:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    form, _, words = (match["comment"] or "").partition(" ")
    expires = None
    if words:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            expires = parse_timestamp(parse_json(words)["expireOn"])
    return _MetadataKey(match["login"], match["kind"], match["blob"], form == _GOOGLE, expires)

"""The value `ssh-keys` of a node's or a project's metadata: lines that let somebody in. Pure.

A line is `LOGIN:TYPE BASE64 COMMENT`, or `LOGIN:TYPE BASE64 google-ssh {"userName":"NAME","expireOn":"TIME"}`, which counts
until that time [Compute Engine documentation; gcloud 528 source: compute/ssh_utils.py].
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.shapes import parse_json

if TYPE_CHECKING:
    from tpuctl.remote.keys.pair import SshKey

_LINE = re.compile(r"(?P<login>[^:\s]+):(?P<kind>\S+)\s+(?P<blob>\S+)(?:\s+(?P<comment>.*))?")
_GOOGLE = "google-ssh"
# A line that ends sooner is written anew by who asked for no end: what is begun now may connect again for a while.
_ENOUGH = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line that is understood. `is_google` is the form with an end; `expires` is nothing where it has none."""

    login: str
    kind: str
    blob: str
    is_google: bool
    expires: datetime | None

    def is_over(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

    def is_same(self, other: _Entry) -> bool:
        return (self.login, self.kind, self.blob) == (other.login, other.kind, other.blob)


def metadata_entry(login: str, key: SshKey, *, expires: datetime | None = None) -> str:
    """Return the line that lets `login` in, as gcloud writes it, for ever or until a time (to the second).

    JSON with a space in it is refused by the console, so there is none [gcloud 528 source].
    """
    kind, blob = key.public.split()[:2]
    if expires is None:
        return f"{login}:{kind} {blob} {login}"
    until = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")
    words = json.dumps({"userName": login, "expireOn": until}, separators=(",", ":"))
    return f"{login}:{kind} {blob} {_GOOGLE} {words}"


def holds_key(existing: str, entry: str, *, now: datetime | None = None) -> bool:
    """Tell whether a value lets in whom `entry` would: the same login with the same key, whatever its comment.

    A line that ends counts while it lasts for half of what `entry` would last from `now`, or for an hour where that has no
    end. Without `now` only lines without an end count, and the very same line.
    """
    wanted = _parse(entry)
    lines = [line.strip() for line in existing.splitlines()]
    if wanted is None or (now is None and entry in lines):
        return entry in lines
    found = (one for one in map(_parse, lines) if one is not None and one.is_same(wanted))
    return any(_lasts(one, wanted, now) for one in found)


def end_of(existing: str, entry: str) -> tuple[bool, datetime | None]:
    """Tell whether a value has the login and key of `entry` at all, and when the line that lasts longest ends, if it does."""
    wanted = _parse(entry)
    found = [one for one in map(_parse, existing.splitlines()) if one and wanted and one.is_same(wanted)]
    ends = [one.expires for one in found if one.expires is not None]
    return bool(found), max(ends) if found and len(ends) == len(found) else None


def with_key(existing: str, entry: str, *, now: datetime | None = None) -> str:
    """Return a value with a line added, unless it `holds_key` already.

    A line of the same login and key that ends is replaced; with `now`, lines of the same login in Google's form that have
    ended are left out. All others stay as they are, those that are not understood too.
    """
    if holds_key(existing, entry, now=now):
        return existing
    wanted = _parse(entry)
    kept = [line for line in existing.splitlines() if line.strip() and not _is_stale(line, wanted, now)]
    return "\n".join([*kept, entry])


def _lasts(found: _Entry, wanted: _Entry, now: datetime | None) -> bool:
    if found.expires is None:
        return not found.is_google
    if now is None:
        return False
    least = (wanted.expires - now) / 2 if wanted.expires else _ENOUGH
    return found.expires - now >= least


def _is_stale(line: str, wanted: _Entry | None, now: datetime | None) -> bool:
    found = _parse(line)
    if found is None or wanted is None or not found.is_google or found.login != wanted.login:
        return False
    return found.is_same(wanted) or (now is not None and found.is_over(now))


def _parse(line: str) -> _Entry | None:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    form, _, words = (match["comment"] or "").partition(" ")
    return _Entry(match["login"], match["kind"], match["blob"], form == _GOOGLE, _end(words) if words else None)


def _end(words: str) -> datetime | None:
    """Return when the words after `google-ssh` end; nothing where they do not say."""
    try:
        return parse_timestamp(parse_json(words)["expireOn"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

"""The access token that one command leaves for the next, which then needs neither a request for a token nor google-auth.

Only tokens of keys of service accounts and of logins of users are cached: those of other credentials depend on more than their
file. An impersonated account's token is never cached.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.clock import SystemClock
from tpuctl.cloud.credentials_file import read_credentials_file
from tpuctl.decoding import ShapeError, Text, decode, parse_json
from tpuctl.durations import format_timestamp
from tpuctl.files import private_folder_problem, read_regular_file, replace_private_file, secure_private_folder
from tpuctl.models.api_values import ApiTime

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from pathlib import Path

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_CACHED_TYPES = frozenset({"service_account", "authorized_user"})
_LONGEST_ENTRY = 16 << 10
# A token that expires during a command would cost a request that is refused.
_MARGIN = timedelta(minutes=5)
# Tokens are valid for an hour, or for twelve if the organization permits it [documentation: lifetime of access tokens].
_LONGEST_LIFETIME = timedelta(hours=12)
# A token's file, and the draft of one that was interrupted.
_OWN_NAME = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.[0-9a-f]{8}")
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class _Entry:
    token: Annotated[str, Text(pattern=r"[\x21-\x7e]{1,8192}", words="a token")]
    expires: ApiTime


class CachedCredentials:
    """Stands in for the credentials of google-auth, and loads them only if no token is cached.

    One thread at a time may use it. What cannot be read or written is not cached.
    """

    def __init__(self, source: Path, folder: Path, load: Callable[[], Any]) -> None:
        """`source` is the credentials file, from which `load` returns the credentials; `folder` has the cached tokens."""
        self._source, self._folder, self._load = source, folder, load
        self._quota_project: str | None = None
        # Another content is another account: the digest names the file with the token.
        self._digest = self._read_source()
        self._token, self._expires = self._read_token()
        self._credentials: Any = None

    def before_request(self, request: Any, method: str, url: str, headers: MutableMapping[str, str]) -> None:
        """Add the headers with the token, as google-auth does."""
        lasts = self._expires is not None and _MARGIN < self._expires - _CLOCK.now() <= _LONGEST_LIFETIME
        if self._credentials is None and lasts:
            headers["authorization"] = f"Bearer {self._token}"
            if self._quota_project:
                headers["x-goog-user-project"] = self._quota_project
            return
        self._loaded().before_request(request, method, url, headers)
        self._write_token()

    def refresh(self, request: Any) -> None:
        """Fetch another token: the service has rejected the present one."""
        if self._digest and private_folder_problem(self._folder) is None:
            with suppress(OSError):
                (self._folder / self._digest).unlink()
        self._loaded().refresh(request)
        self._write_token()

    def _loaded(self) -> Any:  # google-auth's credentials
        if self._credentials is None:
            self._credentials = self._load()
        return self._credentials

    def _read_source(self) -> str | None:
        """Return the digest of the credentials file; None if its tokens are not cached."""
        try:
            data, content = read_credentials_file(self._source)
        except (OSError, ShapeError):
            return None  # reported when they are loaded
        if data["type"] not in _CACHED_TYPES:
            return None
        self._quota_project = data.get("quota_project_id")
        return hashlib.sha256(" ".join(SCOPES).encode() + content).hexdigest()

    def _read_token(self) -> tuple[str, datetime | None]:
        """Return the token and its end; None if there is no file that only this user can have written."""
        if self._digest is None or private_folder_problem(self._folder) is not None:
            return "", None
        try:
            content, status = read_regular_file(self._folder / self._digest, longest=_LONGEST_ENTRY)
            entry = decode(_Entry, parse_json(content))
        except (OSError, ValueError):
            return "", None
        is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        return entry.token, entry.expires if is_private else None

    def _write_token(self) -> None:
        token, expires = self._credentials.token, self._credentials.expiry
        # The file may have been replaced before the credentials were loaded from it.
        if token == self._token or expires is None or self._digest is None or self._read_source() != self._digest:
            return
        self._token, self._expires = token, expires.replace(tzinfo=UTC)  # google-auth's times have no time zone
        entry = {"token": token, "expires": format_timestamp(self._expires)}
        with suppress(OSError):
            secure_private_folder(self._folder)
            replace_private_file(self._folder / self._digest, json.dumps(entry).encode())
            for old in self._folder.iterdir():
                is_own = _OWN_NAME.fullmatch(old.name) is not None
                if is_own and _CLOCK.now().timestamp() - old.lstat().st_mtime > _LONGEST_LIFETIME.total_seconds():
                    old.unlink()

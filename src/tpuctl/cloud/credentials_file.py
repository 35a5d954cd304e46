"""The file of credentials, checked against a shape before google-auth or a header gets a value of it.

google-auth checks little: a list for a text is an error of Python there, and a line end in a project ends a header. An error of
this module names the field, never its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from tpuctl.decoding import ShapeError, Text, parse_json, read_fields
from tpuctl.files import read_regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# A credentials file holds a key and a few addresses.
LONGEST_CREDENTIALS_FILE: Final = 1 << 20
_Line = Annotated[str, Text(20_000, r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*", "text on one line")]
_Url = Annotated[str, Text(2010, r"https?://[\x21-\x7e]{1,2000}", "a URL")]
_Project = Annotated[str, Text(pattern=r"(?:[a-z0-9.-]{1,253}:)?[a-z0-9][-a-z0-9]{0,62}|", words="a project id")]


@dataclass(frozen=True, slots=True)
class _Source:
    """The fields that google-auth reads [google-auth source: load_credentials_from_file]. Null is absent."""

    SNAKE_CASE: ClassVar = True

    type: Annotated[str, Text(pattern=r"[a-z_]{1,64}", words="a kind of credentials")]
    quota_project_id: _Project | None = None
    universe_domain: Annotated[str, Text(pattern=r"[A-Za-z0-9.-]{1,253}", words="a domain")] | None = None
    private_key: Annotated[str, Text()] | None = None
    client_email: _Line | None = None
    client_id: _Line | None = None
    client_secret: _Line | None = None
    refresh_token: _Line | None = None
    private_key_id: _Line | None = None
    account: _Line | None = None
    audience: _Line | None = None
    subject_token_type: _Line | None = None
    workforce_pool_user_project: _Line | None = None
    project_id: _Line | None = None
    expiry: _Line | None = None
    token_uri: _Url | None = None
    token_url: _Url | None = None
    token_info_url: _Url | None = None
    service_account_impersonation_url: _Url | None = None
    delegates: tuple[_Line, ...] | None = None
    credential_source: Any = None


@dataclass(frozen=True, slots=True)
class _Credentials(_Source):
    source_credentials: _Source | None = None


def read_credentials_file(path: Path) -> tuple[Mapping[str, Any], bytes]:
    """Return the fields of a credentials file, and its content.

    Raises `OSError` if it cannot be read, and `ShapeError` if it contains no credentials, with a path if it does but a field is
    invalid.
    """
    # google-auth would block on a pipe, and read an endless device.
    content, _ = read_regular_file(path, longest=LONGEST_CREDENTIALS_FILE)
    data = parse_json(content)
    if not isinstance(data, dict) or not data.get("type"):
        raise ShapeError("no credentials")
    read_fields(_Credentials, data)
    return data, content

"""The file of credentials, checked against a shape before google-auth or a header gets a value of it.

google-auth checks little: a list for a text is an error of Python there, and a line end in a project ends a header. An error of
this module names the field, never its value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpuctl.files import read_regular_file
from tpuctl.shapes import ANY, Fields, ListOf, Shape, ShapeError, parse_json, text_matching

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# A credentials file holds a key and a few addresses.
LONGEST_CREDENTIALS_FILE: Final = 1 << 20
_LINE: Final = text_matching(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{0,20000}", "text on one line")
_URL: Final = text_matching(r"https?://[\x21-\x7e]{1,2000}", "a URL")
_PROJECT: Final = text_matching(r"(?:[a-z0-9.-]{1,253}:)?[a-z0-9][-a-z0-9]{0,62}|", "a project id")
# The fields that google-auth reads [google-auth source: load_credentials_from_file].
_FIELDS: Final[Fields] = {
    "type": text_matching(r"[a-z_]{1,64}", "a kind of credentials"),
    "quota_project_id": _PROJECT,
    "universe_domain": text_matching(r"[A-Za-z0-9.-]{1,253}", "a domain"),
    "private_key": str,
    **dict.fromkeys(
        ("client_email", "client_id", "client_secret", "refresh_token", "private_key_id", "account"), _LINE
    ),
    **dict.fromkeys(("audience", "subject_token_type", "workforce_pool_user_project", "project_id", "expiry"), _LINE),
    **dict.fromkeys(("token_uri", "token_url", "token_info_url", "service_account_impersonation_url"), _URL),
    "delegates": ListOf(_LINE),
    "credential_source": ANY,
}
_CREDENTIALS: Final = Shape(
    "",
    {**_FIELDS, "source_credentials": Shape("", _FIELDS, required=("type",), nullable=True)},
    required=("type",),
    nullable=True,
)


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
    return _CREDENTIALS.read(data), content

"""Credentials: what their file says of itself, and whether a token can be had. No token is kept."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tpuctl import gcloud
from tpuctl.actions.checkup.files import entry, text_of
from tpuctl.api.errors import credential_failure, translate
from tpuctl.api.failures import TransportError
from tpuctl.checkup.surroundings.facts import CredentialFile, Identity, NoToken, Token
from tpuctl.errors import CredentialsError
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown
from tpuctl.shapes import Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from tpuctl.actions.checkup.ways import TokenAccess, Ways
    from tpuctl.settings import Settings

_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# What it is told stays between it and us: the token is in the body, which nothing logs [documentation: tokeninfo].
_ASKED_OF_TOKENS = "https://oauth2.googleapis.com/tokeninfo"
_TOKEN_INFO = Shape("oauth2.v2 Tokeninfo", {"scope": str, "email": str})


def look(ways: Ways, settings: Settings | None, token: Fact[Token | NoToken] | None) -> Identity:
    """Return whose name calls are made in, as files and settings say; in a sandbox nothing of that is read."""
    if ways.is_local:
        return Identity(needed=False, file=Absent())
    named = ways.environ.get(_VARIABLE)
    return Identity(
        file=read_file(ways),
        named_by=_VARIABLE if named else None,
        token=token,
        impersonated=settings.text("impersonate_service_account") if settings else None,
        gcloud_account=settings.text("account") if settings else None,
        quota_project=settings.text("quota_project") if settings else None,
    )


def read_file(ways: Ways) -> Fact[CredentialFile]:
    """Return what the file of credentials says of itself; absent where there is none, and no variable names one."""
    source = _VARIABLE if ways.environ.get(_VARIABLE) else None
    path = gcloud.adc_path(ways.environ)
    text = text_of(path)
    if isinstance(text, Absent):
        return Unknown(f"there is no `{path}`") if source else text
    if isinstance(text, Unknown):
        return Unknown(f"`{path}`: {text.reason}")
    try:
        about = parse_json(text.value)
        kind = about.get("type") if isinstance(about, dict) else None
    except ShapeError:
        kind = None
    if not isinstance(kind, str):
        return Unknown(f"`{path}` holds no credentials")
    account = about.get("client_email") or about.get("account")
    quota = about.get("quota_project_id")
    return Known(
        CredentialFile(
            entry(path),
            kind,
            source,
            account if isinstance(account, str) and account else None,
            quota if isinstance(quota, str) and quota else None,
        )
    )


def fetch(access: TokenAccess) -> Token | NoToken:
    """Fetch a token, and ask Google about it. Raises `ServiceUnavailableError` where the network is to blame."""
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # 20 ms

    try:
        credentials = access.load()
        request = access.request()
        try:
            if not credentials.valid:
                credentials.refresh(request)
            return _described(credentials, request)
        finally:
            request.close()
    except CredentialsError as error:
        return _refused(error)
    except GoogleAuthError as error:
        failure = credential_failure(error)
        if isinstance(failure, TransportError):
            raise translate(failure) from error
        return _refused(failure)


def _described(credentials: Any, request: Any) -> Token:  # google-auth ships no types
    from tpuctl.credentials import account_of  # noqa: PLC0415  # google-auth costs 100 ms

    about: dict[str, Any] = {}
    with suppress(Exception):  # whatever keeps Google from telling, the token is there
        about = _told_of(str(credentials.token), request)
    scopes = str(about.get("scope") or "").split()
    expiry = credentials.expiry
    return Token(
        account=account_of(credentials, request) or about.get("email"),
        scopes=frozenset(scopes) if scopes else None,
        expires=expiry.replace(tzinfo=UTC) if expiry else None,
    )


def _told_of(token: str, request: Any) -> dict[str, Any]:  # as above
    answer = request(
        _ASKED_OF_TOKENS,
        method="POST",
        body=urlencode({"access_token": token}).encode(),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    told = dict(_TOKEN_INFO.read(parse_json(answer.data)))
    return told if answer.status == 200 else {}


def _refused(error: Exception) -> NoToken:
    advice = (getattr(error, "hint", None) or "").splitlines()
    return NoToken(str(error), tuple(advice), getattr(error, "error_id", None))

"""Read the credentials file and fetch an access token. No token is kept."""

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
# The token is sent in the body, which no proxy logs [documentation: tokeninfo].
_ASKED_OF_TOKENS = "https://oauth2.googleapis.com/tokeninfo"
_TOKEN_INFO = Shape("oauth2.v2 Tokeninfo", {"scope": str, "email": str})


def look(context: Ways, settings: Settings | None, token: Fact[Token | NoToken] | None) -> Identity:
    """Return the account that calls are made as, from files and settings. For a sandbox none of them is read."""
    if context.is_local:
        return Identity(needed=False, file=Absent())
    named = context.environ.get(_VARIABLE)
    return Identity(
        file=read_file(context),
        named_by=_VARIABLE if named else None,
        token=token,
        impersonated=settings.text("impersonate_service_account") if settings else None,
        gcloud_account=settings.text("account") if settings else None,
        quota_project=settings.text("quota_project") if settings else None,
    )


def read_file(context: Ways) -> Fact[CredentialFile]:
    """Return the contents of the credentials file, without secrets. Absent if there is no file and no variable names one."""
    source = _VARIABLE if context.environ.get(_VARIABLE) else None
    path = gcloud.adc_path(context.environ)
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
        return Unknown(f"`{path}` contains no credentials")
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
    """Fetch a token, and ask Google for its properties. Raises `ServiceUnavailableError` if the network fails."""
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # 20 ms

    try:
        credentials = access.load()
        request = access.request()
        try:
            if not credentials.valid:
                credentials.refresh(request)
            return _describe_token(credentials, request)
        finally:
            request.close()
    except CredentialsError as error:
        return _refused(error)
    except GoogleAuthError as error:
        failure = credential_failure(error)
        if isinstance(failure, TransportError):
            raise translate(failure) from error
        return _refused(failure)


def _describe_token(credentials: Any, request: Any) -> Token:  # google-auth ships no types
    from tpuctl.credentials import account_of  # noqa: PLC0415  # google-auth costs 100 ms

    about: dict[str, Any] = {}
    with suppress(Exception):  # without the answer the properties are unknown, but the token is valid
        answer = request(
            _ASKED_OF_TOKENS,
            method="POST",
            body=urlencode({"access_token": str(credentials.token)}).encode(),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        properties = dict(_TOKEN_INFO.read(parse_json(answer.data)))
        about = properties if answer.status == 200 else {}
    scopes = str(about.get("scope") or "").split()
    expiry = credentials.expiry
    return Token(
        account=account_of(credentials, request) or about.get("email"),
        scopes=frozenset(scopes) if scopes else None,
        expires=expiry.replace(tzinfo=UTC) if expiry else None,
    )


def _refused(error: Exception) -> NoToken:
    advice = (getattr(error, "hint", None) or "").splitlines()
    return NoToken(str(error), tuple(advice), getattr(error, "error_id", None))

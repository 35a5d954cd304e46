"""Whose name calls are made in: the credentials of a file, of the machine, or of gcloud.

google-auth's own search is not used: with a user's file it starts `gcloud` to learn a project that nobody needs here.
No program is started while a file names the credentials. Importing this costs 85 ms, so who needs no cloud does not.
"""

from __future__ import annotations

import http.client
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import google.auth
import google.auth.credentials
from google.auth import exceptions

from tpuctl.bounded_input import read_file
from tpuctl.clock import SystemClock
from tpuctl.errors import AccessError, CredentialsError

SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)

# Off Google Cloud nothing answers at that address, and often nothing refuses either.
_METADATA_TIMEOUT_SECONDS: Final = 0.5
_METADATA_ADDRESS: Final = "169.254.169.254"
# google-auth renews a token almost four minutes before its end.
_GCLOUD_TOKEN_LIFETIME: Final = timedelta(minutes=10)
# Such a file holds a key and a few addresses.
_LONGEST_FILE: Final = 1 << 20
_LOGIN: Final = "run `gcloud auth application-default login`"

Credentials = Any  # google.auth.credentials.Credentials, or anything that behaves so


def load(
    environ: Mapping[str, str],
    *,
    adc: Path,
    gcloud_token: Callable[[], str],
    impersonate: tuple[str, ...] | str | None,
    quota_project: str | None,
    request: Any,  # a google.auth.transport.Request
) -> Credentials:
    """Return the first credentials found: `GOOGLE_APPLICATION_CREDENTIALS`, `adc`, the metadata server, gcloud's token.

    `impersonate` is a service account, or a chain of them whose last is acted as (a string separates them by commas).
    `request` reaches the sources of tokens; no token is fetched here but gcloud's. Raises `CredentialsError` that says where
    was looked, and the command that helps.
    """
    credentials = _found(environ, adc, gcloud_token, request)
    chain = tuple(part.strip() for part in impersonate.split(",")) if isinstance(impersonate, str) else impersonate
    if chain:
        credentials = _impersonated(credentials, chain)
    if quota_project and hasattr(credentials, "with_quota_project"):
        credentials = credentials.with_quota_project(quota_project)
    return credentials


def account_of(credentials: Credentials, request: Any) -> str | None:
    """Return the e-mail address that calls are made as, where the credentials tell; those of users often do not.

    Those of the metadata server learn theirs with their first token, which is fetched by `request` (a
    google.auth.transport.Request). Raises what google-auth raises if that fails.
    """
    email = getattr(credentials, "service_account_email", None)
    if email == "default":
        credentials.refresh(request)
        email = credentials.service_account_email
    found = email or getattr(credentials, "account", None)
    return found if isinstance(found, str) and "@" in found else None


class GcloudCredentials(google.auth.credentials.Credentials):
    """The token of gcloud's account. It is asked for again every few minutes, since gcloud alone knows its age.

    Impersonation needs that: a source's token that has expired is then never met with the 401 that would renew it.
    """

    def __init__(self, access_token: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # google-auth's signatures are partly untyped
        self._access_token = access_token
        self.refresh(None)

    def refresh(self, _request: object) -> None:
        """Ask gcloud for a token again. Raises what `access_token` raises."""
        self.token = self._access_token()
        # google-auth compares with the machine's time, in UTC without a time zone.
        self.expiry = SystemClock().now().replace(tzinfo=None) + _GCLOUD_TOKEN_LIFETIME


def is_on_google_cloud(environ: Mapping[str, str]) -> bool:
    """Return whether the metadata server answers, within half a second; `NO_GCE_CHECK=true` means no.

    Source: google-auth, compute_engine/_metadata.py (the variables, and the header of the answer).
    """
    if environ.get("NO_GCE_CHECK", "").lower() == "true":
        return False
    address = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP") or _METADATA_ADDRESS
    connection = http.client.HTTPConnection(address, timeout=_METADATA_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().headers.get("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _found(environ: Mapping[str, str], adc: Path, gcloud_token: Callable[[], str], request: Any) -> Credentials:
    if named := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return _from_file(Path(named), request, source="GOOGLE_APPLICATION_CREDENTIALS")
    if adc.exists():
        return _from_file(adc, request, source="application default credentials")
    if is_on_google_cloud(environ):
        from google.auth import compute_engine  # noqa: PLC0415  # 90 ms more

        make: Any = compute_engine.Credentials  # its signature is untyped
        return make(scopes=list(SCOPES))
    try:
        return GcloudCredentials(gcloud_token)
    except AccessError as error:
        looked = f"GOOGLE_APPLICATION_CREDENTIALS, `{adc}`, the metadata server and gcloud"
        hint = f"{_LOGIN}, or set GOOGLE_APPLICATION_CREDENTIALS"
        hint = f"{error.hint}\n{hint}" if error.hint else hint
        message = f"no credentials were found; looked at {looked}: {error.message}"
        raise CredentialsError(message, hint=hint, error_id=error.error_id) from error


def _from_file(path: Path, request: Any, *, source: str) -> Credentials:
    try:
        # google-auth would wait for the writer of a pipe, and read a device without an end.
        read_file(path, longest=_LONGEST_FILE)
        with warnings.catch_warnings():
            # Both are advice to authors of programs: check the type of a file that others gave, and name a quota project.
            warnings.filterwarnings("ignore", message="The load_credentials_from_file method is deprecated")
            warnings.filterwarnings(
                "ignore", message=r"\s*Your application has authenticated using end user credentials"
            )
            read: Any = google.auth.load_credentials_from_file  # its signature is untyped
            # Given scopes, it would fetch a token for workload identity here, and ask for a project's id with it.
            credentials, _ = read(str(path), request=request)
            scoped: Any = google.auth.credentials.with_scopes_if_required  # as above
            return scoped(credentials, list(SCOPES))
    except exceptions.DefaultCredentialsError as error:
        said = str(error.args[0]) if error.args else "it holds no credentials"
        raise CredentialsError(f"the credentials of {source} cannot be used: {said}", hint=_LOGIN) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # What a JSON file of another shape makes google-auth raise. The error may quote the file: it is not repeated.
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no credentials"
        raise CredentialsError(
            f"the credentials file `{path}` of {source} cannot be used: {why}", hint=_LOGIN
        ) from error


def _impersonated(source: Credentials, chain: tuple[str, ...]) -> Credentials:
    from google.auth import impersonated_credentials  # noqa: PLC0415  # only who impersonates

    make: Any = impersonated_credentials.Credentials  # its signature is untyped
    return make(
        source_credentials=source,
        target_principal=chain[-1],
        target_scopes=list(SCOPES),
        delegates=list(chain[:-1]),
    )

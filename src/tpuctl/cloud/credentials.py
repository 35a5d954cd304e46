"""Find the credentials for API calls: in a file, from the metadata server, or from gcloud.

google-auth's own search is not used: with a user's file it starts `gcloud` to learn a project that is not needed here.
No program is started while a file names the credentials. Importing this module takes 85 ms: import it inside functions.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import google.auth
import google.auth.credentials
from google.auth import exceptions

from tpuctl.clock import SystemClock
from tpuctl.cloud.credentials_file import read_credentials_file
from tpuctl.cloud.token_cache import SCOPES
from tpuctl.decoding import ShapeError
from tpuctl.errors import SANDBOX_HINT, AccessError, CredentialsError
from tpuctl.explain.messages import MessageOrigin, classify

# Off Google Cloud nothing answers at that address, and often nothing refuses either.
_METADATA_TIMEOUT_SECONDS: Final = 0.5
_METADATA_ADDRESS: Final = "169.254.169.254"
# google-auth renews a token almost four minutes before its end.
_GCLOUD_TOKEN_LIFETIME: Final = timedelta(minutes=10)
_LOGIN: Final = "run `gcloud auth application-default login`"

Credentials = Any  # google.auth.credentials.Credentials, or anything that behaves so


def load_credentials(
    environ: Mapping[str, str],
    *,
    adc: Path,
    gcloud_token: Callable[[], str],
    impersonate: tuple[str, ...] | str | None,
    quota_project: str | None,
    request: Any,  # a google.auth.transport.Request
) -> Credentials:
    """Return the first credentials of `GOOGLE_APPLICATION_CREDENTIALS`, `adc`, the metadata server, gcloud's token.

    `impersonate` is a service account, or a chain of which the last is impersonated (comma-separated in a string).
    `request` is the transport to the sources of tokens; only gcloud's token is fetched here. Raises `CredentialsError` with
    the searched places and a command that fixes it.
    """
    credentials = _find_credentials(environ, adc, gcloud_token, request)
    chain = tuple(part.strip() for part in impersonate.split(",")) if isinstance(impersonate, str) else impersonate
    if chain:
        from google.auth import impersonated_credentials  # noqa: PLC0415  # only for impersonation

        make: Any = impersonated_credentials.Credentials  # its signature is untyped
        credentials = make(
            source_credentials=credentials,
            target_principal=chain[-1],
            target_scopes=list(SCOPES),
            delegates=list(chain[:-1]),
        )
    if quota_project and hasattr(credentials, "with_quota_project"):
        credentials = credentials.with_quota_project(quota_project)
    return credentials


def account_of(credentials: Credentials, request: Any) -> str | None:
    """Return the e-mail address of the credentials; None if they do not contain it, as those of users often do not.

    Credentials of the metadata server get it with their first token, which `request` (a google.auth.transport.Request)
    fetches. Raises what google-auth raises if that fails.
    """
    email = getattr(credentials, "service_account_email", None)
    if email == "default":
        credentials.refresh(request)
        email = credentials.service_account_email
    account = email or getattr(credentials, "account", None)
    return account if isinstance(account, str) and "@" in account else None


class GcloudCredentials(google.auth.credentials.Credentials):
    """The token of gcloud's account. It is fetched again every few minutes, because only gcloud knows its age.

    Impersonation needs that: an expired source token never leads to the 401 that would refresh it.
    """

    def __init__(self, access_token: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # google-auth's signatures are partly untyped
        self._access_token = access_token
        self.refresh(None)

    def refresh(self, _request: object) -> None:
        """Fetch a token from gcloud again. Raises what `access_token` raises."""
        self.token = self._access_token()
        # google-auth compares it with the time of the machine, in UTC without a time zone.
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


def _find_credentials(
    environ: Mapping[str, str], adc: Path, gcloud_token: Callable[[], str], request: Any
) -> Credentials:
    if named := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return _credentials_from_file(Path(named), request, source="GOOGLE_APPLICATION_CREDENTIALS")
    if adc.exists():
        return _credentials_from_file(adc, request, source="application default credentials")
    if is_on_google_cloud(environ):
        from google.auth import compute_engine  # noqa: PLC0415  # 90 ms more

        make: Any = compute_engine.Credentials  # its signature is untyped
        return make(scopes=list(SCOPES))
    try:
        return GcloudCredentials(gcloud_token)
    except AccessError as error:
        places = f"GOOGLE_APPLICATION_CREDENTIALS, `{adc}`, the metadata server and gcloud"
        hint = f"{_LOGIN}, or set GOOGLE_APPLICATION_CREDENTIALS"
        hint = "\n".join(filter(None, (error.hint, hint, SANDBOX_HINT)))
        message = f"no credentials found in {places}: {error.message}"
        raise CredentialsError(message, hint=hint, error_id=error.error_id) from error


def _credentials_from_file(path: Path, request: Any, *, source: str) -> Credentials:
    try:
        read_credentials_file(path)
        with warnings.catch_warnings():
            # Both are advice for developers: validate external files, and set a quota project.
            warnings.filterwarnings("ignore", message="The load_credentials_from_file method is deprecated")
            warnings.filterwarnings(
                "ignore", message=r"\s*Your application has authenticated using end user credentials"
            )
            read: Any = google.auth.load_credentials_from_file  # its signature is untyped
            # With scopes, it would fetch a token for workload identity here, and then a project id.
            credentials, _ = read(str(path), request=request)
            scoped: Any = google.auth.credentials.with_scopes_if_required  # as above
            return scoped(credentials, list(SCOPES))
    except exceptions.DefaultCredentialsError as error:
        reason = str(error.args[0]) if error.args else "it contains no credentials"
        raise CredentialsError(f"cannot use the credentials of {source}: {reason}", hint=_LOGIN) from error
    except ShapeError as error:
        why = (
            f"`{error.path}` is not {error.problem.removeprefix('expected ')}"
            if error.path
            else "it contains no credentials"
        )
        raise CredentialsError(f"cannot use the credentials file `{path}` of {source}: {why}", hint=_LOGIN) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # Raised by google-auth for a JSON file of another shape. The error may quote the file, so it is not shown.
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it contains no credentials"
        raise CredentialsError(f"cannot use the credentials file `{path}` of {source}: {why}", hint=_LOGIN) from error


def gcloud_access_token(environ: Mapping[str, str], *, timeout: timedelta = timedelta(seconds=10)) -> str:
    """Return an access token of gcloud's own account: an impersonation set in gcloud is not applied.

    Raises `CredentialsError`, with the command that helps, if gcloud is missing, not logged in, does not answer in time, or
    requires a new login.
    """
    program = shutil.which("gcloud", path=environ.get("PATH"))
    if program is None:
        raise CredentialsError(
            "gcloud is not installed, and there are no other credentials",
            hint="install the Google Cloud CLI and run `gcloud auth login`, or set `GOOGLE_APPLICATION_CREDENTIALS`",
        )
    code, output, complaint = _run_gcloud([program, "auth", "print-access-token", "--quiet"], environ, timeout)
    token = output.strip()
    if code != 0:
        verdict = classify(complaint, where=MessageOrigin.API)
        if verdict is not None and verdict.kind == AccessError.kind:
            text = f"gcloud gave no token: {verdict.meaning}"
            raise CredentialsError(text, hint="\n".join(verdict.remedy), error_id=verdict.id)
        last = next((line.strip() for line in complaint.splitlines() if line.strip()), "it gave no reason")
        raise CredentialsError(f"gcloud gave no token: {last}", hint="run `gcloud auth login`, then try again")
    # An empty or multi-line answer would break the Authorization header.
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise CredentialsError("gcloud printed no access token", hint="run `gcloud auth login`, then try again")
    return token


def _run_gcloud(argv: list[str], environ: Mapping[str, str], timeout: timedelta) -> tuple[int, str, str]:
    # Impersonation happens once, when the token is used; gcloud must never prompt.
    silent = {"CLOUDSDK_CORE_DISABLE_PROMPTS": "1", "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT": ""}
    try:
        # gcloud is a shell script that starts Python: its own session lets a time-out terminate both.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environ, **silent},
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CredentialsError(f"gcloud could not be started: {error.strerror}", hint="run `gcloud info`") from error
    with process:
        try:
            output, complaint = process.communicate(timeout=timeout.total_seconds())
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise CredentialsError(
                f"gcloud gave no token within {timeout.total_seconds():.0f} s",
                hint="run `gcloud auth print-access-token` to see what it waits for",
            ) from None
    return process.returncode, output, complaint

"""Get an access token from gcloud. The token is returned and never logged."""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import AccessError, CredentialsError
from tpuctl.explain.messages import MessageOrigin, classify

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    import subprocess  # noqa: PLC0415  # costs 4 ms, and most commands find a credentials file

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

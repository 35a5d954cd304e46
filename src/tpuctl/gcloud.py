"""What gcloud knows: its active configuration, read from its files, and its token, asked of the program.

Tokens are returned and never logged. gcloud's files are read as gcloud 528 lays them out [gcloud 528 source:
core/configurations/named_configs.py, core/config.py].
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuctl.bounded_input import read_file
from tpuctl.diagnosis.classify import classify
from tpuctl.diagnosis.messages import Where
from tpuctl.errors import AccessError, CredentialsError, TpuctlError
from tpuctl.settings import SETTINGS, GcloudProperty

if TYPE_CHECKING:
    from collections.abc import Mapping

# What gcloud keeps its logins in; the last is that of old versions [gcloud 528 source: core/config.py].
_STORES: Final = ("credentials.db", "access_tokens.db", "legacy_credentials", "credentials")
# What gives gcloud an account without them: a file that is named, or Cloud Shell [gcloud 528 source: credentials/store.py].
_NAMED: Final = re.compile(r"^\s*(?:access_token_file|credential_file_override)\s*[=:]", re.MULTILINE | re.IGNORECASE)
_ELSEWHERE: Final = (
    *("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE"),
    *("CLOUD_SHELL", "DEVSHELL_CLIENT_PORT"),
)
_LONGEST_FILE: Final = 1 << 20
_CONFIGURATION_NAME = re.compile(r"[a-z][-a-z0-9]*")
_WANTED: Final = frozenset({"compute/region"} | {spec.gcloud for spec in SETTINGS.values() if spec.gcloud})


def properties(environ: Mapping[str, str]) -> Mapping[str, GcloudProperty]:
    """Return the properties of gcloud's active configuration that tpuctl uses, by names like `compute/zone`.

    No program is started. A file that is absent, broken or may not be read has no properties. gcloud's variables
    (`CLOUDSDK_CORE_PROJECT`, …) are not read here: `settings.resolve` ranks them higher than files.
    """
    name, file = configuration_name(environ), configuration_file(environ)
    if file is None:
        return {}
    parser = configparser.ConfigParser()
    try:
        parser.read_string(_text(file))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    found = {}
    for section in parser.sections():
        for key in parser[section]:
            with suppress(configparser.Error):
                value = parser.get(section, key)
                if f"{section}/{key}" in _WANTED and value:
                    found[f"{section}/{key}"] = GcloudProperty(value, name)
    return found


def configuration_name(environ: Mapping[str, str]) -> str:
    """Return the name of gcloud's active configuration; `default` where nothing names one."""
    name = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "")
    if not name:
        with suppress(OSError, UnicodeDecodeError):
            name = _text(_folder(environ) / "active_config").strip()
    # A garbled name is replaced by `default` in gcloud too; here it also keeps the name out of a path.
    return name if name == "NONE" or _CONFIGURATION_NAME.fullmatch(name) else "default"


def configuration_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file of gcloud's active configuration, there or not; nothing where gcloud is told to use none."""
    name = configuration_name(environ)
    # gcloud's reserved name for having no configuration at all.
    return None if name == "NONE" else _folder(environ) / "configurations" / f"config_{name}"


def adc_path(environ: Mapping[str, str]) -> Path:
    """Return where application default credentials are looked for, there or not.

    That is `GOOGLE_APPLICATION_CREDENTIALS` where it is set, else gcloud's file [google-auth source: _default.py].
    """
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return Path(named) if named else _folder(environ) / "application_default_credentials.json"


def may_have_login(environ: Mapping[str, str]) -> bool:
    """Tell whether gcloud may give a token, without starting it: that takes a second, and makes its folder where it has none.

    False only where gcloud keeps no login and nothing names one elsewhere. What cannot be read may hold one.
    """
    if any(environ.get(name) for name in _ELSEWHERE):
        return True
    folder, program = _folder(environ), shutil.which("gcloud", path=environ.get("PATH"))
    try:
        if any(path.name in _STORES for path in folder.iterdir()):
            return True
    except FileNotFoundError:
        pass
    except OSError:
        return True
    files = [configuration_file(environ), folder / "properties"]
    # Those of the whole installation lie at its root.
    files += [Path(program).resolve().parent.parent / "properties"] if program else []
    return any(_names_login(file) for file in files if file)


def _text(file: Path, *, errors: str = "strict") -> str:
    return read_file(file, longest=_LONGEST_FILE)[0].decode("utf-8", errors)


def _names_login(file: Path) -> bool:
    try:
        return _NAMED.search(_text(file, errors="replace")) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def access_token(environ: Mapping[str, str], *, timeout: timedelta = timedelta(seconds=10)) -> str:
    """Return an access token of gcloud's account itself: an impersonation that gcloud is set to is not applied.

    Raises `CredentialsError` with the command that helps: gcloud is missing, not logged in, silent for too long, or wants
    the user to log in again.
    """
    program = shutil.which("gcloud", path=environ.get("PATH"))
    if program is None:
        raise CredentialsError(
            "gcloud is not installed, and there are no other credentials",
            hint="install the Google Cloud CLI and run `gcloud auth login`, or set `GOOGLE_APPLICATION_CREDENTIALS`",
        )
    code, output, complaint = _run([program, "auth", "print-access-token", "--quiet"], environ, timeout)
    token = output.strip()
    if code != 0:
        raise _refused(complaint)
    # An empty or multi-line answer would break the Authorization header.
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise CredentialsError("gcloud printed no access token", hint="run `gcloud auth login`, then try again")
    return token


def _run(argv: list[str], environ: Mapping[str, str], timeout: timedelta) -> tuple[int, str, str]:
    import subprocess  # noqa: PLC0415  # costs 4 ms, and most commands find a credentials file

    # Impersonation happens once, where the token is used; gcloud must never stop to ask.
    silent = {"CLOUDSDK_CORE_DISABLE_PROMPTS": "1", "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT": ""}
    try:
        # gcloud is a shell script that starts Python: its own session lets a time-out end both.
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


def _refused(complaint: str) -> TpuctlError:
    verdict = classify(complaint, where=Where.API)
    if verdict is not None and verdict.kind == AccessError.kind:
        return CredentialsError(
            f"gcloud gave no token: {verdict.meaning}", hint="\n".join(verdict.remedy), error_id=verdict.id
        )
    last = next((line.strip() for line in complaint.splitlines() if line.strip()), "it did not say why")
    return CredentialsError(f"gcloud gave no token: {last}", hint="run `gcloud auth login`, then try again")


def _folder(environ: Mapping[str, str]) -> Path:
    configured = environ.get("CLOUDSDK_CONFIG")
    return Path(configured) if configured else Path(environ.get("HOME") or "/") / ".config" / "gcloud"

"""Read the active configuration of gcloud from its files, without starting gcloud.

The layout of the files is that of gcloud 528 [gcloud 528 source: core/configurations/named_configs.py, core/config.py].
"""

from __future__ import annotations

import configparser
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuctl.config.resolution import GcloudProperty
from tpuctl.config.schema import SETTINGS
from tpuctl.files import read_regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where gcloud stores its logins; the last one is that of old versions [gcloud 528 source: core/config.py].
_STORES: Final = ("credentials.db", "access_tokens.db", "legacy_credentials", "credentials")
# Other sources of a gcloud account: a named file, or Cloud Shell [gcloud 528 source: credentials/store.py].
_NAMED: Final = re.compile(r"^\s*(?:access_token_file|credential_file_override)\s*[=:]", re.MULTILINE | re.IGNORECASE)
_ELSEWHERE: Final = (
    *("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE"),
    *("CLOUD_SHELL", "DEVSHELL_CLIENT_PORT"),
)
_LONGEST_FILE: Final = 1 << 20
_CONFIGURATION_NAME = re.compile(r"[a-z][-a-z0-9]*")
_WANTED: Final = frozenset({"compute/region"} | {spec.gcloud for spec in SETTINGS.values() if spec.gcloud})


def read_gcloud_properties(environ: Mapping[str, str]) -> Mapping[str, GcloudProperty]:
    """Return the properties of gcloud's active configuration that tpuctl uses, by names like `compute/zone`.

    A file that is absent, invalid or unreadable has no properties. gcloud's variables (`CLOUDSDK_CORE_PROJECT`, …) are not read
    here: they rank higher than files when settings are resolved.
    """
    name, file = gcloud_configuration_name(environ), gcloud_configuration_file(environ)
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


def gcloud_configuration_name(environ: Mapping[str, str]) -> str:
    """Return the name of gcloud's active configuration, by default `default`."""
    name = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "")
    if not name:
        with suppress(OSError, UnicodeDecodeError):
            name = _text(_folder(environ) / "active_config").strip()
    # gcloud replaces an invalid name by `default` too; here that also keeps it out of a path.
    return name if name == "NONE" or _CONFIGURATION_NAME.fullmatch(name) else "default"


def gcloud_configuration_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of gcloud's active configuration, which need not exist. None if gcloud is set to use none."""
    name = gcloud_configuration_name(environ)
    # gcloud's reserved name for no configuration.
    return None if name == "NONE" else _folder(environ) / "configurations" / f"config_{name}"


def adc_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the application default credentials, which need not exist.

    It is `GOOGLE_APPLICATION_CREDENTIALS` if set, else gcloud's file [google-auth source: _default.py].
    """
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return Path(named) if named else _folder(environ) / "application_default_credentials.json"


def gcloud_may_have_login(environ: Mapping[str, str]) -> bool:
    """Return whether gcloud may have a login, without starting it: that takes a second, and creates its folder.

    False only if gcloud stores no login and no setting names one elsewhere. A file that cannot be read may contain one.
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
    files = [gcloud_configuration_file(environ), folder / "properties"]
    # The properties of the whole installation are at its root.
    files += [Path(program).resolve().parent.parent / "properties"] if program else []
    for file in files:
        try:
            if file and _NAMED.search(_text(file, errors="replace")):
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _text(file: Path, *, errors: str = "strict") -> str:
    return read_regular_file(file, longest=_LONGEST_FILE)[0].decode("utf-8", errors)


def _folder(environ: Mapping[str, str]) -> Path:
    configured = environ.get("CLOUDSDK_CONFIG")
    return Path(configured) if configured else Path(environ.get("HOME") or "/") / ".config" / "gcloud"

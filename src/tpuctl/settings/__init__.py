"""Settings: the schema, the sources of each, and which value wins.

`schema` lists all settings, `resolution` chooses a value and records its source; both are pure. The other modules read
configuration files, gcloud's configuration and the list of trusted files. Start reading at `resolution`.
"""

from tpuctl.settings.resolution import (
    ConfigEntry,
    ConfigFile,
    GcloudProperty,
    Setting,
    Settings,
    Source,
    SourceKind,
    check_entry,
    resolve,
)
from tpuctl.settings.table import NEVER_IN_FILES, SETTINGS, FileKind, FilePolicy, SettingSpec, ValueKind
from tpuctl.settings.values import Value, check_shape, check_value
from tpuctl.settings.words import UntrustedFileError

__all__ = [
    "NEVER_IN_FILES",
    "SETTINGS",
    "ConfigEntry",
    "ConfigFile",
    "FileKind",
    "FilePolicy",
    "GcloudProperty",
    "Setting",
    "SettingSpec",
    "Settings",
    "Source",
    "SourceKind",
    "UntrustedFileError",
    "Value",
    "ValueKind",
    "check_entry",
    "check_shape",
    "check_value",
    "resolve",
]

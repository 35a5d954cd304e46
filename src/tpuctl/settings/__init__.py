"""Settings: which exist, where each may be set, which value wins and where it came from.

Pure: what was read from files, the environment and gcloud goes in; nothing is read here.
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

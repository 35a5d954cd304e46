"""Resolve settings: which value of each setting wins, where it came from, and what it means.

Precedence: flag, `TPUCTL_*`, gcloud's and Google's own variables, project file, user file, gcloud's active configuration,
default. Flags and variables are checked when they are read, file entries all at once, so that an invalid line is found before
it matters. Readers of values raise `ValueError` with the reason; the caller adds the source and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tpuctl.errors import SettingError
from tpuctl.settings.table import SETTINGS, FileKind, FilePolicy, SettingSpec, ValueKind
from tpuctl.settings.values import (
    Value,
    as_boolean,
    as_duration,
    as_grants,
    as_items,
    as_number,
    as_pairs,
    as_path,
    as_records,
    as_size,
    as_text,
    check_value,
)
from tpuctl.settings.words import UntrustedFileError, bad_value, how_to_set, where_it_belongs

if TYPE_CHECKING:
    from tpuctl.preflight.grants import Grant

_T = TypeVar("_T")


class SourceKind(StrEnum):
    """The kind of source that a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    CLOUDSDK = "cloudsdk environment"
    PROJECT_FILE = "project file"
    USER_FILE = "user file"
    GCLOUD = "gcloud"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a value: its kind, its exact place as text, and the path if it is a file."""

    kind: SourceKind
    place: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as written, with its source.

    `content` is the content of the file that a project file names, from when that was read; None for every other setting.
    """

    value: Value
    source: Source
    content: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A value in a configuration file. `line` counts from 1; `content` is that of the file that a project file names."""

    value: Value
    line: int
    content: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed configuration file; an absent file has no entries.

    `digest` covers the path and the content of a project file and of the files that it names.
    """

    path: Path
    entries: Mapping[str, ConfigEntry] = field(default_factory=dict)
    digest: str = field(default="", compare=False)

    @property
    def trusted_keys(self) -> tuple[str, ...]:
        """The keys that take effect only if the file is trusted, in the order of their lines."""
        keys = [key for key in self.entries if SETTINGS[key].policy is FilePolicy.TRUSTED_FILE]
        return tuple(sorted(keys, key=lambda key: self.entries[key].line))


@dataclass(frozen=True, slots=True)
class GcloudProperty:
    """A property of gcloud's active configuration, and that configuration's name."""

    value: str
    configuration: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings that have a value. Accessors raise `SettingError`, with source and value, if a value is invalid.

    For an `untrusted` value they raise `UntrustedFileError`.
    """

    values: Mapping[str, Setting]
    untrusted: frozenset[str] = frozenset()
    looked_at: Mapping[FileKind, Path] = field(default_factory=dict)
    configuration: str | None = None
    home: Path | None = None

    def __getitem__(self, key: str) -> Setting | None:
        """Return the setting with its source, None if it is not set and has no default."""
        setting = self.values.get(SETTINGS[key].key)
        if setting and key in self.untrusted:
            raise UntrustedFileError(setting.source.path, {key: setting.source})
        return setting

    def __iter__(self) -> Iterator[tuple[SettingSpec, Setting | None]]:
        """Iterate over all known settings in the order of the schema, with the value or None."""
        return ((spec, self.values.get(key)) for key, spec in SETTINGS.items())

    def shown(self) -> Settings:
        """Return the settings with all values, for display only."""
        return replace(self, untrusted=frozenset())

    def text(self, key: str) -> str | None:
        """Return a text, None if unset."""
        return self._read(key, as_text)

    def required(self, key: str) -> str:
        """Return a text. Raises `SettingError`, with how to set it, if it is missing."""
        text = self.text(key)
        if text is None:
            raise self.missing(key)
        return text

    def is_on(self, key: str) -> bool:
        """Return whether a boolean setting is on; unset is off."""
        return bool(self._read(key, lambda _, value: as_boolean(value)))

    def number(self, key: str) -> int:
        """Return a whole number. Raises `SettingError` if it is missing."""
        return self._present(key, lambda _, value: as_number(value))

    def duration(self, key: str) -> timedelta:
        """Return a duration. Raises `SettingError` if it is missing."""
        return self._present(key, as_duration)

    def items(self, key: str) -> tuple[str, ...]:
        """Return the items of a list; unset has none."""
        return self._read(key, as_items) or ()

    def pairs(self, key: str) -> dict[str, str]:
        """Return the pairs of a mapping; unset has none."""
        return self._read(key, as_pairs) or {}

    def size(self, key: str) -> int | None:
        """Return a number of bytes, None if unset."""
        return self._read(key, lambda _, value: as_size(value))

    def records(self, key: str) -> tuple[dict[str, str], ...]:
        """Return the entries of a list of records; unset has none."""
        return self._read(key, as_records) or ()

    def grants(self) -> tuple[Grant, ...]:
        """Return the grants of free TPUs; unset has none."""
        return self._read("grants", as_grants) or ()

    def path(self, key: str) -> Path | None:
        """Return a path; one in a file is relative to that file's folder, any other to the working directory."""

        def read(spec: SettingSpec, value: Value) -> Path:
            source = self.values[key].source
            return as_path(spec, value, folder=source.path.parent if source.path else None, home=self.home)

        return self._read(key, read)

    def missing(self, key: str) -> SettingError:
        """Return the error for a missing setting, with the sources that were searched and how to set it."""
        spec = SETTINGS[key]
        sources = [source for source in (spec.flag, spec.environment, *spec.foreign) if source]
        for kind in FileKind:
            if kind in spec.files:
                path = self.looked_at.get(kind)
                absent = "tpuctl.yaml (none here or above)" if kind is FileKind.PROJECT else "the user file"
                sources.append(str(path) if path else absent)
        if spec.gcloud:
            name = f"gcloud configuration `{self.configuration}`" if self.configuration else "gcloud's configuration"
            sources.append(f"{spec.gcloud} of {name}")
        text = f"no {key.replace('_', ' ')} is set; looked at {', '.join(sources)}"
        return SettingError(text, hint=how_to_set(spec))

    def _read(self, key: str, reader: Callable[[SettingSpec, Value], _T]) -> _T | None:
        setting, spec = self[key], SETTINGS[key]
        if setting is None:
            return None
        try:
            return reader(spec, setting.value)
        except ValueError as error:
            raise bad_value(spec, setting.value, setting.source.place, str(error)) from None

    def _present(self, key: str, reader: Callable[[SettingSpec, Value], _T]) -> _T:
        read = self._read(key, reader)
        if read is None:
            raise self.missing(key)
        return read


def resolve(
    flags: Mapping[str, Value],
    environ: Mapping[str, str],
    project_file: ConfigFile | None,
    user_file: ConfigFile | None,
    gcloud: Mapping[str, GcloudProperty],
    *,
    is_trusted: bool = True,
) -> Settings:
    """Return every setting with the value that wins. Raises `SettingError` for an entry that its file may not have.

    Unless the project file `is_trusted`, those of its settings that require trust are `untrusted`.
    """
    files = {
        kind: file for kind, file in ((FileKind.PROJECT, project_file), (FileKind.USER, user_file)) if file is not None
    }
    for kind, file in files.items():
        for key, entry in file.entries.items():
            check_entry(kind, key, entry.value, place=f"{file.path} line {entry.line}")
    found: dict[str, Setting] = {}
    for spec in SETTINGS.values():
        if setting := next(_candidates(spec, flags, environ, files, gcloud), None):
            found[spec.key] = setting
    _settle_quota_project(found)
    untrusted = frozenset(
        key
        for key, setting in found.items()
        if setting.source.kind is SourceKind.PROJECT_FILE and SETTINGS[key].policy is FilePolicy.TRUSTED_FILE
    )
    return Settings(
        found,
        untrusted=frozenset() if is_trusted else untrusted,
        looked_at={kind: file.path for kind, file in files.items()},
        configuration=next((prop.configuration for prop in gcloud.values()), None),
        home=Path(environ["HOME"]) if environ.get("HOME") else None,
    )


def check_entry(kind: FileKind, key: str, value: Value, *, place: str) -> None:
    """Check that a file may have this entry and that its value is valid. Raises `SettingError` with the allowed sources."""
    spec = SETTINGS[key]
    if kind not in spec.files:
        raise SettingError(f"{place}: `{key}` is never read from a {kind}", hint=where_it_belongs(spec))
    try:
        check_value(spec, value)
    except ValueError as error:
        raise bad_value(spec, value, place, str(error)) from None
    if key != "sandbox":
        return
    # With a user-wide sandbox, `down` would succeed while a real node is billed; a cloned repository must not disable it.
    if as_boolean(value) and kind is FileKind.USER:
        raise SettingError(
            f"{place}: `sandbox: true` is never read from the user file",
            hint="pass `--sandbox`, set `TPUCTL_SANDBOX=1`, or put it in the `tpuctl.yaml` of a project",
        )
    if not as_boolean(value) and kind is FileKind.PROJECT:
        raise SettingError(
            f"{place}: `sandbox: false` is never read from a project file",
            hint="set `TPUCTL_SANDBOX=0`; without a setting for the sandbox, commands use the real cloud",
        )


def _candidates(
    spec: SettingSpec,
    flags: Mapping[str, Value],
    environ: Mapping[str, str],
    files: Mapping[FileKind, ConfigFile],
    gcloud: Mapping[str, GcloudProperty],
) -> Iterator[Setting]:
    if spec.key in flags:
        yield Setting(flags[spec.key], Source(SourceKind.FLAG, spec.flag or spec.key))
    own = ((spec.environment, SourceKind.ENVIRONMENT),) if spec.environment else ()
    for name, kind in (*own, *((name, SourceKind.CLOUDSDK) for name in spec.foreign)):
        value = environ.get(name)
        # An empty variable counts as unset, but an empty boolean as false.
        if value or (value is not None and spec.kind is ValueKind.BOOLEAN):
            yield Setting(value, Source(kind, name))
    for file_kind, file in files.items():
        if entry := file.entries.get(spec.key):
            shown = file.path.name if file_kind is FileKind.PROJECT else str(file.path)
            source = Source(SourceKind(file_kind.value), f"{shown} line {entry.line}", file.path)
            yield Setting(entry.value, source, entry.content)
    if spec.gcloud and (prop := gcloud.get(spec.gcloud)):
        yield Setting(prop.value, Source(SourceKind.GCLOUD, f"gcloud configuration `{prop.configuration}`"))
    if spec.default is not None:
        yield Setting(spec.default, Source(SourceKind.DEFAULT, "default"))


def _settle_quota_project(found: dict[str, Setting]) -> None:
    """Replace gcloud's special values of `billing/quota_project` by the project [gcloud 528 source]."""
    setting, project = found.get("quota_project"), found.get("project")
    if setting is None or setting.value not in {"CURRENT_PROJECT", "CURRENT_PROJECT_WITH_FALLBACK", "LEGACY"}:
        return
    if setting.value == "LEGACY" or project is None:
        del found["quota_project"]
    else:
        found["quota_project"] = replace(setting, value=project.value)

"""Settings: the schema (key, type and allowed sources of each), which value wins, and what it means. Pure.

Precedence: flag, `TPUCTL_*`, gcloud's and Google's own variables, project file, user file, gcloud's active configuration,
default. Flags and variables are checked when they are read, file entries all at once, so that an invalid line is found before
it matters. Functions that convert a text (`as_number`, `as_path`, …) raise `ValueError` with the reason; their caller adds the
source and the key. `config show` and the reference are generated from the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuctl.durations import format_duration, parse_duration, parse_long_duration
from tpuctl.errors import SANDBOX_HINT, InvalidInputError, SettingError
from tpuctl.escaping import mask_url
from tpuctl.models.spec import FIELDS
from tpuctl.models.spec_fields import DISKS, PAIRS, SWITCH, TEXT, TEXTS, TIER, setting_key
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from tpuctl.models.grants import Grant


class ValueKind(StrEnum):
    """The type of a setting's value."""

    TEXT = "text"
    BOOLEAN = "boolean"
    NUMBER = "number"
    DURATION = "duration"
    LIST = "list"
    PAIRS = "pairs"
    PATH = "path"
    SIZE = "size"
    DOLLARS = "dollars"
    RECORDS = "records"


class FileKind(StrEnum):
    """The two configuration files. The project file may come from an untrusted repository."""

    PROJECT = "project file"
    USER = "user file"


class FilePolicy(StrEnum):
    """The files that may set a setting. A project file may be untrusted.

    `ANY_FILE` is only for settings that describe a node or how long to wait, or that can only lower a limit. Settings that
    send, run, open or end something, decide who pays, or disable a check are `TRUSTED_FILE`: in a project file they
    take effect only after `tpuctl trust`, and `effect` says what they do.
    """

    ANY_FILE = "both"
    TRUSTED_FILE = "both, trusted"
    USER_FILE = "your own"
    NO_FILE = ""


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """One setting: its key, its type and its sources.

    `policy` says which files may set it, `effect` what it does in a project file that requires trust. `environment` is tpuctl's
    own variable; `foreign` are variables of gcloud and Google's libraries, in order. `gcloud` is a property of gcloud's
    configuration. `separator` splits a list written as one text. `fields` are the keys of each record, `optional_fields` may be
    omitted. `shortest` and `longest` limit a duration; one that `needs_unit` is never a
    bare number. Only a text with `has_lines` may contain line ends.
    """

    key: str
    kind: ValueKind
    description: str
    policy: FilePolicy = field(kw_only=True)
    effect: str | None = field(default=None, kw_only=True)
    own_variable: bool = True
    flag_name: str | None = None
    has_flag: bool = True
    foreign: tuple[str, ...] = ()
    gcloud: str | None = None
    default: str | None = None
    choices: tuple[str, ...] = ()
    separator: str = ","
    secret: bool = False
    may_be_empty: bool = False
    has_lines: bool = False
    fields: tuple[str, ...] = ()
    optional_fields: tuple[str, ...] = ()
    needs_unit: bool = False
    shortest: timedelta | None = None
    longest: timedelta | None = None

    @property
    def files(self) -> frozenset[FileKind]:
        """The kinds of file that may set it."""
        if self.policy is FilePolicy.USER_FILE:
            return frozenset({FileKind.USER})
        return frozenset() if self.policy is FilePolicy.NO_FILE else frozenset(FileKind)

    @property
    def flag(self) -> str | None:
        """Return the command-line flag, None if only the environment and gcloud set it."""
        if not self.own_variable or not self.has_flag:
            return None
        return self.flag_name or "--" + self.key.replace("_", "-")

    @property
    def environment(self) -> str | None:
        """Return the name of tpuctl's own environment variable, None if there is none."""
        return f"TPUCTL_{self.key.upper()}" if self.own_variable else None


_TEXT, _BOOLEAN, _NUMBER, _DURATION, _LIST, _PAIRS, _PATH, _SIZE, _DOLLARS, _RECORDS = ValueKind


def _any(key: str, kind: ValueKind, description: str, **more: Any) -> SettingSpec:  # other fields of the row
    return SettingSpec(key, kind, description, policy=FilePolicy.ANY_FILE, **more)


def _threshold(key: str, kind: ValueKind, description: str, *, default: str) -> SettingSpec:
    """Return a time of repair: the flags of `up` and `watch` choose only what repair may do."""
    return _any(key, kind, description, default=default, has_flag=False)


def _trusted(key: str, kind: ValueKind, description: str, effect: str, **more: Any) -> SettingSpec:  # as above
    return SettingSpec(key, kind, description, policy=FilePolicy.TRUSTED_FILE, effect=effect, **more)


def _own(key: str, kind: ValueKind, description: str, **more: Any) -> SettingSpec:  # as above
    return SettingSpec(key, kind, description, policy=FilePolicy.USER_FILE, **more)


def _of_gcloud(key: str, kind: ValueKind, gcloud: str, description: str, *, secret: bool = False) -> SettingSpec:
    """Return a setting of gcloud, from its variable (`CLOUDSDK_…`) and its configuration."""
    variable = "CLOUDSDK_" + gcloud.replace("/", "_").upper()
    source = {"policy": FilePolicy.NO_FILE, "own_variable": False, "foreign": (variable,), "gcloud": gcloud}
    return SettingSpec(key, kind, description, secret=secret, **source)  # type: ignore[arg-type]  # the row above


_KIND_OF_FIELD: Final = {TEXT: _TEXT, TIER: _TEXT, SWITCH: _BOOLEAN, TEXTS: _LIST, DISKS: _LIST, PAIRS: _PAIRS}


def _of_fields() -> Iterator[SettingSpec]:
    """Yield the settings of the fields of a node."""
    for name, row in FIELDS.items():
        if row.setting:
            text = row.setting.description or (row.option.help.rstrip(".") if row.option else "")
            # `VPC` and `OAuth` stay.
            description = text if text[1:2].isupper() else text[:1].lower() + text[1:]
            effect, kind = row.setting.effect, _KIND_OF_FIELD[row.kind]
            policy = FilePolicy.TRUSTED_FILE if effect else FilePolicy.ANY_FILE
            yield SettingSpec(setting_key(name), kind, description, policy=policy, effect=effect, **row.setting.more)


_SPECS: Final = (
    _trusted(
        "project",
        _TEXT,
        "project id that owns the nodes",
        "nodes are searched, created and billed in this project",
        foreign=("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
        gcloud="core/project",
    ),
    _any("zone", _TEXT, "zone of a node", foreign=("CLOUDSDK_COMPUTE_ZONE",), gcloud="compute/zone"),
    _any("zones", _LIST, "zones to try for a new node, in this order; or any", has_flag=False),
    _trusted(
        "sandbox",
        _BOOLEAN,
        "use the local sandbox instead of the cloud",
        "every command acts in the local sandbox: nodes of the cloud are neither shown nor deleted, and still bill",
        default="false",
    ),
    _own("endpoint", _TEXT, "URL of another Cloud TPU API"),
    _own(
        "impersonate_service_account",
        _TEXT,
        "service account that calls are made as",
        foreign=("CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT",),
        gcloud="auth/impersonate_service_account",
    ),
    _own(
        "token_cache", _BOOLEAN, "whether access tokens are kept for the next command", has_flag=False, default="true"
    ),
    SettingSpec(
        "trust_project_file",
        _BOOLEAN,
        "use all settings of tpuctl.yaml, even if the file is not trusted or has another owner",
        policy=FilePolicy.NO_FILE,
        default="false",
    ),
    _own("journal", _TEXT, "where the journal is stored (gs://BUCKET/PREFIX)"),
    _trusted("user", _TEXT, "login name on the workers", "you log in on workers under this name"),
    _trusted(
        "ssh_key",
        _PATH,
        "private ssh key, or the public key of one that an agent holds",
        "holders of this key can log in on the workers",
    ),
    _trusted(
        "ssh_key_expire_after",
        _DURATION,
        "validity of the ssh key on nodes, like 8h",
        "your ssh key is valid for this long",
    ),
    _any("iap", _BOOLEAN, "connect to workers through Identity-Aware Proxy"),
    _any(
        "internal_ip",
        _BOOLEAN,
        "connect to internal addresses of workers; by default only from inside their network",
        flag_name="--internal-ip|--external-ip",
    ),
    _any(
        "ssh_keep",
        _DURATION,
        "time that an idle ssh connection is kept for the next command; 0 keeps none",
        has_flag=False,
        default="5m",
    ),
    _own("ssh_config", _BOOLEAN, "write ssh_config entries after `up` and `wait`", has_flag=False),
    *_of_fields(),
    _trusted(
        "startup_script",
        _PATH,
        "script that every worker runs when it starts",
        "sent to every new node, where every worker runs it as root",
    ),
    # A project file may lower the limit of the user file, but not raise it: see `_keep_lower_limits`.
    _trusted(
        "ttl",
        _DURATION,
        "time until a new node may be deleted, like 8h; of two files the lower limit",
        "new nodes are deleted after this time",
        needs_unit=True,
        shortest=timedelta(minutes=5),
        longest=timedelta(days=365),
    ),
    _trusted(
        "idle",
        _DURATION,
        "time without use after which a node is deleted or stopped, like 2h",
        "nodes that are not used for this time are deleted, or stopped",
        needs_unit=True,
        shortest=timedelta(minutes=5),
        longest=timedelta(days=365),
    ),
    _any("timeout", _DURATION, "time limit of a command", default="30m"),
    _trusted(
        "repair",
        _TEXT,
        "most disruptive repair allowed, see `tpuctl help repair`",
        "most disruptive repair allowed; recreate deletes the boot disk",
        default="restart",
        choices=("none", "reboot", "restart", "recreate"),
    ),
    _any("max_reboots", _NUMBER, "number of reboots that repair may use", default="1"),
    _any("max_restarts", _NUMBER, "number of restarts that repair may use", default="2"),
    _any("max_recreates", _NUMBER, "number of recreations that repair may use", default="1"),
    _any(
        "max_failures",
        _NUMBER,
        "number of failures of its program after which a kept job is still restarted",
        default="3",
    ),
    _any(
        "healthy_after", _DURATION, "running time after which the failures of a kept job no longer count", default="30m"
    ),
    _any(
        "kept_log_mib", _NUMBER, "MiB of output that are kept of a worker in an attempt of a kept job", default="1024"
    ),
    _any("restart_on", _TEXT, "exit codes of a kept job that are never taken for a bug", default="42,128-255"),
    _any("stop_on", _TEXT, "exit codes that end a kept job"),
    _any(
        "hang_after",
        _DURATION,
        "time without output, and without work on any chip, after which a kept job hangs",
        default="30m",
    ),
    _any("start_grace", _DURATION, "time after its start in which a kept job may be silent", default="40m"),
    _threshold("unhealthy_after", _DURATION, "time before repair of a READY node that is unhealthy", default="5m"),
    _threshold(
        "unanswered_after",
        _DURATION,
        "time before repair of a READY node whose workers do not answer ssh",
        default="10m",
    ),
    _threshold(
        "devices_after",
        _DURATION,
        "time before repair of a READY node that lacks chips or fails the probe",
        default="5m",
    ),
    _threshold("starting_after", _DURATION, "time before repair of a node that is STARTING", default="15m"),
    _threshold("restarting_after", _DURATION, "time before repair of a node that is RESTARTING", default="15m"),
    _threshold("repairing_after", _DURATION, "time before repair of a node that is REPAIRING", default="30m"),
    _threshold(
        "provisioning_after", _DURATION, "time before a queued resource that is PROVISIONING is reported", default="2h"
    ),
    _threshold(
        "recheck_after", _DURATION, "time before repair of a node that the last repair did not help", default="3m"
    ),
    _threshold("per_worker", _DURATION, "extra time before repair for each worker after the first", default="10s"),
    _own("lease", _TEXT, "where leases are stored (gs://BUCKET/PREFIX)"),
    # Settings of the checks before a create.
    _any("buckets", _LIST, "buckets that a node reads and writes, like gs://BUCKET/PREFIX", flag_name="--bucket"),
    _any("data_buckets", _LIST, "buckets that a node only reads, like gs://BUCKET/PREFIX", flag_name="--data-bucket"),
    _any(
        "checkpoint_buckets",
        _LIST,
        "buckets that a node writes checkpoints to, like gs://BUCKET/PREFIX",
        flag_name="--checkpoint-bucket",
    ),
    _any("dataset_size", _SIZE, "amount of data that one epoch reads, like 1.2TB or 500GiB"),
    _trusted(
        "skip_checks",
        _LIST,
        "ids of checks whose findings are ignored, like TPU401, or all",
        "findings of these checks are ignored",
        flag_name="--skip-check",
    ),
    # A cloned repository never sets these two: they decide what may be billed.
    _own(
        "grants",
        _RECORDS,
        "grants of free TPUs: zone, type, tier, count, until",
        has_flag=False,
        separator=";",
        fields=("zone", "type", "tier", "count", "until"),
        optional_fields=("until",),
    ),
    _own("no_billing_outside_grants", _BOOLEAN, "create only nodes that a grant covers"),
    # A project file may lower these two limits of the user file, but not raise them: see `_keep_lower_limits`.
    _any("max_price", _DOLLARS, "most that a new node may cost, in dollars per hour; of two files the lower limit"),
    _any(
        "budget",
        _DOLLARS,
        "most that all nodes of the project together may cost, in dollars per hour; of two files the lower limit",
    ),
    _own("allow_unknown_price", _BOOLEAN, "with `max_price` and `budget`, also create nodes whose price is unknown"),
    _trusted(
        "egress_prices",
        _PAIRS,
        "your own network prices between areas, in dollars per GiB",
        "checks compute network prices with these",
        has_flag=False,
    ),
    _trusted(
        "billing_project",
        _TEXT,
        "project that pays for buckets whose requester pays",
        "this project pays for buckets whose requester pays",
    ),
    _trusted(
        "check_timeout",
        _DURATION,
        "time limit for checks in the cloud, from 0.1s to 10m",
        "checks without a result by then are skipped",
        default="15s",
        # No cloud answers faster; an answer that takes longer will not come.
        shortest=timedelta(seconds=0.1),
        longest=timedelta(minutes=10),
    ),
    _any("output", _TEXT, "output format", choices=("table", "wide", "tsv", "json", "yaml", "name")),
    _any(
        "timestamps",
        _TEXT,
        "time of day (UTC) before each line of progress; auto: if stderr is not a terminal",
        default="auto",
        choices=("auto", "on", "off"),
    ),
    _trusted(
        "quota_project",
        _TEXT,
        "project whose quota for API calls is used",
        "calls use the quota of this project, and are billed to it",
        foreign=("CLOUDSDK_BILLING_QUOTA_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT"),
        gcloud="billing/quota_project",
    ),
    _of_gcloud("account", _TEXT, "core/account", "account that gcloud is logged in with"),
    _of_gcloud("proxy_type", _TEXT, "proxy/type", "protocol of gcloud's proxy"),
    _of_gcloud("proxy_address", _TEXT, "proxy/address", "host of gcloud's proxy"),
    _of_gcloud("proxy_port", _NUMBER, "proxy/port", "port of gcloud's proxy"),
    _of_gcloud("proxy_username", _TEXT, "proxy/username", "login at gcloud's proxy"),
    _of_gcloud("proxy_password", _TEXT, "proxy/password", "password at gcloud's proxy", secret=True),
    _of_gcloud("ca_certs", _PATH, "core/custom_ca_certs_file", "file with trusted CA certificates"),
)

SETTINGS: Final[Mapping[str, SettingSpec]] = {spec.key: spec for spec in _SPECS}
_OWN_LIMITS = ("max_price", "budget", "ttl")

# Keys that users may expect in a file, and why no file may have them.
NEVER_IN_FILES: Final[Mapping[str, str]] = {
    "hooks": "commands that run on this machine can only be given on the command line"
}


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
class SettingSource:
    """The source of a value: its kind, its exact place as text, and the path if it is a file."""

    kind: SourceKind
    place: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """A value as written, with its source.

    `content` is the content of the file that a project file names, from when that was read; None for every other setting.
    """

    value: RawValue
    source: SettingSource
    content: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A value in a configuration file. `line` counts from 1; `content` is that of the file that a project file names."""

    value: RawValue
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

    values: Mapping[str, ResolvedSetting]
    untrusted: frozenset[str] = frozenset()
    searched_files: Mapping[FileKind, Path] = field(default_factory=dict)
    configuration: str | None = None
    home: Path | None = None

    def __getitem__(self, key: str) -> ResolvedSetting | None:
        """Return the setting with its source, None if it is not set and has no default."""
        setting = self.values.get(key)
        if setting and key in self.untrusted:
            raise UntrustedFileError(setting.source.path, {key: setting.source})
        return setting

    def __iter__(self) -> Iterator[tuple[SettingSpec, ResolvedSetting | None]]:
        """Iterate over all known settings in the order of the schema, with the value or None."""
        return ((spec, self.values.get(key)) for key, spec in SETTINGS.items())

    def for_display(self) -> Settings:
        """Return the settings with all values, for display only."""
        return replace(self, untrusted=frozenset())

    def check(self) -> None:
        """Parse every value. Raises `SettingError` for the first that is invalid, whether it will be used or not."""
        for key in self.values:
            self.value(key)

    def text(self, key: str) -> str | None:
        """Return a text, None if unset."""
        found: str | None = self.value(key)
        return found

    def required(self, key: str) -> str:
        """Return a text. Raises `SettingError`, with how to set it, if it is missing."""
        found: str = self._present(key)
        return found

    def is_on(self, key: str) -> bool:
        """Return whether a boolean setting is on; unset is off."""
        return bool(self.value(key))

    def number(self, key: str) -> int:
        """Return a whole number. Raises `SettingError` if it is missing."""
        return int(self._present(key))

    def duration(self, key: str) -> timedelta:
        """Return a duration. Raises `SettingError` if it is missing."""
        found: timedelta = self._present(key)
        return found

    def items(self, key: str) -> tuple[str, ...]:
        """Return the items of a list; unset has none."""
        return self.value(key) or ()

    def pairs(self, key: str) -> dict[str, str]:
        """Return the pairs of a mapping; unset has none."""
        return self.value(key) or {}

    def size(self, key: str) -> int | None:
        """Return a number of bytes, None if unset."""
        found: int | None = self.value(key)
        return found

    def dollars(self, key: str) -> Decimal | None:
        """Return an amount of dollars, None if unset."""
        found: Decimal | None = self.value(key)
        return found

    def records(self, key: str) -> tuple[dict[str, str], ...]:
        """Return the entries of a list of records; unset has none."""
        setting = self[key]
        return as_records(SETTINGS[key], setting.value) if setting and self.value(key) else ()

    def grants(self) -> tuple[Grant, ...]:
        """Return the grants of free TPUs; unset has none."""
        return self.value("grants") or ()

    def path(self, key: str) -> Path | None:
        """Return a path; one in a file is relative to that file's folder, any other to the working directory.

        `~` is the home folder.
        """
        text = self.text(key)
        if text is None:
            return None
        if self.home and (text == "~" or text.startswith("~/")):
            return self.home / text[2:]
        source = self.values[key].source
        return source.path.parent / text if source.path else Path(text)

    def missing(self, key: str) -> SettingError:
        """Return the error for a missing setting, with the sources that were searched and how to set it."""
        spec = SETTINGS[key]
        if key == "zone":  # new users meet it first, and most need one of two ways
            hint = "pass `--zone ZONE`, or set one: `tpuctl config set zone ZONE`; other ways: `tpuctl help settings`"
            return SettingError("no zone is set", hint=hint)
        sources = [source for source in (spec.flag, spec.environment, *spec.foreign) if source]
        for kind in FileKind:
            if kind in spec.files:
                path = self.searched_files.get(kind)
                absent = "tpuctl.yaml (none here or above)" if kind is FileKind.PROJECT else "the user file"
                sources.append(str(path) if path else absent)
        if spec.gcloud:
            name = f"gcloud configuration `{self.configuration}`" if self.configuration else "gcloud's configuration"
            sources.append(f"{spec.gcloud} of {name}")
        text = f"no {key.replace('_', ' ')} is set; looked at {', '.join(sources)}"
        also = f"\n{SANDBOX_HINT}" if key == "project" else ""
        return SettingError(text, hint=ways_to_set(spec) + also)

    def value(self, key: str) -> Any:  # of the type of its kind
        """Return the parsed value of a setting, None if unset."""
        setting, spec = self[key], SETTINGS[key]
        if setting is None:
            return None
        try:
            return parse_setting(spec, setting.value)
        except ValueError as error:
            raise invalid_value_error(spec, setting.value, setting.source.place, str(error)) from None

    def _present(self, key: str) -> Any:
        found = self.value(key)
        if found is None:
            raise self.missing(key)
        return found


def resolve_settings(
    flags: Mapping[str, RawValue],
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
            check_file_entry(kind, key, entry.value, place=f"{file.path} line {entry.line}")
    found: dict[str, ResolvedSetting] = {}
    for spec in SETTINGS.values():
        if setting := next(_candidates(spec, flags, environ, files, gcloud), None):
            found[spec.key] = setting
    _resolve_quota_project(found)
    _keep_lower_limits(found, files)
    untrusted = frozenset(
        key
        for key, setting in found.items()
        if setting.source.kind is SourceKind.PROJECT_FILE and SETTINGS[key].policy is FilePolicy.TRUSTED_FILE
    )
    return Settings(
        found,
        untrusted=frozenset() if is_trusted else untrusted,
        searched_files={kind: file.path for kind, file in files.items()},
        configuration=next((prop.configuration for prop in gcloud.values()), None),
        home=Path(environ["HOME"]) if environ.get("HOME") else None,
    )


def check_file_entry(kind: FileKind, key: str, value: RawValue, *, place: str) -> None:
    """Check that a file may have this entry and that its value is valid. Raises `SettingError` with the allowed sources."""
    spec = SETTINGS[key]
    if kind not in spec.files:
        raise SettingError(f"{place}: `{key}` is never read from a {kind}", hint=allowed_sources_hint(spec))
    try:
        parse_setting(spec, value)
    except ValueError as error:
        raise invalid_value_error(spec, value, place, str(error)) from None
    if key == "labels":
        _check_own_labels(kind, as_pairs(spec, value), place)
    if key != "sandbox":
        return
    is_on = as_boolean(value)
    # With a user-wide sandbox, `down` would succeed while a real node is billed, as in the folder of a file that came with
    # a repository: there it requires trust. Such a file must not disable it either.
    if is_on and kind is FileKind.USER:
        raise SettingError(
            f"{place}: `sandbox: true` is never read from the user file",
            hint="pass `--sandbox`, set `TPUCTL_SANDBOX=1`, or put it in the `tpuctl.yaml` of a project",
        )
    if not is_on and kind is FileKind.PROJECT:
        raise SettingError(
            f"{place}: `sandbox: false` is never read from a project file",
            hint="set `TPUCTL_SANDBOX=0`; without a setting for the sandbox, commands use the real cloud",
        )


def _check_own_labels(kind: FileKind, labels: Mapping[str, str], place: str) -> None:
    """Raise `SettingError` for a label that tpuctl acts on: it would end a node early, or keep it from every clean-up."""
    from tpuctl.models import node, spec  # noqa: PLC0415  # few files have labels

    try:
        spec.check_no_own_labels(labels)
    except InvalidInputError as error:
        raise SettingError(f"{place}: {error.message}", hint=error.hint) from None
    if kind is FileKind.PROJECT and node.KEEP_LABEL in labels:
        raise SettingError(
            f"{place}: the label `{node.KEEP_LABEL}` is never read from a project file",
            hint=f"pass `--labels {node.KEEP_LABEL}=VALUE`",
        )


def _candidates(
    spec: SettingSpec,
    flags: Mapping[str, RawValue],
    environ: Mapping[str, str],
    files: Mapping[FileKind, ConfigFile],
    gcloud: Mapping[str, GcloudProperty],
) -> Iterator[ResolvedSetting]:
    if spec.key in flags:
        yield ResolvedSetting(flags[spec.key], SettingSource(SourceKind.FLAG, spec.flag or spec.key))
    own = ((spec.environment, SourceKind.ENVIRONMENT),) if spec.environment else ()
    for name, kind in (*own, *((name, SourceKind.CLOUDSDK) for name in spec.foreign)):
        value = environ.get(name)
        # An empty variable counts as unset, but an empty boolean as false.
        if value or (value is not None and spec.kind is ValueKind.BOOLEAN):
            yield ResolvedSetting(value, SettingSource(kind, name))
    for file_kind, file in files.items():
        if entry := file.entries.get(spec.key):
            shown = file.path.name if file_kind is FileKind.PROJECT else str(file.path)
            source = SettingSource(SourceKind(file_kind.value), f"{shown} line {entry.line}", file.path)
            yield ResolvedSetting(entry.value, source, entry.content)
    if spec.gcloud and (prop := gcloud.get(spec.gcloud)):
        yield ResolvedSetting(
            prop.value, SettingSource(SourceKind.GCLOUD, f"gcloud configuration `{prop.configuration}`")
        )
    if spec.default is not None:
        yield ResolvedSetting(spec.default, SettingSource(SourceKind.DEFAULT, "default"))


def _resolve_quota_project(found: dict[str, ResolvedSetting]) -> None:
    """Replace gcloud's special values of `billing/quota_project` by the project [gcloud 528 source]."""
    setting, project = found.get("quota_project"), found.get("project")
    if setting is None or setting.value not in {"CURRENT_PROJECT", "CURRENT_PROJECT_WITH_FALLBACK", "LEGACY"}:
        return
    if setting.value == "LEGACY" or project is None:
        del found["quota_project"]
    else:
        found["quota_project"] = replace(setting, value=project.value)


def _keep_lower_limits(found: dict[str, ResolvedSetting], files: Mapping[FileKind, ConfigFile]) -> None:
    """Replace limits of the project file by the lower ones of the user file: only the user who pays may raise them."""
    own_files: dict[FileKind, ConfigFile] = {kind: file for kind, file in files.items() if kind is not FileKind.PROJECT}
    for key in _OWN_LIMITS:
        spec, setting = SETTINGS[key], found.get(key)
        if setting is None or setting.source.kind is not SourceKind.PROJECT_FILE:
            continue
        own = next(_candidates(spec, {}, {}, own_files, {}), None)
        if own is not None and parse_setting(spec, own.value) < parse_setting(spec, setting.value):
            found[key] = own


# Scalars stay text as written: `version: 1.10` is not a number, `off` may be the value of a label.
RawRecord = Mapping[str, str]
RawValue = str | tuple[str, ...] | RawRecord | tuple[RawRecord, ...]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})
_SIZE_FORM = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgtp]?)(i?)b?")
_PREFIXES = " kmgtp"
_DOLLARS_FORM = re.compile(r"\$?([0-9]{1,9}(?:\.[0-9]{1,2})?)")
# Control characters, two separators that some programs take for line ends, and surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A script may have tabs, line ends and color codes, but not these.
_NEVER = re.compile("[\x00\ud800-\udfff]")


def parse_setting(spec: SettingSpec, value: RawValue) -> Any:
    """Return the value of a setting in the type of its kind. Raises `ValueError` with the reason if it is invalid."""
    return _PARSERS[spec.kind](spec, value)


def check_value_form(spec: SettingSpec, value: RawValue) -> None:
    """Check that a value in a file has the form of the setting: one value, a list or a mapping. Raises `ValueError`."""
    if isinstance(value, Mapping) and spec.kind is not ValueKind.PAIRS:
        raise ValueError("this is a mapping; " + _expected_form(spec))
    if isinstance(value, tuple) and spec.kind not in {ValueKind.LIST, ValueKind.RECORDS}:
        raise ValueError("this is a list; " + _expected_form(spec))
    if isinstance(value, str) and spec.kind in {ValueKind.PAIRS, ValueKind.RECORDS}:
        raise ValueError(_expected_form(spec))


def as_text(spec: SettingSpec, value: RawValue) -> str:
    """Return a text; one of the choices if the setting has choices."""
    text = _scalar(value)
    if not text and not spec.may_be_empty:
        raise ValueError("it is empty")
    # It may become a header, a part of a URL, an argument or a path, where these are not allowed.
    if (_NEVER if spec.has_lines else _UNPRINTABLE).search(text):
        raise ValueError("it has control characters")
    if spec.choices and text not in spec.choices:
        guess = closest_match(text, spec.choices)
        meant = f"; did you mean `{guess}`?" if guess else ""
        raise ValueError(f"it must be one of {', '.join(spec.choices)}{meant}")
    return text


def as_boolean(value: RawValue) -> bool:
    """Return a boolean. An empty text is false."""
    text = _scalar(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("it must be true or false")


def as_number(value: RawValue) -> int:
    """Return a whole number that is not negative."""
    text = _scalar(value).strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("it must be a whole number, 0 or more")
    return int(text)


def as_duration(spec: SettingSpec, value: RawValue) -> timedelta:
    """Return a duration, within the limits of the setting; a bare number is seconds, unless the setting needs a unit."""
    text = _scalar(value)
    try:
        duration = parse_duration(text)
    except (ValueError, OverflowError):
        raise ValueError("it must be a duration like 90s, 30m, 2h or 1h30m") from None
    if spec.needs_unit:
        parse_long_duration(text)
    if spec.shortest is not None and duration < spec.shortest:
        raise ValueError(f"it must be at least {spec.shortest.total_seconds():g}s")
    if spec.longest is not None and duration > spec.longest:
        raise ValueError(f"it must be at most {format_duration(spec.longest)}")
    return duration


def as_items(spec: SettingSpec, value: RawValue) -> tuple[str, ...]:
    """Return the items of a list, or of a text split by the separator of the setting."""
    if isinstance(value, Mapping):
        raise ValueError(_expected_form(spec))  # noqa: TRY004  # one exception class for every unreadable value
    items = _texts(spec, value) if isinstance(value, tuple) else tuple(value.split(spec.separator))
    return tuple(item.strip() for item in items if item.strip())


def as_pairs(spec: SettingSpec, value: RawValue) -> dict[str, str]:
    """Return a mapping, also from texts like `a=1,b=2`."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = {}
    # Items of a list are whole pairs: only there may a value contain the separator.
    for item in _texts(spec, value) if isinstance(value, tuple) else as_items(spec, value):
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ValueError("it must be KEY=VALUE pairs")
        pairs[key.strip()] = text
    return pairs


def as_size(value: RawValue) -> int:
    """Return a number of bytes: `1.2TB` is decimal, `500GiB` binary; a bare number is bytes."""
    match = _SIZE_FORM.fullmatch(_scalar(value).strip().lower())
    if not match or (match[3] and not match[2]):
        raise ValueError("it must be a size like 1.2TB or 500GiB")
    number, prefix, binary = match.groups()
    return int(Decimal(number) * (1024 if binary else 1000) ** _PREFIXES.index(prefix or " "))


def as_dollars(value: RawValue) -> Decimal:
    """Return dollars, more than 0, in whole cents; a leading `$` is allowed."""
    match = _DOLLARS_FORM.fullmatch(_scalar(value).strip())
    if not match or not Decimal(match[1]):
        raise ValueError("it must be dollars like 20 or 4.50, more than 0")
    return Decimal(match[1])


def as_records(spec: SettingSpec, value: RawValue) -> tuple[dict[str, str], ...]:
    """Return records, also from a text like `zone=a,type=b;zone=c,type=d`. Their keys are checked, not their values."""
    if isinstance(value, Mapping):
        raise ValueError(_expected_form(spec))  # noqa: TRY004  # one exception class for every unreadable value
    items: tuple[str | RawRecord, ...] = value if isinstance(value, tuple) else tuple(value.split(spec.separator))
    return tuple(as_record(spec, item) for item in items if not isinstance(item, str) or item.strip())


def as_record(spec: SettingSpec, item: str | RawRecord) -> dict[str, str]:
    """Return one record, from a mapping or a text like `zone=a,type=b`."""
    record: dict[str, str] = dict(item) if isinstance(item, Mapping) else {}
    for part in item.split(",") if isinstance(item, str) else ():
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"`{part.strip()}` is not KEY=VALUE")
        if key.strip() in record:
            raise ValueError(f"`{key.strip()}` is given twice")
        record[key.strip()] = text.strip()
    for key in record:
        check_record_field(spec, key)
    lacking = [f"`{key}`" for key in spec.fields if key not in {*record, *spec.optional_fields}]
    if lacking:
        raise ValueError(f"it lacks {', '.join(lacking)}; an entry has {', '.join(spec.fields)}")
    return record


def check_record_field(spec: SettingSpec, key: str) -> None:
    """Check that a record may have this key. Raises `ValueError` with the most similar known one."""
    if key not in spec.fields:
        guess = closest_match(key, spec.fields)
        raise ValueError(
            f"unknown key `{key}`; " + (f"did you mean `{guess}`?" if guess else f"known are {', '.join(spec.fields)}")
        )


def as_grants(spec: SettingSpec, value: RawValue) -> tuple[Grant, ...]:
    """Return grants."""
    from tpuctl.models.grants import Grant  # noqa: PLC0415  # few have any

    return tuple(Grant.parse(record) for record in as_records(spec, value))


def _texts(spec: SettingSpec, items: tuple[str, ...] | tuple[RawRecord, ...]) -> tuple[str, ...]:
    texts = tuple(item for item in items if isinstance(item, str))
    if len(texts) < len(items):
        raise ValueError(_expected_form(spec))
    return texts


def _scalar(value: RawValue) -> str:
    if not isinstance(value, str):
        raise ValueError("it must be one value")  # noqa: TRY004  # one exception class for every unreadable value
    return value


def _expected_form(spec: SettingSpec) -> str:
    if spec.kind is ValueKind.RECORDS:
        return f"it must be a list of entries with {', '.join(spec.fields)}"
    forms = {ValueKind.PAIRS: "a mapping of keys to values", ValueKind.LIST: "a list"}
    return f"it must be {forms.get(spec.kind, 'one value')}"


_PARSERS: Final[Mapping[ValueKind, Callable[[SettingSpec, RawValue], Any]]] = {
    ValueKind.TEXT: as_text,
    ValueKind.BOOLEAN: lambda _, value: as_boolean(value),
    ValueKind.NUMBER: lambda _, value: as_number(value),
    ValueKind.DURATION: as_duration,
    ValueKind.LIST: as_items,
    ValueKind.PAIRS: as_pairs,
    ValueKind.PATH: as_text,
    ValueKind.SIZE: lambda _, value: as_size(value),
    ValueKind.DOLLARS: lambda _, value: as_dollars(value),
    ValueKind.RECORDS: as_grants,
}

_NOT_SHOWN = "(set, not shown)"
_URLS = frozenset({"endpoint", "proxy_address"})


class UntrustedFileError(SettingError):
    """A project file that is not trusted has settings that require trust. Nothing was done, and none of them was used."""

    kind = "untrusted_file"

    def __init__(
        self,
        path: Path | None,
        places: Mapping[str, object],
        *,
        has_changed: bool = False,
        command: str = "tpuctl trust",
    ) -> None:
        keys = ", ".join(f"`{key}` ({place})" for key, place in places.items())
        state = "has changed since it was trusted" if has_changed else "is not trusted"
        super().__init__(
            f"{path} {state}, and it sets {keys}",
            hint=f"`{command}` shows what that does, and asks\nwithout a terminal, for a file of your own: pass "
            "`--trust-project-file`, or set `TPUCTL_TRUST_PROJECT_FILE=1`",
        )


def invalid_value_error(spec: SettingSpec, value: RawValue, place: str, reason: str) -> SettingError:
    """Return the error for an invalid value; a possible secret is not shown."""
    hides = spec.secret or not isinstance(value, str)
    shown = f"`{spec.key}`" if hides else f"`{spec.key}` is `{masked_value(spec, value)}`"
    return SettingError(f"{place}: {shown}: {reason}")


def masked_value(spec: SettingSpec, value: RawValue) -> str:
    """Return a value as text, with secrets masked."""
    if spec.secret:
        return _NOT_SHOWN
    return mask_url(str(value)) if spec.key in _URLS else str(value)


def ways_to_set(spec: SettingSpec) -> str:
    """Return all ways to set a setting."""
    example = spec.choices[0] if spec.choices else spec.key.rsplit("_", 1)[-1].upper()
    ways = [f"pass `{spec.flag} {example}`"] if spec.flag else []
    ways += [f"set `{name}`" for name in (spec.environment, *(() if spec.environment else spec.foreign)) if name]
    if spec.files:
        ways.append(f"run `tpuctl config set {spec.key} {example}`")
    if spec.gcloud:
        ways.append(f"run `gcloud config set {spec.gcloud} {example}`")
    return ", ".join(ways[:-1]) + f" or {ways[-1]}" if len(ways) > 1 else ways[0]


def allowed_sources_hint(spec: SettingSpec) -> str:
    """Return the hint with the sources that may set a setting."""
    places = [f"`{place}`" for place in (spec.flag, spec.environment or next(iter(spec.foreign), None)) if place]
    if FileKind.USER in spec.files:
        places.append("the user file ($XDG_CONFIG_HOME/tpuctl/config.yaml)")
    if spec.gcloud:
        places.append(f"`gcloud config set {spec.gcloud}`")
    return "use " + ", ".join(places[:-1]) + f" or {places[-1]}"

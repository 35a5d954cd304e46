"""The schema of the settings: key, type and sources of each. `config show` and the docs use it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    RECORDS = "records"


class FileKind(StrEnum):
    """The two configuration files. The project file may come from an untrusted repository."""

    PROJECT = "project file"
    USER = "user file"


class FilePolicy(StrEnum):
    """The files that may set a setting. A project file may be untrusted.

    `ANY_FILE` is only for settings that describe a node or how long to wait. Settings that send, run or open something, decide
    who pays, or disable a check are `TRUSTED_FILE`: in a project file they take effect only after `tpuctl trust`, and `effect`
    says what they do.
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
    omitted. `shortest` and `longest` limit a duration. Only a text with `has_lines` may contain line ends.
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
    shortest: timedelta | None = None
    longest: timedelta | None = None

    @property
    def files(self) -> frozenset[FileKind]:
        """The kinds of file that may set it."""
        match self.policy:
            case FilePolicy.NO_FILE:
                return frozenset()
            case FilePolicy.USER_FILE:
                return frozenset({FileKind.USER})
            case FilePolicy.ANY_FILE | FilePolicy.TRUSTED_FILE:
                return frozenset(FileKind)

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


_ANY, _TRUSTED = FilePolicy.ANY_FILE, FilePolicy.TRUSTED_FILE
_USER, _NONE = FilePolicy.USER_FILE, FilePolicy.NO_FILE


def _of_gcloud(key: str, gcloud: str, description: str, *, kind: ValueKind, secret: bool = False) -> SettingSpec:
    """Return a setting of gcloud, from its variable (`CLOUDSDK_…`) and its configuration."""
    variable = "CLOUDSDK_" + gcloud.replace("/", "_").upper()
    return SettingSpec(
        key, kind, description, policy=_NONE, own_variable=False, foreign=(variable,), gcloud=gcloud, secret=secret
    )


def _threshold(key: str, what: str, *, default: str) -> SettingSpec:
    """Return a setting for the time before repair begins."""
    return SettingSpec(key, ValueKind.DURATION, f"time before repair of {what}", policy=_ANY, default=default)


def _buckets(key: str, what: str) -> SettingSpec:
    """Return a setting for Cloud Storage URLs."""
    return SettingSpec(
        key,
        ValueKind.LIST,
        f"{what}, like gs://BUCKET/PREFIX",
        policy=_ANY,
        flag_name="--" + key.removesuffix("s").replace("_", "-"),
    )


# Settings of the checks before a create.
_CHECKS: Final = (
    _buckets("buckets", "buckets that a node reads and writes"),
    _buckets("data_buckets", "buckets that a node only reads"),
    _buckets("checkpoint_buckets", "buckets that a node writes checkpoints to"),
    SettingSpec(
        "dataset_size", ValueKind.SIZE, "amount of data that one epoch reads, like 1.2TB or 500GiB", policy=_ANY
    ),
    SettingSpec(
        "skip_checks",
        ValueKind.LIST,
        "ids of checks whose findings are ignored, like TPU401, or all",
        flag_name="--skip-check",
        policy=_TRUSTED,
        effect="findings of these checks are ignored",
    ),
    # A cloned repository never sets these two: they decide what may be billed.
    SettingSpec(
        "grants",
        ValueKind.RECORDS,
        "grants of free TPUs: zone, type, tier, count, until",
        policy=_USER,
        has_flag=False,
        separator=";",
        fields=("zone", "type", "tier", "count", "until"),
        optional_fields=("until",),
    ),
    SettingSpec(
        "no_billing_outside_grants",
        ValueKind.BOOLEAN,
        "create only nodes that a grant covers",
        policy=_USER,
    ),
    SettingSpec(
        "egress_prices",
        ValueKind.PAIRS,
        "your own network prices between areas, in dollars per GiB",
        has_flag=False,
        policy=_TRUSTED,
        effect="checks compute network prices with these",
    ),
    SettingSpec(
        "billing_project",
        ValueKind.TEXT,
        "project that pays for buckets whose requester pays",
        policy=_TRUSTED,
        effect="this project pays for buckets whose requester pays",
    ),
    SettingSpec(
        "check_timeout",
        ValueKind.DURATION,
        "time limit for checks in the cloud, from 0.1s to 10m",
        default="15s",
        # No cloud answers faster; an answer that takes longer will not come.
        shortest=timedelta(seconds=0.1),
        longest=timedelta(minutes=10),
        policy=_TRUSTED,
        effect="checks without a result by then are skipped",
    ),
)

_SPECS: Final = (
    SettingSpec(
        "project",
        ValueKind.TEXT,
        "project id that owns the nodes",
        foreign=("CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT"),
        gcloud="core/project",
        policy=_TRUSTED,
        effect="nodes are searched, created and billed in this project",
    ),
    SettingSpec(
        "zone", ValueKind.TEXT, "zone of a node", foreign=("CLOUDSDK_COMPUTE_ZONE",), gcloud="compute/zone", policy=_ANY
    ),
    SettingSpec(
        "sandbox", ValueKind.BOOLEAN, "use the local sandbox instead of the cloud", default="false", policy=_ANY
    ),
    SettingSpec("endpoint", ValueKind.TEXT, "URL of another Cloud TPU API", policy=_USER),
    SettingSpec(
        "impersonate_service_account",
        ValueKind.TEXT,
        "service account that calls are made as",
        policy=_USER,
        foreign=("CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT",),
        gcloud="auth/impersonate_service_account",
    ),
    SettingSpec(
        "trust_project_file",
        ValueKind.BOOLEAN,
        "use all settings of tpuctl.yaml, even if it is not trusted or has another owner",
        policy=_NONE,
        default="false",
    ),
    SettingSpec("journal", ValueKind.TEXT, "location of the journal, like gs://bucket/prefix", policy=_USER),
    SettingSpec(
        "user",
        ValueKind.TEXT,
        "login name on the workers",
        policy=_TRUSTED,
        effect="you log in on workers under this name",
    ),
    SettingSpec(
        "ssh_key",
        ValueKind.PATH,
        "private ssh key, or the public key of one that an agent holds",
        policy=_TRUSTED,
        effect="holders of this key can log in on the workers",
    ),
    SettingSpec(
        "ssh_key_expire_after",
        ValueKind.DURATION,
        "validity of the ssh key on nodes, like 8h",
        policy=_TRUSTED,
        effect="your ssh key is valid for this long",
    ),
    SettingSpec("iap", ValueKind.BOOLEAN, "connect to workers through Identity-Aware Proxy", policy=_ANY),
    SettingSpec(
        "internal_ip",
        ValueKind.BOOLEAN,
        "connect to internal addresses of workers; default: if this machine is in their network",
        flag_name="--internal-ip|--external-ip",
        policy=_ANY,
    ),
    SettingSpec(
        "ssh_keep",
        ValueKind.DURATION,
        "time that an idle ssh connection is kept for the next command; 0 keeps none",
        has_flag=False,
        default="5m",
        policy=_ANY,
    ),
    SettingSpec(
        "ssh_config",
        ValueKind.BOOLEAN,
        "write ssh_config entries after `up` and `wait`",
        policy=_USER,
        has_flag=False,
    ),
    SettingSpec("type", ValueKind.TEXT, "accelerator type of a new node, like v5litepod-8", policy=_ANY),
    SettingSpec("version", ValueKind.TEXT, "runtime version of a new node", policy=_ANY),
    SettingSpec(
        "tier",
        ValueKind.TEXT,
        "capacity type of a new node",
        flag_name="--on-demand|--spot|--preemptible|--reserved",
        choices=("on-demand", "spot", "preemptible", "reserved"),
        policy=_ANY,
    ),
    SettingSpec(
        "network", ValueKind.TEXT, "network of a new node", policy=_TRUSTED, effect="new nodes are in this network"
    ),
    SettingSpec(
        "subnetwork",
        ValueKind.TEXT,
        "subnetwork of a new node",
        policy=_TRUSTED,
        effect="new nodes are in this subnetwork",
    ),
    SettingSpec(
        "internal_ips",
        ValueKind.BOOLEAN,
        "give workers no external address",
        policy=_TRUSTED,
        effect="decides whether workers have external addresses",
    ),
    SettingSpec(
        "service_account",
        ValueKind.TEXT,
        "service account that the workers run as",
        policy=_TRUSTED,
        effect="programs on the workers act as this account",
    ),
    SettingSpec(
        "scopes",
        ValueKind.LIST,
        "OAuth scopes of the workers' service account",
        policy=_TRUSTED,
        effect="limits what programs on the workers may do as their service account",
    ),
    SettingSpec("labels", ValueKind.PAIRS, "labels of a new node", policy=_ANY),
    SettingSpec("tags", ValueKind.LIST, "network tags of a new node", policy=_ANY),
    SettingSpec(
        "metadata",
        ValueKind.PAIRS,
        "metadata of a new node",
        secret=True,
        policy=_TRUSTED,
        effect="sent to every new node; some keys run code as root or allow others to log in",
    ),
    SettingSpec(
        "startup_script",
        ValueKind.PATH,
        "script that every worker runs when it starts",
        policy=_TRUSTED,
        effect="sent to every new node, where every worker runs it as root",
    ),
    SettingSpec(
        "data_disks",
        ValueKind.LIST,
        "disks to attach; separated by spaces in a variable",
        flag_name="--data-disk",
        separator=" ",
        policy=_TRUSTED,
        effect="these disks are attached to new nodes",
    ),
    SettingSpec(
        "description", ValueKind.TEXT, "description of a new node", may_be_empty=True, has_lines=True, policy=_ANY
    ),
    SettingSpec(
        "setup",
        ValueKind.TEXT,
        "shell commands that every worker of a new node runs once",
        has_lines=True,
        policy=_TRUSTED,
        effect="every worker of a new node runs these commands as you",
    ),
    SettingSpec("timeout", ValueKind.DURATION, "time limit of a command", default="30m", policy=_ANY),
    SettingSpec(
        "repair",
        ValueKind.TEXT,
        "most disruptive repair allowed",
        default="restart",
        choices=("none", "reboot", "restart", "recreate"),
        policy=_TRUSTED,
        effect="most disruptive repair allowed; recreate deletes the boot disk",
    ),
    SettingSpec("max_reboots", ValueKind.NUMBER, "number of reboots that repair may use", default="1", policy=_ANY),
    SettingSpec("max_restarts", ValueKind.NUMBER, "number of restarts that repair may use", default="2", policy=_ANY),
    SettingSpec(
        "max_recreates", ValueKind.NUMBER, "number of recreations that repair may use", default="1", policy=_ANY
    ),
    _threshold("unhealthy_after", "a READY node that is unhealthy", default="5m"),
    _threshold("unanswered_after", "a READY node whose workers do not answer ssh", default="10m"),
    _threshold("devices_after", "a READY node that lacks chips or fails the probe", default="5m"),
    _threshold("starting_after", "a node that is STARTING", default="15m"),
    _threshold("restarting_after", "a node that is RESTARTING", default="15m"),
    _threshold("repairing_after", "a node that is REPAIRING", default="30m"),
    _threshold("recheck_after", "a node that the last repair did not help", default="3m"),
    SettingSpec(
        "per_worker",
        ValueKind.DURATION,
        "extra time for each worker after the first, added to these",
        default="10s",
        policy=_ANY,
    ),
    SettingSpec(
        "lease",
        ValueKind.TEXT,
        "where leases are stored (gs://BUCKET/PREFIX)",
        policy=_USER,
    ),
    *_CHECKS,
    SettingSpec("output", ValueKind.TEXT, "output format", choices=("table", "json", "yaml", "name"), policy=_ANY),
    SettingSpec(
        "quota_project",
        ValueKind.TEXT,
        "project whose quota for API calls is used",
        foreign=("CLOUDSDK_BILLING_QUOTA_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT"),
        gcloud="billing/quota_project",
        policy=_TRUSTED,
        effect="calls use the quota of this project, and are billed to it",
    ),
    _of_gcloud("account", "core/account", "account that gcloud is logged in with", kind=ValueKind.TEXT),
    _of_gcloud("proxy_type", "proxy/type", "kind of gcloud's proxy", kind=ValueKind.TEXT),
    _of_gcloud("proxy_address", "proxy/address", "host of gcloud's proxy", kind=ValueKind.TEXT),
    _of_gcloud("proxy_port", "proxy/port", "port of gcloud's proxy", kind=ValueKind.NUMBER),
    _of_gcloud("proxy_username", "proxy/username", "login at gcloud's proxy", kind=ValueKind.TEXT),
    _of_gcloud("proxy_password", "proxy/password", "password at gcloud's proxy", kind=ValueKind.TEXT, secret=True),
    _of_gcloud("proxy_rdns", "proxy/rdns", "gcloud's proxy resolves names", kind=ValueKind.BOOLEAN),
    _of_gcloud("ca_certs", "core/custom_ca_certs_file", "file with trusted CA certificates", kind=ValueKind.PATH),
    _of_gcloud("access_token_file", "auth/access_token_file", "file with an access token", kind=ValueKind.PATH),
    _of_gcloud(
        "disable_credentials", "auth/disable_credentials", "gcloud sends no credentials", kind=ValueKind.BOOLEAN
    ),
)

SETTINGS: Final[Mapping[str, SettingSpec]] = MappingProxyType({spec.key: spec for spec in _SPECS})

# Keys that users may expect in a file, and why no file may have them.
NEVER_IN_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {"hooks": "commands that run on this machine can only be given on the command line"}
)

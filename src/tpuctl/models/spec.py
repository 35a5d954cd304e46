"""The requested spec of a node, its comparison with an existing node, and valid labels and tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import find_accelerator_type
from tpuctl.durations import format_timestamp, parse_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import EXPIRY_LABEL, OWNER_LABEL, Node, Tier
from tpuctl.names import NodeName, last_segment
from tpuctl.shapes import ANY, COUNT, INTEGER, TIME, ListOf, MapOf, Scalar, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

# The label that identifies a create request if its answer is lost. Never part of a comparison.
REQUEST_LABEL = "tpuctl-request"
# The label of a node that is deleted at the end of its run (`run --up --rm`). Its value identifies the spec of the run.
REMOVAL_LABEL = "tpuctl-rm"
# The label of a node that is requested in several zones at once. Its value identifies the race.
RACE_LABEL = "tpuctl-race"
_OWN_LABELS = frozenset({REQUEST_LABEL, REMOVAL_LABEL, RACE_LABEL, EXPIRY_LABEL, OWNER_LABEL})
# The most of them that one node has: a race never requests a node that is deleted at the end of its run.
MAX_OWN_LABELS = len(_OWN_LABELS) - 1


@dataclass(frozen=True, slots=True)
class DataDisk:
    """A persistent disk to attach. `mode` is READ_WRITE or READ_ONLY."""

    source: str
    mode: str = "READ_WRITE"


# A queued resource with less time than this would end before the service has looked for capacity.
SHORTEST_QUEUE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWindow:
    """When a queued resource may be provisioned. `now` is the service's time; None is no limit."""

    now: datetime
    valid_until: timedelta | None = None
    valid_after: datetime | None = None

    def ended_by(self, expires: datetime | None) -> QueueWindow:
        """Return the window for a node whose time ends then: afterwards there is nothing to wait for."""
        if expires is None or (self.valid_after is not None and self.valid_after >= expires):
            return self
        left = max(expires - self.now, SHORTEST_QUEUE)
        return replace(self, valid_until=left if self.valid_until is None else min(self.valid_until, left))

    def to_api(self) -> dict[str, Any]:
        """Return the QueueingPolicy; empty without limits."""
        if self.valid_until is None:
            return {"validAfterTime": format_timestamp(self.valid_after)} if self.valid_after else {}
        if self.valid_after is None:
            return {"validUntilDuration": f"{self.valid_until.total_seconds():.0f}s"}
        # Two limits are sent as an interval, as gcloud does [gcloud 528 source].
        end = format_timestamp(self.now + self.valid_until)
        return {"validInterval": {"startTime": format_timestamp(self.valid_after), "endTime": end}}


_KEPT = Shape(
    "",
    {"networkConfig": MapOf(ANY), "networkConfigs": ListOf(MapOf(ANY)), "bootDiskConfig": MapOf(ANY)},
)
_DISK = Scalar(
    "a disk and its mode", lambda value: isinstance(value, list) and [type(one) for one in value] == [str, str]
)
_SECONDS = Scalar("a number of seconds", lambda value: COUNT.accepts(value) and int(value) <= 3650 * 86400)
# A spec in the journal.
JOURNALED_SPEC = Shape(
    "",
    {
        **dict.fromkeys(("accelerator_type", "runtime_version", "topology", "network", "subnetwork"), str),
        **dict.fromkeys(("cidr_block", "service_account", "description", "setup"), str),
        **dict.fromkeys(("internal_ips", "shielded_secure_boot", "queue", "is_calendar"), bool),
        "reservation": str,
        "boot_disk_size": COUNT,
        **dict.fromkeys(("run_for", "ttl"), _SECONDS),
        "expires": TIME,
        **dict.fromkeys(("labels", "metadata"), MapOf(str)),
        **dict.fromkeys(("scopes", "tags", "named"), ListOf(str)),
        "tier": Scalar("a tier", lambda value: value in list(Tier)),
        "queue_count": INTEGER,
        "data_disks": ListOf(_DISK),
        "kept": _KEPT,
    },
    required=("accelerator_type", "runtime_version"),
    nullable=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The requested spec of a node. Fields that are None or empty are left to the service, and are not compared.

    `accelerator_type` and `topology` together request a topology; `tier` is None if the user did not choose one. `named` are
    the fields that the user set, by flag or file: only these are compared. `kept` are API fields without an option, from an
    existing node, for its replacement. `setup` are tpuctl's own shell commands, which every worker of a new node runs once when
    it is usable; the API never sees them.
    """

    # Empty: that of the settings.
    accelerator_type: str = ""
    # Empty: that of the settings, else the default of the type.
    runtime_version: str = ""
    topology: str | None = None
    tier: Tier | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool | None = None
    queue_count: int | None = None
    cidr_block: str | None = None
    service_account: str | None = None
    scopes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    data_disks: tuple[DataDisk, ...] = ()
    shielded_secure_boot: bool | None = None
    description: str | None = None
    setup: str | None = None
    # Requested through the queue: the node comes from a queued resource that has its id.
    queue: bool = False
    # The name of a reservation, or its full resource name; `is_calendar` for one of the calendar mode.
    reservation: str | None = None
    is_calendar: bool = False
    # How long a flex-start node runs.
    run_for: timedelta | None = None
    # In GB.
    boot_disk_size: int | None = None
    # When the time of a new node ends, if that is in the future; else it ends after `ttl`. Without both, never.
    expires: datetime | None = None
    ttl: timedelta | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    named: frozenset[str] = frozenset()

    @property
    def workers(self) -> int:
        """The number of workers; 1 if the type is unknown."""
        accelerator = find_accelerator_type(self.accelerator_type)
        return accelerator.workers if accelerator else 1

    @property
    def is_queued(self) -> bool:
        """Return whether the node is requested through the queue, by the user's choice or because its tier needs that."""
        return self.queue or bool(self.tier and self.tier.needs_queue)

    @property
    def api_version(self) -> str:
        """The version of the API whose fields suffice for the create request: v2, else v2alpha1."""
        if self.is_queued:
            needs_alpha = self.is_calendar or bool(self.tier and self.tier.needs_queue)
        else:
            needs_alpha = self.reservation is not None
        return "v2alpha1" if needs_alpha or self.boot_disk_size is not None else "v2"

    def to_queued_api(self, name: NodeName, window: QueueWindow) -> dict[str, Any]:
        """Return the QueuedResource that requests this node."""
        node = self.to_api(name)
        scheduling = node.pop("schedulingConfig", {})
        parent = f"projects/{name.project}/locations/{name.zone}"
        body: dict[str, Any] = {"tpu": {"nodeSpec": [{"parent": parent, "nodeId": name.node_id, "node": node}]}}
        match self.tier:
            case Tier.SPOT | Tier.PREEMPTIBLE:
                body["spot"] = {}
            case Tier.BEST_EFFORT:
                body["bestEffort"] = {}
            case Tier.FLEX_START:
                body["provisioningModel"] = "FLEX_START"
            case Tier.RESERVED:
                # `-` is any reservation of the project [gcloud 528 source: queued_resources/util.py].
                body["reservationName"] = scheduling.get("reservationName") or f"{parent}/reservations/-"
                if self.is_calendar:
                    body["provisioningModel"] = "RESERVATION_BOUND"
        if self.run_for is not None:
            body["runDuration"] = {"maxRunDuration": f"{self.run_for.total_seconds():.0f}s"}
        if policy := window.to_api():
            body["queueingPolicy"] = policy
        return body

    def to_api(self, name: NodeName | None = None) -> dict[str, Any]:
        """Return the Node for a create request. `name` completes the name of a reservation."""
        body: dict[str, Any] = {"runtimeVersion": self.runtime_version}
        accelerator = find_accelerator_type(self.accelerator_type)
        if self.topology and accelerator:
            body["acceleratorConfig"] = {"type": accelerator.generation.config_type, "topology": self.topology}
        else:
            body["acceleratorType"] = self.accelerator_type
        network = _without_none(
            network=self.network,
            subnetwork=self.subnetwork,
            # The field is off when absent [API v2, NetworkConfig]; every other client asks for external addresses.
            enableExternalIps=not self.internal_ips,
            queueCount=self.queue_count,
        )
        body["networkConfig"] = network
        if self.tier in {Tier.SPOT, Tier.PREEMPTIBLE, Tier.RESERVED}:
            body["schedulingConfig"] = {str(self.tier): True}
        if self.reservation is not None:
            is_full = "/" in self.reservation or name is None
            parent = "" if is_full or name is None else f"projects/{name.project}/locations/{name.zone}/reservations/"
            body["schedulingConfig"] = {
                **({"provisioningModel": "RESERVATION_BOUND"} if self.is_calendar else {"reserved": True}),
                "reservationName": f"{parent}{self.reservation}",
            }
        if self.boot_disk_size is not None:
            body["bootDiskConfig"] = {"diskSizeGb": str(self.boot_disk_size)}
        if self.service_account or self.scopes:
            body["serviceAccount"] = _without_none(email=self.service_account, scope=list(self.scopes) or None)
        if self.data_disks:
            body["dataDisks"] = [{"sourceDisk": disk.source, "mode": disk.mode} for disk in self.data_disks]
        if self.shielded_secure_boot is not None:
            body["shieldedInstanceConfig"] = {"enableSecureBoot": self.shielded_secure_boot}
        body |= _without_none(
            labels=dict(self.labels) or None,
            tags=list(self.tags) or None,
            metadata=dict(self.metadata) or None,
            description=self.description,
            cidrBlock=self.cidr_block,
        )
        if not self.kept:
            return body
        body |= self.kept
        body["networkConfig"] = {**network, **self.kept.get("networkConfig", {})}
        if "networkConfigs" in self.kept:
            del body["networkConfig"]  # a node has the one or the other [API v2, Node]
        return body

    def differences(self, node: Node) -> tuple[SpecDifference, ...]:
        """Return the fields in which a node differs from what the user set. Labels, tags, metadata, description never count."""
        network = node.raw.get("networkConfig") or {}
        account = node.raw.get("serviceAccount") or {}
        default = find_accelerator_type(self.accelerator_type)
        found_type = find_accelerator_type(node.accelerator_type)
        wanted_shape = self.topology or (default.topology if default else None)
        found_shape = (node.raw.get("acceleratorConfig") or {}).get("topology") or (found_type and found_type.topology)
        compared: tuple[tuple[str, Any, Any], ...] = (  # name, requested and actual value, in canonical form
            ("accelerator_type", self.accelerator_type, node.accelerator_type),
            ("topology", wanted_shape, found_shape),
            ("runtime_version", last_segment(self.runtime_version), last_segment(node.runtime_version)),
            # A node does not show these tiers; its queued resource does.
            ("tier", self.tier, self.tier if self.tier and self.tier.needs_queue else node.tier),
            ("network", last_segment(self.network or "default"), last_segment(network.get("network") or "default")),
            ("subnetwork", last_segment(self.subnetwork or ""), last_segment(network.get("subnetwork") or "")),
            ("internal_ips", bool(self.internal_ips), not network.get("enableExternalIps", False)),
            ("queue_count", self.queue_count, network.get("queueCount")),
            ("cidr_block", self.cidr_block, node.raw.get("cidrBlock")),
            ("service_account", self.service_account, account.get("email")),
            ("scopes", tuple(sorted(self.scopes)), tuple(sorted(account.get("scope") or ()))),
            ("data_disks", _disks(self.data_disks), _disks(NodeSpec.from_node(node).data_disks)),
            (
                "shielded_secure_boot",
                bool(self.shielded_secure_boot),
                bool((node.raw.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")),
            ),
        )
        return tuple(
            SpecDifference(name, wanted, found)
            for name, wanted, found in compared
            if name in self.named and wanted != found
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON for the journal."""
        data: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        data["data_disks"] = [[disk.source, disk.mode] for disk in self.data_disks]
        return data | {
            "named": sorted(self.named),
            "tier": self.tier and str(self.tier),
            "run_for": None if self.run_for is None else int(self.run_for.total_seconds()),
            "ttl": None if self.ttl is None else int(self.ttl.total_seconds()),
            "expires": self.expires and format_timestamp(self.expires),
            "labels": without_own_labels(self.labels),
            "metadata": dict(self.metadata),
            "kept": dict(self.kept),
            "scopes": list(self.scopes),
            "tags": list(self.tags),
        }

    def with_removal_label(self) -> NodeSpec:
        """Return the spec with the label of a node that is deleted at the end of the run that created it."""
        import hashlib  # noqa: PLC0415  # 2 ms, and few nodes are removed at the end of a run

        # Runs of one spec at different times, or with other limits, have the same label.
        identity = {key: value for key, value in self.to_json().items() if key not in {"ttl", "expires"}}
        text = json.dumps(identity, sort_keys=True, default=str)
        return replace(self, labels={**self.labels, REMOVAL_LABEL: hashlib.sha256(text.encode()).hexdigest()[:16]})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeSpec:
        """Parse the result of `to_json`, without fields of other versions of tpuctl; null is absent. Raises `ShapeError`."""
        JOURNALED_SPEC.check(data)
        data = {name: value for name, value in data.items() if value is not None}
        known = {entry.name for entry in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["data_disks"] = tuple(DataDisk(*disk) for disk in data.get("data_disks", ()))
        values["tier"] = Tier(data["tier"]) if "tier" in data else None
        for name in ("run_for", "ttl"):
            values[name] = timedelta(seconds=int(data[name])) if name in data else None
        values["expires"] = parse_timestamp(data.get("expires"))
        values["named"] = frozenset(data.get("named", ()))
        values |= {name: tuple(data.get(name, ())) for name in ("scopes", "tags")}
        return cls(**values)

    @classmethod
    def from_node(cls, node: Node) -> NodeSpec:
        """Return the spec to recreate this node. None of its fields counts as set by the user."""
        network = node.raw.get("networkConfig") or {}
        account = node.raw.get("serviceAccount") or {}
        secure = (node.raw.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")
        accelerator = node.accelerator
        # Fields that no option sets.
        kept = {name: node.raw[name] for name in ("networkConfigs", "bootDiskConfig") if node.raw.get(name)}
        if network.get("canIpForward"):
            kept["networkConfig"] = {"canIpForward": True}
        shape = (node.raw.get("acceleratorConfig") or {}).get("topology")
        return cls(
            accelerator_type=node.accelerator_type,
            topology=shape if accelerator is None or shape != accelerator.topology else None,
            runtime_version=node.runtime_version,
            tier=node.tier,
            network=network.get("network"),
            subnetwork=network.get("subnetwork"),
            internal_ips=not network.get("enableExternalIps", False),
            queue_count=network.get("queueCount"),
            cidr_block=None,  # the service chooses a new one
            service_account=account.get("email"),
            scopes=tuple(account.get("scope") or ()),
            labels=without_own_labels(node.labels),
            tags=tuple(node.raw.get("tags") or ()),
            metadata=dict(node.metadata),
            data_disks=tuple(
                DataDisk(disk["sourceDisk"], disk.get("mode", "READ_WRITE")) for disk in node.raw.get("dataDisks") or ()
            ),
            shielded_secure_boot=secure,
            description=node.raw.get("description"),
            expires=node.expires,
            ttl=node.expires - node.created if node.expires and node.created and node.expires > node.created else None,
            kept=kept,
        )


@dataclass(frozen=True, slots=True)
class SpecDifference:
    """One field in which a node differs from its requested spec."""

    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.field}: wanted {_shown(self.wanted)}, found {_shown(self.found)}"


def _shown(value: Any) -> str:  # any field of a spec
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`" if value else "none"
    return "none" if value in (None, "") else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _disks(disks: tuple[DataDisk, ...]) -> tuple[str, ...]:
    return tuple(sorted(f"{last_segment(disk.source)} ({disk.mode})" for disk in disks))


def _without_none(**values: Any) -> dict[str, Any]:  # API JSON
    return {key: value for key, value in values.items() if value is not None}


def without_own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without tpuctl's own, which belong to one node, not to its replacement."""
    return {key: value for key, value in labels.items() if key not in _OWN_LABELS}


# Labels: Resource Manager documentation, "Requirements for labels": at most 64; keys of 1 to 63 characters, values of 0 to 63;
# lower-case letters, digits, `_`, `-` and international characters; a key begins with a letter or an international character.
# Network tags: Compute API v1, Tags.items: 1 to 63 characters, RFC 1035; their number (64) is from Compute Engine's
# documentation. If these rules do not say, any value is accepted, and the service decides.
MAX_LABELS = 64
MAX_LABEL_LENGTH = 63
_TAG = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_RULE = (
    "keys and values have up to 63 lower-case letters, digits, `_` and `-`; letters of other scripts are fine; "
    "a key begins with a letter"
)
_TAG_RULE = (
    "a tag is up to 63 lower-case letters, digits and hyphens, begins with a letter and does not end with a hyphen"
)


def check_labels(labels: Mapping[str, str], *, kept: int = 0) -> dict[str, str]:
    """Return the labels, or raise `InvalidInputError` with the rule and the most similar valid label.

    `kept` is the number of labels that tpuctl adds itself.
    """
    if len(labels) > MAX_LABELS - kept:
        own = f", {kept} of them tpuctl's own" if kept else ""
        raise InvalidInputError(f"{len(labels)} labels are too many", hint=f"a node has at most {MAX_LABELS}{own}")
    for key, value in labels.items():
        name = _nearest_label_text(key)
        while name and not name[0].isalpha() and name[0].isascii():
            name = name[1:]
        good = name, _nearest_label_text(value)
        if good != (key, value):
            meant = f"; did you mean `{good[0]}={good[1]}`?" if good[0] else ""
            raise InvalidInputError(f"`{key}={value}` is not a valid label", hint=_LABEL_RULE + meant)
    return dict(labels)


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the network tags, or raise `InvalidInputError` with the rule and the most similar valid tag."""
    if len(set(tags)) > MAX_LABELS:
        raise InvalidInputError(f"{len(set(tags))} network tags are too many", hint=f"a node has at most {MAX_LABELS}")
    for tag in tags:
        if not _TAG.fullmatch(tag):
            good = re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9]+", "-", tag.lower()))[:MAX_LABEL_LENGTH].rstrip("-")
            meant = f"; did you mean `{good}`?" if good else ""
            raise InvalidInputError(f"`{tag}` is not a valid network tag", hint=_TAG_RULE + meant)
    return tuple(tags)


def _nearest_label_text(text: str) -> str:
    """Return the most similar valid key or value. Only ASCII, and upper case of any script, is validated."""
    lower = text if text == text.lower() else text.lower()
    return re.sub(r"[\x00-\x2c./:-@\[-^`{-\x7f]+", "-", lower)[:MAX_LABEL_LENGTH]

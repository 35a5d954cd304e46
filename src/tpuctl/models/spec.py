"""The requested spec of a node, its comparison with an existing node, and valid labels and tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tpuctl.accelerators import find_accelerator_type
from tpuctl.decoding import ShapeError, decode, decoder_of
from tpuctl.durations import format_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.models.api_values import ApiObject, ApiTexts, an_object
from tpuctl.models.node import EXPIRY_LABEL, KEEP_LABEL, OWNER_LABEL, DataDisk, Node, Tier
from tpuctl.models.spec_fields import (
    ALPHA,
    DISK_SIZE,
    DISKS,
    DURATION,
    INSTANT,
    NEITHER,
    NOT_SHOWN,
    NUMBER,
    PAIRS,
    SWITCH,
    TEXT,
    TEXTS,
    TIER,
    V2,
    V2ALPHA1,
    FieldKind,
    FieldOption,
    FieldSetting,
    SpecField,
    spec_field,
)
from tpuctl.names import NodeName, group_of_slice, last_segment, slice_ids

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

# The label that identifies a create request if its answer is lost. Never part of a comparison.
REQUEST_LABEL = "tpuctl-request"
# The label of a node that is deleted at the end of its run (`run --up --rm`). Its value identifies the spec of the run.
REMOVAL_LABEL = "tpuctl-rm"
# The label of a node that is requested in several zones at once. Its value identifies the race.
RACE_LABEL = "tpuctl-race"
# The label of the slices that `up --slices` creates. Its value is the name of the group. A slice that is recreated keeps it.
GROUP_LABEL = "tpuctl-group"
# All labels of tpuctl begin with it. They have the end of the node's time, its owner and its request: no option sets them.
OWN_LABEL_PREFIX = "tpuctl-"
_OWN_LABELS = frozenset({REQUEST_LABEL, REMOVAL_LABEL, RACE_LABEL, EXPIRY_LABEL, OWNER_LABEL})
# The most of them that one node has: a race never requests a node that is deleted at the end of its run.
MAX_OWN_LABELS = len(_OWN_LABELS) - 1


# More slices than any zone gives to one project, and fewer than the service lets a project create in a minute.
MAX_SLICES = 64
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


def _found_topology(_: NodeSpec, node: Node) -> str | None:
    kind = find_accelerator_type(node.accelerator_type)
    return node.topology or (kind.topology if kind else None)


def _wanted_topology(spec: NodeSpec, _: Node) -> str | None:
    kind = find_accelerator_type(spec.accelerator_type)
    return spec.topology or (kind.topology if kind else None)


def _found_tier(spec: NodeSpec, node: Node) -> Any:  # a tier, or that it is not shown
    """Return the tier of a node. Best-effort and flex-start are shown by no node, the calendar mode by those of v2alpha1."""
    is_marked = node.tier is not Tier.ON_DEMAND or node.provisioning_model == "STANDARD"
    is_hidden = bool(spec.tier and spec.tier.needs_queue) or (spec.is_calendar and not is_marked)
    return NOT_SHOWN if is_hidden else _as_queued(node.tier, node)


def _as_queued(tier: Tier | None, node: Node) -> Tier | None:
    """Return a tier; spot for a preemptible node that comes from a queued resource."""
    return Tier.SPOT if tier is Tier.PREEMPTIBLE and node.queued_resource else tier


@dataclass(frozen=True, slots=True)
class _Kept:
    network_config: ApiObject | None = None
    network_configs: tuple[ApiObject, ...] | None = None
    boot_disk_config: ApiObject | None = None


def _read_kept(value: Any) -> Mapping[str, Any]:  # JSON
    decode(_Kept, value)
    kept: Mapping[str, Any] = value
    return kept


def without_own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without tpuctl's own, which belong to one node, not to its replacement."""
    return {key: value for key, value in labels.items() if key not in _OWN_LABELS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The requested spec of a node. Fields that are None or empty are left to the service, and are not compared.

    `accelerator_type` and `topology` together request a topology; `tier` is None if the user did not choose one. `named` are
    the fields that the user set, by flag or file: only these are compared. `kept` are API fields without an option, from an
    existing node, for its replacement. `setup` are tpuctl's own shell commands, which every worker of a new node runs once when
    it is usable; the API never sees them.
    """

    # Empty: that of the settings.
    accelerator_type: str = spec_field(
        TEXT,
        default="",
        is_compared=True,
        wanted=lambda spec, _: spec.accelerator_type,
        found=lambda _, node: node.accelerator_type,
        setting=FieldSetting(description="accelerator type of a new node, like v5litepod-8"),
    )
    # Empty: that of the settings, else the default of the type.
    runtime_version: str = spec_field(
        TEXT,
        "runtimeVersion",
        default="",
        is_compared=True,
        canonical=last_segment,
        absent="",
        setting=FieldSetting(description="runtime version of a new node"),
    )
    topology: str | None = spec_field(TEXT, is_compared=True, wanted=_wanted_topology, found=_found_topology)
    tier: Tier | None = spec_field(
        TIER,
        is_compared=True,
        wanted=lambda spec, node: _as_queued(spec.tier, node),
        found=_found_tier,
        setting=FieldSetting(description="capacity type of a new node", more={"choices": tuple(map(str, Tier))}),
    )
    # Requested through the queue: the node comes from a queued resource that has its id.
    queue: bool = spec_field(
        SWITCH,
        default=False,
        setting=FieldSetting(description="request a new node as a queued resource, which waits for capacity"),
    )
    # The name of a reservation, or its full resource name; `is_calendar` for one of the calendar mode.
    reservation: str | None = spec_field(
        TEXT,
        "schedulingConfig.reservationName",
        is_compared=True,
        canonical=lambda name: last_segment(name) or None,
        absent="",
        may_be_hidden=True,
        on_node=ALPHA,
        option=FieldOption(
            ("--reservation",),
            "Reservation that has the capacity: its name, or its full resource name.",
            "NAME",
            "PURCHASE",
        ),
    )
    is_calendar: bool = spec_field(
        SWITCH,
        default=False,
        on_node=ALPHA,
        on_request=ALPHA,
        option=FieldOption(
            ("--calendar",),
            "Use --reservation as one of the calendar mode (RESERVATION_BOUND).",
            group="PURCHASE",
            in_gcloud=False,
        ),
    )
    # How long a flex-start node runs.
    run_for: timedelta | None = spec_field(
        DURATION,
        is_compared=True,
        may_be_hidden=True,
        on_node=NEITHER,
        on_request=ALPHA,
        option=FieldOption(
            ("--run-for", "--max-run-duration"),
            "Run time of a flex-start node, at most 7d, after which the service deletes it.",
            "TIME",
            "PURCHASE",
            in_gcloud=False,
        ),
    )
    # In GB.
    boot_disk_size: int | None = spec_field(
        DISK_SIZE,
        "bootDiskConfig.diskSizeGb",
        to_api=str,
        is_compared=True,
        may_be_hidden=True,
        on_node=ALPHA,
        on_request=ALPHA,
        option=FieldOption(
            ("--boot-disk-size",),
            "Size of the boot disk, such as 500GB. [default: 100GB]",
            "SIZE",
            in_gcloud=False,
        ),
    )
    network: str | None = spec_field(
        TEXT,
        "networkConfig.network",
        is_compared=True,
        canonical=last_segment,
        absent="default",
        option=FieldOption(("--network",), "VPC network of the workers.", "NAME", "NETWORK"),
        setting=FieldSetting("new nodes are in this network"),
    )
    subnetwork: str | None = spec_field(
        TEXT,
        "networkConfig.subnetwork",
        is_compared=True,
        canonical=last_segment,
        absent="",
        option=FieldOption(("--subnetwork",), "Subnetwork of the workers.", "NAME", "NETWORK"),
        setting=FieldSetting("new nodes are in this subnetwork"),
    )
    internal_ips: bool | None = spec_field(
        SWITCH,
        is_compared=True,
        wanted=lambda spec, _: bool(spec.internal_ips),
        found=lambda _, node: not node.has_external_ips,
        option=FieldOption(("--internal-ips",), "Create workers without external IP addresses.", group="NETWORK"),
        setting=FieldSetting("decides whether workers have external addresses"),
    )
    cidr_block: str | None = spec_field(
        TEXT,
        "cidrBlock",
        is_compared=True,
        is_reused=False,  # the service chooses another one
        option=FieldOption(
            ("--range",), "IP address range of the workers, a /29 block such as 10.2.0.0/29.", "CIDR", "NETWORK"
        ),
    )
    queue_count: int | None = spec_field(
        NUMBER,
        "networkConfig.queueCount",
        is_compared=True,
        option=FieldOption(("--queue-count",), "Number of network queues of each worker.", "N", "NETWORK"),
    )
    service_account: str | None = spec_field(
        TEXT,
        "serviceAccount.email",
        is_compared=True,
        option=FieldOption(
            ("--service-account",), "Service account that programs on the workers act as.", "EMAIL", "NETWORK"
        ),
        setting=FieldSetting("programs on the workers act as this account"),
    )
    scopes: tuple[str, ...] = spec_field(
        TEXTS,
        "serviceAccount.scope",
        default=(),
        to_api=list,
        is_compared=True,
        canonical=lambda scopes: tuple(sorted(scopes)),
        absent=(),
        option=FieldOption(
            ("--scopes",),
            "OAuth scopes that limit what the workers' service account may do.",
            "SCOPE,...",
            "NETWORK",
        ),
        setting=FieldSetting("limits what programs on the workers may do as their service account"),
    )
    labels: Mapping[str, str] = spec_field(
        PAIRS,
        "labels",
        encode=without_own_labels,
        default={},
        to_api=dict,
        option=FieldOption(("--labels",), "Labels of the node, such as team=vision.", "KEY=VALUE,..."),
        setting=FieldSetting(),
    )
    tags: tuple[str, ...] = spec_field(
        TEXTS,
        "tags",
        default=(),
        to_api=list,
        option=FieldOption(("--tags",), "Network tags of the workers, for firewall rules.", "TAG,...", "NETWORK"),
        setting=FieldSetting(),
    )
    metadata: Mapping[str, str] = spec_field(
        PAIRS,
        "metadata",
        default={},
        to_api=dict,
        option=FieldOption(("--metadata",), "Metadata of the workers.", "KEY=VALUE,...", "SETUP"),
        setting=FieldSetting(
            "sent to every new node; some keys run code as root or allow others to log in", more={"secret": True}
        ),
    )
    data_disks: tuple[DataDisk, ...] = spec_field(
        DISKS,
        "dataDisks",
        default=(),
        to_api=lambda disks: [{"sourceDisk": disk.source, "mode": disk.mode} for disk in disks],
        is_compared=True,
        canonical=lambda disks: tuple(sorted(f"{last_segment(disk.source)} ({disk.mode})" for disk in disks)),
        absent=(),
        option=FieldOption(
            ("--data-disk",),
            "Persistent disk to attach; MODE is read-write or read-only.",
            "source=DISK[,mode=MODE]",
        ),
        setting=FieldSetting(
            "these disks are attached to new nodes",
            description="disks to attach; separated by spaces in a variable",
            more={"flag_name": "--data-disk", "separator": " "},
        ),
    )
    shielded_secure_boot: bool | None = spec_field(
        SWITCH,
        "shieldedInstanceConfig.enableSecureBoot",
        is_compared=True,
        canonical=bool,
        absent=False,
        option=FieldOption(("--shielded-secure-boot",), "Enable Secure Boot: boot only signed software."),
    )
    autocheckpoint_enabled: bool | None = spec_field(
        SWITCH,
        "autocheckpointEnabled",
        is_compared=True,
        may_be_hidden=True,
        on_node=ALPHA,
        on_request=ALPHA,
        option=FieldOption(
            ("--autocheckpoint-enabled",),
            "Enable Autocheckpoint: programs have time to save a checkpoint before maintenance.",
        ),
    )
    description: str | None = spec_field(
        TEXT,
        "description",
        option=FieldOption(("--description",), "Description of the node.", "TEXT"),
        setting=FieldSetting(more={"may_be_empty": True, "has_lines": True}),
    )
    # tpuctl's own: no answer of the API has it.
    setup: str | None = spec_field(
        TEXT,
        option=FieldOption(
            ("--setup",),
            "Shell commands that every worker of a new node runs once it is usable.",
            "CMD",
            "SETUP",
            in_gcloud=False,
        ),
        setting=FieldSetting("every worker of a new node runs these commands as you", more={"has_lines": True}),
    )
    # The node is one of so many slices of a group; None if it is of none. Through the queue one request is for all of them.
    slices: int | None = spec_field(NUMBER)
    # When the time of a new node ends, if that is in the future; else it ends after `ttl`. Without both, never.
    expires: datetime | None = spec_field(INSTANT)
    ttl: timedelta | None = spec_field(DURATION)
    kept: Mapping[str, Any] = spec_field(
        FieldKind(
            "fields of the API",
            lambda value: isinstance(value, Mapping),
            _read_kept,
            encode=dict,
        ),
        default={},
    )
    # Another version of tpuctl may have named fields that this one does not have.
    named: frozenset[str] = spec_field(
        FieldKind(
            "names of fields",
            lambda value: isinstance(value, frozenset),
            lambda names: frozenset(decoder_of(ApiTexts)(names)) & FIELDS.keys(),
            encode=sorted,
        ),
        default=frozenset(),
    )
    # What flags of this run set, by field: the journal does not keep it. Labels, metadata and tags: only those of flags.
    flagged: Mapping[str, Any] = field(default_factory=dict, compare=False)
    # The spec that the user named, of one that was completed from an existing node: only that is patched.
    asked: NodeSpec | None = field(default=None, compare=False)

    @property
    def workers(self) -> int:
        """The number of workers; 1 if the type is unknown."""
        accelerator = find_accelerator_type(self.accelerator_type)
        return accelerator.workers if accelerator else 1

    @property
    def is_queued(self) -> bool:
        """Return whether the node is requested through the queue, by the user's choice or because its tier needs that."""
        return self.queue or bool(self.tier and self.tier.needs_queue)

    def slice_names(self, name: NodeName) -> tuple[NodeName, ...]:
        """Return the names of all slices of the group of a node, in order; none if it is of no group."""
        group = group_of_slice(name.node_id)
        if not self.slices or not group or self.slices > MAX_SLICES:
            return ()
        names = tuple(replace(name, node_id=node_id) for node_id in slice_ids(group, self.slices))
        return names if name in names else ()

    def queued_slices(self, name: NodeName) -> tuple[NodeName, ...]:
        """Return the slices that one queued resource requests; none if the node is requested alone, or without the queue."""
        return self.slice_names(name) if self.is_queued else ()

    def request_name(self, name: NodeName) -> NodeName:
        """Return the name with the id of the queued resource for the node: that of its group, else its own."""
        group = group_of_slice(name.node_id)
        return replace(name, node_id=group) if group and self.queued_slices(name) else name

    def __post_init__(self) -> None:
        """Let a queued preemptible node be spot: a queued resource has no preemptible capacity [API v2, QueuedResource]."""
        if self.queue and self.tier is Tier.PREEMPTIBLE:
            object.__setattr__(self, "tier", Tier.SPOT)

    @property
    def api_version(self) -> str:
        """The version of the API whose fields suffice for the create request: v2, else v2alpha1."""
        set_names = [name for name in FIELDS if getattr(self, name) not in _EMPTY]
        return self._version_of(set_names, is_queued=self.is_queued)

    @property
    def version_to_read(self) -> str:
        """The version of the API that shows the compared fields of a node: v2, else v2alpha1."""
        return self._version_of(self.named, is_queued=False)

    @property
    def version_to_read_request(self) -> str:
        """The version of the API that shows the compared fields of a queued resource: v2, else v2alpha1."""
        return self._version_of(self.named, is_queued=True)

    def _version_of(self, names: Collection[str], *, is_queued: bool) -> str:
        if self.tier and self.tier.needs_queue and is_queued:
            return V2ALPHA1
        rows = [FIELDS[name] for name in names]
        return V2 if all(V2 in (row.on_request if is_queued else row.on_node) for row in rows) else V2ALPHA1

    def to_queued_api(self, name: NodeName, window: QueueWindow) -> dict[str, Any]:
        """Return the QueuedResource that requests this node, or all slices of its group."""
        node = self.to_api(name)
        scheduling = node.pop("schedulingConfig", {})
        parent = f"projects/{name.project}/locations/{name.zone}"
        ids: dict[str, Any] = {"nodeId": name.node_id}
        if slices := self.queued_slices(name):
            several = "multisliceParams" if self.api_version == V2 else "multiNodeParams"
            ids = {several: {"nodeCount": len(slices), "nodeIdPrefix": self.request_name(name).node_id}}
        body: dict[str, Any] = {"tpu": {"nodeSpec": [{"parent": parent, **ids, "node": node}]}}
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
        body: dict[str, Any] = {}
        accelerator = find_accelerator_type(self.accelerator_type)
        if self.topology and accelerator:
            body["acceleratorConfig"] = {"type": accelerator.generation.config_type, "topology": self.topology}
        else:
            body["acceleratorType"] = self.accelerator_type
        # The field is off when absent [API v2, NetworkConfig]; every other client asks for external addresses.
        body["networkConfig"] = {"enableExternalIps": not self.internal_ips}
        for field_name, row in FIELDS.items():
            row.write(body, getattr(self, field_name))
        if self.tier in {Tier.SPOT, Tier.PREEMPTIBLE, Tier.RESERVED}:
            body["schedulingConfig"] = {str(self.tier): True}
        if self.reservation is not None:
            is_full = "/" in self.reservation or name is None
            parent = "" if is_full or name is None else f"projects/{name.project}/locations/{name.zone}/reservations/"
            body["schedulingConfig"] = {
                **({"provisioningModel": "RESERVATION_BOUND"} if self.is_calendar else {"reserved": True}),
                "reservationName": f"{parent}{self.reservation}",
            }
        if not self.kept:
            return body
        body |= {
            **self.kept,
            "networkConfig": {**body["networkConfig"], **self.kept.get("networkConfig", {})},
            "bootDiskConfig": {**self.kept.get("bootDiskConfig", {}), **body.get("bootDiskConfig", {})},
        }
        if not body["bootDiskConfig"]:
            del body["bootDiskConfig"]
        if "networkConfigs" in self.kept:
            del body["networkConfig"]  # a node has the one or the other [API v2, Node]
        return body

    def differences(self, node: Node, *, made_as: NodeSpec | None = None) -> tuple[SpecDifference, ...]:
        """Return the fields in which a node differs from what the user set. Labels, tags, metadata, description never count.

        `made_as` is the spec that this very node was created with, if the journal has it. It counts for a field that the API
        does not show; without it such a field is not compared.
        """
        compared = ((name, *self._compare(name, node, made_as)) for name in FIELDS if name in self.named)
        return tuple(
            SpecDifference(name, wanted, found)
            for name, wanted, found in compared
            if found is not NOT_SHOWN and wanted != found
        )

    def not_compared(self, node: Node, *, made_as: NodeSpec | None = None) -> tuple[str, ...]:
        """Return the fields that the user set and that cannot be compared: neither the API nor the journal shows them."""
        return tuple(
            name for name in FIELDS if name in self.named and self._compare(name, node, made_as)[1] is NOT_SHOWN
        )

    def _compare(self, name: str, node: Node, made_as: NodeSpec | None) -> tuple[Any, Any]:
        """Return the requested and the actual value of a field, in canonical form."""
        row = FIELDS[name]
        if not row.is_compared:
            return None, None
        wanted, found = _wanted(self, name, node), _found(self, name, node)
        if found is NOT_SHOWN and made_as is not None:
            found = _wanted(made_as, name, node)
        return wanted, found

    def over(self, former: NodeSpec, names: Collection[str] = (), *, exists: bool = False) -> NodeSpec:
        """Return the spec of a node that had the `former` one: the fields of these names, and those of flags, change it.

        Fields that belong to a changed one follow it. Labels, metadata and tags are added; only on a node that `exists`, and
        is not recreated, do files change them, and its description.
        """
        names = {*names, *self.flagged} - _ADDED
        if exists and self.description is not None:
            names |= {"description"}
        if "accelerator_type" in names and self.accelerator_type != former.accelerator_type:
            names |= {"topology", "runtime_version"}
        if "tier" in names and self.tier != former.tier:
            names |= {"reservation", "is_calendar", "run_for"}
        if "network" in names and self.network != former.network:
            names |= {"subnetwork"}
        # Fields without an option would win over those with one.
        replaced = {"networkConfig", "networkConfigs"} if names & _NETWORK_FIELDS else set()
        return replace(
            former,
            **{
                "ttl": self.ttl if former.ttl is None else former.ttl,
                **{name: getattr(self, name) for name in ("setup", "description") if getattr(former, name) is None},
                **{name: getattr(self, name) for name in names},
            },
            labels=self._added("labels", former, exists=exists),
            metadata=self._added("metadata", former, exists=exists),
            tags=tuple(dict.fromkeys((*former.tags, *self.tags))),
            kept={name: value for name, value in former.kept.items() if name not in replaced},
            named=frozenset(names & self.named),
            flagged=self.flagged,
            asked=self,
        )

    def _added(self, name: str, former: NodeSpec, *, exists: bool) -> dict[str, str]:
        own: Mapping[str, str] = getattr(self, name)
        before: Mapping[str, str] = getattr(former, name)
        return {**own, **before, **(own if exists else self.flagged.get(name, {}))}

    def changes_of(self, former: NodeSpec, names: Collection[str]) -> tuple[SpecDifference, ...]:
        """Return in which of these fields this spec differs from a former one."""
        node = Node(NodeName("", "", ""), {})
        compared = ((name, _wanted(self, name, node), _wanted(former, name, node)) for name in names)
        return tuple(SpecDifference(name, new, old) for name, new, old in compared if new != old)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON for the journal."""
        return {
            name: None if (value := getattr(self, name)) is None else (row.encode or row.kind.encode)(value)
            for name, row in FIELDS.items()
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
        values, name = {}, ""
        try:
            for name, value in an_object(data).items():
                if name in FIELDS and value is not None:
                    values[name] = FIELDS[name].kind.decode(value)
        except ShapeError as error:
            raise error.below(name) if name else error from error
        for name in ("accelerator_type", "runtime_version"):
            if name not in values:
                raise ShapeError(f"`{name}` is missing")
        return cls(**values)

    def completed_from(self, made_as: NodeSpec, node: Node) -> NodeSpec:
        """Return the spec of an existing node, with the fields that the API does not show from the one that created it."""
        hidden = [name for name, row in FIELDS.items() if row.is_compared and _found(made_as, name, node) is NOT_SHOWN]
        own = ["queue"] if node.queued_resource else []
        return replace(self, **{name: getattr(made_as, name) for name in (*hidden, *own, "is_calendar")})

    @classmethod
    def from_node(cls, node: Node) -> NodeSpec:
        """Return the spec to recreate this node. None of its fields counts as set by the user."""
        known_topology = node.accelerator.topology if node.accelerator else None
        # Fields that no option sets.
        kept = {name: node.raw[name] for name in ("networkConfigs", "bootDiskConfig") if node.raw.get(name)}
        if disk := {key: value for key, value in kept.pop("bootDiskConfig", {}).items() if key != "diskSizeGb"}:
            kept["bootDiskConfig"] = disk
        if node.can_ip_forward:
            kept["networkConfig"] = {"canIpForward": True}
        shown = {name: getattr(node, name) for name, row in FIELDS.items() if row.path and row.is_reused}
        shown["labels"] = without_own_labels(node.labels)
        ends_later = node.expires and node.created and node.expires > node.created
        return cls(
            **{name: value for name, value in shown.items() if value not in (None, "")},
            accelerator_type=node.accelerator_type,
            topology=node.topology if node.topology and node.topology != known_topology else None,
            tier=node.tier,
            internal_ips=not node.has_external_ips,
            is_calendar=node.provisioning_model == "RESERVATION_BOUND",
            expires=node.expires,
            ttl=node.expires - node.created if ends_later else None,  # type: ignore[operator]  # both are set
            kept=kept,
        )


_EMPTY: tuple[Any, ...] = (None, "", (), {}, False)
# Fields whose values of flags are added to those that a node had.
_ADDED = frozenset({"labels", "metadata", "tags"})
# Every field but `flagged` and `asked`.
FIELDS: Final[Mapping[str, SpecField]] = {
    entry.name: entry.metadata["row"] for entry in fields(NodeSpec) if "row" in entry.metadata
}
_NETWORK_FIELDS = frozenset(name for name, row in FIELDS.items() if row.path[:1] == ("networkConfig",)) | {
    "internal_ips"
}


def _wanted(spec: NodeSpec, name: str, node: Node) -> Any:  # any field of a spec
    """Return the requested value of a compared field, in canonical form."""
    row, value = FIELDS[name], getattr(spec, name)
    if row.wanted:
        return row.wanted(spec, node)
    value = row.absent if value in (None, "", ()) else value
    return value if value is None else row.canonical(value)


def _found(spec: NodeSpec, name: str, node: Node) -> Any:  # any field of a spec, or that it is not shown
    """Return the actual value of a compared field, in canonical form."""
    row = FIELDS[name]
    if row.found:
        return row.found(spec, node)
    value = getattr(node, name) if row.path else None
    if value in (None, "", ()):
        if row.may_be_hidden:
            return NOT_SHOWN
        value = row.absent
    return value if value is None else row.canonical(value)


@dataclass(frozen=True, slots=True)
class SpecDifference:
    """One field in which a node differs from its requested spec."""

    field: str
    wanted: Any
    found: Any

    @property
    def shown_wanted(self) -> str:
        """The requested value, for a message."""
        return _shown(self.wanted)

    def __str__(self) -> str:
        return f"{self.field}: wanted {self.shown_wanted}, found {_shown(self.found)}"


def _shown(value: Any) -> str:  # any field of a spec
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`" if value else "none"
    return "none" if value in (None, "") else f"`{str(value).lower() if isinstance(value, bool) else value}`"


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
# [Compute Engine v1, Metadata.items.key].
_METADATA_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
METADATA_KEY_RULE = "a key is up to 128 letters, digits, `_` and `-`"
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


_WRITERS_OF_OWN_LABELS = {
    GROUP_LABEL: "`tpuctl up NAME --slices 3` writes it",
    EXPIRY_LABEL: "`--ttl 8h` limits the time of a new node; change it with `tpuctl extend NODE 2h`, or `--no-expiry`",
    OWNER_LABEL: "`tpuctl up` and `tpuctl create` write it for the account that creates the node",
    RACE_LABEL: "`tpuctl up NODE --race` writes it",
    REMOVAL_LABEL: "`tpuctl run NODE --up --rm` writes it",
    REQUEST_LABEL: "each request that creates a node writes its own",
}


def check_user_labels(labels: Mapping[str, str], *, kept: int = 0) -> dict[str, str]:
    """Return labels that a user sets, as `check_labels`. Raises `InvalidInputError` also for a label of tpuctl's own."""
    check_no_own_labels(labels)
    return check_labels(labels, kept=kept)


def check_no_own_labels(labels: Iterable[str]) -> None:
    """Raise `InvalidInputError` for a label that only tpuctl writes: clean-ups and races delete nodes by them."""
    for key in labels:
        if key.startswith(OWN_LABEL_PREFIX) and key != KEEP_LABEL:
            others = f"of the labels that begin with `{OWN_LABEL_PREFIX}`, users set `{KEEP_LABEL}` only"
            raise InvalidInputError(
                f"the label `{key}` cannot be changed: it is tpuctl's own", hint=_WRITERS_OF_OWN_LABELS.get(key, others)
            )


def is_metadata_key(text: str) -> bool:
    """Return whether metadata can have a key."""
    return _METADATA_KEY.fullmatch(text) is not None


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

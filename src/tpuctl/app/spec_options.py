"""The options that describe a node, and the `NodeSpec` made of them and the settings.

They have the names of `gcloud compute tpus tpu-vm create`, and two short ones: `--type` and `--version`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl.accelerators import (
    accelerator_type_from_topology,
    accelerator_types_of_size,
    canonical_type,
    check_accelerator_type,
    find_accelerator_type,
    find_generation,
)
from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.value_completion import complete_label, complete_tier, complete_type, complete_version
from tpuctl.durations import format_duration
from tpuctl.errors import InvalidInputError
from tpuctl.escaping import GCLOUD_DELIMITER, check_not_masked
from tpuctl.files import METADATA_VALUE_LIMIT, expand_user_path, read_user_text
from tpuctl.models.node import Tier
from tpuctl.models.spec import MAX_OWN_LABELS, DataDisk, NodeSpec, check_labels, check_tags
from tpuctl.names import closest_match

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.config.settings import Settings

# Options that are settings too, with the same name and meaning.
_SPEC_SETTINGS = (
    "type", "version", "tier", "network", "subnetwork", "service_account", "scopes", "startup_script", "description",
    "setup",
)  # fmt: skip
_DISK_MODES = {"read-write": "READ_WRITE", "read-only": "READ_ONLY"}


class GivenOptions:
    """Base of dataclasses whose fields are options."""

    __slots__ = ()

    @property
    def given(self) -> dict[str, Any]:
        """The options that the user gave, by the names of their fields."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # a dataclass
        return {
            name: value for name, value in values.items() if value is not None and value is not False and value != ()
        }


@dataclass(frozen=True, slots=True)
class SpecOptions(GivenOptions):
    """The options that describe a node, as given."""

    type: str | None = option(
        "--type",
        "--accelerator-type",
        metavar="TYPE",
        shell_complete=complete_type,
        help="Accelerator type, such as v4-8, v5litepod-16 or v6e-8; `tpuctl types` lists them.",
    )
    topology: str | None = option(
        "--topology",
        metavar="AxB[xC]",
        help="Chips in each dimension, such as 2x2x2, instead of a size: --type v4 --topology 2x2x2.",
    )
    version: str | None = option(
        "--version",
        "--runtime-version",
        metavar="VERSION",
        help="Runtime version: the software image of the workers. [default: by type]",
        shell_complete=complete_version,
    )
    spot: bool = option(
        "--spot",
        group=OptionGroup.PURCHASE,
        is_flag=True,
        help="Use spot capacity: cheaper, can be preempted at any time.",
    )
    preemptible: bool = option(
        "--preemptible",
        group=OptionGroup.PURCHASE,
        is_flag=True,
        help="Use preemptible capacity: cheaper, can be preempted at any time, for at most 24 h.",
    )
    reserved: bool = option(
        "--reserved", group=OptionGroup.PURCHASE, is_flag=True, help="Use capacity of a reservation of your project."
    )
    on_demand: bool = option(
        "--on-demand", group=OptionGroup.PURCHASE, is_flag=True, help="Use on-demand capacity; overrides tpuctl.yaml."
    )
    tier: str | None = option(
        "--tier",
        group=OptionGroup.PURCHASE,
        metavar="TIER[,TIER...]",
        shell_complete=complete_tier,
        help=f"Capacity type: {', '.join(Tier)}. `up` tries several in this order.",
    )
    queue: bool = option(
        "--queue",
        group=OptionGroup.PURCHASE,
        is_flag=True,
        help="Request the node as a queued resource, which waits for capacity.",
    )
    reservation: str | None = option(
        "--reservation",
        group=OptionGroup.PURCHASE,
        metavar="NAME",
        help="Reservation that has the capacity: its name, or its full resource name.",
    )
    calendar: bool = option(
        "--calendar",
        group=OptionGroup.PURCHASE,
        is_flag=True,
        help="Use --reservation as one of the calendar mode (RESERVATION_BOUND).",
    )
    run_for: timedelta | str | None = option(
        "--run-for",
        "--max-run-duration",
        group=OptionGroup.PURCHASE,
        type=DurationType(),
        metavar="TIME",
        help="Run time of a flex-start node, at most 7d, after which the service deletes it.",
    )
    boot_disk_size: str | None = option(
        "--boot-disk-size", metavar="SIZE", help="Size of the boot disk, such as 500GB. [default: 100GB]"
    )
    network: str | None = option(
        "--network", group=OptionGroup.NETWORK, metavar="NAME", help="VPC network of the workers."
    )
    subnetwork: str | None = option(
        "--subnetwork", group=OptionGroup.NETWORK, metavar="NAME", help="Subnetwork of the workers."
    )
    internal_ips: bool = option(
        "--internal-ips", group=OptionGroup.NETWORK, is_flag=True, help="Create workers without external IP addresses."
    )
    cidr_block: str | None = option(
        "--range",
        group=OptionGroup.NETWORK,
        metavar="CIDR",
        help="IP address range of the workers, such as 10.2.0.0/28.",
    )
    queue_count: int | None = option(
        "--queue-count",
        group=OptionGroup.NETWORK,
        metavar="N",
        type=click.IntRange(min=1),
        help="Number of network queues of each worker.",
    )
    service_account: str | None = option(
        "--service-account",
        group=OptionGroup.NETWORK,
        metavar="EMAIL",
        help="Service account that programs on the workers act as.",
    )
    scopes: str | None = option(
        "--scopes",
        group=OptionGroup.NETWORK,
        metavar="SCOPE,...",
        help="OAuth scopes that limit what the workers' service account may do.",
    )
    labels: tuple[str, ...] = option(
        "--labels",
        metavar="KEY=VALUE,...",
        multiple=True,
        shell_complete=complete_label,
        help="Labels of the node, such as team=vision. Repeatable.",
    )
    tags: tuple[str, ...] = option(
        "--tags",
        group=OptionGroup.NETWORK,
        metavar="TAG,...",
        multiple=True,
        help="Network tags of the workers, for firewall rules. Repeatable.",
    )
    metadata: tuple[str, ...] = option(
        "--metadata",
        group=OptionGroup.SETUP,
        metavar="KEY=VALUE,...",
        multiple=True,
        help="Metadata of the workers. Repeatable.",
    )
    metadata_from_file: tuple[str, ...] = option(
        "--metadata-from-file",
        group=OptionGroup.SETUP,
        metavar="KEY=FILE,...",
        multiple=True,
        help="Metadata of the workers, with values from local files. Repeatable.",
    )
    startup_script: str | None = option(
        "--startup-script",
        group=OptionGroup.SETUP,
        metavar="FILE",
        help="Local script that every worker runs as root at each boot.",
    )
    data_disk: tuple[str, ...] = option(
        "--data-disk",
        metavar="source=DISK[,mode=MODE]",
        multiple=True,
        help="Persistent disk to attach; MODE is read-write or read-only. Repeatable.",
    )
    shielded_secure_boot: bool = option(
        "--shielded-secure-boot", is_flag=True, help="Enable Secure Boot: boot only signed software."
    )
    description: str | None = option("--description", metavar="TEXT", help="Description of the node.")
    setup: str | None = option(
        "--setup",
        group=OptionGroup.SETUP,
        metavar="CMD",
        help="Shell commands that every worker of a new node runs once it is usable.",
    )
    setup_script: str | None = option(
        "--setup-script",
        group=OptionGroup.SETUP,
        metavar="FILE",
        help="Local file with shell commands that every worker of a new node runs once it is usable.",
    )

    @property
    def given_with_tier(self) -> dict[str, Any]:
        """The given options, with the first capacity type as `tier`. Raises `InvalidInputError` for two kinds of flags."""
        given = self.given
        for tier in Tier:
            given.pop(str(tier).replace("-", "_"), None)
        return given | ({"tier": str(self.tiers[0])} if self.tiers else {})

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The capacity types in the order in which to try them. Raises `InvalidInputError` for two flags."""
        flags = [f"--{tier}" for tier in Tier if getattr(self, str(tier).replace("-", "_"), False)]
        flags += ["--tier"] if self.tier is not None else []
        if len(flags) > 1:
            raise InvalidInputError(f"cannot combine {' and '.join(f'`{flag}`' for flag in flags)}", hint="choose one")
        if self.tier is None:
            return tuple(Tier(flag.removeprefix("--")) for flag in flags)
        found = parse_items((self.tier,))
        for name in found:
            if name not in list(Tier):
                guess = closest_match(name, list(Tier))
                meant = f"did you mean `{guess}`? " if guess else ""
                raise InvalidInputError(
                    f"`{name}` is not a capacity type", hint=f"{meant}choose from {', '.join(Tier)}"
                )
        if not found:
            raise InvalidInputError("`--tier` names no capacity type", hint=f"choose from {', '.join(Tier)}")
        return tuple(map(Tier, dict.fromkeys(found)))


spec_options = takes_options(SpecOptions, "described", group=OptionGroup.NODE)


def build_spec(app: App, options: SpecOptions, *, skip_validation: bool = False) -> NodeSpec | None:
    """Return the spec of flags and settings, None if they name no accelerator type.

    Raises `InvalidInputError` for an invalid value; with `skip_validation` an unknown accelerator type is accepted.
    """
    given = options.given_with_tier
    if options.setup_script is not None:
        if options.setup is not None:
            raise InvalidInputError("cannot combine `--setup` and `--setup-script`", hint="remove one of them")
        del given["setup_script"]
        given["setup"] = _read(app, "--setup-script", options.setup_script)
    in_settings: dict[str, Any] = {name: given[name] for name in _SPEC_SETTINGS if name in given}
    if options.queue:
        in_settings["queue"] = "true"
    if options.internal_ips:
        in_settings["internal_ips"] = "true"
    settings = app.settings_with(in_settings)
    wanted = settings.text("type")
    if wanted is None:
        if options.topology is not None:
            raise InvalidInputError("`--topology` needs a generation", hint="add one, such as `--type v4`")
        if given:
            flags = " and ".join(f"`--{name.replace('_', '-')}`" for name in sorted(options.given))
            hint = "add `--type TYPE`; for an existing node its own type"
            raise InvalidInputError(f"no accelerator type given for {flags}", hint=hint)
        return None
    accelerator_type, topology, default_version = _accelerator(
        wanted, options.topology, skip_validation=skip_validation
    )
    if accelerator_type != wanted:
        _note_understood_type(app, wanted, accelerator_type, options.topology)
    version = settings.text("version") or default_version
    if version is None:
        similar = ", ".join(f"`{name}`" for name in accelerator_types_of_size(wanted))
        raise InvalidInputError(
            f"no runtime version is known for `{wanted}`",
            hint="name one: `--version VERSION`" + (f"\nknown types of that size are {similar}" if similar else ""),
        )
    word = settings.text("tier")
    tier = _tier_of_reservation(options, Tier(word) if word else None)
    spec = NodeSpec(
        accelerator_type=accelerator_type,
        topology=topology,
        runtime_version=version,
        tier=tier,
        queue=settings.is_on("queue"),
        reservation=options.reservation,
        is_calendar=options.calendar,
        run_for=_run_time(options, tier),
        boot_disk_size=_boot_disk_size(options.boot_disk_size),
        ttl=settings.duration("ttl") if not app.is_overridden("ttl") and settings["ttl"] else None,
        network=settings.text("network"),
        subnetwork=settings.text("subnetwork"),
        internal_ips=settings.is_on("internal_ips") if settings["internal_ips"] else None,
        cidr_block=options.cidr_block,
        queue_count=options.queue_count,
        service_account=settings.text("service_account"),
        scopes=settings.items("scopes"),
        labels=check_labels(
            {**settings.pairs("labels"), **parse_pairs("--labels", options.labels)}, kept=MAX_OWN_LABELS
        ),
        tags=check_tags(parse_items(options.tags) or settings.items("tags")),
        metadata=_metadata(app, settings, options),
        data_disks=tuple(parse_disk("--data-disk", text) for text in options.data_disk or settings.items("data_disks")),
        shielded_secure_boot=options.shielded_secure_boot or None,
        description=settings.text("description"),
        setup=settings.text("setup"),
    )
    # A node may differ in these.
    soft = {"named", "labels", "tags", "metadata", "description", "setup", "queue", "is_calendar", "ttl"}
    named = {
        entry.name
        for entry in fields(spec)
        if entry.name not in soft and getattr(spec, entry.name) not in (None, (), {})
    }
    if settings["version"] is None:
        named.discard("runtime_version")
    return replace(spec, named=frozenset(named))


# Documentation of flex-start: at most 7 days.
_LONGEST_FLEX_START = timedelta(days=7)
# API v2alpha1, BootDiskConfig: at least the size of the image; Compute Engine's limit of a disk is 64 TB.
_LARGEST_BOOT_DISK = 65536
_RESERVATION = re.compile(r"[a-z0-9][-a-z0-9]{0,62}|projects/[^/\s]+/locations/[^/\s]+/reservations/[^/\s]+", re.ASCII)


def _tier_of_reservation(options: SpecOptions, tier: Tier | None) -> Tier | None:
    """Return the tier, which is reserved for a reservation. Raises `InvalidInputError` for another."""
    if options.reservation is None:
        if options.calendar:
            raise InvalidInputError("`--calendar` needs `--reservation`", hint="add `--reservation NAME`")
        return tier
    if tier not in {None, Tier.RESERVED}:
        raise InvalidInputError(
            f"cannot combine `--reservation {options.reservation}` and the tier {tier}",
            hint="a reservation has reserved capacity: leave one of them out",
        )
    if not re.fullmatch(
        r"[a-z0-9][-a-z0-9]{0,62}|projects/[^/\s]+/locations/[^/\s]+/reservations/[^/\s]+", options.reservation
    ):
        raise InvalidInputError(
            f"`{options.reservation}` is not the name of a reservation",
            hint="write its name, or `projects/PROJECT/locations/ZONE/reservations/NAME`",
        )
    return Tier.RESERVED


def _run_time(options: SpecOptions, tier: Tier | None) -> timedelta | None:
    if options.run_for is None:
        return None
    if tier is not Tier.FLEX_START:
        raise InvalidInputError(
            f"`--run-for` needs the tier flex-start, not {tier or Tier.ON_DEMAND}", hint="add `--tier flex-start`"
        )
    if not isinstance(options.run_for, timedelta) or not timedelta() < options.run_for <= _LONGEST_FLEX_START:
        raise InvalidInputError(
            f"`--run-for` is from 1s to {format_duration(_LONGEST_FLEX_START)}", hint="write it like `--run-for 24h`"
        )
    return options.run_for


def _boot_disk_size(text: str | None) -> int | None:
    """Return a size in GB."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})(GB|GiB|TB|TiB|G|T)?", text.strip(), re.IGNORECASE)
    size = int(found[1]) * (1000 if (found[2] or "").upper().startswith("T") else 1) if found else 0
    if not 1 <= size <= _LARGEST_BOOT_DISK:
        raise InvalidInputError(
            f"`--boot-disk-size {text}` is not a size of a boot disk", hint="write it like `500GB` or `2TB`"
        )
    return size


def metadata_from_files(app: App, texts: tuple[str, ...]) -> dict[str, str]:
    """Return metadata with values read from files; paths are relative to the working directory."""
    named = parse_pairs("--metadata-from-file", texts)
    return {key: _read(app, "--metadata-from-file", path) for key, path in named.items()}


def _note_understood_type(app: App, wanted: str, name: str, topology: str | None) -> None:
    """Say which type a spelling, or a generation and a topology, is."""
    known = find_accelerator_type(name)
    chips = f" ({known.chips} chip{'' if known.chips == 1 else 's'})" if known else ""
    app.terminal.note(f"{wanted}{f' {topology}' if topology else ''} is {name}{chips}")


def _accelerator(wanted: str, topology: str | None, *, skip_validation: bool) -> tuple[str, str | None, str | None]:
    """Return the API's name of the type, the topology if one was given, and the default runtime version if one is known."""
    if topology:
        named = find_accelerator_type(canonical_type(wanted))
        generation = named.generation if named else find_generation(wanted)
        shaped = accelerator_type_from_topology(generation.name if generation else wanted, topology)
        if named is not None and named.name != shaped.name:
            raise InvalidInputError(
                f"type `{wanted}` does not have the topology `{topology}`",
                hint=f"`{topology}` is `{shaped.name}`; remove one of the options",
            )
        return shaped.name, shaped.topology, shaped.runtime_version
    name = wanted if skip_validation else check_accelerator_type(wanted)
    known = find_accelerator_type(name)
    return name, None, known.runtime_version if known else None


def _metadata(app: App, settings: Settings, options: SpecOptions) -> dict[str, str]:
    metadata = {**settings.pairs("metadata"), **parse_pairs("--metadata", options.metadata)}
    metadata |= metadata_from_files(app, options.metadata_from_file)
    setting, script = settings["startup_script"], settings.path("startup_script")
    if setting is not None and script is not None:
        if "startup-script" in metadata:
            raise InvalidInputError(
                "`startup-script` is set twice, in metadata and by `--startup-script`", hint="remove one of them"
            )
        # A script of a project file was read with that file, so that the trusted content is sent.
        content = _read(app, "--startup-script", script) if setting.content is None else setting.content
        metadata["startup-script"] = content
    return metadata


def _read(app: App, flag: str, path: str | Path) -> str:
    # Setup commands are sent over ssh; the limit of a startup script is enough for them.
    place = app.invocation.folder / expand_user_path(Path(path))
    return read_user_text(place, limit=METADATA_VALUE_LIMIT, what=f"`{flag} {path}`")


def parse_disk(flag: str, text: str) -> DataDisk:
    """Parse `DISK`, `DISK,mode=MODE` or `source=DISK[,mode=MODE]`. Raises `InvalidInputError`."""
    first, _, rest = text.partition(",")
    values = parse_pairs(flag, (text if "=" in first else f"source={text}",)) if first or rest else {}
    unknown = set(values) - {"source", "mode"}
    mode = _DISK_MODES.get(values.get("mode", "read-write").lower().replace("_", "-"))
    if unknown or mode is None or not values.get("source"):
        raise InvalidInputError(
            f"`{flag} {text}` is not a disk",
            hint="write it like `source=projects/P/zones/Z/disks/D,mode=read-only`; modes: read-write, read-only",
        )
    return DataDisk(values["source"], mode)


def parse_pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of an option `KEY=VALUE,…`, in gcloud's syntax.

    Raises `InvalidInputError`, which names a wrong item by its position if values may be secret.
    """
    found: dict[str, str] = {}
    for place, text in enumerate(texts, start=1):
        match = GCLOUD_DELIMITER.match(text)
        parts = text[match.end() :].split(match["delimiter"]) if match else text.split(",")
        for number, part in enumerate(filter(None, parts), start=1):
            key, sign, value = part.partition("=")
            if not sign or not key:
                # It may be a part of a secret.
                is_secret = flag.startswith("--metadata")
                given = f"item {number} of `{flag}` number {place}" if is_secret else f"`{flag} {part}`"
                raise InvalidInputError(
                    f"{given} is not KEY=VALUE",
                    hint="for a value with a comma choose another delimiter: `^:^KEY=a,b:OTHER=c`",
                )
            check_not_masked(f"`{key.strip()}`", value)
            found[key.strip()] = value
    return found


def parse_items(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse the values of an option `A,B,…` that may be repeated."""
    return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())

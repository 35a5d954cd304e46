"""The options that describe a node, and the `NodeSpec` made of them and the settings.

They have the names of `gcloud compute tpus tpu-vm create`, and two short ones: `--type` and `--version`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_building import (
    SPEC_SETTINGS,
    complete_spec,
    metadata_from_files,
    parse_disk,
    parse_disk_size,
    parse_items,
    parse_pairs,
    read_named_file,
)
from tpuctl.app.value_completion import complete_label, complete_tier, complete_type, complete_version
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import closest_match

if TYPE_CHECKING:
    from tpuctl.app.app import App


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
        help="IP address range of the workers, a /29 block such as 10.2.0.0/29.",
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


def named_setup(app: App, options: SpecOptions) -> str | None:
    """Return the set-up that flags name. Raises `InvalidInputError` for two, and for a file that cannot be read."""
    if options.setup_script is None:
        return options.setup
    if options.setup is not None:
        raise InvalidInputError("cannot combine `--setup` and `--setup-script`", hint="remove one of them")
    return read_named_file(app, "--setup-script", options.setup_script)


def build_spec(
    app: App, options: SpecOptions, *, skip_validation: bool = False, may_exist: bool = False
) -> NodeSpec | None:
    """Return the spec of flags and settings, None if they name no accelerator type.

    A node that `may_exist` can be set up without its type. Raises `InvalidInputError` for an invalid value; with
    `skip_validation` an unknown accelerator type is accepted.
    """
    given = options.given_with_tier
    if (setup := named_setup(app, options)) is not None:
        given.pop("setup_script", None)
        given["setup"] = setup
    in_settings: dict[str, Any] = {name: given[name] for name in SPEC_SETTINGS if name in given}
    if options.queue:
        in_settings["queue"] = "true"
    if options.internal_ips:
        in_settings["internal_ips"] = "true"
    settings = app.settings_with(in_settings)
    if settings.text("type") is None:
        if options.topology is not None:
            raise InvalidInputError("`--topology` needs a generation", hint="add one, such as `--type v4`")
        if given.keys() - ({"setup"} if may_exist else set()):
            flags = " and ".join(f"`--{name.replace('_', '-')}`" for name in sorted(options.given))
            hint = "add `--type TYPE`; for an existing node its own type"
            raise InvalidInputError(f"no accelerator type given for {flags}", hint=hint)
        return None
    wanted = NodeSpec(
        topology=options.topology,
        reservation=options.reservation,
        is_calendar=options.calendar,
        # `forever` is too long for any node.
        run_for=timedelta.max if isinstance(options.run_for, str) else options.run_for,
        boot_disk_size=None if options.boot_disk_size is None else parse_disk_size(options.boot_disk_size),
        cidr_block=options.cidr_block,
        queue_count=options.queue_count,
        labels=parse_pairs("--labels", options.labels),
        tags=parse_items(options.tags),
        metadata={
            **parse_pairs("--metadata", options.metadata),
            **metadata_from_files(app, options.metadata_from_file),
        },
        data_disks=tuple(parse_disk("--data-disk", text) for text in options.data_disk),
        shielded_secure_boot=options.shielded_secure_boot or None,
    )
    return complete_spec(app, settings, wanted, skip_validation=skip_validation)

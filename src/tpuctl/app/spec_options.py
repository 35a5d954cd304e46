"""The options that describe a node, and the `NodeSpec` made of them and the settings.

They have the names of `gcloud compute tpus tpu-vm create`, and two short ones: `--type` and `--version`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_building import complete_spec, metadata_from_files, parse_field, parse_items, read_named_file
from tpuctl.app.value_completion import complete_label, complete_tier, complete_type, complete_version
from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Tier
from tpuctl.models.spec import FIELDS, NodeSpec
from tpuctl.models.spec_fields import DISKS, DURATION, NUMBER, PAIRS, SWITCH, FieldOption, SpecField
from tpuctl.spelling import closest_match

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
    setup_script: str | None = option(
        "--setup-script",
        group=OptionGroup.SETUP,
        metavar="FILE",
        help="Local file with shell commands that every worker of a new node runs once it is usable.",
    )
    # What the options of the table of fields give, by the names of the fields.
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, Any]:
        """The options that the user gave, by the names of their fields."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "values"}
        return {name: value for name, value in (values | {**self.values}).items() if value not in (None, False, ())}

    @property
    def given_flags(self) -> list[str]:
        """The first names of the options that the user gave."""
        names = {name: row.option.names[0] for name, row in FIELDS.items() if row.option}
        return sorted(names.get(name, f"--{name.replace('_', '-')}") for name in self.given)

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


def _click_attributes(name: str, row: SpecField, declared: FieldOption) -> dict[str, Any]:
    """Return what click needs to know of the option of a field."""
    is_repeatable = row.kind in {PAIRS, DISKS} or name == "tags"
    attributes: dict[str, Any] = {
        "group": OptionGroup[declared.group],
        "help": declared.help + (" Repeatable." if is_repeatable else ""),
        "metavar": declared.metavar,
        "shell_complete": _COMPLETERS.get(name),
    }
    if is_repeatable:
        attributes["multiple"] = True
    elif row.kind is SWITCH:
        attributes["is_flag"] = True
    elif row.kind is DURATION:
        attributes["type"] = DurationType()
    elif row.kind is NUMBER:
        attributes["type"] = click.IntRange(min=1)
    return attributes


_COMPLETERS = {"labels": complete_label}
_TABLE = {
    name: option(*row.option.names, **_click_attributes(name, row, row.option))
    for name, row in FIELDS.items()
    if row.option
}


def takes_spec(parameter: str, *, without: Collection[str] = (), **attributes: Any) -> Callable[[Any], Any]:
    """Add the options that describe a node; see `takes_options`."""
    return takes_options(SpecOptions, parameter, without=without, table=("values", _TABLE), **attributes)


spec_options = takes_spec("described", group=OptionGroup.NODE)


def _in_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are settings too, by the keys of those."""
    texts = {"type", "version", "tier", "startup_script"}
    found: dict[str, Any] = {key: given[key] for key in texts if key in given}
    for name, row in FIELDS.items():
        if row.follows_setting and name in given and name not in texts:
            value = given[name]
            found[name] = "true" if value is True else parse_items(value) if name == "tags" else value
    return found


def named_setup(app: App, options: SpecOptions) -> str | None:
    """Return the set-up of `--setup` or `--setup-script`, None without one. Raises `InvalidInputError` for both."""
    if options.setup_script is None:
        setup: str | None = options.given.get("setup")
        return setup
    if "setup" in options.given:
        raise InvalidInputError("cannot combine `--setup` and `--setup-script`", hint="remove one of them")
    return read_named_file(app, "--setup-script", options.setup_script)


def build_spec(app: App, options: SpecOptions, *, skip_validation: bool = False) -> NodeSpec | None:
    """Return the spec of flags and settings, None if they name no accelerator type, and at most a set-up.

    Raises `InvalidInputError` for an invalid value; with `skip_validation` an unknown accelerator type is accepted.
    """
    given, setup = options.given_with_tier, named_setup(app, options)
    given.pop("setup_script", None)
    if setup is not None:
        given["setup"] = setup
    settings = app.settings_with(_in_settings(given))
    if settings.text("type") is None:
        if options.topology is not None:
            raise InvalidInputError("`--topology` needs a generation", hint="add one, such as `--type v4`")
        if given.keys() - {"setup"}:
            flags = " and ".join(f"`{flag}`" for flag in options.given_flags)
            hint = "add `--type TYPE`; for an existing node its own type"
            raise InvalidInputError(f"no accelerator type given for {flags}", hint=hint)
        return None
    own = {name: parse_field(name, value) for name, value in given.items() if name in FIELDS}
    own["metadata"] = {**own.get("metadata", {}), **metadata_from_files(app, options.metadata_from_file)}
    return complete_spec(app, settings, NodeSpec(**own), skip_validation=skip_validation)

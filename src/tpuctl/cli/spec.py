"""The options that say what a node is wanted to be, and the `NodeSpec` that they and the settings make.

Names are those of `gcloud compute tpus tpu-vm create`; `--type` and `--version` are short for the two long ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpuctl import accelerators
from tpuctl.cli.notation import items, pairs
from tpuctl.errors import InvalidInputError
from tpuctl.model import DataDisk, NodeSpec, Tier
from tpuctl.model.labels import check_labels, check_tags
from tpuctl.userfile import METADATA_LIMIT, expand, read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.cli.app import App
    from tpuctl.settings import Settings

_OPTIONS = (
    click.option(
        "--type", "--accelerator-type", "type", metavar="TYPE", help="Accelerator type: v4-8, v5litepod-16, v6e-8."
    ),
    click.option("--topology", metavar="AxB[xC]", help="Shape, with a generation as type: --type v4 --topology 2x2x2."),
    click.option("--version", "--runtime-version", "version", metavar="VERSION", help="Image. [default: by type]"),
    click.option("--spot", is_flag=True, help="Cheaper; may be taken back at any time."),
    click.option("--preemptible", is_flag=True, help="As --spot, ends after 24 h at the latest."),
    click.option("--reserved", is_flag=True, help="From your reservation."),
    click.option("--on-demand", is_flag=True, help="The full price, whatever a file says."),
    click.option("--network", metavar="NAME", help="Network."),
    click.option("--subnetwork", metavar="NAME", help="Subnetwork."),
    click.option("--internal-ips", is_flag=True, default=None, help="No external addresses."),
    click.option("--range", "cidr_block", metavar="CIDR", help="Address range of the node."),
    click.option("--queue-count", type=click.IntRange(min=1), help="Network queues of each worker."),
    click.option("--service-account", metavar="EMAIL", help="Account that the workers run as."),
    click.option("--scopes", metavar="SCOPE,...", help="OAuth scopes of that account."),
    click.option("--labels", metavar="KEY=VALUE,...", multiple=True, help="Labels."),
    click.option("--tags", metavar="TAG,...", multiple=True, help="Network tags."),
    click.option("--metadata", metavar="KEY=VALUE,...", multiple=True, help="Metadata for the workers."),
    click.option(
        "--metadata-from-file", metavar="KEY=FILE,...", multiple=True, help="Metadata with values from files."
    ),
    click.option("--startup-script", metavar="FILE", help="What every worker runs when it starts."),
    click.option(
        "--data-disk", metavar="source=DISK[,mode=MODE]", multiple=True, help="Disk to attach; may be repeated."
    ),
    click.option("--shielded-secure-boot", is_flag=True, default=None, help="Boot only what is signed."),
    click.option("--description", metavar="TEXT", help="Description."),
    click.option("--setup", metavar="CMD", help="Shell lines that every worker of a new node runs once, when usable."),
    click.option("--setup-script", metavar="FILE", help="The same, from a file."),
)
_NAMES = (
    "type", "topology", "version", "spot", "preemptible", "reserved", "on_demand",
    "network", "subnetwork", "internal_ips", "cidr_block", "queue_count",
    "service_account", "scopes", "labels", "tags", "metadata", "metadata_from_file", "startup_script", "data_disk",
    "shielded_secure_boot", "description", "setup", "setup_script",
)  # fmt: skip
# Those that may be given as a setting too, under the same name and with the same meaning.
_SETTINGS = (
    "type", "version", "tier", "network", "subnetwork", "service_account", "scopes", "startup_script", "description",
    "setup",
)  # fmt: skip
_DISK_MODES = {"read-write": "READ_WRITE", "read-only": "READ_ONLY"}


def spec_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that describe a node."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_spec(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options that describe a node out of a command's options; those not given are left out.

    Raises `InvalidInputError` where capacity is to be bought in two ways.
    """
    taken = {name: options.pop(name) for name in _NAMES}
    tiers = [str(tier) for tier in Tier if taken.pop(str(tier).replace("-", "_"), False)]
    if len(tiers) > 1:
        both = " and ".join(f"`--{tier}`" for tier in tiers)
        raise InvalidInputError(f"{both} exclude each other", hint="choose one")
    taken |= {"tier": tiers[0]} if tiers else {}
    return {name: value for name, value in taken.items() if value not in (None, ())}


def build_spec(app: App, given: dict[str, Any], *, anyway: bool = False) -> NodeSpec | None:
    """Return the spec that flags and settings make, or nothing where none of them names a type.

    Raises `InvalidInputError` for a value that cannot be right; with `anyway` an unlikely type is let through.
    """
    given = _with_setup_read(app, given)
    in_settings: dict[str, Any] = {name: given[name] for name in _SETTINGS if name in given}
    if "internal_ips" in given:
        in_settings["internal_ips"] = "true"
    settings = app.settings_with(in_settings)
    wanted = settings.text("type")
    if wanted is None:
        _refuse_without_type(given)
        return None
    accelerator_type, topology, default_version = _accelerator(wanted, given.get("topology"), anyway=anyway)
    version = settings.text("version") or default_version
    if version is None:
        raise InvalidInputError(f"no runtime version is known for `{wanted}`", hint=_version_hint(wanted))
    tier = settings.text("tier")
    spec = NodeSpec(
        accelerator_type=accelerator_type,
        topology=topology,
        runtime_version=version,
        tier=Tier(tier) if tier else None,
        network=settings.text("network"),
        subnetwork=settings.text("subnetwork"),
        internal_ips=settings.is_on("internal_ips") if settings["internal_ips"] else None,
        cidr_block=given.get("cidr_block"),
        queue_count=given.get("queue_count"),
        service_account=settings.text("service_account"),
        scopes=settings.items("scopes"),
        labels=check_labels({**settings.pairs("labels"), **pairs("--labels", given.get("labels", ()))}, kept=1),
        tags=check_tags(items(given.get("tags", ())) or settings.items("tags")),
        metadata=_metadata(app, settings, given),
        data_disks=tuple(map(_disk, given.get("data_disk", ()) or settings.items("data_disks"))),
        shielded_secure_boot=given.get("shielded_secure_boot"),
        description=settings.text("description"),
        setup=settings.text("setup"),
    )
    return _with_named(spec, named_version=settings["version"] is not None)


def _refuse_without_type(given: dict[str, Any]) -> None:
    """Raise `InvalidInputError` for flags that nothing would be done with."""
    if "topology" in given:
        raise InvalidInputError("`--topology` needs a generation", hint="add `--type v4`, for example")
    if given:
        named = " and ".join(f"`--{name.replace('_', '-')}`" for name in sorted(given))
        hint = "add `--type TYPE`, the node's own if it exists"
        raise InvalidInputError(f"{named} would be ignored without a type", hint=hint)


def metadata_from_files(app: App, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the metadata whose values are in files, relative to the working directory."""
    named = pairs("--metadata-from-file", texts)
    return {key: _read(app, "--metadata-from-file", path) for key, path in named.items()}


def _accelerator(wanted: str, topology: str | None, *, anyway: bool) -> tuple[str, str | None, str | None]:
    """Return the type name, the topology if it was asked for, and the image that fits."""
    if topology:
        generation = wanted.rsplit("-", 1)[0] if accelerators.find(wanted) else wanted
        shaped = accelerators.from_config(generation, topology)
        if wanted not in {generation, shaped.name}:
            raise InvalidInputError(
                f"`{wanted}` and the topology `{topology}` disagree",
                hint=f"`{topology}` is `{shaped.name}`; leave one of the two out",
            )
        return shaped.name, shaped.topology, shaped.runtime_version
    name = wanted if anyway else accelerators.check(wanted)
    known = accelerators.find(name)
    return name, None, known.runtime_version if known else None


def _metadata(app: App, settings: Settings, given: dict[str, Any]) -> dict[str, str]:
    metadata = {**settings.pairs("metadata"), **pairs("--metadata", given.get("metadata", ()))}
    metadata |= metadata_from_files(app, given.get("metadata_from_file", ()))
    setting, script = settings["startup_script"], settings.path("startup_script")
    if setting is not None and script is not None:
        if "startup-script" in metadata:
            raise InvalidInputError(
                "`startup-script` is given twice, as metadata and as `--startup-script`", hint="leave one out"
            )
        # What a project file names was read with that file: what was trusted is what is sent.
        read = _read(app, "--startup-script", script) if setting.content is None else setting.content
        metadata["startup-script"] = read
    return metadata


def _with_setup_read(app: App, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options where `--setup-script` has become the `--setup` that its file holds."""
    if "setup_script" not in given:
        return given
    if "setup" in given:
        raise InvalidInputError("`--setup` and `--setup-script` exclude each other", hint="leave one out")
    rest = {name: value for name, value in given.items() if name != "setup_script"}
    return rest | {"setup": _read(app, "--setup-script", given["setup_script"])}


def _read(app: App, flag: str, path: str | Path) -> str:
    # A setup runs over ssh; the limit of a startup script is enough for it.
    place = app.invocation.folder / expand(Path(path))
    return read_text(place, limit=METADATA_LIMIT, what=f"`{flag} {path}`")


def _version_hint(wanted: str) -> str:
    known = ", ".join(f"`{name}`" for name in accelerators.of_size(wanted))
    return "name one: `--version VERSION`" + (f"\nknown types of that size are {known}" if known else "")


def _disk(text: str) -> DataDisk:
    values = pairs("--data-disk", (text,)) if "=" in text else {"source": text}
    unknown = set(values) - {"source", "mode"}
    mode = _DISK_MODES.get(values.get("mode", "read-write").lower().replace("_", "-"))
    if unknown or mode is None or not values.get("source"):
        raise InvalidInputError(
            f"`--data-disk {text}` is not a disk",
            hint="write `source=projects/P/zones/Z/disks/D,mode=read-only`; the modes are read-write and read-only",
        )
    return DataDisk(values["source"], mode)


def _with_named(spec: NodeSpec, *, named_version: bool) -> NodeSpec:
    """Return the spec with the fields that the user named: those that are not nothing; the image only if it was asked for."""
    from dataclasses import fields, replace  # noqa: PLC0415  # a name of the standard library that reads better here

    soft = {"named", "labels", "tags", "metadata", "description", "setup"}
    named = {
        entry.name
        for entry in fields(spec)
        if entry.name not in soft and getattr(spec, entry.name) not in (None, (), {})
    }
    if not named_version:
        named.discard("runtime_version")
    return replace(spec, named=frozenset(named))

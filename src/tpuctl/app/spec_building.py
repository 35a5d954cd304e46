"""The `NodeSpec` made of what the user gave and the settings; the syntax of pairs, items and disks."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import (
    accelerator_type_from_topology,
    accelerator_types_of_size,
    canonical_type,
    check_accelerator_type,
    find_accelerator_type,
    find_generation,
)
from tpuctl.config.settings import SourceKind
from tpuctl.durations import format_duration
from tpuctl.errors import InvalidInputError
from tpuctl.escaping import GCLOUD_DELIMITER, check_not_masked
from tpuctl.files import METADATA_VALUE_LIMIT, expand_user_path, read_user_text
from tpuctl.models.node import DataDisk, Tier
from tpuctl.models.spec import (
    FIELDS,
    MAX_OWN_LABELS,
    METADATA_KEY_RULE,
    NodeSpec,
    check_tags,
    check_user_labels,
    is_metadata_key,
)
from tpuctl.models.spec_fields import DISK_SIZE, DISKS, PAIRS, TEXT, TIER, setting_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.config.settings import Settings
    from tpuctl.models.spec_fields import SpecField


_DISK_MODES = {"read-write": "READ_WRITE", "read-only": "READ_ONLY"}


def complete_spec(app: App, settings: Settings, given: NodeSpec, *, skip_validation: bool = False) -> NodeSpec:
    """Return the spec of a node: what the user has `given`, and the settings, whose `type` is set.

    A field that is a setting too has its value from `settings`, which include what the user gave. Raises
    `InvalidInputError` for an invalid value; with `skip_validation` an unknown accelerator type is accepted.
    """
    wanted = settings.required("type")
    accelerator_type, topology, default_version = _accelerator(wanted, given.topology, skip_validation=skip_validation)
    if accelerator_type != wanted:
        _note_understood_type(app, wanted, accelerator_type, given.topology)
    version = settings.text("version") or default_version
    if version is None:
        similar = ", ".join(f"`{name}`" for name in accelerator_types_of_size(wanted))
        raise InvalidInputError(
            f"no runtime version is known for `{wanted}`",
            hint="name one: `--version VERSION`" + (f"\nknown types of that size are {similar}" if similar else ""),
        )
    _check_texts(settings.text("service_account"), given.cidr_block)
    word = settings.text("tier")
    tier = _tier_of_reservation(given, Tier(word) if word else None)
    if tier is Tier.PREEMPTIBLE and settings.is_on("queue"):
        note_queued_preemptible(app)
    chosen = {name: _of_setting(settings, name, row) for name, row in FIELDS.items() if row.follows_setting}
    spec = replace(
        given,
        **{name: value for name, value in chosen.items() if value is not None}
        | {
            "accelerator_type": accelerator_type,
            "runtime_version": version,
            "tier": tier,
            "tags": check_tags(chosen["tags"] or ()),
        },
        topology=topology,
        run_for=_run_time(given.run_for, tier),
        boot_disk_size=None
        if given.boot_disk_size is None
        else check_disk_size(given.boot_disk_size, f"{given.boot_disk_size}GB"),
        ttl=settings.duration("ttl") if not app.is_overridden("ttl") and settings["ttl"] else None,
        labels=check_user_labels({**settings.pairs("labels"), **given.labels}, kept=MAX_OWN_LABELS),
        metadata=_metadata(app, settings, given.metadata),
    )
    named = {name for name, row in FIELDS.items() if row.is_compared and getattr(spec, name) not in (None, (), {})}
    if settings["version"] is None:
        named.discard("runtime_version")
    return replace(spec, named=frozenset(named), flagged=_of_flags(settings, given, spec))


def _of_setting(settings: Settings, name: str, row: SpecField) -> Any:  # any field of a spec
    """Return the value of a field from its setting, None without one."""
    value = settings.value(setting_key(name))
    return tuple(parse_disk("--data-disk", text) for text in value) if row.kind is DISKS and value else value


def _of_flags(settings: Settings, given: NodeSpec, spec: NodeSpec) -> dict[str, Any]:
    """Return what flags set of a spec. Settings of files and variables do not count."""
    of_flag = {"tier"} if given.reservation else set()
    of_flag |= {
        name
        for name, row in FIELDS.items()
        if row.follows_setting and (setting := settings[setting_key(name)]) and setting.source.kind is SourceKind.FLAG
    }
    own = {
        name: getattr(given if row.kind is PAIRS else spec, name)
        for name, row in FIELDS.items()
        if name in of_flag or ((row.option or name == "topology") and not row.follows_setting and getattr(given, name))
    }
    metadata, script = dict(given.metadata), settings["startup_script"]
    if script is not None and script.source.kind is SourceKind.FLAG:
        metadata["startup-script"] = spec.metadata["startup-script"]
    return {**own, **({"metadata": metadata} if metadata else {})}


# Documentation of flex-start: at most 7 days.
_LONGEST_FLEX_START = timedelta(days=7)


# API v2alpha1, BootDiskConfig: at least the size of the image; Compute Engine's limit of a disk is 64 TB.
_LARGEST_BOOT_DISK = 65536


_RESERVATION = re.compile(r"[a-z0-9][-a-z0-9]{0,62}|projects/[^/\s]+/locations/[^/\s]+/reservations/[^/\s]+", re.ASCII)


# An email address, or the word `default`.
_SERVICE_ACCOUNT = re.compile(r"[^\s@]+(?:@[^\s@]+)?")


def _check_texts(service_account: str | None, cidr_block: str | None) -> None:
    """Raise `InvalidInputError` for what the service would refuse after the checks."""
    if service_account and not _SERVICE_ACCOUNT.fullmatch(service_account):
        raise InvalidInputError(
            f"`--service-account {service_account}` is not a service account",
            hint="write its email address: `NAME@PROJECT.iam.gserviceaccount.com`",
        )
    if cidr_block is None:
        return
    from ipaddress import ip_network  # noqa: PLC0415  # few nodes have one

    try:
        ip_network(cidr_block)
    except ValueError:
        raise InvalidInputError(
            f"`--cidr-block {cidr_block}` is not a range of addresses", hint="write it like `10.240.0.0/29`"
        ) from None


def note_queued_preemptible(app: App) -> None:
    """Say that a queued resource has no preemptible capacity [API v2, QueuedResource]: `NodeSpec` makes it spot."""
    app.terminal.note("a queued preemptible node is spot: a queued resource has no other preemptible capacity")


def _tier_of_reservation(given: NodeSpec, tier: Tier | None) -> Tier | None:
    """Return the tier, which is reserved for a reservation. Raises `InvalidInputError` for another."""
    if given.reservation is None:
        if given.is_calendar:
            raise InvalidInputError("`--calendar` needs `--reservation`", hint="add `--reservation NAME`")
        return tier
    if tier not in {None, Tier.RESERVED}:
        raise InvalidInputError(
            f"cannot combine `--reservation {given.reservation}` and the tier {tier}",
            hint="a reservation has reserved capacity: leave one of them out",
        )
    if not _RESERVATION.fullmatch(given.reservation):
        raise InvalidInputError(
            f"`{given.reservation}` is not the name of a reservation",
            hint="write its name, or `projects/PROJECT/locations/ZONE/reservations/NAME`",
        )
    return Tier.RESERVED


def _run_time(run_for: timedelta | None, tier: Tier | None) -> timedelta | None:
    if run_for is None:
        return None
    if tier is not Tier.FLEX_START:
        raise InvalidInputError(
            f"`--run-for` needs the tier flex-start, not {tier or Tier.ON_DEMAND}", hint="add `--tier flex-start`"
        )
    if not timedelta() < run_for <= _LONGEST_FLEX_START:
        raise InvalidInputError(
            f"`--run-for` is from 1s to {format_duration(_LONGEST_FLEX_START)}", hint="write it like `--run-for 24h`"
        )
    return run_for


def parse_field(name: str, value: Any) -> Any:  # of an option, any field of a spec
    """Return the value of a field from that of its option. Raises `InvalidInputError`."""
    row = FIELDS[name]
    if row.kind is PAIRS and row.option:
        return parse_pairs(row.option.names[0], value)
    if row.kind is DISK_SIZE:
        return parse_disk_size(value)
    # `forever` is too long for any node.
    return timedelta.max if name == "run_for" and isinstance(value, str) else value


def parse_disk_size(text: str) -> int:
    """Parse the size of a boot disk, such as `500GB` or `2TB`; return it in GB. Raises `InvalidInputError`."""
    found = re.fullmatch(r"([0-9]{1,9})(GB|GiB|TB|TiB|G|T)?", text.strip(), re.IGNORECASE)
    size = int(found[1]) * (1000 if (found[2] or "").upper().startswith("T") else 1) if found else 0
    return check_disk_size(size, text)


def check_disk_size(size: int, text: str) -> int:
    """Return the size of a boot disk in GB. Raises `InvalidInputError`, which shows `text`, if a disk cannot have it."""
    if not 1 <= size <= _LARGEST_BOOT_DISK:
        raise InvalidInputError(
            f"`--boot-disk-size {text}` is not a size of a boot disk", hint="write it like `500GB` or `2TB`"
        )
    return size


def metadata_from_files(app: App, texts: tuple[str, ...]) -> dict[str, str]:
    """Return metadata with values read from files; paths are relative to the working directory."""
    named = parse_pairs("--metadata-from-file", texts)
    return {key: read_named_file(app, "--metadata-from-file", path) for key, path in named.items()}


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


def _metadata(app: App, settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    metadata = {**settings.pairs("metadata"), **given}
    for key in metadata:
        if not is_metadata_key(key):
            raise InvalidInputError(f"`{key}` is not a valid key of metadata", hint=METADATA_KEY_RULE)
    setting, script = settings["startup_script"], settings.path("startup_script")
    if setting is not None and script is not None:
        if "startup-script" in metadata:
            raise InvalidInputError(
                "`startup-script` is set twice, in metadata and by `--startup-script`", hint="remove one of them"
            )
        # A script of a project file was read with that file, so that the trusted content is sent.
        content = read_named_file(app, "--startup-script", script) if setting.content is None else setting.content
        metadata["startup-script"] = content
    return metadata


def read_named_file(app: App, flag: str, path: str | Path) -> str:
    """Return the text of a file that an option names. Raises `InvalidInputError`."""
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
    # A part may be a part of a secret.
    found: dict[str, str] = {}
    is_secret = flag.startswith("--metadata")
    for place, text in enumerate(texts, start=1):
        match = GCLOUD_DELIMITER.match(text)
        parts = text[match.end() :].split(match["delimiter"]) if match else text.split(",")
        if is_secret and match is None and _is_cut_value(parts):
            raise InvalidInputError(
                f"a value of `{flag}` number {place} has a comma, which begins the next key",
                hint="use `--startup-script FILE` or `--metadata-from-file KEY=FILE`, or choose another delimiter: "
                "`--metadata '^:^KEY=a,b:OTHER=c'`",
            )
        for number, part in enumerate(filter(None, parts), start=1):
            key, sign, value = part.partition("=")
            if not sign or not key:
                given = f"item {number} of `{flag}` number {place}" if is_secret else f"`{flag} {part}`"
                raise InvalidInputError(
                    f"{given} is not KEY=VALUE",
                    hint="for a value with a comma choose another delimiter: `^:^KEY=a,b:OTHER=c`",
                )
            if is_secret and not is_metadata_key(key.strip()):
                raise InvalidInputError(
                    f"item {number} of `{flag}` number {place} has no valid key", hint=METADATA_KEY_RULE
                )
            check_not_masked(f"`{key.strip()}`", value)
            found[key.strip()] = value
    return found


def _is_cut_value(parts: Sequence[str]) -> bool:
    """Return whether one value with commas was cut: it has several lines, or what follows a comma cannot be a key."""
    later = [part.partition("=") for part in filter(None, parts[1:])]
    has_lines = any("\n" in part or "\r" in part for part in parts)
    return any(
        has_lines or not sign or key.startswith("-") or not is_metadata_key(key.strip()) for key, sign, _ in later
    )


def parse_items(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse the values of an option `A,B,…` that may be repeated."""
    return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())


def chosen_by_file(app: App) -> dict[str, str]:
    """Return the keys that describe a node and have their value from the project file, not from a flag or variable."""
    compared = {name: row for name, row in FIELDS.items() if row.setting and row.is_compared}
    described = (setting_key(name) for name, row in compared.items() if row.kind in {TEXT, TIER})
    keys = ("project", "zone", *described)
    settings = {spec.key: setting for spec, setting in app.settings if setting and not app.is_overridden(spec.key)}
    return {
        key: str(settings[key].value)
        for key in keys
        if key in settings and settings[key].source.kind is SourceKind.PROJECT_FILE
    }

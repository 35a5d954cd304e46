"""How a field of a node's spec is declared, in one row: its kind, its place in the API, its option and its setting.

From the rows of `NodeSpec` come the options and settings that describe a node, the requests, the JSON of the journal, the
comparison with an existing node, and the commands of tpuctl and gcloud that create the same node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

from tpuctl.decoding import Decoder, decoder_of
from tpuctl.durations import format_timestamp
from tpuctl.escaping import gcloud_pairs
from tpuctl.models.api_values import ApiCount, ApiPairs, ApiText, ApiTexts, ApiTime, api_integer
from tpuctl.models.node import DataDisk, Tier

V2, V2ALPHA1 = "v2", "v2alpha1"
BOTH, ALPHA, NEITHER = frozenset({V2, V2ALPHA1}), frozenset({V2ALPHA1}), frozenset[str]()
LONGEST_TTL: Final = timedelta(days=3650)


class _NotShown(Enum):
    """The value of a field that an answer of the API does not show."""

    NOT_SHOWN = "not shown"


NOT_SHOWN: Final = _NotShown.NOT_SHOWN


def _same(value: Any) -> Any:  # any field of a spec
    return value


class FieldKind(NamedTuple):
    """The values that a field may have.

    `accepts` checks a value of Python, which `words` describe in errors. `encode` and `decode` are for its JSON in the journal;
    null is never decoded. `texts` are the values of the option that sets it, `True` for one without a value.
    """

    words: str
    accepts: Callable[[Any], bool]
    decode: Decoder
    encode: Callable[[Any], Any] = _same
    texts: Callable[[Any], Sequence[str | bool]] = lambda value: (str(value),)


def _is_texts(value: object) -> bool:
    # A text is a sequence, too: `tags="web"` would be three tags.
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)


def _is_pairs(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair)


def _is_disks(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(disk, DataDisk) for disk in value)


_read_seconds = api_integer("a number of seconds", 0, LONGEST_TTL.total_seconds())


def _as_seconds(value: timedelta | None) -> int | None:
    # Anyone can write a later end into the label of a node.
    return None if value is None else int(min(value, LONGEST_TTL).total_seconds())


TEXT: Final = FieldKind("a text", lambda value: isinstance(value, str), decoder_of(ApiText))
SWITCH: Final = FieldKind(
    "True or False",
    lambda value: isinstance(value, bool),
    decoder_of(bool),
    texts=lambda value: (True,) if value else (),
)
NUMBER: Final = FieldKind(
    "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool), decoder_of(ApiCount)
)
TEXTS: Final = FieldKind(
    "a sequence of texts", _is_texts, decoder_of(ApiTexts), encode=list, texts=lambda value: (",".join(value),)
)
# In GB.
DISK_SIZE: Final = NUMBER._replace(texts=lambda size: (f"{size}GB",))
PAIRS: Final = FieldKind(
    "a mapping of texts to texts",
    _is_pairs,
    decoder_of(ApiPairs),
    encode=dict,
    texts=lambda value: (gcloud_pairs(value),),
)
DISKS: Final = FieldKind(
    "a sequence of `DataDisk`",
    _is_disks,
    lambda value: tuple(DataDisk(*disk) for disk in decoder_of(tuple[tuple[ApiText, ApiText], ...])(value)),
    encode=lambda disks: [[disk.source, disk.mode] for disk in disks],
    texts=lambda disks: tuple(map(str, disks)),
)
DURATION: Final = FieldKind(
    "a `timedelta`",
    lambda value: isinstance(value, timedelta),
    lambda value: timedelta(seconds=_read_seconds(value)),
    encode=_as_seconds,
    texts=lambda value: (f"{value.total_seconds():.0f}s",),
)
INSTANT: Final = FieldKind(
    "a `datetime`",
    lambda value: isinstance(value, datetime),
    decoder_of(ApiTime),
    encode=lambda value: value and format_timestamp(value),
)
TIER: Final = FieldKind(
    "a tier",
    lambda value: value in list(Tier),
    decoder_of(Tier),
    encode=lambda value: value and str(value),
)


class FieldOption(NamedTuple):
    """The option that sets a field: its names, the first of which commands show, and its help.

    `group` is the name of an `OptionGroup`. `in_gcloud`: gcloud's command for the creation has the same option.
    """

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    group: str = "NODE"
    in_gcloud: bool = True


class FieldSetting(NamedTuple):
    """The setting of a field. One that has an `effect` takes effect in a project file only after `tpuctl trust`.

    `description` is by default the help of its option; `more` are attributes of a `SettingSpec`.
    """

    effect: str | None = None
    description: str | None = None
    more: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecField:
    """One field of a spec.

    `path` is its place in the API's Node, where `to_api` converts its value; `Node` has a field of the same name. If
    `is_compared`, a node that exists may not differ in it: both values are made `canonical`, and `absent` is that of a node
    without the field. If it `may_be_hidden`, an answer without it says nothing: the version lacks it, or that the service
    echoes it is unverified. `wanted` and `found` replace that comparison. A node that is created again gets the same value if
    `is_reused`.
    """

    kind: FieldKind
    path: tuple[str, ...] = ()
    to_api: Callable[[Any], Any] = _same
    is_compared: bool = False
    canonical: Callable[[Any], Any] = _same
    absent: Any = None
    may_be_hidden: bool = False
    is_reused: bool = True
    wanted: Callable[[Any, Any], Any] | None = None
    found: Callable[[Any, Any], Any] | None = None
    # The versions whose nodes, and whose queued resources, carry it [API v2 and v2alpha1].
    on_node: frozenset[str] = BOTH
    on_request: frozenset[str] = BOTH
    option: FieldOption | None = None
    setting: FieldSetting | None = None
    # In place of that of the kind.
    encode: Callable[[Any], Any] | None = None

    @property
    def follows_setting(self) -> bool:
        """Return whether the option overrides the setting; pairs of an option are added to those of the setting."""
        return self.setting is not None and self.kind is not PAIRS

    def write(self, node: dict[str, Any], value: Any) -> None:  # any field of a spec
        """Set the field of the API's Node, unless nothing is set."""
        if self.path and value is not None and value not in ((), {}):
            *parents, last = self.path
            for key in parents:
                node = node.setdefault(key, {})
            node[last] = self.to_api(value)


# The settings that have other names than their fields.
_SETTING_KEYS: Final = {"accelerator_type": "type", "runtime_version": "version"}


def setting_key(name: str) -> str:
    """Return the key of the setting of a field."""
    return _SETTING_KEYS.get(name, name)


def spec_field(kind: FieldKind, path: str = "", *, default: Any = None, **row: Any) -> Any:  # of any type
    """Declare a field of `NodeSpec` with its row."""
    place = tuple(path.split(".")) if path else ()
    metadata = {"row": SpecField(kind=kind, path=place, **row)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_values(
    rows: Mapping[str, SpecField], spec: Any, *, for_gcloud: bool = False
) -> Iterator[tuple[FieldOption, str | bool]]:
    """Yield the options that set the fields of a spec, with their values."""
    for name, row in rows.items():
        value = getattr(spec, name)
        if row.option and value not in (None, "", (), {}) and (row.option.in_gcloud or not for_gcloud):
            yield from ((row.option, text) for text in row.kind.texts(value))

"""Seeds: the resources of a sandbox, in a file. `read` parses it without a sandbox; `plant` adds its entries to one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_duration
from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest
from tpuctl.sandbox.calls import ApiError
from tpuctl.sandbox.seeding import checking, lines
from tpuctl.sandbox.seeding.kinds import KINDS
from tpuctl.sandbox.seeding.lines import Document, SeedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.seeding.kinds import Kind
    from tpuctl.sandbox.seeding.lines import Path
    from tpuctl.sandbox.world import World

__all__ = ["Entry", "SeedError", "check_words", "entries", "plant", "read"]

_SETTINGS = ("health_lag", "networks", "keep_failed_nodes", "legacy_nodes", "reservations")
_RULE = re.compile(r"allow_(start|stop|update|delete)_while_[a-z]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One resource of a seed. `place` is its position: `FILE line N`."""

    kind: str
    fields: Json
    place: str

    @property
    def name(self) -> str:
        """The name, for a list of added resources."""
        fields = self.fields
        return str(fields.get("name") or fields.get("projectId") or fields.get("kind") or fields.get("metric") or "")


def read(text: str, source: str) -> list[Entry]:
    """Return the entries of a file, in the order in which they can be added.

    Raises `SeedError` naming file, line and key: broken YAML, an unknown kind or field (with the nearest), a wrong
    type, a missing field.
    """
    document = lines.read(text, source)
    return entries(document, (), document.value)


def entries(document: Document, path: Path, value: Any) -> list[Entry]:  # JSON
    """Return the entries of the part of a document that is a seed. Raises as `read` does."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise document.error(path, "expected kinds such as `nodes:`, each with a list")
    for key in value:
        if key not in KINDS:
            raise document.unknown((*path, key), KINDS)
    found: list[Entry] = []
    for key, kind in KINDS.items():
        if key == "settings":
            found += _settings(document, (*path, key), value.get(key))
        elif value.get(key) is not None:
            found += _entries(document, (*path, key), kind, value[key])
    return found


def plant(sandbox: World, wanted: Iterable[Entry]) -> None:
    """Add entries to a sandbox: all or none.

    An entry replaces an existing resource of its name. Raises `SeedError` naming the position of the entry that the
    sandbox rejects.
    """
    with sandbox.joint_write():
        for entry in wanted:
            try:
                KINDS[entry.kind].plant(sandbox, entry.fields)
            except ApiError as error:
                raise SeedError(f"{entry.place}: {error.message.partition(' [EID')[0]}") from error
            except SeedError:
                raise
            except InvalidInputError as error:
                raise SeedError(f"{entry.place}: {error.message}", hint=error.hint) from error


def check_words(document: Document, path: Path, words: Mapping[str, str], entry: Json) -> None:
    """Raise `SeedError` unless each key is known and has a value of its type."""
    for key, value in entry.items():
        if key not in words:
            raise document.unknown((*path, key), words)
        _check_type(document, (*path, key), words[key], value)


def _entries(document: Document, path: Path, kind: Kind, value: Any) -> list[Entry]:
    if not isinstance(value, list):
        raise document.error(path, f"`{path[-1]}` must be a list")
    found = []
    for index, item in enumerate(value):
        here = (*path, index)
        if not isinstance(item, dict):
            raise document.error(here, f"each of `{path[-1]}` must be a mapping, such as `- name: trainer`")
        if path[-1] == "queuedResources" and isinstance(item.get("state"), str):
            item = {**item, "state": {"state": item["state"]}}  # noqa: PLW2901  # the short form of a state
        fields = _checked(document, here, kind, item)
        found.append(Entry(str(path[-1]), fields, document.place(*here)))
    return found


def _checked(document: Document, path: Path, kind: Kind, item: Json) -> Json:
    message = {key: value for key, value in item.items() if key not in kind.own}
    for key in message:
        if key in kind.refused:
            raise document.error((*path, key), f"`{key}` cannot be given: {kind.refused[key]}")
    known = [*kind.own, *(checking.fields(kind.schema) if kind.schema else ())]
    for key in message:
        if key not in known:
            raise document.unknown((*path, key), known)
    for key in kind.required:
        if item.get(key) in (None, ""):
            raise document.error(path, f"`{key}` is missing")
    for key in (key for key in item if key in kind.own):
        _check_type(document, (*path, key), kind.own[key], item[key])
    fields = checking.checked(document, path, kind.schema, message) if kind.schema else message
    return {**fields, **{key: value for key, value in item.items() if key in kind.own}}


def _check_type(document: Document, path: Path, kind: str, value: Any) -> None:
    match kind:
        case "duration":
            try:
                parse_duration(str(value))
            except ValueError as error:
                raise document.error(path, f"`{path[-1]}`: {error}") from None
            fits = True
        case "number":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "flag":
            fits = isinstance(value, bool)
        case "texts":
            fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        case "text":
            fits = isinstance(value, str | int) and not isinstance(value, bool)
        case _:
            fits = True
    if not fits:
        words = {"number": "a whole number", "flag": "true or false", "texts": "a list of texts", "text": "a text"}
        raise document.error(path, f"`{path[-1]}` must be {words[kind]}")


def _settings(document: Document, path: Path, value: Any) -> list[Entry]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise document.error(path, "`settings` must be a mapping, such as `keep_failed_nodes: true`")
    for key in value:
        if key not in _SETTINGS and not _RULE.fullmatch(key):
            near = nearest(key, [*_SETTINGS, "allow_stop_while_creating", "allow_stop_while_starting"])
            hint = (
                f"did you mean `{near}`?" if near else f"known are {', '.join(_SETTINGS)}, allow_<verb>_while_<state>"
            )
            raise document.error((*path, key), f"unknown key `{key}`", hint=hint)
    return [Entry("settings", {"name": key, "value": item}, document.place(*path, key)) for key, item in value.items()]

"""All JSON that the tests see is held against the schemas of `tpuctl schema`: see `check_output`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from tpuctl.app.app import asked_for_json
from tpuctl.cli.output_schemas import ERROR, EVENTS, Schema, load_definitions, load_outputs, output_schema
from tpuctl.cli.tree import command_tree

# Properties of our own definitions that some output had, as `definition.property`.
SEEN: set[str] = set()
_DEFINITIONS = "#/$defs/"
_TYPES = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"
}  # fmt: skip


def check_output(arguments: Sequence[str], environ: Mapping[str, str], folder: Path, out: str, err: str) -> None:
    """Assert that the JSON of one run fits its schemas: the result, the events, the errors."""
    place = _events_place(arguments)
    if place not in {None, "-"} and (folder / str(place)).is_file():
        check_documents(EVENTS, (folder / str(place)).read_text("utf-8"))
    if place == "-":
        check_documents(EVENTS, out)
    elif asked_for_json(arguments, environ) and out.startswith(("{", "[")):
        name = command_name(arguments)
        assert name in load_outputs(), f"`tpuctl {name}` printed JSON, and has no schema: {out[:200]}"
        check_documents(name, out)
    for line in err.splitlines():
        if line.startswith('{"error"'):
            check_documents(ERROR, line)


def check_documents(name: str, text: str) -> None:
    """Assert that each document of a text fits the schema of an output."""
    for value in _documents(text):
        key = f"{EVENTS} {value.get('event')}" if name == EVENTS else name
        validator = _validator(key)
        if not validator.is_valid(value):
            error = best_match(validator.iter_errors(value))
            raise AssertionError(f"not as `tpuctl schema {name}` says: {error.json_path}: {error.message}"[:2000])
        _note_properties(value, _places(key))


def command_name(arguments: Sequence[str]) -> str:
    """Return the name of the command that is called, such as `queue list`."""
    found: click.Command = command_tree()
    names: list[str] = []
    for word in arguments:
        if not isinstance(found, click.Group):
            break
        with suppress(click.ClickException):
            if below := found.get_command(click.Context(found), word):
                found, names = below, [*names, str(below.name)]
    return " ".join(names)


def own_properties() -> set[str]:
    """Return the properties of all outputs and of our own definitions, as `definition.property`."""
    kinds = [f"{EVENTS} {kind}" for kind in _event_definitions()]
    return {place for name in (*load_outputs(), *kinds) for places in _places(name).values() for place in places}


def observed_types(*values: Any) -> dict[str, set[str]]:  # JSON
    """Return the types that each field has in some values, by paths like `findings[].id`."""
    found: dict[str, set[str]] = {}

    def walk(value: Any, path: str) -> None:
        if path:
            found.setdefault(path, set()).add(_TYPES[type(value)])
        if isinstance(value, list):
            for entry in value:
                walk(entry, f"{path}[]")
        elif isinstance(value, dict):
            for name, below in value.items():
                walk(below, f"{path}.{name}" if path else name)

    for value in values:
        walk(value, "")
    return found


def declared_types(definition: str) -> dict[str, set[str]]:
    """Return the types of each field of a definition of ours, by paths like `findings[].id`."""
    found: dict[str, set[str]] = {}

    def walk(part: Schema, path: str) -> None:
        part |= load_definitions()[part["$ref"].removeprefix(_DEFINITIONS)] if "$ref" in part else {}
        types = part.get("type", [])
        found.setdefault(path, set()).update([types] if isinstance(types, str) else types)
        words = [*part.get("enum", ()), *([part["const"]] if "const" in part else ())]
        found[path].update(_TYPES[type(word)] for word in words)
        for branch in (*part.get("anyOf", ()), *part.get("oneOf", ())):
            walk(dict(branch), path)
        if "items" in part:
            walk(dict(part["items"]), f"{path}[]")
        for name, below in part.get("properties", {}).items():
            walk(dict(below), f"{path}.{name}" if path else name)

    walk(dict(load_definitions()[definition]), "")
    del found[""]
    return found


def _events_place(arguments: Sequence[str]) -> str | None:
    """Return the value of `--events`, None without it."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    given = [word.partition("=")[2] for word in words if word.startswith("--events=")]
    given += [value for option, value in pairwise(words) if option == "--events"]
    return given[0] if given else None


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, which stand one after the other."""
    decoder, begin = json.JSONDecoder(), 0
    while text := text[begin:].lstrip():
        value, begin = decoder.raw_decode(text)
        yield value


@cache
def _validator(key: str) -> Draft202012Validator:
    """Return the validator of an output; of an event that of its kind alone, which takes a tenth of the time."""
    name, _, kind = key.partition(" ") if key.startswith(EVENTS) else (key, "", "")
    schema = output_schema(name)
    if kind:
        schema = {"$ref": _DEFINITIONS + _event_definitions().get(kind, "unknown event"), "$defs": schema["$defs"]}
    return Draft202012Validator(schema)


@cache
def _event_definitions() -> dict[str, str]:
    """Return the definition of each kind of event."""
    schema = output_schema(EVENTS)
    names = [entry["$ref"].removeprefix(_DEFINITIONS) for entry in schema["oneOf"]]
    return {schema["$defs"][name]["properties"]["event"]["const"]: name for name in names}


@cache
def _places(key: str) -> dict[tuple[str, ...], frozenset[str]]:
    """Return the properties that may stand at each path of an output, as `definition.property`."""
    found: dict[tuple[str, ...], set[str]] = {}
    schema = dict(_validator(key).schema)

    def walk(part: Schema, owner: str, path: tuple[str, ...]) -> None:
        if reference := part.get("$ref"):
            owner = reference.removeprefix(_DEFINITIONS)
            if owner in load_definitions():  # else it is of the API
                walk(schema["$defs"][owner], owner, path)
        for name, value in part.get("properties", {}).items():
            place = f"{owner}.{name}"
            found.setdefault((*path, name), set()).add(place)
            walk(value, place if "$ref" not in value else owner, (*path, name))
        for branch in (*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())):
            walk(branch, owner, path)
        if isinstance(items := part.get("items"), dict):
            walk(items, owner, (*path, "[]"))

    walk(schema, key, ())
    return {path: frozenset(places) for path, places in found.items()}


def _note_properties(value: Any, places: Mapping[tuple[str, ...], frozenset[str]], path: tuple[str, ...] = ()) -> None:
    if isinstance(value, list):
        for entry in value:
            _note_properties(entry, places, (*path, "[]"))
    elif isinstance(value, dict):
        for name, below in value.items():
            here = (*path, name)
            if here in places:
                SEEN.update(places[here])
                _note_properties(below, places, here)

"""The JSON Schemas of what commands print with `-o json`, from `data/schemas` and from Google's discovery documents."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tpuctl.cli.tree import command_names
from tpuctl.cloud.discovery_documents import response_schemas
from tpuctl.yaml_reader import load_data

Schema = dict[str, Any]  # JSON
# A new version may remove fields and change their meaning; within a version they are only added.
JSON_VERSION = 1
DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Outputs of many commands.
EVENTS, ERROR = "events", "error"
_DEFINITIONS = "#/$defs/"


def output_schema(name: str) -> Schema:
    """Return the whole schema of a command's output, of `events` or of `error`, with the definitions that it needs."""
    used: dict[str, Schema] = {}
    schema = _inline(load_outputs()[name], used)
    return {
        "$schema": DRAFT,
        "$id": f"https://tpuctl.github.io/tpuctl/schemas/v{JSON_VERSION}/{name.replace(' ', '-')}.json",
        "title": f"tpuctl {name}",
        **schema,
        "$defs": dict(sorted(used.items())),
    }


def load_outputs() -> dict[str, Schema]:
    """Return the schema of each output by the name of its command, with references to `load_definitions`."""
    return {name: schema for part in _load_parts() for name, schema in part["outputs"].items()}


def outputs_in_order() -> list[str]:
    """Return the names of the outputs in the order of `tpuctl --help`; those of many commands come last."""
    order = command_names()
    return sorted(
        load_outputs(), key=lambda name: order.index(word) if (word := name.split()[0]) in order else len(order)
    )


@functools.cache
def load_definitions() -> dict[str, Schema]:
    """Return what the schemas of several outputs share, by name."""
    return {name: schema for part in _load_parts() for name, schema in part.get("$defs", {}).items()}


@functools.cache
def _load_parts() -> list[Schema]:
    folder = Path(__file__).parents[1] / "data" / "schemas"
    return [load_data(f"schemas/{path.name}") for path in sorted(folder.glob("*.yaml"))]


def _inline(schema: Any, used: dict[str, Schema]) -> Any:  # JSON
    """Return a copy that refers to its own definitions, and collect these."""
    if isinstance(schema, list):
        return [_inline(entry, used) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {key: _inline(value, used) for key, value in schema.items() if key != "$ref"}
    if reference := schema.get("$ref"):
        name, definition = _look_up(reference)
        if name not in used:
            used[name] = {}  # it may refer to itself
            used[name] = _inline(definition, used)
        copied = {"$ref": _DEFINITIONS + name, **copied}
    return copied


def _look_up(reference: str) -> tuple[str, Schema]:
    """Return the name and the content of a definition; `tpu.v2#Node` is `tpuV2Node`: generators of types refuse dots."""
    if reference.startswith(_DEFINITIONS):
        name = reference.removeprefix(_DEFINITIONS)
        return name, load_definitions()[name]
    document, _, name = reference.partition("#")
    api, _, version = document.partition(".")
    return f"{api}{version.capitalize()}{name}", _api_schemas(document)[name]


_api_schemas = functools.cache(response_schemas)

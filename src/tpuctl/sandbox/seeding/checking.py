"""Check entries against the discovery documents: the API's own field names and types. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.sandbox import discovery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.seeding.lines import Document, Path

_WORDS = {"object": "a mapping", "array": "a list", "string": "a text", "boolean": "true or false"}
_NUMBERS = {"integer": "a whole number", "number": "a number"}


def checked(document: Document, path: Path, schema: tuple[str, str, str], value: Json) -> Json:
    """Return a message in the API's JSON: a number in a string field becomes a string.

    `schema` is API, version and the schema's name. Raises `SeedError` for an unknown field, type or enum name.
    """
    api, version, name = schema
    found = _message(document, path, discovery.load(api, version).schemas, name, value)
    assert isinstance(found, dict)  # noqa: S101  # a message is one; guides mypy
    return found


def fields(schema: tuple[str, str, str]) -> list[str]:
    """Return the fields of a message."""
    api, version, name = schema
    return list(discovery.load(api, version).schemas[name]["properties"])


def _message(document: Document, path: Path, schemas: Mapping[str, Json], name: str, value: Any) -> Any:
    properties: Json = schemas[name].get("properties", {})
    if not isinstance(value, dict):
        raise _wrong(document, path, "object")
    for key in value:
        if key not in properties:
            raise document.unknown((*path, key), properties)
    return {key: _field(document, (*path, key), schemas, properties[key], item) for key, item in value.items()}


def _field(document: Document, path: Path, schemas: Mapping[str, Json], spec: Json, value: Any) -> Any:
    if "$ref" in spec:
        return _message(document, path, schemas, spec["$ref"], value)
    kind = spec.get("type", "any")
    if kind == "object" and "additionalProperties" in spec and isinstance(value, dict):
        inner = spec["additionalProperties"]
        return {key: _field(document, (*path, key), schemas, inner, item) for key, item in value.items()}
    if kind == "object" and "properties" in spec and isinstance(value, dict):
        return _message(document, path, {**schemas, "": spec}, "", value)
    if kind == "array" and isinstance(value, list):
        return [_field(document, (*path, i), schemas, spec["items"], item) for i, item in enumerate(value)]
    return _plain(document, path, spec, value)


def _plain(document: Document, path: Path, spec: Json, value: Any) -> Any:
    kind = spec.get("type", "any")
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # `8` is as good as `"8"` in a label; an int64 is a text in JSON
    fits = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "any": True,
        "object": isinstance(value, dict),
        "array": False,
    }
    if not fits.get(kind, True):
        raise _wrong(document, path, kind)
    names = spec.get("enum")
    if names and value not in names:
        raise document.error(path, f"`{path[-1]}` cannot be `{value}`", hint=f"use one of {', '.join(names)}")
    return value


def _wrong(document: Document, path: Path, kind: str) -> Exception:
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    return document.error(path, f"`{key}` must be {(_WORDS | _NUMBERS).get(kind, kind)}")

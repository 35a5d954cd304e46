"""The reference page of JSON output, and the table of events, from the schemas of `tpuctl schema`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tpuctl.cli.output_schemas import EVENTS, Schema, load_definitions, load_outputs, outputs_in_order

_OWN = "#/$defs/"
_API = "https://cloud.google.com/tpu/docs/reference/rest"
_API_PAGES = {
    "tpu.v2#Node": f"[node of the API]({_API}/v2/projects.locations.nodes)",
    "tpu.v2#UpcomingMaintenance": f"[maintenance of the API]({_API}/v2/projects.locations.nodes)",
    "tpu.v2alpha1#QueuedResource": f"[queued resource of the API]({_API}/v2alpha1/projects.locations.queuedResources)",
}
# Fields of all events, which the table leaves out.
_COMMON = frozenset({"event", "at", "node", "zone", "project", "text"})

INTRODUCTION = """# JSON output

Each command with `-o json` prints one document; `-o yaml` prints the same. `tpuctl schema COMMAND` prints its JSON Schema, from which this page
is made. [For programs](../how-to/for-programs.md) has examples.

- Fields, and words of a list, may be added. None is removed or changes its type or meaning while the version in the `$id` of the schema (`v1`)
  stays the same: ignore what you do not know. A schema has all fields of its own version of tpuctl; the API may add some to its objects.
- A field without "or missing" is always present: null, `[]`, `{}` or empty without a value.
- Times are in RFC 3339 and UTC. Durations and ages are in seconds, sizes in bytes.
- With the [sandbox](../sandbox.md) objects have `"sandbox": true`; elsewhere the field is missing.
- If a part fails (a zone that does not answer, one of several nodes), stdout has the rest, stderr one line of [`error`](#error) for each
  failure, and the [exit code](exit-codes.md) is not 0. If all fails, stdout is empty.
- `sync --watch` and `sandbox log --follow` print one document on each line.
"""


def json_page() -> str:
    """Return the page of all outputs: what each prints, then the fields of the definitions that it is the first to use."""
    return INTRODUCTION + "".join(_chapters())


def _event_table() -> str:
    """Return the table of events: when each is written, and its fields."""
    rows = []
    for entry in load_outputs()[EVENTS]["oneOf"]:
        event = _definition(entry["$ref"])
        fields = " ".join(f"`{name}`" for name in event["properties"] if name not in _COMMON)
        rows.append(f"| `{event['properties']['event']['const']}` | {event['description']} | {fields} |\n")
    return "| `event` | when | fields |\n|---|---|---|\n" + "".join(rows)


def _chapters() -> Iterator[str]:
    written: set[str] = set()
    for name in outputs_in_order():
        schema = load_outputs()[name]
        yield f"\n## {name}\n\n{schema['description']}\n"
        if (shape := _shape(schema)) != "object":
            yield f"\n{shape[0].upper()}{shape[1:]}.\n"
        if name == EVENTS:
            yield f"\n{_event_table()}"
        yield from _table(schema)
        for used in _used(schema, written):
            definition = load_definitions()[used]
            if list(_rows(definition)):
                yield f"\n### {used}\n"
                if meaning := definition.get("description"):
                    yield f"\n{_sentence(meaning)}\n"
                if base := [_API_PAGES[part["$ref"]] for part in definition.get("allOf", ())]:
                    yield f"\nAll fields of the {base[0]}, and these:\n"
                yield from _table(definition)


def _used(schema: object, written: set[str]) -> Iterator[str]:
    """Yield the definitions that a schema needs and that were not yielded before, each before those that it needs."""
    if isinstance(schema, dict):
        reference = schema.get("$ref", "")
        name = reference.removeprefix(_OWN)
        if reference.startswith(_OWN) and name not in written:
            written.add(name)
            yield name
            yield from _used(load_definitions()[name], written)
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _used(value, written)


def _table(schema: Schema) -> Iterator[str]:
    if rows := list(_rows(schema)):
        yield "\n| field | type | meaning |\n|---|---|---|\n"
        yield from (f"| `{path}` | {shape} | {meaning} |\n" for path, shape, meaning in rows)


def _rows(schema: Schema, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, type and meaning of each field, also of the objects in it that have no name."""
    if schema.get("type") == "array" and "items" in schema:
        yield from _rows(schema["items"], f"{path}[]")
    for name, value in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        required = "" if name in schema.get("required", ()) else ", or missing"
        yield here, _shape(value) + required, _sentence(_meaning(value))
        yield from _rows(value, here)


def _meaning(schema: Schema) -> str:
    if "description" in schema or "$ref" not in schema:
        return str(schema.get("description", ""))
    return str(_definition(schema["$ref"]).get("description", ""))


def _shape(schema: Schema) -> str:
    """Return the type of a field in words."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(map(_shape, schema[key])))
    if reference := schema.get("$ref"):
        name = reference.removeprefix(_OWN)
        definition = _definition(reference) if reference.startswith(_OWN) else {}
        return _API_PAGES.get(reference) or (
            f"[{name}](#{name.lower()})" if list(_rows(definition)) else _shape(definition)
        )
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join("null" if word is None else f"`{word}`" for word in schema["enum"])
    types = schema.get("type", "any")
    words = " or ".join([types] if isinstance(types, str) else types)
    if schema.get("format") == "date-time":
        words = words.replace("string", "time")
    return f"array of {_shape(schema['items'])}" if types == "array" else words


def _definition(reference: str) -> Schema:
    return load_definitions()[reference.removeprefix(_OWN)]


def _sentence(text: str) -> str:
    return text.replace("|", "\\|")

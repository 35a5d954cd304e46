"""What the discovery documents say of a request, and answers made of them: every field that a method may give, each filled.

Nothing of the sandbox is used here: what it and a client both misunderstand must not stay unseen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Json = dict[str, Any]
Mask = dict[str, "Mask"]

# Which documents a path below a host may be of.
_BASES = {"compute": "/compute/v1/", "storage": "/storage/v1/"}
# What an answer that went well has not, or that would make a list endless.
_LEFT_OUT = frozenset({"deleted", "error", "nextPageToken"})
_DEEPEST = 7
# Text whose form is not in the documents.
_FORMED = {
    "ipAddress": "10.0.0.2",
    "externalIp": "203.0.113.2",
    "locationId": "us-east1-a",
    "username": "ada",
    "nodeId": "n",
    "nodeIdPrefix": "n",
}


@dataclass(frozen=True)
class Sent:
    """A request as it was sent."""

    method: str
    uri: str
    body: Any = None


@dataclass(frozen=True)
class Found:
    """The method that a request means, and what is wrong with the request."""

    id: str
    document: Json
    response: Json
    complaints: tuple[str, ...]
    mask: Mask = field(default_factory=dict)

    def answer(self, *, whole: bool, is_last: bool) -> Json:
        """Return an answer, of the fields that were asked for or `whole`; one that is not the last page has a token."""
        filled: Json = _filled(self.document, self.response, "", mask=None if whole or not self.mask else self.mask)
        is_list = "nextPageToken" in _properties(self.document, self.response)
        return {**filled, "nextPageToken": "next"} if is_list and not is_last else filled


def understand(sent: Sent) -> Found:
    """Return the method of a request in the discovery documents. Raises `LookupError` if there is none."""
    parts = urlsplit(sent.uri)
    api = str(parts.hostname).partition(".")[0]
    base = _BASES.get(api, "/")
    version = "v1" if api in _BASES else parts.path.split("/")[1]
    document = load(api, version)
    # A verb after a colon would do for the end of a name, too.
    for raw in sorted(methods(document), key=lambda method: ":" not in method["path"]):
        if raw["httpMethod"] == sent.method and _fits(raw, parts.path.removeprefix(base)):
            query = parse_qsl(parts.query, keep_blank_values=True)
            response = raw.get("response", {})
            mask = parse_mask(next((text for name, text in query if name == "fields"), ""))
            complaints = (
                *_of_query(document, raw, query),
                *_of_mask(document, response, mask),
                *_of_body(document, raw.get("request", {}), sent.body),
            )
            return Found(raw["id"], document, response, complaints, mask)
    raise LookupError(f"{api} {version} has no {sent.method} {parts.path}")


class Known(dict[str, Any]):
    """An object of an answer with all fields of its schema; any other field raises `LookupError`."""

    def __missing__(self, key: str) -> Any:
        raise LookupError(f"the schema has no field {key}")

    def get(self, key: str, default: Any = None) -> Any:
        return default if key in _LEFT_OUT else self[key]


def resource(api: str, version: str, schema: str) -> Any:
    """Return a resource with every field that its schema has."""
    return _known(_filled(load(api, version), {"$ref": schema}, ""))


def plain(api: str, version: str, schema: str) -> Json:
    """Return a resource with every field that its schema has, as the service would send it."""
    found: Json = _filled(load(api, version), {"$ref": schema}, "")
    return found


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return Known({key: _known(entry) for key, entry in value.items()})
    return [_known(entry) for entry in value] if isinstance(value, list) else value


@cache
def load(api: str, version: str) -> Json:
    """Return a discovery document."""
    package = find_spec("googleapiclient")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "discovery_cache" / "documents"
    document: Json = json.loads((folder / f"{api}.{version}.json").read_bytes())
    return document


def parse_mask(text: str) -> Mask:
    """Return the fields of a mask such as `items(name,zone/kind),nextPageToken`."""
    tokens = re.findall(r"[^(),/]+|[(),/]", text)

    def fields() -> Mask:
        found: Mask = {}
        while tokens and tokens[0] != ")":
            name = tokens.pop(0)
            inner: Mask = {}
            if tokens and tokens[0] == "/":
                tokens.pop(0)
                step = tokens.pop(0)
                inner = {step: {}}
            elif tokens and tokens[0] == "(":
                tokens.pop(0)
                inner = fields()
                tokens.pop(0)
            found[name] = inner
            if tokens and tokens[0] == ",":
                tokens.pop(0)
        return found

    return fields()


def methods(resource: Json) -> Iterator[Json]:
    yield from resource.get("methods", {}).values()
    for child in resource.get("resources", {}).values():
        yield from methods(child)


def _fits(raw: Json, path: str) -> bool:
    """Return whether a path is one of a method, whose parameters may have patterns."""
    pieces = re.split(r"\{\+?(\w+)\}", raw["path"])
    expression = re.escape(pieces[0])
    for name, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        pattern = raw["parameters"][name].get("pattern", "^[^/]+$")
        expression += f"(?:{pattern.removeprefix('^').removesuffix('$')}){re.escape(literal)}"
    return re.fullmatch(expression, unquote(path)) is not None


def _of_query(document: Json, raw: Json, query: list[tuple[str, str]]) -> Iterator[str]:
    own = {name: spec for name, spec in raw.get("parameters", {}).items() if spec["location"] == "query"}
    for name, text in query:
        spec = own.get(name) or document["parameters"].get(name)
        if spec is None:
            # Compute Engine describes one parameter only in prose.
            if f"`{name}`" not in raw["description"]:
                yield f"no parameter {name}"
            continue
        if spec.get("type") == "integer" and not text.isdecimal():
            yield f"{name} is not a number: {text}"
        if "enum" in spec and text not in spec["enum"]:
            yield f"{name} has no value {text}"
        if not spec.get("repeated") and sum(given == name for given, _ in query) > 1:
            yield f"{name} is repeated"
    yield from (f"{name} is missing" for name, spec in own.items() if spec.get("required") and name not in dict(query))


def _of_mask(document: Json, spec: Json, mask: Mask) -> Iterator[str]:
    properties = _properties(document, spec)
    for name, inner in mask.items():
        if name not in properties:
            yield f"the answer has no field {name}"
        else:
            yield from _of_mask(document, properties[name], inner)


def _of_body(document: Json, spec: Json, body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        return
    properties, free = _properties(document, spec), "additionalProperties" in _resolved(document, spec)
    for name, value in body.items():
        if name not in properties and not free:
            yield f"the body has no field {name}"
        for entry in value if isinstance(value, list) else [value]:
            yield from _of_body(document, properties.get(name, {}), entry)


def _resolved(document: Json, spec: Json) -> Json:
    found: Json = document["schemas"][spec["$ref"]] if "$ref" in spec else spec
    return _resolved(document, found["items"]) if found.get("type") == "array" else found


def _properties(document: Json, spec: Json) -> Json:
    found: Json = _resolved(document, spec).get("properties", {})
    return found


def _filled(document: Json, spec: Json, name: str, *, mask: Mask | None = None, depth: int = 0) -> Any:
    if spec.get("type") == "array":
        return [_filled(document, spec["items"], name, mask=mask, depth=depth)]
    found = _resolved(document, spec)
    if found.get("type") != "object":
        return _scalar(document["name"], found, name)
    if depth > _DEEPEST:
        return {}
    if "properties" not in found:
        return {"key": _filled(document, found.get("additionalProperties", {}), name, mask=mask, depth=depth + 1)}
    return {
        key: _filled(document, part, key, mask=(mask or {}).get(key) or None, depth=depth + 1)
        for key, part in found["properties"].items()
        if key not in _LEFT_OUT and (mask is None or key in mask)
    }


def _scalar(api: str, spec: Json, name: str) -> Any:
    match spec.get("type"), spec.get("format"):
        case "boolean", _:
            return True
        case "integer", _:
            return 7
        case "number", _:
            return 7.5
        case "string", "int64" | "uint64" | "int32":
            return "7"
    if names := spec.get("enum"):
        return "DONE" if "DONE" in names else names[-1]
    if spec.get("format") in {"google-datetime", "date-time"}:
        return "2026-01-01T00:00:00Z"
    if spec.get("format") == "google-duration":
        return "3600s"
    if name in _FORMED:
        return _FORMED[name]
    if name == "name":
        return "n" if api in _BASES else "projects/p/locations/z/things/n"
    return f"some {name}"

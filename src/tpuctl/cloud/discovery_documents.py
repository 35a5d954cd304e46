"""Google's discovery documents, files of google-api-python-client: the methods and the schemas of an API."""

from __future__ import annotations

import functools
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def read_document(document: str) -> str:
    """Return the text of a discovery document such as `tpu.v2`."""
    package = find_spec("googleapiclient")  # does not import it
    assert package  # noqa: S101  # a dependency
    assert package.origin  # noqa: S101  # it is not a namespace
    path = Path(package.origin).parent / "discovery_cache" / "documents" / f"{document}.json"
    return path.read_bytes().decode()


@functools.cache
def find_method(name: str) -> tuple[str, str]:
    """Return verb and path of a method by its document and name, like `tpu.v2 projects.locations.nodes.get`.

    Only the method is parsed: the document of Compute Engine has 5 MB, which take 27 ms.
    """
    document, _, method = name.partition(" ")
    text = read_document(document)
    place = re.search(rf'"id": ?"{document.partition(".")[0]}\.{re.escape(method)}"', text)
    if place is None:
        raise LookupError(f"the discovery document {document} has no method {method}")
    begin = text.rindex(f'"{method.rpartition(".")[2]}":', 0, place.start())
    found, _ = json.JSONDecoder().raw_decode(text, text.index("{", begin))
    base = re.search(r'"servicePath": ?"(.*?)"', text)
    return found["httpMethod"], (base[1] if base else "") + found["path"]


def response_schemas(document: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of an API's objects as JSON Schemas. A `$ref` is the document and the name, like `tpu.v2#Node`.

    They hold for responses: the service may add fields, and values of an enum, which are therefore only examples.
    """

    def convert(schema: dict[str, Any]) -> dict[str, Any]:
        found = {key: schema[key] for key in ("description", "type") if schema.get(key) not in {None, "any"}}
        if "$ref" in schema:
            found["$ref"] = f"{document}#{schema['$ref']}"
        if "enum" in schema:
            found["examples"] = schema["enum"]
        if schema.get("format") == "google-datetime":
            found["format"] = "date-time"
        if "properties" in schema:
            found["properties"] = {name: convert(value) for name, value in schema["properties"].items()}
        return found | {key: convert(schema[key]) for key in ("items", "additionalProperties") if key in schema}

    return {name: convert(schema) for name, schema in json.loads(read_document(document))["schemas"].items()}

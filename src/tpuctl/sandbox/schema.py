"""Check JSON against the discovery document. Requests are rejected with the messages of Google's JSON transcoding.

Source of the messages: error bodies that users of Google's APIs have published, and protobuf's JSON parser; the error for a
missing required field is unverified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.calls import ApiError, Call
from tpuctl.sandbox.discovery import load, snake_case
from tpuctl.sandbox.scalars import ScalarError, enum_numbers, quoted, read_query_value, read_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.discovery import Document, Route

# Field (absent at the root of the message) and description, as in `google.rpc.BadRequest`.
Violation = tuple[str | None, str]

_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
}


def check_request(route: Route, query: Iterable[tuple[str, str]], body: Any = None) -> Call:
    """Return the call that a request means, its values in the document's types and names.

    `body` is the decoded JSON, `None` if none was sent. Accepted as the service does: snake_case names, enum numbers,
    integers as strings, null for absent, output-only fields. Raises `ApiError` 400 INVALID_ARGUMENT.
    """
    document, method = route.document, route.method
    # Storage's patch has no mask: null removes (documentation of its partial updates).
    reader = _Reader(document, keeps_null=method.http_method == "PATCH" and document.service.api == "storage")
    params = reader.read_query(route, query)
    content: Json = {}
    if not isinstance(body, dict) and body is not None:
        reader.unknown("", "", "Root element must be a message.")
    elif method.request is not None:
        content = reader.read_object(method.request, body or {}, path=route.body_field)
    else:
        for name in body or {}:
            reader.unknown(name, "", "Cannot find field.")
    if reader.violations:
        raise bad_request(*reader.violations)
    # A patch names only what changes.
    if reader.missing and method.http_method != "PATCH":
        raise bad_request(*reader.missing)
    return Call(document.service.version, method.id, {**route.path_params, **params}, content)


def check_response(version: str, schema_name: str, value: Any, *, api: str = "tpu") -> list[str]:
    """Return the errors in a response: unknown fields, wrong types, unknown enum names. For tests."""
    reader = _Reader(load(api, version), strict=True)
    reader.read_value({"$ref": schema_name}, value, owner="", name=schema_name, path="")
    return [description for _, description in reader.violations]


def bad_request(*violations: Violation) -> ApiError:
    """Return the 400 that lists violations in `google.rpc.BadRequest`."""
    listed = [
        {"description": description} if not field else {"field": field, "description": description}
        for field, description in violations
    ]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": listed}
    return ApiError(400, "INVALID_ARGUMENT", "\n".join(description for _, description in violations), detail)


class _Reader:
    """Reads one message, collecting all its errors.

    `strict` is for the sandbox's own output: only the document's spelling and JSON types. With `keeps_null` null is
    kept, else it is the same as absent.
    """

    def __init__(self, document: Document, *, strict: bool = False, keeps_null: bool = False) -> None:
        self._document = document
        self._strict = strict
        self._keeps_null = keeps_null
        self.violations: list[Violation] = []
        self.missing: list[Violation] = []

    def unknown(self, name: str, path: str, reason: str) -> None:
        """Add the error for an unknown name. `path` is the message that contains it."""
        place = f" at '{path}'" if path else ""
        text = f"Invalid JSON payload received. Unknown name {quoted(name)}{place}: {reason}"
        self.violations.append((path or None, text))

    def read_query(self, route: Route, query: Iterable[tuple[str, str]]) -> Json:
        """Return the method's own parameters; those that every method accepts are checked and dropped."""
        declared = route.method.query_parameters
        spellings = {**{snake_case(name): name for name in declared}, **{name: name for name in declared}}
        everywhere = {*self._document.parameters, "alt"}
        params: Json = {}
        for given, text in query:
            name = spellings.get(given)
            if name is None:
                # System parameters may be written `$alt`, as Google's Python library does.
                if given not in everywhere and given.removeprefix("$") not in everywhere:
                    reason = f"Cannot bind query parameter. Field '{given}' could not be found in request message."
                    self.unknown(given, "", reason)
                continue
            try:
                value = read_query_value(declared[name], text, field=name)
            except ScalarError as error:
                self._invalid(snake_case(name), str(error))
                continue
            params[name] = [*params.get(name, []), value] if declared[name].get("repeated") else value
        for name, spec in declared.items():
            if spec.get("required") and name not in params:
                self.missing.append((name, f"Required parameter: {name}"))
        return params

    def read_object(self, schema_name: str, value: Json, *, path: str) -> Json:
        """Return a message under the document's field names, without what is null."""
        schema = self._document.schemas[schema_name]
        return self._read_members(schema.get("properties", {}), value, owner=schema_name, path=path)

    def read_value(self, spec: Json, value: Any, *, owner: str, name: str, path: str) -> Any:
        """Return one field's value. `owner` is the schema and `name` the field that has it."""
        if "$ref" in spec:
            schema = self._document.schemas[spec["$ref"]]
            if schema.get("type") == "object":
                return self._read_message(spec["$ref"], schema, value, name=name, path=path)
            spec = schema
        kind = spec.get("type")
        if kind == "any":
            return value
        if kind == "array":
            if not isinstance(value, list) and self._strict:
                self._invalid(path, f"(array), {quoted(value)}")
            elements = value if isinstance(value, list) else [value]
            return [
                self.read_value(spec["items"], element, owner=owner, name=name, path=f"{path}[{index}]")
                for index, element in enumerate(elements)
            ]
        if kind == "object":
            return self._read_message(owner, spec, value, name=name, path=path)
        if isinstance(value, list | dict):
            self._wrong_shape(value, name=name, path=path)
            return None
        names = spec.get("enum", [])
        numbers: Mapping[str, int] = {}
        if names and self._document.service.api == "tpu" and not self._strict:
            numbers = enum_numbers(owner, name, names)
        # `DISK_MODE_UNSPECIFIED` is the first name of the proto enum `DiskMode`.
        stem, _, unspecified = names[0].rpartition("_") if names else ("", "", "")
        words = stem if unspecified == "UNSPECIFIED" else snake_case(name)
        enum_name = "".join(word.capitalize() for word in words.split("_"))
        if self._strict:
            expected = _JSON_TYPES.get(spec.get("type", ""), object)
            if not isinstance(value, expected) or (isinstance(value, bool) and spec.get("type") != "boolean"):
                self._invalid(path, f"({spec.get('type')}), {quoted(value)}")
                return None
        try:
            enum_type = f"{self._document.service.package}.{owner}.{enum_name}"
            return read_scalar(spec, value, field=name, enum_type=enum_type, numbers=numbers)
        except ScalarError as error:
            self._invalid(path, str(error))
            return None

    def _read_message(self, type_name: str, schema: Json, value: Any, *, name: str, path: str) -> Any:
        if isinstance(value, list):
            self._wrong_shape(value, name=name, path=path)
        elif not isinstance(value, dict):
            self._invalid(path, f"(type.googleapis.com/{self._document.service.package}.{type_name}), {quoted(value)}")
        elif "additionalProperties" in schema:
            entry = schema["additionalProperties"]
            return {
                key: None
                if element is None and self._keeps_null
                else self.read_value(entry, element, owner=type_name, name="value", path=f"{path}[{index}].value")
                for index, (key, element) in enumerate(value.items())
            }
        else:
            return self._read_members(schema.get("properties", {}), value, owner=type_name, path=path)
        return None

    def _read_members(self, properties: Mapping[str, Json], value: Json, *, owner: str, path: str) -> Json:
        spellings = {name: name for name in properties}
        if not self._strict:
            spellings = {**{snake_case(name): name for name in properties}, **spellings}
        content: Json = {}
        for given, member in value.items():
            name = spellings.get(given)
            if name is None:
                self.unknown(given, path, "Cannot find field.")
            elif member is None and self._keeps_null:
                content[name] = None
            elif member is not None or self._strict:
                place = f"{path}.{snake_case(name)}" if path else snake_case(name)
                content[name] = self.read_value(properties[name], member, owner=owner, name=name, path=place)
        for name, spec in properties.items():
            if spec.get("description", "").startswith("Required.") and content.get(name) in (None, ""):
                field = f"{path}.{snake_case(name)}" if path else snake_case(name)
                title = name[:1].upper() + name[1:]
                text = f'Cloud TPU received an invalid argument. The field "{title}" cannot be "".'
                if self._document.service.api != "tpu":
                    text = f"Required field {field} is not set."
                self.missing.append((field, text))
        return content

    def _wrong_shape(self, value: Any, *, name: str, path: str) -> None:
        reason = "Starting an object on a scalar field"
        if isinstance(value, list):
            reason = "Proto field is not repeating, cannot start list."
        self.unknown(name, path.rpartition(".")[0], reason)

    def _invalid(self, path: str, complaint: str) -> None:
        self.violations.append((path, f"Invalid value at '{path}' {complaint}"))

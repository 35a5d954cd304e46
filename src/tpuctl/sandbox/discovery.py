"""Find the API method that a request means, and check the request, by the discovery documents of google-api-python-client.

Invalid requests are rejected with the messages of Google's JSON transcoding. Source of the messages: error bodies that users
of Google's APIs have published, and protobuf's JSON parser; the error for a missing required field is unverified.

A document is loaded when a path first needs it: compute's 5 MB cost 30 ms, which a call of the TPU API must not pay.
googleapiclient itself is never imported here (130-200 ms): only its files are read.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from tpuctl.sandbox.api_calls import ApiError, Call
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tpuctl.sandbox.api_calls import Json


@dataclass(frozen=True, slots=True)
class ApiService:
    """One version of one API: the path under which it is served, and the proto package of its messages.

    `resource_field` is the request field that holds a body which is a resource. None: the field has the name of the
    resource (`node`, `queued_resource`).
    """

    api: str
    version: str
    base: str
    package: str
    resource_field: str | None = None


# Several services share a base such as `/v1/` on one origin: the first that has the path wins.
API_SERVICES = (
    *(ApiService("tpu", v, f"/{v}/", f"google.cloud.tpu.{v}") for v in ("v2", "v2alpha1", "v1", "v1alpha1")),
    ApiService("compute", "v1", "/compute/v1/", "google.cloud.compute.v1", "resource"),
    ApiService("compute", "alpha", "/compute/alpha/", "google.cloud.compute.alpha", "resource"),
    ApiService("storage", "v1", "/storage/v1/", "google.storage.v1", ""),
    ApiService("serviceusage", "v1", "/v1/", "google.api.serviceusage.v1"),
    ApiService("serviceusage", "v1beta1", "/v1beta1/", "google.api.serviceusage.v1beta1"),
    ApiService("cloudresourcemanager", "v3", "/v3/", "google.cloud.resourcemanager.v3"),
    ApiService("cloudresourcemanager", "v1", "/v1/", "google.cloud.resourcemanager.v1"),
    ApiService("oslogin", "v1", "/v1/", "google.cloud.oslogin.v1"),
    ApiService("oslogin", "v1alpha", "/v1alpha/", "google.cloud.oslogin.v1alpha"),
    ApiService("iamcredentials", "v1", "/v1/", "google.iam.credentials.v1"),
    ApiService("iam", "v1", "/v1/", "google.iam.admin.v1"),
    ApiService("cloudbilling", "v1", "/v1/", "google.cloud.billing.v1"),
    ApiService("orgpolicy", "v2", "/v2/", "google.cloud.orgpolicy.v2", "policy"),
)

# Every list method of compute accepts it (gcloud 528 sends it); the documents of v1 mention it only in descriptions.
_UNLISTED_PARAMETERS: Mapping[str, Json] = {
    "compute": {"returnPartialSuccess": {"type": "boolean", "location": "query"}}
}

_READ_LOCK = threading.Lock()
APIS = frozenset(service.api for service in API_SERVICES)


@dataclass(frozen=True, slots=True)
class ApiMethod:
    """A method of a document. `parameters` are its path and query parameters as the document declares them.

    `takes_media`: its request may upload bytes. `gives_media`: its response may be the bytes of the resource.
    """

    id: str
    http_method: str
    flat_path: tuple[str, ...]
    template: str
    parameters: Mapping[str, Json]
    request: str | None
    response: str | None
    takes_media: bool = False
    gives_media: bool = False

    @property
    def query_parameters(self) -> Mapping[str, Json]:
        """Return the parameters that the query may carry."""
        return {name: spec for name, spec in self.parameters.items() if spec["location"] == "query"}

    def has_path(self, segments: Sequence[str]) -> bool:
        """Return whether a path with as many segments belongs to this method."""
        # Without regular expressions: compiling those of compute's 1200 methods takes 150 ms.
        for template, segment in zip(self.flat_path, segments, strict=True):
            if not template.startswith("{"):
                if template != segment:
                    return False
                continue
            # A project may be `domain.com:name`, so a colon alone does not end the value: only the verb after it does.
            verb = template.partition("}")[2]
            if len(segment) <= len(verb) or not segment.endswith(verb):
                return False
        return True


class DiscoveryDocument:
    """One discovery document."""

    def __init__(self, service: ApiService, content: Json) -> None:
        self.service = service
        self.schemas: Mapping[str, Json] = content["schemas"]
        # The parameters that every method accepts: `alt`, `key`, `fields`, `prettyPrint`, ...
        self.parameters: Mapping[str, Json] = {**content["parameters"], **_UNLISTED_PARAMETERS.get(service.api, {})}
        self._resources: Json = content

    @cached_property
    def methods(self) -> tuple[ApiMethod, ...]:
        """Return the methods; those with a custom verb (`:start`) come before plain paths."""
        methods = [_parse_method(raw, self.service) for raw in _raw_methods(self._resources)]
        return tuple(sorted(methods, key=lambda method: ":" not in method.flat_path[-1]))

    @cached_property
    def _methods_by_form(self) -> Mapping[tuple[str, int], list[ApiMethod]]:
        """Return the methods by HTTP method and number of segments: compute has 1200."""
        methods: dict[tuple[str, int], list[ApiMethod]] = {}
        for method in self.methods:
            methods.setdefault((method.http_method, len(method.flat_path)), []).append(method)
        return methods

    def match(self, http_method: str, path: str) -> ApiRoute | None:
        """Return the route of a path, as it was sent, below this document's base. None if no method has it."""
        segments = path.split("/")
        for method in self._methods_by_form.get((http_method, len(segments)), ()):
            if method.has_path(segments):
                values = _template_expression(method.template).fullmatch(path)
                if values is not None:
                    return ApiRoute(self, method, {name: unquote(value) for name, value in values.groupdict().items()})
        return None


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """The method that a request means, and the values of its path parameters."""

    document: DiscoveryDocument
    method: ApiMethod
    path_params: Mapping[str, str]

    @property
    def body_field(self) -> str:
        """Return the field of the request message that the body fills; empty if the body is the whole message.

        Source: google.api.http annotations (`body: "node"`), which the documents do not carry: a request schema
        `XRequest` is the whole message.
        """
        schema = self.method.request
        if schema is None or schema.endswith("Request"):
            return ""
        declared = self.document.service.resource_field
        return snake_case(schema) if declared is None else declared


# Clients poll: most paths are met again.
@lru_cache(maxsize=4096)
def route_request(http_method: str, path: str, *, api: str | None = None) -> ApiRoute | None:
    """Return the method that a request means. None for an unknown path, or a known path with the wrong verb.

    `path` starts with `/` and is percent-encoded, as sent. `api` (`tpu`, `compute`, ...) narrows the search if the
    host name determines the API.
    """
    for service in API_SERVICES:
        if path.startswith(service.base) and api in (None, service.api):
            route = load_document(service.api, service.version).match(http_method, path.removeprefix(service.base))
            if route is not None:
                return route
    return None


def load_document(api: str, version: str) -> DiscoveryDocument:
    """Return a document. Raises `LookupError` if the sandbox does not serve it."""
    # Without the lock, threads that start at once would each read it: compute's takes 35 ms.
    with _READ_LOCK:
        return _read_document(api, version)


@cache
def _read_document(api: str, version: str) -> DiscoveryDocument:
    service = next((s for s in API_SERVICES if (s.api, s.version) == (api, version)), None)
    if service is None:
        raise LookupError(f"{api} {version} is not served by the sandbox")
    package = find_spec("googleapiclient")
    if package is None or package.origin is None:
        raise LookupError("google-api-python-client is not installed")
    folder = Path(package.origin).parent / "discovery_cache" / "documents"
    return DiscoveryDocument(service, json.loads((folder / f"{api}.{version}.json").read_bytes()))


@cache
def snake_case(name: str) -> str:
    """Return a JSON name (`acceleratorType`) in the form of a proto field (`accelerator_type`)."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _raw_methods(resource: Json) -> Iterator[Json]:
    yield from resource.get("methods", {}).values()
    for child in resource.get("resources", {}).values():
        yield from _raw_methods(child)


def _parse_method(raw: Json, service: ApiService) -> ApiMethod:
    # tpu's paths begin with the version, compute's and storage's are relative to a base path that has it.
    prefix = "" if service.base.startswith(f"/{service.api}/") else service.base.strip("/") + "/"
    path: str = raw["path"]
    flat: str = raw.get("flatPath", path)
    return ApiMethod(
        id=raw["id"],
        http_method=raw["httpMethod"],
        flat_path=tuple(flat.removeprefix(prefix).split("/")),
        template=path.removeprefix(prefix),
        parameters=raw.get("parameters", {}),
        request=raw.get("request", {}).get("$ref"),
        response=raw.get("response", {}).get("$ref"),
        takes_media=bool(raw.get("supportsMediaUpload")),
        gives_media=bool(raw.get("supportsMediaDownload")),
    )


@cache
def _template_expression(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\+?)(\w+)\}", path)
    expression = [re.escape(parts[0])]
    for reserved, name, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        expression += [f"(?P<{name}>{'.+' if reserved else '[^/]+'})", re.escape(literal)]
    return re.compile("".join(expression))


# Field (absent at the root of the message) and description, as in `google.rpc.BadRequest`.
Violation = tuple[str | None, str]


def check_request(route: ApiRoute, query: Iterable[tuple[str, str]], body: Any = None) -> Call:
    """Return the call that a request means, its values in the document's types and names.

    `body` is the decoded JSON, `None` if none was sent. Accepted as the service does: snake_case names, enum numbers,
    integers as strings, null for absent, output-only fields. Raises `ApiError` 400 INVALID_ARGUMENT.
    """
    document, method = route.document, route.method
    # Storage's patch has no mask: null removes (documentation of its partial updates).
    reader = _SchemaReader(document, keeps_null=method.http_method == "PATCH" and document.service.api == "storage")
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
        raise _schema_bad_request(*reader.violations)
    # A patch names only what changes.
    if reader.missing and method.http_method != "PATCH":
        raise _schema_bad_request(*reader.missing)
    return Call(document.service.version, method.id, {**route.path_params, **params}, content)


def _schema_bad_request(*violations: Violation) -> ApiError:
    """Return the 400 that lists violations in `google.rpc.BadRequest`."""
    listed = [
        {"description": description} if not field else {"field": field, "description": description}
        for field, description in violations
    ]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": listed}
    return ApiError(400, "INVALID_ARGUMENT", "\n".join(description for _, description in violations), detail)


class _SchemaReader:
    """Reads one message, collecting all its errors. With `keeps_null` null is kept, else it is the same as absent."""

    def __init__(self, document: DiscoveryDocument, *, keeps_null: bool) -> None:
        self._document = document
        self._keeps_null = keeps_null
        self.violations: list[Violation] = []
        self.missing: list[Violation] = []

    def unknown(self, name: str, path: str, reason: str) -> None:
        """Add the error for an unknown name. `path` is the message that contains it."""
        place = f" at '{path}'" if path else ""
        text = f"Invalid JSON payload received. Unknown name {quoted(name)}{place}: {reason}"
        self.violations.append((path or None, text))

    def read_query(self, route: ApiRoute, query: Iterable[tuple[str, str]]) -> Json:
        """Return the method's own parameters; those that every method accepts are checked and dropped."""
        declared = route.method.query_parameters
        spellings = {**{snake_case(name): name for name in declared}, **{name: name for name in declared}}
        everywhere = {*self._document.parameters, "alt"}
        params: Json = {}
        for key, text in query:
            name = spellings.get(key)
            if name is None:
                # System parameters may be written `$alt`, as Google's Python library does.
                if key not in everywhere and key.removeprefix("$") not in everywhere:
                    reason = f"Cannot bind query parameter. Field '{key}' could not be found in request message."
                    self.unknown(key, "", reason)
                continue
            if declared[name].get("type") == "boolean" and text.lower() in {"true", "false"}:
                text = text.lower()  # noqa: PLW2901  # booleans in any case, as gcloud sends `True`
            try:
                value = _read_scalar(declared[name], text, field=name, enum_type=name)
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
        has_numbers = names and value not in names and self._document.service.api == "tpu"
        numbers = enum_numbers(owner, name, names) if has_numbers else {}
        # `DISK_MODE_UNSPECIFIED` is the first name of the proto enum `DiskMode`.
        stem, _, unspecified = names[0].rpartition("_") if names else ("", "", "")
        words = stem if unspecified == "UNSPECIFIED" else snake_case(name)
        enum_name = "".join(word.capitalize() for word in words.split("_"))
        try:
            enum_type = f"{self._document.service.package}.{owner}.{enum_name}"
            return _read_scalar(spec, value, field=name, enum_type=enum_type, numbers=numbers)
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
        spellings = {**{snake_case(name): name for name in properties}, **{name: name for name in properties}}
        content: Json = {}
        for key, member in value.items():
            name = spellings.get(key)
            if name is None:
                self.unknown(key, path, "Cannot find field.")
            elif member is None and self._keeps_null:
                content[name] = None
            elif member is not None:
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


# Forms of values. Source: the proto3 JSON mapping, and protobuf's JSON parser for what it accepts beyond that.
_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
# Type, pattern and complaint.
_WELL_KNOWN = {
    "google-datetime": (
        "Timestamp",
        re.compile(
            r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"
        ),
        "Illegal timestamp format; timestamps must end with 'Z' or have a valid timezone offset.",
    ),
    "google-duration": (
        "Duration",
        re.compile(r"-?\d{1,12}(\.\d{1,9})?s"),
        "Illegal duration format; duration must end with 's'",
    ),
}


class ScalarError(ValueError):
    """A value that the field cannot hold; the text follows `Invalid value at '<path>' `."""


@cache
def _load_numbers() -> Any:
    return load_data("tpu_enum_numbers.yaml")


def enum_numbers(message: str, field: str, names: list[str]) -> Mapping[str, int]:
    """Return the number of each name of an enum of the TPU API (source: google-cloud-tpu 1.28).

    Enums of messages that the library lacks are counted from 0 in the document's order, as protobuf files nearly always are.
    """
    known = _load_numbers().get(f"{message}.{field}", {})
    return {name: known.get(name, position) for position, name in enumerate(names)}


def _read_scalar(
    spec: Json, value: Any, *, field: str, enum_type: str = "", numbers: Mapping[str, int] | None = None
) -> Any:
    """Return a value in the form that handlers expect: enum names, int32 as int, int64 as digits, bytes as sent.

    `spec` is the document's declaration. `enum_type` is the full name of the enum's proto type, `numbers` the meaning of
    integers in it. Raises `ScalarError`.
    """
    kind, form = spec.get("type"), spec.get("format", "")
    if form in _WELL_KNOWN:
        return _read_well_known(form, value, field=field)
    form = form or {"integer": "int32", "boolean": "bool", "number": "double"}.get(str(kind), "string")
    try:
        if "enum" in spec:
            form = ""
            if isinstance(value, str) and value in spec["enum"]:
                return value
            value_number = _read_integer("int32", value)
            return next(name for name, number in (numbers or {}).items() if number == value_number)
        if form in _RANGES:
            number = _read_integer(form, value)
            return str(number) if kind == "string" else number
        if form == "byte":
            text = _checked(value, str).rstrip("=").replace("-", "+").replace("_", "/")
            base64.b64decode(text + "=" * (-len(text) % 4), validate=True)  # binascii.Error is a ValueError
            return value
        if kind == "boolean":
            return {"true": True, "false": False}[value] if isinstance(value, str) else _checked(value, bool)
        if kind == "number":
            return float(value) if isinstance(value, str) else _checked(value, int, float)
        return _checked(value, str)
    except (ValueError, KeyError, StopIteration):
        name = f"TYPE_{ {'byte': 'BYTES'}.get(form, form.upper()) }" if form else f"type.googleapis.com/{enum_type}"
        reason = "Base64 decoding failed for " if form == "byte" else ""
        raise ScalarError(f"({name}), {reason}{quoted(value)}") from None


def quoted(value: Any) -> str:
    """Return a value as it appears in the service's error message."""
    return json.dumps(value, ensure_ascii=False)


def _checked(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise ValueError
    return value


def _read_well_known(form: str, value: Any, *, field: str) -> str:
    name, pattern, complaint = _WELL_KNOWN[form]
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    if not isinstance(value, str):
        complaint = f"Invalid data type for {name.lower()}, value is {quoted(value)}"
    raise ScalarError(f"(type.googleapis.com/google.protobuf.{name}), Field '{field}', {complaint}")


def _read_integer(form: str, value: Any) -> int:
    if not (
        re.fullmatch(r"-?\d{1,20}", value) if isinstance(value, str) else _checked(value, int, float) == value // 1
    ):
        raise ValueError
    low, high = _RANGES[form]
    if not low <= int(value) <= high:
        raise ValueError
    return int(value)


def decode_json(body: bytes) -> Any:
    """Return the JSON value of a body, `None` for an empty one. Raises `ApiError` 400 INVALID_ARGUMENT for invalid JSON."""

    def refuse_constant(_name: str) -> NoReturn:
        raise ValueError

    try:
        text = body.decode("utf-8")
        value = json.loads(text, strict=False, parse_constant=refuse_constant) if text.strip() else None
        if "\\u" in text:
            # Half of a surrogate pair (`\ud800`) is a string to Python, but cannot be stored or sent.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ApiError(400, "INVALID_ARGUMENT", "Message too deep. Max recursion depth reached.") from error
    except ValueError as error:  # also for bytes that are not UTF-8, and for an integer of thousands of digits
        # The service names the token and its place.
        raise ApiError(400, "INVALID_ARGUMENT", "Invalid JSON payload received. Unexpected token.") from error
    return value

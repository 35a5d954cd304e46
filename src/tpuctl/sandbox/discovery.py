"""Find the API method that a request means, in the discovery documents of google-api-python-client.

A document is loaded when a path first needs it: compute's 5 MB cost 30 ms, which a call of the TPU API must not pay.
googleapiclient itself is never imported here (130-200 ms): only its files are read.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.sandbox.calls import Json


@dataclass(frozen=True, slots=True)
class Service:
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
_SERVICES = (
    *(Service("tpu", v, f"/{v}/", f"google.cloud.tpu.{v}") for v in ("v2", "v2alpha1", "v1", "v1alpha1")),
    Service("compute", "v1", "/compute/v1/", "google.cloud.compute.v1", "resource"),
    Service("compute", "alpha", "/compute/alpha/", "google.cloud.compute.alpha", "resource"),
    Service("storage", "v1", "/storage/v1/", "google.storage.v1", ""),
    Service("serviceusage", "v1", "/v1/", "google.api.serviceusage.v1"),
    Service("serviceusage", "v1beta1", "/v1beta1/", "google.api.serviceusage.v1beta1"),
    Service("cloudresourcemanager", "v3", "/v3/", "google.cloud.resourcemanager.v3"),
    Service("cloudresourcemanager", "v1", "/v1/", "google.cloud.resourcemanager.v1"),
    Service("oslogin", "v1", "/v1/", "google.cloud.oslogin.v1"),
    Service("oslogin", "v1alpha", "/v1alpha/", "google.cloud.oslogin.v1alpha"),
    Service("iamcredentials", "v1", "/v1/", "google.iam.credentials.v1"),
    Service("iam", "v1", "/v1/", "google.iam.admin.v1"),
    Service("cloudbilling", "v1", "/v1/", "google.cloud.billing.v1"),
    Service("orgpolicy", "v2", "/v2/", "google.cloud.orgpolicy.v2", "policy"),
)

# Every list method of compute accepts it (gcloud 528 sends it); the documents of v1 mention it only in descriptions.
_UNLISTED: Mapping[str, Json] = {"compute": {"returnPartialSuccess": {"type": "boolean", "location": "query"}}}

_READING = threading.Lock()
APIS = frozenset(service.api for service in _SERVICES)


@dataclass(frozen=True, slots=True)
class Method:
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
        """Return whether a path, split at its slashes, belongs to this method."""
        # Without regular expressions: compiling those of compute's 1200 methods takes 150 ms.
        if len(segments) != len(self.flat_path):
            return False
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


class Document:
    """One discovery document."""

    def __init__(self, service: Service, content: Json) -> None:
        self.service = service
        self.schemas: Mapping[str, Json] = content["schemas"]
        # The parameters that every method accepts: `alt`, `key`, `fields`, `prettyPrint`, ...
        self.parameters: Mapping[str, Json] = {**content["parameters"], **_UNLISTED.get(service.api, {})}
        self._resources: Json = content

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """Return the methods; those with a custom verb (`:start`) come before plain paths."""
        found = [_parse_method(raw, self.service) for raw in _raw_methods(self._resources)]
        return tuple(sorted(found, key=lambda method: ":" not in method.flat_path[-1]))

    def match(self, http_method: str, path: str) -> Route | None:
        """Return the route of a path, as it was sent, below this document's base. None if no method has it."""
        segments = path.split("/")
        for method in self.methods:
            if method.http_method == http_method and method.has_path(segments):
                values = _template_expression(method.template).fullmatch(path)
                if values is not None:
                    return Route(self, method, {name: unquote(value) for name, value in values.groupdict().items()})
        return None


@dataclass(frozen=True, slots=True)
class Route:
    """The method that a request means, and the values of its path parameters."""

    document: Document
    method: Method
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


def route(http_method: str, path: str, *, api: str | None = None) -> Route | None:
    """Return the method that a request means. None for an unknown path, or a known path with the wrong verb.

    `path` starts with `/` and is percent-encoded, as sent. `api` (`tpu`, `compute`, ...) narrows the search if the
    host name determines the API.
    """
    for service in _SERVICES:
        if path.startswith(service.base) and api in (None, service.api):
            found = load(service.api, service.version).match(http_method, path.removeprefix(service.base))
            if found is not None:
                return found
    return None


def load(api: str, version: str) -> Document:
    """Return a document. Raises `LookupError` if the sandbox does not serve it."""
    # Without the lock, threads that start at once would each read it: compute's takes 35 ms.
    with _READING:
        return _read(api, version)


@cache
def _read(api: str, version: str) -> Document:
    service = next((s for s in _SERVICES if (s.api, s.version) == (api, version)), None)
    if service is None:
        raise LookupError(f"{api} {version} is not served by the sandbox")
    package = find_spec("googleapiclient")
    if package is None or package.origin is None:
        raise LookupError("google-api-python-client is not installed")
    folder = Path(package.origin).parent / "discovery_cache" / "documents"
    return Document(service, json.loads((folder / f"{api}.{version}.json").read_bytes()))


def snake_case(name: str) -> str:
    """Return a JSON name (`acceleratorType`) in the form of a proto field (`accelerator_type`)."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _raw_methods(resource: Json) -> Iterator[Json]:
    yield from resource.get("methods", {}).values()
    for child in resource.get("resources", {}).values():
        yield from _raw_methods(child)


def _parse_method(raw: Json, service: Service) -> Method:
    # tpu's paths begin with the version, compute's and storage's are relative to a base path that has it.
    prefix = "" if service.base.startswith(f"/{service.api}/") else service.base.strip("/") + "/"
    path: str = raw["path"]
    flat: str = raw.get("flatPath", path)
    return Method(
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

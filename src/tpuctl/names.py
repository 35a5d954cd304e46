"""Names of things in the API: what is valid, how a user may write them, how they are spelled in full.

A name is checked here before it enters a URL or an argv. Patterns for zones are loose on purpose: newer zones look like
`us-central1-ai1a`, and only the service knows them all.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

# The API's own rule for a node id, as it words it when it refuses one [gcloud help, nodes.create].
_NODE_ID = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+(?:-[a-z0-9]+)+")
# Domain-scoped projects (`example.com:project`) are old and still valid.
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]{0,29}|[0-9]+")
_FULL_NAME = re.compile(
    r"(?:.*/)?projects/(?P<project>[^/]+)/(?:locations|zones)/(?P<zone>[^/]+)/(?P<kind>nodes|queuedResources)/(?P<node>[^/]+)"
)
# Documentation of Cloud Storage: letters, digits, `-`, `_` and `.`, up to 222 with dots, and not an IP address.
_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")
# `gs:x`, `gs:/x`, `gs//x`, `GS://x`: what was meant for `gs://x`.
_NEARLY_GS = re.compile(r"(?i:gs)(?::/{0,2}|//)(?P<rest>[^/].*)")
# What fits 64 bits, with a digit to spare.
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """Where a node is: its project, its zone and its id within them."""

    project: str
    zone: str
    node_id: str

    def __str__(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True)
class NodeReference:
    """A node as a user names it: its id, and the zone and project where the user gave them.

    `kind` is the collection that a full resource name states. With `queuedResources` the id is that of a queued resource.
    """

    node_id: str
    zone: str | None = None
    project: str | None = None
    kind: Literal["nodes", "queuedResources"] | None = None


@dataclass(frozen=True, slots=True)
class BucketPath:
    """A place in Cloud Storage below which objects are kept. `prefix` has no slash at either end; it may be empty."""

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> BucketPath:
        """Return the place that `gs://BUCKET` or `gs://BUCKET/PREFIX` names. Raises `InvalidInputError` for all else.

        One slash at its end is left out. An empty segment is refused: objects may be below it, but not below what is left.
        """
        bucket, _, rest = text.removeprefix("gs://").partition("/")
        hint = "write it like `gs://BUCKET/PREFIX`"
        if not text.startswith("gs://"):
            meant = nearly_bucket(text)
            hint = f"did you mean `{meant}`?" if meant else hint
            raise InvalidInputError(f"`{text}` is not a place in Cloud Storage", hint=hint)
        if not _BUCKET.fullmatch(bucket):
            why = f": `{bucket}` cannot be one" if bucket else ""
            raise InvalidInputError(f"`{text}` names no bucket{why}", hint=hint)
        if "//" in f"/{rest}":
            raise InvalidInputError(f"`{text}` names no place: it has several slashes in a row", hint=hint)
        prefix = rest.removesuffix("/")
        # What the service refuses in names, and what other programs take for wildcards [documentation of object names].
        if (
            len(prefix.encode()) > 512
            or re.search(r"[\x00-\x1f\x7f#\[\]*?]", prefix)
            or {".", ".."} & {*prefix.split("/")}
        ):
            raise InvalidInputError(
                f"`{text}` cannot be used: its prefix has characters that names must not have", hint=hint
            )
        return cls(bucket, prefix)

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")

    def object_name(self, name: str) -> str:
        """Return the full name of an object below this place."""
        return f"{self.prefix}/{name}" if self.prefix else name


def nearly_bucket(text: str) -> str | None:
    """Return the `gs://…` that was probably meant by `gs:/x`, `gs:x` or `GS://x`; nothing for what is all right or far off."""
    match = _NEARLY_GS.fullmatch(text)
    return f"gs://{match['rest']}" if match and not text.startswith("gs://") else None


def parse_reference(text: str, *, allow_queued: bool = False) -> NodeReference:
    """Return what `NODE`, `ZONE/NODE`, a full resource name or its URL names; with `allow_queued` also of a queued resource.

    Raises `InvalidInputError` naming the part that is wrong.
    """
    if match := _FULL_NAME.fullmatch(text):
        kind: Literal["nodes", "queuedResources"] = "nodes" if match["kind"] == "nodes" else "queuedResources"
        if kind == "queuedResources" and not allow_queued:
            raise InvalidInputError(f"`{text}` is a queued resource, not a node", hint="name a node")
        reference = NodeReference(match["node"], match["zone"], match["project"], kind)
    elif text.count("/") == 1:
        zone, node_id = text.split("/")
        reference = NodeReference(node_id, zone)
    else:
        reference = NodeReference(text)
    check_node_id(reference.node_id)
    if reference.zone is not None:
        check_zone(reference.zone)
    if reference.project is not None:
        check_project(reference.project)
    return reference


def printable(text: str) -> str:
    """Return a text with the bytes that are no UTF-8, and NUL, as `\\xff`: what can be printed anywhere."""
    try:
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a pair of surrogates, which is no byte
        shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\0", "\\x00")


def check_node_id(text: str) -> str:
    """Return the node id, or raise `InvalidInputError` with the rule and a name that would do."""
    if not _NODE_ID.fullmatch(text):
        proposal = re.sub(r"-+", "-", re.sub(r"[^a-z0-9]+", "-", text.lower())).strip("-")[:63].rstrip("-")
        proposal = proposal if _NODE_ID.fullmatch(proposal) else f"tpu-{proposal}"[:63].rstrip("-")
        raise InvalidInputError(
            f"`{text}` is not a node name",
            hint="a name is up to 63 lower-case letters, digits and hyphens, begins with a letter and does not end with a "
            f"hyphen; did you mean `{proposal}`?",
        )
    return text


def check_zone(text: str) -> str:
    """Return the zone, or raise `InvalidInputError` when no zone can be called that."""
    if not _ZONE.fullmatch(text):
        raise InvalidInputError(f"`{text}` is not a zone", hint="zones look like `us-central2-b`; see `tpuctl types`")
    if re.fullmatch(r"[a-z]+-[a-z]+\d+", text):
        raise InvalidInputError(
            f"`{text}` is a region, not a zone", hint=f"a zone ends with a letter, like `{text}-a`; see `tpuctl types`"
        )
    return text


def check_project(text: str) -> str:
    """Return the project id, or raise `InvalidInputError` when no project can be called that."""
    if not _PROJECT.fullmatch(text):
        raise InvalidInputError(
            f"`{text}` is not a project id", hint="use the PROJECT_ID column of `gcloud projects list`, not the name"
        )
    return text


def check_login(text: str) -> str:
    """Return a login name on workers. Raises `InvalidInputError`: it stands in metadata, argvs and ssh's configuration."""
    if text.startswith("-") or not re.fullmatch(r"[^\s@:/]+", text):
        raise InvalidInputError(f"`{text}` is not a login name", hint="write the name alone, without host")
    return text


def region_of(zone: str) -> str:
    """Return the region that a zone is in: `europe-west4` of `europe-west4-a`."""
    return zone.rsplit("-", 1)[0]


def short(resource: str) -> str:
    """Return the last segment of a resource name: `default` of `projects/p/global/networks/default`."""
    return resource.rstrip("/").rsplit("/", 1)[-1]


def whole_number(text: str) -> int | None:
    """Return what up to 18 digits say; None for any other text. Python's `int` refuses thousands of digits with an error."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that the word was probably meant to be, if one is near."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)), None)

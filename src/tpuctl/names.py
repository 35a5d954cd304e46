"""Names of API resources: validation, the forms that users may write, and full resource names.

A name is checked here before it enters a URL or an argv. What exists can have a name that could not be chosen for something
new: only `check_new_node_id` has the rule for new nodes. The pattern for zones is loose on purpose: newer zones look like
`us-central1-ai1a`, and only the service knows all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Patterns are compiled when they are first used: a command uses few of them.
# The rule for the id of a new node [gcloud help, nodes.create].
_NEW_NODE_ID = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
# The ids that the API knows [API v2, NodeSpec.nodeId], but for those that begin like an option or a hidden file.
_NODE_ID = r"[A-Za-z0-9_~+%][A-Za-z0-9_.~+%-]{0,249}"
_ZONE = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+"
# Domain-scoped projects (`example.com:project`) are old and still valid.
_PROJECT = r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]{0,29}|[0-9]+"
_FULL_NAME = (
    r"(?:.*/)?projects/(?P<project>[^/]+)/(?:locations|zones)/(?P<zone>[^/]+)"
    r"/(?P<kind>nodes|queuedResources)/(?P<node>[^/]+)"
)
# Old buckets have names with capital letters and up to 255 characters [gsutil, `BUCKET_NAME_RE`], and those of domain-scoped
# projects a colon.
_BUCKET = r"(?!\d+\.\d+\.\d+\.\d+$)[A-Za-z0-9][-_.:A-Za-z0-9]{1,253}[A-Za-z0-9]"
# `gs:x`, `gs:/x`, `gs//x`, `GS://x`: misspellings of `gs://x`.
_NEARLY_GS = r"(?i:gs)(?::/{0,2}|//)(?P<rest>[^/].*)"
# Fits 64 bits, with one digit to spare.
_MOST_DIGITS = 18
_NUMBER = re.compile(rf"([0-9]{{1,{_MOST_DIGITS}}})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """The full name of a node: project, zone and node id."""

    project: str
    zone: str
    node_id: str

    def __str__(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True)
class NodeReference:
    """A node as the user names it: its id, and zone and project if given.

    `kind` is the collection of a full resource name. With `queuedResources` the id is that of a queued resource.
    """

    node_id: str
    zone: str | None = None
    project: str | None = None
    kind: Literal["nodes", "queuedResources"] | None = None


@dataclass(frozen=True, slots=True)
class BucketPath:
    """A bucket and a prefix of object names. `prefix` has no slash at either end, and may be empty."""

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> BucketPath:
        """Parse `gs://BUCKET` or `gs://BUCKET/PREFIX`. Raises `InvalidInputError` for anything else.

        One trailing slash is removed. An empty segment is an error: removing it would name other objects.
        """
        bucket, _, rest = text.removeprefix("gs://").partition("/")
        hint = "write it like `gs://BUCKET/PREFIX`"
        if not text.startswith("gs://"):
            meant = suggest_bucket_url(text)
            hint = f"did you mean `{meant}`?" if meant else hint
            raise InvalidInputError(f"`{text}` is not a Cloud Storage URL", hint=hint)
        if not re.fullmatch(_BUCKET, bucket):
            why = f": `{bucket}` is not a bucket name" if bucket else ""
            raise InvalidInputError(f"`{text}` has no valid bucket{why}", hint=hint)
        if "//" in f"/{rest}":
            raise InvalidInputError(f"`{text}` has several slashes in a row", hint=hint)
        prefix = rest.removesuffix("/")
        # Refused by the service in names, or taken for wildcards by other programs [documentation of object names].
        if (
            len(prefix.encode()) > 512
            or re.search(r"[\x00-\x1f\x7f#\[\]*?]", prefix)
            or {".", ".."} & {*prefix.split("/")}
        ):
            raise InvalidInputError(f"`{text}` has a prefix that is too long or has invalid characters", hint=hint)
        return cls(bucket, prefix)

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")

    def object_name(self, name: str) -> str:
        """Return the full name of an object below the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


def suggest_bucket_url(text: str) -> str | None:
    """Return the `gs://…` that was probably meant by `gs:/x`, `gs:x` or `GS://x`. None for any other text."""
    match = re.fullmatch(_NEARLY_GS, text)
    return f"gs://{match['rest']}" if match and not text.startswith("gs://") else None


def parse_node_reference(text: str, *, allow_queued: bool = False) -> NodeReference:
    """Parse `NODE`, `ZONE/NODE`, a full resource name or its URL; with `allow_queued` also that of a queued resource.

    Raises `InvalidInputError` that names the invalid part.
    """
    if match := re.fullmatch(_FULL_NAME, text):
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


def escape_undecodable(text: str) -> str:
    """Return a text with NUL and bytes that are not UTF-8 escaped as `\\xff`, so that it can be encoded."""
    try:
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a pair of surrogates, which is no byte
        shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\0", "\\x00")


def check_node_id(text: str) -> str:
    """Return the id of a node or queued resource that may exist. Raises `InvalidInputError` if the API can have none such."""
    if text.startswith("#"):
        raise InvalidInputError(
            f"`{text}` is not a node name",
            hint="zsh passes a comment to the command: leave it out, or run `setopt interactive_comments` first",
        )
    if not re.fullmatch(_NODE_ID, text):
        raise _not_a_node_name(text)
    return text


def check_new_node_id(text: str) -> str:
    """Return the id of a new node. Raises `InvalidInputError` with the rule and a valid name."""
    if not re.fullmatch(_NEW_NODE_ID, text):
        raise _not_a_node_name(text)
    return text


_SLICE_ID = re.compile(r"(.+)-(?:0|[1-9][0-9]{0,3})")


def group_of_slice(node_id: str) -> str | None:
    """Return the name of the group that a node may be a slice of: `train` for `train-2`. None for a name without a number."""
    found = _SLICE_ID.fullmatch(node_id)
    return found[1] if found else None


def slice_ids(group: str, count: int) -> tuple[str, ...]:
    """Return the ids of the slices of a group: `train-0` to `train-2` [API v2, MultisliceParams: prefix and number]."""
    return tuple(f"{group}-{index}" for index in range(count))


def file_stem(node_id: str) -> str:
    """Return the name of the files of a node: its id, with what is not in the ids of new nodes as `%2E`.

    So no file system takes two nodes for one, and a dot in a file name is none of a node's id.
    """
    return re.sub(r"[^a-z0-9-]", lambda found: f"%{ord(found[0]):02X}", node_id)


def node_id_of_file(stem: str) -> str:
    """Return the id of the node to which `file_stem` gave this name."""
    return unquote(stem)


def _not_a_node_name(text: str) -> InvalidInputError:
    proposal = re.sub(r"-+", "-", re.sub(r"[^a-z0-9]+", "-", text.lower())).strip("-")[:63].rstrip("-")
    proposal = proposal if re.fullmatch(_NEW_NODE_ID, proposal) else f"tpu-{proposal}"[:63].rstrip("-")
    meant = f"; did you mean `{proposal}`?" if text else ""
    return InvalidInputError(
        f"`{text}` is not a node name",
        hint="a name is up to 63 lower-case letters, digits and hyphens, begins with a letter and does not end with a "
        f"hyphen{meant}",
    )


def is_node_name(name: NodeName) -> bool:
    """Return whether the API could have a node of this name."""
    return bool(re.fullmatch(_NODE_ID, name.node_id) and re.fullmatch(_ZONE, name.zone))


def check_zone(text: str) -> str:
    """Return the zone, or raise `InvalidInputError` if it is not a zone name."""
    if not re.fullmatch(_ZONE, text):
        raise InvalidInputError(f"`{text}` is not a zone", hint="zones look like `us-central2-b`; see `tpuctl types`")
    if re.fullmatch(r"[a-z]+-[a-z]+\d+", text):
        from tpuctl.accelerators import documented_zones  # noqa: PLC0415  # yaml, only for this error

        zone = min((zone for zone in documented_zones(None) if region_of_zone(zone) == text), default="us-central2-b")
        raise InvalidInputError(
            f"`{text}` is a region, not a zone", hint=f"a zone ends with a letter, like `{zone}`; see `tpuctl types`"
        )
    return text


def check_project(text: str) -> str:
    """Return the project id, or raise `InvalidInputError` if it is not a project id."""
    if not re.fullmatch(_PROJECT, text):
        raise InvalidInputError(
            f"`{text}` is not a project id", hint="use the PROJECT_ID column of `gcloud projects list`, not the name"
        )
    return text


def check_login(text: str) -> str:
    """Return a login name for workers. Raises `InvalidInputError` if it is unsafe in metadata, argvs or ssh_config."""
    if text.startswith("-") or not re.fullmatch(r"[^\s@:/]+", text):
        raise InvalidInputError(f"`{text}` is not a login name", hint="write the name alone, without host")
    return text


def region_of_zone(zone: str) -> str:
    """Return the region of a zone: `europe-west4` of `europe-west4-a`."""
    return zone.rsplit("-", 1)[0]


def last_segment(resource: str) -> str:
    """Return the last segment of a resource name: `default` of `projects/p/global/networks/default`."""
    return resource.rstrip("/").rsplit("/", 1)[-1]


def parse_whole_number(text: str) -> int | None:
    """Return the value of up to 18 digits, None for any other text. Python's `int` raises for thousands of digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def natural_key(text: str) -> list[str | int]:
    """Return the key that sorts texts as people do: `sweep-2` before `sweep-10`."""
    parts: list[str | int] = list(_NUMBER.split(text))
    parts[1::2] = map(int, parts[1::2])
    return parts


def number_ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers in their order, consecutive ones as a range: `0-3`, `5`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ["-".join(map(str, part)) for part in parts]

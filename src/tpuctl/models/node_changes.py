"""Changes of a node's fields, key by key: the API replaces a map or a list as a whole, and has no etag. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.models.node import Node

# Returns the API fields to write, as whole values, for a node as it is now; empty if the node has what is wanted. It is called
# again with each newer state of the node, so that the keys of other clients are always those of the last one.
NodeChange = Callable[[Node], Mapping[str, Any]]


def changed_fields(node: Node, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the API fields to write: only those whose value changes."""
    return {field: value for field, value in wanted.items() if value != (node.raw.get(field) or type(value)())}


def is_same(node: Node, other: Node, fields: Mapping[str, Any]) -> bool:
    """Return whether two states of a node are equal in these fields; empty equals absent."""
    return all(_items(field, node.raw.get(field)) == _items(field, other.raw.get(field)) for field in fields)


def restored_node(now: Node, *, read: Node, sent: Mapping[str, Any], overwritten: Node) -> Node:
    """Return the node as it would be if our write had not been, with what another client wrote between our read and our write.

    `read` is the node that our write was based on, `sent` the fields that we wrote, `overwritten` the node as the other client
    left it, and `now` the node after our write. What was changed after our write stays.
    """
    fields = dict(now.raw)
    for field, value in sent.items():
        ours, theirs, before = (
            _items(field, each) for each in (value, overwritten.raw.get(field), read.raw.get(field))
        )
        found = _items(field, now.raw.get(field))
        for key in [*before, *theirs, *(key for key in ours if key not in theirs)]:
            was_changed = theirs.get(key) != before.get(key) or ours.get(key) != before.get(key)
            if was_changed and found.get(key) == ours.get(key):
                found.pop(key, None)
                if key in theirs:
                    found[key] = theirs[key]
        fields[field] = _value(field, found)
    return Node(now.name, fields)


def differing_fields(node: Node, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a node does not have yet."""
    return {
        field: value for field, value in fields.items() if _items(field, value) != _items(field, node.raw.get(field))
    }


def _items(field: str, value: Any) -> dict[str, Any]:  # of the API, as the other values here
    """Return the parts of a field by their keys."""
    match field:
        case "tags":
            return {tag: tag for tag in value or ()}
        case "dataDisks":
            # A link and a path name the same disk.
            return {(source := str(disk["sourceDisk"]))[source.find("projects/") :]: disk for disk in value or ()}
        case "labels" | "metadata":
            return dict(value or {})
        case _:  # changed as a whole
            return {field: value} if value else {}


def _value(field: str, items: Mapping[str, Any]) -> Any:
    match field:
        case "tags" | "dataDisks":
            return list(items.values())
        case "labels" | "metadata":
            return dict(items)
        case _:
            return items.get(field)

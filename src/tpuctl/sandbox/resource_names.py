"""Parse resource names: `projects/P/locations/Z/nodes/N`."""

from __future__ import annotations

from typing import NamedTuple

from tpuctl.sandbox.refusals import invalid

ANYWHERE = "-"


class ResourceName(NamedTuple):
    """The parts of a name; `resource_id` is empty for a location."""

    project: str
    zone: str
    resource_id: str = ""


def parse(name: str) -> ResourceName:
    """Return the parts of a resource name. Raises `ApiError` 400 for an invalid name."""
    parts = name.split("/")
    if len(parts) not in {4, 6} or parts[0] != "projects" or parts[2] != "locations" or not all(parts):
        raise invalid(f"Invalid resource field value in the request: {name!r}.")
    return ResourceName(parts[1], parts[3], parts[5] if len(parts) == 6 else "")

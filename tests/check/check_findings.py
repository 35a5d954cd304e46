"""Commands and parsed findings for the tests of `tpuctl check`."""

from __future__ import annotations

import json
from typing import Any

from tests.lifecycle import ZONE

V4 = ("check", "v4-8", "--zone", ZONE)
V6E = ("check", "v6e-8", "--zone", "europe-west4-a")


def findings(out: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the findings of a check by id and subject."""
    return {(entry["id"], entry["subject"]): entry for entry in json.loads(out)["findings"]}


def levels(out: str) -> dict[str, set[str]]:
    """Return the ids of each level that is not ok."""
    found: dict[str, set[str]] = {}
    for entry in json.loads(out)["findings"]:
        if entry["level"] != "ok":
            found.setdefault(entry["level"], set()).add(entry["id"])
    return found

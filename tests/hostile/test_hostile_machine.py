"""Settings of the machine that cannot be: time zones, and places for files. Each is one error or has no effect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import Console, Sandbox

# A process of its own, because the C library keeps the zone for the whole process.
PROGRAM: Final = """
import json, os, sys, time
from datetime import UTC, datetime, time as day
from tpuctl.durations import local_time
from tpuctl.nodes.time_limits import next_moment
found = {}
for zone in json.loads(sys.argv[1]):
    os.environ["TZ"] = zone
    time.tzset()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    found[zone] = [local_time(noon).isoformat(), next_moment(day(18), noon).isoformat()]
print(json.dumps(found))
"""
ZONES: Final = {
    "UTC+99": ["2026-01-01T12:00:00+00:00", "2026-01-01T18:00:00+00:00"],
    "UTC-24": ["2026-01-01T12:00:00+00:00", "2026-01-01T18:00:00+00:00"],
    "XXX-23:59": ["2026-01-02T11:59:00+23:59", "2026-01-01T18:01:00+00:00"],
    "Europe/Nowhere": ["2026-01-01T12:00:00+00:00", "2026-01-01T18:00:00+00:00"],
    "\U0001f600": ["2026-01-01T12:00:00+00:00", "2026-01-01T18:00:00+00:00"],
    "CET-1": ["2026-01-01T13:00:00+01:00", "2026-01-01T17:00:00+00:00"],
}


def test_impossible_time_zone_is_utc() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*ZONES])], capture_output=True, text=True, check=False
    )

    assert (done.stderr, json.loads(done.stdout or "{}")) == ("", ZONES)


PLACES: Final = (
    *("state/sandbox/journal", "state/sandbox/leases", "state/trusted", "state/sandbox/checked.json"),
    *("home/.ssh/tpuctl_config", "home/.config/tpuctl"),
)
COMMANDS: Final = (
    ("up", "trainer", "--zone", "us-central2-b", "--no-wait"),
    ("history", "trainer"),
    ("history", "nosuch"),
    ("ssh-config", "trainer", "--yes"),
    ("config", "set", "zone", "us-central2-b"),
    ("down", "trainer", "--yes"),
)


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def to_proc(path: Path) -> None:
    path.symlink_to("/proc")


def as_a_file(path: Path) -> None:
    path.write_text("x")


def as_a_folder(path: Path) -> None:
    (path / "x").mkdir(parents=True)


@pytest.mark.parametrize("make", [to_itself, to_proc, as_a_file, as_a_folder], ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_place_that_cannot_be_used_ends_in_no_traceback(
    tpuctl: Console, sandbox: Sandbox, tmp_path: Path, place: str, make: Callable[[Path], None]
) -> None:
    sandbox.add_node("trainer", zone="us-central2-b")
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)

    ends = {" ".join(words[:2]): tpuctl(*words)[1:] for words in COMMANDS}

    # A failure is one error.
    assert {name: code for name, (err, code) in ends.items() if code and err.count("error: ") != 1} == {}

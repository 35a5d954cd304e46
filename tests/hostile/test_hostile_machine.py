"""Settings of the machine that cannot be: time zones, and places for files. Each is one error or has no effect."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

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

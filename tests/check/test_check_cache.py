"""The cache file of recent checks: ten minutes, a hundred entries; invalid contents are ignored."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tpuctl.check.gate import CheckCache
from tpuctl.clock import ManualClock
from tpuctl.durations import format_timestamp


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "checked.json"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, ["x"]), (599, ["x"]), (600, None), (601, None), (-1, None)], ids=str
)
def test_cache_entry_lasts_ten_minutes(path: Path, clock: ManualClock, seconds: int, expected: Any) -> None:
    """An entry from the future was written with another clock, and is ignored."""
    at = format_timestamp(clock.now() - timedelta(seconds=seconds))
    path.parent.mkdir()
    path.write_text(json.dumps({"key": {"at": at, "said": ["x"]}}))

    assert CheckCache(path, clock).get("key") == expected


def test_cache_keeps_one_value_per_key(path: Path, clock: ManualClock) -> None:
    checked = CheckCache(path, clock)
    checked.put("a", ["x"])
    checked.put("b", [])
    clock.sleep(timedelta(minutes=5))
    checked.put("a", ["y"])

    assert [CheckCache(path, clock).get(key) for key in ("a", "b", "c")] == [["y"], [], None]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["checked.json"]
    clock.sleep(timedelta(minutes=5))
    checked.put("d", [])
    assert list(json.loads(path.read_text())) == ["a", "d"]


def test_cache_keeps_the_last_hundred(path: Path, clock: ManualClock) -> None:
    checked = CheckCache(path, clock)
    for number in range(102):
        checked.put(str(number), number)

    assert list(json.loads(path.read_text())) == [str(number) for number in range(2, 102)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"key": 3}',
        '{"key": []}',
        '{"key": {}}',
        '{"key": {"said": []}}',
        '{"key": {"at": 3, "said": []}}',
        '{"key": {"at": "yesterday", "said": []}}',
        '{"key": {"at": "2026-01-01T00:00:00Z"}}',
        "\udcff",
    ],
)
def test_cache_unreadable_file_is_ignored(path: Path, clock: ManualClock, text: str) -> None:
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    checked = CheckCache(path, clock)

    assert checked.get("key") is None
    checked.put("key", ["x"])
    assert checked.get("key") == ["x"]


def test_cache_unwritable_file_is_no_error(path: Path, clock: ManualClock) -> None:
    path.parent.write_text("a file where the folder should be")
    checked = CheckCache(path, clock)

    checked.put("key", [])

    assert checked.get("key") is None

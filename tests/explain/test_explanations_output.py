"""What is shown of an explanation: a page for a person, rows for a pipe, fields for scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.explain.reported import BEGAN, message, place, scan_of, sighting
from tpuctl.explain.conclusion import conclude
from tpuctl.explain.device_memory import MemoryAllocation, MemoryUsage
from tpuctl.explain.explanation_rendering import (
    explanation_rows,
    explanation_to_json,
    first_failed_worker,
    render_explanation,
    render_suspects,
)
from tpuctl.explain.messages import CheckFirst, MessageRole

if TYPE_CHECKING:
    from tpuctl.explain.conclusion import Explanation
    from tpuctl.explain.log_lines import LogPlace

DISK = message("disk-full", meaning="a disk is full", remedy=("remove what is old", "attach a disk"), topics=("disk",))
HEARTBEAT = message(
    "heartbeat", MessageRole.SYMPTOM, check_first=CheckFirst.OTHER_WORKERS_LOG, meaning="a worker has died"
)
BENIGN = message("benign", MessageRole.HARMLESS)
FIRST = replace(place(812, minute=4, worker="3"), text="no space left\x1b[2J on device")
OTHER = place(4711, minute=124, worker="7")


def cascade() -> Explanation:
    """Return a disk that is full on worker 3, then on 7, what others see of it, and what is harmless."""
    return conclude(
        scan_of(
            sighting(BENIGN, place(1)),
            sighting(DISK, FIRST, OTHER, count=120, workers={"3": FIRST, "7": OTHER}, facts={"path": "/tmp"}),
            sighting(HEARTBEAT, place(900, minute=5, worker="1"), place(990, minute=6, worker="1"), count=3),
        )
    )


PAGE = """\
disk-full  worker 3, line 812
  a disk is full
  ~120, 10:04 to 12:04
  first on worker 3, then on 7
  812 │ no space left\\x1b[2J on device
  → remove what is old
  → attach a disk
  more: `tpuctl explain --topic disk`
  symptom: heartbeat  worker 1, line 900  ~3, 10:05 to 10:06
    a worker has died
    → fix heartbeat of NODE

harmless: `benign` (line 1)""".replace("~", "\N{MULTIPLICATION SIGN}")


def test_explanation_on_terminal_is_a_page() -> None:
    assert "\n".join(render_explanation(cascade(), width=100, colored=False)) == PAGE


def test_explanation_to_pipe_is_one_row_for_each_verdict() -> None:
    assert [[cell.text for cell in row] for row in explanation_rows(cascade())] == [
        [
            *("disk-full", "fix-training-code", "training-log", "high", "", "812", "120", "3"),
            *("a disk is full", "remove what is old; attach a disk"),
        ],
        [
            *("heartbeat", "fix-training-code", "training-log", "medium", "disk-full", "900", "3", "1"),
            *("a worker has died", "fix heartbeat of NODE"),
        ],
    ]


def test_explanation_json_has_all_fields() -> None:
    use = MemoryUsage(
        "hbm", used=3 << 30, limit=2 << 30, over=1 << 30, allocations=(MemoryAllocation(1 << 30, "f32[8,1]"),)
    )
    document = explanation_to_json(
        conclude(scan_of(sighting(replace(DISK, id="hbm-oom"), FIRST, memory=use, facts={"used": "3.00G"})))
    )
    (verdict,) = document.pop("verdicts")
    assert document == {"schemaVersion": 1, "harmless": [], "suspicious": [], "lines": 100_000, "bytes": 1}
    remedy = verdict.pop("remedy")
    assert "the program needs 3 GiB" in remedy[0]  # the advice that fits these numbers
    assert verdict == {
        "id": "hbm-oom",
        "action": "fix-training-code",
        "where": "training-log",
        "confidence": "high",
        "symptom_of": None,
        "facts": {
            "used": "3.00G",
            "space": "hbm",
            "used_bytes": 3 << 30,
            "limit_bytes": 2 << 30,
            "over_bytes": 1 << 30,
            "largest": [{"bytes": 1 << 30, "shape": "f32[8,1]", "operator": None, "padding_bytes": None}],
        },
        "first_line": 812,
        "count": 1,
        "meaning": "a disk is full",
        "why": None,
        "evidence": FIRST.text,
        "file": None,
        "worker": "3",
        "workers": [],
        "last_line": 812,
        "first_time": "2026-03-01T10:04:00Z",
        "last_time": "2026-03-01T10:04:00Z",
        "recovered_line": None,
        "retriable": False,
        "topics": ["disk"],
    }


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (place(1), place(1), "lines 1 to 1"),
        (place(1), place(9), "lines 1 to 9"),
        (place(1, minute=0), place(9), "lines 1 to 9"),
        (place(1, minute=0), place(9, minute=0), "10:00:00 to 10:00:00"),
        (place(1, minute=0), place(9, minute=0.5), "10:00:00 to 10:00:30"),
        (place(1, minute=0), place(9, minute=1), "10:00 to 10:01"),
        (place(1, minute=1), place(9, minute=0), "10:00 to 10:01"),
        (place(1, minute=0), replace(place(9), time=BEGAN.replace(day=2)), "2026-03-01 10:00 to 2026-03-02 10:00"),
    ],
)
def test_repeats_show_count_and_times(first: LogPlace, last: LogPlace, expected: str) -> None:
    explanation = conclude(scan_of(sighting(DISK, first, last, count=2)))
    assert f"  \N{MULTIPLICATION SIGN}2, {expected}" in list(render_explanation(explanation, width=100, colored=False))


def test_suspect_lines_are_numbered() -> None:
    odd = (place(7), replace(place(1234), text="boom\a"))
    explanation = conclude(scan_of(suspicious=odd))
    assert list(render_suspects(explanation, colored=False)) == ["   7  line 7", "1234  boom\\x07"]


def test_blamed_tasks_are_named() -> None:
    facts = {"task": "/job:jax_worker/replica:0/task:3", "tasks": "3, 5"}
    (conclusion,) = conclude(scan_of(sighting(HEARTBEAT, place(1), facts=facts))).conclusions

    page = list(
        render_explanation(conclude(scan_of(sighting(HEARTBEAT, place(1), facts=facts))), width=100, colored=False)
    )

    assert page[0].startswith("heartbeat  workers 3, 5, line 1")
    assert first_failed_worker(conclusion) == "3"

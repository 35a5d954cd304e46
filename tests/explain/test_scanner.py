"""What is found in a log, however it comes: in pieces, wrapped, marked with workers, interleaved, in JSON, in any encoding."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.explain.synthetic import BARRIER, BUSY, CHECK, GENERIC, KNOWN, OOM, RETRYING, found, scan
from tpuctl.explain.log_lines import MAX_EVIDENCE_LENGTH, LogLevel, LogPlace, ScanResult, Sighting, Suspect
from tpuctl.explain.scanner import LogReader

_BUSY = "RuntimeError: The TPU is already in use by process with pid 2718466. Not attempting to load libtpu.so"


def test_match_has_line_time_and_facts() -> None:
    log = f"start\nI0110 15:02:51.2 12 a.py:3] step 1\n2025-01-10 15:02:52,250 - train - ERROR - {_BUSY}\n"

    time = datetime(2025, 1, 10, 15, 2, 52, 250000)  # noqa: DTZ001  # the log names no zone
    place = LogPlace(3, _BUSY, time=time, level=LogLevel.ERROR, is_logged=True)
    assert replace(scan(log), endings=()) == ScanResult(
        (Sighting(BUSY, place, place, facts={"pid": "2718466"}),),
        (Suspect(place, score=9),),
        lines=3,
        size=len(log),
        is_binary=False,
    )


def test_repeats_are_counted_with_latest_counter() -> None:
    log = "".join(f"WARNING:tensorflow:Retrying ({count}/120).\nstep\n" for count in range(1, 6001))

    (retrying,) = scan(log).sightings

    assert (retrying.message, retrying.count, retrying.first.line, retrying.last.line) == (RETRYING, 6000, 1, 11999)
    assert retrying.facts == {"attempt": "6000", "attempts": "120"}
    assert (retrying.first.text, retrying.last.text) == ("Retrying (1/120).", "Retrying (6000/120).")


def test_first_of_two_messages_for_same_text_wins() -> None:
    assert found("Ran out of memory in memory space hbm") == {OOM.id: 1}
    assert found("Ran out of memory") == {GENERIC.id: 1}
    assert found("Ran out of memory. Ran out of memory in memory space hbm") == {OOM.id: 1, GENERIC.id: 1}


def test_matches_are_in_log_order() -> None:
    assert list(found(f"Retrying (1/2).\n{_BUSY}\nRan out of memory\n")) == [RETRYING.id, BUSY.id, GENERIC.id]


@pytest.mark.parametrize("width", [40, 57, 80])
@pytest.mark.parametrize("prefix", ["", "2024-01-01T10:00:00.123456789Z stdout F ", "[worker 3] ", "\x1b[31m"])
def test_message_wrapped_in_words_is_found_once_with_facts(width: int, prefix: str) -> None:
    for shift in range(0, 12, 3):
        text = "x" * shift + " " + _BUSY + " in this process because of it, and so on and on"
        lines = [prefix + text[start : start + width] for start in range(0, len(text), width)]

        (busy,) = scan("\n".join(["before", *lines, "after"])).sightings

        assert (busy.message, busy.count, dict(busy.facts)) == (BUSY, 1, {"pid": "2718466"})


def test_message_wrapped_between_words_is_found() -> None:
    assert found("RuntimeError: The TPU is already in use by\n    process with pid 12. Not\n") == {BUSY.id: 1}


def test_interleaved_workers_are_separated() -> None:
    log = "[0] The TPU is already\n[1] The TPU is\n[0] in use by process with pid 5\n[1] already in use by process with pid 6\n"

    (busy,) = scan(log).sightings

    assert (busy.count, busy.first.worker, dict(busy.facts)) == (2, "0", {"pid": "5"})
    assert {worker: place.line for worker, place in busy.workers.items()} == {"0": 1, "1": 2}


def test_match_names_first_worker() -> None:
    log = "".join(f"[{worker}] step 1\n" for worker in range(8)) + f"[5] {_BUSY}\n[2] {_BUSY}\n[5] {_BUSY}\n"

    (busy,) = scan(log).sightings

    assert {worker: place.line for worker, place in busy.workers.items()} == {"5": 9, "2": 10}


def test_following_lines_give_tasks_and_memory() -> None:
    log = (
        "Barrier timed out. Id: connect. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:1\n/job:jax_worker/replica:0/task:6\n"
        "Ran out of memory in memory space hbm. Used 19.46G of 15.48G hbm. Exceeded hbm capacity by 3.98G.\n"
    )

    barrier, oom = scan(log).sightings

    assert (barrier.message, dict(barrier.facts)) == (BARRIER, {"tasks": "1, 6"})
    assert oom.memory is not None
    assert (oom.memory.space, oom.memory.limit) == ("hbm", round(15.48 * 2**30))


def _entry(text: str | None, **more: Any) -> dict[str, Any]:
    labels = {"node_id": "trainer", "worker_id": "3"}
    return {"textPayload": text, "timestamp": "2025-01-10T10:00:00.5Z", "resource": {"labels": labels}, **more}


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (json.dumps(_entry(f"first\n{_BUSY}")), 1),
        ("{}\n" + json.dumps({**_entry(""), "textPayload": None, "jsonPayload": {"message": _BUSY}}) + "\n", 2),
        (json.dumps([_entry("fine"), _entry(_BUSY)], indent=2), 13),
        (json.dumps([_entry("a\nThe TPU is already in use\nby process with pid 2718466.")], indent=2), 3),
    ],
    ids=["a record a line", "nested", "an array over many lines", "line ends inside"],
)
def test_json_records_give_worker_and_time(log: str, line: int) -> None:
    (busy,) = scan(log).sightings

    assert (busy.first.line, busy.first.worker, busy.first.time) == (
        line,
        "3",
        datetime(2025, 1, 10, 10, 0, 0, 500000, UTC),
    )
    assert busy.facts == {"pid": "2718466"}


@pytest.mark.parametrize(
    "data",
    [
        _BUSY.encode("utf-16"),
        b"\xff\xfe\0\0" + _BUSY.encode("utf-32-le"),
        b"\xfe\xff" + f"a\r\n{_BUSY}\r\n".encode("utf-16-be"),
        b"\xef\xbb\xbf" + _BUSY.encode(),
        b"\xe4\xff\n" + _BUSY.encode() + b"\xff\xfe",
        _BUSY.replace(" ", "  ").replace("n", "n\0").encode(),
        b"10%|#   |\r20%|##  |\r" + _BUSY.encode() + b"\r30%|### |\n",
        _BUSY.replace("pid", "\r\npid").encode(),
        _BUSY.replace("in use", "\x1b[1min\x1b[0m use").encode(),
    ],
    ids=["utf-16", "utf-32", "utf-16-be", "bom", "broken", "nul", "progress", "crlf", "colours"],
)
def test_reader_accepts_any_encoding(data: bytes) -> None:
    assert found(data) == {BUSY.id: 1}


@pytest.mark.parametrize(
    ("data", "is_binary"),
    [
        (b"", False),
        (gzip.compress(b"step\n" * 9), True),
        (bytes(range(256)) * 40, True),
        ("größer ≥ 12 │\n".encode() * 9, False),
        (b"step\n" * 900 + b"\0" * 64, False),
    ],
    ids=["empty", "gzip", "bytes", "letters", "a torn end"],
)
def test_reader_detects_binary_files(data: bytes, is_binary: bool) -> None:
    assert replace(scan(data), endings=()) == ScanResult(
        (),
        (),
        lines=data.count(b"\n") + (not data.endswith(b"\n") and data != b""),
        size=len(data),
        is_binary=is_binary,
    )


def test_endless_line_needs_bounded_memory() -> None:
    data = b"ab " * 70_000 + _BUSY.encode() + b" cd" * 70_000

    (busy,) = scan(data).sightings

    assert (busy.first.line, busy.count, len(busy.first.text)) == (1, 1, MAX_EVIDENCE_LENGTH)
    assert "already in use" in busy.first.text


def test_feed_after_so_far_continues() -> None:
    reader = LogReader(KNOWN)
    reader.feed(b"The TPU is already in use by proc")
    assert reader.so_far().sightings == ()
    reader.feed(b"ess with pid 7.\n")
    first = reader.so_far()
    assert [sighting.message for sighting in first.sightings] == [BUSY]
    assert reader.so_far() == first


def test_suspect_lines_are_kept_once_each() -> None:
    log = (
        "step 1\n0 errors so far\nfailed to open a\nfailed to open b\n"
        "ValueError: bad shape (3,)\nValueError: bad shape (4,)\n"
    )

    assert [one.place.line for one in scan(log).suspects] == [5, 3, 4]


_FILLER = [
    "step {0} loss 0.1\n",
    "INFO:tensorflow:saved\n",
    "[3] Retrying ({0}/9).\n",
    "\n",
    '{{"message": "x {0}"}}\n',
    "Ran out of\n",
]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 32))
def test_result_is_independent_of_pieces(seed: int) -> None:
    random = Random(seed)  # noqa: S311  # which pieces they are does not matter
    parts = [random.choice(_FILLER).format(random.randrange(99)) for _ in range(random.choice([40, 7_000]))]
    for text in (
        _BUSY + "\n",
        "Ran out of\nmemory in memory\nspace hbm\n",
        "[1] Ran out of memory\n",
        CHECK.match + "\n",
    ):
        parts.insert(random.randrange(len(parts)), text)
    data = "".join(parts).encode()
    reader = LogReader(KNOWN)
    at = 0
    while at < len(data):
        size = random.choice([1, 7, 1000, 50_000, 400_000])
        reader.feed(data[at : at + size])
        at += size

    assert reader.so_far() == scan(data)
    assert reader.so_far().sightings


@pytest.mark.parametrize("offset", range(0, 120, 7))
def test_message_across_blocks_is_found_once(offset: int) -> None:
    for block in (128 * 1024, 2 * 128 * 1024):
        before = ("y" * 63 + "\n") * (block // 64 - 1) + "z" * (block % 64 + offset // 2) + "\n"
        log = before + "The TPU is already\nin use by process\nwith pid 99\n" + ("step\n" * 5_000)
        (busy,) = scan(log).sightings
        assert (busy.count, dict(busy.facts)) == (1, {"pid": "99"})


def test_task_at_barrier_is_not_blamed() -> None:
    log = (
        "Barrier timed out. Id: shutdown. Please look at the task logs.\n# of tasks that reached the barrier: 3/4.\n"
        "The first task at the barrier: /job:jax_worker/replica:0/task:0. Some timed out task names:\n"
        "/job:jax_worker/replica:0/task:2\n"
    )

    (barrier,) = scan(log).sightings

    assert dict(barrier.facts)["tasks"] == "2"

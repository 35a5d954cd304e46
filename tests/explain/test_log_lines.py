"""What stands before a message: each form of header, with its worker and its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tpuctl.explain.log_lines import NO_HEADER, has_worker_numbers, parse_header, parse_time, worker_name


def _at(*parts: int, zone: timezone | None = None) -> datetime:
    return datetime(*parts, tzinfo=zone)  # type: ignore[arg-type,misc]  # year, month, day and so on


_NO_ZONE = _at(2025, 1, 10, 15, 2, 51)


@pytest.mark.parametrize(
    ("header", "worker", "time"),
    [
        ("", None, None),
        # --- times
        ("2025-01-10T15:02:51Z ", None, _at(2025, 1, 10, 15, 2, 51, zone=UTC)),
        ("2025-01-10 15:02:51 ", None, _NO_ZONE),
        ("2025-01-10 15:02:51.5: ", None, _at(2025, 1, 10, 15, 2, 51, 500000)),
        ("[2025-01-10 15:02:51,143] ", None, _at(2025, 1, 10, 15, 2, 51, 143000)),
        ("2025-01-10T15:02:51.1234567Z ", None, _at(2025, 1, 10, 15, 2, 51, 123456, zone=UTC)),
        ("2025-01-10T15:02:51+05:30 ", None, _at(2025, 1, 10, 15, 2, 51, zone=timezone(timedelta(hours=5.5)))),
        ("2025-01-10T15:02:51-0800 ", None, _at(2025, 1, 10, 15, 2, 51, zone=timezone(timedelta(hours=-8)))),
        ("2025/01/10 15:02:51 ", None, _NO_ZONE),
        ("2025-13-10 15:02:51 ", None, None),
        # --- programs
        ("2019-01-13 03:15:46.904944: W tensorflow/core/rpc/grpc.cc:349] ", None, _at(2019, 1, 13, 3, 15, 46, 904944)),
        ("E0110 15:02:51.275101 1234 file.cc:12] ", None, None),
        ("I0000 00:00:1649423660.000000 1924758 f236.cc:165] ", None, _at(2022, 4, 8, 13, 14, 20, zone=UTC)),
        ("2025-01-10 15:02:51,000 - train.loop - ERROR - ", None, _NO_ZONE),
        ("2025-01-10 15:02:51 ERROR ", None, _NO_ZONE),
        ("2025-01-10 15:02:51 [INFO] ", None, _NO_ZONE),
        ("WARNING:2025-01-10 15:02:51,000:jax._src.xla_bridge:940: ", None, _NO_ZONE),
        ("INFO:tensorflow:", None, None),
        ("WARNING:absl:", None, None),
        ("Jan 10 15:02:51 t1v-n-abc-w-3 python[123]: ", "3", None),
        ("Jan 10 15:02:51 laptop kernel: ", None, None),
        ("[Fri Jan 10 15:02:51 2025] ", None, _NO_ZONE),
        ("[ 1234.567890] ", None, None),
        ("2025-01-10T15:02:51.000000000Z stdout F ", None, _at(2025, 1, 10, 15, 2, 51, zone=UTC)),
        ("2025-01-10T15:02:51Z stderr F 2025-01-10 15:02:52 - a - INFO - ", None, _at(2025, 1, 10, 15, 2, 52)),
        # --- workers
        ("[worker 3] ", "3", None),
        ("[worker-3] ", "3", None),
        ("worker-3: ", "3", None),
        ("Worker 12: ", "12", None),
        ("w3| ", "3", None),
        ("[trainer-3] ", "trainer-3", None),
        ("t1v-n-0f1a2b3c-w-3 ", "3", None),
        ("t1v-n-0f1a2b3c-w-3: ", "3", None),
        ("(TrainWorker pid=123, ip=10.0.0.3) ", "10.0.0.3", None),
        ("(pid=123) ", None, None),
        ("[pod/train-job-3/main] ", "3", None),
        ("train-3  | ", "train-3", None),
        ("[rank3]:", "3", None),
        ("[worker 3] 2025-01-10 15:02:51 ", "3", _NO_ZONE),
        ("2025-01-10 15:02:51 [worker 3] ", "3", _NO_ZONE),
        ("2025-01-10 15:02:51 10.164.0.29 [3] ", "3", _NO_ZONE),
        ("[2025-01-10 15:02:51][worker 2] ", "2", _NO_ZONE),
        ("[2025-01-10 15:02:51] [worker 2] ", "2", _NO_ZONE),
        ("[1,2]<stderr>:", "2", None),
        ("[1,12]<stdout>: ", "12", None),
        ("2025-01-10T15:02:51Z t1v-n-abc-w-7 python[1]: ", "7", _at(2025, 1, 10, 15, 2, 51, zone=UTC)),
    ],
)
def test_parse_header_ends_before_message(header: str, worker: str | None, time: datetime | None) -> None:
    found = parse_header(f"{header}Something: failed".encode(), counted=False)

    assert (found.end, found.worker, found.time) == (len(header), worker, time)


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: (gcloud.compute.tpus.tpu-vm.ssh) Could not SSH",
        "[1] 12345",
        "3: item",
        "[255].",
        "ssh: connect to host 10.0.0.3 port 22: Connection timed out",
        "RuntimeError: x",
        "#0 0x7f00 in main",
        "worker 3 failed",
        "E tensor",
        "[[node a]]",
    ],
)
def test_parse_header_without_header_is_empty(line: str) -> None:
    assert parse_header(line.encode(), counted=False) == NO_HEADER


@pytest.mark.parametrize(
    ("line", "worker"),
    [
        ("[3] x", "3"),
        ("[12]  x", "12"),
        ("3: x", "3"),
        ("[03] x", "3"),
        ("2025-01-10 15:02:51 [2] x", "2"),
        ("[2025-01-10 15:02:51] [2] x", "2"),
        ("2025-01-10 15:02:51 2: x", "2"),
        ("2025-01-10 15:02:51,143 2: x", "2"),
        ("[worker 1] 3: x", "1"),
        ("[1] [3] x", "1"),
    ],
)
def test_number_before_most_lines_is_the_worker(line: str, worker: str) -> None:
    assert parse_header(line.encode(), counted=True).worker == worker


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["[0] a", "[1] b"], True),
        (["[0] a"], True),
        (["[0] a", "", "[1] b", "note"], True),
        (["[0] a", "b", "c"], False),
        (["0: a", "1: b"], True),
        (["0: a"], False),
        (["0: a", "1: b", "c"], False),
        (["2025-01-10 15:02:51 [0] a", "2025-01-10 15:02:51 [1] b"], True),
        (["2025-01-10 15:02:51 0: a", "2025-01-10 15:02:51 1: b"], True),
        (["2025-01-10 15:02:51 a", "2025-01-10 15:02:51 1: b"], False),
        (["2025-01-10 15:02:51 3: a"], False),
        (["2025-01-10 15:02:51 [12345] a", "2025-01-10 15:02:52 [12345] b"], False),
        ([""], False),
    ],
)
def test_has_worker_numbers_needs_most_lines(lines: list[str], expected: bool) -> None:
    assert has_worker_numbers([line.encode() for line in lines]) is expected


@pytest.mark.parametrize(
    ("name", "kind", "worker"),
    [
        ("t1v-n-abc-w-3", "", "3"),
        ("t1v-n-abc-w-3.us-central2-b", "", "3"),
        ("worker-4", "", "4"),
        ("trainer-3", "named", "trainer-3"),
        ("train-3", "pod", "3"),
        ("laptop", "syslog", None),
        ("7", "word", "7"),
    ],
)
def test_worker_name_with_number_is_the_number(name: str, kind: str, worker: str | None) -> None:
    assert worker_name(name, kind) == worker


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2025-02-30 00:00:00", "iso"),
        ("9" * 10 + ".1" * 2, "epoch"),
        ("Feb 30 00:00:00 2025", "dmesg"),
        ("soon", "iso"),
    ],
)
def test_parse_invalid_time_is_none(text: str, form: str) -> None:
    assert parse_time(text, form) is None

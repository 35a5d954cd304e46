"""What is concluded from what a log holds: causes before symptoms, the oldest first; quotes and what was over last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.explain.reported import message, place, scan_of, sighting
from tpuctl.explain.conclusion import Confidence, conclude, merge_scans
from tpuctl.explain.log_endings import LogEnding
from tpuctl.explain.log_lines import LogLevel, ScanResult, Sighting
from tpuctl.explain.messages import Action, CheckFirst, Message, MessageRole
from tpuctl.explain.scanner import LogReader

MEMORY = message("memory")
DISK = message("disk")
SOCKET = message("socket", MessageRole.SYMPTOM, explained_by=("memory",), check_first=CheckFirst.NODE_STATE)
HEARTBEAT = message("heartbeat", MessageRole.SYMPTOM, check_first=CheckFirst.OTHER_WORKERS_LOG)
FLUSH = message("flush", MessageRole.SYMPTOM, explained_by=("upload",))
UPLOAD = message("upload")
COMPILE = message("compile", MessageRole.WRAPPER)
CANCELLED = message("cancelled", MessageRole.WRAPPER, explained_by=("compile",))
RETRYING = message("retrying", MessageRole.PROGRESS)
QUEUE = message("queue")
INITIALIZED = message("initialized", MessageRole.RECOVERY, ends=("retrying", "queue", "socket"))
BENIGN = message("benign", MessageRole.HARMLESS)


RESET = message("reset", action=Action.RESTART_NODE)
NODE = message("node", action=Action.RECREATE_NODE, of_the_node=True, check_first=CheckFirst.NODE_STATE)
SLOW = message("slow", lasts=True)
SEVERAL = message("several", check_first=CheckFirst.SEVERAL_CAUSES)


def verdicts(*sightings: Sighting) -> list[tuple[str, str | None, str]]:
    """Return id, what it is a symptom of, and confidence, in order."""
    conclusions = conclude(scan_of(*sightings)).conclusions
    return [(one.id, one.symptom_of, str(one.confidence)) for one in conclusions]


@pytest.mark.parametrize(
    ("sightings", "expected"),
    [
        pytest.param((), [], id="nothing"),
        pytest.param((sighting(MEMORY, place(5)),), [("memory", None, "high")], id="a cause"),
        pytest.param((sighting(BENIGN, place(5)),), [], id="harmless is no verdict"),
        pytest.param((sighting(INITIALIZED, place(5)),), [], id="a recovery is no verdict"),
        pytest.param((sighting(SOCKET, place(5)),), [("socket", None, "medium")], id="only a symptom"),
        pytest.param((sighting(COMPILE, place(5)),), [("compile", None, "medium")], id="only a wrapper"),
        pytest.param(
            (sighting(DISK, place(9)), sighting(MEMORY, place(5))),
            [("memory", None, "high"), ("disk", None, "high")],
            id="two causes, in the order of the log",
        ),
        pytest.param(
            (sighting(MEMORY, place(5, minute=9)), sighting(DISK, place(9, minute=5))),
            [("disk", None, "high"), ("memory", None, "high")],
            id="by time where the newest line is first",
        ),
        pytest.param(
            (sighting(MEMORY, place(5, minute=9)), sighting(DISK, place(9))),
            [("memory", None, "high"), ("disk", None, "high")],
            id="by line where only one tells the time",
        ),
        pytest.param(
            (sighting(SOCKET, place(5)), sighting(MEMORY, place(9))),
            [("memory", None, "high"), ("socket", "memory", "high")],
            id="a cause may be logged after its symptom",
        ),
        pytest.param(
            (sighting(SOCKET, place(5)), sighting(MEMORY, place(406))),
            [("memory", None, "high"), ("socket", None, "medium")],
            id="but not far after",
        ),
        pytest.param(
            (sighting(SOCKET, place(5)), sighting(MEMORY, place(405))),
            [("memory", None, "high"), ("socket", "memory", "high")],
            id="as far as that",
        ),
        pytest.param(
            (sighting(MEMORY, place(5, minute=0)), sighting(SOCKET, place(9, minute=60))),
            [("memory", None, "high"), ("socket", "memory", "high")],
            id="an hour later",
        ),
        pytest.param(
            (sighting(MEMORY, place(5, minute=0)), sighting(SOCKET, place(9, minute=60.1))),
            [("memory", None, "high"), ("socket", None, "medium")],
            id="more than an hour later",
        ),
        pytest.param(
            (sighting(MEMORY, place(5, minute=0), place(8, minute=90)), sighting(SOCKET, place(9, minute=100))),
            [("memory", None, "high"), ("socket", "memory", "high")],
            id="an hour after the last time",
        ),
        pytest.param(
            (sighting(SOCKET, place(5, minute=0)), sighting(MEMORY, place(9, minute=2))),
            [("memory", None, "high"), ("socket", "memory", "high")],
            id="logged two minutes after",
        ),
        pytest.param(
            (sighting(SOCKET, place(5, minute=0)), sighting(MEMORY, place(9, minute=2.1))),
            [("memory", None, "high"), ("socket", None, "medium")],
            id="logged more than two minutes after",
        ),
        pytest.param(
            (sighting(DISK, place(5)), sighting(HEARTBEAT, place(9))),
            [("disk", None, "high"), ("heartbeat", "disk", "medium")],
            id="any failure may be behind what others see of it",
        ),
        pytest.param(
            (sighting(DISK, place(5)), sighting(INITIALIZED, place(7)), sighting(HEARTBEAT, place(9))),
            [("disk", None, "high"), ("heartbeat", None, "medium")],
            id="but not where the program worked again between them",
        ),
        pytest.param(
            (sighting(DISK, place(5)), sighting(FLUSH, place(9))),
            [("disk", None, "high"), ("flush", None, "medium")],
            id="but not behind what has its own causes",
        ),
        pytest.param(
            (sighting(CANCELLED, place(4)), sighting(MEMORY, place(5)), sighting(COMPILE, place(9))),
            [("memory", None, "high"), ("cancelled", "memory", "high"), ("compile", "memory", "high")],
            id="wrappers carry the cause that is near",
        ),
        pytest.param(
            (sighting(MEMORY, place(5)), sighting(DISK, place(500)), sighting(COMPILE, place(510))),
            [("memory", None, "high"), ("disk", None, "high"), ("compile", "disk", "high")],
            id="the nearest of two",
        ),
        pytest.param(
            (sighting(MEMORY, place(5), place(8)), sighting(COMPILE, place(9)), sighting(DISK, place(10))),
            [("memory", None, "high"), ("disk", None, "high"), ("compile", "memory", "high")],
            id="of two equally near the one logged first",
        ),
        pytest.param(
            (sighting(MEMORY, place(5)), sighting(COMPILE, place(406))),
            [("memory", None, "high"), ("compile", None, "medium")],
            id="a wrapper far from any cause",
        ),
        pytest.param(
            (sighting(RETRYING, place(5)),), [("retrying", None, "medium")], id="something that is still being tried"
        ),
        pytest.param((sighting(RETRYING, place(5)), sighting(INITIALIZED, place(9))), [], id="a retry that succeeded"),
        pytest.param(
            (sighting(INITIALIZED, place(5)), sighting(RETRYING, place(9))),
            [("retrying", None, "medium")],
            id="a retry after the success",
        ),
        pytest.param(
            (sighting(RETRYING, place(5), place(20)), sighting(INITIALIZED, place(9))),
            [("retrying", None, "medium")],
            id="a success between two retries",
        ),
        pytest.param(
            (sighting(QUEUE, place(5)), sighting(INITIALIZED, place(9))),
            [("queue", None, "medium")],
            id="a cause that was over",
        ),
        pytest.param(
            (sighting(QUEUE, place(5)), sighting(INITIALIZED, place(9)), sighting(MEMORY, place(20))),
            [("memory", None, "high"), ("queue", None, "medium")],
            id="what was over comes after what was not",
        ),
        pytest.param(
            (sighting(DISK, place(5), count=3, is_quoted=True),), [("disk", None, "low")], id="only quoted"
        ),
        pytest.param(
            (sighting(MEMORY, place(5), is_quoted=True), sighting(SOCKET, place(9))),
            [("socket", None, "medium"), ("memory", None, "low")],
            id="a quote explains nothing",
        ),
    ],
)  # fmt: skip
def test_conclude_sorts_and_links_causes(
    sightings: tuple[Sighting, ...], expected: list[tuple[str, str | None, str]]
) -> None:
    assert verdicts(*sightings) == expected


def test_conclude_binary_file_has_low_confidence() -> None:
    (one,) = conclude(replace(scan_of(sighting(DISK, place(5))), is_binary=True)).conclusions
    assert (str(one.confidence), one.why) == (
        "low",
        "this is not text but a program or data, which may only contain the message",
    )


def test_conclude_chain_names_first_cause() -> None:
    known = (sighting(UPLOAD, place(5)), sighting(FLUSH, place(6)), sighting(SOCKET, place(7)))
    assert verdicts(*known) == [
        ("upload", None, "high"),
        ("flush", "upload", "high"),
        ("socket", "upload", "medium"),
    ]


def test_conclude_fills_placeholders_from_known_facts_and_log() -> None:
    disk = replace(DISK, meaning="{path} of {node} is full", remedy=("clean {path} of {node}", "add {size}"))
    (one,) = conclude(scan_of(sighting(disk, place(3), facts={"path": "/tmp"})), known={"node": "trainer"}).conclusions
    assert one.meaning == "/tmp of trainer is full"
    assert one.remedy == ("clean /tmp of trainer", "add SIZE")


def test_conclude_recovered_failure_names_line() -> None:
    explanation = conclude(scan_of(sighting(SOCKET, place(5)), sighting(INITIALIZED, place(9))))
    assert explanation.conclusions == ()
    (harmless,) = explanation.harmless
    assert (harmless.id, harmless.recovered, harmless.why) == (
        "socket",
        place(9),
        "it recovered by itself: line 9 says `line 9`",
    )


def test_conclude_shows_suspicious_lines_only_without_verdict() -> None:
    odd = (place(7),)
    assert conclude(scan_of(suspicious=odd)).suspicious == odd
    assert conclude(scan_of(sighting(DISK, place(5)), suspicious=odd)).suspicious == ()
    assert conclude(scan_of(sighting(BENIGN, place(5)), suspicious=odd)).suspicious == odd


def logs() -> dict[str, ScanResult]:
    return {
        "worker-0.log": scan_of(sighting(HEARTBEAT, place(4))),
        "worker-1.log": scan_of(sighting(HEARTBEAT, place(2), place(8), count=2), sighting(DISK, place(900))),
    }


def test_merge_several_logs_finds_causes_across_files() -> None:
    conclusions = conclude(merge_scans(logs())).conclusions
    assert [(one.id, one.symptom_of) for one in conclusions] == [("disk", None), ("heartbeat", "disk")]
    heartbeat = conclusions[1].sighting
    assert (heartbeat.count, list(heartbeat.workers)) == (3, ["0", "1"])
    assert conclusions[0].sighting.first == replace(place(900), source="worker-1.log", worker="1")


def test_wrapper_has_no_cause_in_another_file() -> None:
    known = {"a": scan_of(sighting(COMPILE, place(4))), "b": scan_of(sighting(DISK, place(4)))}
    assert [(one.id, one.symptom_of) for one in conclude(merge_scans(known)).conclusions] == [
        ("disk", None),
        ("compile", None),
    ]


def test_confidence_values_are_a_contract() -> None:
    assert list(Confidence) == ["high", "medium", "low"]


_AT_5 = place(5)
_NOTED = replace(_AT_5, level=LogLevel.INFO)
_WARNED = replace(_AT_5, level=LogLevel.WARNING)
_RETRIES = replace(_WARNED, text="UNAVAILABLE: connect, retrying in 1s")
_GIVES_UP = replace(_AT_5, level=LogLevel.ERROR, text="UNAVAILABLE: connect, retrying in 1s")
_GOES_ON = replace(_AT_5, level=LogLevel.ERROR, text="Continuing without metrics: UNAVAILABLE: connect")


@pytest.mark.parametrize(
    ("failure", "ending", "expected"),
    [
        pytest.param(sighting(MEMORY, _AT_5), LogEnding(works=place(9)), [], id="works-after"),
        pytest.param(sighting(MEMORY, _AT_5), LogEnding(works=place(3)), ["memory"], id="worked-before"),
        pytest.param(sighting(MEMORY, _AT_5, place(12)), LogEnding(works=place(9)), ["memory"], id="again-later"),
        pytest.param(sighting(MEMORY, _AT_5), LogEnding("3", works=place(9)), ["memory"], id="another-worker"),
        pytest.param(sighting(MEMORY, _AT_5), LogEnding("3", steps=place(9)), [], id="all-workers-take-steps"),
        pytest.param(sighting(MEMORY, _AT_5), LogEnding(calm=place(9)), ["memory"], id="calm-after-an-error"),
        pytest.param(sighting(MEMORY, _WARNED), LogEnding(calm=place(9)), [], id="calm-after-a-warning"),
        pytest.param(sighting(NODE, _WARNED), LogEnding(calm=place(9)), ["node"], id="calm-without-the-node"),
        pytest.param(sighting(MEMORY, _WARNED), LogEnding(at_peace=place(9)), ["memory"], id="peace-after-a-warning"),
        pytest.param(sighting(MEMORY, _RETRIES), LogEnding(at_peace=place(9)), [], id="peace-after-a-retry"),
        pytest.param(sighting(MEMORY, _RETRIES), LogEnding(), ["memory"], id="retry-at-the-end"),
        pytest.param(sighting(MEMORY, _GIVES_UP), LogEnding(at_peace=place(9)), ["memory"], id="peace-after-an-error"),
        pytest.param(sighting(MEMORY, _GOES_ON), LogEnding(at_peace=place(9)), [], id="peace-after-going-on"),
        pytest.param(sighting(MEMORY, _GOES_ON), LogEnding(), ["memory"], id="going-on-at-the-end"),
        pytest.param(sighting(RETRYING, _NOTED), LogEnding(calm=place(9)), ["retrying"], id="calm-while-retrying"),
        pytest.param(sighting(SLOW, _AT_5), LogEnding(works=place(9)), ["slow"], id="lasts"),
        pytest.param(sighting(SLOW, _AT_5), LogEnding(works=place(9), is_done=True), [], id="lasted-until-the-end"),
    ],
)
def test_failure_is_over_if_its_worker_works_afterwards(
    failure: Sighting, ending: LogEnding, expected: list[str]
) -> None:
    explanation = conclude(scan_of(failure, endings=(ending,)))

    assert [one.id for one in explanation.conclusions] == expected
    assert [one.id for one in (*explanation.conclusions, *explanation.harmless)] == [failure.message.id]


def test_failure_on_two_workers_is_over_only_if_both_work() -> None:
    failure = sighting(MEMORY, place(5, worker="0"), place(6, worker="1"), workers={"0": place(5, worker="0")})
    both = (LogEnding("0", works=place(8, worker="0")), LogEnding("1", works=place(9, worker="1")))

    assert conclude(scan_of(failure, endings=both)).conclusions == ()
    assert conclude(scan_of(failure, endings=both[:1])).conclusions != ()


def test_known_failure_of_the_program_outranks_a_good_end() -> None:
    scan = scan_of(sighting(MEMORY, _AT_5), endings=(LogEnding(works=place(9)),))

    assert [one.id for one in conclude(scan, has_failed=True).conclusions] == ["memory"]


def test_quote_in_a_log_that_ends_well_is_harmless() -> None:
    quoted = sighting(MEMORY, _AT_5, is_quoted=True)

    assert conclude(scan_of(quoted, endings=(LogEnding(works=place(9), is_well=True),))).conclusions == ()
    assert [one.id for one in conclude(scan_of(quoted)).conclusions] == ["memory"]


@pytest.mark.parametrize(
    ("sightings", "ending", "expected"),
    [
        pytest.param((sighting(RESET, _AT_5),), LogEnding(), "high", id="last-word"),
        pytest.param((sighting(RESET, _AT_5), sighting(DISK, place(9))), LogEnding(), "medium", id="another-remedy"),
        pytest.param((sighting(MEMORY, _AT_5), sighting(DISK, place(9))), LogEnding(), "high", id="the-same-remedy"),
        pytest.param((sighting(RESET, _WARNED),), LogEnding(), "medium", id="destructive-warning"),
        pytest.param((sighting(NODE, _WARNED),), LogEnding(), "high", id="warning-about-the-node"),
        pytest.param((sighting(MEMORY, _WARNED),), LogEnding(), "high", id="warning"),
        pytest.param((sighting(RESET, _AT_5),), LogEnding(failure=place(30)), "medium", id="destructive-then-unknown"),
        pytest.param((sighting(RESET, _AT_5),), LogEnding(failure=place(7)), "high", id="in-the-same-error"),
        pytest.param((sighting(MEMORY, _AT_5),), LogEnding(failure=place(30)), "high", id="then-unknown"),
        pytest.param(
            (sighting(MEMORY, _AT_5),), LogEnding(failure=place(30), resumed=place(20)), "medium", id="worked-between"
        ),
        pytest.param((sighting(SEVERAL, _AT_5),), LogEnding(), "medium", id="several-causes"),
    ],
)
def test_high_confidence_is_for_what_ended_the_program(
    sightings: tuple[Sighting, ...], ending: LogEnding, expected: str
) -> None:
    assert str(conclude(scan_of(*sightings, endings=(ending,))).conclusions[0].confidence) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("launcher pid=4711, 4 chips", ("medium", "fix-training-code"), id="launcher"),
        pytest.param("(Worker pid=4711) loading weights", ("medium", "fix-training-code"), id="prefix"),
        pytest.param("INFO:     Started server process [4711]", ("medium", "fix-training-code"), id="server"),
        pytest.param("scheduler pid=4800 started by 4711", ("medium", "fix-training-code"), id="parent"),
        pytest.param("launcher pid=47110", ("high", "kill-stale-process"), id="another-number"),
        pytest.param("stale python3 of the last run: pid=4711", ("high", "kill-stale-process"), id="stale"),
        pytest.param("step 4711", ("high", "kill-stale-process"), id="no-process"),
    ],
)
def test_no_process_of_the_run_itself_is_to_be_killed(line: str, expected: tuple[str, str]) -> None:
    reader = LogReader()
    reader.feed(f"{line}\nRuntimeError: ABORTED: The TPU is already in use by process with pid 4711.\n".encode())

    scans = [reader.so_far(), merge_scans({"worker-0.log": reader.so_far()})]

    assert [(str(one.confidence), str(one.action)) for one in (conclude(scan).conclusions[0] for scan in scans)] == [
        expected
    ] * 2


def test_merge_keeps_the_end_of_each_log() -> None:
    failed = scan_of(sighting(MEMORY, _AT_5))
    works = scan_of(sighting(DISK, _AT_5), endings=(LogEnding(works=place(9)),))

    merged = conclude(merge_scans({"worker-0.log": failed, "worker-1.log": works}))

    assert [one.id for one in merged.conclusions] == ["memory"]
    assert [one.id for one in merged.harmless] == ["disk"]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        pytest.param(replace(HEARTBEAT, action=Action.NONE), ["heartbeat", "unrecognised-connection"], id="symptom"),
        pytest.param(replace(SEVERAL, action=Action.NONE), ["several", "unrecognised-connection"], id="several-causes"),
        pytest.param(COMPILE, ["compile", "unrecognised-connection"], id="wrapper"),
        pytest.param(HEARTBEAT, ["heartbeat"], id="symptom-with-an-action"),
        pytest.param(MEMORY, ["memory"], id="cause"),
    ],
)
def test_verdict_that_leaves_the_cause_open_has_a_guess_beside_it(failure: Message, expected: list[str]) -> None:
    telling = replace(place(99_990), text="frob.RpcError: UNAVAILABLE: frob channel closed")

    scan = scan_of(sighting(failure, place(99_000)), suspicious=(telling,))

    assert [one.id for one in conclude(scan).conclusions] == expected

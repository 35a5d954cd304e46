"""What a line without a known message is about, judged by its words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.explain.reported import place
from tpuctl.explain.conclusion import conclude
from tpuctl.explain.log_lines import Suspect
from tpuctl.explain.messages import Action
from tpuctl.explain.scanner import LogReader
from tpuctl.explain.suspect_lines import error_score
from tpuctl.explain.unrecognised import describe, guess, search_term, unrecognised_kinds


def _suspect(text: str, line: int = 1) -> Suspect:
    return Suspect(replace(place(line), text=text), error_score(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("preemption", "ray.exceptions.FrobError: node 10.0.0.7 was preempted"),
        ("preemption", "[frobctl] Cluster lost: the spot VM was reclaimed, failed over"),
        ("preemption", "ERROR: job stopped, preemption signal received"),
        ("quota", "ERROR: Quota 'FROBS_PER_REGION' exceeded. Limit: 8.0 in region us-central1."),
        ("quota", "frob.HttpError: 429 Too Many Requests"),
        ("capacity", "Error: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        ("capacity", "FailedScheduling: cannot place pod: 0/3 nodes are available: 3 Insufficient google.com/tpu."),
        ("device-busy", "FrobError: accelerator /dev/vfio/0 busy"),
        ("memory", "trainer exited with code 137"),
        ("memory", "./run.sh: line 3: 12 Killed"),
        ("permission", "FrobClientError: 403 Forbidden: caller lacks frob.jobs.create"),
        ("permission", "ERROR: Access denied to the frob repository"),
        ("connection", "frob.RpcError: UNAVAILABLE: frob channel closed"),
        ("connection", "ERROR: could not connect to frob server"),
        ("connection", "googleapiclient.errors.HttpError: <HttpError 503 when requesting frob>"),
        ("connection", "google.api_core.exceptions.ServiceUnavailable: 503 frob"),
        ("connection", "##[error]The runner frob lost communication with the server."),
        ("connection", 'cannot call webhook: no endpoints available for service "frob"'),
        (
            "permission",
            "Exporting failed, enable retry_on_failure: code = PermissionDenied desc = Permission frob denied",
        ),
        ("request", "google.api_core.exceptions.BadRequest: 400 POST https://frob.example: frobs are not applicable"),
        ("not-found", "google.api_core.exceptions.NotFound: 404 GET https://frob.example"),
        ("exception", "frob.client.Frobbed: seven"),
        ("not-found", "ERROR: failed to lookup frob"),
        ("request", "stderr: ERROR: (gcloud.frob.create) frob"),
        (
            "capacity",
            "cannot place pod: 0/3 nodes are available: 3 Insufficient frob. preemption: 0/3 nodes: not helpful.",
        ),
        ("exception", "E       AssertionError: shapes do not match"),
        ("not-found", "FrobError: image frob:latest not found"),
        ("not-found", "Couldn't find the frob config; cannot continue"),
        ("request", "FrobError: INVALID_ARGUMENT: frobs must be even"),
        ("request", '"code": 400, "message": "frob failed"'),
        ("exception", "FrobError: seven"),
        ("exception", "F0101 10:00:00.000000 12 frob.cc:7] Check failed: a == b"),
    ],
)
def test_kind_of_a_line(kind: str, text: str) -> None:
    found = guess([_suspect(text)], lines=1)

    assert found is not None
    assert found.message.id == f"unrecognised-{kind}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("W0101 10:00:00.000000 12 frob.cc:7] connection refused", id="warning-glog"),
        pytest.param("WARNING: frob quota exceeded", id="warning"),
        pytest.param("attempt 3 of 9 failed: connection refused", id="tried-again"),
        pytest.param("10.0.0.1 - - GET /frob failed 404 NOT_FOUND", id="request-to-a-server"),
        pytest.param("| 404 | NOT_FOUND | failed |", id="table"),
        pytest.param('RETRIED = ["UNAVAILABLE", "connection refused"]', id="source"),
        pytest.param("the run failed because of nothing in particular", id="no-kind"),
        pytest.param("the device is not in use; cannot be busy", id="negation"),
        pytest.param("found an invalid frob", id="too-little-like-an-error"),
        pytest.param("Warning Unhealthy Readiness probe failed: connection refused", id="probe"),
        pytest.param("message: node {{ $labels.node }} was preempted", id="template"),
        pytest.param("TF-TRT Warning: Could not find TensorRT", id="known-as-harmless"),
    ],
)
def test_lines_that_tell_nothing(text: str) -> None:
    assert guess([_suspect(text)], lines=1) is None


def test_specific_line_goes_before_a_general_one() -> None:
    """An exception says less than the line that names the quota."""
    found = guess([_suspect("FrobError: seven", 9), _suspect("quota of frobs exceeded", 3)], lines=9)

    assert found is not None
    assert (found.message.id, found.first.line) == ("unrecognised-quota", 3)


@pytest.mark.parametrize(("lines", "is_told"), [(201, True), (202, False)])
def test_exception_long_before_the_end_did_not_end_the_program(lines: int, is_told: bool) -> None:
    assert (guess([_suspect("FrobError: seven")], lines=lines) is not None) is is_told


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("FrobError: 404 NOT_FOUND: gs://bucket/a/b.ckpt, frob", "gs://bucket/a/b.ckpt"),
        ("PERMISSION_DENIED: Permission 'frob.jobs.create' denied on resource 'x'", "frob.jobs.create"),
        ("NOT_FOUND: Resource projects/p/locations/z/frobs/f was not found", "projects/p/locations/z/frobs/f"),
        ("FrobError: field 'frob_count' is not valid: INVALID_ARGUMENT", "frob_count"),
        ("FileNotFoundError: cannot open /mnt/data/frob.bin", "/mnt/data/frob.bin"),
        ("FrobError: seven", None),
    ],
)
def test_what_the_line_names(text: str, what: str | None) -> None:
    found = guess([_suspect(text)], lines=1)

    assert found is not None
    assert found.facts.get("what") == what
    assert describe(found) == found.message.meaning + (f": {what}" if what else "")


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("FrobError: rank 7 of 16 at 10.0.0.3:8476 failed", "FrobError rank of at failed"),
        ("cannot open '/home/ann/x' for ann@example.com (0xdeadbeef)", "cannot open for"),
        ("see https://example.com/a?b=c or gs://b/c: INVALID_ARGUMENT", "see or INVALID_ARGUMENT"),
    ],
)
def test_search_term_has_no_numbers_and_names(text: str, term: str) -> None:
    assert search_term(text) == term


def test_kinds_have_no_action() -> None:
    assert {kind.action for kind in unrecognised_kinds()} == {Action.NONE}


@pytest.mark.parametrize(
    ("frames", "raised_in"),
    [
        ((("/home/a/train.py", 3), ("/opt/lib/python3.11/site-packages/x.py", 9)), "/home/a/train.py:3"),
        ((("/opt/lib/python3.11/site-packages/x.py", 9),), "/opt/lib/python3.11/site-packages/x.py:9"),
        ((), None),
    ],
)
def test_origin_of_an_exception(frames: tuple[tuple[str, int], ...], raised_in: str | None) -> None:
    lines = ["Traceback (most recent call last):"]
    for file, line in frames:
        lines += [f'  File "{file}", line {line}, in f', "    g()"]
    reader = LogReader()
    reader.feed("\n".join(['  File "/other.py", line 1, in f', *lines, "FrobError: seven"]).encode())

    (suspect,) = reader.so_far().suspects
    assert suspect.origin == raised_in


@pytest.mark.parametrize("before", ["Exception ignored in: <function Frob.__del__ at 0x7f>", "--- Logging error ---"])
def test_exception_that_python_survives_is_no_suspect(before: str) -> None:
    reader, other = LogReader(), LogReader()
    traceback = 'Traceback (most recent call last):\n  File "frob.py", line 3, in f\nAssertionError: frob\n'
    reader.feed(f"{before}\n{traceback}".encode())
    other.feed(f"frob\n{traceback}".encode())

    assert "AssertionError: frob" not in [one.place.text for one in reader.so_far().suspects]
    assert [one.place.text for one in other.so_far().suspects] == ["AssertionError: frob"]


def test_line_that_ends_with_a_colon_has_its_reason() -> None:
    reader = LogReader()
    reader.feed(b"NotFoundError: From /job:worker/task:0:\nResource frob does not exist.\n")

    assert reader.so_far().suspects[0].place.text == (
        "NotFoundError: From /job:worker/task:0: Resource frob does not exist."
    )


@pytest.mark.parametrize(
    ("log", "ids"),
    [
        pytest.param("frob.RpcError: UNAVAILABLE: gone\nTraining finished.\n", [], id="ended-well"),
        pytest.param(
            "step 1\nTraining finished.\nfrob.RpcError: UNAVAILABLE: gone\n", ["connection"], id="error-after"
        ),
        pytest.param("frob.RpcError: UNAVAILABLE: gone\nthe job never finished\n", ["connection"], id="negation"),
        pytest.param(
            "frob.RpcError: UNAVAILABLE: gone\nTraining finished.\n" + "step 1\n" * 9,
            [],
            id="words-without-meaning-behind",
        ),
        pytest.param(
            "frob.RpcError: UNAVAILABLE: gone\nTraining finished.\n" + "waiting\n" * 99,
            ["connection"],
            id="not-at-the-end",
        ),
        pytest.param("frob: command not found\nI0101 10:00:00.0 7 a.py:3] frob\n", [], id="peace-after"),
        pytest.param("frob: command not found\nI0101 10:00:00.0 7 a.py:3] exiting\n", ["not-found"], id="no-peace"),
        pytest.param(
            "error: frob not found\nI0101 10:00:00.0 7 a.py:3] frob\n", ["not-found"], id="peace-after-an-error"
        ),
        pytest.param("error: frob not found\n" + "I0101 10:00:00.0 7 a.py:3] frob\n" * 3, [], id="calm-after-an-error"),
        pytest.param(
            "frob.RpcError: UNAVAILABLE: gone\nI0101 10:00:00.0 7 a.py:3] frob\n",
            ["connection"],
            id="peace-after-an-exception",
        ),
        pytest.param(
            "frob.RpcError: UNAVAILABLE: gone\n" + "I0101 10:00:00.0 7 a.py:3] frob\n" * 3,
            ["connection"],
            id="calm-after-an-exception",
        ),
        pytest.param("+ frob\nerror: frob not found\n+ a\n+ b\n+ c\n", [], id="script-that-goes-on"),
        pytest.param("+ a\n+ b\nerror: frob not found\n+ c\n", ["not-found"], id="script-that-ends"),
        pytest.param("+ frob\nerror: frob not found\n+ a\n+ b\n+ exit 1\n", ["not-found"], id="script-that-gives-up"),
        pytest.param(
            "[0] frob.RpcError: UNAVAILABLE: gone\n[1] step\n[0] step\n[1] Training finished.\n",
            ["connection"],
            id="another-worker",
        ),
    ],
)
def test_program_that_ended_well_has_no_guess(log: str, ids: list[str]) -> None:
    reader = LogReader()
    reader.feed(log.encode())

    assert [one.id for one in conclude(reader.so_far()).conclusions] == [f"unrecognised-{kind}" for kind in ids]


def test_connection_tried_again_goes_before_what_was_not_found() -> None:
    """pip tries the index again and again, and in the end finds no version."""
    tried = "WARNING: Retrying after connection broken: Failed to resolve name: Name resolution failed"

    found = guess([_suspect("ERROR: frob not found", 9), _suspect(tried, 3)], lines=9)

    assert found is not None
    assert (found.message.id, found.first.line) == ("unrecognised-connection", 3)


def test_mistake_in_a_program_is_an_exception_whatever_it_says() -> None:
    found = guess([_suspect("AttributeError: module 'random' has no attribute 'seed' (not found)")], lines=1)

    assert found is not None
    assert found.message.id == "unrecognised-exception"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param(
            "NotFoundError: Restore failed. This is most likely due to a missing frob. Original error: quota exceeded: 8 of 8",
            "unrecognised-quota",
            id="reason-after-the-guess",
        ),
        pytest.param(
            "NotFoundError: Restore failed. This is most likely due to a missing frob.", None, id="guess-alone"
        ),
    ],
)
def test_guess_of_a_wrapper_never_outranks_its_reason(text: str, kind: str | None) -> None:
    found = guess([_suspect(text)], lines=1)

    assert (found and found.message.id) == kind


@pytest.mark.parametrize(
    ("second", "line", "kind"),
    [
        pytest.param("Insufficient regional quota to satisfy request", 4, "quota", id="specific-nearby"),
        pytest.param("Insufficient regional quota to satisfy request", 40, "permission", id="specific-far-away"),
        pytest.param("frob not found", 4, "permission", id="general-nearby"),
    ],
)
def test_specific_words_nearby_tell_more_than_a_code(second: str, line: int, kind: str) -> None:
    found = guess([_suspect("HttpError 403: PERMISSION_DENIED"), _suspect(second, line)], lines=50)

    assert found is not None
    assert found.message.id == f"unrecognised-{kind}"


def test_mistake_in_a_program_is_told_and_not_that_the_shell_killed_it_then() -> None:
    found = guess([_suspect("AssertionError: frob should be even", 8), _suspect("Killed", 9)], lines=9)

    assert found is not None
    assert found.message.id == "unrecognised-exception"


def test_failure_before_the_program_worked_again_is_no_guess() -> None:
    reader = LogReader()
    reader.feed(b"error: frob was preempted\nrestored checkpoint 9\nstep 10 loss 2.1\nFrobError: seven\n")

    (found,) = conclude(reader.so_far()).conclusions
    assert (found.id, found.sighting.first.line) == ("unrecognised-exception", 4)

"""Messages in quotation marks, in lists and in patterns: those of a program that fails, and those that one looks for."""

from __future__ import annotations

import pytest

from tests.explain.synthetic import GENERIC, message, scan

# X is a message as a program says it, Y another one.
_WORDS = {"X": "Ran out of memory", "Y": "No space left on device"}
_KNOWN = (GENERIC, message("full", "No space left on device", "no space left on device"))


def _quoted(text: str) -> set[bool]:
    """Return whether the messages in a text are quotations."""
    for letter, words in _WORDS.items():
        text = text.replace(letter, words)
    return {sighting.is_quoted for sighting in scan(text, _KNOWN).sightings}


@pytest.mark.parametrize(
    "text",
    [
        'UnavailableError: {"created":"@1584","description":"X","file":"call.cc","file_line":1056,"grpc_message":"X"}',
        'Additional GRPC error information from remote target /job:worker: :{"created":"@1623","description":"X"}',
        'grpc_error_string={"description":"X","grpc_status":14}',
        '{"severity": "ERROR", "message": "X"}',
        '{"level":"error","msg":"X","retries":3}',
        'level=error msg="X" worker=3',
        'time=10:04 level=warning err="X"',
        'error: "X"',
        "failed: 'X'",
        'RPC failed with status = "Unavailable: X"',
        "what():  X",
        "terminate called after throwing an instance of 'X'",
        "OSError(28, 'X')",
        "requests.exceptions.ConnectionError: ('Connection aborted.', OSError(28, 'X'))",
        "Exception: [OSError('X'), OSError('Y')]",
        "RuntimeError('X')",
        "stderr=b'X\\n'",
        "subprocess failed, stderr: 'X'",
        'details = "X"',
        'debug_error_string = "UNKNOWN:Error received from peer {grpc_message:"X", grpc_status:14}"',
        "last_error='X', attempt=3",
        'retry_reason="X"',
        "Retrying due to error: 'X'",
        "Retrying: X",
        "retry 3: X",
        "restarting because of 'X'",
        "Task failed: ['X', 'Y']",
        "errors: ['X', 'Y']",
        'Worker 3 exited with "X"',
        'worker 0 said "X"',
        'found "X" in the log of worker 3, restarting',
        'matched line "X", restarting',
        '{"errors": [{"reason": "X"}], "code": 503}',
        "{'code': 14, 'message': 'X'}",
        "status: {'code': 8, 'details': 'X'}",
        "2025-06-11 10:00:00|ERROR|trainer|X",
        "ERROR|X|worker-3",
        "3| X",
        "gce-worker-0 | X",
        "[0] X | [1] Y",
        "Prediction failed: X",
        "answer from the server: X",
        "textPayload: 'X'",
        "cause: X",
        "returned error 'X' (14)",
        "The job died with reason: [X]",
        "Failure(exc=OSError('X'), worker=3)",
        "Namespace(lr=0.1) X",
        "expected 8 devices: X",
        "train.py: ignoring SIGTERM\nOSError: X",
        "could not read the pattern file: X",
        "failed to write list: X",
        "retry_on_failure: attempt 3 of 5: X",
        "Exception ignored in: 'X'",
        "caught exception, will retry: 'X'",
        "restart on failure: X",
        "filter.py: OSError: X",
        "waiting for worker 3: X",
        "error reading sample 3: X",
        "args: ['--steps', '10'] X",
        "CalledProcessError: Command '['pip', 'install']' failed: b'X'",
        '\tdetails = "X"',
        "errors:\n  - X",
        "patterns were loaded\nX",
        "saw 'X'|'Y' on worker 3",
        "pattern-matching worker failed: 'X'",
    ],
)
def test_failure_in_quotation_marks_is_real(text: str) -> None:
    assert _quoted(text) == {False}


@pytest.mark.parametrize(
    "text",
    [
        "Namespace(retry_on=['X'], lr=0.1)",
        "Namespace(lr=0.1, retry_on=['Y', 'X'])",
        'I0611 10:00:00 supervisor.py:33] will restart on log line matching "X"',
        "{'retry_patterns': ['X', 'Y'], 'max_retries': 3}",
        '{"retry_patterns": ["X", "Y"]}',
        '{"watch": {"patterns": ["Y", "X"]}, "interval": 3}',
        'patterns=["X"]',
        "patterns = ['Y', 'X']",
        "regex: X|Y",
        "monitor started, keywords: 'X', 'Y'",
        'ignoring log lines that contain "X"',
        "lines containing 'X' will be ignored",
        'error_pattern="X"',
        "restart_on: 'X'",
        "restart_on: X",
        "will retry when stderr matches 'X'",
        'grep pattern: "X"',
        "flags: retry_on='X' steps=3",
        "I0611 10:00:00.123456 7 main.py:9] FLAGS.restart_patterns: ['X', 'Y']",
        "retry_on=X,Y",
    ],
)
def test_search_term_is_a_quotation(text: str) -> None:
    assert _quoted(text) == {True}

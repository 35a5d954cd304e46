"""Which messages are real, and which are only quoted."""

from __future__ import annotations

import pytest

from tests.explain.synthetic import scan
from tpuctl.explain.quoting import LineContext, is_quoted, looks_like_document

_SAID = "Ran out of memory"


def _quoted(text: str) -> list[int]:
    """Return how many occurrences there are, and how many of them are quotations."""
    (sighting,) = scan(text.replace("X", _SAID)).sightings
    return [sighting.count, sighting.quoted]


@pytest.mark.parametrize(
    "text",
    [
        "X",
        "RuntimeError: X",
        'HttpError 403 when requesting https://tpu.googleapis.com/v1 returned "X in zone">',
        'RPC failed with status = "Unavailable: X" and grpc_error_string = "{}"',
        "terminate called after throwing an instance of 'X'",
        "what():  X",
        '  "message": "X",',
        'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    main()\nValueError: X',
        "F0110 15:02:51.2 12 a.cc:3] Check failed: X\n    @ 0x7f00 main\n#0 0x7f01 raise",
        "#0 0x7f01 in X",
        "+ python train.py\nX",
        "/usr/lib/python3/jax/bridge.py:940: UserWarning: X",
        "RuntimeError: tensorflow/xla/client.cc:280 : X",
        "Step was cancelled by an explicit call to `Session::Close()`. X",
        "- X, see the log above",
        "##### Command execution on worker 5: X",
        ">>> train()\nX",
        "E tensorflow/a.cc:72] X",
        "E   RuntimeError: X",
        "quota metric 'X' and limit 'Y'",
        "worker 3: X: 1 of 8 tests",
        "2025-01-10 15:02:51 ERROR # X",
        "(0) Invalid argument: X\n\t [[{{node a}}]]",
        "```\nnever closed\nX",
        "     65   if _jaxlib_version > _jax_version:\n\nRuntimeError: X",
        "exited with X, expected nothing of the kind",
        "> step 1\n> RuntimeError: X\n> step 2",
        "ERROR: (gcloud.compute.instances.create) Could not fetch resource:\n - Invalid value for the field of this: X",
        "usage: train [-h]\ntrain: error: X",
    ],
)
def test_failure_is_not_a_quotation(text: str) -> None:
    assert _quoted(text) == [1, 0]


@pytest.mark.parametrize(
    "text",
    [
        "# Help\n\n```\nX\n```\nend",
        "> X",
        "| error | meaning |\n|---|---|\n| X | too large |",
        "- If you see `X`, use a smaller batch",
        "The message `X` means that the batch is too large",
        "If you see X then use a smaller batch",
        "an error such as X is common",
        "e.g. X",
        "docs/faq.md:12:X",
        "train.log:7:RuntimeError: X",
        "src/a.py:3:    raise ValueError('X')",
        "@@ -1,2 +1,2 @@\n a\n-X\n+Y",
        "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n+X",
        "# X",
        "// X",
        "<!-- X -->",
        "; X happens here",
        '    raise RuntimeError("X")',
        "logger.error('X')",
        '+ echo "X"',
        "$ grep 'X' train.log",
        'PATTERN = "X"',
        '    "X",',
        "E   AssertionError: X",
        "E   assert 'X' in ''",
        "FAILED tests/test_a.py::test_b - RuntimeError: X",
        "tests/test_a.py::test_b[X] PASSED",
        "<p>X</p>",
        "<li><code>X</code></li>",
        "match: X",
        "Fixed: X",
        "0c4234c Retry where X",
        "child ended with X, as it should",
        "dial: X (expected)",
        "Error message\nX",
        "You may find one of these:\nX",
        '  File "a.py", line 3, in f\n    raise E("X")',
        "usage: train [-h]\n\noptions:\n  --small  lower it for X",
        "usage: train [-h]\n\noptions:\n  --size N\n           lower it for X",
        "commit 9c1d0e2\nAuthor: A\n\n    X",
    ],
)
def test_text_about_a_message_is_a_quotation(text: str) -> None:
    assert _quoted(text) == [1, 1]


def test_first_real_occurrence_counts_before_quotations() -> None:
    (sighting,) = scan(f"# {_SAID}\nstep 1\nRuntimeError: {_SAID}\n").sightings

    assert (sighting.count, sighting.quoted, sighting.first.line, sighting.is_quoted) == (2, 1, 3, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\n\nThis is a page that tells you what to do.\nIt is for people who want to know the reason.\n", True),
        ("<!DOCTYPE html>\n<html>", True),
        ("import os\nimport sys\nfrom a import b\n", True),
        ("INFO:tensorflow:loss = 1\nERROR: it failed\nstep 3\nstep 4\n", False),
        ("", False),
    ],
)
def test_document_is_recognized_by_its_start(text: str, expected: bool) -> None:
    assert looks_like_document(text) is expected


@pytest.mark.parametrize(
    ("before", "line", "after", "expected"),
    [
        pytest.param("step 3", "#RuntimeError: boom happened", "step 4", False, id="glued-to-a-line-of-a-log"),
        pytest.param("10:00:01 step 3", "# boom happened", "10:00:03 exit", False, id="line-of-a-log"),
        pytest.param("# what users see:", "# boom happened", "run()", True, id="comment-of-several-lines"),
        pytest.param("import os", "# boom happened", "x = 'a'", True, id="comment-in-source"),
        pytest.param("$ cat notes", "# boom happened", "step 4", True, id="comment-in-a-shell"),
        pytest.param("", "# boom happened", "", True, id="alone"),
        pytest.param("step 3", "# see boom happened", "step 4", True, id="not-the-whole-comment"),
        pytest.param("step 3", "| 10:00 | ERROR | boom happened", "step 4", False, id="bars-of-a-logger"),
        pytest.param("| id | text |", "| 3 | boom happened |", "", True, id="row-of-a-table"),
        pytest.param("step 3", "2026-01-10T10:00:00.123Zboom happened", "step 4", False, id="glued-time"),
    ],
)
def test_signs_before_a_line_of_a_live_log(before: str, line: str, after: str, *, expected: bool) -> None:
    start = line.index("boom")
    around = LineContext(before=(before,), after=after)

    assert is_quoted(line, start, start + len("boom happened"), around) is expected

"""Which messages are real, and which are only quoted."""

from __future__ import annotations

import pytest

from tests.explain.synthetic import KNOWN, scan
from tpuctl.explain.scanner import LogReader

_SAID = "Ran out of memory"


def _quoted(text: str) -> bool:
    """Return whether all occurrences are quotations."""
    (sighting,) = scan(text.replace("X", _SAID)).sightings
    return sighting.is_quoted


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
    assert not _quoted(text)


@pytest.mark.parametrize(
    "text",
    [
        "# Help\n\n```\nX\n```\nend",
        "| error | meaning |\n|---|---|\n| X | too large |",
        "- If you see `X`, use a smaller batch",
        "The message `X` means that the batch is too large",
        "If you see X then use a smaller batch",
        "an error such as X is common",
        "e.g. X",
        "docs/faq.md:12:X",
        "train.log:7:RuntimeError: X",
        "src/a.py:3:    raise ValueError('X')",
        "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n+X",
        '+ echo "X"',
        'PATTERN = "X"',
        "E   AssertionError: X",
        "E   assert 'X' in ''",
        "FAILED tests/test_a.py::test_b - RuntimeError: X",
        "tests/test_a.py::test_b[X] PASSED",
        "match: X",
        "child ended with X, as it should",
        "dial: X (expected)",
        "Error message\nX",
        "usage: train [-h]\n\noptions:\n  --small  lower it for X",
        "usage: train [-h]\n\noptions:\n  --size N\n           lower it for X",
        "commit 9c1d0e2\nAuthor: A\n\n    X",
    ],
)
def test_text_about_a_message_is_a_quotation(text: str) -> None:
    assert _quoted(text)


def test_first_real_occurrence_counts_before_quotations() -> None:
    (sighting,) = scan(f"// {_SAID}\nstep 1\nRuntimeError: {_SAID}\n").sightings

    assert (sighting.count, sighting.first.line, sighting.is_quoted) == (1, 3, False)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param("readme.md", "If it says X", True, id="documentation-by-its-name"),
        pytest.param("errors.py", 'BUSY = "X"', True, id="source-by-its-name"),
        pytest.param("train.log", "RuntimeError: X", False, id="log"),
        pytest.param("pod.yaml", "reason: X", False, id="state-of-a-pod"),
        pytest.param("", "<!DOCTYPE html>\n<p>X</p>", True, id="page-by-its-start"),
        pytest.param("", "diff --git a/a b/a\n@@ -1 +1 @@\n+X", True, id="diff-by-its-start"),
    ],
)
def test_kind_of_file_decides_about_all_messages(name: str, text: str, *, expected: bool) -> None:
    reader = LogReader(KNOWN, name=name)
    reader.feed(text.replace("X", _SAID).encode())

    assert [sighting.is_quoted for sighting in reader.so_far().sightings] == [expected]

"""`tpuctl explain`: the fields that scripts get, with their types, and the page about its actions."""

from __future__ import annotations

import json

from tests.cli.test_docs_tables import table, words
from tests.json_contract import check_documents, declared_types, observed_types
from tpuctl.explain.conclusion import NodeEvidence, apply_node_evidence, conclude, merge_scans
from tpuctl.explain.explanation_rendering import SCHEMA_VERSION, explanation_to_json
from tpuctl.explain.log_lines import ScanResult
from tpuctl.explain.messages import Action
from tpuctl.explain.scanner import LogReader

# A cause, its symptom on another worker, something harmless, with times and without.
_FAILURE = b"""\
[0] 2026-07-03 10:02:10 Could not find cuda drivers on your machine, GPU will not be used.
[3] 2026-07-03 10:02:12 terminate called after throwing an instance of 'std::bad_alloc'
[0] 2026-07-03 10:02:15 XlaRuntimeError: UNAVAILABLE: Socket closed
"""
_OVER = b"""\
2026-07-03 10:00:00 Failed to connect to the Tensorflow master. The TPU worker may not be ready. Retrying (1/120).
2026-07-03 10:05:00 INFO:tensorflow:Initialized TPU in 6 seconds
"""
_UNKNOWN = b"[1] 2026-07-03 10:02:15 ERROR: the frobnicator has failed\n"


def _read(log: bytes) -> ScanResult:
    reader = LogReader()
    reader.feed(log)
    return reader.so_far()


def test_json_fields_match_their_schema() -> None:
    failure = conclude(_read(_FAILURE))
    several = [
        conclude(merge_scans({"a.log": _read(log), "b.log": _read(b"fine\n")})) for log in (_FAILURE, _OVER, _UNKNOWN)
    ]
    preempted = apply_node_evidence(failure, NodeEvidence("demo", "PREEMPTED"))
    explanations = (failure, *several, preempted, conclude(_read(_OVER)), conclude(_read(b"Error: no\n")))
    shown = [explanation_to_json(explanation) for explanation in explanations]

    check_documents("explain", "".join(map(json.dumps, shown)))
    # `harmless` has verdicts, too.
    observed = observed_types(*shown, {"verdicts": [one for each in shown for one in each["harmless"]]})
    declared = {
        path: types for path, types in declared_types("explanation").items() if not path.startswith("harmless[]")
    }
    del declared["sandbox"]
    assert {path: observed.get(path) for path in declared} == declared
    assert SCHEMA_VERSION == 1


def test_every_action_is_documented() -> None:
    rows = table("reference/messages.md", "actions")

    assert [words(row[0]) for row in rows] == [[str(action)] for action in Action]

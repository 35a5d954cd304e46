"""The page about `tpuctl explain` names the fields that scripts get, with their types, and the actions that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.cli.test_docs_tables import table, words
from tpuctl.explain.conclusion import NodeEvidence, apply_node_evidence, conclude, merge_scans
from tpuctl.explain.explanation_rendering import SCHEMA_VERSION, explanation_to_json
from tpuctl.explain.log_lines import ScanResult
from tpuctl.explain.messages import Action
from tpuctl.explain.scanner import LogReader

_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object", type(None): "null"}
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


def _types(value: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of each field. What is in `facts` is each message's own; `harmless` is like `verdicts`."""
    for key, each in value.items():
        here = f"{path}{key}"
        yield here, _TYPES[type(each)]
        for entry in each if isinstance(each, list) else ():
            if isinstance(entry, dict):
                yield from _types(entry, f"{'verdicts' if here == 'harmless' else here}[].")


def test_json_fields_match_the_docs() -> None:
    failure = conclude(_read(_FAILURE))
    several = [
        conclude(merge_scans({"a.log": _read(log), "b.log": _read(b"fine\n")})) for log in (_FAILURE, _OVER, _UNKNOWN)
    ]
    preempted = apply_node_evidence(failure, NodeEvidence("demo", "PREEMPTED"))
    explanations = (failure, *several, preempted, conclude(_read(_OVER)), conclude(_read(b"Error: no\n")))
    documented = {words(row[0])[0]: set(row[1].split(" or ")) for row in table("explain.md", "explain-json")}

    found: dict[str, set[str]] = {"sandbox": {"boolean"}}
    for explanation in explanations:
        for path, kind in _types(explanation_to_json(explanation)):
            found.setdefault(path, set()).add(kind)

    assert found == documented
    assert SCHEMA_VERSION == 1


def test_every_action_is_documented() -> None:
    rows = table("reference/messages.md", "actions")

    assert [words(row[0]) for row in rows] == [[str(action)] for action in Action]

"""Answers of workers with one value replaced by an odd one: each is rejected as unexpected, or can be shown like any other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.doctor.node.examinations import node
from tests.hostile.test_hostile_frames import HELD, SHARE
from tpuctl.check.facts import Known
from tpuctl.check.findings import evaluate_rules
from tpuctl.doctor.doctor_facts import AllWorkersFacts
from tpuctl.doctor.node_probes import parse_examination
from tpuctl.doctor.rule_catalogue import WORKER_RULES
from tpuctl.ssh.answers import UnexpectedAnswerError, parse_answer
from tpuctl.ssh.connection import Target
from tpuctl.ssh.tpu_holders import parse_holders
from tpuctl.workers.tpu_release import HolderReport, holder_rows, holders_json
from tpuctl.workers.worker_jobs import Job, job_json, job_row, parse_worker_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ODD = {
    **{
        text: text
        for text in ("null", "true", "0", "-1", "2.5", "9e15", "1e300", "-1e300", "NaN", "-Infinity", "5_000")
    },
    **{
        text: text
        for text in ('""', '"x"', '"1e309"', '"-9"', "[]", "{}", "[[]]", "[0, 0]", '{"ok": null}', '{"a": []}')
    },
    "10**400": "1" + "0" * 400,
    "10**5000": "1" + "0" * 5000,
    "control characters": r'"\u001b[2J\u0007\nerror: x\u2028\u202e"',
    "half a surrogate": r'"\ud800"',
    "half a surrogate in JSON": json.dumps(r'{"command": "\ud800"}'),
    "long": json.dumps("x " * 50_000),
    "many": json.dumps(["x"] * 20_000),
    "deep": "[" * 100_000,
    "ten numbers": '"' + "9" * 4000 + ' kB\\nMemTotal: 99999999999999999999 kB"',
}
EXAMINATION: dict[str, Any] = {
    "began": NOW.timestamp(),
    "ended": NOW.timestamp() + 1,
    "kernel": "6.8.0",
    "uptime": {"ok": 90000.0},
    "disks": {"ok": [{"mount": "/", "available": 10240, "used": 90, "inodes": 90}]},
    "logs": {"ok": {"path": "/tmp/tpu_logs", "state": "writable", "size": 1, "files": 1, "is_complete": True}},
    "memory": {"ok": {"total": 1024000, "available": 921600}},
    "oom_kills": {"ok": {"count": 1, "last": "Out of memory: Killed process 7 (python3)"}},
    "tpu_use": {"ok": HELD},
    "inspection": {"ok": "tpuctl-worker startup=done about=- chips=4 holders=-"},
    "variables": {
        "ok": {
            "session": {"JAX_PLATFORMS": "tpu"},
            "login": {"TPU_LOG_DIR": "/tmp/x"},
            "jobs": [{"TPU_MIN_LOG_LEVEL": "0"}],
            "login_unread": None,
        }
    },
    "environments": {
        "ok": [
            {
                "kind": "venv",
                "path": "~/venv",
                "python": "3.10",
                "packages": {"jax": {"version": "0.4.35", "requires": ["jaxlib <=0.4.35,>=0.4.34"]}},
            }
        ]
    },
    "is_synchronized": {"ok": True},
}
MEMBER = cast("Target", SimpleNamespace(label="0", worker=0, node=node()))


def show_share(text: str) -> str:
    """Return what `tpuctl jobs` shows of a job."""
    job = Job("a", (parse_worker_job(MEMBER, parse_answer(text), "job"),))
    return f"{job.command}{job_row(job)}{json.dumps(job_json(job))}"


def show_holders(text: str) -> str:
    """Return what `tpuctl unstick` shows of a worker."""
    report = HolderReport(MEMBER, parse_holders(text))
    return f"{list(holder_rows(report))}{json.dumps(holders_json(report))}"


def show_examination(text: str) -> str:
    """Return what `tpuctl doctor` finds on a worker."""
    report = parse_examination(parse_answer(text), NOW, NOW + timedelta(seconds=2))
    seen = AllWorkersFacts(node=node(), now=NOW, answers={0: Known(report)})
    return "".join(
        f"{one.found.text}{one.found.why}{one.found.remedies}" for one in evaluate_rules(seen, WORKER_RULES).findings
    )


def mutations(value: Any, every: int) -> Iterator[str]:
    """Yield JSON texts in which one value at a time is replaced by an odd one (by one in so many of them), or is missing."""
    for at, path in enumerate(paths(value)):
        whole = json.loads(json.dumps(value))
        within = whole
        for step in path[:-1]:
            within = within[step]
        within[path[-1]] = "@here@"
        text = json.dumps(whole)
        yield from (text.replace('"@here@"', odd) for odd in list(ODD.values())[at % every :: every])
        del within[path[-1]]
        yield json.dumps(whole)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in inside:
        yield (*at, step)
        yield from paths(one, (*at, step))


@pytest.mark.parametrize(
    ("value", "show", "every"),
    [(SHARE, show_share, 1), (HELD, show_holders, 1), (EXAMINATION, show_examination, 6)],
    ids=["jobs", "unstick", "doctor"],
)
def test_odd_value_is_rejected_or_can_be_shown(value: dict[str, Any], show: Callable[[str], str], every: int) -> None:
    assert show(json.dumps(value))
    for text in [*ODD.values(), "", *mutations(value, every)]:
        try:
            shown = show(text)
        except UnexpectedAnswerError as error:
            shown = error.message
            assert shown.isprintable()
            assert len(shown) < 400
        shown.encode()

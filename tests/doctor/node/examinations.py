"""Facts about healthy workers, which each test changes in one point."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tpuctl.check.facts import Known
from tpuctl.check.findings import CheckRule
from tpuctl.doctor.doctor_facts import (
    AllWorkersFacts,
    ClockOffset,
    FileSystemUsage,
    LogFolder,
    LogFolderState,
    OomKills,
    PythonEnvironment,
    TpuVariables,
    WorkerMemory,
    WorkerReport,
)
from tpuctl.models.node import Node
from tpuctl.nodes.conditions import StartupState
from tpuctl.nodes.inspection import InspectionReport
from tpuctl.ssh.tpu_holders import HoldersFound

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HEALTHY = WorkerReport(
    offset=ClockOffset(timedelta(seconds=-0.1), timedelta(seconds=0.5)),
    kernel="6.8.0",
    uptime=Known(timedelta(hours=20)),
    disks=Known((FileSystemUsage("/", 60 << 30, 40, 10),)),
    logs=Known(LogFolder("/tmp/tpu_logs", LogFolderState.WRITABLE, 1 << 20, 3, is_complete=True)),
    memory=Known(WorkerMemory(400 << 30, 300 << 30)),
    oom_kills=Known(OomKills(0)),
    tpu_use=Known(HoldersFound((), None, hidden=0, is_root=True)),
    inspection=Known(InspectionReport(StartupState.DONE, chips=4)),
    variables=Known(TpuVariables()),
    environments=Known(()),
    is_synchronized=Known(value=True),
)


def node(**fields: Any) -> Node:
    """Return a READY v4-16 with two workers, changed by fields of the API."""
    raw = {
        "name": "projects/p/locations/us-central2-b/nodes/demo",
        "id": "17",
        "state": "READY",
        "health": "HEALTHY",
        "acceleratorType": "v4-16",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "createTime": "2026-01-01T00:00:00Z",
        "networkEndpoints": [
            {"ipAddress": f"10.0.0.{worker}", "accessConfig": {"externalIp": f"198.18.0.{worker}"}}
            for worker in range(2)
        ],
    }
    return Node.from_api(raw | fields)


def seen(*changes: dict[str, Any], **fields: Any) -> AllWorkersFacts:
    """Return the facts about workers, each healthy except for its changes; `fields` are the node's."""
    answers = {number: Known(replace(HEALTHY, **one)) for number, one in enumerate(changes)}
    return AllWorkersFacts(node=node(**fields), now=NOW, answers=answers)


def problems(rule: CheckRule[Any], facts: object) -> list[str]:
    """Return the findings of a rule, one line each: level, subject, text."""
    return [f"{found.level} {found.subject}: {found.text}" for found in rule.judge(facts)]


def python(path: str = "~/venv", version: str = "3.10", /, **packages: str) -> PythonEnvironment:
    """Return an environment with packages, by `name=version`."""
    return PythonEnvironment(
        "venv", path, version, {name.replace("_", "-"): number for name, number in packages.items()}
    )


def row_ids(rows: list[tuple[CheckRule[Any], Any, list[str]]]) -> list[str]:
    """Return an id for each row of a table: the id of its rule and its first finding."""
    return [f"{rule.id} {next(iter(expected), 'no finding')}" for rule, _, expected in rows]

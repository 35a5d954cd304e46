"""What `doctor NODE` says of workers: a row for each rule and each bound."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.doctor_node.examinations import HEALTHY, NOW, node, said, seen
from tpuctl.checkup.workers import machine, tpu
from tpuctl.checkup.workers.facts import (
    Disk,
    Ended,
    Hold,
    HolderSeen,
    Kills,
    LogFolder,
    LogState,
    Memory,
    Offset,
    ShutOut,
    WorkerFacts,
    WorkersFacts,
)
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Rule
from tpuctl.readiness import Startup

UNREAD = Unknown("it broke")
GIB = 1 << 30


def offset(low: float, high: float) -> dict[str, Any]:
    return {"offset": Offset(timedelta(seconds=low), timedelta(seconds=high))}


def disk(used: int, inodes: int | None = 1) -> dict[str, Any]:
    return {"disks": Known((Disk("/", 100 * GIB, GIB, used, inodes),))}


def hold(*holders: HolderSeen, owner: str | None = None, held: bool = False, hidden: int = 0) -> dict[str, Any]:
    return {"hold": Known(Hold(holders, owner, held, hidden))}


def logs(state: LogState, size: int = 0, path: str = "/tmp/tpu_logs", *, is_complete: bool = True) -> dict[str, Any]:
    return {"logs": Known(LogFolder(path, state, size, 1, is_complete))}


def up(**time: float) -> dict[str, Any]:
    return {"uptime": Known(timedelta(**time))}


PYTHON = HolderSeen(12, "ada", "python3", timedelta(hours=1))
STUCK = HolderSeen(13, "ada", "python3", timedelta(hours=1), is_waiting_in_kernel=True)
OTHER = HolderSeen(14, "bob", "ray", timedelta(hours=1))

ROWS: list[tuple[Rule[WorkersFacts], tuple[dict[str, Any], ...], list[str]]] = [
    (machine.disk_space, (disk(84), disk(0)), ["ok workers 0-1: `/` has enough space"]),
    (machine.disk_space, (disk(85),), ["warning worker 0: `/` is 85 % full"]),
    (machine.disk_space, (disk(96), disk(91)), ["warning workers 0-1: `/` is 91 % to 96 % full"]),
    (
        machine.disk_space,
        (disk(97), disk(20)),
        ["error worker 0: `/` is 97 % full", "ok worker 1: `/` has enough space"],
    ),
    (machine.disk_space, ({"disks": UNREAD},), ["unknown worker 0: the disks could not be read: it broke"]),
    (machine.disk_space, ({"disks": Absent()},), []),
    (machine.inodes, (disk(1, 84),), ["ok worker 0: `/` has enough inodes"]),
    (machine.inodes, (disk(1, 85),), ["warning worker 0: 85 % of the inodes of `/` are used"]),
    (machine.inodes, (disk(1, 97),), ["error worker 0: 97 % of the inodes of `/` are used"]),
    (machine.inodes, (disk(1, None), {"disks": UNREAD}), []),
    (machine.memory, ({"memory": Known(Memory(100, 6))},), ["ok worker 0: it has enough memory"]),
    (machine.memory, ({"memory": Known(Memory(100, 5))},), ["warning worker 0: it has 5 % of its memory left"]),
    (machine.memory, ({"memory": UNREAD},), ["unknown worker 0: the memory could not be read: it broke"]),
    (machine.memory, ({"memory": Known(Memory(0, 0))}, {"memory": Absent()}), []),
    (machine.kills, ({},), ["ok worker 0: no process was killed since the last boot because memory ran out"]),
    (
        machine.kills,
        ({"kills": Known(Kills(1, "Killed"))}, {"kills": Known(Kills(3))}),
        ["warning workers 0-1: the kernel killed processes since the last boot because memory ran out: 1 to 3"],
    ),
    (machine.kills, ({"kills": UNREAD},), ["unknown worker 0: the kernel log could not be read: it broke"]),
    (machine.kills, ({"kills": Absent()},), []),
    (machine.boots, ({}, up(hours=19.75)), ["ok workers 0-1: it has been up for 19h45m to 20h"]),
    (
        machine.boots,
        ({}, up(hours=19.74)),
        [
            "ok worker 0: it has been up for 20h",
            "warning worker 1: it booted 19h44m ago, long after other workers",
        ],
    ),
    (
        machine.boots,
        (up(minutes=29), up(minutes=29)),
        ["note workers 0-1: it booted 29m ago, which terminated its programs"],
    ),
    (machine.boots, (up(minutes=30),), ["ok worker 0: it has been up for 30m"]),
    (machine.boots, ({"uptime": UNREAD},), ["unknown worker 0: its boot time could not be read: it broke"]),
    (machine.kernels, ({}, {}), ["ok workers 0-1: its kernel is 6.8.0"]),
    (
        machine.kernels,
        ({}, {"kernel": "6.9"}),
        [
            "note worker 0: its kernel is 6.8.0, and other workers have another one",
            "note worker 1: its kernel is 6.9, and other workers have another one",
        ],
    ),
    (machine.synchronized, ({},), ["ok worker 0: its clock is synchronized"]),
    (
        machine.synchronized,
        ({"is_synchronized": Known(value=False)},),
        ["warning worker 0: its clock is not synchronized"],
    ),
    (
        machine.synchronized,
        ({"is_synchronized": Absent("no tool")}, {"is_synchronized": UNREAD}),
        [
            "note worker 0: its time synchronization is unknown: no tool",
            "unknown worker 1: its time synchronization could not be read: it broke",
        ],
    ),
    # One worker is compared to this machine, and only what is certain counts.
    (machine.clocks, (offset(2.0, 9),), ["ok worker 0: its clock is right"]),
    (
        machine.clocks,
        (offset(2.5, 9),),
        ["warning worker 0: its clock is ahead of this machine's by at least 2s"],
    ),
    (machine.clocks, (offset(-9, -2.0),), ["ok worker 0: its clock is right"]),
    (
        machine.clocks,
        (offset(-90, -60), offset(0, 1)),
        ["warning worker 0: its clock is behind this machine's by at least 1m", "ok worker 1: its clock is right"],
    ),
    # Three workers that agree are right, and this machine is not.
    (
        machine.clocks,
        (offset(40, 41), offset(40, 41), offset(50, 51)),
        [
            (
                "note workers 0-1: its clock agrees with the other workers'; this machine's clock does not, "
                "and is probably wrong"
            ),
            "warning worker 2: its clock is ahead of the other workers' by at least 10s",
        ],
    ),
    (tpu.devices, ({},), ["ok worker 0: it has its 4 chips"]),
    (
        tpu.devices,
        ({"chips": Known(3)}, {"chips": Known(0)}),
        [
            "error worker 0: it has 3 of the 4 chips of a `v4-16` worker",
            "error worker 1: it has none of the 4 chips of a `v4-16` worker",
        ],
    ),
    (tpu.devices, ({"chips": UNREAD},), ["unknown worker 0: its chips could not be read: it broke"]),
    (
        tpu.holders,
        ({}, hold(hidden=3)),
        [
            "ok worker 0: no process holds its TPU",
            "ok worker 1: no process holds its TPU, as far as visible without root",
        ],
    ),
    (tpu.holders, (hold(PYTHON), hold(PYTHON)), ["note workers 0-1: `python3` of ada holds the TPU"]),
    (
        tpu.holders,
        (hold(PYTHON, OTHER), {}),
        [
            "warning worker 0: `python3` of ada, `ray` of bob hold the TPU, which is free on other workers",
            "ok worker 1: no process holds its TPU",
        ],
    ),
    (
        tpu.holders,
        (hold(STUCK),),
        ["warning worker 0: `python3` of ada holds the TPU and waits inside the kernel"],
    ),
    (
        tpu.holders,
        ({"hold": UNREAD},),
        ["unknown worker 0: the processes that hold its TPU could not be read: it broke"],
    ),
    (tpu.lock_file, ({}, hold(owner="ada", held=True)), ["ok workers 0-1: no stale lock file"]),
    (
        tpu.lock_file,
        (hold(owner="ada"),),
        ["warning worker 0: `/tmp/libtpu_lockfile` of ada is stale: no process holds it"],
    ),
    (
        tpu.lock_file,
        (hold(owner="ada", hidden=2),),
        ["unknown worker 0: there is a lock file of ada; its holder is not visible without root"],
    ),
    (tpu.lock_file, ({"hold": UNREAD},), []),
    (tpu.startup, ({},), ["ok worker 0: startup script and cloud-init succeeded"]),
    (
        tpu.startup,
        ({"ended": Known(Ended(Startup.RUNNING, "cloud-init still runs"))}, {"ended": Known(Ended(Startup.FAILED))}),
        ["warning worker 0: cloud-init still runs", "warning worker 1: the startup failed"],
    ),
    (
        tpu.startup,
        ({"ended": Known(Ended(Startup.UNKNOWN))}, {"ended": UNREAD}),
        [
            "unknown worker 0: the result of startup script and cloud-init is not recorded there",
            "unknown worker 1: the result of the startup could not be read: it broke",
        ],
    ),
    (
        tpu.logs,
        (logs(LogState.WRITABLE, 10 * GIB - 1), logs(LogState.ABSENT)),
        ["ok workers 0-1: libtpu can write its log"],
    ),
    (
        tpu.logs,
        (logs(LogState.WRITABLE, 10 * GIB),),
        ["warning worker 0: libtpu's log in `/tmp/tpu_logs` has 10 GiB"],
    ),
    (
        tpu.logs,
        (logs(LogState.WRITABLE, 12 * GIB, is_complete=False),),
        ["warning worker 0: libtpu's log in `/tmp/tpu_logs` has 12 GiB or more"],
    ),
    (
        tpu.logs,
        (logs(LogState.REFUSED), logs(LogState.LACKS_PARENT, path="/a/b")),
        [
            "warning worker 0: this login cannot write to `/tmp/tpu_logs`",
            "warning worker 1: libtpu cannot create `/a/b`: its parent folder is missing",
        ],
    ),
    (tpu.logs, (logs(LogState.RELATIVE, path="disabled"),), []),
    (tpu.logs, ({"logs": UNREAD},), ["unknown worker 0: libtpu's log folder could not be read: it broke"]),
]


@pytest.mark.parametrize(("rule", "changes", "expected"), ROWS)
def test_rule_yields_the_findings_of_each_case(
    rule: Rule[WorkersFacts], changes: tuple[dict[str, Any], ...], expected: list[str]
) -> None:
    assert said(rule, seen(*changes)) == expected


def test_chips_unknown_type_has_no_expected_number() -> None:
    facts = seen({}, acceleratorType="v9-8")

    assert said(tpu.devices, facts) == ["note worker 0: it has 4 chips; the number for `v9-8` is unknown"]


def test_remedy_names_its_workers_unless_all() -> None:
    def commands(*changes: dict[str, Any]) -> list[str | None]:
        return [remedy.command for found in tpu.lock_file.judge(seen(*changes)) for remedy in found.remedies]

    assert commands(hold(owner="ada"), {}) == ["tpuctl unstick demo --worker 0"]
    assert commands(hold(owner="ada"), hold(owner="ada")) == ["tpuctl unstick demo"]


def test_full_disk_remedy_removes_large_logs() -> None:
    def commands(size: int, path: str) -> list[str | None]:
        facts = seen(disk(98) | logs(LogState.WRITABLE, size, path))
        (found,) = machine.disk_space.judge(facts)
        return [remedy.command for remedy in found.remedies]

    look = "tpuctl run demo --worker 0 -- 'sudo du -xh --max-depth=3 / 2>/dev/null | sort -h | tail -n 20'"
    remove = "tpuctl run demo --worker 0 -- sudo rm -rf /tmp/tpu_logs"
    assert commands(GIB, "/tmp/tpu_logs") == [remove, look, None]
    assert commands(GIB - 1, "/tmp/tpu_logs") == [look, None]
    # What a worker names is never offered for removal but at libtpu's own place.
    assert commands(GIB, "/home/ada") == [look, None]


def test_unreachable_workers_are_grouped_by_cause() -> None:
    facts = WorkersFacts(
        node=node(),
        now=NOW,
        expected=(0, 1, 2, 3, 4),
        workers=(
            WorkerFacts(0, Known(HEALTHY)),
            WorkerFacts(3, Unknown("no python3")),
            WorkerFacts(4, Unknown("no python3")),
        ),
        shut_out=(ShutOut((1, 2), "the key is refused", ("add it: `tpuctl ssh-key add demo`", "or ask")),),
    )

    assert said(tpu.answers, facts) == ["error workers 1-2: the key is refused", "ok worker 0: ssh works"]
    assert said(tpu.told, facts) == ["unknown workers 3-4: it sent no report: no python3"]
    error, _ = tpu.answers.judge(facts)
    assert [(one.text, one.command) for one in error.remedies] == [
        ("add it", "tpuctl ssh-key add demo"),
        ("or ask", None),
    ]

"""Findings of `doctor NODE` about workers: a row for each rule and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.doctor.node.examinations import HEALTHY, NOW, node, problems, row_ids, seen
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.findings import CheckRule
from tpuctl.doctor.doctor_facts import (
    AllWorkersFacts,
    ClockOffset,
    FileSystemUsage,
    LogFolder,
    LogFolderState,
    OomKills,
    UnreachableWorkers,
    WorkerMemory,
)
from tpuctl.doctor.worker_rules import (
    check_boot_times,
    check_chips,
    check_disk_space,
    check_identities,
    check_inodes,
    check_kernels,
    check_libtpu_log,
    check_lock_file,
    check_memory,
    check_oom_kills,
    check_ssh,
    check_startup,
    check_time_synchronization,
    check_tpu_holders,
    check_worker_clocks,
    check_workers_report,
)
from tpuctl.nodes.conditions import StartupState, WorkerIdentity
from tpuctl.nodes.inspection import InspectionReport
from tpuctl.ssh.tpu_holders import HolderProcess, HoldersFound, LockFile

UNREAD = Unknown("it broke")
GIB = 1 << 30


def offset(low: float, high: float) -> dict[str, Any]:
    return {"offset": ClockOffset(timedelta(seconds=low), timedelta(seconds=high))}


def disk(used: int, inodes: int | None = 1) -> dict[str, Any]:
    return {"disks": Known((FileSystemUsage("/", GIB, used, inodes),))}


def hold(*holders: HolderProcess, owner: str | None = None, hidden: int = 0) -> dict[str, Any]:
    lock_file = LockFile("/tmp/libtpu_lockfile", owner, timedelta()) if owner else None
    return {"tpu_use": Known(HoldersFound(holders, lock_file, hidden, is_root=False))}


def inspected(
    *, chips: int = 4, startup: StartupState = StartupState.DONE, detail: str = "", identity: str = ""
) -> dict[str, Any]:
    found = WorkerIdentity(*identity.split("/")) if identity else None
    return {"inspection": Known(InspectionReport(startup, chips, detail=detail, identity=found))}


def logs(
    state: LogFolderState, size: int = 0, path: str = "/tmp/tpu_logs", *, is_complete: bool = True
) -> dict[str, Any]:
    return {"logs": Known(LogFolder(path, state, size, 1, is_complete))}


def up(**time: float) -> dict[str, Any]:
    return {"uptime": Known(timedelta(**time))}


PYTHON = HolderProcess(
    pid=12,
    start=1,
    user="ada",
    age=timedelta(hours=1),
    state="S",
    name="python3",
    command="python3 train.py",
    devices=("accel0",),
    has_lock_file=False,
    maps_library=True,
    is_protected=False,
    container=None,
)
STUCK = replace(PYTHON, pid=13, state="D")
OTHER = replace(PYTHON, pid=14, user="bob", name="ray")
LOCKER = replace(PYTHON, devices=(), has_lock_file=True)
MAPPER = replace(PYTHON, devices=())

ROWS: list[tuple[CheckRule[AllWorkersFacts], tuple[dict[str, Any], ...], list[str]]] = [
    (check_disk_space, (disk(84), disk(0)), []),
    (check_disk_space, (disk(85),), ["warning worker 0: `/` is 85 % full"]),
    (check_disk_space, (disk(96), disk(91)), ["warning workers 0-1: `/` is 91 % to 96 % full"]),
    (
        check_disk_space,
        (disk(97), disk(20)),
        ["error worker 0: `/` is 97 % full"],
    ),
    (check_disk_space, ({"disks": UNREAD},), ["unknown worker 0: the disks could not be read: it broke"]),
    (check_disk_space, ({"disks": Absent()},), []),
    (check_inodes, (disk(1, 84),), []),
    (check_inodes, (disk(1, 85),), ["warning worker 0: 85 % of the inodes of `/` are used"]),
    (check_inodes, (disk(1, 97),), ["error worker 0: 97 % of the inodes of `/` are used"]),
    (check_inodes, (disk(1, None), {"disks": UNREAD}), []),
    (check_memory, ({"memory": Known(WorkerMemory(100, 6))},), []),
    (check_memory, ({"memory": Known(WorkerMemory(100, 5))},), ["warning worker 0: it has 5 % of its memory left"]),
    (check_memory, ({"memory": UNREAD},), ["unknown worker 0: the memory could not be read: it broke"]),
    (check_memory, ({"memory": Known(WorkerMemory(0, 0))}, {"memory": Absent()}), []),
    (check_oom_kills, ({},), []),
    (
        check_oom_kills,
        ({"oom_kills": Known(OomKills(1, "Killed"))}, {"oom_kills": Known(OomKills(3))}),
        ["warning workers 0-1: the kernel killed processes since the last boot because memory ran out: 1 to 3"],
    ),
    (check_oom_kills, ({"oom_kills": UNREAD},), ["unknown worker 0: the kernel log could not be read: it broke"]),
    (check_oom_kills, ({"oom_kills": Absent()},), []),
    (check_boot_times, ({}, up(hours=19.75)), []),
    (
        check_boot_times,
        ({}, up(hours=19.74)),
        ["warning worker 1: it booted 19h44m ago, long after other workers"],
    ),
    (
        check_boot_times,
        (up(minutes=29), up(minutes=29)),
        ["note workers 0-1: it booted 29m ago, which terminated its programs"],
    ),
    (check_boot_times, (up(minutes=30),), []),
    (check_boot_times, ({"uptime": UNREAD},), ["unknown worker 0: its boot time could not be read: it broke"]),
    (check_kernels, ({}, {}), []),
    (
        check_kernels,
        ({}, {"kernel": "6.9"}),
        [
            "note worker 0: its kernel is 6.8.0, and other workers have another one",
            "note worker 1: its kernel is 6.9, and other workers have another one",
        ],
    ),
    (check_time_synchronization, ({},), []),
    (
        check_time_synchronization,
        ({"is_synchronized": Known(value=False)},),
        ["warning worker 0: its clock is not synchronized"],
    ),
    (
        check_time_synchronization,
        ({"is_synchronized": Absent("no tool")}, {"is_synchronized": UNREAD}),
        [
            "note worker 0: its time synchronization is unknown: no tool",
            "unknown worker 1: its time synchronization could not be read: it broke",
        ],
    ),
    # One or two workers are compared with this machine, and only the certain part of the offset counts.
    (check_worker_clocks, (offset(2.0, 9),), []),
    (
        check_worker_clocks,
        (offset(2.5, 9),),
        ["warning worker 0: its clock is ahead of this machine's by at least 2s"],
    ),
    (check_worker_clocks, (offset(-9, -2.0),), []),
    (
        check_worker_clocks,
        (offset(-90, -60), offset(0, 1)),
        ["warning worker 0: its clock is behind this machine's by at least 1m"],
    ),
    # The majority of three workers is right, and this machine is wrong.
    (
        check_worker_clocks,
        (offset(40, 41), offset(40, 41), offset(50, 51)),
        [
            (
                "note workers 0-1: its clock agrees with the other workers'; this machine's clock does not, "
                "and is probably wrong"
            ),
            "warning worker 2: its clock is ahead of the other workers' by at least 10s",
        ],
    ),
    (check_chips, ({},), []),
    (
        check_chips,
        (inspected(chips=3), inspected(chips=0)),
        [
            "error worker 0: it has 3 of the 4 chips of a `v4-16` worker",
            "error worker 1: it has none of the 4 chips of a `v4-16` worker",
        ],
    ),
    (check_chips, ({"inspection": UNREAD},), ["unknown worker 0: its chips could not be read: it broke"]),
    (check_identities, (inspected(), {"inspection": UNREAD}), []),
    (
        check_identities,
        (inspected(identity="0/v4-16/A"), inspected(identity="1/v4-16/A/1/v4-16")),
        [],
    ),
    (
        check_identities,
        (inspected(identity="0/v4-16/A"), inspected(identity="0/v4-16/A")),
        ["error worker 1: it has the TPU metadata of worker 0"],
    ),
    (
        check_tpu_holders,
        ({}, hold(MAPPER, hidden=3)),
        [],
    ),
    (check_tpu_holders, (hold(PYTHON), hold(PYTHON)), ["note workers 0-1: `python3` of ada holds the TPU"]),
    (
        check_tpu_holders,
        (hold(PYTHON, OTHER), {}),
        ["warning worker 0: `python3` of ada, `ray` of bob hold the TPU, which is free on other workers"],
    ),
    (
        check_tpu_holders,
        (hold(STUCK),),
        ["warning worker 0: `python3` of ada holds the TPU and waits inside the kernel"],
    ),
    (
        check_tpu_holders,
        ({"tpu_use": UNREAD},),
        ["unknown worker 0: the processes that hold its TPU could not be read: it broke"],
    ),
    (check_lock_file, ({}, hold(LOCKER, owner="ada")), []),
    (
        check_lock_file,
        (hold(owner="ada"),),
        ["warning worker 0: `/tmp/libtpu_lockfile` of ada is stale: no process holds it"],
    ),
    (
        check_lock_file,
        (hold(owner="ada", hidden=2),),
        ["unknown worker 0: there is a lock file of ada; its holder is not visible without root"],
    ),
    (check_lock_file, ({"tpu_use": UNREAD},), []),
    (check_startup, ({},), []),
    (
        check_startup,
        (
            inspected(startup=StartupState.RUNNING, detail="cloud-init still runs"),
            inspected(startup=StartupState.FAILED),
        ),
        ["warning worker 0: cloud-init still runs", "warning worker 1: the startup failed"],
    ),
    (
        check_startup,
        (inspected(startup=StartupState.UNKNOWN), {"inspection": UNREAD}),
        [
            "unknown worker 0: the result of startup script and cloud-init is not recorded there",
            "unknown worker 1: the result of the startup could not be read: it broke",
        ],
    ),
    (
        check_libtpu_log,
        (logs(LogFolderState.WRITABLE, 10 * GIB - 1), logs(LogFolderState.ABSENT)),
        [],
    ),
    (
        check_libtpu_log,
        (logs(LogFolderState.WRITABLE, 10 * GIB),),
        ["warning worker 0: libtpu's log in `/tmp/tpu_logs` has 10 GiB"],
    ),
    (
        check_libtpu_log,
        (logs(LogFolderState.WRITABLE, 12 * GIB, is_complete=False),),
        ["warning worker 0: libtpu's log in `/tmp/tpu_logs` has 12 GiB or more"],
    ),
    (
        check_libtpu_log,
        (logs(LogFolderState.REFUSED), logs(LogFolderState.LACKS_PARENT, path="/a/b")),
        [
            "warning worker 0: this login cannot write to `/tmp/tpu_logs`",
            "warning worker 1: libtpu cannot create `/a/b`: its parent folder is missing",
        ],
    ),
    (check_libtpu_log, (logs(LogFolderState.RELATIVE, path="disabled"),), []),
    (check_libtpu_log, ({"logs": UNREAD},), ["unknown worker 0: libtpu's log folder could not be read: it broke"]),
]


@pytest.mark.parametrize(("rule", "changes", "expected"), ROWS, ids=row_ids(ROWS))
def test_rule_yields_the_findings_of_each_case(
    rule: CheckRule[AllWorkersFacts], changes: tuple[dict[str, Any], ...], expected: list[str]
) -> None:
    assert problems(rule, seen(*changes)) == expected


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/tmp/tpu_logs", "tpuctl run demo --worker 0 -- sudo chmod a+rwx /tmp/tpu_logs"),
        ("/home/ada/logs", "tpuctl run demo --worker 0 -- sudo chmod a+rwx /home/ada/logs"),
        ("/mnt/data/tpu", "tpuctl run demo --worker 0 -- sudo chmod a+rwx /mnt/data/tpu"),
        ("/dev/shm/tpu", "tpuctl run demo --worker 0 -- sudo chmod a+rwx /dev/shm/tpu"),
        ("/data/logs", "tpuctl run demo --worker 0 -- sudo chmod a+rwx /data/logs"),
        *((path, None) for path in ("/", "//", "/var/log", "/var/log/tpu", "/etc/", "/tmp", "/home", "/home/ada", "/mnt")),
        *((path, None) for path in ("/tmp/../etc", "//etc", "/tmp/../home/ada/", "/root/logs", "/dev", "/usr/share/tpu")),
    ],
)  # fmt: skip
def test_permissions_are_changed_of_a_log_folder_alone(path: str, command: str | None) -> None:
    (finding,) = check_libtpu_log.judge(seen(logs(LogFolderState.REFUSED, path=path)))

    assert [remedy.command for remedy in finding.remedies] == [command]


def test_chips_unknown_type_has_no_expected_number() -> None:
    facts = seen({}, acceleratorType="v9-8")

    assert problems(check_chips, facts) == ["note worker 0: it has 4 chips; the number for `v9-8` is unknown"]


def test_remedy_names_its_workers_unless_all() -> None:
    def commands(*changes: dict[str, Any]) -> list[str | None]:
        return [remedy.command for found in check_lock_file.judge(seen(*changes)) for remedy in found.remedies]

    assert commands(hold(owner="ada"), {}) == ["tpuctl unstick demo --worker 0"]
    assert commands(hold(owner="ada"), hold(owner="ada")) == ["tpuctl unstick demo"]


def test_full_disk_remedy_removes_large_logs() -> None:
    def commands(size: int, path: str) -> list[str | None]:
        facts = seen(disk(98) | logs(LogFolderState.WRITABLE, size, path))
        (found,) = check_disk_space.judge(facts)
        return [remedy.command for remedy in found.remedies]

    find = "tpuctl run demo --worker 0 -- 'sudo du -xh --max-depth=3 / 2>/dev/null | sort -h | tail -n 20'"
    remove = "tpuctl run demo --worker 0 -- sudo rm -rf /tmp/tpu_logs"
    assert commands(GIB, "/tmp/tpu_logs") == [remove, find, None]
    assert commands(GIB - 1, "/tmp/tpu_logs") == [find, None]
    # A folder that a worker names is never removed; only libtpu's default folder is.
    assert commands(GIB, "/home/ada") == [find, None]


def test_unreachable_workers_are_grouped_by_cause() -> None:
    facts = AllWorkersFacts(
        node=node(),
        now=NOW,
        answers={0: Known(HEALTHY), 3: Unknown("no python3"), 4: Unknown("no python3")},
        unreachable=(
            UnreachableWorkers((1, 2), "the key is refused", ("add it: `tpuctl ssh-key add demo`", "or ask")),
        ),
    )

    assert problems(check_ssh, facts) == ["error workers 1-2: the key is refused"]
    assert problems(check_workers_report, facts) == ["unknown workers 3-4: it sent no report: no python3"]
    (error,) = check_ssh.judge(facts)
    assert [(one.text, one.command) for one in error.remedies] == [
        ("add it", "tpuctl ssh-key add demo"),
        ("or ask", None),
    ]

"""Rules about the workers of a node: ssh, chips, processes, libtpu's log, startup, disks, memory, clocks, variables."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tpuctl.check.facts import Absent, Known, NetworkInterface, Unknown
from tpuctl.check.findings import Level, OpenFirewall, Remedy, RuleResult
from tpuctl.command_text import command_word, fitting
from tpuctl.doctor.doctor_facts import LogFolderState
from tpuctl.doctor.verdicts import (
    error,
    group_workers,
    known_on_workers,
    node_rule,
    note,
    on_node,
    on_workers,
    run_there,
    unknown,
    unread,
    unread_on_workers,
    verdict,
    warning,
    worker_rule,
    workers_rule,
    workers_text,
)
from tpuctl.durations import format_duration
from tpuctl.models.spec import NodeSpec
from tpuctl.models.worker_ports import (
    COORDINATOR,
    COORDINATOR_VARIABLE,
    MEGASCALE,
    OLD_COORDINATOR,
    RAY_PORTS,
    RAY_RANGES,
    SLICE_BUILDER,
    describe_closed,
)
from tpuctl.nodes.conditions import StartupState, find_misidentified, promised_chips

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tpuctl.doctor.doctor_facts import (
        AllWorkersFacts,
        FileSystemUsage,
        LogFolder,
        OomKills,
        TpuVariables,
        UnreachableWorkers,
        WorkerMemory,
        WorkerReport,
    )
    from tpuctl.models.node import Node
    from tpuctl.nodes.inspection import InspectionReport
    from tpuctl.ssh.tpu_guard import GuardReport
    from tpuctl.ssh.tpu_holders import HolderProcess, HoldersFound

# In percent, of a disk's room and of its inodes.
_FULL, _TOO_FULL = 85, 97
_LITTLE_MEMORY = 5
# libtpu's default folder; removing another path is never proposed.
_LIBTPU_LOG_FOLDER = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_LOGS_WORTH_REMOVING, _LARGE_LOG_FOLDER = 1 << 30, 10 << 30
# Boots within this time belong to one restart.
_BOOTS_APART = timedelta(minutes=15)
# A boot is reported for this long.
_RECENT_BOOT = timedelta(minutes=30)
_CLOCK_OFF = timedelta(seconds=2)
_MAJORITY = 3
_SHOWN = 3
_WAITS_IN_KERNEL = "D"
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)
# Ids of `explain`.
_KEY_REFUSED, _KEY_UNREADABLE = "ssh-publickey", "ssh-key-unreadable"
_UNIT = "google-startup-scripts.service"


@node_rule("TPU966", "ssh to the workers")
def check_ssh(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Check that every worker accepts ssh; show why one does not, and how to fix it."""
    for group in facts.unreachable:
        yield error(
            group.why,
            *_ssh_remedies(group, facts),
            subject=workers_text(group.workers),
            why="commands cannot run there, and the worker could not be examined",
            facts={"workers": list(group.workers), "errorId": group.error_id},
            is_passing=group.is_passing,
        )


def _ssh_remedies(group: UnreachableWorkers, facts: AllWorkersFacts) -> tuple[Remedy, ...]:
    """Return the remedies. `tpuctl up` creates a missing key, and puts the key on the node."""
    hints, put_key = tuple(map(remedy_from_hint, group.hints)), on_node("put your ssh key on the node", "up")
    renew = "if the key pair itself is broken, create a new one; the next `up` puts it on the node"
    ours = () if facts.has_own_key else (Remedy(renew, "tpuctl ssh-key renew"),)
    if group.error_id == _KEY_UNREADABLE and not facts.has_own_key:
        return (replace(put_key, text="create the key if it is missing, and put it on the node"), *ours, *hints)
    if group.error_id == _KEY_REFUSED:
        # If other workers accept the key, it is on the node: then the hints of the message come first.
        return (*hints, put_key) if facts.reports else (put_key, *ours, *hints)
    return hints


def remedy_from_hint(hint: str) -> Remedy:
    """Return a hint as a remedy. A command after the last colon becomes the command of the remedy."""
    text, colon, command = hint.rpartition(": `")
    if colon and command.endswith("`") and "`" not in command[:-1]:
        return Remedy(text, command[:-1])
    return Remedy(hint)


@workers_rule("TPU967", "reports of the workers")
def check_workers_report(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Check that every worker with ssh sends a report; a program for its `python3` collects it."""
    for number, answer in facts.answers.items():
        if isinstance(answer, Unknown):
            yield number, unknown(f"it sent no report: {answer.reason}", is_passing=True)


@node_rule("TPU990", "ports between the workers")
def check_ports(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Let worker 0 listen at the ports that a slice needs, and connect from the others: an error for libtpu's and JAX's.

    From JAX 0.8.1 on its coordinator listens at 8482, which Compute Engine's own rule for TPUs does not open: a warning if
    8476, which the rule opens, is reached. Ports of multislice (8080, 8081) are a note for one node, and a warning if several
    nodes are named; those of Ray are tried if it is installed. Source: JAX's cloud_tpu_cluster.py; jax#35905; Ray's
    documentation.
    """
    if isinstance(facts.ports, Unknown):
        yield unread("the ports between its workers could not be tried", facts.ports)
    if not isinstance(facts.ports, Known):
        return
    probe = facts.ports.value
    if probe.failed or probe.unheard:
        failed = [f"worker {label} does not answer" for label in probe.failed]
        unheard = [f"worker {probe.listener} cannot listen at {port}: {why}" for port, why in probe.unheard.items()]
        yield unknown(f"not all ports between its workers could be tried: {', '.join((*failed, *unheard)[:_SHOWN])}")
    closed = probe.closed()
    if COORDINATOR in closed and OLD_COORDINATOR not in closed and _has_only_old_jax(facts):
        del closed[COORDINATOR]
    if not closed:
        return
    remedies = [Remedy.by(_opening(facts.node, closed), "let the addresses of the workers reach these ports")]
    if COORDINATOR in closed and OLD_COORDINATOR not in closed:
        remedies.append(Remedy(f"or set `{COORDINATOR_VARIABLE}` for programs with JAX 0.8.1 or later"))
    level = Level.WARNING
    if SLICE_BUILDER in closed or {COORDINATOR, OLD_COORDINATOR} <= closed.keys():
        level = Level.ERROR
    elif set(closed) <= set(MEGASCALE) and "/" not in probe.listener:
        level = Level.NOTE
    yield verdict(
        level,
        describe_closed(probe.listener, closed),
        *remedies,
        why="a program of the slice waits for the other workers, and fails after minutes",
        facts={
            "listener": probe.listener,
            "ports": {
                str(port): {label: seen.get(port) for label, seen in probe.states.items()} for port in probe.ports
            },
        },
    )


def _has_only_old_jax(facts: AllWorkersFacts) -> bool:
    """Return whether every JAX that was found is older than the one that takes the new port."""
    found = known_on_workers(facts, lambda report: report.environments).values()
    versions = [environment.packages["jax"] for each in found for environment in each if "jax" in environment.packages]
    numbers = [_RELEASE.match(version) for version in versions]
    return bool(numbers) and all(found and tuple(map(int, found.groups())) < (0, 8, 1) for found in numbers)


def _opening(node: Node, ports: Iterable[int]) -> OpenFirewall:
    """Return the firewall rule that opens ports between the workers of the node's network."""
    interface = NetworkInterface.of_spec(NodeSpec.from_node(node), node.name.project)
    wanted = dict.fromkeys(text for port in ports for text in (RAY_RANGES if port in RAY_PORTS else (str(port),)))
    return OpenFirewall(interface.project, interface.network, "allow-tpu-workers", ("10.0.0.0/8",), tuple(wanted))


@worker_rule("TPU975", "chips of the workers", lambda report: report.inspection, "its chips could not be read")
def check_chips(inspection: InspectionReport, _: WorkerReport, node: Node) -> Iterator[RuleResult]:
    """Count the chips of each worker by their device files: an error if there are fewer than its accelerator type has."""
    count, promised, kind = inspection.chips, promised_chips(node), node.accelerator_type
    facts = {"chips": count, "promised": promised}
    if promised is None:
        yield note(f"it has {count} chips; the number for `{kind}` is unknown", facts=facts)
    elif count < promised:
        yield error(
            f"it has {count or 'none'} of the {promised} chips of a `{kind}` worker",
            on_node("reset it, which keeps its boot disk", "reset", "--for", "devices"),
            on_node("if that does not help, recreate the node: its boot disk is lost", "reset", "--mode", "recreate"),
            why="programs fail to initialize the TPU there, or wait for the other chips",
            facts=facts,
        )


@workers_rule("TPU989", "TPU metadata of the workers")
def check_identities(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Check the number and the accelerator type in the metadata of each worker: an error if they are blank or of another one.

    JAX, PyTorch/XLA and Ray read `agent-worker-number`, `accelerator-type` and `tpu-env` to find their place in the slice.
    """
    reports = known_on_workers(facts, lambda report: report.inspection)
    identities = {number: report.identity for number, report in reports.items() if report.identity is not None}
    wrong = find_misidentified(facts.node, identities)
    for number, identity in identities.items():
        about = {"number": identity.number, "acceleratorType": identity.accelerator_type}
        if number not in wrong:
            continue
        yield (
            number,
            error(
                f"it {wrong[number]}",
                on_node("reset it, which keeps its boot disk", "reset", "--for", "devices"),
                on_node(
                    "if that does not help, recreate the node: its boot disk is lost", "reset", "--mode", "recreate"
                ),
                why="programs of a slice wait for one another without end, or number their workers wrongly",
                facts=about,
            ),
        )


@workers_rule("TPU973", "processes that hold the TPU")
def check_tpu_holders(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Show the processes that hold the TPU of each worker: a note, since training does that. Only one process can hold it.

    A warning if it is held on some workers of a slice and free on others, where the program has ended. A warning too for a
    process that waits inside the kernel, where no signal reaches it.
    """
    uses = known_on_workers(facts, lambda report: report.tpu_use)
    is_partly = len({bool(_holding(use)) for use in uses.values()}) > 1
    for number, use in uses.items():
        if _holding(use):
            yield number, _judge_holders(use, is_partly=is_partly)
    yield from unread_on_workers(
        facts, lambda report: report.tpu_use, "the processes that hold its TPU could not be read"
    )


def _holding(use: HoldersFound) -> list[HolderProcess]:
    return [one for one in use.holders if one.holds]


def _judge_holders(use: HoldersFound, *, is_partly: bool) -> RuleResult:
    holding = _holding(use)
    facts = {
        "holders": [
            {"pid": one.pid, "user": one.user, "name": one.name, "age": round(one.age.total_seconds())}
            for one in holding
        ]
    }
    names = list(dict.fromkeys(f"`{one.name}` of {one.user}" for one in holding))
    who = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    holds = f"{who} {'hold' if len(names) > 1 else 'holds'} the TPU"
    show = on_workers("show these processes", "unstick", "--dry-run")
    if any(one.state == _WAITS_IN_KERNEL for one in holding):
        reboot = on_node("if it does not end, reboot all workers", "reset", "--mode", "reboot")
        why = "no signal reaches such a process: it ends with a reboot, or when what it waits for happens"
        return warning(f"{holds} and waits inside the kernel", show, reboot, why=why, facts=facts)
    if is_partly:
        end = on_workers("terminate the processes that are left over", "unstick")
        why = "a program of a slice runs on all workers: if it has ended on one, the others wait, or are left over"
        return warning(f"{holds}, which is free on other workers", show, end, why=why, facts=facts)
    end = on_workers("terminate it, unless it is your running training", "unstick")
    return note(holds, end, why="a second program fails: `The TPU is already in use by process with pid`", facts=facts)


@worker_rule("TPU974", "libtpu's lock file", lambda report: report.tpu_use)  # TPU973 says why it is unknown
def check_lock_file(use: HoldersFound, *_: object) -> Iterator[RuleResult]:
    """Check for a stale `/tmp/libtpu_lockfile`, which no process has open: a warning.

    A program of another user may not write to it, and fails as if the TPU were in use [TensorFlow source; observed].
    """
    owner = use.lock_file.user if use.lock_file else None
    facts = {"lockFile": owner is not None, "owner": owner}
    if owner is None or _holding(use):
        return
    if use.hidden and not use.is_root:
        yield unknown(f"there is a lock file of {owner}; its holder is not visible without root", facts=facts)
    else:
        yield warning(
            f"`/tmp/libtpu_lockfile` of {owner} is stale: no process holds it",
            on_workers("remove it, if still no process holds it", "unstick"),
            why="a program of another user fails, as if the TPU were in use",
            facts=facts,
        )


@worker_rule(
    "TPU977",
    "startup script and cloud-init of the workers",
    lambda report: report.inspection,
    "the result of the startup could not be read",
)
def check_startup(result: InspectionReport, *_: object) -> Iterator[RuleResult]:
    """Check how the startup script and cloud-init ended on each worker: a warning while they run, and if they failed."""
    see = run_there("read its log", f"sudo journalctl -u {_UNIT} -b --no-pager | tail -n 50")
    match result.startup:
        case StartupState.RUNNING:
            wait = on_node("wait until it ends", "wait", "--for", "startup")
            why = "what it installs or starts may still be missing"
            yield warning(result.detail or "the startup still runs", wait, see, why=why)
        case StartupState.FAILED | StartupState.CLOUD_INIT_FAILED:
            why = "what it installs or starts may be missing or incomplete"
            yield warning(result.detail or "the startup failed", see, why=why)
        case StartupState.DONE:
            pass
        case _:
            yield unknown("the result of startup script and cloud-init is not recorded there")


_SYSTEM_FOLDERS = frozenset({
    *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt"),
    *("proc", "root", "run", "sbin", "snap", "srv", "sys", "usr", "var"),
})  # fmt: skip
_FOLDERS_FOR_ALL = ("/dev/shm", "/home", "/media", "/mnt", "/tmp", "/var/tmp")  # noqa: S108  # only compared


def _is_of_the_system(path: str) -> bool:
    """Return whether other programs depend on the permissions of a folder: a system folder or one below it, or a home."""
    folder = PurePosixPath("/" + posixpath.normpath(path).lstrip("/"))
    if str(folder) in {"/", *_FOLDERS_FOR_ALL} or str(folder.parent) == "/home":
        return True
    if any(folder.is_relative_to(one) for one in _FOLDERS_FOR_ALL):
        return False
    return not _SYSTEM_FOLDERS.isdisjoint(folder.parts[1:2])


@worker_rule("TPU970", "libtpu's log", lambda report: report.logs, "libtpu's log folder could not be read")
def check_libtpu_log(folder: LogFolder, *_: object) -> Iterator[RuleResult]:
    """Check the log folder of libtpu: a warning from 10 GiB on, or if it is not writable.

    The permissions of a system folder and of a home are left alone: another folder is proposed for the log. It is
    `TPU_LOG_DIR`, else `/tmp/tpu_logs`. libtpu creates it, but not its parents, and continues without a log if it cannot write
    there [documentation "debug logs"].
    """
    path = folder.path
    facts = {"path": path, "state": str(folder.state), "bytes": folder.size, "files": folder.files}
    if folder.state is LogFolderState.RELATIVE:
        return  # TPU980 reports it
    if folder.state is LogFolderState.LACKS_PARENT:
        create, why = (
            run_there("create it", "mkdir", "-p", fitting("path", path)),
            "libtpu continues without a log, which you need after a failure",
        )
        yield warning(f"libtpu cannot create `{path}`: its parent folder is missing", create, why=why, facts=facts)
    elif folder.state is LogFolderState.REFUSED:
        # Not recursive: libtpu creates new files in it, and `TPU_LOG_DIR` may name a folder that holds more than logs.
        allow = (
            Remedy("log to a folder of your own: `tpuctl run --env TPU_LOG_DIR=/tmp/tpu_logs`")
            if _is_of_the_system(path)
            else run_there("make it writable for all users", "sudo", "chmod", "a+rwx", fitting("path", path))
        )
        why = "libtpu continues without a log; the folder often belongs to another user who trained there"
        yield warning(f"this login cannot write to `{path}`", allow, why=why, facts=facts)
    elif folder.size >= _LARGE_LOG_FOLDER:
        gib = folder.size >> 30
        remove = run_there("remove it, when no training runs", "sudo", "rm", "-rf", fitting("path", path))
        yield warning(
            f"libtpu's log in `{path}` has {{}}{'' if folder.is_complete else ' or more'}",
            *((remove,) if path.rstrip("/").endswith("/tpu_logs") else ()),
            Remedy("log less: `tpuctl run --env TPU_MIN_LOG_LEVEL=1`"),
            why="it is on the boot disk, which cannot be resized",
            measure=(gib, f"{gib} GiB"),
            facts=facts,
        )


@worker_rule("TPU968", "disk space of the workers", lambda report: report.disks, "the disks could not be read")
def check_disk_space(disks: tuple[FileSystemUsage, ...], report: WorkerReport, _: Node) -> Iterator[RuleResult]:
    """Check the disk space of `/`, the home and `/tmp` on each worker: a warning from 85 % used, an error from 97 %.

    The boot disk has about 100 GB unless the node was created with `--boot-disk-size`, and cannot be resized [observed: users'
    reports].
    """
    logs = report.logs.value if isinstance(report.logs, Known) else None
    has_large_log = logs is not None and logs.path == _LIBTPU_LOG_FOLDER and logs.size >= _LOGS_WORTH_REMOVING
    remove = run_there("remove libtpu's logs, when no training runs", "sudo", "rm", "-rf", _LIBTPU_LOG_FOLDER)
    resize = Remedy(
        "the boot disk cannot be resized: create the node with `--boot-disk-size 300GB`, or with `--data-disk` for large files"
    )
    for disk in disks:
        shell = f"sudo du -xh --max-depth=3 {command_word('path', disk.mount)} 2>/dev/null | sort -h | tail -n 20"
        find = run_there("find what uses the space: often pip's cache, docker images and old checkpoints", shell)
        yield from _judge_usage(
            disk.used,
            f"`{disk.mount}` is {{}} full",
            *((remove,) if has_large_log else ()),
            find,
            *((resize,) if disk.mount == "/" else ()),
            why="with a full disk, checkpoints, compilation caches and logins fail, often with misleading errors",
            facts={"mount": disk.mount, "usedPercent": disk.used, "availableBytes": disk.available},
        )


@worker_rule("TPU969", "inodes of the workers", lambda report: report.disks)  # TPU968 says why they are unknown
def check_inodes(disks: tuple[FileSystemUsage, ...], *_: object) -> Iterator[RuleResult]:
    """Check the inodes of the same disks, with the same limits: without free inodes no file can be created."""
    for disk in disks:
        if disk.inodes is None:
            continue
        shell = (
            f"sudo du -x --inodes --max-depth=3 {command_word('path', disk.mount)} 2>/dev/null | sort -n | tail -n 20"
        )
        yield from _judge_usage(
            disk.inodes,
            f"{{}} of the inodes of `{disk.mount}` are used",
            run_there("find the many small files", shell),
            why="without free inodes no file can be created, and the error is `No space left on device`",
            facts={"mount": disk.mount, "usedPercent": disk.inodes},
        )


def _judge_usage(used: int, full: str, *remedies: Remedy, why: str, facts: Mapping[str, Any]) -> Iterator[RuleResult]:
    if used >= _FULL:
        level = Level.ERROR if used >= _TOO_FULL else Level.WARNING
        yield verdict(level, full, *remedies, why=why, measure=(used, f"{used} %"), facts=facts)


@worker_rule("TPU971", "memory of the workers", lambda report: report.memory, "the memory could not be read")
def check_memory(memory: WorkerMemory, *_: object) -> Iterator[RuleResult]:
    """Check the available memory of each worker: a warning at 5 % or less."""
    if memory.total == 0:
        return
    share = 100 * memory.available // memory.total
    facts = {"totalBytes": memory.total, "availableBytes": memory.available}
    if share > _LITTLE_MEMORY:
        return
    yield warning(
        "it has {} of its memory left",
        run_there("find what uses it", "ps", "aux", "--sort=-rss"),
        why="the kernel kills processes when memory runs out",
        measure=(share, f"{share} %"),
        facts=facts,
    )


@worker_rule("TPU972", "out-of-memory kills", lambda report: report.oom_kills, "the kernel log could not be read")
def check_oom_kills(kills: OomKills, *_: object) -> Iterator[RuleResult]:
    """Check the kernel log since the last boot for processes that were killed because memory ran out."""
    if not kills.count:
        return
    yield warning(
        "the kernel killed processes since the last boot because memory ran out: {}",
        run_there("find which processes, and when", 'sudo dmesg -T | grep -i -E "out of memory|oom-kill" | tail'),
        Remedy("use fewer workers and smaller buffers in the input pipeline"),
        why="a killed process prints no message (exit 137), and the other workers wait for it",
        measure=(kills.count, str(kills.count)),
        facts={"count": kills.count, "last": kills.last},
    )


@workers_rule("TPU976", "when the workers booted")
def check_boot_times(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Check that the workers booted together, and whether they did so recently, which terminated all programs.

    A warning for workers that booted more than 15 minutes after the first one; a note for boots in the last half hour.
    """
    uptimes = known_on_workers(facts, lambda report: report.uptime)
    longest = max(uptimes.values(), default=timedelta())
    age = facts.now - facts.node.created if facts.node.created else timedelta()
    for number, up in uptimes.items():
        about = {
            "measure": (up.total_seconds(), format_duration(up)),
            "facts": {"uptimeSeconds": round(up.total_seconds())},
        }
        if longest - up > _BOOTS_APART:
            why = "its programs were terminated, and programs on the other workers may wait for them"
            again = Remedy("start the training again on all workers")
            yield number, warning("it booted {} ago, long after other workers", again, why=why, **about)
        elif up < _RECENT_BOOT and age > up + _BOOTS_APART:
            yield number, note("it booted {} ago, which terminated its programs", **about)
    yield from unread_on_workers(facts, lambda report: report.uptime, "its boot time could not be read")


@workers_rule("TPU987", "kernels of the workers")
def check_kernels(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Check that all workers run the same kernel; a note if they differ."""
    differ = len({report.kernel for report in facts.reports.values()}) > 1
    for number, report in facts.reports.items() if differ else ():
        text = f"its kernel is {report.kernel}, and other workers have another one"
        yield number, note(text, facts={"kernel": report.kernel})


@worker_rule("TPU978", "time synchronization of the workers", Known)
def check_time_synchronization(report: WorkerReport, *_: object) -> Iterator[RuleResult]:
    """Check with `timedatectl` that each worker synchronizes its clock; with a wrong clock, Google refuses tokens."""
    match report.is_synchronized:
        case Known(False):
            yield warning(
                "its clock is not synchronized",
                run_there("enable time synchronization", "sudo timedatectl set-ntp true"),
                run_there("find the cause", "timedatectl status; chronyc tracking"),
                why="with a wrong clock, Google's services refuse its tokens, and logs of workers cannot be compared",
            )
        case Absent(reason):
            yield note(f"its time synchronization is unknown: {reason}")
        case Unknown() as fact:
            yield unread("its time synchronization could not be read", fact)


@workers_rule("TPU979", "clocks of the workers")
def check_worker_clocks(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Compare the clocks of the workers: a warning for one that is certainly more than 2 s off, network delay excluded.

    The reference is the median of three or more workers, else this machine's clock. A note if this machine's clock is off.
    """
    middles = sorted((report.offset.low + report.offset.high) / 2 for report in facts.reports.values())
    reference, others, half = timedelta(), "this machine's", len(middles) // 2
    if len(middles) >= _MAJORITY:
        reference, others = (middles[half] + middles[~half]) / 2, "the other workers'"
    for number, report in facts.reports.items():
        low, high = report.offset.low, report.offset.high
        bounds = {"leastSeconds": round(low.total_seconds(), 3), "mostSeconds": round(high.total_seconds(), 3)}
        # At least one of them is negative.
        ahead, behind = low - reference, reference - high
        if (least := max(ahead, behind)) > _CLOCK_OFF:
            yield (
                number,
                warning(
                    f"its clock is {'ahead of' if least == ahead else 'behind'} {others} by at least {{}}",
                    run_there("set it from its time server", "sudo chronyc makestep; timedatectl status"),
                    why="logs of workers cannot be compared, and Google's services refuse tokens with a wrong time",
                    measure=(least.total_seconds(), format_duration(least)),
                    facts=bounds,
                ),
            )
        elif max(low, -high) > _CLOCK_OFF:
            text = "its clock agrees with the other workers'; this machine's clock does not, and is probably wrong"
            yield number, note(text, facts=bounds)


# Troubleshooting and debug-log guides of Cloud TPU.
_LIBTPU_LOG_LEVELS = frozenset({"0", "1", "2", "3"})
LOG_DIR, LEVEL_NAMES = "TPU_LOG_DIR", ("TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL")
# libtpu's word for no log. Translated guides translate it, and then libtpu takes it for a path.
NO_LOG = "disabled"
_TF_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_HIDDEN_BY_LEVEL = {"2": "it hides warnings", "3": "it hides warnings and errors"}
_PROFILES = "`~/.profile`, `~/.bash_profile` and `/etc/profile`, and what they read"
_FILES = "~/.profile ~/.bash_profile ~/.bashrc ~/.zshrc /etc/environment /etc/profile.d/*"
# Why a value is wrong that does not name `tpu`.
_BACKENDS = {
    **dict.fromkeys(("JAX_PLATFORMS", "JAX_PLATFORM_NAME"), "JAX does not use the TPU then, but another device"),
    "PJRT_DEVICE": "torch_xla uses that device, not the TPU",
}
# Why any value is wrong: only programs that share a worker need these [TPU documentation; JAX source].
_PARTS = dict.fromkeys(
    ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"),
    "every program uses only these chips, or waits for processes that do not exist",
)
_NOTED = {
    "XRT_TPU_CONFIG": "a torch_xla with PJRT ignores it, and needs `PJRT_DEVICE=TPU`",
    "LIBTPU_INIT_ARGS": "each version of libtpu has its own flags, and an unknown one may terminate the program",
    "TPU_LIBRARY_PATH": "programs load that libtpu instead of the one installed with the framework",
}
_COMPARED = (LOG_DIR, *LEVEL_NAMES, "TPU_MAX_LOG_SIZE_MB", _TF_LOG_LEVEL, *_PARTS, *_BACKENDS, *_NOTED)


def log_variable_problem(name: str, value: str) -> str | None:
    """Return what is wrong with the value of a log variable of libtpu, None if it is valid."""
    if name == LOG_DIR and value != NO_LOG and not value.startswith("/"):
        return f"libtpu creates a folder of that name in the working directory of a program; its word for no log is `{NO_LOG}`"
    if name in LEVEL_NAMES and value not in _LIBTPU_LOG_LEVELS:
        return "libtpu's levels are 0 (INFO), 1 (WARNING), 2 (ERROR) and 3 (FATAL)"
    return None


@worker_rule("TPU980", "log variables", lambda report: report.variables, "its variables could not be read")
def check_log_variables(variables: TpuVariables, *_: object) -> Iterator[RuleResult]:
    """Check `TPU_LOG_DIR` and the log levels: a warning for a value that libtpu does not accept.

    Its word for no log is `disabled`; a translation of that word is taken for a path. Levels are 0 to 3. A note if
    `TF_CPP_MIN_LOG_LEVEL` hides warnings or errors of TensorFlow and of libtpu's clients [documentation].
    """
    found = [
        _set_variable(variables, name, value, why)
        for name in (LOG_DIR, *LEVEL_NAMES)
        for value in variables.values(name)
        if (why := log_variable_problem(name, value))
    ]
    found += [
        _set_variable(variables, _TF_LOG_LEVEL, value, _HIDDEN_BY_LEVEL[value], level=Level.NOTE)
        for value in variables.values(_TF_LOG_LEVEL)
        if value in _HIDDEN_BY_LEVEL
    ]
    if variables.login_unread is not None:
        advice = Remedy(f"check {_PROFILES}: a login at a terminal runs them too")
        found.append(unknown(f"the variables of login shells could not be read: {variables.login_unread}", advice))
    yield from found


@worker_rule(
    "TPU981", "backend and chip variables", lambda report: report.variables
)  # TPU980 says why they are unknown
def check_backend_variables(variables: TpuVariables, *_: object) -> Iterator[RuleResult]:
    """Check for variables that keep programs from using the TPU or some of its chips: a warning for each.

    `JAX_PLATFORMS` without `tpu`, `PJRT_DEVICE` with another device, leftover bounds of chips and processes. Notes for
    `XRT_TPU_CONFIG`, which torch_xla ignores since PJRT replaced XRT (the version is unverified), for `LIBTPU_INIT_ARGS`, whose
    flags depend on the version of libtpu (unverified), and for a libtpu chosen by `TPU_LIBRARY_PATH`.
    """
    found = [
        _set_variable(variables, name, value, why, level=Level.NOTE if name in _NOTED else Level.WARNING)
        for name, why in (_BACKENDS | _PARTS | _NOTED).items()
        for value in variables.values(name)
        if name not in _BACKENDS or "tpu" not in value.lower().split(",")
    ]
    yield from found


def _set_variable(
    variables: TpuVariables, name: str, value: str, why: str, *, level: Level = Level.WARNING
) -> RuleResult:
    find = run_there("find where it is set, and remove it there", f"grep -n {name} {_FILES} 2>/dev/null")
    places = {
        "a running job": any(job.get(name) == value for job in variables.jobs),
        "login shells": variables.login.get(name) == value,
        "ssh sessions": variables.session.get(name) == value,
    }
    text = f"`{name}={value}` is set in {' and '.join(place for place, has in places.items() if has)}"
    remedies = () if level is Level.NOTE else (find,)
    return verdict(level, text, *remedies, why=why, facts={"name": name, "value": value})


@node_rule("TPU982", "same variables on all workers")
def check_same_variables(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Compare these variables between the workers: a warning for each that differs, since a slice needs the same on all."""
    variables = known_on_workers(facts, lambda report: report.variables)
    if len(variables) < 2:
        return
    for name in _COMPARED:
        groups = group_workers({number: (*one.values(name), None)[0] for number, one in variables.items()})
        if len(groups) == 1:
            continue
        parts = [f"{'not set' if value is None else f'`{value}`'} on {workers_text(on)}" for value, on in groups]
        yield warning(
            f"`{name}` is {', '.join(parts)}",
            subject=workers_text(groups[-1][1]),
            why="a program of a slice needs the same value on all its workers",
            facts={"name": name, "values": [{"value": value, "workers": on} for value, on in groups]},
        )


@workers_rule("TPU988", "guard of the node")
def check_guard(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
    """Check the guard on worker 0 that deletes the node at the end of its time: a warning if it is missing or cannot do so."""
    report, expires = facts.reports.get(0), facts.node.expires
    if report is None:
        return
    what_remains = (
        "until it works, only `tpuctl gc --expired` and `tpuctl watch` delete the node at the end of its time"
    )
    start = on_node("start it again", "up")
    match report.guard:
        case Known(guard) if guard.is_installed and not (guard.status and guard.status.has_ended):
            about = {"facts": {"running": guard.is_running, "log": list(guard.log[-_SHOWN:])}}
            if (problem := guard.problem()) is None:
                if clock := guard.clock_note():
                    yield 0, note(f"{clock}: the guard uses the service's time", **about)
            else:
                log = f"; its log ends with `{guard.log[-1]}`" if guard.log else ""
                yield 0, warning(problem, *_guard_remedies(guard, facts.node, start), why=what_remains + log, **about)
        case Known(_) | Absent() if expires is not None:
            yield 0, warning("the node has a time limit and no guard", start, why=what_remains)
        case Unknown() as fact if expires is not None:
            yield 0, unread("its guard could not be read", fact)


def _guard_remedies(guard: GuardReport, node: Node, start: Remedy) -> tuple[Remedy, ...]:
    """Return how to make a guard work that does not."""
    match guard.status.problem if guard.status and guard.is_running else None:
        case "permission":
            return (
                Remedy(
                    "give the service account a role for that alone; not roles/tpu.admin", guard.grant_command(node)
                ),
            )
        case "scope" | "account":
            return (Remedy("recreate the node with a service account and the scope cloud-platform"),)
        case None:
            return (start,)
    return (run_there("show its log", "tail -n 40 /var/lib/tpuctl/guard/log ~/.tpuctl/guard/log"),)

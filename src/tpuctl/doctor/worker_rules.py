"""Rules about the workers of a node: ssh, chips, processes, libtpu's log, startup, disks, memory, clocks, variables.

A rule yields findings for single workers; the same finding on several workers becomes one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.findings import CheckRule, Level, Remedy, RuleResult, check_rule
from tpuctl.doctor.doctor_facts import LogFolderState
from tpuctl.durations import format_duration
from tpuctl.nodes.conditions import StartupState, promised_chips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tpuctl.doctor.doctor_facts import (
        AllWorkersFacts,
        TpuUse,
        TpuVariables,
        UnreachableWorkers,
        WorkerReport,
    )


@dataclass(frozen=True, slots=True)
class WorkerRemedy:
    """A remedy for some workers: a text, and a tpuctl command: its verb, its node, `--worker` if needed, and the `rest`."""

    text: str
    verb: str | None = None
    rest: tuple[str, ...] = ()
    takes_workers: bool = False

    @classmethod
    def run(cls, text: str, *command: str) -> WorkerRemedy:
        """Return the remedy to run a command on the affected workers: one shell line, or the words of a command."""
        return cls(text, "run", ("--", *command), takes_workers=True)

    def remedy(self, node_id: str, workers: tuple[int, ...], *, of: int) -> Remedy:
        """Return the remedy for these workers of a node that has `of` workers."""
        if self.verb is None:
            return Remedy(self.text)
        some = ["--worker", worker_ranges(workers)] if self.takes_workers and len(workers) < of else []
        return Remedy(self.text, shlex.join(["tpuctl", self.verb, node_id, *some, *self.rest]))


@dataclass(frozen=True, slots=True)
class Measure:
    """A number from one worker, and the text that replaces `{}`."""

    number: float
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFinding:
    """A finding about one worker. `{}` in the text is replaced by the measure, for several workers by its range."""

    level: Level
    text: str
    why: str | None = None
    advice: tuple[WorkerRemedy, ...] = ()
    measure: Measure | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
    is_passing: bool = False


def unread_finding(what: str, fact: Unknown) -> WorkerFinding:
    """Return the finding that something could not be read on a worker."""
    return WorkerFinding(
        level=Level.UNKNOWN, text=f"{what} could not be read: {fact.reason}", is_passing=fact.is_passing
    )


def worker_rule(
    id_: str, title: str
) -> Callable[[Callable[[AllWorkersFacts, WorkerReport], Iterable[WorkerFinding]]], CheckRule[AllWorkersFacts]]:
    """Make a rule of a function that judges one worker. Its docstring is the text of the reference."""

    def made(judge: Callable[[AllWorkersFacts, WorkerReport], Iterable[WorkerFinding]]) -> CheckRule[AllWorkersFacts]:
        def of_all(facts: AllWorkersFacts) -> Iterator[RuleResult]:
            findings = ((number, one) for number, report in facts.reports for one in judge(facts, report))
            return merge_findings(findings, facts)

        return CheckRule(id_, title, " ".join((judge.__doc__ or "").split()), of_all)

    return made


def merge_findings(findings: Iterable[tuple[int, WorkerFinding]], facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Yield one finding for all workers with the same finding."""
    groups: dict[Any, list[tuple[int, WorkerFinding]]] = {}
    for number, one in findings:
        groups.setdefault((one.level, one.text, one.why, one.advice), []).append((number, one))
    for group in groups.values():
        numbers, first = tuple(number for number, _ in group), group[0][1]
        measures = sorted((one.measure for _, one in group if one.measure), key=lambda measure: measure.number)
        shown = dict.fromkeys(measure.shown for measure in (*measures[:1], *measures[-1:]))
        yield RuleResult(
            level=first.level,
            subject=workers_text(numbers),
            text=first.text.replace("{}", " to ".join(shown)),
            why=first.why,
            remedies=tuple(
                advice.remedy(facts.node.name.node_id, numbers, of=facts.node.workers) for advice in first.advice
            ),
            facts={"workers": list(numbers), "seen": [dict(one.facts) for _, one in group]},
            is_passing=any(one.is_passing for _, one in group),
        )


def workers_text(workers: Iterable[int]) -> str:
    """Return `worker 3`, or `workers 0-7`."""
    numbers = sorted(set(workers))
    return f"worker{'s' if len(numbers) > 1 else ''} {worker_ranges(numbers)}"


def worker_ranges(workers: Iterable[int]) -> str:
    """Return numbers as `--worker` takes them: `0,2-7`."""
    parts: list[list[int]] = []
    for number in sorted(set(workers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def remedy_from_hint(hint: str) -> Remedy:
    """Return a hint as a remedy. A command after the last colon becomes the command of the remedy."""
    text, colon, command = hint.rpartition(": `")
    if colon and command.endswith("`") and "`" not in command[:-1]:
        return Remedy(text, command[:-1])
    return Remedy(hint)


# Troubleshooting and debug-log guides of Cloud TPU.
_LIBTPU_LOG_LEVELS = frozenset({"0", "1", "2", "3"})
LOG_DIR, LEVEL_NAMES = "TPU_LOG_DIR", ("TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL")
# libtpu's word for no log. Translated guides translate it, and then libtpu takes it for a path.
NO_LOG = "disabled"


def log_variable_problem(name: str, value: str) -> str | None:
    """Return what is wrong with the value of a log variable of libtpu, None if it is valid."""
    if name == LOG_DIR and value != NO_LOG and not value.startswith("/"):
        return f"libtpu creates a folder of that name in the working directory of a program; its word for no log is `{NO_LOG}`"
    if name in LEVEL_NAMES and value not in _LIBTPU_LOG_LEVELS:
        return "libtpu's levels are 0 (INFO), 1 (WARNING), 2 (ERROR) and 3 (FATAL)"
    return None


# In percent, of a disk's room and of its inodes.
_FULL, _TOO_FULL = 85, 97
_LITTLE_MEMORY = 5
# libtpu's default folder; removing another path is never proposed.
_LIBTPU_LOG_FOLDER = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_LOGS_WORTH_REMOVING = 1 << 30
# Boots within this time belong to one restart.
_BOOTS_APART = timedelta(minutes=15)
# A boot is reported for this long.
_RECENT_BOOT = timedelta(minutes=30)
_CLOCK_OFF = timedelta(seconds=2)
_MAJORITY = 3


@worker_rule("TPU968", "disk space of the workers")
def check_disk_space(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check the disk space of `/`, the home and `/tmp` on each worker: a warning from 85 % used, an error from 97 %.

    The boot disk has about 100 GB and cannot be resized [observed: users' reports].
    """
    if isinstance(report.disks, Unknown):
        yield unread_finding("the disks", report.disks)
    logs = report.logs.value if isinstance(report.logs, Known) else None
    for disk in report.disks.value if isinstance(report.disks, Known) else ():
        facts = {"mount": disk.mount, "usedPercent": disk.used, "availableBytes": disk.available}
        if disk.used < _FULL:
            yield WorkerFinding(level=Level.OK, text=f"`{disk.mount}` has enough space", facts=facts)
            continue
        advice = []
        if logs and logs.path == _LIBTPU_LOG_FOLDER and logs.size >= _LOGS_WORTH_REMOVING:
            remove = ("sudo", "rm", "-rf", _LIBTPU_LOG_FOLDER)
            advice.append(WorkerRemedy.run("remove libtpu's logs, when no training runs", *remove))
        shell = f"sudo du -xh --max-depth=3 {shlex.quote(disk.mount)} 2>/dev/null | sort -h | tail -n 20"
        find = "find what uses the space: often pip's cache, docker images and old checkpoints"
        advice.append(WorkerRemedy.run(find, shell))
        if disk.mount == "/":
            resize = "the boot disk cannot be resized: create the node with `--data-disk` for large files"
            advice.append(WorkerRemedy(resize))
        yield WorkerFinding(
            level=Level.ERROR if disk.used >= _TOO_FULL else Level.WARNING,
            text=f"`{disk.mount}` is {{}} full",
            why="with a full disk, checkpoints, compilation caches and logins fail, often with misleading errors",
            advice=tuple(advice),
            measure=Measure(disk.used, f"{disk.used} %"),
            facts=facts,
        )


@worker_rule("TPU969", "inodes of the workers")
def check_inodes(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check the inodes of the same disks, with the same limits: without free inodes no file can be created."""
    for disk in report.disks.value if isinstance(report.disks, Known) else ():
        if disk.inodes is None:
            continue
        facts = {"mount": disk.mount, "usedPercent": disk.inodes}
        if disk.inodes < _FULL:
            yield WorkerFinding(level=Level.OK, text=f"`{disk.mount}` has enough inodes", facts=facts)
            continue
        shell = f"sudo du -x --inodes --max-depth=3 {shlex.quote(disk.mount)} 2>/dev/null | sort -n | tail -n 20"
        yield WorkerFinding(
            level=Level.ERROR if disk.inodes >= _TOO_FULL else Level.WARNING,
            text=f"{{}} of the inodes of `{disk.mount}` are used",
            why="without free inodes no file can be created, and the error is `No space left on device`",
            advice=(WorkerRemedy.run("find the many small files", shell),),
            measure=Measure(disk.inodes, f"{disk.inodes} %"),
            facts=facts,
        )


@worker_rule("TPU971", "memory of the workers")
def check_memory(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check the available memory of each worker: a warning at 5 % or less."""
    match report.memory:
        case Known(found) if found.total > 0:
            share = 100 * found.available // found.total
            facts = {"totalBytes": found.total, "availableBytes": found.available}
            if share > _LITTLE_MEMORY:
                yield WorkerFinding(level=Level.OK, text="it has enough memory", facts=facts)
                return
            yield WorkerFinding(
                level=Level.WARNING,
                text="it has {} of its memory left",
                why="the kernel kills processes when memory runs out",
                advice=(WorkerRemedy.run("find what uses it", "ps", "aux", "--sort=-rss"),),
                measure=Measure(share, f"{share} %"),
                facts=facts,
            )
        case Known() | Absent():
            pass
        case Unknown() as fact:
            yield unread_finding("the memory", fact)


@worker_rule("TPU972", "out-of-memory kills")
def check_oom_kills(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check the kernel log since the last boot for processes that were killed because memory ran out."""
    match report.oom_kills:
        case Known(found) if found.count:
            yield WorkerFinding(
                level=Level.WARNING,
                text="the kernel killed processes since the last boot because memory ran out: {}",
                why="a killed process prints no message (exit 137), and the other workers wait for it",
                advice=(
                    WorkerRemedy.run(
                        "find which processes, and when", 'sudo dmesg -T | grep -i -E "out of memory|oom-kill" | tail'
                    ),
                    WorkerRemedy("use fewer workers and smaller buffers in the input pipeline"),
                ),
                measure=Measure(found.count, str(found.count)),
                facts={"count": found.count, "last": found.last},
            )
        case Known():
            yield WorkerFinding(level=Level.OK, text="no process was killed since the last boot because memory ran out")
        case Absent():
            pass
        case Unknown() as fact:
            yield unread_finding("the kernel log", fact)


@check_rule("TPU976", "when the workers booted")
def check_boot_times(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Check that the workers booted together, and whether they did so recently, which terminated all programs.

    A warning for workers that booted more than 15 minutes after the first one; a note for boots in the last half hour.
    """
    up = {number: report.uptime.value for number, report in facts.reports if isinstance(report.uptime, Known)}
    longest = max(up.values(), default=timedelta())
    age = facts.now - facts.node.created if facts.node.created else timedelta()
    findings = []
    for number, report in facts.reports:
        if isinstance(report.uptime, Unknown):
            findings.append((number, unread_finding("its boot time", report.uptime)))
        if number in up:
            seconds, text = up[number].total_seconds(), "it has been up for {}"
            level, why = Level.OK, None
            advice: tuple[WorkerRemedy, ...] = ()
            if longest - up[number] > _BOOTS_APART:
                level, text = Level.WARNING, "it booted {} ago, long after other workers"
                why = "its programs were terminated, and programs on the other workers may wait for them"
                advice = (WorkerRemedy("start the training again on all workers"),)
            elif up[number] < _RECENT_BOOT and age > up[number] + _BOOTS_APART:
                level, text = Level.NOTE, "it booted {} ago, which terminated its programs"
            finding = WorkerFinding(
                level=level,
                text=text,
                why=why,
                advice=advice,
                measure=Measure(seconds, format_duration(up[number])),
                facts={"uptimeSeconds": round(seconds)},
            )
            findings.append((number, finding))
    return merge_findings(findings, facts)


@check_rule("TPU987", "kernels of the workers")
def check_kernels(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Check that all workers run the same kernel; a note if they differ."""
    differ = len({report.kernel for _, report in facts.reports}) > 1
    findings = (
        (
            number,
            WorkerFinding(
                level=Level.NOTE if differ else Level.OK,
                text=f"its kernel is {report.kernel}" + (", and other workers have another one" if differ else ""),
                facts={"kernel": report.kernel},
            ),
        )
        for number, report in facts.reports
    )
    return merge_findings(findings, facts)


@worker_rule("TPU978", "time synchronization of the workers")
def check_time_synchronization(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check with `timedatectl` that each worker synchronizes its clock; with a wrong clock, Google refuses tokens."""
    match report.is_synchronized:
        case Known(True):
            yield WorkerFinding(level=Level.OK, text="its clock is synchronized")
        case Known(_):
            yield WorkerFinding(
                level=Level.WARNING,
                text="its clock is not synchronized",
                why="with a wrong clock, Google's services refuse its tokens, and logs of workers cannot be compared",
                advice=(
                    WorkerRemedy.run("enable time synchronization", "sudo timedatectl set-ntp true"),
                    WorkerRemedy.run("find the cause", "timedatectl status; chronyc tracking"),
                ),
            )
        case Absent(reason):
            yield WorkerFinding(level=Level.NOTE, text=f"its time synchronization is unknown: {reason}")
        case Unknown() as fact:
            yield unread_finding("its time synchronization", fact)


@check_rule("TPU979", "clocks of the workers")
def check_worker_clocks(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Compare the clocks of the workers: a warning for one that is certainly more than 2 s off, network delay excluded.

    The reference is the median of three or more workers, else this machine's clock. A note if this machine's clock is off.
    """
    middles = {number: (report.offset.low + report.offset.high) / 2 for number, report in facts.reports}
    is_majority = len(middles) >= _MAJORITY
    reference = timedelta()
    if is_majority:
        in_order, half = sorted(middles.values()), len(middles) // 2
        reference = (in_order[half] + in_order[~half]) / 2
    findings = ((number, _judge_clock(report, reference, is_majority=is_majority)) for number, report in facts.reports)
    return merge_findings(findings, facts)


def _judge_clock(report: WorkerReport, reference: timedelta, *, is_majority: bool) -> WorkerFinding:
    low, high = report.offset.low, report.offset.high
    bounds = {"leastSeconds": round(low.total_seconds(), 3), "mostSeconds": round(high.total_seconds(), 3)}
    others = "the other workers'" if is_majority else "this machine's"
    if low - reference > _CLOCK_OFF or reference - high > _CLOCK_OFF:
        ahead = low - reference > _CLOCK_OFF
        least = low - reference if ahead else reference - high
        return WorkerFinding(
            level=Level.WARNING,
            text=f"its clock is {'ahead of' if ahead else 'behind'} {others} by at least {{}}",
            why="logs of workers cannot be compared, and Google's services refuse tokens with a wrong time",
            advice=(WorkerRemedy.run("set it from its time server", "sudo chronyc makestep; timedatectl status"),),
            measure=Measure(least.total_seconds(), format_duration(least)),
            facts=bounds,
        )
    if low > _CLOCK_OFF or -high > _CLOCK_OFF:
        text = "its clock agrees with the other workers'; this machine's clock does not, and is probably wrong"
        return WorkerFinding(level=Level.NOTE, text=text, facts=bounds)
    return WorkerFinding(level=Level.OK, text="its clock is right", facts=bounds)


WORKER_MACHINE_RULES = (
    check_disk_space,
    check_inodes,
    check_memory,
    check_oom_kills,
    check_boot_times,
    check_kernels,
    check_time_synchronization,
    check_worker_clocks,
)


_LARGE_LOG_FOLDER = 10 << 30
_SHOWN = 3
# Ids of `explain`.
_KEY_REFUSED, _KEY_UNREADABLE = "ssh-publickey", "ssh-key-unreadable"
_UNIT = "google-startup-scripts.service"


@check_rule("TPU966", "ssh to the workers")
def check_ssh(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Check that every worker accepts ssh; show why one does not, and how to fix it."""
    for group in facts.unreachable:
        yield RuleResult(
            level=Level.ERROR,
            subject=workers_text(group.workers),
            text=group.why,
            why="commands cannot run there, and the worker could not be examined",
            remedies=_ssh_remedies(group, facts),
            facts={"workers": list(group.workers), "errorId": group.error_id},
            is_passing=group.is_passing,
        )
    reached = [number for number, _ in facts.reports]
    if reached:
        text = f"ssh works{' on all workers' if len(reached) == facts.node.workers > 1 else ''}"
        yield RuleResult(level=Level.OK, subject=workers_text(reached), text=text, facts={"workers": reached})


def _ssh_remedies(group: UnreachableWorkers, facts: AllWorkersFacts) -> tuple[Remedy, ...]:
    """Return the remedies. `tpuctl up` creates a missing key, and puts the key on the node."""
    hints, name = tuple(map(remedy_from_hint, group.hints)), facts.node.name.node_id
    put_key = Remedy("put your ssh key on the node", shlex.join(["tpuctl", "up", name]))
    renew = Remedy(
        "if the key pair itself is broken, create a new one; the next `up` puts it on the node", "tpuctl ssh-key renew"
    )
    ours = () if facts.has_own_key else (renew,)
    if group.error_id == _KEY_UNREADABLE and not facts.has_own_key:
        return (replace(put_key, text="create the key if it is missing, and put it on the node"), *ours, *hints)
    if group.error_id == _KEY_REFUSED:
        # If other workers accept the key, it is on the node: then the hints of the message come first.
        return (*hints, put_key) if facts.reports else (put_key, *ours, *hints)
    return hints


@check_rule("TPU967", "reports of the workers")
def check_workers_report(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Check that every worker with ssh sends a report; a program for its `python3` collects it."""
    findings = (
        (
            one.number,
            WorkerFinding(level=Level.UNKNOWN, text=f"it sent no report: {one.report.reason}", is_passing=True),
        )
        for one in facts.workers
        if isinstance(one.report, Unknown)
    )
    return merge_findings(findings, facts)


@worker_rule("TPU975", "chips of the workers")
def check_chips(facts: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Count the chips of each worker by their device files: an error if there are fewer than its accelerator type has."""
    promised, kind = promised_chips(facts.node), facts.node.accelerator_type
    match report.chips:
        case Known(count):
            details = {"chips": count, "promised": promised}
            if promised is None:
                text = f"it has {count} chips; the number for `{kind}` is unknown"
                yield WorkerFinding(level=Level.NOTE, text=text, facts=details)
            elif count >= promised:
                yield WorkerFinding(level=Level.OK, text=f"it has its {promised} chips", facts=details)
            else:
                yield WorkerFinding(
                    level=Level.ERROR,
                    text=f"it has {count or 'none'} of the {promised} chips of a `{kind}` worker",
                    why="programs fail to initialize the TPU there, or wait for the other chips",
                    advice=(
                        WorkerRemedy("reboot its workers", "reset"),
                        WorkerRemedy("if that does not help, recreate the node", "reset", ("--mode", "recreate")),
                    ),
                    facts=details,
                )
        case Absent():
            pass
        case Unknown() as fact:
            yield unread_finding("its chips", fact)


@check_rule("TPU973", "processes that hold the TPU")
def check_tpu_holders(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Show the processes that hold the TPU of each worker: a note, since training does that. Only one process can hold it.

    A warning if it is held on some workers of a slice and free on others, where the program has ended. A warning too for a
    process that waits inside the kernel, where no signal reaches it.
    """
    uses = {number: one.tpu_use.value for number, one in facts.reports if isinstance(one.tpu_use, Known)}
    held = {number for number, use in uses.items() if use.holders}
    is_partly = 0 < len(held) < len(uses)
    findings = []
    for number, one in facts.reports:
        if isinstance(one.tpu_use, Unknown):
            findings.append((number, unread_finding("the processes that hold its TPU", one.tpu_use)))
        elif number in uses:
            findings.append((number, _judge_holders(uses[number], is_partly=is_partly)))
    return merge_findings(findings, facts)


def _judge_holders(use: TpuUse, *, is_partly: bool) -> WorkerFinding:
    details = {
        "holders": [
            {"pid": one.pid, "user": one.user, "name": one.name, "age": round(one.age.total_seconds())}
            for one in use.holders
        ]
    }
    if not use.holders:
        limit = ", as far as visible without root" if use.hidden else ""
        return WorkerFinding(level=Level.OK, text=f"no process holds its TPU{limit}", facts=details)
    names = list(dict.fromkeys(f"`{one.name}` of {one.user}" for one in use.holders))
    who = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    verb = "hold" if len(names) > 1 else "holds"
    show = WorkerRemedy("show these processes", "unstick", ("--dry-run",), takes_workers=True)
    if any(one.is_waiting_in_kernel for one in use.holders):
        return WorkerFinding(
            level=Level.WARNING,
            text=f"{who} {verb} the TPU and waits inside the kernel",
            why="no signal reaches such a process: it ends with a reboot, or when what it waits for happens",
            advice=(show, WorkerRemedy("if it does not end, reboot all workers", "reset", ("--mode", "reboot"))),
            facts=details,
        )
    if is_partly:
        return WorkerFinding(
            level=Level.WARNING,
            text=f"{who} {verb} the TPU, which is free on other workers",
            why="a program of a slice runs on all workers: if it has ended on one, the others wait, or are left over",
            advice=(show, WorkerRemedy("terminate the processes that are left over", "unstick", takes_workers=True)),
            facts=details,
        )
    return WorkerFinding(
        level=Level.NOTE,
        text=f"{who} {verb} the TPU",
        why="a second program fails: `The TPU is already in use by process with pid`",
        advice=(WorkerRemedy("terminate it, unless it is your running training", "unstick", takes_workers=True),),
        facts=details,
    )


@worker_rule("TPU974", "libtpu's lock file")
def check_lock_file(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check for a stale `/tmp/libtpu_lockfile`, which no process has open: a warning.

    A program of another user may not write to it, and fails as if the TPU were in use [TensorFlow source; observed].
    """
    if not isinstance(report.tpu_use, Known):  # TPU973 says why
        return
    use = report.tpu_use.value
    details = {"lockFile": use.lock_owner is not None, "owner": use.lock_owner}
    if use.lock_owner is None or use.is_lock_held or use.holders:
        yield WorkerFinding(level=Level.OK, text="no stale lock file", facts=details)
    elif use.hidden:
        text = f"there is a lock file of {use.lock_owner}; its holder is not visible without root"
        yield WorkerFinding(level=Level.UNKNOWN, text=text, facts=details)
    else:
        yield WorkerFinding(
            level=Level.WARNING,
            text=f"`/tmp/libtpu_lockfile` of {use.lock_owner} is stale: no process holds it",
            why="a program of another user fails, as if the TPU were in use",
            advice=(WorkerRemedy("remove it, if still no process holds it", "unstick", takes_workers=True),),
            facts=details,
        )


@worker_rule("TPU970", "libtpu's log")
def check_libtpu_log(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check the log folder of libtpu: a warning from 10 GiB on, or if it is not writable.

    It is `TPU_LOG_DIR`, else `/tmp/tpu_logs`. libtpu creates it, but not its parents, and continues without a log if it cannot
    write there [documentation "debug logs"].
    """
    if isinstance(report.logs, Unknown):
        yield unread_finding("libtpu's log folder", report.logs)
    # TPU980 reports a relative path.
    if not isinstance(report.logs, Known) or report.logs.value.state is LogFolderState.RELATIVE:
        return
    folder = report.logs.value
    details = {"path": folder.path, "state": str(folder.state), "bytes": folder.size, "files": folder.files}
    if folder.state is LogFolderState.LACKS_PARENT:
        yield WorkerFinding(
            level=Level.WARNING,
            text=f"libtpu cannot create `{folder.path}`: its parent folder is missing",
            why="libtpu continues without a log, which you need after a failure",
            advice=(WorkerRemedy.run("create it", "mkdir", "-p", folder.path),),
            facts=details,
        )
    elif folder.state is LogFolderState.REFUSED:
        yield WorkerFinding(
            level=Level.WARNING,
            text=f"this login cannot write to `{folder.path}`",
            why="libtpu continues without a log; the folder often belongs to another user who trained there",
            advice=(WorkerRemedy.run("make it writable for all users", "sudo", "chmod", "-R", "a+rwX", folder.path),),
            facts=details,
        )
    elif folder.size >= _LARGE_LOG_FOLDER:
        gib = folder.size >> 30
        remove = WorkerRemedy.run("remove it, when no training runs", "sudo", "rm", "-rf", folder.path)
        yield WorkerFinding(
            level=Level.WARNING,
            text=f"libtpu's log in `{folder.path}` has {{}}{'' if folder.is_complete else ' or more'}",
            why="it is on the boot disk, which cannot be resized",
            advice=(
                *((remove,) if folder.path.rstrip("/").endswith("/tpu_logs") else ()),
                WorkerRemedy("log less: `tpuctl run --env TPU_MIN_LOG_LEVEL=1`"),
            ),
            measure=Measure(gib, f"{gib} GiB"),
            facts=details,
        )
    else:
        yield WorkerFinding(level=Level.OK, text="libtpu can write its log", facts=details)


@worker_rule("TPU977", "startup script and cloud-init of the workers")
def check_startup(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check how the startup script and cloud-init ended on each worker: a warning while they run, and if they failed."""
    see = WorkerRemedy.run("read its log", f"sudo journalctl -u {_UNIT} -b --no-pager | tail -n 50")
    match report.startup_result:
        case Known(result) if result.state is StartupState.RUNNING:
            why = "what it installs or starts may still be missing"
            wait = WorkerRemedy("wait until it ends", "wait", ("--for", "startup"))
            yield WorkerFinding(
                level=Level.WARNING, text=result.detail or "the startup still runs", why=why, advice=(wait, see)
            )
        case Known(result) if result.state is StartupState.FAILED:
            why = "what it installs or starts may be missing or incomplete"
            yield WorkerFinding(level=Level.WARNING, text=result.detail or "the startup failed", why=why, advice=(see,))
        case Known(result) if result.state is StartupState.DONE:
            yield WorkerFinding(level=Level.OK, text="startup script and cloud-init succeeded")
        case Known():
            text = "the result of startup script and cloud-init is not recorded there"
            yield WorkerFinding(level=Level.UNKNOWN, text=text)
        case Absent():
            pass
        case Unknown() as fact:
            yield unread_finding("the result of the startup", fact)


WORKER_TPU_RULES = (
    check_ssh,
    check_workers_report,
    check_chips,
    check_tpu_holders,
    check_lock_file,
    check_startup,
    check_libtpu_log,
)


_PROFILES = "`~/.profile`, `~/.bash_profile` and `/etc/profile`, and what they read"
_FILES = "~/.profile ~/.bash_profile ~/.bashrc ~/.zshrc /etc/environment /etc/profile.d/*"
# Only programs that share a worker need these [TPU documentation; JAX source].
_PARTS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
_LOG_NAMES = (LOG_DIR, *LEVEL_NAMES, "TPU_MAX_LOG_SIZE_MB", "TF_CPP_MIN_LOG_LEVEL")
_BACKEND_NAMES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE", "XRT_TPU_CONFIG", "LIBTPU_INIT_ARGS")
_COMPARED = (*_LOG_NAMES, *_PARTS, *_BACKEND_NAMES, "TPU_LIBRARY_PATH")


@worker_rule("TPU980", "log variables")
def check_log_variables(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check `TPU_LOG_DIR` and the log levels: a warning for a value that libtpu does not accept.

    Its word for no log is `disabled`; a translation of that word is taken for a path. Levels are 0 to 3. A note if
    `TF_CPP_MIN_LOG_LEVEL` hides warnings or errors of TensorFlow and of libtpu's clients [documentation].
    """
    if isinstance(report.variables, Unknown):
        yield unread_finding("its variables", report.variables)
    if not isinstance(report.variables, Known):
        return
    variables, findings = report.variables.value, []
    for name in (LOG_DIR, *LEVEL_NAMES):
        findings += [
            _warning(variables, name, value, why)
            for value in variables.values(name)
            if (why := log_variable_problem(name, value))
        ]
    for value in variables.values("TF_CPP_MIN_LOG_LEVEL"):
        if value in {"2", "3"}:
            why = f"it hides {'warnings' if value == '2' else 'warnings and errors'}"
            findings.append(_warning(variables, "TF_CPP_MIN_LOG_LEVEL", value, why, level=Level.NOTE))
    if variables.login_unread is not None:
        unknown = unread_finding("the variables of login shells", Unknown(variables.login_unread))
        findings.append(
            replace(unknown, advice=(WorkerRemedy(f"check {_PROFILES}: a login at a terminal runs them too"),))
        )
    yield from findings or [WorkerFinding(level=Level.OK, text="no variable prevents logs")]


@worker_rule("TPU981", "backend and chip variables")
def check_backend_variables(_: AllWorkersFacts, report: WorkerReport) -> Iterator[WorkerFinding]:
    """Check for variables that keep programs from using the TPU or some of its chips: a warning for each.

    `JAX_PLATFORMS` without `tpu`, `PJRT_DEVICE` with another device, leftover bounds of chips and processes. Notes for
    `XRT_TPU_CONFIG`, which torch_xla ignores since PJRT replaced XRT (the version is unverified), for `LIBTPU_INIT_ARGS`, whose
    flags depend on the version of libtpu (unverified), and for a libtpu chosen by `TPU_LIBRARY_PATH`.
    """
    if not isinstance(report.variables, Known):  # TPU980 says why
        return
    variables = report.variables.value
    reasons = {
        **dict.fromkeys(("JAX_PLATFORMS", "JAX_PLATFORM_NAME"), "JAX does not use the TPU then, but another device"),
        "PJRT_DEVICE": "torch_xla uses that device, not the TPU",
        **dict.fromkeys(_PARTS, "every program uses only these chips, or waits for processes that do not exist"),
    }
    findings = [
        _warning(variables, name, value, why)
        for name, why in reasons.items()
        for value in variables.values(name)
        if name in _PARTS or "tpu" not in value.lower().split(",")
    ]
    notes = {
        "XRT_TPU_CONFIG": "a torch_xla with PJRT ignores it, and needs `PJRT_DEVICE=TPU`",
        "LIBTPU_INIT_ARGS": "each version of libtpu has its own flags, and an unknown one may terminate the program",
        "TPU_LIBRARY_PATH": "programs load that libtpu instead of the one installed with the framework",
    }
    findings += [
        _warning(variables, name, value, why, level=Level.NOTE)
        for name, why in notes.items()
        for value in variables.values(name)
    ]
    yield from findings or [WorkerFinding(level=Level.OK, text="no variable keeps programs from using the TPU")]


def _warning(
    variables: TpuVariables, name: str, value: str, why: str, *, level: Level = Level.WARNING
) -> WorkerFinding:
    find = WorkerRemedy.run("find where it is set, and remove it there", f"grep -n {name} {_FILES} 2>/dev/null")
    places: Mapping[str, bool] = {
        "a running job": any(job.get(name) == value for job in variables.jobs),
        "login shells": variables.login.get(name) == value,
        "ssh sessions": variables.session.get(name) == value,
    }
    return WorkerFinding(
        level=level,
        text=f"`{name}={value}` is set in {' and '.join(place for place, has in places.items() if has)}",
        why=why,
        advice=() if level is Level.NOTE else (find,),
        facts={"name": name, "value": value},
    )


@check_rule("TPU982", "same variables on all workers")
def check_same_variables(facts: AllWorkersFacts) -> Iterator[RuleResult]:
    """Compare these variables between the workers: a warning for each that differs, since a slice needs the same on all."""
    variables = {number: one.variables.value for number, one in facts.reports if isinstance(one.variables, Known)}
    if len(variables) < 2:
        return
    differs = False
    for name in _COMPARED:
        groups: dict[str | None, list[int]] = {}
        for number, found in variables.items():
            values = found.values(name)
            groups.setdefault(values[0] if values else None, []).append(number)
        if len(groups) == 1:
            continue
        differs = True
        in_order = sorted(groups.items(), key=lambda group: -len(group[1]))
        parts = [
            f"{'not set' if value is None else f'`{value}`'} on {workers_text(numbers)}" for value, numbers in in_order
        ]
        yield RuleResult(
            level=Level.WARNING,
            subject=workers_text(in_order[-1][1]),
            text=f"`{name}` is {', '.join(parts)}",
            why="a program of a slice needs the same value on all its workers",
            facts={"name": name, "values": [{"value": value, "workers": numbers} for value, numbers in in_order]},
        )
    if not differs:
        yield RuleResult(
            level=Level.OK, subject=workers_text(variables), text="variables of TPU programs are the same on all"
        )


WORKER_VARIABLE_RULES = (check_log_variables, check_backend_variables, check_same_variables)

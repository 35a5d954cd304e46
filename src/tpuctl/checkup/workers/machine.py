"""Rules about the workers as machines: disk space, memory, boots and clocks."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.checkup.workers.saying import Advice, Measure, Saying, each, together, unread
from tpuctl.clock import format_duration
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Level, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.workers.facts import Disk, Examination, WorkersFacts
    from tpuctl.preflight.findings import Found

# In percent, of a disk's room and of its inodes.
_FULL, _TOO_FULL = 85, 97
_LITTLE_MEMORY = 5
# libtpu's default folder; removing another path is never proposed.
_LOGS = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_MANY_LOGS = 1 << 30
# Boots within this time belong to one restart.
_BOOTS_APART = timedelta(minutes=15)
# A boot is reported for this long.
_NEWS = timedelta(minutes=30)
_FAR = timedelta(seconds=2)
_MAJORITY = 3


@each("TPU968", "disk space of the workers")
def disk_space(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check the disk space of `/`, the home and `/tmp` on each worker: a warning from 85 % used, an error from 97 %.

    The boot disk has about 100 GB and cannot be resized [observed: users' reports].
    """
    match report.disks:
        case Known(disks):
            for disk in disks:
                yield _judge_disk(disk, report)
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("the disks", fact)


def _judge_disk(disk: Disk, report: Examination) -> Saying:
    facts = {"mount": disk.mount, "usedPercent": disk.used, "availableBytes": disk.available}
    if disk.used < _FULL:
        return Saying(level=Level.OK, text=f"`{disk.mount}` has enough space", facts=facts)
    logs = report.logs.value if isinstance(report.logs, Known) else None
    shell = f"sudo du -xh --max-depth=3 {shlex.quote(disk.mount)} 2>/dev/null | sort -h | tail -n 20"
    advice = [Advice.run("find what uses the space: often pip's cache, docker images and old checkpoints", shell)]
    if logs and logs.path == _LOGS and logs.size >= _MANY_LOGS:
        advice.insert(0, Advice.run("remove libtpu's logs, when no training runs", "sudo", "rm", "-rf", _LOGS))
    if disk.mount == "/":
        advice.append(Advice("the boot disk cannot be resized: create the node with `--data-disk` for large files"))
    return Saying(
        level=Level.ERROR if disk.used >= _TOO_FULL else Level.WARNING,
        text=f"`{disk.mount}` is {{}} full",
        why="with a full disk, checkpoints, compilation caches and logins fail, often with misleading errors",
        advice=tuple(advice),
        measure=Measure(disk.used, f"{disk.used} %"),
        facts=facts,
    )


@each("TPU969", "inodes of the workers")
def inodes(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check the inodes of the same disks, with the same limits: without free inodes no file can be created."""
    for disk in report.disks.value if isinstance(report.disks, Known) else ():
        if disk.inodes is None:
            continue
        facts = {"mount": disk.mount, "usedPercent": disk.inodes}
        if disk.inodes < _FULL:
            yield Saying(level=Level.OK, text=f"`{disk.mount}` has enough inodes", facts=facts)
            continue
        shell = f"sudo du -x --inodes --max-depth=3 {shlex.quote(disk.mount)} 2>/dev/null | sort -n | tail -n 20"
        yield Saying(
            level=Level.ERROR if disk.inodes >= _TOO_FULL else Level.WARNING,
            text=f"{{}} of the inodes of `{disk.mount}` are used",
            why="without free inodes no file can be created, and the error is `No space left on device`",
            advice=(Advice.run("find the many small files", shell),),
            measure=Measure(disk.inodes, f"{disk.inodes} %"),
            facts=facts,
        )


@each("TPU971", "memory of the workers")
def memory(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check the available memory of each worker: a warning at 5 % or less."""
    match report.memory:
        case Known(found) if found.total > 0:
            share = 100 * found.available // found.total
            facts = {"totalBytes": found.total, "availableBytes": found.available}
            if share > _LITTLE_MEMORY:
                yield Saying(level=Level.OK, text="it has enough memory", facts=facts)
                return
            yield Saying(
                level=Level.WARNING,
                text="it has {} of its memory left",
                why="the kernel kills processes when memory runs out",
                advice=(Advice.run("find what uses it", "ps", "aux", "--sort=-rss"),),
                measure=Measure(share, f"{share} %"),
                facts=facts,
            )
        case Known() | Absent():
            pass
        case Unknown() as fact:
            yield unread("the memory", fact)


@each("TPU972", "out-of-memory kills")
def kills(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check the kernel log since the last boot for processes that were killed because memory ran out."""
    match report.kills:
        case Known(found) if found.count:
            yield Saying(
                level=Level.WARNING,
                text="the kernel killed processes since the last boot because memory ran out: {}",
                why="a killed process prints no message (exit 137), and the other workers wait for it",
                advice=(
                    Advice.run(
                        "find which processes, and when", 'sudo dmesg -T | grep -i -E "out of memory|oom-kill" | tail'
                    ),
                    Advice("use fewer workers and smaller buffers in the input pipeline"),
                ),
                measure=Measure(found.count, str(found.count)),
                facts={"count": found.count, "last": found.last},
            )
        case Known():
            yield Saying(level=Level.OK, text="no process was killed since the last boot because memory ran out")
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("the kernel log", fact)


@rule("TPU976", "when the workers booted")
def boots(facts: WorkersFacts) -> Iterator[Found]:
    """Check that the workers booted together, and whether they did so recently, which terminated all programs.

    A warning for workers that booted more than 15 minutes after the first one; a note for boots in the last half hour.
    """
    up = {number: report.uptime.value for number, report in facts.reports if isinstance(report.uptime, Known)}
    longest = max(up.values(), default=timedelta())
    age = facts.now - facts.node.created if facts.node.created else timedelta()
    findings = []
    for number, report in facts.reports:
        if isinstance(report.uptime, Unknown):
            findings.append((number, unread("its boot time", report.uptime)))
        if number in up:
            seconds, text = up[number].total_seconds(), "it has been up for {}"
            level, why = Level.OK, None
            advice: tuple[Advice, ...] = ()
            if longest - up[number] > _BOOTS_APART:
                level, text = Level.WARNING, "it booted {} ago, long after other workers"
                why = "its programs were terminated, and programs on the other workers may wait for them"
                advice = (Advice("start the training again on all workers"),)
            elif up[number] < _NEWS and age > up[number] + _BOOTS_APART:
                level, text = Level.NOTE, "it booted {} ago, which terminated its programs"
            saying = Saying(
                level=level,
                text=text,
                why=why,
                advice=advice,
                measure=Measure(seconds, format_duration(up[number])),
                facts={"uptimeSeconds": round(seconds)},
            )
            findings.append((number, saying))
    return together(findings, facts)


@rule("TPU987", "kernels of the workers")
def kernels(facts: WorkersFacts) -> Iterator[Found]:
    """Check that all workers run the same kernel; a note if they differ."""
    differ = len({report.kernel for _, report in facts.reports}) > 1
    findings = (
        (
            number,
            Saying(
                level=Level.NOTE if differ else Level.OK,
                text=f"its kernel is {report.kernel}" + (", and other workers have another one" if differ else ""),
                facts={"kernel": report.kernel},
            ),
        )
        for number, report in facts.reports
    )
    return together(findings, facts)


@each("TPU978", "time synchronization of the workers")
def synchronized(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check with `timedatectl` that each worker synchronizes its clock; with a wrong clock, Google refuses tokens."""
    match report.is_synchronized:
        case Known(True):
            yield Saying(level=Level.OK, text="its clock is synchronized")
        case Known(_):
            yield Saying(
                level=Level.WARNING,
                text="its clock is not synchronized",
                why="with a wrong clock, Google's services refuse its tokens, and logs of workers cannot be compared",
                advice=(
                    Advice.run("enable time synchronization", "sudo timedatectl set-ntp true"),
                    Advice.run("find the cause", "timedatectl status; chronyc tracking"),
                ),
            )
        case Absent(reason):
            yield Saying(level=Level.NOTE, text=f"its time synchronization is unknown: {reason}")
        case Unknown() as fact:
            yield unread("its time synchronization", fact)


@rule("TPU979", "clocks of the workers")
def clocks(facts: WorkersFacts) -> Iterator[Found]:
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
    return together(findings, facts)


def _judge_clock(report: Examination, reference: timedelta, *, is_majority: bool) -> Saying:
    low, high = report.offset.low, report.offset.high
    bounds = {"leastSeconds": round(low.total_seconds(), 3), "mostSeconds": round(high.total_seconds(), 3)}
    others = "the other workers'" if is_majority else "this machine's"
    if low - reference > _FAR or reference - high > _FAR:
        ahead = low - reference > _FAR
        least = low - reference if ahead else reference - high
        return Saying(
            level=Level.WARNING,
            text=f"its clock is {'ahead of' if ahead else 'behind'} {others} by at least {{}}",
            why="logs of workers cannot be compared, and Google's services refuse tokens with a wrong time",
            advice=(Advice.run("set it from its time server", "sudo chronyc makestep; timedatectl status"),),
            measure=Measure(least.total_seconds(), format_duration(least)),
            facts=bounds,
        )
    if low > _FAR or -high > _FAR:
        text = "its clock agrees with the other workers'; this machine's clock does not, and is probably wrong"
        return Saying(level=Level.NOTE, text=text, facts=bounds)
    return Saying(level=Level.OK, text="its clock is right", facts=bounds)


RULES = (disk_space, inodes, memory, kills, boots, kernels, synchronized, clocks)

"""Rules about the workers as machines: room on disks, memory, boots and clocks."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.checkup.workers.saying import Advice, Measure, Saying, each, together, unread
from tpuctl.clock import format_duration
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Level, rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpuctl.checkup.workers.facts import Disk, Examination, WorkersFacts
    from tpuctl.preflight.findings import Found

# In percent, of a disk's room and of its inodes.
_FULL, _TOO_FULL = 85, 97
_LITTLE_MEMORY = 5
# libtpu's own default place; another path is never offered for removal.
_LOGS = "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
_MANY_LOGS = 1 << 30
# Less than this apart, boots are those of one restart; and so long a boot is news.
_BOOTS_APART = timedelta(minutes=15)
_NEWS = timedelta(minutes=30)
_FAR = timedelta(seconds=2)
_MAJORITY = 3


@each("TPU968", "disk space of the workers")
def disk_space(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check the room on the disks of `/`, the home and `/tmp` of each worker: a warning from 85 % on, an error from 97 % on.

    The boot disk has about 100 GB and cannot be made larger [observed: users' reports].
    """
    match told.disks:
        case Known(disks):
            for disk in disks:
                yield _room(disk, told)
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("the disks", fact)


def _room(disk: Disk, told: Examination) -> Saying:
    facts = {"mount": disk.mount, "usedPercent": disk.used, "availableBytes": disk.available}
    if disk.used < _FULL:
        return Saying(level=Level.OK, text=f"there is room on `{disk.mount}`", facts=facts)
    return Saying(
        level=Level.ERROR if disk.used >= _TOO_FULL else Level.WARNING,
        text=f"`{disk.mount}` is {{}} full",
        why="a full disk ends checkpoints, compilation caches and logins, with errors that seldom name it",
        advice=tuple(_ways_to_room(disk, told)),
        measure=Measure(disk.used, f"{disk.used} %"),
        facts=facts,
    )


def _ways_to_room(disk: Disk, told: Examination) -> Iterator[Advice]:
    logs = told.logs.value if isinstance(told.logs, Known) else None
    if logs and logs.path == _LOGS and logs.size >= _MANY_LOGS:
        yield Advice.run("remove libtpu's logs, once nothing trains", "sudo", "rm", "-rf", _LOGS)
    shell = f"sudo du -xh --max-depth=3 {shlex.quote(disk.mount)} 2>/dev/null | sort -h | tail -n 20"
    yield Advice.run("see what takes the room: pip's cache, images of docker and old checkpoints often do", shell)
    if disk.mount == "/":
        yield Advice("the boot disk cannot be made larger: make the node with `--data-disk` for what is large")


@each("TPU969", "inodes of the workers")
def inodes(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check the inodes of the same disks, by the same bounds: without any left nothing can be written, though there is room."""
    for disk in told.disks.value if isinstance(told.disks, Known) else ():
        if disk.inodes is None:
            continue
        facts = {"mount": disk.mount, "usedPercent": disk.inodes}
        if disk.inodes < _FULL:
            yield Saying(level=Level.OK, text=f"there are inodes left on `{disk.mount}`", facts=facts)
            continue
        shell = f"sudo du -x --inodes --max-depth=3 {shlex.quote(disk.mount)} 2>/dev/null | sort -n | tail -n 20"
        yield Saying(
            level=Level.ERROR if disk.inodes >= _TOO_FULL else Level.WARNING,
            text=f"{{}} of the inodes of `{disk.mount}` are used",
            why="without inodes no file can be made, and the error says that no space is left",
            advice=(Advice.run("see where the many small files are", shell),),
            measure=Measure(disk.inodes, f"{disk.inodes} %"),
            facts=facts,
        )


@each("TPU971", "memory of the workers")
def memory(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check how much of each worker's memory programs can still get: a warning at 5 % and less."""
    match told.memory:
        case Known(seen) if seen.total > 0:
            share = 100 * seen.available // seen.total
            facts = {"totalBytes": seen.total, "availableBytes": seen.available}
            if share > _LITTLE_MEMORY:
                yield Saying(level=Level.OK, text="there is memory left", facts=facts)
                return
            yield Saying(
                level=Level.WARNING,
                text="{} of the memory is left",
                why="the kernel ends processes when there is none",
                advice=(Advice.run("see what takes it", "ps", "aux", "--sort=-rss"),),
                measure=Measure(share, f"{share} %"),
                facts=facts,
            )
        case Known() | Absent():
            pass
        case Unknown() as fact:
            yield unread("the memory", fact)


@each("TPU972", "processes that were ended for want of memory")
def kills(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check the kernel's log since it booted for processes that it ended because there was no memory left."""
    match told.kills:
        case Known(seen) if seen.count:
            yield Saying(
                level=Level.WARNING,
                text="since it booted the kernel ended processes for want of memory: {}",
                why="such a process ends without a word of its own (exit 137), and the other workers wait for it",
                advice=(
                    Advice.run("see which, and when", 'sudo dmesg -T | grep -i -E "out of memory|oom-kill" | tail'),
                    Advice("load less at once: fewer workers and smaller buffers in the input pipeline"),
                ),
                measure=Measure(seen.count, f"{seen.count} of them" if seen.count > 1 else "one"),
                facts={"count": seen.count, "last": seen.last},
            )
        case Known():
            yield Saying(level=Level.OK, text="no process was ended for want of memory since it booted")
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("the kernel's log", fact)


@rule("TPU976", "when the workers booted")
def boots(facts: WorkersFacts) -> Iterator[Found]:
    """Check that the workers booted together, and whether they did so lately: what ran before has ended.

    A warning for workers that booted more than 15 minutes after the first of them; a note for boots of the last half hour.
    """
    up = {number: told.uptime.value for number, told in facts.told if isinstance(told.uptime, Known)}
    longest = max(up.values(), default=timedelta())
    age = facts.now - facts.node.created if facts.node.created else timedelta()
    said = []
    for number, told in facts.told:
        if isinstance(told.uptime, Unknown):
            said.append((number, unread("when it booted", told.uptime)))
        if number in up:
            said.append((number, _boot(up[number], longest, age)))
    return together(said, facts)


def _boot(up: timedelta, longest: timedelta, age: timedelta) -> Saying:
    seconds = up.total_seconds()
    ago, seen = Measure(seconds, f"{format_duration(up)}"), {"uptimeSeconds": round(seconds)}
    if longest - up > _BOOTS_APART:
        return Saying(
            level=Level.WARNING,
            text="it booted {} ago, long after other workers",
            why="what ran there has ended, and programs on the other workers may wait for it",
            advice=(Advice("start the training anew on all workers"),),
            measure=ago,
            facts=seen,
        )
    if up < _NEWS and age > up + _BOOTS_APART:
        text = "it booted {} ago: what ran before has ended"
        return Saying(level=Level.NOTE, text=text, measure=ago, facts=seen)
    return Saying(level=Level.OK, text="it has run for {}", measure=ago, facts=seen)


@rule("TPU987", "kernels of the workers")
def kernels(facts: WorkersFacts) -> Iterator[Found]:
    """Check that all workers run the same kernel; a note where one was upgraded apart from the others."""
    differ = len({told.kernel for _, told in facts.told}) > 1
    said = (
        (
            number,
            Saying(
                level=Level.NOTE if differ else Level.OK,
                text=f"its kernel is {told.kernel}" + (", and other workers have another" if differ else ""),
                facts={"kernel": told.kernel},
            ),
        )
        for number, told in facts.told
    )
    return together(said, facts)


@each("TPU978", "time synchronisation of the workers")
def synchronized(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check by `timedatectl` that each worker's clock is kept by a time server: without one, tokens are refused in time."""
    match told.is_synchronized:
        case Known(True):
            yield Saying(level=Level.OK, text="its clock is synchronised")
        case Known(_):
            yield Saying(
                level=Level.WARNING,
                text="its clock is not synchronised",
                why="a clock that goes wrong makes Google's services refuse its tokens, and logs of workers incomparable",
                advice=(
                    Advice.run("let it be kept again", "sudo timedatectl set-ntp true"),
                    Advice.run("see why it is not", "timedatectl status; chronyc tracking"),
                ),
            )
        case Absent(reason):
            yield Saying(level=Level.NOTE, text=f"whether its clock is synchronised cannot be asked: {reason}")
        case Unknown() as fact:
            yield unread("whether its clock is synchronised", fact)


@rule("TPU979", "clocks of the workers against one another")
def clocks(facts: WorkersFacts) -> Iterator[Found]:
    """Compare the workers' clocks: a warning for one that is more than 2 s off for certain, whatever the way there took.

    From three workers on the middle one is the measure, else this machine's clock; a note where that is the one that is off.
    """
    middles = {number: (told.offset.low + told.offset.high) / 2 for number, told in facts.told}
    is_majority = len(middles) >= _MAJORITY
    measure = _median(middles.values()) if is_majority else timedelta()
    return together(((number, _off(told, measure, is_majority=is_majority)) for number, told in facts.told), facts)


def _median(clocks: Iterable[timedelta]) -> timedelta:
    in_order = sorted(clocks)
    half = len(in_order) // 2
    return (in_order[half] + in_order[~half]) / 2


def _off(told: Examination, measure: timedelta, *, is_majority: bool) -> Saying:
    low, high = told.offset.low, told.offset.high
    seen = {"leastSeconds": round(low.total_seconds(), 3), "mostSeconds": round(high.total_seconds(), 3)}
    others = "the other workers'" if is_majority else "this machine's"
    if low - measure > _FAR or measure - high > _FAR:
        ahead = low - measure > _FAR
        least = low - measure if ahead else measure - high
        return Saying(
            level=Level.WARNING,
            text=f"its clock is {'ahead of' if ahead else 'behind'} {others} by at least {{}}",
            why="logs of workers cannot be compared by time then, and Google's services refuse tokens of another time",
            advice=(Advice.run("set it by its time server", "sudo chronyc makestep; timedatectl status"),),
            measure=Measure(least.total_seconds(), format_duration(least)),
            facts=seen,
        )
    if low > _FAR or -high > _FAR:
        text = "its clock agrees with the other workers', and this machine's does not: that one is probably wrong"
        return Saying(level=Level.NOTE, text=text, facts=seen)
    return Saying(level=Level.OK, text="its clock is right", facts=seen)


RULES = (disk_space, inodes, memory, kills, boots, kernels, synchronized, clocks)

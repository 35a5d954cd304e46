"""Rules about what the workers show of their TPU: device files, who holds them, libtpu's log, the startup."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.checkup.workers.facts import LogState
from tpuctl.checkup.workers.saying import Advice, Measure, Saying, each, in_words, named, together, unread
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.readiness import Startup
from tpuctl.readiness.levels import promised_chips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.workers.facts import Examination, Hold, LogFolder, ShutOut, WorkersFacts

_MANY_LOGS = 10 << 30
_SHOWN = 3
# Ids of `diagnosis`.
_KEY_REFUSED, _KEY_UNREADABLE = "ssh-publickey", "ssh-key-unreadable"
_UNIT = "google-startup-scripts.service"


@rule("TPU966", "ssh to the workers")
def answers(facts: WorkersFacts) -> Iterator[Found]:
    """Check that every worker answers ssh; where one does not, why, and what helps: for a key, what puts it there anew."""
    for shut in facts.shut_out:
        yield Found(
            level=Level.ERROR,
            subject=named(shut.workers),
            text=shut.why,
            why="nothing can be run there, and what is on the worker could not be looked at",
            remedies=_ways_in(shut, facts),
            facts={"workers": list(shut.workers), "errorId": shut.error_id},
            is_passing=shut.is_passing,
        )
    told = [number for number, _ in facts.told]
    if told:
        text = f"ssh gets in{' everywhere' if len(told) == facts.node.workers > 1 else ''}"
        yield Found(level=Level.OK, subject=named(told), text=text, facts={"workers": told})


def _ways_in(shut: ShutOut, facts: WorkersFacts) -> tuple[Remedy, ...]:
    """Return what helps. tpuctl puts its key on a node by itself, and makes it where it is missing."""
    hints, name = tuple(map(in_words, shut.hints)), facts.node.name.node_id
    bring = Remedy("put our key on the node", shlex.join(["tpuctl", "up", name]))
    renew = Remedy(
        "where the pair itself is broken make a new one; the next `up` takes it there", "tpuctl ssh-key renew"
    )
    ours = () if facts.has_own_key else (renew,)
    if shut.error_id == _KEY_UNREADABLE and not facts.has_own_key:
        return (replace(bring, text="make the key where it is missing, and put it on the node"), *ours, *hints)
    if shut.error_id == _KEY_REFUSED:
        # Where other workers take the same key it is on the node: first comes what helps these.
        return (*hints, bring) if facts.told else (bring, *ours, *hints)
    return hints


@rule("TPU967", "what the workers tell")
def told(facts: WorkersFacts) -> Iterator[Found]:
    """Check that every worker that ssh gets into tells of itself; a program for its `python3` does."""
    said = (
        (
            one.number,
            Saying(level=Level.UNKNOWN, text=f"it tells nothing of itself: {one.told.reason}", is_passing=True),
        )
        for one in facts.workers
        if isinstance(one.told, Unknown)
    )
    return together(said, facts)


@each("TPU975", "chips of the workers")
def devices(facts: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Count the device files of each worker's chips: an error where there are fewer than its accelerator type promises."""
    promised, kind = promised_chips(facts.node), facts.node.accelerator_type
    match told.chips:
        case Known(count):
            seen = {"chips": count, "promised": promised}
            if promised is None:
                text = f"it shows {count} chips; how many `{kind}` promises is not known"
                yield Saying(level=Level.NOTE, text=text, facts=seen)
            elif count >= promised:
                yield Saying(level=Level.OK, text=f"it shows its {promised} chips", facts=seen)
            else:
                yield Saying(
                    level=Level.ERROR,
                    text=f"it shows {count or 'none'} of the {promised} chips that `{kind}` promises",
                    why="programs fail to initialise the TPU there, or wait for the other chips",
                    advice=(
                        Advice("boot its workers anew", "reset"),
                        Advice("make the node again where that does not help", "reset", ("--mode", "recreate")),
                    ),
                    facts=seen,
                )
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("its chips", fact)


@rule("TPU973", "processes that hold the TPU")
def holders(facts: WorkersFacts) -> Iterator[Found]:
    """Name the processes that hold each worker's TPU: a note, as training does. Only one can at a time.

    A warning where some workers of a slice are held and others are free: what ran on those has ended. A warning too for a
    process that waits inside the kernel: no signal ends it.
    """
    holds = {number: one.hold.value for number, one in facts.told if isinstance(one.hold, Known)}
    held = {number for number, hold in holds.items() if hold.holders}
    is_partly = 0 < len(held) < len(holds)
    said = []
    for number, one in facts.told:
        if isinstance(one.hold, Unknown):
            said.append((number, unread("what holds its TPU", one.hold)))
        elif number in holds:
            said.append((number, _holding(holds[number], is_partly=is_partly)))
    return together(said, facts)


def _holding(hold: Hold, *, is_partly: bool) -> Saying:
    seen = {
        "holders": [
            {"pid": one.pid, "user": one.user, "name": one.name, "age": round(one.age.total_seconds())}
            for one in hold.holders
        ]
    }
    if not hold.holders:
        blind = ", as far as can be seen without root" if hold.hidden else ""
        return Saying(level=Level.OK, text=f"nothing holds its TPU{blind}", facts=seen)
    names = list(dict.fromkeys(f"`{one.name}` of {one.user}" for one in hold.holders))
    who = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    verb = "hold" if len(names) > 1 else "holds"
    look = Advice("see which processes those are", "unstick", ("--dry-run",), takes_workers=True)
    if any(one.is_waiting_in_kernel for one in hold.holders):
        return Saying(
            level=Level.WARNING,
            text=f"{who} {verb} the TPU and waits inside the kernel",
            why="no signal reaches such a process: it goes with a reboot, or with the end of what it waits for",
            advice=(look, Advice("where it stays so, boot all workers anew", "reset", ("--mode", "reboot"))),
            facts=seen,
        )
    if is_partly:
        return Saying(
            level=Level.WARNING,
            text=f"{who} {verb} the TPU, which is free on other workers",
            why="a program of a slice runs on all workers: where it has ended on one, the others wait, or are left over",
            advice=(look, Advice("end what is left over", "unstick", takes_workers=True)),
            facts=seen,
        )
    return Saying(
        level=Level.NOTE,
        text=f"{who} {verb} the TPU",
        why="a second program fails: `The TPU is already in use by process with pid`",
        advice=(Advice("where that is no training of yours that runs, end it", "unstick", takes_workers=True),),
        facts=seen,
    )


@each("TPU974", "libtpu's lock file")
def lock_file(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Look for `/tmp/libtpu_lockfile` with nobody holding it: a warning.

    A program of another user may not write to it, and fails as if the TPU were in use [TensorFlow source; observed].
    """
    if not isinstance(told.hold, Known):  # the rule before says why
        return
    hold = told.hold.value
    seen = {"lockFile": hold.lock_owner is not None, "owner": hold.lock_owner}
    if hold.lock_owner is None or hold.is_lock_held or hold.holders:
        yield Saying(level=Level.OK, text="no lock file is left over", facts=seen)
    elif hold.hidden:
        text = f"there is a lock file of {hold.lock_owner}; who holds it cannot be seen without root"
        yield Saying(level=Level.UNKNOWN, text=text, facts=seen)
    else:
        yield Saying(
            level=Level.WARNING,
            text=f"`/tmp/libtpu_lockfile` of {hold.lock_owner} is left over: nothing holds it",
            why="a program of another user fails there: the TPU seems to be in use",
            advice=(Advice("remove it, where still nobody holds it then", "unstick", takes_workers=True),),
            facts=seen,
        )


@each("TPU970", "libtpu's log")
def logs(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Look at the folder of libtpu's log: a warning from 10 GiB on, or where it cannot be written.

    It is `TPU_LOG_DIR`, else `/tmp/tpu_logs`. libtpu makes it, but none above it, and goes on without a log where it cannot
    write there [documentation "debug logs"].
    """
    match told.logs:
        case Known(folder) if folder.state is not LogState.RELATIVE:  # a rule about variables speaks of those
            yield _logging(folder)
        case Unknown() as fact:
            yield unread("libtpu's log folder", fact)
        case Known() | Absent():
            pass


def _logging(folder: LogFolder) -> Saying:
    seen = {"path": folder.path, "state": str(folder.state), "bytes": folder.size, "files": folder.files}
    if folder.state is LogState.LACKS_PARENT:
        return Saying(
            level=Level.WARNING,
            text=f"libtpu cannot make `{folder.path}`: the folder above it is missing",
            why="libtpu goes on without a log, and there is nothing to read after a failure",
            advice=(Advice.run("make it", "mkdir", "-p", folder.path),),
            facts=seen,
        )
    if folder.state is LogState.REFUSED:
        return Saying(
            level=Level.WARNING,
            text=f"this login cannot write to `{folder.path}`",
            why="libtpu goes on without a log; it is often another user's, who trained there before",
            advice=(Advice.run("let everybody write there", "sudo", "chmod", "-R", "a+rwX", folder.path),),
            facts=seen,
        )
    if folder.size >= _MANY_LOGS:
        gib = folder.size >> 30
        remove = Advice.run("remove it, once nothing trains", "sudo", "rm", "-rf", folder.path)
        return Saying(
            level=Level.WARNING,
            text=f"libtpu's log in `{folder.path}` has {{}}{'' if folder.is_complete else ' or more'}",
            why="it lies on the boot disk, which cannot be made larger",
            advice=(
                *((remove,) if folder.path.rstrip("/").endswith("/tpu_logs") else ()),
                Advice("log less: `tpuctl run --env TPU_MIN_LOG_LEVEL=1`"),
            ),
            measure=Measure(gib, f"{gib} GiB"),
            facts=seen,
        )
    return Saying(level=Level.OK, text="libtpu's log has its place", facts=seen)


@each("TPU977", "startup script and cloud-init of the workers")
def startup(_: WorkersFacts, told: Examination) -> Iterator[Saying]:
    """Check how the startup script and cloud-init ended on each worker: a warning while they run, and where they failed."""
    see = Advice.run("see what it said", f"sudo journalctl -u {_UNIT} -b --no-pager | tail -n 50")
    match told.ended:
        case Known(ended) if ended.startup is Startup.RUNNING:
            why = "what it installs or starts may be missing yet"
            wait = Advice("wait for its end", "wait", ("--for", "startup"))
            yield Saying(
                level=Level.WARNING, text=ended.detail or "the startup still runs", why=why, advice=(wait, see)
            )
        case Known(ended) if ended.startup is Startup.FAILED:
            why = "what it was to install or start is missing, or half there"
            yield Saying(level=Level.WARNING, text=ended.detail or "the startup failed", why=why, advice=(see,))
        case Known(ended) if ended.startup is Startup.DONE:
            yield Saying(level=Level.OK, text="startup script and cloud-init have ended well")
        case Known():
            text = "nothing there tells how startup script and cloud-init ended"
            yield Saying(level=Level.UNKNOWN, text=text)
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("how the startup ended", fact)


RULES = (answers, told, devices, holders, lock_file, startup, logs)

"""Rules about the TPU of each worker: ssh access, chips, processes that hold it, libtpu's log, startup."""

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
# Ids of `explain`.
_KEY_REFUSED, _KEY_UNREADABLE = "ssh-publickey", "ssh-key-unreadable"
_UNIT = "google-startup-scripts.service"


@rule("TPU966", "ssh to the workers")
def answers(facts: WorkersFacts) -> Iterator[Found]:
    """Check that every worker accepts ssh; show why one does not, and how to fix it."""
    for shut in facts.shut_out:
        yield Found(
            level=Level.ERROR,
            subject=named(shut.workers),
            text=shut.why,
            why="commands cannot run there, and the worker could not be examined",
            remedies=_ssh_remedies(shut, facts),
            facts={"workers": list(shut.workers), "errorId": shut.error_id},
            is_passing=shut.is_passing,
        )
    reached = [number for number, _ in facts.reports]
    if reached:
        text = f"ssh works{' on all workers' if len(reached) == facts.node.workers > 1 else ''}"
        yield Found(level=Level.OK, subject=named(reached), text=text, facts={"workers": reached})


def _ssh_remedies(shut: ShutOut, facts: WorkersFacts) -> tuple[Remedy, ...]:
    """Return the remedies. `tpuctl up` creates a missing key, and puts the key on the node."""
    hints, name = tuple(map(in_words, shut.hints)), facts.node.name.node_id
    bring = Remedy("put your ssh key on the node", shlex.join(["tpuctl", "up", name]))
    renew = Remedy(
        "if the key pair itself is broken, create a new one; the next `up` puts it on the node", "tpuctl ssh-key renew"
    )
    ours = () if facts.has_own_key else (renew,)
    if shut.error_id == _KEY_UNREADABLE and not facts.has_own_key:
        return (replace(bring, text="create the key if it is missing, and put it on the node"), *ours, *hints)
    if shut.error_id == _KEY_REFUSED:
        # If other workers accept the key, it is on the node: then the hints of the message come first.
        return (*hints, bring) if facts.reports else (bring, *ours, *hints)
    return hints


@rule("TPU967", "reports of the workers")
def told(facts: WorkersFacts) -> Iterator[Found]:
    """Check that every worker with ssh sends a report; a program for its `python3` collects it."""
    findings = (
        (
            one.number,
            Saying(level=Level.UNKNOWN, text=f"it sent no report: {one.report.reason}", is_passing=True),
        )
        for one in facts.workers
        if isinstance(one.report, Unknown)
    )
    return together(findings, facts)


@each("TPU975", "chips of the workers")
def devices(facts: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Count the chips of each worker by their device files: an error if there are fewer than its accelerator type has."""
    promised, kind = promised_chips(facts.node), facts.node.accelerator_type
    match report.chips:
        case Known(count):
            details = {"chips": count, "promised": promised}
            if promised is None:
                text = f"it has {count} chips; the number for `{kind}` is unknown"
                yield Saying(level=Level.NOTE, text=text, facts=details)
            elif count >= promised:
                yield Saying(level=Level.OK, text=f"it has its {promised} chips", facts=details)
            else:
                yield Saying(
                    level=Level.ERROR,
                    text=f"it has {count or 'none'} of the {promised} chips of a `{kind}` worker",
                    why="programs fail to initialize the TPU there, or wait for the other chips",
                    advice=(
                        Advice("reboot its workers", "reset"),
                        Advice("if that does not help, recreate the node", "reset", ("--mode", "recreate")),
                    ),
                    facts=details,
                )
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("its chips", fact)


@rule("TPU973", "processes that hold the TPU")
def holders(facts: WorkersFacts) -> Iterator[Found]:
    """Show the processes that hold the TPU of each worker: a note, since training does that. Only one process can hold it.

    A warning if it is held on some workers of a slice and free on others, where the program has ended. A warning too for a
    process that waits inside the kernel, where no signal reaches it.
    """
    holds = {number: one.hold.value for number, one in facts.reports if isinstance(one.hold, Known)}
    held = {number for number, hold in holds.items() if hold.holders}
    is_partly = 0 < len(held) < len(holds)
    findings = []
    for number, one in facts.reports:
        if isinstance(one.hold, Unknown):
            findings.append((number, unread("the processes that hold its TPU", one.hold)))
        elif number in holds:
            findings.append((number, _judge_holders(holds[number], is_partly=is_partly)))
    return together(findings, facts)


def _judge_holders(hold: Hold, *, is_partly: bool) -> Saying:
    details = {
        "holders": [
            {"pid": one.pid, "user": one.user, "name": one.name, "age": round(one.age.total_seconds())}
            for one in hold.holders
        ]
    }
    if not hold.holders:
        limit = ", as far as visible without root" if hold.hidden else ""
        return Saying(level=Level.OK, text=f"no process holds its TPU{limit}", facts=details)
    names = list(dict.fromkeys(f"`{one.name}` of {one.user}" for one in hold.holders))
    who = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    verb = "hold" if len(names) > 1 else "holds"
    look = Advice("show these processes", "unstick", ("--dry-run",), takes_workers=True)
    if any(one.is_waiting_in_kernel for one in hold.holders):
        return Saying(
            level=Level.WARNING,
            text=f"{who} {verb} the TPU and waits inside the kernel",
            why="no signal reaches such a process: it ends with a reboot, or when what it waits for happens",
            advice=(look, Advice("if it does not end, reboot all workers", "reset", ("--mode", "reboot"))),
            facts=details,
        )
    if is_partly:
        return Saying(
            level=Level.WARNING,
            text=f"{who} {verb} the TPU, which is free on other workers",
            why="a program of a slice runs on all workers: if it has ended on one, the others wait, or are left over",
            advice=(look, Advice("terminate the processes that are left over", "unstick", takes_workers=True)),
            facts=details,
        )
    return Saying(
        level=Level.NOTE,
        text=f"{who} {verb} the TPU",
        why="a second program fails: `The TPU is already in use by process with pid`",
        advice=(Advice("terminate it, unless it is your running training", "unstick", takes_workers=True),),
        facts=details,
    )


@each("TPU974", "libtpu's lock file")
def lock_file(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check for a stale `/tmp/libtpu_lockfile`, which no process has open: a warning.

    A program of another user may not write to it, and fails as if the TPU were in use [TensorFlow source; observed].
    """
    if not isinstance(report.hold, Known):  # TPU973 says why
        return
    hold = report.hold.value
    details = {"lockFile": hold.lock_owner is not None, "owner": hold.lock_owner}
    if hold.lock_owner is None or hold.is_lock_held or hold.holders:
        yield Saying(level=Level.OK, text="no stale lock file", facts=details)
    elif hold.hidden:
        text = f"there is a lock file of {hold.lock_owner}; its holder is not visible without root"
        yield Saying(level=Level.UNKNOWN, text=text, facts=details)
    else:
        yield Saying(
            level=Level.WARNING,
            text=f"`/tmp/libtpu_lockfile` of {hold.lock_owner} is stale: no process holds it",
            why="a program of another user fails, as if the TPU were in use",
            advice=(Advice("remove it, if still no process holds it", "unstick", takes_workers=True),),
            facts=details,
        )


@each("TPU970", "libtpu's log")
def logs(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check the log folder of libtpu: a warning from 10 GiB on, or if it is not writable.

    It is `TPU_LOG_DIR`, else `/tmp/tpu_logs`. libtpu creates it, but not its parents, and continues without a log if it cannot
    write there [documentation "debug logs"].
    """
    match report.logs:
        case Known(folder) if folder.state is not LogState.RELATIVE:  # TPU980 reports those
            yield _judge_log_folder(folder)
        case Unknown() as fact:
            yield unread("libtpu's log folder", fact)
        case Known() | Absent():
            pass


def _judge_log_folder(folder: LogFolder) -> Saying:
    details = {"path": folder.path, "state": str(folder.state), "bytes": folder.size, "files": folder.files}
    if folder.state is LogState.LACKS_PARENT:
        return Saying(
            level=Level.WARNING,
            text=f"libtpu cannot create `{folder.path}`: its parent folder is missing",
            why="libtpu continues without a log, which you need after a failure",
            advice=(Advice.run("create it", "mkdir", "-p", folder.path),),
            facts=details,
        )
    if folder.state is LogState.REFUSED:
        return Saying(
            level=Level.WARNING,
            text=f"this login cannot write to `{folder.path}`",
            why="libtpu continues without a log; the folder often belongs to another user who trained there",
            advice=(Advice.run("make it writable for all users", "sudo", "chmod", "-R", "a+rwX", folder.path),),
            facts=details,
        )
    if folder.size >= _MANY_LOGS:
        gib = folder.size >> 30
        remove = Advice.run("remove it, when no training runs", "sudo", "rm", "-rf", folder.path)
        return Saying(
            level=Level.WARNING,
            text=f"libtpu's log in `{folder.path}` has {{}}{'' if folder.is_complete else ' or more'}",
            why="it is on the boot disk, which cannot be resized",
            advice=(
                *((remove,) if folder.path.rstrip("/").endswith("/tpu_logs") else ()),
                Advice("log less: `tpuctl run --env TPU_MIN_LOG_LEVEL=1`"),
            ),
            measure=Measure(gib, f"{gib} GiB"),
            facts=details,
        )
    return Saying(level=Level.OK, text="libtpu can write its log", facts=details)


@each("TPU977", "startup script and cloud-init of the workers")
def startup(_: WorkersFacts, report: Examination) -> Iterator[Saying]:
    """Check how the startup script and cloud-init ended on each worker: a warning while they run, and if they failed."""
    see = Advice.run("read its log", f"sudo journalctl -u {_UNIT} -b --no-pager | tail -n 50")
    match report.ended:
        case Known(ended) if ended.startup is Startup.RUNNING:
            why = "what it installs or starts may still be missing"
            wait = Advice("wait until it ends", "wait", ("--for", "startup"))
            yield Saying(
                level=Level.WARNING, text=ended.detail or "the startup still runs", why=why, advice=(wait, see)
            )
        case Known(ended) if ended.startup is Startup.FAILED:
            why = "what it installs or starts may be missing or incomplete"
            yield Saying(level=Level.WARNING, text=ended.detail or "the startup failed", why=why, advice=(see,))
        case Known(ended) if ended.startup is Startup.DONE:
            yield Saying(level=Level.OK, text="startup script and cloud-init succeeded")
        case Known():
            text = "the result of startup script and cloud-init is not recorded there"
            yield Saying(level=Level.UNKNOWN, text=text)
        case Absent():
            pass
        case Unknown() as fact:
            yield unread("the result of the startup", fact)


RULES = (answers, told, devices, holders, lock_file, startup, logs)

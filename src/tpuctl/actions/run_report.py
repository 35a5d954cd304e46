"""The results of a run, as JSON, warnings and errors."""

from __future__ import annotations

import signal
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tpuctl.errors import RemoteCommandError, TimedOutError, TpuctlError
from tpuctl.escaping import visible
from tpuctl.remote.failures import explain_failures, look_around
from tpuctl.remote.running.stopping import Reason
from tpuctl.remote.running.values import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.actions.running import Result
    from tpuctl.remote.failures import SshFailedError
    from tpuctl.remote.running.values import Ending

_SHOWN = 8
# What TPU users see behind these exit codes of a shell (128 and the signal).
_MEANINGS = {
    126: "cannot be executed",
    127: "no such command",
    134: "aborted; often a failed check in libtpu",
    137: "killed; often out of memory",
    139: "segmentation fault",
    143: "terminated by TERM",
}
# The signals that --fail-fast sends to the other workers.
_OURS = (signal.SIGTERM, signal.SIGKILL)
_ABSENT = (Outcome.UNREACHABLE, Outcome.REFUSED)


def to_json(result: Result) -> dict[str, Any]:
    """Return the report for scripts."""
    return {
        "job": result.job,
        **({"stopped": str(result.stopped)} if result.stopped else {}),
        "workers": [
            {
                "nodeId": ending.member.node.name.node_id,
                "zone": ending.member.node.name.zone,
                "worker": ending.member.worker,
                "outcome": str(ending.outcome),
                "exitCode": ending.code,
                "signal": ending.signal,
                "seconds": ending.duration.total_seconds() if ending.duration is not None else None,
                "stdoutBytes": ending.out_size,
                "stderrBytes": ending.err_size,
                **(
                    {"error": f"unexpected answer: {ending.why}" if ending.is_unexpected else ending.why}
                    if ending.why
                    else {}
                ),
                **{name: True for name, is_so in _remarks(ending).items() if is_so},
            }
            for ending in result.endings
        ],
        "diagnosis": result.diagnosis.to_json() if result.diagnosis else None,
    }


def warnings(endings: Sequence[Ending], *, tells_ends: bool = True) -> list[str]:
    """Return what the user has to know about commands that have ended, one line for all workers that share it.

    Without `tells_ends` also that the workers terminated them, for callers that do not show it elsewhere.
    """
    texts = {
        "diskFull": "the disk of {} was full: output may be incomplete",
        "outlived": "processes of the command still run on {}: their further output is not shown",
        **({} if tells_ends else {"timedOut": "timed out: the command was terminated on {}"}),
    }
    found = {name: [ending for ending in endings if _remarks(ending)[name]] for name in texts}
    return [text.format(f"worker {labels(found[name])}") for name, text in texts.items() if found[name]]


def _remarks(ending: Ending) -> dict[str, bool]:
    return {"timedOut": ending.was_late, "diskFull": ending.disk_was_full, "outlived": ending.is_outlived}


def problem(result: Result) -> TpuctlError | None:
    """Return what failed and on which workers; None if the run succeeded or the user stopped it."""
    bad = [ending for ending in result.endings if not ending.is_good]
    if not bad or result.stopped in {Reason.INTERRUPTED, Reason.TERMINATED}:
        return None
    total = len(result.endings)
    if result.stopped is Reason.TIMED_OUT or all(ending.was_late for ending in bad):
        never_started = all(ending.outcome is Outcome.NOT_STARTED for ending in bad)
        what = "command not started on" if never_started else "command terminated on"
        text = f"timed out: {what} {_count(bad, total)}: {labels(bad)}"
        return TimedOutError(text, hint=_reasons(ending for ending in bad if not ending.was_late))
    absent = [ending for ending in bad if ending.outcome in _ABSENT]
    if absent and all(not ending.is_good and ending.code is None for ending in result.endings):
        return _not_run(absent, total)
    stopped = [
        one
        for one in bad
        if result.stopped is Reason.FAILED and (one.signal in _OURS or one.outcome is Outcome.NOT_STARTED)
    ]
    if stopped and len(stopped) < len(bad):
        bad = [one for one in bad if one not in stopped]
    groups: defaultdict[str, list[Ending]] = defaultdict(list)
    for ending in bad:
        groups[_how(ending)].append(ending)
    what = "; ".join(f"{labels(group)} ({how})" for how, group in groups.items())
    # The workers on which --fail-fast stopped it.
    spared = [ending for ending in stopped if ending.outcome is Outcome.NOT_STARTED]
    terminated = [ending for ending in stopped if ending.outcome is not Outcome.NOT_STARTED]
    what += f"; terminated on {labels(terminated)}" if terminated else ""
    what += f"; not started on {labels(spared)}" if spared else ""
    where = f"{_count(bad, total)}: {what}" if total > 1 else f"worker {what}"
    return RemoteCommandError(f"the command failed on {where}", hint=_reasons(bad))


def causes(result: Result) -> list[SshFailedError]:
    """Return why ssh failed on workers, one error for all that share a cause."""
    failed = [(ending.member, ending.ssh_said) for ending in result.endings if ending.ssh_said is not None]
    if not failed:
        return []
    got_in = len(failed) < len(result.endings)
    return explain_failures(failed, look_around(failed[0][0], accepted_elsewhere=got_in))


def labels(endings: Iterable[Ending]) -> str:
    """Return the labels of workers, consecutive numbers as a range: `0-3,5`."""
    names = [ending.member.label for ending in endings]
    if not all(name.isdigit() for name in names):
        return ", ".join(names)
    parts: list[list[int]] = []
    for number in sorted(map(int, names)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _not_run(absent: Sequence[Ending], total: int) -> TpuctlError:
    """Return the error of a command that was started nowhere, because workers are absent."""
    cannot = "cannot be reached" if all(one.outcome is Outcome.UNREACHABLE for one in absent) else "cannot run it"
    text = f"{_count(absent, total)} {cannot}, so the command was not started on any worker: {labels(absent)}"
    if total == 1:
        text = f"worker {labels(absent)} {cannot}; the command was not started"
    partial = "start it on the others: `--allow-unreachable`" if total > len(absent) else None
    return RemoteCommandError(text, hint="\n".join(filter(None, [_reasons(absent), partial])) or None)


def _count(endings: Sequence[Ending], total: int) -> str:
    return f"{len(endings)} of {total} workers"


def _how(ending: Ending) -> str:
    """Return how the command ended on a worker, in a few words."""
    if ending.is_unexpected:
        return "unexpected answer"
    if ending.code is None:
        return {Outcome.NOT_STARTED: "not started", Outcome.LOST: "lost"}.get(ending.outcome, str(ending.outcome))
    if ending.was_late:
        return "timed out"
    meaning = _MEANINGS.get(ending.code)
    return f"exit {ending.code}: {meaning}" if meaning else f"exit {ending.code}"


def _reasons(endings: Iterable[Ending]) -> str | None:
    """Return the reasons, one line for each with the workers that share it."""
    whys: defaultdict[tuple[bool, str], list[Ending]] = defaultdict(list)
    for ending in endings:
        if ending.why and ending.ssh_said is None and ending.outcome is not Outcome.NOT_STARTED:
            whys[ending.is_unexpected, ending.why].append(ending)
    lines = [group[0].explain(labels(group)) for group in list(whys.values())[:_SHOWN]]
    return "\n".join(map(visible, lines)) or None

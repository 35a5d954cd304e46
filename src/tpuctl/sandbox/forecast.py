"""What will happen, in words: a fault as the event that it causes, and when that is, there and here. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.sandbox.afflictions import Fault, FaultKind
from tpuctl.sandbox.failures import MEANINGS

if TYPE_CHECKING:
    from datetime import datetime


def event(fault: Fault) -> str:
    """Return the event that a fault causes: `trainer comes up READY but UNHEALTHY_TENSORFLOW, once`."""
    return f"{_what(fault)}, {_how_often(fault.count)}"


def when(at: datetime, now: datetime, speed: float) -> str:
    """Return when something is: the world's time, how far off that is there, and in real time. `now` for what has come."""
    off = at - now
    if off <= timedelta():
        return "now"
    here = timedelta(seconds=off.total_seconds() / speed)
    return f"at {format_timestamp(at)} in the sandbox, in {format_duration(off)} there, {_short(here)} here"


def _what(fault: Fault) -> str:
    node, call = _node(fault), _call(fault)
    lasting = f"for {format_duration(fault.duration)}" if fault.duration is not None else "for ever"
    match fault.kind:
        case FaultKind.UNHEALTHY:
            return f"{node} is or comes up READY but {fault.health}; a restart cures it"
        case FaultKind.HANG:
            return f"{node} hangs in {fault.state} {lasting}"
        case FaultKind.PREEMPT:
            return f"{node} is preempted"
        case FaultKind.MAINTENANCE:
            length = format_duration(fault.duration or timedelta(minutes=10))
            return f"maintenance of {node} is announced, then lasts {length}"
        case FaultKind.MISSING_CHIP:
            return f"worker {fault.worker} of {node} lacks a chip; a restart cures it"
        case FaultKind.STARTUP_SLOW:
            longer = "never end" if fault.duration is None else f"run {format_duration(fault.duration)} longer"
            return f"the startup scripts of {node} {longer}"
        case FaultKind.STARTUP_FAILS:
            return f"the startup scripts of {node} fail"
        case FaultKind.OPERATION_ERROR:
            verb = "the next create or start" if fault.method == "*" else f"`{fault.method}`"
            meaning = f" ({MEANINGS[fault.code]})" if fault.code in MEANINGS else ""
            said = f": {fault.message}" if fault.message else meaning
            return f"{verb} of {node} fails in its operation with code {fault.code}{said}"
        case FaultKind.SSH_KEY_LATE:
            late = format_duration(fault.duration or timedelta(minutes=1))
            return f"an ssh key for {node} works only {late} after it was written"
        case FaultKind.QUOTA:
            return f"create of {node} is refused with 429: quota used up, limit {fault.limit}"
        case FaultKind.UNREACHABLE:
            return f"{'every zone' if fault.zone == '*' else fault.zone} does not answer, and lists of all zones say so"
        case _:
            return f"{call} {_broken(fault)}"


def _broken(fault: Fault) -> str:
    match fault.kind:
        case FaultKind.DROP_BEFORE:
            return "loses its connection before it takes effect"
        case FaultKind.DROP_AFTER:
            return "takes effect, but the connection ends without an answer"
        case FaultKind.SLOW:
            late = fault.duration or timedelta(seconds=30)
            shown = format_duration(late) if late >= timedelta(seconds=1) else f"{late.total_seconds():g}s"
            return f"is answered {shown} late"
        case FaultKind.UNAUTHENTICATED:
            return "is refused with 401"
        case _:
            wait = f" and `Retry-After: {fault.retry_after}`" if fault.retry_after is not None else ""
            return f"is answered with {fault.status}{wait}"


def _node(fault: Fault) -> str:
    name = "any node" if fault.node == "*" else fault.node
    zone = "" if fault.zone == "*" else f" in {fault.zone}"
    return name + zone + ("" if fault.project == "*" else f" of {fault.project}")


def _call(fault: Fault) -> str:
    call = "the next call" if fault.method == "*" else f"the next call of {fault.method}"
    about = "" if (fault.node, fault.zone, fault.project) == ("*", "*", "*") else f" about {_node(fault)}"
    return call + about


def _how_often(count: int) -> str:
    return "until it is removed" if count == 0 else "once" if count == 1 else f"{count} times"


def _short(duration: timedelta) -> str:
    """Return a duration of real time, which may be below a second."""
    seconds = duration.total_seconds()
    return f"{seconds:.1f}s" if seconds < 10 else format_duration(duration)

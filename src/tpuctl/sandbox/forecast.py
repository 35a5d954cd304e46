"""Describe faults and times in words. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.sandbox.afflictions import Fault, FaultKind
from tpuctl.sandbox.failures import MEANINGS

if TYPE_CHECKING:
    from datetime import datetime


def event(fault: Fault) -> str:
    """Describe the event that a fault causes: `trainer is READY but UNHEALTHY_TENSORFLOW until a restart, once`."""
    often = "until it is removed" if fault.count == 0 else "once" if fault.count == 1 else f"{fault.count} times"
    return f"{_effect(fault)}, {often}"


def when(at: datetime, now: datetime, speed: float) -> str:
    """Return the sandbox time of an event, and the distance in sandbox time and in real time. `now` for past events."""
    off = at - now
    if off <= timedelta():
        return "now"
    seconds = off.total_seconds() / speed
    real = f"{seconds:.1f}s" if seconds < 10 else format_duration(timedelta(seconds=seconds))
    return f"at {format_timestamp(at)} in the sandbox, in {format_duration(off)} of its time, {real} of real time"


def _effect(fault: Fault) -> str:
    zone = "" if fault.zone == "*" else f" in {fault.zone}"
    project = "" if fault.project == "*" else f" of {fault.project}"
    node = f"{'any node' if fault.node == '*' else fault.node}{zone}{project}"
    lasting = f"for {format_duration(fault.duration)}" if fault.duration is not None else "forever"
    match fault.kind:
        case FaultKind.UNHEALTHY:
            return f"{node} is READY but {fault.health} until a restart"
        case FaultKind.HANG:
            return f"{node} hangs in {fault.state} {lasting}"
        case FaultKind.PREEMPT:
            return f"{node} is preempted"
        case FaultKind.MAINTENANCE:
            length = format_duration(fault.duration or timedelta(minutes=10))
            return f"maintenance of {node} is announced, then lasts {length}"
        case FaultKind.MISSING_CHIP:
            return f"worker {fault.worker} of {node} lacks a chip until a restart"
        case FaultKind.STARTUP_SLOW:
            longer = "never end" if fault.duration is None else f"run {format_duration(fault.duration)} longer"
            return f"the startup scripts of {node} {longer}"
        case FaultKind.STARTUP_FAILS:
            return f"the startup scripts of {node} fail"
        case FaultKind.OPERATION_ERROR:
            verb = "the next create or start" if fault.method == "*" else f"`{fault.method}`"
            meaning = f" ({MEANINGS[fault.code]})" if fault.code in MEANINGS else ""
            message = f": {fault.message}" if fault.message else meaning
            return f"{verb} of {node} fails in its operation with code {fault.code}{message}"
        case FaultKind.SSH_KEY_LATE:
            late = format_duration(fault.duration or timedelta(minutes=1))
            return f"an ssh key for {node} works only {late} after it was written"
        case FaultKind.QUOTA:
            return f"create of {node} is rejected with 429: quota exceeded, limit {fault.limit}"
        case FaultKind.UNREACHABLE:
            zones = "every zone" if fault.zone == "*" else fault.zone
            return f"{zones} does not answer, and lists of all zones report it"
        case _:
            call = "the next call" if fault.method == "*" else f"the next call of {fault.method}"
            about = "" if (fault.node, fault.zone, fault.project) == ("*", "*", "*") else f" about {node}"
            return f"{call}{about} {_broken(fault)}"


def _broken(fault: Fault) -> str:
    match fault.kind:
        case FaultKind.DROP_BEFORE:
            return "loses its connection before it takes effect"
        case FaultKind.DROP_AFTER:
            return "takes effect, but the connection ends without a response"
        case FaultKind.SLOW:
            late = fault.duration or timedelta(seconds=30)
            shown = format_duration(late) if late >= timedelta(seconds=1) else f"{late.total_seconds():g}s"
            return f"is answered {shown} late"
        case FaultKind.UNAUTHENTICATED:
            return "is rejected with 401"
        case _:
            wait = f" and `Retry-After: {fault.retry_after}`" if fault.retry_after is not None else ""
            return f"is answered with {fault.status}{wait}"

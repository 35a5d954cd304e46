"""The kinds of faults and the keys of a fault, each once: options, seeds, scenarios, descriptions and help come from here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Mapping

_MINUTE = timedelta(minutes=1)
_WORKER = "worker {fault.worker} of {node}"
_CONNECTION = f"an ssh connection to {_WORKER}"
_DURATION = ("duration",)


class FaultSubject(StrEnum):
    """What a fault happens to."""

    NODE = "node"  # its timeline changes
    OPERATION = "operation"
    SSH_KEY = "ssh key"
    SSH = "ssh connection"
    REQUEST = "queued resource"
    CALL = "call"


_NODE, _OPERATION, _SSH_KEY, _SSH, _REQUEST, _CALL = FaultSubject


class FaultKind(StrEnum):
    """A kind of fault: what it happens to, its description, the keys that it reads, and its length if none is given.

    A fault without a length lasts forever.
    """

    subject: FaultSubject
    effect: str
    keys: tuple[str, ...]
    duration: timedelta | None

    def __new__(
        cls,
        word: str,
        subject: FaultSubject = _NODE,
        effect: str = "",
        keys: tuple[str, ...] = (),
        duration: timedelta | None = None,
    ) -> FaultKind:
        """Return the member of a row."""
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.subject, kind.effect, kind.keys, kind.duration = subject, effect, keys, duration
        return kind

    # While the node is, or next is, READY.
    UNHEALTHY = ("unhealthy", _NODE, "{node} is READY but {fault.health} until a restart", ("health", "description"))
    HANG = ("hang", _NODE, "{node} hangs in {fault.state} {lasting}", ("state", "duration"))
    # From now, or from READY for a node that is not created yet.
    PREEMPT = ("preempt", _NODE, "{node} is preempted")
    # Of a create or start, or of what `call` matches.
    OPERATION_ERROR = (
        "operation-error",
        _OPERATION,
        "{operation} of {node} fails in its operation with {code}",
        ("code", "message"),
    )
    # Announced now, ongoing from `at` or `after` on.
    MAINTENANCE = (
        "maintenance",
        _NODE,
        "maintenance of {node} is announced, then lasts {lasts}",
        _DURATION,
        10 * _MINUTE,
    )
    # Reported after a start: jax#13260.
    MISSING_CHIP = ("missing-chip", _NODE, f"{_WORKER} lacks a chip until a restart", ("worker",))
    # At half its speed.
    STRAGGLER = ("straggler", _NODE, f"a chip of {_WORKER} is slow until a restart", ("worker",))
    DUTY_ZERO = (
        "duty-zero",
        _NODE,
        f"{_WORKER} takes part in no collective operation until a restart",
        ("worker",),
    )
    # As by a network whose firewall rules do not open it.
    PORT_BLOCKED = (
        "port-blocked",
        _NODE,
        "other workers do not reach those of {node} at TCP port {fault.port} until a restart",
        ("port",),
    )
    # Counted from the last or next start of the node.
    STARTUP_SLOW = ("startup-slow", _NODE, "the startup scripts of {node} {longer}", _DURATION)
    STARTUP_FAILS = ("startup-fails", _NODE, "the startup scripts of {node} fail")
    SSH_KEY_LATE = (
        "ssh-key-late",
        _SSH_KEY,
        "an ssh key for {node} works only {lasts} after it was written",
        _DURATION,
        _MINUTE,
    )
    SSH_REFUSED = ("ssh-refused", _SSH, f"{_CONNECTION} is refused", ("worker",))
    SSH_DROPPED = (
        "ssh-dropped",
        _SSH,
        f"{_CONNECTION} is dropped {{lasts}} after it began",
        ("worker", "duration"),
        _MINUTE,
    )
    SSH_SLOW = ("ssh-slow", _SSH, f"{_CONNECTION} is answered {{lasts}} late", ("worker", "duration"), _MINUTE)
    # From now, or from ACTIVE, which the request is for ten seconds, for a node that is not created yet.
    SUSPEND = (
        "suspend",
        _NODE,
        "the request of {node} is suspended by {fault.initiator} when it is ACTIVE",
        ("initiator",),
    )
    LATE_NODE = ("late-node", _NODE, "{node} appears {lasts} after its request is ACTIVE", _DURATION, 2 * _MINUTE)
    FALL_BACK = (
        "fall-back",
        _NODE,
        "{request} falls back from PROVISIONING to WAITING_FOR_RESOURCES for {lasts}",
        _DURATION,
        5 * _MINUTE,
    )
    SURVIVES_DELETE = (
        "survives-delete",
        _REQUEST,
        "{request}, once FAILED or SUSPENDED, is still there after its delete",
    )
    QUOTA = (
        "quota",
        _OPERATION,
        "create of {node} is rejected with 429: quota exceeded, limit {fault.limit}",
        ("limit", "message"),
    )
    DROP_BEFORE = ("drop-before", _CALL, "{call} loses its connection before it takes effect")
    DROP_AFTER = ("drop-after", _CALL, "{call} takes effect, but the connection ends without a response")
    HTTP_ERROR = (
        "http-error",
        _CALL,
        "{call} is answered with {fault.status}{wait}",
        ("status", "retryAfter", "message"),
    )
    SLOW = ("slow", _CALL, "{call} is answered {lasts} late", _DURATION, timedelta(seconds=30))
    UNAUTHENTICATED = ("unauthenticated", _CALL, "{call} is rejected with 401", ("message",))
    # Answered with 503; lists of all zones succeed and report the zone.
    UNREACHABLE = ("unreachable", _CALL, "{zones} does not answer, and lists of all zones report it")
    ALREADY_EXISTS = (
        "already-exists",
        _CALL,
        "the next create of {node} takes effect, but is answered with 409 ALREADY_EXISTS",
    )

    @classmethod
    def named(cls, word: str) -> FaultKind:
        """Return the kind of a name. Raises `InvalidInputError` naming the nearest."""
        known = [str(kind) for kind in cls]
        if word not in known:
            near = closest_match(word, known)
            hint = f"did you mean `{near}`?" if near else f"use one of {', '.join(known)}"
            raise InvalidInputError(f"unknown fault kind `{word}`" if word else "no fault kind given", hint=hint)
        return cls(word)


@dataclass(frozen=True, slots=True)
class FaultKey:
    """A key of a fault that only some kinds read: the field of `Fault`, its values, and its help.

    `bounds` are the lowest and the highest number. `is_option`: whether `tpuctl sandbox fault` has it.
    """

    field: str
    type: str
    help: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()
    bounds: tuple[int | None, int | None] = (None, None)
    is_option: bool = True

    @property
    def flag(self) -> str:
        """The option of `tpuctl sandbox fault`."""
        return "--" + self.field.replace("_", "-")

    def kinds(self, key: str) -> tuple[str, ...]:
        """Return the kinds that read it."""
        return tuple(str(kind) for kind in FaultKind if key in kind.keys)


# The keys that every kind has.
COMMON_KEYS: Mapping[str, FaultKey] = {
    "node": FaultKey("node", "string"),
    "zone": FaultKey("zone", "string"),
    "project": FaultKey("project", "string"),
    "call": FaultKey("method", "string"),
    "times": FaultKey("count", "integer"),
    "after": FaultKey("after", "duration"),
}
KIND_KEYS: Mapping[str, FaultKey] = {
    "state": FaultKey("state", "string", "State in which the node stays", "CREATING"),
    "health": FaultKey("health", "string", "Reported health", "UNHEALTHY_TENSORFLOW"),
    "description": FaultKey("description", "string", is_option=False),
    "worker": FaultKey("worker", "integer", "Index of the worker", "0", bounds=(0, None)),
    "port": FaultKey("port", "integer", "TCP port", "8482", bounds=(1, 65535)),
    "duration": FaultKey("duration", "duration", "Length in sandbox time"),
    "initiator": FaultKey("initiator", "string", "Who suspends the request", "SERVICE", choices=("SERVICE", "USER")),
    "status": FaultKey("status", "integer", "HTTP status", "503", bounds=(400, 599)),
    "retryAfter": FaultKey("retry_after", "integer", "Retry-After header in seconds", "none", bounds=(0, None)),
    "code": FaultKey("code", "integer", "google.rpc code", "8, no capacity"),
    "message": FaultKey("message", "string", "Error message", "that of the service"),
    "limit": FaultKey("limit", "integer", is_option=False),
}
FAULT_KEYS: Mapping[str, FaultKey] = {**COMMON_KEYS, **KIND_KEYS}

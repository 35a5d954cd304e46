"""Making a change whose answer may be lost: look what became of it, then be done, send again, or say what is not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tpuctl.api.calls import Caller
from tpuctl.api.errors import translate
from tpuctl.api.failures import AnswerLostError, RefusedError, TransportError
from tpuctl.api.retry import backoff
from tpuctl.clock import GRACE, SystemClock, is_late, limit_calls
from tpuctl.errors import NotFoundError, OutcomeUnknownError, TpuctlError
from tpuctl.model import Operation


class Effect(Enum):
    """What a look at the node shows of a change."""

    DONE = auto()
    NOT_YET = auto()


@dataclass(frozen=True, slots=True)
class Change:
    """A change that may be sent twice without harm.

    `send` sends it once and raises the failures of `api/`; `look` reads what became of it, and raises `NotFoundError`
    where there is nothing any more to change; `name` is for messages.
    """

    verb: str
    name: str
    send: Callable[[], Operation]
    look: Callable[[], Effect]


# A change that was lost is sent at most so often in all.
_SENDS = 3


def carry_out(caller: Caller, change: Change) -> Operation:
    """Return the operation of a change; `Operation.unnamed()` where it took effect while its answer was lost.

    Raises the service's refusal, or `OutcomeUnknownError` where it could not be told what became of the change. All of it has
    the time of one call.
    """
    with limit_calls(SystemClock(), caller.policy.deadline, grace=GRACE):
        return _carry_out(caller, change)


def _carry_out(caller: Caller, change: Change) -> Operation:
    failure: TransportError | RefusedError
    for sent in range(1, _SENDS + 1):
        try:
            return change.send()
        except (TransportError, RefusedError) as error:
            # A refusal of the second sending may only say that the first one was carried out.
            if not is_uncertain(error) and sent == 1:
                raise translate(error) from error
            failure = error
        if _look(change, failure) is Effect.DONE:
            return Operation.unnamed()
        if not is_uncertain(failure) or is_late():
            break
        caller.clock.sleep(backoff(caller.policy, sent, caller.random))
    if isinstance(failure, RefusedError):
        raise translate(failure) from failure
    raise unknown(change.verb, change.name, failure) from failure


def is_uncertain(failure: TransportError | RefusedError) -> bool:
    """Tell whether the change may have been carried out although it failed."""
    return isinstance(failure, AnswerLostError) or (isinstance(failure, RefusedError) and failure.refusal.is_fault)


def unknown(verb: str, name: str, failure: Exception) -> OutcomeUnknownError:
    """Return the error of a change of which nobody knows what became."""
    return OutcomeUnknownError(
        f"`{name}` was asked to {verb}, and it is not known whether the service will: {failure}",
        hint=f"run `tpuctl status {name}` to see what became of it before trying again",
    )


def _look(change: Change, failure: Exception) -> Effect:
    try:
        return change.look()
    except NotFoundError:
        raise
    except (TransportError, RefusedError, TpuctlError) as error:
        raise unknown(change.verb, change.name, failure) from error

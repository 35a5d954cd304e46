"""Send a change whose answer may be lost, and confirm it: read its effect, then finish, send again, or report uncertainty."""

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
    """Whether a resource shows the effect of a change."""

    DONE = auto()
    NOT_YET = auto()


@dataclass(frozen=True, slots=True)
class Change:
    """A change that may be sent twice without harm. `verb` and `name` are for messages."""

    verb: str
    name: str
    # Sends the change once. Raises `TransportError` and `RefusedError`.
    send: Callable[[], Operation]
    # Reads the effect. Raises `NotFoundError` if the resource does not exist any more.
    check: Callable[[], Effect]


# The maximum number of sendings.
_SENDS = 3


def carry_out(caller: Caller, change: Change) -> Operation:
    """Return the operation of a change; `Operation.unnamed()` if it took effect but its answer was lost.

    Raises the refusal of the service, or `OutcomeUnknownError` if it is unknown whether the change was carried out. The
    time limit of one call covers everything.
    """
    with limit_calls(SystemClock(), caller.policy.deadline, grace=GRACE):
        failure: TransportError | RefusedError
        for sent in range(1, _SENDS + 1):
            try:
                return change.send()
            except (TransportError, RefusedError) as error:
                # A refusal of the second sending may mean that the first was carried out.
                if not is_uncertain(error) and sent == 1:
                    raise translate(error) from error
                failure = error
            try:
                effect = change.check()
            except NotFoundError:
                raise
            except (TransportError, RefusedError, TpuctlError) as error:
                raise unknown(change.verb, change.name, failure) from error
            if effect is Effect.DONE:
                return Operation.unnamed()
            if not is_uncertain(failure) or is_late():
                break
            caller.clock.sleep(backoff(caller.policy, sent, caller.random))
        if isinstance(failure, RefusedError):
            raise translate(failure) from failure
        raise unknown(change.verb, change.name, failure) from failure


def is_uncertain(failure: TransportError | RefusedError) -> bool:
    """Return whether the change may have been carried out although it failed."""
    return isinstance(failure, AnswerLostError) or (isinstance(failure, RefusedError) and failure.refusal.is_fault)


def unknown(verb: str, name: str, failure: Exception) -> OutcomeUnknownError:
    """Return the error of a change whose outcome is unknown."""
    return OutcomeUnknownError(
        f"the {verb} of `{name}` was sent, but its outcome is unknown: {failure}",
        hint=f"check with `tpuctl status {name}` before you try again",
    )

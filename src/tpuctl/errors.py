"""What can go wrong, as the user sees it: the exceptions, their exit codes and their words.

Exit codes and `kind` are a contract with scripts (docs/reference/exit-codes.md). Translation from HTTP happens in
`api/errors.py`; printing happens in `cli/program.py`; nothing in between catches.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExitCode(IntEnum):
    """What the process ends with."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    TIMED_OUT = 5
    NO_CAPACITY = 6
    QUOTA = 7
    CONFLICT = 8
    CHECK_FAILED = 9
    BROKEN = 10
    REMOTE_FAILED = 11
    INTERRUPTED = 130
    TERMINATED = 143


# When several nodes end differently, the first of these that occurred is the exit code of the whole.
_SEVERITY = (4, 1, 8, 7, 6, 10, 5, 3, 11, 9)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the exit code that speaks for several results."""
    seen = set(codes)
    return next((ExitCode(code) for code in _SEVERITY if code in seen), max(seen, default=ExitCode.OK))


class TpuctlError(Exception):
    """Anything the user can understand and act on.

    `kind` is the word for it in JSON, `hint` what to do next, `error_id` the id of the message that was recognised, if one was.
    `lines` are the message and the lines of `details` below it; a line end within one of them is shown as such.
    """

    exit_code = ExitCode.FAILURE
    kind = "failure"

    def __init__(
        self, message: str, *, details: Iterable[str] = (), hint: str | None = None, error_id: str | None = None
    ) -> None:
        self.lines = (message, *details)
        self.message = "\n".join(self.lines)
        super().__init__(self.message)
        self.hint = hint
        self.error_id = error_id
        # The node that it is about, where several were asked for.
        self.node: str | None = None

    @property
    def id(self) -> str:
        """What `tpuctl explain` knows it by: the id of the message that was recognised, else the kind with dashes."""
        return self.error_id or self.kind.replace("_", "-")


class InvalidInputError(TpuctlError):
    """A value that the user gave cannot be right; no request was sent."""

    exit_code = ExitCode.USAGE
    kind = "invalid_input"


class SettingError(InvalidInputError):
    """A setting is missing, or a file of settings is broken."""

    kind = "setting"


class NotConfirmedError(TpuctlError):
    """The answer was no. Nothing was done."""

    kind = "not_confirmed"


class InvalidRequestError(TpuctlError):
    """The service refused the request as it stands; sending it again changes nothing."""

    exit_code = ExitCode.USAGE
    kind = "invalid_request"


class NotFoundError(TpuctlError):
    """What was named does not exist."""

    exit_code = ExitCode.NOT_FOUND
    kind = "not_found"


class NodeNotFoundError(NotFoundError):
    """The API knows no node of that name in that zone."""

    def __init__(self, name: str, zone: str) -> None:
        hint = "run `tpuctl list` to see the nodes of all zones"
        super().__init__(f"no node `{name}` in {zone}", hint=hint)


class NodeNowhereError(NotFoundError):
    """No zone of the project has a node of that name."""

    def __init__(self, name: str, project: str, *, hint: str = "run `tpuctl list` to see what there is") -> None:
        super().__init__(f"no node `{name}` in any zone of project {project}", hint=hint)


class AccessError(TpuctlError):
    """The call is not allowed: no credentials, scopes, IAM, API disabled, billing."""

    exit_code = ExitCode.NOT_ALLOWED
    kind = "not_allowed"


class CredentialsError(AccessError):
    """Nobody knows who calls: no credentials, expired ones, or such that the service does not accept. No call would work."""


class TimedOutError(TpuctlError):
    """The deadline passed. The text says what is still going on in the cloud."""

    exit_code = ExitCode.TIMED_OUT
    kind = "timed_out"


class NoCapacityError(TpuctlError):
    """The zone has no such TPU free at the moment."""

    exit_code = ExitCode.NO_CAPACITY
    kind = "no_capacity"


class QuotaError(TpuctlError):
    """The project's quota is used up, or is zero."""

    exit_code = ExitCode.QUOTA
    kind = "quota"


class ConflictError(TpuctlError):
    """The node differs from what is asked for, or is in a state that forbids it."""

    exit_code = ExitCode.CONFLICT
    kind = "conflict"


class AlreadyExistsError(ConflictError):
    """The name is taken, perhaps by a dead record."""

    kind = "already_exists"


class PreconditionFailedError(ConflictError):
    """What was to be replaced is no longer what was read: somebody else was quicker. Nothing was changed."""


class CheckFailedError(TpuctlError):
    """A check found an error."""

    exit_code = ExitCode.CHECK_FAILED
    kind = "check_failed"


class BrokenNodeError(TpuctlError):
    """The node is broken and repair is used up or impossible."""

    exit_code = ExitCode.BROKEN
    kind = "broken"


class RemoteCommandError(TpuctlError):
    """A command on a worker failed, or could not be started."""

    exit_code = ExitCode.REMOTE_FAILED
    kind = "remote_failed"


class ServiceUnavailableError(TpuctlError):
    """The service did not answer, or answered with a fault of its own, until retries were used up."""

    kind = "unavailable"


class OutcomeUnknownError(ServiceUnavailableError):
    """A change was sent, its answer was lost, and what became of it could not be read."""

    kind = "outcome_unknown"

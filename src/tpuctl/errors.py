"""The exceptions that users see, with their kinds and exit codes.

Exit codes and `kind` are a contract with scripts (docs/reference/exit-codes.md). HTTP errors are translated in the cloud room,
and errors are printed by the main program; no code in between catches them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


# A hint for users without a project or an account.
SANDBOX_HINT = "try it without an account: `export TPUCTL_SANDBOX=1`"


class ExitCode(IntEnum):
    """The exit codes of the process."""

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


# If several nodes end with different codes, the first of these that occurred is the exit code of the command.
_SEVERITY = (4, 1, 8, 7, 6, 10, 5, 3, 11, 9)


def worst_exit_code(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the most important exit code of several results."""
    occurred = set(codes)
    return next((ExitCode(code) for code in _SEVERITY if code in occurred), max(occurred, default=ExitCode.OK))


class TpuctlError(Exception):
    """An error that the user can understand and act on.

    `kind` identifies it in JSON; `hint` is what to do next; `error_id` is the id of the recognized message, if any. `lines` are
    the message and the lines of `details` below it; a line end within one of them is escaped when printed.
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
        # The node that failed, if the command has several.
        self.node: str | None = None
        # The delay that the service requests before the next try; None if it requests none.
        self.retry_after: timedelta | None = None
        # Waiting does not help: the same request will fail again.
        self.is_lasting = False

    @property
    def id(self) -> str:
        """The topic for `tpuctl explain`: the id of the recognized message, else the kind with dashes."""
        return self.error_id or self.kind.replace("_", "-")


class InvalidInputError(TpuctlError):
    """A value from the user is invalid; no request was sent."""

    exit_code = ExitCode.USAGE
    kind = "invalid_input"


class SettingError(InvalidInputError):
    """A setting is missing, or a configuration file is invalid."""

    kind = "setting"


class NotConfirmedError(TpuctlError):
    """The user did not confirm. Nothing was changed."""

    kind = "not_confirmed"

    def __init__(self, message: str = "cancelled", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        # Whether the user has answered a question with no, which is no error to report.
        self.is_answer = message == "cancelled"


class InvalidRequestError(TpuctlError):
    """The service rejected the request; sending it again has the same result."""

    exit_code = ExitCode.USAGE
    kind = "invalid_request"


class NotFoundError(TpuctlError):
    """The named resource does not exist."""

    exit_code = ExitCode.NOT_FOUND
    kind = "not_found"


class NodeNotFoundError(NotFoundError):
    """The API knows no node of that name in that zone."""

    def __init__(self, name: str, zone: str) -> None:
        hint = "run `tpuctl list` to see the nodes of all zones"
        super().__init__(f"no node `{name}` in {zone}", hint=hint)


class NodeNotInProjectError(NotFoundError):
    """No zone of the project has a node of that name."""

    def __init__(
        self, name: str, project: str, *, hint: str = "run `tpuctl list` to see the nodes of all zones"
    ) -> None:
        super().__init__(f"no node `{name}` in any zone of project {project}", hint=hint)


class AccessError(TpuctlError):
    """The call is not allowed: missing credentials, scopes or IAM roles, a disabled API, or billing."""

    exit_code = ExitCode.NOT_ALLOWED
    kind = "not_allowed"


class CredentialsError(AccessError):
    """There are no credentials, or the service does not accept them. No call would succeed."""


class TimedOutError(TpuctlError):
    """The deadline passed. The text says what is still in progress in the cloud."""

    exit_code = ExitCode.TIMED_OUT
    kind = "timed_out"


class NoCapacityError(TpuctlError):
    """The zone has no free capacity for this TPU type at the moment."""

    exit_code = ExitCode.NO_CAPACITY
    kind = "no_capacity"


class QuotaError(TpuctlError):
    """The quota of the project is exhausted, or is zero."""

    exit_code = ExitCode.QUOTA
    kind = "quota"


class ConflictError(TpuctlError):
    """The node differs from the requested spec, or its state does not allow the request."""

    exit_code = ExitCode.CONFLICT
    kind = "conflict"


class AlreadyExistsError(ConflictError):
    """The name is taken, perhaps by the record of a preempted or terminated node."""

    kind = "already_exists"


class PreconditionFailedError(ConflictError):
    """The resource has changed since it was read: another client was faster. Nothing was changed."""


class CheckFailedError(TpuctlError):
    """A check found an error."""

    exit_code = ExitCode.CHECK_FAILED
    kind = "check_failed"


class BrokenNodeError(TpuctlError):
    """The node is broken, and repair is exhausted or impossible."""

    exit_code = ExitCode.BROKEN
    kind = "broken"


class FailedStartupError(BrokenNodeError):
    """The startup script of a node failed."""

    kind = "failed_startup"


class PreemptedError(TpuctlError):
    """The service preempted the node while a command ran there. The same command may succeed on another node."""

    exit_code = ExitCode.BROKEN
    kind = "preempted"


class RemoteCommandError(TpuctlError):
    """A command on a worker failed or could not start."""

    exit_code = ExitCode.REMOTE_FAILED
    kind = "remote_failed"


class ServiceUnavailableError(TpuctlError):
    """The service did not answer, or answered with a server error, until the retries were exhausted."""

    kind = "unavailable"


class OutcomeUnknownError(ServiceUnavailableError):
    """A change was sent, its answer was lost, and its outcome could not be read."""

    kind = "outcome_unknown"

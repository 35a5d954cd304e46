"""Exit codes and kinds are a contract with scripts."""

from __future__ import annotations

from tpuctl import errors
from tpuctl.errors import ExitCode, TpuctlError, worst_exit_code

# Changing a kind or a code here breaks scripts of users.
_CONTRACT = {
    "TpuctlError": ("failure", 1),
    "InvalidInputError": ("invalid_input", 2),
    "SettingError": ("setting", 2),
    "NotConfirmedError": ("not_confirmed", 1),
    "InvalidRequestError": ("invalid_request", 2),
    "NotFoundError": ("not_found", 3),
    "NodeNotFoundError": ("not_found", 3),
    "NodeNotInProjectError": ("not_found", 3),
    "AccessError": ("not_allowed", 4),
    "CredentialsError": ("not_allowed", 4),
    "TimedOutError": ("timed_out", 5),
    "NoCapacityError": ("no_capacity", 6),
    "QuotaError": ("quota", 7),
    "ConflictError": ("conflict", 8),
    "AlreadyExistsError": ("already_exists", 8),
    "PreconditionFailedError": ("conflict", 8),
    "CheckFailedError": ("check_failed", 9),
    "BrokenNodeError": ("broken", 10),
    "FailedStartupError": ("failed_startup", 10),
    "PreemptedError": ("preempted", 10),
    "RemoteCommandError": ("remote_failed", 11),
    "ServiceUnavailableError": ("unavailable", 1),
    "OutcomeUnknownError": ("outcome_unknown", 1),
}


def test_error_kinds_and_exit_codes_stay_the_same() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TpuctlError)]

    assert {cls.__name__: (cls.kind, int(cls.exit_code)) for cls in classes} == _CONTRACT


def test_worst_exit_code_follows_the_documented_order() -> None:
    order = [4, 1, 8, 7, 6, 10, 5, 3, 11, 9]

    for place, code in enumerate(order):
        assert worst_exit_code(map(ExitCode, [0, *reversed(order[place:]), 0])) == code
    assert worst_exit_code([]) == worst_exit_code([ExitCode.OK]) == ExitCode.OK
    assert worst_exit_code([ExitCode.USAGE, ExitCode.OK]) == ExitCode.USAGE


def test_node_not_found_names_zone_and_hint() -> None:
    error = errors.NodeNotFoundError("trainer", "us-central2-b")

    assert (str(error), error.hint) == (
        "no node `trainer` in us-central2-b",
        "run `tpuctl list` to see the nodes of all zones",
    )

"""A failed operation is simulated by its code: the client recognises its kind."""

from __future__ import annotations

import pytest

from tests.conftest import Console, Sandbox
from tpuctl.errors import ExitCode


@pytest.mark.parametrize(
    ("code", "forecast", "ending"),
    [
        (3, "bad request", (ExitCode.USAGE, 1)),
        (5, "not found", (ExitCode.NOT_FOUND, 1)),
        (7, "permission denied", (ExitCode.NOT_ALLOWED, 1)),
        (8, "no capacity", (ExitCode.NO_CAPACITY, 1)),
        (9, "failed precondition", (ExitCode.NO_CAPACITY, 1)),
        (13, "internal error", (ExitCode.FAILURE, 3)),
        (14, "unavailable", (ExitCode.FAILURE, 3)),
    ],
)
def test_up_with_a_failing_operation_has_the_exit_code_of_its_kind(
    tpuctl: Console, sandbox: Sandbox, code: int, forecast: str, ending: tuple[ExitCode, int]
) -> None:
    """The exit code shows its kind, the number of creates whether it was retried."""
    _, said, _ = tpuctl("sandbox", "fault", "operation-error", "--code", str(code), "--times", "0")

    out, _, ended = tpuctl("up", "demo", "--type", "v4-8", "--zone", "us-central2-b")

    assert said == (
        "fault 1: the next create or start of any node fails in its operation "
        f"with code {code} ({forecast}), until it is removed\n"
    )
    assert (out, (ended, sandbox.changes().count("create"))) == ("", ending)

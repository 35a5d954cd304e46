"""`tpuctl up`: from whatever is there to usable."""

from __future__ import annotations

from tests.conftest import Console, Sandbox

UP = ("up", "demo", "--type", "v4-8", "--zone", "us-central2-b")


def test_creates_a_node_and_waits_until_ssh_answers(tpuctl: Console, sandbox: Sandbox) -> None:
    out, err, code = tpuctl(*UP)

    assert (out, code) == ("demo\tREADY\n", 0)
    assert err.splitlines() == [
        "demo: creating v4-8 with tpu-ubuntu2204-base: there is none yet",
        "demo: CREATING",
        "demo: READY",
        "demo: usable, ssh answers, after 3m28s; its health is not reported yet",
    ]
    assert sandbox.changes() == ["create"]


def test_a_second_up_changes_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)

    out, _, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])

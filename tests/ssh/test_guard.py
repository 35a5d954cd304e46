"""The guard of a node: its rules, and the real program against the sandbox's metadata server and TPU API."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.ssh.guarded import NAME, Guarded
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import Request, Response
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.sshd.guard_service import CLOUD_PLATFORM, GuardServer
from tpuctl.ssh.agent.guard import KnownEnd, next_end, next_guard_step
from tpuctl.ssh.agent.guard_answers import EXPIRY_TEXT, parse_date, parse_node
from tpuctl.ssh.answers import decode_answer
from tpuctl.ssh.channel import LONGEST_ANSWER, FrameDecoder, WorkerFrame, bootstrap, standalone_program
from tpuctl.ssh.tpu_guard import GuardReport

NOW = 1_800_000_000
# 1700000000 in Arabic digits.
OTHER_DIGITS = "".join(chr(0x660 + int(digit)) for digit in "1700000000")
ACCOUNT_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"


def labels(**given: str) -> dict[str, Any]:
    return {"id": "7", "state": "READY", "labels": {f"tpuctl-{name}": text for name, text in given.items()}}


# node, idle limit in seconds, idle since; action, reason, end
_STEPS: dict[str, tuple[dict[str, Any], int | None, int | None, tuple[str, str, int | None]]] = {
    "no-label": (labels(), None, None, ("wait", "no time limit", None)),
    "labels-absent": ({"id": "7", "state": "READY"}, None, None, ("wait", "no time limit", None)),
    "one-second-left": (labels(expires=str(NOW + 1)), None, None, ("wait", "not expired", NOW + 1)),
    "this-second": (labels(expires=str(NOW)), None, None, ("delete", "expired", NOW)),
    "passed": (labels(expires=str(NOW - 9)), None, None, ("delete", "expired", NOW - 9)),
    "nonsense": (labels(expires="soon"), None, None, ("wait", "label tpuctl-expires=soon is not a time", None)),
    "milliseconds": (
        labels(expires="1700000000000"),
        None,
        None,
        ("wait", "label tpuctl-expires=1700000000000 is not a time", None),
    ),
    "other-digits": (
        labels(expires=OTHER_DIGITS),
        None,
        None,
        ("wait", f"label tpuctl-expires={OTHER_DIGITS} is not a time", None),
    ),
    "kept": (labels(expires=str(NOW - 9), keep=""), None, None, ("wait", "label tpuctl-keep: never deleted", None)),
    "recreated": (
        {**labels(expires=str(NOW - 9)), "id": "8"},
        None,
        None,
        ("end", "the node was recreated: this guard ends", None),
    ),
    **{
        f"expired-{state}": (
            {**labels(expires=str(NOW)), "state": state},
            None,
            None,
            ("wait", f"expired, but it is {state}", NOW),
        )
        for state in ("CREATING", "STOPPING", "DELETING", "REPAIRING", "NEW_STATE")
    },
    "in-use": (labels(), 3600, None, ("wait", "in use", None)),
    "idle-one-second-less": (labels(), 3600, NOW - 3599, ("wait", "idle", NOW + 1)),
    "idle-long-enough": (labels(), 3600, NOW - 3600, ("stop", "idle for 60 min", NOW)),
    "idle-but-kept": (labels(keep=""), 3600, NOW - 3600, ("wait", "label tpuctl-keep: never deleted", None)),
    "expires-before-idle": (labels(expires=str(NOW)), 3600, NOW - 10, ("delete", "expired", NOW)),
    "idle-before-it-expires": (labels(expires=str(NOW + 99)), 3600, NOW - 3600, ("stop", "idle for 60 min", NOW)),
    "idle-with-nonsense": (labels(expires="x"), 3600, NOW - 3600, ("stop", "idle for 60 min", NOW)),
}  # fmt: skip


@pytest.mark.parametrize(("node", "idle", "since", "expected"), _STEPS.values(), ids=_STEPS.keys())
def test_guard_step_of_a_node(
    node: dict[str, Any], idle: int | None, since: int | None, expected: tuple[str, str, int | None]
) -> None:
    parsed = parse_node(node)
    known = KnownEnd(parsed.expires, parsed.expires)
    step = next_guard_step({"id": "7", "idle": idle, "onIdle": "stop"}, parsed, known, NOW, since)

    assert (step.action, step.why, step.due) == expected


# What was known, the label's end, and then what is known and when the node ends. At 0 it is NOW; a warning takes 600 s.
_ENDS: dict[str, tuple[tuple[int | None, ...], int | None, tuple[int | None, ...], int | None]] = {
    "no-end": ((None, None, None), None, (None, None, None), None),
    "removed": ((50, 50, None), None, (None, None, None), None),
    "first-look": ((None, None, None), 9000, (None, 9000, 0), 9000),
    "first-look-near-its-end": ((None, None, None), 60, (None, 60, 0), 600),
    "first-look-after-its-end": ((None, None, None), -9000, (None, -9000, 0), 600),
    "same": ((50, 50, None), 50, (50, 50, None), 50),
    "same-and-passed": ((-50, -50, None), -50, (-50, -50, None), -50),
    "later": ((50, 50, None), 60, (60, 60, None), 60),
    "later-during-a-warning": ((50, -9, -300), 60, (60, 60, None), 60),
    "moved-back": ((9000, 9000, None), -9, (9000, -9, 0), 600),
    "moved-back-a-little": ((9000, 9000, None), 8999, (9000, 8999, 0), 8999),
    "warned-too-shortly": ((9000, -9, -599), -9, (9000, -9, -599), 1),
    "warned-long-enough": ((9000, -9, -600), -9, (-9, -9, None), -9),
    "moved-back-again": ((9000, -9, -599), -10, (9000, -10, 0), 600),
    "moved-on-and-still-earlier": ((9000, -9, -599), 700, (9000, 700, 0), 700),
    "clock-was-ahead": ((9000, -9, 10**9), -9, (9000, -9, 0), 600),
}


@pytest.mark.parametrize(("before", "seen", "after", "due"), _ENDS.values(), ids=_ENDS.keys())
def test_earlier_end_counts_after_a_warning(
    before: tuple[int | None, ...], seen: int | None, after: tuple[int | None, ...], due: int | None
) -> None:
    def at(offset: int | None) -> int | None:
        return None if offset is None else NOW + offset

    end = next_end(KnownEnd(*map(at, before)), at(seen), NOW)

    assert ((end.known, end.seen, end.since), end.due) == (tuple(map(at, after)), at(due))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Sun, 06 Nov 1994 08:49:37 GMT", 784111777, id="as-in-the-standard"),
        pytest.param("", None, id="empty"),
        pytest.param(" ", None, id="blank"),
        pytest.param("soon", None, id="no-date"),
        pytest.param("Sun, 06 Nov 99999 08:49:37 GMT", None, id="beyond-the-calendar"),
    ],
)
def test_guard_reads_the_time_of_an_answer(text: str, expected: int | None) -> None:
    assert parse_date(text) == expected


def test_guard_warns_then_deletes_the_expired_node_and_ends(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=1))
    process = guarded.start()
    guarded.looks()
    guarded.clock.sleep(timedelta(minutes=51))
    guarded.until((guarded.home / "wall").exists)
    guarded.looks()
    assert not guarded.is_deleting()

    guarded.clock.sleep(timedelta(minutes=10))
    guarded.until(guarded.is_deleting)
    guarded.clock.sleep(timedelta(minutes=10))

    assert process.wait(10) == 0
    warning = "tpuctl: this node, node, is deleted in 9 min: `tpuctl extend node 2h` gives it more time"
    assert (guarded.home / "wall").read_text() == f"{warning}\n"
    assert guarded.log()[1:4] == ["not expired", f"warned all terminals: {warning}", "expired"]
    assert guarded.log()[4:6] == ["expired: delete follows a last look", "the delete was accepted"]
    assert guarded.log()[-1] == "the node is gone: this guard ends"
    assert {path.stat().st_mode & 0o077 for path in (guarded.folder / "log", guarded.folder / "status")} == {0}


def test_guard_sees_an_extension_and_a_label_that_is_nonsense(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(minutes=30))
    guarded.start()
    guarded.looks()
    for text in (guarded.expires_in(hours=2), {"tpuctl-expires": "never"}):
        guarded.call("PATCH", NAME, {"labels": text}, updateMask="labels")
        guarded.clock.sleep(timedelta(minutes=40))
        guarded.looks(4)
        assert not guarded.is_deleting()
    guarded.clock.sleep(timedelta(days=30))
    guarded.looks()
    assert (guarded.is_deleting(), guarded.status()["text"]) == (False, "label tpuctl-expires=never is not a time")

    guarded.call("PATCH", NAME, {"labels": guarded.expires_in(minutes=0)}, updateMask="labels")
    guarded.looks()
    assert not guarded.is_deleting()
    assert guarded.log()[-1].startswith("warned all terminals: tpuctl: this node, node, is deleted in 10 min")
    guarded.clock.sleep(timedelta(minutes=11))
    guarded.until(guarded.is_deleting)


def test_guard_of_a_recreated_node_ends_and_deletes_nothing(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=1))
    process = guarded.start()
    guarded.looks()
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))

    assert process.wait(10) == 0
    assert (guarded.is_deleting(), guarded.status()["hasEnded"]) == (False, True)
    assert guarded.log()[-1] == "the node was recreated: this guard ends"


def test_guard_refused_by_the_api_tries_again_and_logs_it(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=1))
    guarded.start()
    guarded.looks()
    with guarded.state.write() as session:
        add_fault(session, Fault(FaultKind.HTTP_ERROR, method="*.nodes.delete", status=403, count=2))
        add_fault(session, Fault(FaultKind.HTTP_ERROR, method="*.nodes.get", status=503, count=2))
        add_fault(session, Fault(FaultKind.HTTP_ERROR, method="*.nodes.get", status=404, count=3))
    guarded.clock.sleep(timedelta(hours=2))

    guarded.until(guarded.is_deleting)
    failed = [line.partition(":")[0] for line in guarded.log() if line.startswith("failed")]
    assert failed == [*["failed (api)"] * 5, *["failed (permission)"] * 2]
    guarded.until(lambda: "requests succeed again" in guarded.log())


def test_guard_without_scope_reports_it_and_deletes_nothing(guarded: Guarded) -> None:
    guarded.scopes = ("https://www.googleapis.com/auth/devstorage.read_only",)
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))
    guarded.start()
    guarded.looks(2)

    assert (guarded.is_deleting(), guarded.status()["problem"]) == (False, "scope")


def test_guard_tests_its_permission_long_before_it_needs_it(guarded: Guarded) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=1))
    administration.add_project(guarded.state, "sandbox", denied=["tpu.nodes.delete"])
    guarded.start()
    guarded.looks()

    assert guarded.status()["problem"] == "permission"
    assert guarded.log()[1:] == ["the service account lacks the permission tpu.nodes.delete", "not expired"]
    guarded.clock.sleep(timedelta(hours=2))
    guarded.until(lambda: any(line.startswith("failed (permission): DELETE") for line in guarded.log()))
    assert not guarded.is_deleting()


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        pytest.param(f"/v2/{NAME}", "", 401, id="no-token"),
        pytest.param(f"/v2/{NAME}", "sandbox-guess", 401, id="other-token"),
        pytest.param("/storage/v1/b", "its", 403, id="other-api"),
        pytest.param("/v3/projects/sandbox:getIamPolicy", "its", 403, id="other-method"),
        pytest.param(f"/v2/{NAME}", "its", 200, id="served"),
        pytest.param(f"SECRET{ACCOUNT_TOKEN}", "", 403, id="no-flavor"),
        pytest.param(ACCOUNT_TOKEN, "", 401, id="other-users"),
        pytest.param(f"/guess{ACCOUNT_TOKEN}", "", 401, id="guessed"),
    ],
)
def test_servers_of_a_worker_open_nothing_else(guarded: Guarded, path: str, token: str, status: int) -> None:
    administration.add_node(guarded.state)
    with GuardServer(guarded.state, {}, (CLOUD_PLATFORM,)) as server:
        flavor = {"metadata-flavor": "Google"}
        secret = "/" + server.environment["GCE_METADATA_HOST"].partition("/")[2]
        given = server.answer(Request("GET", secret + ACCOUNT_TOKEN, headers=flavor))
        assert isinstance(given, Response)
        chosen = json.loads(given.body)["access_token"] if token == "its" else token
        headers = {"authorization": f"Bearer {chosen}"} if token else {}
        if not path.startswith("SECRET"):
            headers |= flavor
        answer = server.answer(Request("GET", path.replace("SECRET", secret), headers=headers))
        assert isinstance(answer, Response)
        assert (answer.status, server.server_address[0]) == (status, "127.0.0.1")


def test_guard_deletes_an_idle_node_only_after_its_last_job(guarded: Guarded) -> None:
    administration.add_node(guarded.state)
    guarded.idle = 3600
    job = guarded.home / ".tpuctl" / "jobs" / "train"
    job.mkdir(parents=True)
    with (job / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        guarded.start()
        guarded.looks(1)
        guarded.clock.sleep(timedelta(hours=2))
        guarded.looks(1)
        assert (guarded.is_deleting(), guarded.log()[-1]) == (False, "in use; a job runs")
    guarded.until(lambda: guarded.log()[-1] == "idle")
    guarded.clock.sleep(timedelta(minutes=59))
    guarded.looks(2)
    assert not guarded.is_deleting()
    guarded.clock.sleep(timedelta(minutes=2))

    guarded.until(guarded.is_deleting)
    assert "idle for 60 min: delete follows a last look" in guarded.log()


def test_job_between_two_looks_is_use(guarded: Guarded) -> None:
    administration.add_node(guarded.state)
    guarded.idle = 3600
    jobs = guarded.home / ".tpuctl" / "jobs"
    jobs.mkdir(parents=True)
    guarded.start()
    guarded.looks(1)
    guarded.until(lambda: guarded.log()[-1] == "idle")
    guarded.clock.sleep(timedelta(minutes=59))

    (jobs / "short").mkdir()
    (jobs / "short").rmdir()

    guarded.until(lambda: "in use; a job ended since the last look" in guarded.log())
    guarded.clock.sleep(timedelta(minutes=2))
    guarded.looks(2)
    assert not guarded.is_deleting()


def report_of(
    guarded: Guarded, request: dict[str, Any], environ: dict[str, str], *, login: str = "", umask: int = -1
) -> list[tuple[WorkerFrame, bytes]]:
    """Run the program that starts guards, on a machine without systemd, and return its answer. `login`: its home."""
    programs = guarded.home / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("systemctl", "sudo"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    environ = environ | {
        "HOME": str(guarded.home / login),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TPUCTL_DEVICE_ROOT": str(guarded.root),
        "TPUCTL_GUARD_INTERVAL": "0.05",
    }
    (guarded.home / login).mkdir(exist_ok=True)
    line, source = bootstrap("guard_setup", f"run_agent(serve_guard_setup, {request!r})")
    done = subprocess.run(["sh", "-c", line], input=source, env=environ, capture_output=True, check=True, umask=umask)
    return FrameDecoder(LONGEST_ANSWER).feed(done.stdout)


@pytest.fixture
def set_up(guarded: Guarded) -> Iterator[Callable[..., GuardReport]]:
    """Start or remove a guard as a login of the worker does."""
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=1))
    guarded.servers.append(server := GuardServer(guarded.state, {}, guarded.scopes).start())

    def report(request: dict[str, Any] | None = None, **options: Any) -> GuardReport:
        start = {"program": standalone_program("guard", "guard_main()"), "settings": guarded.settings()}
        ((_, payload),) = report_of(guarded, start if request is None else request, server.environment, **options)
        return decode_answer(GuardReport, json.loads(payload))

    yield report
    report({"remove": True})


def test_second_guard_without_systemd_replaces_the_first(guarded: Guarded, set_up: Callable[..., GuardReport]) -> None:
    guarded.is_shared = True

    first, pid = set_up(), int((guarded.folder / "lock").read_text())
    second, other = set_up(), int((guarded.folder / "lock").read_text())

    assert [(one.mode, one.is_running, one.problem()) for one in (first, second)] == [("process", True, None)] * 2
    assert pid != other
    guarded.clock.sleep(timedelta(hours=2))
    guarded.until(guarded.is_deleting)
    removed = set_up({"remove": True})
    assert (removed.is_installed, removed.is_running, removed.problem()) == (False, False, None)
    assert not (guarded.root / "etc").exists()


def test_limits_are_those_of_the_node_whichever_login_starts_its_guard(
    guarded: Guarded, set_up: Callable[..., GuardReport]
) -> None:
    def limits(login: str, idle: int | None, *, keeps_idle: bool) -> tuple[timedelta | None, str | None]:
        start = {"program": standalone_program("guard", "guard_main()"), "keepsIdle": keeps_idle}
        settings = {**guarded.settings(), "idle": idle, "onIdle": idle and "stop"}
        report = set_up({**start, "settings": settings}, login=login)
        return report.idle, report.on_idle

    assert limits("ann", 5400, keeps_idle=False) == (timedelta(minutes=90), "stop")
    assert limits("bob", None, keeps_idle=True) == (timedelta(minutes=90), "stop")
    assert limits("bob", 7200, keeps_idle=False) == (timedelta(hours=2), "stop")
    assert limits("ann", None, keeps_idle=True) == (timedelta(hours=2), "stop")
    assert limits("ann", None, keeps_idle=False) == (None, None)
    assert [str(path) for path in guarded.home.glob("*/.tpuctl/guard")] == []


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_no_other_user_can_change_what_a_guard_runs(
    guarded: Guarded, set_up: Callable[..., GuardReport], umask: int
) -> None:
    guarded.is_shared = True

    assert set_up(umask=umask).problem() is None

    made = [*guarded.folder.rglob("*"), guarded.folder, guarded.folder.parent, guarded.folder.parent.parent]
    assert {str(path): oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o022} == {}
    assert (guarded.folder / "lock").stat().st_mode & 0o777 == 0o600


def test_guard_lives_in_the_home_where_others_can_change_the_place_of_root(
    guarded: Guarded, set_up: Callable[..., GuardReport]
) -> None:
    """Nothing runs from there, and nothing of the guard runs as root."""
    (guarded.root / "var").mkdir(parents=True)
    (guarded.root / "var").chmod(0o777)

    report = set_up(umask=0)

    assert (report.mode, report.problem()) == ("process", None)
    assert (guarded.home / ".tpuctl" / "guard" / "lock").exists()
    assert {path.stat().st_mode & 0o077 for path in (guarded.home / ".tpuctl").rglob("*")} == {0}
    assert (guarded.home / ".tpuctl").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["guard.py", "."])
def test_program_that_others_can_change_is_not_run(guarded: Guarded, path: str) -> None:
    administration.add_node(guarded.state, labels=guarded.expires_in(hours=-1))
    guarded.write_files()
    (guarded.folder / path).chmod(0o777)
    words = [sys.executable, "-I", str(guarded.folder / "guard.py")]

    done = subprocess.run(words, env={"HOME": str(guarded.home)}, capture_output=True, text=True, check=False)

    refusal = f"{guarded.folder / 'guard.py'}: other users can change it: not run\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", refusal)


def test_guard_does_not_start_without_a_metadata_server(guarded: Guarded) -> None:
    administration.add_node(guarded.state)
    start = {"program": "raise SystemExit", "settings": guarded.settings()}

    ((kind, text),) = report_of(guarded, start, {"GCE_METADATA_HOST": "127.0.0.1:1"})

    assert (kind, b"no metadata server answers" in text) == (WorkerFrame.REFUSED, True)
    assert not guarded.folder.exists()


def test_guard_ends_when_its_folder_is_removed(guarded: Guarded) -> None:
    administration.add_node(guarded.state)
    process = guarded.start()
    guarded.looks(1)
    (guarded.folder / "settings").unlink()

    assert process.wait(10) == 0


def test_expiry_text_is_that_of_the_client() -> None:
    assert EXPIRY_TEXT.pattern == r"[1-9][0-9]{8,10}"

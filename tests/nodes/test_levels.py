"""The conditions: `startup`, `devices` and `--probe`, and gone, stopped and preempted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, EventfulClock, put, said, told
from tests.others import errors, events, interrupt

FakeSsh = Callable[[str], None]
# Each worker's address is in the arguments of ssh: worker 0 has 198.18.0.1.
WORKER = "for last; do :; done; case $* in"


def worker_report(*more: str, startup: str = "done", chips: int = 4, identity: str = "-") -> str:
    """Return the shell line of a worker that prints its report, and the output of a probe."""
    lines = (f"tpuctl-worker startup={startup} about=- chips={chips} holders=- identity={identity}", *more)
    return "printf '" + "".join(line + "\\n" for line in lines) + "'"


def test_startup_script_is_awaited(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, fake_ssh: FakeSsh) -> None:
    fake_ssh(worker_report(startup="running"))
    clock.after(timedelta(minutes=20), lambda: fake_ssh(worker_report(startup="failed")))

    by_ssh = tpuctl(*UP)[::2]
    out, err, code = tpuctl(*UP, "--for", "startup", "--allow-failed-startup")

    assert by_ssh == ("demo\tREADY\n", 0)
    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert clock.monotonic() > timedelta(minutes=20)
    assert told(err)[-1].endswith("its startup script has failed")


@pytest.mark.parametrize("goal", ["startup", "devices"])
@pytest.mark.parametrize("verb", ["up", "wait"])
def test_failed_startup_script_is_an_error_an_event_and_a_field(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, verb: str, goal: str
) -> None:
    put(sandbox, acceleratorType="v4-16")
    fake_ssh(f"{WORKER} *198.18.0.2*) {worker_report(startup='failed')} ;; *) {worker_report()} ;; esac")

    out, err, code = tpuctl(verb, "demo", "--for", goal, "--events", "-")
    accepted = tpuctl(verb, "demo", "--for", goal, "--allow-failed-startup", "-o", "json")

    failed = "its startup script has failed on worker 1"
    assert [
        (one["text"], one["startup"], one["failed_workers"])
        for one in map(json.loads, out.splitlines())
        if "startup" in one
    ] == [(failed, "failed", [1])]
    assert (errors(err), code) == ([f"error: `demo` is READY, but {failed}"], 10)
    assert (json.loads(accepted[0])["startup"], accepted[2]) == ({"state": "failed", "failedWorkers": [1]}, 0)


def test_failed_cloud_init_alone_is_a_note(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh) -> None:
    put(sandbox)
    fake_ssh(worker_report(startup="failed").replace("about=-", "about=cloud-init"))

    out, err, code = tpuctl("wait", "demo", "--for", "startup")

    assert (out, code) == ("demo\tREADY\n", 0)
    assert told(err)[-1].endswith("; cloud-init has failed")


def test_worker_with_missing_chips_is_named(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh) -> None:
    put(sandbox, acceleratorType="v4-32")
    fake_ssh(f"{WORKER} *198.18.0.3*) {worker_report(chips=3)} ;; *) {worker_report()} ;; esac")

    assert tpuctl("wait", "demo", "--for", "startup")[::2] == ("demo\tREADY\n", 0)
    _, err, code = tpuctl("wait", "demo", "--for", "devices", "--timeout", "0")

    assert (errors(err), code) == (
        ["error: `demo` is not usable with all its chips: it is READY, but worker 2 sees 3 of 4 chips"],
        5,
    )


@pytest.mark.parametrize(
    ("identity", "why"),
    [
        ("//A/2/v4-32", "has blank TPU metadata (agent-worker-number, accelerator-type)"),
        ("2/v4-32///", "has blank TPU metadata (tpu-env)"),
        ("1/v4-32/A/1/v4-32", "has the TPU metadata of worker 1"),
        ("2/v4-32/A/1/v4-32", "has TPU metadata of two workers (2 and, in tpu-env, 1)"),
        ("2/v4-8/A/2/v4-32", "has the TPU metadata of a `v4-8`"),
        ("2/v4-32/A/2/v4-16", "has the TPU metadata of a `v4-16`"),
        ("2/V4-32/A//", ""),
        ("-", ""),
    ],
)
def test_worker_with_metadata_of_another_is_named(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, identity: str, why: str
) -> None:
    put(sandbox, acceleratorType="v4-32")
    cases = [f"*198.18.0.{one + 1}*) {worker_report(identity=f'{one}/v4-32/A/{one}/v4-32')} ;;" for one in (0, 1, 3)]
    fake_ssh(f"{WORKER} {' '.join(cases)} *) {worker_report(identity=identity)} ;; esac")

    assert tpuctl("wait", "demo", "--for", "startup")[::2] == ("demo\tREADY\n", 0)
    _, err, code = tpuctl("wait", "demo", "--for", "devices", "--timeout", "0")

    error = f"error: `demo` is not usable with all its chips: it is READY, but worker 2 {why}"
    assert (errors(err), code) == (([error], 5) if why else ([], 0))


def test_events_have_each_worker_and_level(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh) -> None:
    put(sandbox, acceleratorType="v4-16")
    fake_ssh(f"{WORKER} *@198.18.0.1*) {worker_report()} ;; *) exit 255 ;; esac")

    out, _, _ = tpuctl("wait", "demo", "--for", "devices", "--timeout", "1s", "--events", "-")

    (wait, *_) = [event for event in map(json.loads, out.splitlines()) if event["event"] == "wait"]
    row = {"ready": True, "healthy": True}
    assert wait["workers"] == [
        {"worker": 0, **row, "ssh": True, "startup": True, "devices": True, "why": None},
        {"worker": 1, **row, "ssh": False, "startup": None, "devices": None, "why": "does not answer"},
    ]


def test_probe_of_the_user_decides(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh, tmp_path: Path) -> None:
    put(sandbox, acceleratorType="v4-16")
    passes, fails = worker_report("tpuctl-probe exit=0", chips=0), worker_report("no module jax", "tpuctl-probe exit=3")
    fake_ssh(f"cat > {tmp_path}/script; {WORKER} *@198.18.0.1*) {passes} ;; *) {fails} ;; esac")

    _, err, code = tpuctl("wait", "demo", "--probe", "python3 -c 'import jax'", "--timeout", "0")

    assert (errors(err), code) == (
        [
            "error: `demo` is not usable with all its chips: it is READY, but worker 1 fails the probe (exit 3: no module jax)"
        ],
        5,
    )
    assert "import jax" in (tmp_path / "script").read_text()
    fake_ssh(passes)
    assert tpuctl("wait", "demo", "--probe", "python3 -c 'import jax'")[::2] == ("demo\tREADY\n", 0)


@pytest.mark.parametrize("command", [("wait", "demo"), UP, ("watch", "demo")])
def test_probe_that_would_never_run_is_refused(tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...]) -> None:
    put(sandbox)

    assert tpuctl(*command, "--probe", "true", "--for", "ssh") == (
        "",
        said(
            "error: cannot use `--probe` with `--for ssh`",
            "  hint: use it with `--for devices`, or without `--for`",
        ),
        2,
    )


@pytest.mark.sshd
def test_real_workers_report_startup_and_chips(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, tmp_path: Path
) -> None:
    def seen(goal: str) -> str:
        """Return the result of the first probe of the workers."""
        clock.after(timedelta(), interrupt)
        events = tpuctl("wait", "demo", "--for", goal, "--events", "-")[0]
        return next(str(event["text"]) for event in map(json.loads, events.splitlines()) if event["event"] == "wait")

    shutil.rmtree(tmp_path / "bin")
    tpuctl("up", "demo", "--type", "v4-16", "--zone", "us-central2-b", "--for", "healthy")
    sandbox.fault("missing-chip", worker=1)

    assert seen("devices") == "worker 1 sees 3 of 4 chips"
    sandbox.fault("startup-slow")
    assert seen("startup") == "2 of 2 workers: has not ended its startup (0, 1)"


@pytest.mark.parametrize("goal", ["preempted", "ssh"])
def test_preempted_queued_resource_is_a_preemption_of_its_node(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, goal: str
) -> None:
    """The node only disappears: its queued resource shows that the service preempted it."""
    put(sandbox, queued_resource="research", schedulingConfig={"spot": True}, health="UNHEALTHY_MAINTENANCE")
    sandbox.add_queued_resource("research", node_ids=("demo",))
    clock.after(timedelta(minutes=5), lambda: sandbox.fault("preempt"))

    out, err, code = tpuctl("wait", "demo", "--for", goal, "--events", "-")

    assert events(out, "event")[-2:] == (
        [("preempted",), ("reached",)] if goal == "preempted" else [("preempted",), ("gave-up",)]
    )
    assert (code, "was preempted" in err) == (0 if goal == "preempted" else 8, goal != "preempted")

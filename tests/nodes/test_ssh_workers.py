"""Surveys and set-ups of workers: with a real sshd, with a failing one, and for many workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from getpass import getuser
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.workers.holding import holding
from tpuctl.errors import RemoteCommandError
from tpuctl.models.node import Node
from tpuctl.nodes.conditions import SshAnswer, StartupState, WorkerSnapshot
from tpuctl.nodes.ssh_workers import SetupResult, SshWorkers
from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.sshd.worker_home import StartupProgress as Stands
from tpuctl.sandbox.sshd.worker_home import startup_progress
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import find_worker
from tpuctl.ssh.keys import ensure_key, metadata_key_line

PATIENCE = timedelta(seconds=20)
LINE = "tpuctl-worker startup=done about=- chips=4 holders=-"


def workers_of(sandbox_state: SandboxState, home: Path) -> SshWorkers:
    return SshWorkers(
        login=getuser(),
        home=home,
        key_file=None,
        known_hosts=home / "known_hosts",
        guest_attributes=lambda name, worker: (),  # noqa: ARG005  # nothing is published
        proxy_command=lambda node, worker: proxy_command(sandbox_state.path, node.endpoints[worker].address or ""),
    )


@pytest.fixture
def sandbox_state(tmp_path: Path) -> Iterator[SandboxState]:
    with SandboxState.open(tmp_path / "a 100% world" / "world.sqlite3", speed=1) as sandbox_state:
        yield sandbox_state


@pytest.fixture
def add(sandbox_state: SandboxState, tmp_path: Path) -> Callable[[str], Node]:
    """Add a node that accepts our key."""

    def add(accelerator_type: str, **fields: Any) -> Node:
        entry = metadata_key_line(getuser(), ensure_key(tmp_path / "home", login=getuser()))
        metadata = {"ssh-keys": entry}
        return Node.from_api(
            administration.add_node(
                sandbox_state, "node", acceleratorType=accelerator_type, metadata=metadata, **fields
            )
        )

    return add


def seen(workers: SshWorkers, node: Node, probe: str | None = None) -> list[tuple[WorkerSnapshot, str]]:
    return [(one, one.detail) for one in workers.survey(node, inspect=True, probe=probe, timeout=PATIENCE)]


@pytest.mark.sshd
def test_survey_of_a_slice_has_startup_chips_holders_and_probe(
    sandbox_state: SandboxState, add: Callable[..., Node], tmp_path: Path
) -> None:
    workers, node = workers_of(sandbox_state, tmp_path / "home"), add("v4-16", state="STARTING")
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.MISSING_CHIP, worker=1))
        add_fault(session, Fault(FaultKind.STARTUP_SLOW, duration=timedelta(hours=1)))
    sandbox_state.advance(timedelta(minutes=2))
    running = seen(workers, node)
    sandbox_state.advance(timedelta(hours=2))
    (device,) = sandbox_state.path.parent.glob("workers/**/0/.tpu/dev/accel2")
    with holding(device) as holders:
        probed = seen(workers, node, 'echo "worker $TPU_WORKER_ID"; exit "$TPU_WORKER_ID"')

    still = "cloud-init and the startup script still run"
    assert running == [
        (WorkerSnapshot(SshAnswer.YES, StartupState.RUNNING, 4), still),
        (WorkerSnapshot(SshAnswer.YES, StartupState.RUNNING, 3), still),
    ]
    assert probed == [
        (WorkerSnapshot(SshAnswer.YES, StartupState.DONE, 4, holders=tuple(holders)), ""),
        (WorkerSnapshot(SshAnswer.YES, StartupState.DONE, 3, "exit 1: worker 1"), ""),
    ]


@pytest.mark.sshd
def test_failed_startup_is_reported_and_setup_does_not_read_its_script(
    sandbox_state: SandboxState, add: Callable[..., Node], tmp_path: Path
) -> None:
    workers, node = workers_of(sandbox_state, tmp_path / "home"), add("v4-8")
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.STARTUP_FAILS))

    assert seen(workers, node) == [(WorkerSnapshot(SshAnswer.YES, StartupState.FAILED, 4), "the startup script failed")]
    assert workers.survey(node, inspect=False, probe=None, timeout=PATIENCE) == (WorkerSnapshot(SshAnswer.YES),)

    lines = (
        'cat\necho "on $TPUCTL_NODE $TPUCTL_WORKER"\nfor i in $(seq 30); do echo $i >&2; done\n[[ -n $BASH ]] && exit 7'
    )
    tail = "\n".join(str(number) for number in range(11, 31))
    assert workers.set_up(node, lines, timeout=PATIENCE) == (SetupResult(0, 7, tail),)
    assert workers.set_up(node, 'echo "on $TPUCTL_NODE $TPUCTL_WORKER"', timeout=PATIENCE) == (
        SetupResult(0, 0, "on node 0"),
    )


@pytest.mark.sshd
def test_reboot_closes_the_connections(sandbox_state: SandboxState, add: Callable[..., Node], tmp_path: Path) -> None:
    workers, node = workers_of(sandbox_state, tmp_path / "home"), add("v4-8")

    workers.reboot(node)
    meanwhile = workers.survey(node, inspect=True, probe=None, timeout=PATIENCE)
    with pytest.raises(RemoteCommandError, match="it does not answer ssh"):
        workers.reboot(node)
    sandbox_state.advance(timedelta(seconds=41))
    (up_again,) = workers.survey(node, inspect=True, probe=None, timeout=PATIENCE)

    assert meanwhile == (WorkerSnapshot(SshAnswer.UNREACHABLE),)
    assert meanwhile[0].detail.endswith("Connection refused")
    assert up_again == WorkerSnapshot(SshAnswer.YES, StartupState.RUNNING, 4)


def test_startup_in_the_sandbox_has_a_duration(sandbox_state: SandboxState, add: Callable[..., Node]) -> None:
    def stands(*, rebooted_ago: float | None = None, speed: float = 1) -> Stands:
        with sandbox_state.read() as session:
            worker = find_worker(session, "sandbox/us-central2-b/node/0")
            assert worker is not None
            ago = None if rebooted_ago is None else session.now - timedelta(seconds=rebooted_ago)
            return startup_progress(worker, ago, session.now, speed)

    add("v4-8", zone="us-central2-b")
    long_there, rebooted, quick = stands(), stands(rebooted_ago=5), stands(rebooted_ago=5, speed=60)
    add("v4-8", zone="us-central2-b", state="STARTING")
    sandbox_state.advance(timedelta(seconds=61))
    young = stands()

    assert (long_there, rebooted, quick) == (Stands(0, "done"), Stands(15, "done"), Stands(1, "done"))
    assert 15 <= young.runs_for <= 19


FAKE = {
    "refused": ("echo 'ssh: connect to host x port 22: Connection refused' >&2; exit 255", SshAnswer.UNREACHABLE),
    "key": ("echo 'a@b: Permission denied (publickey).' >&2; exit 255", SshAnswer.KEY_REFUSED),
    "silent": ("exec sleep 60", SshAnswer.UNREACHABLE),
    "hangs inside": ("echo tpuctl-begin; exec sleep 60", SshAnswer.YES),
    "motd only": ("echo This account is not available; exit 1", SshAnswer.YES),
}


@pytest.mark.parametrize("inspect", [False, True])
@pytest.mark.parametrize("case", FAKE)
def test_silent_worker_times_out(
    sandbox_state: SandboxState,
    add: Callable[..., Node],
    tmp_path: Path,
    fake_ssh: Callable[[str], None],
    *,
    case: str,
    inspect: bool,
) -> None:
    node, (lines, answer) = add("v4-8"), FAKE[case]
    fake_ssh(lines)
    begun = monotonic()

    (one,) = workers_of(sandbox_state, tmp_path / "home").survey(
        node, inspect=inspect, probe=None, timeout=timedelta(seconds=2)
    )

    expected = answer if inspect or case != "hangs inside" else SshAnswer.UNREACHABLE
    assert (one, bool(one.detail)) == (WorkerSnapshot(expected), True)
    assert monotonic() - begun < 30


def test_setup_is_retried_only_until_it_has_begun(
    sandbox_state: SandboxState, add: Callable[..., Node], tmp_path: Path, fake_ssh: Callable[[str], None]
) -> None:
    node, workers = add("v4-8"), workers_of(sandbox_state, tmp_path / "home")
    count = f"echo x >> '{tmp_path}/tries'; tries=$(grep -c x '{tmp_path}/tries')"

    def results(lines: str) -> tuple[SetupResult, int]:
        (tmp_path / "tries").unlink(missing_ok=True)
        fake_ssh(f"{count}\n{lines}")
        (result,) = workers.set_up(node, "echo done", timeout=timedelta(seconds=1))
        return result, len((tmp_path / "tries").read_text().splitlines())

    run_it = 'for command; do :; done; exec sh -c "$command"'
    refused = "echo 'Connection refused' >&2; exit 255"
    assert results(f"[ $tries -lt 3 ] && {{ {refused}; }}; {run_it}") == (SetupResult(0, 0, "done"), 3)
    assert results(refused) == (SetupResult(0, 255, "Connection refused"), 4)
    assert results("echo 'a@b: Permission denied (publickey).' >&2; exit 255")[1] == 1
    assert results("echo hi; echo tpuctl-set-up-begins; echo half; echo 'Broken pipe' >&2; exit 255") == (
        SetupResult(0, 255, "half\nBroken pipe"),
        1,
    )
    assert results("exit 0") == (SetupResult(0, 255, "the session ended before the set-up began"), 1)
    assert results("echo tpuctl-set-up-begins; echo half; exec sleep 60") == (
        SetupResult(0, 124, "half\ntimed out after 1 s"),
        1,
    )


def test_survey_of_many_workers_is_cheap(
    sandbox_state: SandboxState, add: Callable[..., Node], tmp_path: Path, fake_ssh: Callable[[str], None]
) -> None:
    node = add("v4-4096")
    fake_ssh(f"printf '{LINE}\\n'")
    before = os.times()

    answers = workers_of(sandbox_state, tmp_path / "home").survey(node, inspect=True, probe=None, timeout=PATIENCE)

    spent = os.times()
    assert answers == (WorkerSnapshot(SshAnswer.YES, StartupState.DONE, 4),) * 512
    assert spent.user - before.user < 3


@pytest.mark.parametrize(
    ("second", "expected", "ran"),
    [
        pytest.param(None, (0, "first"), ["first"], id="same script is waited for"),
        pytest.param("echo second | tee -a {log}", (0, "second"), ["first", "second"], id="another ends it"),
    ],
)
def test_setup_of_an_interrupted_run_never_runs_beside_the_next(
    sandbox_state: SandboxState,
    add: Callable[..., Node],
    tmp_path: Path,
    fake_ssh: Callable[[str], None],
    *,
    second: str | None,
    expected: tuple[int, str],
    ran: list[str],
) -> None:
    fake_ssh('for command; do :; done; exec sh -c "$command"')
    node, workers, log = add("v4-8"), workers_of(sandbox_state, tmp_path / "home"), tmp_path / "log"
    go, ended = tmp_path / "go", tmp_path / "ended"
    first = f"echo first | tee -a {log}; until [ -e {go} ]; do sleep 0.05; done; touch {ended}"

    (cut,) = workers.set_up(node, first, timeout=timedelta(seconds=1))
    with ThreadPoolExecutor(1) as threads:
        script = first if second is None else second.format(log=log)
        later = threads.submit(workers.set_up, node, script, timeout=PATIENCE)
        if second is None:
            sleep(0.5)
            go.touch()
        (result,) = later.result()
    go.touch()

    assert cut.code == 124
    assert ((result.code, result.tail), log.read_text().split(), ended.exists()) == (expected, ran, second is None)

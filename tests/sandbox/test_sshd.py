"""ssh to sandbox workers, with OpenSSH's own programs at both ends."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox.administration import reset_sandbox
from tpuctl.sandbox.api_calls import Json, Request, Response
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.lifecycle import PhaseDurations, restart_timeline
from tpuctl.sandbox.service import answer_request
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.sshd.daemon import authorized_keys, host_key
from tpuctl.sandbox.sshd.worker_home import WORKER_MARK
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.connection import (
    Connection,
    ProbeOutcome,
    ProbeResult,
    host_alias,
    probe_ssh,
    save_host_keys,
    ssh_argv,
    trust_options,
)
from tpuctl.ssh.keys import ensure_key, metadata_key_line

NODES = "/v2/projects/sandbox/locations/us-central2-b/nodes"
PATIENCE = timedelta(seconds=60)


def missing_programs() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
    return [name for name in ("ssh", "sshd", "ssh-keygen", "scp") if not shutil.which(name, path=path)]


@dataclass
class Slice:
    """A READY node of four workers, and the connections of a client to them."""

    state: SandboxState
    home: Path

    def call(self, method: str, path: str, body: Json | None = None, **query: str) -> Json:
        sent = b"" if body is None else json.dumps(body).encode()
        answer = answer_request(self.state, Request(method, path, tuple(query.items()), body=sent))
        assert isinstance(answer, Response)
        assert answer.status == 200, answer.body
        return dict(json.loads(answer.body))

    def connection(self, worker: int) -> Connection:
        node = self.call("GET", f"{NODES}/pod")
        attributes = self.call("POST", f"{NODES}/pod:getGuestAttributes", {"workerIds": [str(worker)]})
        items = attributes["guestAttributes"][0]["queryValue"]["items"]
        key = next(item["value"] for item in items if item["key"] == "ssh-ed25519")
        address = node["networkEndpoints"][worker]["accessConfig"]["externalIp"]
        return Connection(
            login=getuser(),
            address=address,
            host_alias=host_alias(node["id"], worker),
            known_hosts=(self.home / "known_hosts", self.home / ".ssh" / "google_compute_known_hosts"),
            identity=self.home / ".ssh" / "google_compute_engine",
            proxy_command=proxy_command(self.state.path, address),
            host_keys=(f"ssh-ed25519 {key}",),
        )

    def run(self, worker: int, *command: str) -> tuple[str, int]:
        connection = self.connection(worker)
        save_host_keys([connection])
        words = ssh_argv(connection, command)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return done.stdout, done.returncode


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Slice]:
    if missing := missing_programs():
        message = f"OpenSSH's {', '.join(missing)} not installed (Debian: openssh-server, openssh-client)"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)
    # A space and a percent sign are the hardest cases for the quoting of ssh and sshd.
    pod = Slice(SandboxState.open(tmp_path / "a 100% sandbox" / "world.sqlite", speed=1), tmp_path / "home")
    key = ensure_key(pod.home, login=getuser())
    node = {
        "acceleratorType": "v4-32",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "networkConfig": {"enableExternalIps": True},
        "metadata": {"ssh-keys": metadata_key_line(getuser(), key)},
    }
    pod.call("POST", NODES, node, nodeId="pod")
    pod.state.advance(timedelta(minutes=20))
    yield pod
    # The next run of the tests may get the same folder, and would find what this one left running.
    marks = [str(path) for path in pod.state.path.parent.glob("workers/*/*/*/*.sshd")]
    for process in find_processes_with_variable(WORKER_MARK, *marks):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.mark.sshd
def test_command_runs_in_the_workers_home_and_returns_its_exit_code(pod: Slice) -> None:
    script = (
        'echo "$TPU_WORKER_ID ${HOSTNAME##*-w-} $(hostname | cut -c1-6)"; [ "$PWD" = "$HOME" ] && touch here; exit 7'
    )

    assert pod.run(2, script) == ("2 2 t1v-n-\n", 7)
    assert pod.run(2, "ls") == ("here\n", 0)
    assert pod.run(3, "ls") == ("", 0)
    assert pod.run(3, "printf", "%s|", "a b", "$HOME", "") == ("a b|$HOME||", 0)


@pytest.mark.sshd
def test_connection_restores_devices_and_profile_that_its_user_removed(pod: Slice) -> None:
    count = "ls ~/.tpu/dev ~/.profile | wc -l"
    before = pod.run(0, count)
    pod.run(0, "rm -r ~/.tpu ~/.profile")

    assert pod.run(0, count) == before
    assert before[1] == 0


@pytest.mark.sshd
def test_session_reads_the_bashrc_of_the_worker_and_not_of_this_machine(pod: Slice, tmp_path: Path) -> None:
    """As Debian builds bash, one without a terminal reads it if an ssh server has started it."""
    assert pod.run(0, "echo 'echo the worker' >.bashrc")[1] == 0
    (control,) = pod.state.path.parent.glob("workers/*/*/*/0.sshd")
    (line,) = [line for line in (control / "sshd_config").read_text().splitlines() if line.startswith("SetEnv ")]
    (tmp_path / ".bashrc").write_text("echo this machine\n")
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHELL": bash, "SSH_CLIENT": "198.18.0.9 1 22"}

    def printed(**given: str) -> str:
        words = [bash, "-c", shlex.quote(str(control / "session"))]
        return subprocess.run(words, env=environ | given, capture_output=True, text=True, check=True).stdout

    assert printed(SSH_ORIGINAL_COMMAND="echo end") in {"this machine\nthe worker\nend\n", "end\n"}
    name, _, value = line.removeprefix("SetEnv ").partition("=")
    assert printed(SSH_ORIGINAL_COMMAND="echo end", **{name: value}) in {"the worker\nend\n", "end\n"}


@pytest.mark.sshd
def test_eight_connections_at_once_succeed(pod: Slice) -> None:
    connections = [pod.connection(index % 4) for index in range(8)]
    save_host_keys(connections)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda one: probe_ssh(one, PATIENCE), connections))

    assert results == [ProbeResult(ProbeOutcome.ANSWERED)] * 8


@pytest.mark.sshd
def test_scp_copies_to_the_workers_home(pod: Slice, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("payload")
    connection = pod.connection(1)
    save_host_keys([connection])
    for source, target in (("data", "sent"), ("data", "~/sent in home")):
        words = ["scp", "-q", *trust_options(connection), source, f"{connection.login}@{connection.address}:{target}"]
        subprocess.run(words, cwd=tmp_path, stdin=subprocess.DEVNULL, check=True)

    assert pod.run(1, "cat sent 'sent in home'") == ("payloadpayload", 0)


@pytest.mark.sshd
def test_failed_connection_reports_its_reason(pod: Slice, tmp_path: Path) -> None:
    good = pod.connection(0)
    stranger = ensure_key(tmp_path / "stranger", login="stranger")
    other_host = replace(good, host_keys=(f"ssh-ed25519 {host_key(tmp_path / 'other host')}",))
    unknown = replace(good, proxy_command=proxy_command(pod.state.path, "198.18.200.1"))

    save_host_keys([other_host])
    changed = probe_ssh(other_host, PATIENCE).outcome
    save_host_keys([good])
    refused = probe_ssh(replace(good, identity=stranger.path), PATIENCE).outcome
    nothing = probe_ssh(unknown, PATIENCE)
    answered = probe_ssh(good, PATIENCE)
    pod.call("DELETE", f"{NODES}/pod")
    deleting = probe_ssh(good, PATIENCE)

    assert (changed, refused) == (ProbeOutcome.HOST_KEY_CHANGED, ProbeOutcome.KEY_REFUSED)
    assert nothing == ProbeResult(
        ProbeOutcome.UNREACHABLE, "ssh: connect to host 198.18.200.1 port 22: No route to host"
    )
    assert answered == ProbeResult(ProbeOutcome.ANSWERED)
    assert deleting == ProbeResult(
        ProbeOutcome.UNREACHABLE, f"ssh: connect to host {good.address} port 22: Connection refused"
    )


@pytest.mark.sshd
def test_guest_reboot_ends_processes_and_finishes(pod: Slice) -> None:
    # A killed process may stay visible as a zombie, so the job shows that it runs by writing.
    pod.run(0, "setsid sh -c 'while :; do date +%N >beat; sleep 0.1; done' >/dev/null 2>&1 & sleep 0.2")
    rebooted = pod.run(0, "sudo -n /sbin/reboot; echo not reached")
    while_booting = probe_ssh(pod.connection(0), PATIENCE)
    other_worker = pod.run(1, "true")
    pod.state.advance(timedelta(minutes=1))
    alive = pod.run(0, 'seen=$(cat beat); sleep 0.3; [ "$seen" = "$(cat beat)" ] && echo ended')

    assert rebooted == ("", 255)
    refused = f"ssh: connect to host {pod.connection(0).address} port 22: Connection refused"
    assert while_booting == ProbeResult(ProbeOutcome.UNREACHABLE, refused)
    assert other_worker == ("", 0)
    assert alive == ("ended\n", 0)


@pytest.mark.sshd
def test_ssh_faults_concern_one_connection_to_one_worker(pod: Slice) -> None:
    def probe(worker: int, **fault: Any) -> tuple[ProbeOutcome, float]:
        with pod.state.write() as session:
            add_fault(session, Fault(node="pod", worker=1, **fault))
        connection = pod.connection(worker)
        save_host_keys([connection])
        began = time.monotonic()
        return probe_ssh(connection, PATIENCE).outcome, time.monotonic() - began

    assert probe(0, kind=FaultKind.SSH_REFUSED)[0] is ProbeOutcome.ANSWERED
    assert pod.run(1, "true")[1] == 255
    outcome, took = probe(1, kind=FaultKind.SSH_SLOW, duration=timedelta(seconds=1))
    assert (outcome, took > 1) == (ProbeOutcome.ANSWERED, True)
    with pod.state.write() as session:
        add_fault(session, Fault(FaultKind.SSH_DROPPED, node="*", worker=1, duration=timedelta(seconds=1)))
    assert pod.run(1, "echo begun; exec sleep 60") == ("begun\n", 255)
    assert pod.run(1, "echo alive") == ("alive\n", 0)


@pytest.mark.sshd
def test_processes_end_with_the_node_without_any_request(pod: Slice) -> None:
    running = leave_running(pod, 0)

    preempt(pod)
    pod.state.advance(timedelta(minutes=5))

    assert wait_until_none(running)


def preempt(pod: Slice) -> None:
    with pod.state.write() as session:
        add_fault(session, Fault(FaultKind.PREEMPT, node="pod"))


def leave_running(pod: Slice, *workers: int) -> Callable[[], list[int]]:
    """Start a program on workers and return what finds their processes."""
    for index in workers:
        assert pod.run(index, "nohup sleep 1000 >/dev/null 2>&1 </dev/null & echo") == ("\n", 0)
    marks = [str(path) for index in workers for path in pod.state.path.parent.glob(f"workers/*/*/*/{index}.sshd")]

    def find() -> list[int]:
        return [*find_processes_with_variable(WORKER_MARK, *marks)]

    assert (len(marks), len(find())) == (len(workers), len(workers))
    return find


def wait_until_none(find: Callable[[], list[int]]) -> bool:
    """Wait for the kernel to end processes that were killed."""
    end = time.monotonic() + 30
    while find() and time.monotonic() < end:
        time.sleep(0.01)
    return not find()


@pytest.fixture
def single(pod: Slice) -> Slice:
    """The same with a node of one worker, which alone can be stopped."""
    spec = {key: pod.call("GET", f"{NODES}/pod")[key] for key in ("runtimeVersion", "networkConfig", "metadata")}
    pod.call("DELETE", f"{NODES}/pod")
    pod.state.advance(timedelta(minutes=5))
    pod.call("POST", NODES, {**spec, "acceleratorType": "v4-8"}, nodeId="pod")
    pod.state.advance(timedelta(minutes=20))
    return pod


@pytest.mark.sshd
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda pod: pod.call("DELETE", f"{NODES}/pod"), id="delete"),
        pytest.param(preempt, id="preempt"),
    ],
)
def test_processes_of_all_workers_end_with_the_node(pod: Slice, end: Callable[[Slice], object]) -> None:
    running = leave_running(pod, 0, 3)
    pod.call("GET", f"{NODES}/pod")
    assert len(running()) == 2

    end(pod)
    pod.state.advance(timedelta(minutes=5))
    pod.call("GET", NODES)

    assert wait_until_none(running)


@pytest.mark.sshd
def test_processes_end_with_a_stop_and_new_ones_stay_after_the_start(single: Slice) -> None:
    running = leave_running(single, 0)
    single.call("POST", f"{NODES}/pod:stop", {})
    single.state.advance(timedelta(minutes=5))
    single.call("GET", f"{NODES}/pod")
    assert wait_until_none(running)
    single.call("POST", f"{NODES}/pod:start", {})
    single.state.advance(timedelta(minutes=5))

    again = leave_running(single, 0)
    single.run(0, "true")
    single.call("GET", f"{NODES}/pod")

    assert len(again()) == 1


@pytest.mark.sshd
def test_connection_after_a_restart_finds_no_process_of_before(single: Slice) -> None:
    running = leave_running(single, 0)
    with single.state.write() as session:
        node = session.node("sandbox", "us-central2-b", "pod")
        assert node is not None
        session.put_node(replace(node, timeline=restart_timeline(node.timeline, session.now, PhaseDurations("pod"))))
    single.state.advance(timedelta(minutes=5))

    single.run(0, "true")

    assert wait_until_none(running)


@pytest.mark.sshd
def test_reset_of_the_sandbox_ends_the_processes_of_its_workers(pod: Slice) -> None:
    running = leave_running(pod, 0, 3)
    pod.state.close()

    assert reset_sandbox(pod.state.path)
    assert wait_until_none(running)


@pytest.mark.sshd
def test_worker_files_are_private(pod: Slice) -> None:
    pod.run(0, "true")

    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (pod.state.path.parent / "workers").rglob("*")}
    assert modes == {0}


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_host_key_is_created_once_by_concurrent_processes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(host_key, [tmp_path / "node"] * 8))

    assert len(keys) == 1
    assert base64.b64decode(keys.pop())[:15] == b"\0\0\0\x0bssh-ed25519"
    assert [path.name for path in (tmp_path / "node").iterdir()] == ["ssh_host_ed25519_key"]


def test_only_plain_keys_of_the_login_are_authorized() -> None:
    value = 'me:ssh-rsa AAAA me\nyou:ssh-rsa BBBB you\nme:command="id" ssh-rsa CCCC\n\nme:ssh-ed25519 DDDD\ngarbage'

    assert authorized_keys("me", value, "me:ssh-rsa AAAA again") == "ssh-rsa AAAA\nssh-ed25519 DDDD\n"

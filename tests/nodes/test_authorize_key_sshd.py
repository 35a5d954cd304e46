"""The real sshd of a sandbox worker accepts keys like the guest of a TPU VM: from metadata and from OS Login."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from getpass import getuser
from pathlib import Path

import pytest

from tests.tpuctl_process import run_tpuctl
from tpuctl.cloud.projects import OsLoginClient
from tpuctl.sandbox import administration, faults
from tpuctl.sandbox.faults import Fault, FaultKind
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.sshd.daemon import host_key
from tpuctl.sandbox.state import SandboxState
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT, find_worker, worker_directory
from tpuctl.ssh.connection import Connection, ProbeOutcome, host_alias, probe_ssh, save_host_keys
from tpuctl.ssh.keys import SshKey, ensure_key, metadata_key_line, run_program

pytestmark = pytest.mark.sshd
IN, OUT = ProbeOutcome.ANSWERED, ProbeOutcome.KEY_REFUSED


@dataclass
class Worker:
    """The worker of a single-worker node, and the connection to it with one key."""

    state: SandboxState
    way: Connection

    def set_metadata(self, **metadata: str) -> None:
        with self.state.write() as session:
            (node,) = session.nodes()
            items = {key.replace("_", "-"): value for key, value in metadata.items()}
            session.put_node(replace(node, document={**node.document, "metadata": items}))

    def probe(self, identity: Path | None = None) -> ProbeOutcome:
        way = replace(self.way, identity=identity or self.way.identity)
        return probe_ssh(way, timedelta(seconds=20)).outcome

    def host_key(self) -> str:
        with self.state.read() as session:
            found = find_worker(session, self.way.address)
        assert found is not None
        return f"ssh-ed25519 {host_key(worker_directory(self.state.path, found))}"


@pytest.fixture
def key(tmp_path: Path) -> SshKey:
    return ensure_key(tmp_path, login=getuser())


@pytest.fixture
def worker(tmp_path: Path, key: SshKey) -> Iterator[Worker]:
    with SandboxState.open(tmp_path / "sandbox" / "world.sqlite3", speed=1) as sandbox_state:
        node = administration.add_node(sandbox_state, "demo", acceleratorType="v4-8")
        address = node["networkEndpoints"][0]["accessConfig"]["externalIp"]
        files = (tmp_path / "known_hosts", tmp_path / ".ssh" / "google_compute_known_hosts")
        alias = host_alias(node["id"], 0)
        yield Worker(
            sandbox_state,
            Connection(getuser(), address, alias, files, key.path, proxy_command(sandbox_state.path, address)),
        )


def test_metadata_key_is_accepted_until_it_expires(worker: Worker, key: SshKey) -> None:
    end = worker.state.clock.now() + timedelta(hours=1)
    worker.set_metadata(ssh_keys=metadata_key_line(getuser(), key, expires=end))

    assert worker.probe() is IN
    worker.state.advance(timedelta(hours=1))
    assert worker.probe() is OUT


def test_os_login_accepts_only_keys_of_the_profile(worker: Worker, key: SshKey) -> None:
    client = OsLoginClient(lambda: SandboxHttp(worker.state), worker.state.clock)
    now = worker.state.clock.now()
    worker.set_metadata(ssh_keys=metadata_key_line(getuser(), key), enable_oslogin="TRUE")
    profile = client.import_key(
        OS_LOGIN_ACCOUNT, key.public, project="sandbox", region="us-central2", expires=now + timedelta(hours=1)
    )
    found = profile.key(key.public)
    assert (profile.logins, worker.probe()) == ((getuser(),), IN)
    worker.state.advance(timedelta(hours=2))
    # The node's metadata still has it, for ever.
    assert worker.probe() is OUT

    assert found is not None
    client.set_expiry(OS_LOGIN_ACCOUNT, found, now + timedelta(hours=9))
    assert worker.probe() is IN
    worker.set_metadata(enable_oslogin="TRUE", enable_oslogin_2fa="TRUE")
    assert worker.probe() is OUT


def test_agent_provides_keys_with_a_passphrase_or_without_a_file(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locked"
    run_program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)])
    worker.set_metadata(ssh_keys=metadata_key_line(getuser(), ensure_key(tmp_path, key=path)))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert worker.probe(path) is OUT

    ask = tmp_path / "ask"
    ask.write_text("#!/bin/sh\necho secret\n")
    ask.chmod(0o700)
    # The path of a socket may have 107 characters at most.
    socket = Path("/tmp") / f"tpuctl-agent-{os.getpid()}"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        answer = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(path)], env=answer, check=True, capture_output=True)

        assert worker.probe(ensure_key(tmp_path, key=path).path) is IN
        path.unlink()
        assert worker.probe(ensure_key(tmp_path, key=path.with_name("locked.pub")).path) is IN
        agent.terminate()


def test_host_key_of_the_api_overrides_known_hosts(worker: Worker, key: SshKey, tmp_path: Path) -> None:
    worker.set_metadata(ssh_keys=metadata_key_line(getuser(), key))
    stale = f"{worker.way.host_alias} ssh-ed25519 {host_key(tmp_path / 'other')}\n"
    ours, of_gcloud = worker.way.known_hosts
    ours.write_text(stale)
    assert worker.probe() is ProbeOutcome.HOST_KEY_CHANGED

    # Another key in gcloud's file does no harm: ssh needs one that matches.
    of_gcloud.write_text(stale)
    worker.way = replace(worker.way, host_keys=(worker.host_key(),))
    save_host_keys([worker.way])
    assert worker.probe() is IN
    assert ours.read_text() == f"{worker.way.host_alias} {worker.host_key()}\n"


def test_key_that_is_added_late_is_awaited(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with SandboxState.open(folder / "sandbox" / "world.sqlite3", speed=20) as sandbox_state:
        administration.add_node(sandbox_state, "demo", acceleratorType="v4-8")
        with sandbox_state.write() as session:
            faults.add_fault(session, Fault(FaultKind.SSH_KEY_LATE, duration=timedelta(seconds=40)))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environ |= {"TPUCTL_STATE_DIR": str(folder), "TPUCTL_SANDBOX": "1"}

    done = run_tpuctl(["ssh", "demo", "--", "echo in"], env=environ, cwd=tmp_path, text=True)

    assert (done.stdout, done.returncode) == ("in\n", 0), done.stderr
    first, *more = done.stderr.splitlines()
    assert first == "adding our ssh key to the metadata of `demo`"
    # On a slow machine the key has arrived before the first attempt.
    assert more in ([], ["waiting up to 60 s until the workers accept the new ssh key"])

"""An unmodified gcloud, in the environment of `sandbox env`, creates a slice, connects to its workers and deletes it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conformance.conftest import GcloudProcess

pytestmark = [pytest.mark.gcloud, pytest.mark.sshd]
TPUCTL = str(Path(sys.executable).with_name("tpuctl"))


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Serve a sandbox, and yield the environment of `sandbox env`, with a HOME of its own: gcloud stores keys there."""
    minimal = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    minimal |= {"HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state"), "TPUCTL_SANDBOX_SPEED": "600"}
    served = subprocess.Popen(
        [TPUCTL, "sandbox", "serve"], env=minimal, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert served.stdout is not None
        assert served.stdout.readline().startswith("http://127.0.0.1:")
        printed = _run([TPUCTL, "sandbox", "env"], minimal).stdout
        words = [shlex.split(line.removeprefix("export ")) for line in printed.splitlines()]
        yield {**minimal, **dict(word[0].split("=", 1) for word in words)}
    finally:
        served.terminate()
        served.wait()
        if served.stdout:
            served.stdout.close()


def _run(words: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def _host_keys(path: Path) -> set[str]:
    """Return the keys of a known_hosts file, without host names."""
    return {line.split(" ", 1)[1] for line in path.read_text().splitlines()}


def test_unmodified_gcloud_creates_uses_and_deletes_a_slice(
    gcloud_process: GcloudProcess, environ: Mapping[str, str], tmp_path: Path
) -> None:
    def gcloud(*words: str) -> tuple[str, int]:
        done = gcloud_process.run(("compute", "tpus", "tpu-vm", *words), environ, tmp_path)
        return done.out if done.code == 0 else f"{done.out}\n{done.err}", done.code

    # Without a key the first ssh would create one and print its randomart on stdout.
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    keygen = ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(folder / "google_compute_engine")]
    subprocess.run(keygen, check=True)
    (tmp_path / "data").write_text("payload\n")

    created = gcloud("create", "pod", "--accelerator-type=v4-16", "--version=tpu-ubuntu2204-base")
    listed = gcloud("list", "--format=value(name,acceleratorType,state)")
    hosts, code = gcloud("ssh", "pod", "--worker=all", "--command=hostname")
    copied = gcloud("scp", str(tmp_path / "data"), "pod:", "--worker=all")
    read = gcloud(
        "ssh", "pod", "--worker=1", "--command=cat data; echo $TPU_WORKER_ID; ls $TPUCTL_DEVICE_ROOT/dev | wc -l"
    )
    # tpuctl connects with the key that gcloud added, and finds the same host keys.
    url = environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"].rstrip("/")
    ours = {**environ, "TPUCTL_ENDPOINT": url, "TPUCTL_PROJECT": "sandbox", "TPUCTL_SSH_KEEP": "0"}
    ran = _run([TPUCTL, "run", "pod", "--no-sync", "--", "cat data; echo $TPUCTL_WORKER_ID"], ours)
    keys_of = [_host_keys(folder / "google_compute_known_hosts"), _host_keys(tmp_path / "state" / "known_hosts")]
    deleted = gcloud("delete", "pod", "--quiet")
    left = gcloud("list", "--format=value(name)")

    assert created == ("", 0)
    assert listed == ("pod\tv4-16\tREADY\n", 0)
    assert code == 0, hosts
    assert sorted(re.sub(r"t1v-n-[0-9a-f]{8}", "", host) for host in hosts.split()) == ["-w-0", "-w-1"]
    assert copied == ("", 0)
    assert read == ("payload\n1\n4\n", 0)
    lines = [f"[{worker}] {line}" for worker in range(2) for line in ("payload", str(worker))]
    assert (sorted(ran.stdout.splitlines()), ran.stderr, ran.returncode) == (sorted(lines), "", 0)
    assert keys_of[0] == keys_of[1] != set()
    assert (deleted, left) == (("", 0), ("", 0))
    assert not (folder / "config").exists()

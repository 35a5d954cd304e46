"""The guard as `up` starts it: over real ssh, as the service of a sandbox worker."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.sandbox.test_sshd import missing_programs
from tpuctl.sandbox.state import SandboxState

NODE = ("sandbox", "us-central2-b", "t")


@pytest.fixture
def tpuctl(tmp_path: Path) -> Console:
    """The program with real workers, which pass time at 200 times the speed."""
    if missing := missing_programs():
        message = f"OpenSSH's {', '.join(missing)} not installed (Debian: openssh-server, openssh-client)"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    environ = {
        "HOME": str(tmp_path / "home"),
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_SANDBOX_SPEED": "200",
        "PATH": os.environ["PATH"],
    }
    return Console(environ, tmp_path / "project", by_real_clock=True)


@pytest.mark.sshd
def test_idle_limit_of_a_guard_stays_until_forever(tpuctl: Console, tmp_path: Path) -> None:
    def guard(*options: str) -> str:
        _, err, code = tpuctl("up", "t", "--zone", "us-central2-b", *options)
        assert code == 0, err
        return next((line for line in err.splitlines() if "guard on worker 0" in line or "no guard" in line), "")

    deletes = "the guard on worker 0 deletes it when its time ends ("
    idle = " and deletes it after 1h30m without use"
    for options, starts, ends in (
        (("--type", "v4-8", "--ttl", "9h", "--idle", "90m"), True, True),
        ((), True, True),
        (("--idle", "forever"), True, False),
    ):
        line = guard(*options)
        assert (deletes in line, idle in line) == (starts, ends), line
    assert guard("--ttl", "forever", "--idle", "forever") == "t: the guard on worker 0 is removed: no limit is left"
    assert list(tmp_path.rglob("guard/settings")) == []
    assert guard("--idle", "forever") == ""


@pytest.mark.sshd
def test_guard_started_by_up_survives_a_reboot_and_deletes_the_expired_node(tpuctl: Console, tmp_path: Path) -> None:
    _, err, code = tpuctl("up", "t", "--type", "v4-8", "--zone", "us-central2-b", "--ttl", "2h")
    assert "ago; `tpuctl doctor t` asks whether it runs\n" in tpuctl("status", "t")[0]
    assert ("t: the guard on worker 0 deletes it when its time ends (" in err, code) == (True, 0), err
    tpuctl("ssh", "t", "--", "sudo reboot")
    with SandboxState.open(next((tmp_path / "state").rglob("*.sqlite3"))) as state:
        state.advance(timedelta(minutes=1))
        # The first connection after the reboot starts the services, as a boot does.
        assert tpuctl("wait", "t", "--for", "ssh")[2] == 0
        state.advance(timedelta(hours=2))

        def is_deleted() -> bool:
            with state.read() as session:
                node = session.node(*NODE)
                return node is None or node.state(session.now) != "READY"

        end = time.monotonic() + 60
        while not is_deleted():
            assert time.monotonic() < end, [path.read_text() for path in tmp_path.rglob("guard/log")]
            time.sleep(0.05)

    (log,) = (path.read_text() for path in tmp_path.rglob("guard/log"))
    assert (log.count(" started for "), log.count(" expired: delete follows a last look\n")) == (2, 1)
    last = tpuctl("history", "t")[0].splitlines()[-1].split("\t")
    why = "its time ended: the guard on worker 0 deletes it, unless it was extended elsewhere"
    assert (last[1], last[3]) == ("expired", why)

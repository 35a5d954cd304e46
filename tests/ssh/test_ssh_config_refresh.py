"""How the ssh configuration follows the creation and deletion of nodes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tpuctl.ssh.ssh_config import change_ssh_config, read_ssh_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".ssh"


def test_up_refreshes_entries_and_down_removes_them(tpuctl: Console, sandbox: Sandbox, folder: Path) -> None:
    own = folder / "tpuctl_config"
    make = ("up", "trainer", "--type", "v4-8", "--zone", "us-central2-b")
    assert (tpuctl(*make)[2], own.exists()) == (0, False)
    tpuctl("ssh-config", "trainer", "--prefix", "my-", "--yes")
    first = read_ssh_config(own).entries[0]

    assert tpuctl("down", "trainer", "--yes", HOME=str(folder))[2] == tpuctl(*make)[2] == 0

    second = read_ssh_config(own).entries[0]
    assert (second.hosts, second.prefix) == (first.hosts, "my-") == (("my-trainer", "my-trainer-0"), "my-")
    assert (first.id == second.id, f"tpu.{second.id}-0" in second.text()) == (False, True)
    tpuctl("reset", "trainer", "--mode", "recreate", "--yes")
    assert read_ssh_config(own).entries[0].id not in {first.id, second.id}
    # The same name in another cloud is another node.
    theirs = replace(second, cloud="google", prefix="g-", lines=("Host g-trainer",))
    change_ssh_config(own, lambda text: text.changed(new=[theirs]))
    assert tpuctl("down", "trainer", "--yes")[2] == 0
    assert read_ssh_config(own).entries == [theirs]


def test_down_of_a_deleted_node_removes_its_entries(
    tpuctl: Console, sandbox: Sandbox, folder: Path, tmp_path: Path
) -> None:
    sandbox.add_node("trainer")
    tpuctl("ssh-config", "trainer")
    # As from another machine.
    assert tpuctl("down", "trainer", "--yes", HOME=str(tmp_path))[2] == 0
    assert (folder / "tpuctl_config").exists()

    assert tpuctl("down", "trainer", "--yes")[1] == "trainer: already gone\n"
    assert not (folder / "tpuctl_config").exists()


def test_up_with_the_setting_writes_all_entries_and_warns_about_used_names(
    tpuctl: Console, sandbox: Sandbox, folder: Path
) -> None:
    make = ("--type", "v4-8", "--zone", "us-central2-b")
    assert tpuctl("up", "a", *make, TPUCTL_SSH_CONFIG="1")[2] == 0
    (folder / "config").write_text("Host b-0\n")

    _, err, code = tpuctl("up", "b", *make, TPUCTL_SSH_CONFIG="1")

    assert code == 0
    assert err.splitlines()[-2:] == [
        (
            "warning: ssh configuration not refreshed: the ssh host `b-0` is already used: `Host b-0` in "
            f"line 1 of {folder}/config"
        ),
        "  use `--prefix PREFIX`; or rename or remove it",
    ]
    assert [entry.hosts for entry in read_ssh_config(folder / "tpuctl_config").entries] == [("a", "a-0")]


def test_refresh_uses_the_stored_options(tpuctl: Console, sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    sandbox.add_node("trainer")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    tpuctl("ssh-config", "trainer", "--ssh-key", str(key))
    before = read_ssh_config(folder / "tpuctl_config").entries[0]

    assert tpuctl("wait", "trainer")[2] == 0

    assert read_ssh_config(folder / "tpuctl_config").entries == [before]
    assert (dict(before.options), f'  IdentityFile "{key}"' in before.lines) == ({"ssh_key": str(key)}, True)

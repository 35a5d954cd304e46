"""`tpuctl ssh-config`: entries for plain ssh, host names in use, and removed entries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tpuctl.sandbox import administration
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.ssh_config import read_ssh_config

SLICE = {"zone": "us-central1-a", "acceleratorType": "v5litepod-16"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".ssh"


def not_included(folder: Path) -> str:
    return (
        f"warning: {folder}/config does not include the entries: add this as its first line, or repeat with `--yes`\n"
        f"  Include {folder}/tpuctl_config\n"
    )


def elsewhere(folder: Path) -> str:
    plain = Path("~root" if os.geteuid() == 0 else "~").expanduser() / ".ssh" / "config"
    return f"warning: HOME is not the home of this account, so plain ssh reads {plain}: use `ssh -F {folder}/tpuctl_config`\n"


def test_path_in_a_suggested_command_is_quoted(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.add_node("trainer")

    err = tpuctl("ssh-config", "trainer", HOME=str(tmp_path / "my home"))[1]

    assert f"use `ssh -F '{tmp_path}/my home/.ssh/tpuctl_config'`\n" in err


@pytest.mark.parametrize("face", ["http"], indirect=True)
def test_entry_has_the_expected_lines(tpuctl: Console, sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    node = sandbox.add_node("trainer")

    result = tpuctl("ssh-config", "trainer")

    key_note = "adding our ssh key to the metadata of `trainer`\n"
    assert (
        result[0]
        == f"trainer\t1\ttrainer\t{node['name'].split('/')[3]}\tsandbox\t{tpuctl.environ['TPUCTL_ENDPOINT']}\n"
    )
    assert result[1:] == (key_note + not_included(folder) + elsewhere(folder), 0)
    lines = (folder / "tpuctl_config").read_text().splitlines()
    assert lines[2:] == [
        "Host trainer trainer-0",
        "  HostName 198.18.0.1",
        "  User ada",
        f'  IdentityFile "{folder}/google_compute_engine"',
        "  IdentitiesOnly yes",
        f"  HostKeyAlias tpu.{node['id']}-0",
        f'  UserKnownHostsFile "{tmp_path}/state/known_hosts" "{folder}/google_compute_known_hosts"',
        "  StrictHostKeyChecking yes",
        "  CheckHostIP no",
        "  HashKnownHosts no",
        "  UpdateHostKeys no",
        "  ServerAliveInterval 15",
        "# tpuctl end",
    ]
    assert (folder / "tpuctl_config").stat().st_mode & 0o777 == 0o600
    assert not (folder / "config").exists()


def test_users_config_gets_one_line_and_stays_unchanged(
    tpuctl: Console, sandbox: Sandbox, folder: Path, tmp_path: Path
) -> None:
    sandbox.add_node("trainer")
    mine = tmp_path / "dotfiles"
    mine.write_bytes(b"# \xff mine\nInclude else\\where\nHost a\n  User b\nInclude tpuctl_config\n \t")
    mine.chmod(0o640)
    folder.mkdir()
    (folder / "config").symlink_to(mine)
    before = mine.read_bytes()

    # An Include below `Host a` counts for `a` alone.
    assert not_included(folder) in tpuctl("ssh-config", "trainer")[1]
    question = f"add `Include {folder}/tpuctl_config` at the top of {folder}/config? [y/N] "
    refused = tpuctl("ssh-config", "trainer", stdin="n\n")
    assert (question in refused[1], not_included(folder) in refused[1], refused[2]) == (True, True, 0)
    assert not_included(folder) in tpuctl("ssh-config", "trainer", stdin="y\n", CI="1")[1]
    assert mine.read_bytes() == before

    assert tpuctl("ssh-config", "trainer", stdin="y\n")[1:] == (question + elsewhere(folder), 0)
    once = f"Include {folder}/tpuctl_config\n".encode() + before
    assert (mine.read_bytes(), mine.stat().st_mode & 0o777) == (once, 0o640)
    assert (folder / "config").is_symlink()

    tpuctl("ssh-config", "trainer", "--yes")
    assert mine.read_bytes() == once


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("Host slice-3", "`Host slice-3` in line 1 of {folder}/config"),
        ("Host a slice\n", "`Host a slice` in line 1 of {folder}/config"),
        ("\n\nhost = SLICE", "`Host SLICE` in line 3 of {folder}/config"),
        ("Host x\n  Include conf.d/*\n", "`Host slice-0` in line 2 of {folder}/conf.d/one"),
        ("Host *\n  User me\nHost * !b *.*\n  Port 3\nHost slice-31 slic slices slice[-]3\nMatch all\n", None),
        ("Host slice* !slice !slice-*\n# Host slice\n", None),
    ],
)
def test_host_name_of_the_user_raises(
    tpuctl: Console, sandbox: Sandbox, folder: Path, config: str, said: str | None
) -> None:
    sandbox.add_node("slice", **SLICE)
    (folder / "conf.d").mkdir(parents=True)
    (folder / "conf.d" / "one").write_text("# \nHost slice-0\n")
    (folder / "config").write_text(config)

    _, err, code = tpuctl("ssh-config", "slice")

    if said is None:
        assert code == 0
        return
    first, hint = [line for line in err.splitlines() if line.startswith(("error", "  hint"))]
    assert (first.partition(" is already used: ")[2], code) == (said.format(folder=folder), 8)
    assert hint == "  hint: use `--prefix PREFIX`; or rename or remove it"
    assert not (folder / "tpuctl_config").exists()
    assert tpuctl("ssh-config", "slice", "--prefix", "tpu.", "-o", "name")[0].split() == [
        *("tpu.slice", "tpu.slice-0", "tpu.slice-1", "tpu.slice-2", "tpu.slice-3"),
    ]


HASHED = "|1|AAECAwQFBgcICQoLDA0ODxAREhM=|RLILpbHhN++97AiPe6eCzE02KOs="  # of `build`


@pytest.mark.parametrize(
    ("node", "known_hosts", "place"),
    [
        pytest.param("localhost", "", "", id="this machine"),
        pytest.param("build", "build ssh-ed25519 AAAA\n", "`build` in line 1 of", id="a known host"),
        pytest.param(
            "build", "#\n10.0.0.1,BUILD ssh-ed25519 AAAA", "`10.0.0.1,BUILD` in line 2 of", id="several names"
        ),
        pytest.param("build", "[build]:2222 ssh-ed25519 AAAA", "`[build]:2222` in line 1 of", id="a port"),
        pytest.param("build", "@cert-authority build ssh-rsa AAAA", "`build` in line 1 of", id="an authority"),
        pytest.param("build", f"{HASHED} ssh-rsa AAAA", f"`{HASHED}` in line 1 of", id="hashed"),
    ],
)
def test_node_named_as_a_known_host_is_refused_and_skipped_by_all(
    tpuctl: Console, sandbox: Sandbox, node: str, known_hosts: str, place: str
) -> None:
    sandbox.add_node("mine", zone="us-central2-b")
    sandbox.add_node(node, zone="us-central2-b")
    folder = Path(tpuctl.environ["HOME"], ".ssh")
    folder.mkdir(parents=True)
    (folder / "known_hosts").write_text(known_hosts)

    named, printed = tpuctl("ssh-config", node), tpuctl("ssh-config", "--all", "--print")
    every = tpuctl("ssh-config", "--all", "-o", "name")

    reason = f"the ssh host `{node}` is already used: {place}"
    assert (named[0], f"error: {reason}" in named[1], named[2]) == ("", True, 8)
    assert (f"warning: skipped: {reason}" in printed[1], f"Host {node}" in printed[0]) == (True, False)
    assert (every[0], f"warning: skipped: {reason}" in every[1], every[2]) == ("mine\nmine-0\n", True, 0)


def test_other_lines_of_known_hosts_are_no_conflict(tpuctl: Console, sandbox: Sandbox, folder: Path) -> None:
    sandbox.add_node("build")
    folder.mkdir(parents=True)
    (folder / "known_hosts").write_text("builder,!build,!build-0,bu* ssh-rsa A\n|1|x|y ssh-rsa A\n@\n* ssh-rsa A\n")

    assert tpuctl("ssh-config", "build", "-o", "name")[::2] == ("build\nbuild-0\n", 0)


def test_host_name_of_another_node_raises(tpuctl: Console, sandbox: Sandbox, folder: Path) -> None:
    sandbox.add_node("slice", **SLICE)
    sandbox.add_node("slice", zone="us-central2-b")
    sandbox.add_node("slice-3", zone="us-central2-b")
    assert tpuctl("ssh-config", "us-central1-a/slice")[2] == 0
    before = (folder / "tpuctl_config").read_text()

    refusals = [tpuctl("ssh-config", name) for name in ("us-central2-b/slice", "slice-3")]

    taken = "error: the ssh host `{}` is already used: worker of `slice` in us-central1-a of project sandbox\n"
    hint = "  hint: use `--prefix PREFIX`; or `tpuctl ssh-config --remove slice` removes it\n"
    assert [(err.partition("error:")[2], code) for _, err, code in refusals] == [
        (taken.format(host).removeprefix("error:") + hint, 8) for host in ("slice", "slice-3")
    ]
    assert (folder / "tpuctl_config").read_text() == before
    assert tpuctl("ssh-config", "us-central2-b/slice", "--prefix", "b-", "-o", "name")[0] == "b-slice\nb-slice-0\n"
    assert tpuctl("ssh-config", "slice-3", "--prefix", "-x")[2] == 2


def test_entries_are_shown_printed_and_removed(tpuctl: Console, sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    sandbox.add_node("a", zone="us-central1-a", acceleratorType="v5litepod-8")
    node = sandbox.add_node("b", zone="us-central2-b")
    sandbox.add_node("off", zone="us-central2-b", state="STOPPED")
    assert tpuctl("ssh-config", terminal=True)[1] == "no entries; write one with `tpuctl ssh-config NODE`\n"

    printed = tpuctl("ssh-config", "--all", "--print")
    assert "skipped: `off` is STOPPED: ssh cannot reach it\n" in printed[1]
    assert tpuctl("ssh-config", "b", "--file", "hosts")[2] == 0
    assert (tpuctl.folder / "hosts").read_text().split("\n", 1)[1] in printed[0]
    assert not folder.exists()

    assert tpuctl("ssh-config", "--all", "--yes")[0] == (
        "a\t1\ta\tus-central1-a\tsandbox\tsandbox\nb\t1\tb\tus-central2-b\tsandbox\tsandbox\n"
    )
    own = folder / "tpuctl_config"
    assert own.read_text().split("\n", 1)[1] == printed[0]
    own.write_text("Host mine\n" + own.read_text() + "  User me\n")

    cloud = f"sandbox {tmp_path}/state/sandbox/world.sqlite3"
    shown = json.loads(tpuctl("ssh-config", "-o", "json")[0])
    assert shown[1] == {
        "nodeId": "b",
        "zone": "us-central2-b",
        "project": "sandbox",
        "id": node["id"],
        "cloud": cloud,
        "hosts": ["b", "b-0"],
    }
    assert tpuctl("ssh-config", "--remove", "b", "c") == (
        "",
        f"error: `{own}` has no entry for `c`\n  hint: `tpuctl ssh-config` lists the entries\n",
        3,
    )
    assert tpuctl("ssh-config", "--remove", "us-central2-b/b", "-o", "name") == ("b\nb-0\n", "", 0)
    assert [entry.hosts for entry in read_ssh_config(own).entries] == [("a", "a-0")]
    tpuctl("ssh-config", "--remove", "--all")
    # Lines of other programs stay.
    assert [line for line in own.read_text().splitlines() if not line.startswith("#")] == ["Host mine", "  User me"]


@pytest.mark.parametrize("cut", ["# tpuctl end\n", '"node": '])
def test_damaged_file_is_not_changed(tpuctl: Console, sandbox: Sandbox, folder: Path, cut: str) -> None:
    sandbox.add_node("trainer")
    tpuctl("ssh-config", "trainer")
    own = folder / "tpuctl_config"
    damaged = own.read_text().replace(cut, "")
    own.write_text(damaged)

    assert tpuctl("ssh-config", "trainer") == (
        "",
        (
            f"error: line 2 of `{own}`: damaged entry\n"
            "  hint: remove the file, then run `tpuctl ssh-config NODE` to write its entries again\n"
        ),
        1,
    )
    assert own.read_text() == damaged


@pytest.mark.sshd
def test_plain_ssh_reaches_each_worker_of_a_slice(tmp_path: Path) -> None:
    """The program in a process of its own, on an embedded sandbox, with the machine's own ssh."""
    with SandboxState.open(tmp_path / "state" / "sandbox" / "world.sqlite3", speed=600) as sandbox_state:
        administration.add_node(sandbox_state, "t", zone="us-central2-b", acceleratorType="v4-64")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TPUCTL_SANDBOX": "1",
        "TPUCTL_STATE_DIR": str(tmp_path / "state"),
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            words, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        return done.stdout or done.stderr

    written = run(sys.executable, "-m", "tpuctl", "ssh-config", "t", "--yes")

    assert written == "t\t8\tt\tus-central2-b\tsandbox\tsandbox\n"
    assert run("ssh", "-F", ".ssh/config", "t-3", "hostname").endswith("-w-3\n")

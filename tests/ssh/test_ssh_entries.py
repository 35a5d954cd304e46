"""The file of ssh entries: as ssh reads it, and with parallel writers."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.models.node import Node
from tpuctl.names import NodeName
from tpuctl.ssh.connection import Connection
from tpuctl.ssh.ssh_config import SshConfigEntry, UserHosts, build_entry, change_ssh_config, read_ssh_config


def entry(name: str) -> SshConfigEntry:
    # Without the door that refuses such names: nothing else may let them into a file either.
    node = Node(NodeName("p", "z-a", name), {"name": f"projects/p/locations/z-a/nodes/{name}", "id": "1"})
    connection = Connection("ada", "192.0.2.1", "tpu.1-0", (Path("/k"), Path("/g")), Path("/h/a b/100%"), "reach %%h")
    return build_entry(node, [connection], cloud="google")


def test_parallel_changes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / ".ssh" / "tpuctl_config"

    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda number: change_ssh_config(path, lambda text: text.changed(new=[entry(f"n{number}")])), range(40)
            )
        )

    assert {one.name.node_id for one in read_ssh_config(path).entries} == {f"n{number}" for number in range(40)}
    assert UserHosts.read(path, folder=path.parent).get("n7") is None


@pytest.mark.parametrize("name", ["a *", "*", "a\n  ProxyCommand touch /tmp/x", "!a", "a\u2028b"])
def test_entry_with_unsafe_node_name_raises(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a valid host name"):
        entry(name)


def test_entry_is_parsed_with_any_node_name(tmp_path: Path) -> None:
    written = replace(entry("trainer"), id="1\u2028# tpuctl end\x85\n")
    change_ssh_config(tmp_path / "hosts", lambda text: text.changed(new=[written]))

    assert read_ssh_config(tmp_path / "hosts").entries == [written]


@pytest.mark.sshd
def test_ssh_reads_written_entries(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    change_ssh_config(path, lambda text: text.changed(new=[entry("trainer")]))

    done = subprocess.run(["ssh", "-G", "-F", str(path), "trainer-0"], capture_output=True, text=True, check=True)

    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert {
        key: said[key] for key in ("hostname", "user", "hostkeyalias", "proxycommand", "stricthostkeychecking")
    } == {
        "hostname": "192.0.2.1",
        "user": "ada",
        "hostkeyalias": "tpu.1-0",
        "proxycommand": "reach %%h",
        "stricthostkeychecking": "accept-new",
    }
    assert (said["identityfile"], said["userknownhostsfile"]) == ("/h/a b/100%%", "/k /g")

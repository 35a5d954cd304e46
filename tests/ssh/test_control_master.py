"""Shared ssh connections: their sockets, the saved handshakes, and their end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from getpass import getuser
from pathlib import Path

import pytest

from tests.chaos import Chaos
from tpuctl.models.node import Node
from tpuctl.sandbox import administration
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.state import SandboxState
from tpuctl.ssh.connection import NEW_CONNECTION, Connection, host_alias, ssh_argv
from tpuctl.ssh.control_master import (
    close_masters,
    control_master_options,
    control_socket_folder,
    has_master,
    is_multiplexing_message,
)
from tpuctl.ssh.keys import ensure_key, metadata_key_line

KEEP = timedelta(seconds=20)
A = Connection("ada", "198.18.0.1", "tpu.77-0", (Path("/a b/100%"), Path("/gcloud")), Path("/key"))


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: those of pytest are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="kept-") as folder:
        yield Path(folder)


def socket_of(connection: Connection, folder: Path) -> str:
    (path,) = re.findall(r'ControlPath="(.*)"', " ".join(control_master_options(connection, folder, KEEP)))
    return str(path)


def test_options_contain_socket_and_lifetime() -> None:
    options = control_master_options(A, Path("/a 50% b"), timedelta(minutes=5))

    assert options[1::2] == (
        "ControlMaster=auto",
        f'ControlPath="{socket_of(A, Path("/a 50% b"))}"',
        "ControlPersist=300",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
    )
    assert re.fullmatch(r"/a 50%% b/[0-9a-f]{8}-[0-9a-f]{16}", socket_of(A, Path("/a 50% b")))
    assert control_master_options(A, Path("/f"), timedelta(milliseconds=1))[5] == "ControlPersist=1"
    assert control_master_options(A, Path("/f"), timedelta()) == control_master_options(A, None, KEEP) == ()


def test_only_equal_connections_share_a_socket() -> None:
    others = [
        replace(A, login="bob"),
        replace(A, address="10.0.0.2"),
        replace(A, host_alias="tpu.77-1"),
        replace(A, identity=Path("/other")),
        replace(A, known_hosts=(Path("/other"), Path("/gcloud"))),
        replace(A, proxy_command="nc %h"),
        replace(A, host_keys=("ssh-ed25519 AAAA",)),
    ]

    names = [Path(socket_of(one, Path("/f"))).name for one in (A, *others)]

    assert len(set(names)) == len(names)
    assert socket_of(replace(A), Path("/f")) == socket_of(A, Path("/f"))
    # What `forget` goes by.
    assert len({name.partition("-")[0] for name in names}) == 1
    assert names[0].partition("-")[0] != Path(socket_of(replace(A, host_alias="tpu.7-70"), Path("/f"))).name[:8]


def test_socket_folder_is_private_and_short(short: Path) -> None:
    runtime, state, tmp = short / "run", short / "state", short / "tmp"
    runtime.mkdir()
    tmp.mkdir()
    ours = tmp / f"tpuctl-{os.geteuid()}"
    environ = {"XDG_RUNTIME_DIR": str(runtime)}

    assert control_socket_folder(environ, state, temporary=tmp) == runtime / "tpuctl"
    assert (runtime / "tpuctl").stat().st_mode & 0o777 == 0o700
    (runtime / "tpuctl").chmod(0o750)
    in_state = control_socket_folder(environ, state, temporary=tmp)
    assert in_state is not None
    assert in_state.parent == state
    assert control_socket_folder({"XDG_RUNTIME_DIR": "run"}, state, temporary=tmp) == in_state
    too_long, quoted = short / ("x" * 80), short / 'a"b'
    assert (
        control_socket_folder({}, too_long, temporary=tmp) == control_socket_folder({}, quoted, temporary=tmp) == ours
    )
    assert (too_long.exists(), list(ours.iterdir())) == (False, [])
    ours.rmdir()
    ours.symlink_to(runtime)
    assert control_socket_folder({}, too_long, temporary=tmp) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ControlSocket /run/user/1/tpuctl/ab already exists, disabling multiplexing\r\n", True),
        ("mux_client_request_session: session request failed: Session open refused by peer", True),
        ("mux_client_request_session: read from master failed: Broken pipe", True),
        ("muxclient: master hello exchange failed", True),
        ("Control socket connect(/f/ab): Connection reset by peer", True),
        ("ada@198.18.0.1: Permission denied (publickey).", False),
        ("Traceback: mux_client_request_session: no", False),
        ("", False),
    ],
)
def test_multiplexing_messages_are_recognized(line: str, expected: bool) -> None:
    assert is_multiplexing_message(line) is expected


@dataclass
class Kept:
    """A worker of a sandbox, the folder of sockets, and a proxy that counts connections and can break them."""

    connection: Connection
    node: Node
    other_node: Node
    folder: Path
    chaos: Chaos

    def ssh(self, command: str, *options: str) -> tuple[str, str, int]:
        words = ssh_argv(
            self.connection, (command,), options=(*options, *control_master_options(self.connection, self.folder, KEEP))
        )
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
            env={**os.environ, "PATH": f"{self.folder.parent / 'shims'}:{os.environ['PATH']}"},
        )  # fmt: skip
        said = "".join(line for line in done.stderr.splitlines(keepends=True) if not is_multiplexing_message(line))
        return done.stdout, said, done.returncode

    @property
    def handshakes(self) -> int:
        return len(self.chaos.links())

    def sockets(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def master(self) -> int:
        words = ["ssh", "-O", "check", "-S", socket_of(self.connection, self.folder), "any"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return int(re.findall(r"pid=(\d+)", done.stderr)[0])


@pytest.fixture
def kept(tmp_path: Path, short: Path) -> Iterator[Kept]:
    key = ensure_key(tmp_path, login=getuser())
    with SandboxState.open(tmp_path / "world.sqlite3", speed=1) as sandbox_state:
        metadata = {"ssh-keys": metadata_key_line(getuser(), key)}
        node, other = (
            Node.from_api(administration.add_node(sandbox_state, name, metadata=metadata)) for name in ("demo", "other")
        )
    address = node.endpoints[0].address or ""
    connection = Connection(
        login=getuser(),
        address=address,
        host_alias=host_alias(node.id or "", 0),
        known_hosts=(tmp_path / "known_hosts", tmp_path / "gcloud"),
        identity=key.path,
        proxy_command=proxy_command(tmp_path / "world.sqlite3", address),
    )
    folder = short / "sockets"
    folder.mkdir(mode=0o700)
    with Chaos() as chaos:
        chaos.shims(short / "shims")
        kept = Kept(connection, node, other, folder, chaos)
        yield kept
        close_masters(node, folder)
        assert kept.sockets() == []


@pytest.mark.sshd
def test_second_command_reuses_connection_until_it_is_closed(kept: Kept) -> None:
    assert not has_master(kept.connection, kept.folder)
    assert kept.ssh("echo one; echo words >&2; exit 3")[::2] == ("one\n", 3)
    assert has_master(kept.connection, kept.folder)
    assert not has_master(replace(kept.connection, login="bob"), kept.folder)
    assert kept.ssh("echo two; echo words >&2; exit 255") == ("two\n", "words\n", 255)
    assert kept.handshakes == 1
    close_masters(kept.other_node, kept.folder)
    assert kept.ssh("echo three", *NEW_CONNECTION) == ("three\n", "", 0)
    assert kept.ssh("echo four") == ("four\n", "", 0)
    assert kept.handshakes == 2

    close_masters(kept.node, kept.folder)

    assert kept.sockets() == []
    assert not has_master(kept.connection, kept.folder)
    assert kept.ssh("echo five") == ("five\n", "", 0)
    assert kept.handshakes == 3


@pytest.mark.sshd
def test_crash_race_and_session_limit_cause_no_output(kept: Kept) -> None:
    with ThreadPoolExecutor(11) as pool:
        first = list(pool.map(kept.ssh, ["sleep 0.3; echo race"] * 2))
        assert kept.handshakes == 2
        # The server lets ten sessions onto one connection.
        crowd = list(pool.map(kept.ssh, ["sleep 0.4; echo crowd"] * 11))
    assert [(out, code) for out, _, code in first] == [("race\n", 0)] * 2
    assert [(out, code) for out, _, code in crowd] == [("crowd\n", 0)] * 11
    assert not [said for _, said, _ in first + crowd if "mux" in said or "Control" in said]
    os.kill(kept.master(), signal.SIGKILL)

    assert kept.ssh("echo after the crash") == ("after the crash\n", "", 0)


@pytest.mark.sshd
def test_dead_connection_is_replaced_and_hanging_master_is_skipped(kept: Kept) -> None:
    address = kept.connection.address
    assert kept.ssh("true", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=1")[2] == 0
    with ThreadPoolExecutor(1) as pool:
        kept.chaos.drop(address)
        hanging = pool.submit(kept.ssh, "echo on another link")
        kept.chaos.wait_until(address, opened=2)
        kept.chaos.heal(address)
        assert hanging.result() == ("on another link\n", "", 0)

    stopped = kept.master()
    os.kill(stopped, signal.SIGSTOP)
    close_masters(kept.node, kept.folder)
    assert kept.ssh("echo at once") == ("at once\n", "", 0)
    os.kill(stopped, signal.SIGKILL)

"""The messages of this machine's ssh match the known causes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from dataclasses import replace
from getpass import getuser
from pathlib import Path

import pytest

from tpuctl.models.node import Node
from tpuctl.ssh.connection import Connection, Target, ssh_argv
from tpuctl.ssh.ssh_errors import classify_stderr, collect_failure_context, explain_ssh_failure, has_passphrase


@pytest.mark.sshd
def test_real_ssh_without_server_matches_the_messages(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
        reset = _said("127.0.0.1", "-p", str(port))
    closed = _said("127.0.0.1", "-p", str(port))
    (tmp_path / "config").write_text("Foo bar\n")

    assert [reset, closed] == ["ssh-handshakes", "ssh-refused"]
    assert _said("w", "-o", "ProxyCommand=/nowhere/gcloud compute start-iap-tunnel") == "iap-gcloud-missing"
    assert _said("w", "-o", "ProxyCommand=false") == "ssh-proxy-ended"
    assert _said("w", "-F", str(tmp_path / "config")) == "ssh-config-broken"
    assert _said("w.invalid") in {"ssh-name-unknown", "ssh-name-for-now"}


def _hang_up(server: socket.socket) -> None:
    server.accept()[0].close()


def _said(*words: str) -> str | None:
    done = subprocess.run(
        ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", *words, "true"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = classify_stderr(done.stderr)
    return found.id if found else done.stderr


@pytest.mark.sshd
def test_real_ssh_with_real_server_matches_the_messages(tmp_path: Path) -> None:
    connection = _server(tmp_path)
    _make_key(tmp_path / "locked", passphrase="secret")
    _make_key(tmp_path / "stranger")
    (tmp_path / "keys").write_text((tmp_path / "locked.pub").read_text() + (tmp_path / "key.pub").read_text())
    open_to_all = tmp_path / "open"
    open_to_all.write_bytes(connection.identity.read_bytes())
    open_to_all.chmod(0o644)
    # Of the same kind as the real one: a key of another kind would only be a second one.
    kind, host_key = (tmp_path / "host.pub").read_text().split()[:2]
    other = (tmp_path / "locked.pub").read_text().split()[1]
    changed, known = tmp_path / "changed", tmp_path / "known"
    changed.write_text(f"w {kind} {other}\n")
    known.write_text(f"w {kind} {host_key}\n")
    connection = replace(connection, host_keys=(f"{kind} {host_key}",))

    ways = [
        replace(connection, known_hosts=(known, tmp_path / "none"), identity=tmp_path / "stranger"),
        replace(connection, known_hosts=(known, tmp_path / "none"), identity=tmp_path / "locked"),
        replace(connection, known_hosts=(known, tmp_path / "none"), identity=open_to_all),
        replace(connection, known_hosts=(changed, tmp_path / "none")),
        replace(connection, known_hosts=(tmp_path / "none", tmp_path / "none")),
    ]
    assert [_explained(one) for one in ways] == [
        "ssh-publickey",
        "ssh-key-passphrase",
        "ssh-key-mode",
        "ssh-hostkey-changed",
        "ssh-hostkey-verification",
    ]


def _explained(connection: Connection) -> str | None:
    words = ssh_argv(connection, ("true",), options=("-F", "none", "-o", "BatchMode=yes", "-o", "IdentityAgent=none"))
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    node = Node.from_api({"name": "projects/p/locations/z-a/nodes/n", "networkEndpoints": [{}]})
    one = Target(node, 0, connection, "0")
    return explain_ssh_failure(done.stderr, one, replace(collect_failure_context(one), has_agent=False)).error_id


def _server(folder: Path) -> Connection:
    """Return the connection to a server that accepts only the keys in the file `keys`."""
    _make_key(folder / "host")
    _make_key(folder / "key")
    (folder / "config").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/keys\nStrictModes no\nUsePAM no\nPidFile none\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
    )
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")
    proxy = f"{sshd} -i -f {folder}/config -E {folder}/log"
    return Connection(getuser(), "w", "w", (folder / "none", folder / "none"), folder / "key", proxy)


def _make_key(path: Path, passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)


@pytest.mark.sshd
@pytest.mark.parametrize(("options", "locked"), [(("-N", ""), False), (("-N", "secret"), True)])
@pytest.mark.parametrize("form", [("-t", "ed25519"), ("-t", "ecdsa", "-m", "PEM"), ("-t", "ecdsa", "-m", "PKCS8")])
def test_passphrase_is_detected_in_every_key_format(
    tmp_path: Path, form: tuple[str, ...], options: tuple[str, ...], *, locked: bool
) -> None:
    subprocess.run(["ssh-keygen", "-q", *form, *options, "-f", str(tmp_path / "key")], check=True)

    assert has_passphrase((tmp_path / "key").read_bytes()) is locked
    assert not has_passphrase((tmp_path / "key.pub").read_bytes())

"""Workers for `benchmarks.remote`: real sshds on addresses of the loopback network, behind the addresses of sandbox nodes.

Both programs start the first `ssh` on PATH, which connects to 127.0.x.x for 198.18.x.x. Each worker has a home of its own.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measurement import Program
from benchmarks.stage import ZONE, Stage, served

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server")
_ADDRESSES_OF_ONE = 16  # the most that one sshd listens on
_SSHD_CONFIG = """\
HostKey {host_key}
AuthorizedKeysFile {folder}/authorized_keys
ForceCommand {folder}/session
Subsystem sftp {sftp}
StrictModes no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 200:30:400
LogLevel ERROR
# Below another shell bash reads no start-up files of this user, whose cost is not that of ssh.
SetEnv SHLVL=1
Port {port}
"""
_SESSION = """\
#!/bin/sh
set -- $SSH_CONNECTION
cd {folder}/homes/$3 && export HOME="$PWD" && exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
_SHIM = """\
#!/bin/sh
exec {program} -F {folder}/ssh_config "$@"
"""


@dataclass(frozen=True, slots=True)
class Slice:
    """A node and the addresses of its workers, as the API shows them."""

    name: str
    addresses: tuple[str, ...]
    host_key: str


@dataclass(frozen=True, slots=True)
class Loopback:
    """Slices whose workers listen on loopback addresses."""

    stage: Stage
    slices: Mapping[int, Slice]

    def tpuctl(self, *words: str, keep: str = "0") -> Program:
        """Return tpuctl with a state folder of its own, so that it treats the workers as real ones."""
        state = {"TPUCTL_STATE_DIR": str(self.stage.folder / "client"), "TPUCTL_SSH_KEEP": keep}
        return self._with_shims(self.stage.tpuctl(*words, environ=state))

    def gcloud(self, *words: str) -> Program:
        """Return gcloud with the same key."""
        return self._with_shims(self.stage.gcloud("compute", "tpus", "tpu-vm", *words, f"--zone={ZONE}"))

    def at_once(self, lines: Sequence[str]) -> Program:
        """Return a program that starts shell lines at once, waits for all, and fails if one fails."""
        script = "".join(f"{line} & set -- $! $*\n" for line in lines) + "for each; do wait $each || exit 1; done"
        environ = {**self.stage.tpuctl().environ}
        return self._with_shims(Program(("sh", "-c", script), environ))

    def ssh_line(self, address: str, command: str) -> str:
        """Return the shell line for a bare ssh with the options that gcloud gives it."""
        return f"ssh -n -T {self._trust()} {getpass.getuser()}@{address} -- {command}"

    def scp_line(self, source: Path, address: str, target: str) -> str:
        """Return the shell line for a bare scp with these options."""
        return f"scp -q {self._trust()} {source} {getpass.getuser()}@{address}:{target}"

    def _trust(self) -> str:
        folder = self.stage.folder
        return (
            f"-i {folder}/.ssh/google_compute_engine -o IdentitiesOnly=yes -o StrictHostKeyChecking=no"
            f" -o CheckHostIP=no -o HashKnownHosts=no -o UserKnownHostsFile={folder}/known_hosts -o LogLevel=ERROR"
        )

    def _with_shims(self, program: Program) -> Program:
        path = f"{self.stage.folder / 'programs'}:{program.environ['PATH']}"
        return replace(program, environ={**program.environ, "PATH": path})


@contextmanager
def workers(folder: Path, sizes: Sequence[int]) -> Iterator[Loopback]:
    """Yield slices of these sizes, served by a sandbox and by sshds until the end."""
    assert _SSHD, "this needs OpenSSH's sshd"
    folder.mkdir(parents=True)
    quiet = Stage(folder)
    found = make_slices(quiet, sizes)
    port = _free_port()
    _write_shims(folder, [address for each in found for address in each.addresses], port)
    with ExitStack() as stack:
        for each in found:
            for first in range(0, len(each.addresses), _ADDRESSES_OF_ONE):
                own = each.addresses[first : first + _ADDRESSES_OF_ONE]
                stack.enter_context(_sshd(folder, f"{each.name}-{first}", each.host_key, own, port))
        stage = stack.enter_context(served(quiet))
        yield Loopback(stage, {len(each.addresses): each for each in found})


def make_slices(stage: Stage, sizes: Sequence[int]) -> list[Slice]:
    """Create a key, and a sandbox with a READY slice of each size that accepts it; nothing is served yet."""
    key = stage.folder / ".ssh" / "google_compute_engine"
    key.parent.mkdir(mode=0o700)
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    public = key.with_suffix(".pub")
    shutil.copy(public, stage.folder / "authorized_keys")
    words = (sys.executable, "-m", "benchmarks.slices", str(stage.state_file), getpass.getuser(), str(public))
    done = subprocess.run((*words, *map(str, sizes)), capture_output=True, text=True, check=True)
    return [Slice(each["name"], tuple(each["addresses"]), each["host_key"]) for each in json.loads(done.stdout)]


def _write_shims(folder: Path, addresses: Sequence[str], port: int) -> None:
    """Write the programs and the configuration that reach the workers, and create the homes."""
    blocks = [f"Host {each}\n  HostName {_local(each)}\n  Port {port}\n" for each in addresses]
    (folder / "ssh_config").write_text("".join(blocks))
    (folder / "programs").mkdir()
    for name in ("ssh", "scp"):
        _write_program(folder / "programs" / name, _SHIM.format(program=shutil.which(name), folder=folder))
    _write_program(folder / "session", _SESSION.format(folder=folder))
    for each in addresses:
        (folder / "homes" / _local(each)).mkdir(parents=True)


def _local(address: str) -> str:
    """Return the loopback address of a worker; 127.0.0.1 is not used."""
    third, fourth = address.split(".")[2:]
    number = int(third) * 256 + int(fourth) + 1
    return f"127.0.{number // 256}.{number % 256}"


@contextmanager
def _sshd(folder: Path, name: str, host_key: str, addresses: Sequence[str], port: int) -> Iterator[None]:
    sftp = next(path for path in _SFTP_SERVERS if os.access(path, os.X_OK))
    text = _SSHD_CONFIG.format(host_key=host_key, folder=folder, sftp=sftp, port=port)
    path = folder / f"sshd-{name}"
    path.write_text(text + "".join(f"ListenAddress {_local(each)}\n" for each in addresses))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs it for privilege separation
    command = (str(_SSHD), "-D", "-f", str(path), "-E", f"{path}.log")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as server:
        try:
            _wait_for(_local(addresses[0]), port, server)
            yield
        finally:
            server.terminate()


def _wait_for(host: str, port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except ConnectionRefusedError:
            continue
        return
    raise SystemExit(f"sshd ended with {server.returncode}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)

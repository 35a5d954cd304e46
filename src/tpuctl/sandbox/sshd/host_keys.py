"""Host keys of sandbox workers: one ed25519 key per node incarnation, created once."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.sandbox.sshd.folders import make_private_folder

HOST_KEY_FILE = "ssh_host_ed25519_key"
_MAGIC = b"openssh-key-v1\0"


class SshdUnavailableError(TpuctlError):
    """An OpenSSH program that sandbox workers need is not installed, or cannot be used."""

    kind = "sshd_unavailable"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        install = "install it (Debian and Ubuntu: `sudo apt-get install openssh-server openssh-client`)"
        super().__init__(message, hint=hint or install)


def host_key(directory: Path) -> str:
    """Return the base64 text of the ed25519 public host key in `directory`; create the key if there is none.

    Several processes may do so at once: all get the same key. Raises `SshdUnavailableError` without ssh-keygen.
    """
    path = directory / HOST_KEY_FILE
    if not path.exists():
        _make(path)
    return _public_half(path.read_text("ascii"))


def _make(path: Path) -> None:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise SshdUnavailableError("sandbox workers need `ssh-keygen`, which is not on PATH")
    make_private_folder(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".host-key-") as scratch:
        made = Path(scratch) / "key"
        argv = [program, "-q", "-t", "ed25519", "-N", "", "-C", "tpuctl sandbox", "-f", str(made)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SshdUnavailableError(f"`ssh-keygen` failed: {done.stderr.strip()}")
        try:
            # A link is atomic, and the first of several processes wins.
            path.hardlink_to(made)
        except FileExistsError:
            return


def _public_half(private: str) -> str:
    """Return the public key that OpenSSH's private key format contains unencrypted [OpenSSH PROTOCOL.key]."""
    lines = private.strip().splitlines()
    raw = base64.b64decode("".join(lines[1:-1]))
    rest = raw[len(_MAGIC) :]
    for _ in range(3):  # cipher, key derivation and its options
        _, rest = _string(rest)
    public, _ = _string(rest[4:])  # the number of keys is always 1
    return base64.b64encode(public).decode("ascii")


def _string(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "big")
    return data[4 : 4 + length], data[4 + length :]

"""The folders of a sandbox worker: its home, and beside it the files of its sshd."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one worker. `node` is shared by the workers of one incarnation of a node."""

    node: Path
    index: int

    @property
    def home(self) -> Path:
        """Return the worker's home folder, the only one that its user sees."""
        return self.node / str(self.index)

    @property
    def control(self) -> Path:
        """Return the folder of the worker's sshd: configuration, authorized keys, log, programs, time of last reboot."""
        return self.node / f"{self.index}.sshd"

    @property
    def programs(self) -> Path:
        """Return the folder of programs that replace those of a TPU VM (`hostname`, `sudo`, `reboot`, …)."""
        return self.control / "bin"

    @property
    def metadata(self) -> Path:
        """Return the folder of the metadata server's values, by their paths."""
        return self.control / "metadata"

    @property
    def devices(self) -> Path:
        """Return the folder that stands for `/` when device files are counted: a hidden folder in the home."""
        return self.home / ".tpu"

    @property
    def temporary(self) -> Path:
        """Return the folder that stands for `/tmp` when libtpu's lock file is searched. A reboot empties it."""
        return self.devices / "tmp"

    @property
    def last_reboot(self) -> Path:
        """Return the file with the sandbox time of the last reboot in the guest; it is missing before the first."""
        return self.control / "rebooted"


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner may enter, and its missing parents."""
    for folder in [*reversed(path.parents), path]:
        folder.mkdir(mode=0o700, exist_ok=True)


def write_private_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file atomically; one that already holds the text is not changed."""
    if path.is_file() and path.read_text("utf-8") == text:
        return
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    Path(scratch).replace(path)

"""Where a sandbox worker's files are: its home, and beside it what its sshd needs."""

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
        """Return the folder of programs that stand in for those of a TPU VM (`hostname`, `sudo`, `reboot`, …)."""
        return self.control / "bin"

    @property
    def metadata(self) -> Path:
        """Return the folder of what the metadata server would say, by its paths."""
        return self.control / "metadata"

    @property
    def devices(self) -> Path:
        """Return the folder that stands for `/` where device files are counted. In the home, but out of the way of its user."""
        return self.home / ".tpu"

    @property
    def temporary(self) -> Path:
        """Return the folder that stands for `/tmp` where libtpu's lock file is looked for. A reboot empties it."""
        return self.devices / "tmp"

    @property
    def last_reboot(self) -> Path:
        """Return the file that holds the sandbox's time of the last reboot in the guest; absent when there was none."""
        return self.control / "rebooted"


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter, and those above it that are missing."""
    for folder in [*reversed(path.parents), path]:
        folder.mkdir(mode=0o700, exist_ok=True)


def write_private_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file so that no reader sees half of it; one that already holds the text is left alone."""
    if path.is_file() and path.read_text("utf-8") == text:
        return
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    Path(scratch).replace(path)

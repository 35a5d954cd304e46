"""Workers on this machine: commands sent by ssh run here, with root, home and programs of the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tpu_files import Machine

ROOM = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/root 100 {0} 0 {0}% /\n"
# Such a file system has no limit of inodes.
INODES = "Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/root 0 0 0 - /\n"


class Worker(Machine):
    """A folder that replaces the root of a worker; `home` and `programs` are beside it."""

    def __init__(self, folder: Path, chips: int = 4) -> None:
        super().__init__(folder / "root")
        self.home, self.programs = folder / "home", folder / "programs"
        self.home.mkdir()
        self.programs.mkdir()
        for chip in range(chips):
            (self.root / f"dev/accel{chip}").touch()
        self.uses(20)
        self.says("dmesg", "")
        self.says("timedatectl", "NTPSynchronized=yes\n")
        self.says("cloud-init", "status: done\n")
        self.write("proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:  900 kB\n")
        self.write("proc/uptime", "90000.0 1.0\n")

    def says(self, program: str, text: str, code: int = 0) -> None:
        """Install a program that prints this text."""
        path = self.programs / program
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {code}\n")
        path.chmod(0o755)

    def uses(self, percent: int) -> None:
        """Set the used share of the disk, in percent."""
        path = self.programs / "df"
        room, inodes = ROOM.format(percent), INODES
        path.write_text(
            f"#!/bin/sh\ncase \"$*\" in *-i*) printf '{inodes}' ;; *) printf '{room}' ;; esac\n".replace("%", "%%")
        )
        path.chmod(0o755)

    def logs_in(self, lines: str) -> None:
        """Set shell lines that run before each command sent by ssh."""
        (self.root.parent / "login").write_text(lines)

    def write(self, path: str, text: str) -> None:
        """Write a file below the root."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def install(self, name: str, version: str, *, place: str = "venv") -> None:
        """Install the metadata of a package in an environment in the home."""
        where = self.home / place
        folder = where / "lib/python3.10/site-packages" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (where / "pyvenv.cfg").touch()


@pytest.fixture
def workers(tmp_path: Path, fake_ssh: Callable[[str], None]) -> list[Worker]:
    """Two workers; ssh to any other worker fails."""
    found = [Worker(tmp_path / f"worker {number}") for number in range(2)]
    cases = "".join(f"*@198.18.0.{number + 1}' '*) here='{one.root.parent}' ;; " for number, one in enumerate(found))
    fake_ssh(
        f"for line; do :; done; case \"$*\" in {cases} *) echo 'ssh: no route' >&2; exit 255 ;; esac\n"
        "unset VIRTUAL_ENV\n"
        "export TPUCTL_SANDBOX_NETWORK=127.9\n"
        'export TPUCTL_DEVICE_ROOT="$here/root" HOME="$here/home" PATH="$here/programs:$PATH" SHELL=/bin/sh\n'
        '[ ! -f "$HOME/environment" ] || . "$HOME/environment"\n'
        '[ ! -f "$here/login" ] || . "$here/login"\n'
        'exec sh -c "$line"'
    )
    return found

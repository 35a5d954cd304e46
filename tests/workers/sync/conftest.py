"""A slice whose workers are local folders, behind a fake ssh that can fail, and a git tree to sync."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.workers.sync.trees import git

# Runs what it is asked for on this machine, in a home for each address. A file beside the home says what goes wrong.
_SSH = r"""
for word do
    case $word in *@198.18.0.* | 198.18.0.*) [ "${address-}" ] || address=${word##*@} ;; esac
    last=$word
done
home='WORKERS'/$address
case $(cat "$home.fault" 2>/dev/null) in
    down) echo "ssh: connect to host $address port 22: Connection refused" >&2; exit 255 ;;
    cut) rm "$home.fault"; head -c 200000 | HOME=$home sh -c "$last"
         echo "client_loop: send disconnect: Broken pipe" >&2; exit 255 ;;
    bare) exit 127 ;;
    full) ulimit -f 20 ;;
esac
mkdir -p "$home"
cd "$home"
export HOME=$home
exec sh -c "$last"
"""


@pytest.fixture
def workers(tmp_path: Path, fake_ssh: Callable[[str], None], sandbox: Sandbox) -> list[Path]:
    """The homes of a slice's four workers."""
    fake_ssh(_SSH.replace("WORKERS", str(tmp_path / "workers")))
    sandbox.add_node("slice", zone="us-central1-a", acceleratorType="v5litepod-16")
    homes = [tmp_path / "workers" / f"198.18.0.{number}" for number in (1, 2, 3, 4)]
    for home in homes:
        home.mkdir(parents=True)
    return homes


@pytest.fixture
def tree(tpuctl: Console) -> Path:
    """A git tree with typical files."""
    folder = tpuctl.folder / "code"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q")
    for name, text in {
        "src/train.py": "print(1)\n",
        "run me.sh": "#!/bin/sh\n",
        "gone": "",
        ".gitignore": "*.key\n/out/\n",
        "id.key": "secret",
    }.items():
        (folder / name).write_text(text)
    (folder / "run me.sh").chmod(0o755)
    (folder / "link").symlink_to("/etc/passwd")
    git(folder, "add", ".")
    (folder / "gone").unlink()
    (folder / "new\nline").write_text("untracked")
    Path(os.fsdecode(bytes(folder) + b"/\xff")).write_text("bytes")
    return folder

"""Real ssh to sandbox workers: each connection is an OpenSSH `sshd -i` of its own, started as ssh's ProxyCommand.

There is no port, no daemon and no need to be root. A worker is a home folder beside the world's file; what is run on it
runs on this machine, as the user who runs ssh. `proxy_command` is what a client needs, `host_key` what the API's guest
attributes need.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from tpuctl.sandbox.sshd.folders import Folders
from tpuctl.sandbox.sshd.host_keys import SshdUnavailableError, host_key
from tpuctl.sandbox.sshd.server import find_sshd

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Folders", "SshdUnavailableError", "find_sshd", "host_key", "proxy_command"]


def proxy_command(world_path: Path, address: str) -> str:
    """Return the ssh option ProxyCommand that reaches the worker with this address in this world.

    The text is quoted for the shell and for ssh, which expands `%` and puts `exec` before it. The address is
    any that `nodes.find_worker` knows.
    """
    # -P: a file of the working directory must not be taken for a module.
    program = [sys.executable, "-P", "-m", "tpuctl.sandbox.sshd", str(world_path.absolute()), address]
    return shlex.join(program).replace("%", "%%")

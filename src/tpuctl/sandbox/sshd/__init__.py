"""Real ssh to sandbox workers: each connection is a separate OpenSSH `sshd -i`, started as ssh's ProxyCommand.

There is no port, no daemon and no need to be root. A worker is a home folder beside the sandbox's file; its commands
run on this machine, as the user who runs ssh.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def proxy_command(state_path: Path, address: str) -> str:
    """Return the ssh option ProxyCommand that reaches the worker with this address in this sandbox.

    The text is quoted for the shell and for ssh, which expands `%` and puts `exec` before it. The address is
    any that `find_worker` accepts.
    """
    # -P: do not import modules from the working directory.
    program = [sys.executable, "-P", "-m", "tpuctl.sandbox.sshd", str(state_path.absolute()), address]
    return shlex.join(program).replace("%", "%%")

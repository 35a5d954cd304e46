"""Programs that run on workers, under the Python that is there (3.8 or later), and how they get there.

A program is a file of this package that imports nothing but the standard library. Its text goes through ssh's stdin, so no
login shell interprets it and nothing is installed. Every TPU VM image has `/usr/bin/python3`: cloud-init needs it.
"""

from __future__ import annotations

import shlex
from functools import cache
from importlib import resources

_READ = "import sys;exec(compile(sys.stdin.buffer.read({size}),'tpuctl','exec'))"
# The system's own Python first: PATH may begin with a slow wrapper, or with an environment of the user's.
_CHOICE = '[ -x /usr/bin/python3 ] && exec /usr/bin/python3 -ISc "$0"; exec python3 -ISc "$0"'


def bootstrap(name: str, call: str) -> tuple[str, bytes]:
    """Return the line for the worker's shell, and what ssh's stdin must begin with.

    `name` is the program's file without its suffix; `call` is the Python line that starts it: `main(...)` with literals. What
    follows on stdin is the program's own. A login shell may print something first: a program begins its output with a
    mark of its own. Without Python on the worker the exit code is 127.
    """
    source = _source(name) + call.encode() + b"\n"
    return "exec " + shlex.join(["sh", "-c", _CHOICE, _READ.format(size=len(source))]), source


@cache
def _source(name: str) -> bytes:
    return resources.files(__package__).joinpath(f"{name}.py").read_bytes() + b"\n"

"""Programs that run on workers, under the Python installed there (3.8 or later), and how they are sent.

A program is a file of this package that imports only the standard library and other files of the package, whose text is sent
before its own. All of it goes through the stdin of ssh: no login shell interprets it, and nothing is installed. Every TPU VM
image has `/usr/bin/python3`, which cloud-init needs.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from functools import cache
from importlib import resources

# Half a program, after a broken connection, must do nothing.
_READ = "import sys;s=sys.stdin.buffer.read({size});len(s)=={size} and exec(compile(s,'tpuctl','exec'))"
# Compiling a program takes longer than running it. A user who can write to the cache can run any program anyway.
_LOAD = """\
import marshal, os
path = os.path.expanduser("~/.tpuctl/programs/{kept}.") + sys.implementation.cache_tag
text = sys.stdin.buffer.read({size})
if len(text) == {size}:
    try:
        with open(path, "rb") as file:
            code, is_new = marshal.loads(file.read()), False
    except (OSError, EOFError, ValueError, TypeError):
        code, is_new = compile(text, "tpuctl", "exec"), True
    exec(code)
    if is_new:
        keep_program(path, code)
    {call}
"""
_OF_PACKAGE = re.compile(r"^from tpuctl\.ssh\.agent\.(\w+) import (?:\([^)]*\)|.*)$", re.MULTILINE)
# The system's Python first: PATH may begin with a slow wrapper, or with an environment of the user.
_CHOICE = '[ -x /usr/bin/python3 ] && exec /usr/bin/python3 -ISc "$0"; exec python3 -ISc "$0"'


def bootstrap(name: str, call: str, *, is_kept: bool = False) -> tuple[str, bytes]:
    """Return the line for the worker's shell, and the beginning of the stdin of ssh.

    `name`: the program's file without its suffix. `call`: the Python line that starts it, with literals. The program reads what
    follows on stdin. A login shell may print first, so a program begins its output with a mark. `is_kept`: the worker compiles
    the program once and caches it. Without Python on the worker the exit code is 127.
    """
    program = _source(name)
    if is_kept:
        kept = f"{name}-{hashlib.blake2b(program, digest_size=8).hexdigest()}"
        first, rest = _LOAD.format(kept=kept, size=len(program), call=call).encode(), program
    else:
        first, rest = program + call.encode() + b"\n", b""
    return "exec " + shlex.join(["sh", "-c", _CHOICE, _READ.format(size=len(first))]), first + rest


@cache
def _source(name: str) -> bytes:
    """Return a program and all files of this package that it imports, as one text."""
    texts: dict[str, str] = {}
    _collect(name, texts)
    return ("from __future__ import annotations\n" + "\n".join(texts.values())).encode() + b"\n"


def _collect(name: str, texts: dict[str, str]) -> None:
    text = resources.files(__package__).joinpath(f"{name}.py").read_text("utf-8")
    for other in _OF_PACKAGE.findall(text):
        if other not in texts:
            _collect(other, texts)
    texts[name] = _OF_PACKAGE.sub("", text).replace("from __future__ import annotations\n", "")

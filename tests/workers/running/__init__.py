"""A slice whose workers are folders of this machine, with connections that break where a test requests it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from tests.conftest import Console, Result, Sandbox
from tests.lifecycle import put
from tests.tpuctl_process import TpuctlProcess

Link = dict[str, object]
# What each connection of a worker is like, in their order; the last is for all later ones. It is cut when so many bytes were
# `received` from the worker, or `sent` to it, or `said` after the program, which comes first. The clock of a worker is `skew`
# seconds ahead, and so are the times of its files.
Plan = Sequence[Link]
GOOD: Link = {}
REFUSED: Link = {"says": "ssh: connect to host w port 22: Connection refused"}
NO_KEY: Link = {"says": "ada@w: Permission denied (publickey)."}

_SSH = """
import _thread, json, os, subprocess, sys, time
root, words = {root!r}, sys.argv[1:]
line = words[-1]
worker = int(next(word for word in words if "@198.18.0." in word).rpartition(".")[2]) - 1
home = f"{{root}}/{{worker}}"
os.makedirs(home, exist_ok=True)
with open(f"{{home}}/links", "a") as links:
    links.write(f"{{time.monotonic()}}\\n")
with open(f"{{home}}/links") as links:
    number = len(links.readlines()) - 1
plan = json.load(open(f"{{root}}/plan")).get(str(worker)) or [{{}}]
link = plan[min(number, len(plan) - 1)]
if skew := link.get("skew"):
    clock = f"import os,time;t,s=time.time,os.stat;time.time=lambda:t()+{{skew}};"
    stat = f"os.stat=lambda*a,**k:(lambda x:os.stat_result([*x[:8],x[8]+{{skew}},x[9]]))(s(*a,**k));"
    line = line.replace("import sys;", f"import sys;{{clock}}{{stat}}", 1)
if link.get("hangs"):
    time.sleep(60)
if "says" in link:
    sys.exit(print(link["says"], file=sys.stderr) or 255)
environ = {{"HOME": home, "SHELL": "/bin/sh", "PATH": os.environ["PATH"], "USER": "ada", **link.get("environ", {{}})}}
shell = subprocess.Popen(
    [link.get("shell", "/bin/sh"), "-c", line], bufsize=0, cwd=home, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
left = {{0: link.get("sent"), 1: link.get("received")}}
if "said" in link:
    left[0] = int(line.partition("read(")[2].partition(")")[0]) + link["said"]

def cut():
    print("client_loop: send disconnect: Broken pipe", file=sys.stderr)
    os._exit(255)

def pump(way, source, target):
    while True:
        most = left[way]
        if most is not None and most <= 0:
            cut()
        data = os.read(source, 65536 if most is None else min(65536, most))
        if not data:
            break
        left[way] = None if most is None else most - len(data)
        try:
            while data:
                data = data[os.write(target, data):]
        except BrokenPipeError:
            break

def send():
    pump(0, 0, shell.stdin.fileno())
    shell.stdin.close()

_thread.start_new_thread(send, ())
pump(1, shell.stdout.fileno(), 1)
os._exit(shell.wait())
"""


class Slice:
    """The workers of one node, `pod`: folders into which a stand-in for ssh logs in."""

    def __init__(self, tpuctl: Console, fake_ssh: Callable[[str], None], root: Path) -> None:
        self.root, self.tpuctl = root, tpuctl
        root.mkdir()
        program = root / "ssh.py"
        program.write_text(_SSH.format(root=str(root)))
        self._fake_ssh = fake_ssh
        self.plan({})

    def put(self, sandbox: Sandbox, **fields: Any) -> None:
        """Let it be there, eight workers of a v4-64, and know our key."""
        put(sandbox, "pod", acceleratorType="v4-64", **fields)
        self.tpuctl("ssh", "pod", "--", "true")

    def log_in(self) -> None:
        """Let ssh lead into the workers' homes from now on."""
        program = self.root / "ssh.py"
        self._fake_ssh(f"exec '{sys.executable}' -ISc 'exec(open(\"{program}\").read())' \"$@\"")
        self.plan({})

    def plan(self, links: dict[int, Plan]) -> None:
        """Say what the connections to some workers are like; the others are good. Counting begins anew."""
        (self.root / "plan").write_text(json.dumps(links))
        for path in self.root.glob("*/links"):
            path.unlink()

    def home(self, worker: int) -> Path:
        return self.root / str(worker)

    def run(self, *arguments: str, **keywords: object) -> Result:
        return self.tpuctl("run", "pod", *arguments, **keywords)  # type: ignore[arg-type]  # the console's own

    def start(
        self,
        *arguments: str,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        """Start the program in a process of its own."""
        words = ["run", "pod", *arguments]
        environ = {"PATH": os.environ["PATH"], **self.tpuctl.environ, **variables}
        return TpuctlProcess(words, env=environ, cwd=self.tpuctl.folder, stdin=stdin, stdout=stdout, stderr=stderr)

    def links(self, worker: int) -> int:
        """Return how often a worker was connected to."""
        return len((self.home(worker) / "links").read_text().splitlines())

    def texts(self, name: str) -> dict[int, str]:
        """Return a file of all the workers that have it."""
        return {int(path.parent.name): path.read_text() for path in sorted(self.root.glob(f"[0-7]/{name}"))}

    def left(self) -> list[str]:
        """Return what is left of jobs on the workers."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob("[0-7]/.tpuctl/jobs/*"))

    def end_all(self) -> None:
        """Kill what still runs."""
        for pid in self.root.glob("[0-7]/.tpuctl/jobs/*/pid"):
            if not (pid.parent / "exit").exists():
                os.killpg(int(pid.read_text().split()[0]), signal.SIGKILL)

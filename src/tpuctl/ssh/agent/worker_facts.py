"""Runs on a worker: prints facts about its disks, memory, log folder, variables, Pythons, TPU and clock, as one line of JSON.

Nothing is changed and no framework is imported. All programs run in parallel, and one that hangs (a dead network file system, a
login shell) is abandoned after a timeout. Each fact is limited in size, and has its own error. Files are searched below
$TPUCTL_DEVICE_ROOT; those of the kernel in their usual place if that has none. It must run under Python 3.8.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FACTS_MARK = "tpuctl-examination "
VARIABLES_MARK = "tpuctl-variables"
# The limits of the output of one program and of a value.
MOST_PRINTED = 1 << 20
LONGEST_TEXT = 4000
LONGEST_VALUE = 300
MOST_LINES = 10
MOST_FILES = 20000
MOST_JOBS = 5
WALK = 2.0
NAMES = (
    *("TPU_LOG_DIR", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL", "TPU_MAX_LOG_SIZE_MB", "TF_CPP_MIN_LOG_LEVEL"),
    *("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"),
    *("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE", "XRT_TPU_CONFIG", "LIBTPU_INIT_ARGS", "TPU_LIBRARY_PATH"),
    *("VIRTUAL_ENV", "CONDA_PREFIX"),
)
# Lines of the kernel's log about a process killed for lack of memory [Linux source, mm/oom_kill.c and memcontrol.c].
OOM_KILL = re.compile(r"Out of memory: Kill|Memory cgroup out of memory|oom-kill:|oom_reaper: reaped")
# As root if that needs no password; sudo drops the environment.
AS_ROOT = """\
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true </dev/null >/dev/null 2>&1; then
    exec sudo -n env TPUCTL_DEVICE_ROOT="${TPUCTL_DEVICE_ROOT-}" "$@"
fi
exec "$@"
"""


def examine(inspection: str, holders: str, patience: float) -> None:
    """Print all facts. `inspection`: a script for sh, `holders`: a program for Python; both are run here."""
    began = time.time()
    named = os.environ.get("TPUCTL_DEVICE_ROOT")
    root = os.path.realpath(named) if named else ""
    home = os.path.expanduser("~")
    asked = start_programs(inspection, holders, [root or "/", home, "/tmp"])  # noqa: S108  # where programs write
    facts: dict[str, Any] = {"version": 1, "began": began}
    put_fact(facts, "memory", lambda: first_text(root, "/proc/meminfo")[:LONGEST_TEXT])
    put_fact(facts, "uptime", lambda: first_text(root, "/proc/uptime").split()[0])
    facts["kernel"], facts["python"] = os.uname().release, "%d.%d.%d" % sys.version_info[:3]
    jobs = job_variables(home)
    outputs = collect_output(asked, patience)
    put_fact(facts, "login", lambda: login_variables(outputs.pop("login"), patience))
    put_fact(facts, "killed", lambda: oom_kills(outputs.pop("dmesg")))
    facts["session"], facts["jobs"], facts["said"] = tpu_variables(os.environ), jobs, outputs
    every = [*jobs, facts["login"].get("ok", {}), facts["session"]]
    put_fact(
        facts,
        "logs",
        lambda: log_folder(root, next((one["TPU_LOG_DIR"] for one in every if "TPU_LOG_DIR" in one), None)),
    )
    places = [one[name] for one in every for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in one]
    put_fact(facts, "environments", lambda: environments(root, home, places))
    facts["ended"] = time.time()
    sys.stdout.write("\n" + FACTS_MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


class NoFactError(Exception):
    """Why a fact is unknown, as a message for the user."""


def put_fact(facts: dict[str, Any], name: str, find: Callable[[], Any]) -> None:
    """Store a fact under its name, or the error."""
    try:
        facts[name] = {"ok": find()}
    except NoFactError as error:
        facts[name] = {"error": str(error)[:LONGEST_VALUE]}
    except OSError as error:
        facts[name] = {"error": ("%s: %s" % (error.filename or name, error.strerror))[:LONGEST_VALUE]}
    except Exception as error:  # noqa: BLE001  # one failing fact must not affect the others
        facts[name] = {"error": ("unexpected content (%s)" % type(error).__name__)[:LONGEST_VALUE]}


def start_programs(inspection: str, holders: str, folders: list[str]) -> dict[str, Any]:
    """Start all programs."""
    python, shell = sys.executable or "python3", os.environ.get("SHELL") or "/bin/sh"
    login = "printf '\\n%s\\n' %s; exec env -0" % ("%s", VARIABLES_MARK)
    as_root = ["sh", "-c", AS_ROOT, "tpuctl"]
    words = {
        "inspection": (["sh", "-s"], inspection),
        "holders": ([*as_root, python, "-IS", "-"], holders),
        "space": (["df", "-P", "-k", *folders], ""),
        "inodes": (["df", "-P", "-i", *folders], ""),
        "dmesg": ([*as_root, "dmesg"], ""),
        "synchronized": (["timedatectl", "show", "-p", "NTPSynchronized"], ""),
        "login": ([shell, "-lc", login], ""),
    }
    return {name: start(*asked) for name, asked in words.items()}


def start(words: list[str], text: str) -> Any:
    """Start a program that reads a short text; return its process, or an error message."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        return str(error.strerror)
    try:
        if process.stdin is not None:  # it fits into a pipe, so this never blocks
            process.stdin.write(text.encode())
            process.stdin.close()
    except OSError:
        pass
    return process


def collect_output(asked: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the output and exit code of each program; no exit code after a timeout."""
    until = time.monotonic() + seconds
    printed = dict.fromkeys(asked, b"")
    waiting = {one.stdout.fileno(): name for name, one in asked.items() if not isinstance(one, str)}
    while waiting and time.monotonic() < until:
        for file in select.select(list(waiting), [], [], max(0.0, until - time.monotonic()))[0]:
            name = waiting[file]
            data = os.read(file, 1 << 16)
            printed[name] += data
            if not data or len(printed[name]) > MOST_PRINTED:
                del waiting[file]
    outputs: dict[str, Any] = {}
    for name, one in asked.items():
        if isinstance(one, str):
            outputs[name] = {"code": 127, "out": one}
            continue
        code = None if name in waiting.values() or len(printed[name]) > MOST_PRINTED else finish(one)
        if code is None:
            end(one)
        most = MOST_PRINTED if name in {"login", "dmesg"} else 16 * LONGEST_TEXT
        outputs[name] = {"code": code, "out": printed[name][:most].decode("utf-8", "replace")}
    return outputs


def finish(process: Any) -> int | None:
    """Return the exit code of a program that has closed its output."""
    try:
        return int(process.wait(1))
    except subprocess.TimeoutExpired:
        return None


def end(process: Any) -> None:
    """Kill a program and its children. One that runs as root can only be abandoned; it ends with its pipe."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(1)
    except (OSError, subprocess.TimeoutExpired):
        pass


def first_text(root: str, path: str) -> str:
    """Return the content of a file of the kernel, below the root if it exists there."""
    if root and os.path.exists(root + path):
        path = root + path
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 16)


def tpu_variables(environ: Any) -> dict[str, str]:
    """Return the variables that TPU programs read, and no others: the rest may contain secrets."""
    return {name: environ[name][:LONGEST_VALUE] for name in NAMES if environ.get(name)}


def login_variables(outputs: dict[str, Any], patience: float) -> dict[str, str]:
    """Return the variables of a login shell, which follow the output of its profile."""
    _, marked, text = outputs["out"].rpartition("\n%s\n" % VARIABLES_MARK)
    if not marked and outputs["code"] is None:
        raise NoFactError("a login shell did not start within %g s: a command in its profile waits" % patience)
    if not marked:
        ended = last_line(outputs["out"]) or "exit %d" % outputs["code"]
        raise NoFactError("a login shell runs no commands: %s" % ended)
    pairs = [entry.partition("=") for entry in text.split("\0")]
    return tpu_variables({name: value for name, _, value in pairs})


def last_line(text: str) -> str:
    """Return the last non-empty line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST_VALUE] if lines else ""


def job_variables(home: str) -> list[dict[str, str]]:
    """Return the variables of running jobs of `tpuctl run`, the newest first; those that cannot be read are left out."""
    folder = os.path.join(home, ".tpuctl", "jobs")
    found = []
    try:
        jobs = [os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(".")]
        jobs.sort(key=os.path.getmtime, reverse=True)
    except OSError:
        return []
    for job in jobs:
        try:
            if os.path.exists(job + "/exit"):
                continue
            with open(job + "/pid", "rb") as file:
                pid = int(file.read(64).split()[0])
            with open("/proc/%d/environ" % pid, "rb") as file:
                entries = file.read(1 << 20).decode("utf-8", "replace").split("\0")
        except (OSError, ValueError, IndexError):
            continue
        found.append(tpu_variables({name: value for name, _, value in (entry.partition("=") for entry in entries)}))
        if len(found) == MOST_JOBS:
            break
    return found


def oom_kills(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return the number of processes killed for lack of memory, and the last such lines of the kernel's log."""
    if outputs["code"] != 0:
        if outputs["code"] is None:
            raise NoFactError("`dmesg` timed out")
        raise NoFactError(last_line(outputs["out"]) or "`dmesg` failed: exit %d" % outputs["code"])
    lines = [line[:LONGEST_VALUE] for line in outputs["out"].splitlines() if OOM_KILL.search(line)]
    events = [line for line in lines if "Kill" in line or "out of memory" in line]
    return {"count": len(events) or len(lines), "lines": lines[-MOST_LINES:]}


def log_folder(root: str, named: str | None) -> dict[str, Any]:
    """Return size and state of libtpu's log folder, which is below the root like the lock file."""
    path = named or "/tmp/tpu_logs"  # noqa: S108  # libtpu's choice
    if not path.startswith("/"):  # relative to the program's working directory, or libtpu's word for none
        return {"path": path, "state": "relative", "bytes": 0, "files": 0, "isComplete": True}
    place = root + path
    above = os.path.dirname(place.rstrip("/")) or "/"
    if not os.path.exists(place):
        can_be_made = os.access(above, os.W_OK | os.X_OK)
        state = "absent" if can_be_made else "refused" if os.path.isdir(above) else "lacks-parent"
        return {"path": path, "state": state, "bytes": 0, "files": 0, "isComplete": True}
    state = "writable" if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK) else "refused"
    until, size, count = time.monotonic() + WALK, 0, 0
    for folder, _, files in os.walk(place):
        for name in files:
            try:
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
            count += 1
        if count > MOST_FILES or time.monotonic() > until:
            return {"path": path, "state": state, "bytes": size, "files": count, "isComplete": False}
    return {"path": path, "state": state, "bytes": size, "files": count, "isComplete": True}


# The names of `*.dist-info` folders are the installed packages [PEP 376, 427], their `Requires-Dist` lines the requirements.
PACKAGES = {
    *("jax", "jaxlib", "libtpu", "libtpu-nightly", "flax", "torch", "torch-xla"),
    *("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "keras"),
}
MOST_ENVIRONMENTS = 8
MOST_FOLDERS = 200
MOST_REQUIREMENTS = 12
LONGEST_METADATA = 1 << 18
FOLDER = re.compile(r"^(?P<name>[A-Za-z0-9._]+?)-(?P<version>[0-9][A-Za-z0-9.+!_]*)(?:-py[0-9.]+)?\.(?:dist|egg)-info$")
REQUIRES = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+)(?:\[[^\]]*\])? *(.*)$")
USUAL = ("venv", ".venv", "env", "miniconda3", "anaconda3", "miniforge3", "mambaforge")


def environments(root: str, home: str, named: list[str]) -> list[dict[str, Any]]:
    """Return the environments with such packages: the system's with the user's packages over it, then others, `named` first."""
    own = "python%d.%d" % sys.version_info[:2]
    found = []
    system: dict[str, Any] = {}
    for folder in system_folders(root, home, own):
        system.update(packages_of(folder))
    if system:
        found.append(environment("system", "/usr", own, system))
    for place in places(root, home, named):
        packages: dict[str, Any] = {}
        version = ""
        for folder, python in site_folders(place):
            packages.update(packages_of(folder))
            version = python
        if packages:
            kind = "conda" if os.path.isdir(os.path.join(place, "conda-meta")) else "venv"
            found.append(environment(kind, shown(place, root, home), version, packages))
        if len(found) >= MOST_ENVIRONMENTS:
            break
    return found


def environment(kind: str, path: str, python: str, packages: dict[str, Any]) -> dict[str, Any]:
    """Return one environment as JSON."""
    return {"kind": kind, "path": path, "python": python.replace("python", ""), "packages": packages}


def shown(place: str, root: str, home: str) -> str:
    """Return a path in a form that is the same on all workers: homes may differ."""
    if place == home or place.startswith(home + "/"):
        return "~" + place[len(home) :]
    return place[len(root) :] if root and place.startswith(root + "/") else place


def system_folders(root: str, home: str, own: str) -> Iterator[str]:
    """Yield the package folders of the system's Python, later ones override: Debian's, pip's, the user's."""
    yield root + "/usr/lib/python3/dist-packages"
    for name in ("dist-packages", "site-packages"):
        yield "%s/usr/local/lib/%s/%s" % (root, own, name)
    yield "%s/.local/lib/%s/site-packages" % (home, own)


def places(root: str, home: str, named: list[str]) -> Iterator[str]:
    """Yield folders that may be environments, each once: named ones, usual ones, and those in the home."""
    candidates = [root + "/opt/conda", *(os.path.join(home, name) for name in USUAL)]
    try:
        inside = sorted(name for name in os.listdir(home) if name not in USUAL)[:MOST_FOLDERS]
    except OSError:
        inside = []
    for name in inside:
        candidates += [os.path.join(home, name), os.path.join(home, name, ".venv"), os.path.join(home, name, "venv")]
    seen = set()
    for place in [*named, *candidates]:
        real = os.path.realpath(place)
        is_one = place in named or any(
            os.path.exists(os.path.join(place, mark)) for mark in ("pyvenv.cfg", "conda-meta")
        )
        if is_one and real not in seen:
            seen.add(real)
            yield place


def site_folders(place: str) -> Iterator[tuple[str, str]]:
    """Yield the package folders of an environment with their Python."""
    library = os.path.join(place, "lib")
    try:
        names = sorted(os.listdir(library))
    except OSError:
        return
    for name in names:
        if re.match(r"^python3\.\d+$", name):
            yield os.path.join(library, name, "site-packages"), name


def packages_of(folder: str) -> dict[str, Any]:
    """Return the packages in a folder by name: version and requirements among one another."""
    found = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    for entry in sorted(names):
        match = FOLDER.match(entry)
        name = plain(match.group("name")) if match else ""
        if match and name in PACKAGES:
            version = match.group("version").replace("_", "+")
            found[name] = {"version": version[:60], "requires": requirements(os.path.join(folder, entry, "METADATA"))}
    return found


def plain(name: str) -> str:
    """Return the normalized name of a package [PEP 503]."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(path: str) -> list[str]:
    """Return the requirements of a package on the others: `jaxlib<=0.4.35,>=0.4.34`, perhaps with `; extra == "tpu"`."""
    found = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LONGEST_METADATA)
    except OSError:
        return []
    for line in text.partition("\n\n")[0].splitlines():
        match = REQUIRES.match(line)
        if match and plain(match.group(1)) in PACKAGES:
            found.append(("%s %s" % (plain(match.group(1)), match.group(2)))[:200])
    return found[:MOST_REQUIREMENTS]

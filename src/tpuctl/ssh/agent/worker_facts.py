"""Runs on a worker: reports facts about its disks, memory, log folder, variables, Pythons, TPU and clock.

Nothing is changed and no framework is imported. All programs run in parallel, and one that hangs (a dead network file system, a
login shell) is abandoned after a timeout. Each fact is limited in size, and has its own error. Files are searched below
$TPUCTL_DEVICE_ROOT; those of the kernel in their usual place if that has none. It must run under Python 3.8.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from tpuctl.ssh.agent.guard_report import guard_report
from tpuctl.ssh.agent.holders import HOLDERS_MARK
from tpuctl.ssh.agent.job_files import job_folder, jobs_here, read
from tpuctl.ssh.agent.link import ClientLink
from tpuctl.ssh.agent.programs import as_root, collect_output, own_program, run_programs, start_programs
from tpuctl.ssh.agent.tpu_devices import LOG_FOLDER, device_root

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from tpuctl.ssh.agent.programs import Outputs

VARIABLES_MARK = "tpuctl-variables"
# The limits of a report of a program and of a value.
LONGEST_TEXT = 64000
LONGEST_VALUE = 300
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


def serve_worker_facts(link: ClientLink, request: dict[str, Any]) -> None:
    """Send all facts.

    `inspection` of the request is a script for sh.
    """
    began, patience = time.time(), request["seconds"]
    root = device_root()
    home = os.path.expanduser("~")
    folders = [root or "/", home, "/tmp"]  # noqa: S108  # where programs write
    outputs = run_programs(fact_programs(request, folders), patience)
    jobs, session = job_variables(request["worker"]), tpu_variables(os.environ)
    login = fact(lambda: login_variables(outputs, patience))
    every = [*jobs, login.get("ok", {}), session]
    variables = {"session": session, "jobs": jobs, "login": login.get("ok", {}), "login_unread": login.get("error")}
    log_dir = next((one["TPU_LOG_DIR"] for one in every if "TPU_LOG_DIR" in one), "")
    named_places = [one[name] for one in every for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if name in one]
    report: dict[str, Any] = {
        "began": began,
        "kernel": os.uname().release,
        "uptime": fact(lambda: float(first_text(root, "/proc/uptime").split()[0])),
        "memory": fact(lambda: memory(first_text(root, "/proc/meminfo"))),
        "disks": fact(lambda: disks(outputs)),
        "logs": fact(lambda: log_folder(root, log_dir)),
        "oom_kills": fact(lambda: oom_kills(outputs)),
        "tpu_use": fact(lambda: json.loads(marked_line(outputs, "python3", HOLDERS_MARK)[len(HOLDERS_MARK) :])),
        "inspection": fact(lambda: marked_line(outputs, "sh", "tpuctl-worker ")),
        "variables": {"ok": variables},
        "environments": fact(lambda: checked_environments(root, home, named_places, began + patience - time.time())),
        "is_synchronized": fact(lambda: is_synchronized(outputs)),
        "guard": fact(guard_report),
    }
    report["ended"] = time.time()
    link.send(b"x", json.dumps(report).encode())


class NoFactError(Exception):
    """Why a fact is unknown, as a message for the user."""


class AbsentError(Exception):
    """Why there is no such fact here, as a message for the user."""


def fact(read: Callable[[], Any]) -> dict[str, Any]:
    """Return a fact, or the error."""
    try:
        return {"ok": read()}
    except AbsentError as error:
        return {"absent": str(error)}
    except NoFactError as error:
        text = str(error)
    except OSError as error:
        text = "%s: %s" % (error.filename, error.strerror) if error.filename else str(error.strerror)
    except Exception as error:  # noqa: BLE001  # one failing fact must not affect the others
        text = "unexpected content (%s)" % type(error).__name__
    return {"error": text[:LONGEST_VALUE]}


def fact_programs(request: dict[str, Any], folders: list[str]) -> dict[str, list[str]]:
    """Return the programs whose output has the facts."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    return {
        "sh": ["sh", "-c", request["inspection"]],
        "python3": as_root(own_program("print_holders()")),
        "df": ["df", "-P", "-k", *folders],
        "df -i": ["df", "-P", "-i", *folders],
        "dmesg": as_root(["dmesg"]),
        "timedatectl": ["timedatectl", "show", "-p", "NTPSynchronized"],
        "login": [shell, "-lc", "printf '\\n%%s\\n' %s; exec env -0" % VARIABLES_MARK],
    }


def printed_by(outputs: Outputs, program: str) -> str:
    """Return the output of a program. Raises if it failed or timed out."""
    code, text = outputs[program]
    if code is None:
        raise NoFactError("`%s` did not end in time" % program)
    if code != 0:
        said = last_line(text) or "exit %d" % code
        raise NoFactError(said if said.startswith(program + ":") else "`%s` failed: %s" % (program, said))
    return text


def marked_line(outputs: Outputs, program: str, mark: str) -> str:
    """Return the last line of a program's output that begins with a mark."""
    lines = [line for line in outputs[program][1].splitlines() if line.startswith(mark)]
    if not lines:
        printed_by(outputs, program)
        raise NoFactError("`%s` printed no report" % program)
    return lines[-1][:LONGEST_TEXT]


def last_line(text: str) -> str:
    """Return the last non-empty line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST_VALUE] if lines else ""


def first_text(root: str, path: str) -> str:
    """Return the content of a file of the kernel, below the root if it exists there."""
    if root and os.path.exists(root + path):
        path = root + path
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 16)


def tpu_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that TPU programs read, and no others: the rest may contain secrets."""
    return {name: environ[name][:LONGEST_VALUE] for name in NAMES if environ.get(name)}


def parse_variables(text: str) -> dict[str, str]:
    """Return these variables of a text with an entry before each zero byte."""
    return tpu_variables({name: value for name, _, value in (entry.partition("=") for entry in text.split("\0"))})


def login_variables(outputs: Outputs, patience: float) -> dict[str, str]:
    """Return the variables of a login shell, which follow the output of its profile."""
    code, printed = outputs["login"]
    _, marked, text = printed.rpartition("\n%s\n" % VARIABLES_MARK)
    if marked:
        return parse_variables(text)
    if code is None:
        raise NoFactError("a login shell did not start within %g s: a command in its profile waits" % patience)
    raise NoFactError("a login shell runs no commands: %s" % (last_line(printed) or "exit %d" % code))


def job_variables(worker: int) -> list[dict[str, str]]:
    """Return the variables of running jobs of `tpuctl run`, the newest first; those that cannot be read are left out."""
    found = []
    for _, name in jobs_here(worker):
        job = job_folder("%s.%d" % (name, worker))
        try:
            if os.path.exists(job + "/exit"):
                continue
            with open("/proc/%d/environ" % int((read(job + "/pid") or b"").split()[0]), "rb") as file:
                # Those of a container have other names outside of it [container_run.CONTAINER_PREFIX].
                text = "\0" + file.read(1 << 20).decode("utf-8", "replace")
            found.append(parse_variables(text.replace("\0TPUCTL_CONTAINER_", "\0")))
        except (OSError, ValueError, IndexError):
            continue
        if len(found) == MOST_JOBS:
            break
    return found


def memory(text: str) -> dict[str, int]:
    """Return the memory in bytes: all of it, and what programs can still allocate."""
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"(?m)^(\w+): +(\d{1,15}) kB$", text)}
    return {"total": sizes["MemTotal"], "available": sizes["MemAvailable"]}


def disks(outputs: Outputs) -> list[dict[str, Any]]:
    """Return the file systems once each: free space in bytes, and the used percentages, as `df` rounds them."""
    space = df_rows(outputs["df"][1])
    if not space:
        # `df` fails if one of several folders is missing, but still prints the others.
        printed_by(outputs, "df")
        raise NoFactError("`df` printed no file system")
    inodes = df_rows(outputs["df -i"][1])
    return [
        {
            "mount": mount,
            "available": int(free) * 1024,
            "used": int(used),
            "inodes": int(inodes[mount][1]) if inodes.get(mount, "--")[1] != "-" else None,
        }
        for mount, (free, used) in space.items()
        if "-" not in (free, used)
    ]


def df_rows(text: str) -> dict[str, tuple[str, str]]:
    """Return free space and used percentage of each mount point; `-` if the file system has no such limit."""
    row = r"(?m)^\S.* (?:\d{1,15}|-) +(?:\d{1,15}|-) +(-?\d{1,15}|-) +(?:(\d{1,3})%|-) +(/.*)$"
    return {mount: (free, used or "-") for free, used, mount in re.findall(row, text)}


def oom_kills(outputs: Outputs) -> dict[str, Any]:
    """Return the number of processes killed for lack of memory, and the last such line of the kernel's log."""
    lines = [line for line in printed_by(outputs, "dmesg").splitlines() if OOM_KILL.search(line)]
    events = [line for line in lines if "Kill" in line or "out of memory" in line]
    return {"count": len(events) or len(lines), "last": lines[-1][:LONGEST_VALUE] if lines else ""}


def is_synchronized(outputs: Outputs) -> bool:
    """Return whether the clock is synchronized."""
    if outputs["timedatectl"][0] == 127:
        raise AbsentError("`timedatectl` is missing")
    found = re.search(r"(?m)^NTPSynchronized=(yes|no)$", printed_by(outputs, "timedatectl"))
    if found is None:
        raise NoFactError("`timedatectl` printed no state")
    return found.group(1) == "yes"


def log_folder(root: str, named: str) -> dict[str, Any]:
    """Return size and state of libtpu's log folder, which is below the root like the lock file."""
    path = named or LOG_FOLDER
    found: dict[str, Any] = {"path": path, "state": "relative", "size": 0, "files": 0, "is_complete": True}
    if not path.startswith("/"):  # relative to the program's working directory, or libtpu's word for none
        return found
    place = root + path
    above = os.path.dirname(place.rstrip("/")) or "/"
    if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
        found["state"] = "writable"
    elif os.path.exists(place) or not os.path.isdir(above):
        found["state"] = "refused" if os.path.exists(place) else "lacks-parent"
    else:
        found["state"] = "absent" if os.access(above, os.W_OK | os.X_OK) else "refused"
    until = time.monotonic() + WALK
    for folder, _, files in os.walk(place):
        for name in files:
            try:
                found["size"] += os.lstat(os.path.join(folder, name)).st_blocks * 512
                found["files"] += 1
            except OSError:
                continue
        if found["files"] > MOST_FILES or time.monotonic() > until:
            found["is_complete"] = False
            break
    return found


# The names of `*.dist-info` folders are the installed packages [PEP 376, 427].
PACKAGES = {
    *("jax", "jaxlib", "libtpu", "libtpu-nightly", "flax", "torch", "torch-xla", "ray"),
    *("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "keras"),
}
MOST_ENVIRONMENTS = 8
MOST_FOLDERS = 200
MOST_BROKEN = 20
# Even if other programs have used up the time.
LEAST_PIP_TIME = 1.0
FOLDER = re.compile(r"^(?P<name>[A-Za-z0-9._]+?)-(?P<version>[0-9][A-Za-z0-9.+!_]*)(?:-py[0-9.]+)?\.(?:dist|egg)-info$")
USUAL = ("venv", ".venv", "env", "miniconda3", "anaconda3", "miniforge3", "mambaforge")


def checked_environments(root: str, home: str, named: list[str], seconds: float) -> list[dict[str, Any]]:
    """Return the environments, each with the problems that its own `pip check` prints about these packages.

    No framework is imported by that.
    """
    found = environments(root, home, named)
    started: dict[str, Any] = {}
    for one in found:
        place, folders = one.pop("place"), one.pop("folders")
        # Below a root, the system's packages are not those of this Python.
        paths = {"PYTHONPATH": os.pathsep.join(folders)} if root and one["kind"] == "system" else {}
        python = os.path.join(place, "bin", "python") if place else sys.executable or "python3"
        started.update(start_programs({one["path"]: [python, "-m", "pip", "check"]}, **paths))
    outputs = collect_output(started, max(seconds, LEAST_PIP_TIME))
    for one in found:
        code, text = outputs[one["path"]]
        lines = [line.strip()[:LONGEST_VALUE] for line in text.splitlines()]
        one["broken"] = [line for line in lines if plain(line.partition(" ")[0]) in one["packages"]][:MOST_BROKEN]
        # It ends with 1 if it has found a problem, or if there is no pip.
        if code is None:
            one["unchecked"] = "`pip check` did not end in time"
        elif code not in (0, 1) or (code == 1 and "No module named pip" in text):
            one["unchecked"] = last_line(text) or "`pip check` failed"
    return found


def environments(root: str, home: str, named: list[str]) -> list[dict[str, Any]]:
    """Return the environments with such packages: the system's with the user's packages over it, then others, `named` first."""
    own = "%d.%d" % sys.version_info[:2]
    # Later ones override: Debian's, pip's, the user's.
    folders = [
        root + "/usr/lib/python3/dist-packages",
        "%s/usr/local/lib/python%s/dist-packages" % (root, own),
        "%s/usr/local/lib/python%s/site-packages" % (root, own),
        "%s/.local/lib/python%s/site-packages" % (home, own),
    ]
    system = {"kind": "system", "path": "/usr", "python": own, "packages": packages_of(folders)}
    system.update(place="", folders=folders)
    found = [system] if system["packages"] else []
    for place in places(root, home, named):
        pythons = [name for name in names_in(os.path.join(place, "lib")) if re.match(r"^python3\.\d+$", name)]
        inside = [os.path.join(place, "lib", python, "site-packages") for python in pythons]
        packages = packages_of(inside)
        if packages:
            kind = "conda" if os.path.isdir(os.path.join(place, "conda-meta")) else "venv"
            python = pythons[-1].replace("python", "")
            about = {"kind": kind, "path": shown(place, root, home), "python": python, "packages": packages}
            found.append({**about, "place": place, "folders": inside})
        if len(found) >= MOST_ENVIRONMENTS:
            break
    return found


def shown(place: str, root: str, home: str) -> str:
    """Return a path in a form that is the same on all workers: homes may differ."""
    if place == home or place.startswith(home + "/"):
        return "~" + place[len(home) :]
    return place[len(root) :] if root and place.startswith(root + "/") else place


def places(root: str, home: str, named: list[str]) -> Iterator[str]:
    """Yield folders that are environments, each once: named ones, usual ones, and those in the home."""
    candidates = [root + "/opt/conda", *(os.path.join(home, name) for name in USUAL)]
    for name in [name for name in names_in(home) if name not in USUAL][:MOST_FOLDERS]:
        candidates += [os.path.join(home, name, inside) for inside in ("", ".venv", "venv")]
    marks = ("pyvenv.cfg", "conda-meta")
    seen = set()
    for place in [*named, *candidates]:
        real = os.path.realpath(place)
        if real in seen:
            continue
        if place in named or any(os.path.exists(os.path.join(place, mark)) for mark in marks):
            seen.add(real)
            yield place.rstrip("/")


def packages_of(folders: list[str]) -> dict[str, str]:
    """Return the versions of the packages in these folders by name."""
    found: dict[str, str] = {}
    for folder in folders:
        for entry in names_in(folder):
            match = FOLDER.match(entry)
            name = plain(match.group("name")) if match else ""
            if match and name in PACKAGES:
                found[name] = match.group("version").replace("_", "+")[:60]
    return found


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def plain(name: str) -> str:
    """Return the normalized name of a package [PEP 503]."""
    return re.sub(r"[-_.]+", "-", name).lower()

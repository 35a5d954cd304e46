"""The guest of a sandbox worker: its home, its identity, and replacements for programs that would affect this machine.

There is no metadata server on a sandbox worker: `metadata.google.internal` belongs to the machine on which it runs. The
values of a TPU VM are files instead, below the folder of TPUCTL_METADATA_ROOT, with the server's own paths. The names of
the attributes and the form of their values are observed (marin's published log of a v5p-8, JAX's and torch_xla's source).
Startup scripts do not run: the worker's programs report their progress. After a reboot in the guest the worker does not
answer for `REBOOT_DURATION`, and its processes have ended.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

from tpuctl.accelerators import parse_accelerator_type
from tpuctl.durations import parse_timestamp
from tpuctl.files import make_private_folder
from tpuctl.platforms import find_processes_with_variable
from tpuctl.sandbox.catalog import number_of_project
from tpuctl.sandbox.lifecycle import state_since
from tpuctl.sandbox.sshd.daemon import WorkerFolders, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from tpuctl.sandbox.guests import GuestWorker

# Processes of a worker carry this variable with the worker's folder, so that a reboot finds them all.
GUEST_MARK = "TPUCTL_SANDBOX_WORKER"

_SESSION = """\
#!/bin/sh
# sshd starts this instead of the command of the client.
export HOME={home} {mark}={control} HOSTNAME={name}
export TPUCTL_DEVICE_ROOT={devices} TPUCTL_METADATA_ROOT={metadata}
export TPUCTL_STARTUP={startup} TPUCTL_STARTUP_RUNS_UNTIL=0
[ {runs_for} -eq 0 ] || TPUCTL_STARTUP_RUNS_UNTIL=$(($(date +%s) + {runs_for}))
{variables}
PATH={programs}:$PATH
export PATH
unset SSH_AUTH_INFO_0
cd "$HOME" || exit 255
if [ "${{SSH_ORIGINAL_COMMAND+set}}" = set ]; then
    command=$SSH_ORIGINAL_COMMAND
    unset SSH_ORIGINAL_COMMAND
    exec "$SHELL" -c "$command"
fi
exec "$SHELL" -l
"""

# /etc/profile of many systems resets PATH.
_PROFILE = """\
case ":$PATH:" in
    *:{programs}:*) ;;
    *) PATH={programs}:$PATH ;;
esac
"""

_HOSTNAME = """\
#!/bin/sh
case "$1" in
    -f|--fqdn|--long) echo {name}.{domain} ;;
    -i|-I|--ip-address|--all-ip-addresses) echo {address} ;;
    *) echo {name} ;;
esac
"""

# `sudo` on a sandbox worker grants no rights. Programs that would restart this machine are replaced even if they are
# called by their full path.
_SUDO = """\
#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        -u|-g|-h|-p|-C|-D|-R|-T|-U|--user|--group|--host|--prompt|--chdir) [ $# -gt 1 ] && shift; shift ;;
        --) shift; break ;;
        -*) shift ;;
        [A-Za-z_]*=*) export "$1"; shift ;;
        *) break ;;
    esac
done
[ $# -eq 0 ] && exit 0
case "${{1##*/}}" in
    reboot|shutdown|poweroff|halt|systemctl|journalctl|cloud-init|sudo)
        program={programs}/"${{1##*/}}"
        shift
        exec "$program" "$@" ;;
esac
exec "$@"
"""

_SHUTDOWN = """\
#!/bin/sh
for word in "$@"; do
    case "$word" in -r|--reboot) exec {programs}/reboot ;; esac
done
echo "a sandbox worker cannot be switched off from inside: stop its node" >&2
exit 1
"""

# The progress of the startup scripts: at the start of the session, and the time they still ran then.
_STARTUP = """\
startup=$TPUCTL_STARTUP
[ "$(date +%s)" -ge "${{TPUCTL_STARTUP_RUNS_UNTIL:-0}}" ] || startup=running
"""

# The output is that of cloud-init's documentation. A failure is one of the startup script, not of cloud-init.
_CLOUD_INIT = f"""\
#!/bin/sh
if [ "$1" != status ]; then
    echo "the cloud-init of a sandbox worker only knows \\`status\\`" >&2
    exit 2
fi
while :; do
    {_STARTUP}
    case " $* " in *" --wait "*|*" -w "*) [ "$startup" = running ] || break ;; *) break ;; esac
    sleep 1
done
[ "$startup" = running ] || startup=done
echo "status: $startup"
case " $* " in *" --long "*|*" -l "*) echo "extended_status: $startup" ;; esac
"""

# A failed startup script does not fail its unit (guest-agent's source): only the journal reports it.
_SYSTEMCTL = f"""\
#!/bin/sh
verb= unit=
for word in "$@"; do
    case "$word" in
        reboot) [ -n "$verb" ] || exec {{programs}}/reboot ;;
        google-startup-scripts|google-startup-scripts.service) unit=yes ;;
        -*) ;;
        *) verb=${{{{verb:-$word}}}} ;;
    esac
done
{_STARTUP}
[ "$startup" = running ] && state=activating || state=inactive
case "$verb/$unit" in
    show/yes) printf 'Result=success\\nLoadState=loaded\\nActiveState=%s\\n' "$state"; exit 0 ;;
    is-active/yes) echo "$state"; exit 3 ;;
    is-failed/yes) echo "$state"; exit 1 ;;
    show/) printf 'LoadState=not-found\\nActiveState=inactive\\n'; exit 0 ;;
esac
echo "a sandbox worker has no systemd but for google-startup-scripts.service" >&2
exit 1
"""

_JOURNALCTL = f"""\
#!/bin/sh
case "$*" in *google-startup-scripts*) ;; *) echo "a sandbox worker has no other journal" >&2; exit 1 ;; esac
{_STARTUP}
case "$startup" in
    done) echo "startup-script exit status 0" ;;
    failed) echo 'Script "startup-script" failed with error: exit status 1' ;;
    *) exit 0 ;;
esac
echo "Finished running startup scripts."
"""

# The tmux sessions of workers are separate from each other, and from those of the local user.
_TMUX = """\
#!/bin/sh
exec {tmux} -L {server} "$@"
"""

# Output of further programs that diagnosis runs: files in `.tpu/said` replace the output of this machine, for tests.
_DMESG = """\
#!/bin/sh
[ ! -f {devices}/said/dmesg ] || cat {devices}/said/dmesg
"""

_TIMEDATECTL = """\
#!/bin/sh
cat {devices}/said/timedatectl 2>/dev/null || echo NTPSynchronized=yes
"""

_DF = """\
#!/bin/sh
case " $* " in *" -i "*) output={devices}/said/df-inodes ;; *) output={devices}/said/df ;; esac
[ ! -f "$output" ] || exec cat "$output"
PATH=${{PATH#{programs}:}}
exec df "$@"
"""

_REBOOT = """\
#!/bin/sh
exec {python} -P -m tpuctl.sandbox.sshd --reboot {state_path} {address}
"""

_PROGRAMS = {
    "hostname": _HOSTNAME,
    "sudo": _SUDO,
    "shutdown": _SHUTDOWN,
    "poweroff": _SHUTDOWN,
    "halt": _SHUTDOWN,
    "cloud-init": _CLOUD_INIT,
    "systemctl": _SYSTEMCTL,
    "journalctl": _JOURNALCTL,
    "reboot": _REBOOT,
    "dmesg": _DMESG,
    "timedatectl": _TIMEDATECTL,
    "df": _DF,
}


def prepare_guest(
    folders: WorkerFolders,
    identity: GuestIdentity,
    startup: StartupProgress,
    *,
    state_path: Path,
    address: str,
    host_name: str,
    domain: str,
) -> Path:
    """Create or update a worker's folders, programs, devices and metadata; return the program that starts a session."""
    make_private_folder(folders.home)
    _keep_files(folders.metadata, identity.metadata)
    _keep_files(folders.devices / "dev", {device.partition("/")[2]: "" for device in identity.devices})
    make_private_folder(folders.temporary)
    make_private_folder(folders.programs)
    plain = {
        "home": str(folders.home),
        "control": str(folders.control),
        "programs": str(folders.programs),
        "name": host_name,
        "devices": str(folders.devices),
        "metadata": str(folders.metadata),
        "domain": domain,
        "address": address,
        "state_path": str(state_path.absolute()),
        "python": sys.executable,
        "mark": GUEST_MARK,
        "startup": startup.ends_as,
        "runs_for": str(startup.runs_for),
    }
    words = {key: shlex.quote(value) for key, value in plain.items()}
    words["variables"] = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in identity.environment.items())
    for name, text in _PROGRAMS.items():
        write_private_file(folders.programs / name, text.format(**words), mode=0o700)
    if tmux := shutil.which("tmux"):
        # The path of tmux's socket must be short, so it is not in the worker's folder.
        server = "tpuctl-" + hashlib.sha256(str(folders.control).encode()).hexdigest()[:16]
        text = _TMUX.format(tmux=shlex.quote(tmux), server=server)
        write_private_file(folders.programs / "tmux", text, mode=0o700)
    for name in (".profile", ".zprofile"):
        profile = folders.home / name
        if not profile.exists():
            write_private_file(profile, _PROFILE.format(**words))
    session = folders.control / "session"
    write_private_file(session, _SESSION.format(**words), mode=0o700)
    return session


def _keep_files(root: Path, wanted: Mapping[str, str]) -> None:
    """Write these files, by path, into a folder and remove all others."""
    make_private_folder(root)
    for path in root.rglob("*"):
        # A name that begins with a dot may be the temporary file of another session.
        if not path.name.startswith(".") and not path.is_dir() and str(path.relative_to(root)) not in wanted:
            path.unlink(missing_ok=True)
    for name, text in wanted.items():
        make_private_folder((root / name).parent)
        write_private_file(root / name, text)


# The topology of a worker's chips; the first and third observed, the second in test data of JAX users.
_CHIP_BOUNDS = {4: (2, 2, 1), 8: (2, 4, 1), 1: (1, 1, 1)}


@dataclass(frozen=True, slots=True)
class GuestIdentity:
    """The identity of a worker.

    `environment` are variables of a session. `metadata` are files by their path at the metadata server, below
    `computeMetadata/v1`. `devices` are paths of device files without the leading slash.
    """

    environment: Mapping[str, str]
    metadata: Mapping[str, str]
    devices: tuple[str, ...]


def identify_guest(worker: GuestWorker, host_name: str) -> GuestIdentity:
    """Return the identity of a worker."""
    node = worker.node
    accelerator_type = str(node.document["acceleratorType"])
    topology = str(node.document.get("acceleratorConfig", {}).get("topology", ""))
    project_number = number_of_project(node.project)
    accelerator = parse_accelerator_type(accelerator_type)
    chips = accelerator.chips_per_worker
    bounds = _CHIP_BOUNDS.get(chips, (chips, 1, 1))
    # The topology of the workers; a row if the slice's topology is not a multiple of the worker's.
    sides = [int(side) for side in (topology or accelerator.topology or "").split("x") if side.isdecimal()]
    sides += [1] * (3 - len(sides))
    hosts = tuple(max(side // bound, 1) for side, bound in zip(sides, bounds, strict=False))
    if hosts[0] * hosts[1] * hosts[2] != accelerator.workers:
        hosts = (1, 1, accelerator.workers)
    zone = f"projects/{project_number}/zones/{node.zone}"
    # Up to v4 `/dev/accel0` on, from v5e `/dev/vfio/0` on and `/dev/vfio/vfio` (observed).
    pattern = accelerator.generation.devices.lstrip("/")
    devices = tuple(
        pattern.replace("*", str(chip)) for chip in range(chips - (worker.phase.lacks_chip == worker.index))
    )
    if "vfio" in pattern:
        devices = (*devices, pattern.replace("*", "vfio"))
    tpu_env = {
        "ACCELERATOR_TYPE": accelerator_type,
        "CHIPS_PER_HOST_BOUNDS": _comma_separated(bounds),
        "HOST_BOUNDS": _comma_separated(hosts),
        "NODE_ID": node.node_id,
        "TOPOLOGY": topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _comma_separated(bounds),
        "TPU_PROCESS_BOUNDS": _comma_separated(hosts),
        "WORKER_ID": str(worker.index),
        "ZONE": node.zone,
    }
    return GuestIdentity(
        # libtpu uses these in place of the metadata server [JAX source; observed: marin]. A real TPU VM does not set them for a
        # session (observed: marin); here a program has no other source.
        {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_ID": str(worker.index),
            "TPU_WORKER_HOSTNAMES": ",".join(worker.addresses),
            "TPU_ACCELERATOR_TYPE": accelerator_type,
            "TPU_CHIPS_PER_HOST_BOUNDS": _comma_separated(bounds),
            "TPU_HOST_BOUNDS": _comma_separated(hosts),
        },
        {
            "instance/attributes/accelerator-type": accelerator_type,
            "instance/attributes/agent-worker-number": str(worker.index),
            "instance/attributes/worker-network-endpoints": ",".join(
                f"unknown:unknown:{ip}" for ip in worker.addresses
            ),
            "instance/attributes/tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items() if value),
            "instance/description": node.node_id,
            "instance/hostname": f"{host_name}.{node.zone}.c.{node.project}.internal",
            "instance/name": host_name,
            "instance/zone": zone,
            "project/project-id": node.project,
            "project/numeric-project-id": str(project_number),
        },
        devices,
    )


def _comma_separated(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


# The sandbox's own choice, in sandbox time.
STARTUP_LENGTH = timedelta(seconds=20)
_LONG_AGO = timedelta(days=365)
_FOR_EVER = 10 * _LONG_AGO


@dataclass(frozen=True, slots=True)
class StartupProgress:
    """The progress at the start of a session: `runs_for` more seconds of real time (0: finished), then `done` or `failed`."""

    runs_for: int
    ends_as: str


def startup_progress(worker: GuestWorker, rebooted: datetime | None, now: datetime, speed: float) -> StartupProgress:
    """Return the progress of a worker's startup. `rebooted` is when it last came up after a reboot from inside, if ever."""
    ends_as = "failed" if worker.phase.startup_fails else "done"
    delay = worker.phase.startup_delay
    length = STARTUP_LENGTH + timedelta(seconds=delay) if delay >= 0 else _FOR_EVER
    boots = (boot for boot in (state_since(worker.node.timeline, now), rebooted) if boot is not None)
    began = max(boots, default=now - _LONG_AGO)
    left = max(timedelta(), began + length - now)
    return StartupProgress(ceil(left.total_seconds() / speed), ends_as)


# Unverified: a plausible time for a VM to boot, in sandbox time.
REBOOT_DURATION = timedelta(seconds=40)


def note_reboot(folders: WorkerFolders, now: datetime) -> None:
    """Record that the worker reboots now, in sandbox time."""
    write_private_file(folders.last_reboot, now.isoformat())


def last_reboot(folders: WorkerFolders) -> datetime | None:
    """Return the sandbox time of the last reboot from inside. None if there was none."""
    try:
        return parse_timestamp(folders.last_reboot.read_text("utf-8"))
    except FileNotFoundError:
        return None


def is_rebooting(folders: WorkerFolders, now: datetime) -> bool:
    """Return whether the worker reboots at this sandbox time."""
    since = last_reboot(folders)
    return since is not None and since <= now < since + REBOOT_DURATION


def end_processes(folders: WorkerFolders) -> None:
    """Kill the worker's processes, the caller's own session last; empty its `/tmp`.

    Does not return when called on the worker.
    """
    for file in folders.temporary.glob("*"):
        if file.is_file():
            file.unlink(missing_ok=True)
    for process in find_processes_with_variable(GUEST_MARK, str(folders.control)):
        if process != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
    if os.environ.get(GUEST_MARK) == str(folders.control):
        os.killpg(os.getpgid(0), signal.SIGKILL)

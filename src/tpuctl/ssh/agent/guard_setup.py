"""Runs on worker 0: installs and starts the guard of its node (guard.py), replacing an earlier one, or reports about it.

As root with systemd the guard is the service `tpuctl-guard`, which also starts after a reboot; else it is a detached process,
which does not. guard_place.py says where it lives: a guard of root is that of the node, whichever login started it, and
keeps its limits until a request changes them. It must run under Python 3.8.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time

from tpuctl.ssh.agent.guard_place import SHARED_FOLDER_MODE, create_guard_folder, guard_folders
from tpuctl.ssh.agent.guard_report import guard_report, guard_settings
from tpuctl.ssh.agent.job_files import TERM, is_locked, read
from tpuctl.ssh.agent.link import ClientLink, make_folder
from tpuctl.ssh.agent.tpu_devices import device_root

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

METADATA_HOST = "metadata.google.internal"
METADATA_TIMEOUT = 5.0
UNIT = "tpuctl-guard.service"
UNIT_TEXT = """\
[Unit]
Description=Deletes this TPU node at the end of its time (tpuctl)
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=%s
Restart=always
RestartSec=60
# With 0 it ends on purpose: the node is gone, or this guard was removed.
RestartPreventExitStatus=0
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths=%s

[Install]
WantedBy=multi-user.target
"""
# Seconds for a command of systemd, for the end of an earlier guard, and for the first look of the new one.
SYSTEMCTL_TIMEOUT = 20.0
END_TIMEOUT = 5.0
FIRST_LOOK_TIMEOUT = 15.0


def serve_guard_setup(link: ClientLink, request: dict[str, Any]) -> None:
    """Start a guard if the request has one, remove it if it says so, and send a report.

    With `keepsIdle` the new guard has the idle limit of an earlier one of the same node.
    """
    mode = None
    # One of root that this user may not end.
    other = next((one for one in guard_folders() if guard_settings(one) and not os.access(one, os.W_OK)), None)
    if request.get("remove"):
        if other is not None:
            raise OSError(0, "only root can end the guard of this node", other)
        mode = "removed" if any(guard_settings(folder) for folder in guard_folders()) else None
        end_guards()
    if request.get("program"):
        check_metadata_server()
        settings = request["settings"]
        if request.get("keepsIdle"):
            settings.update(earlier_limits(settings["id"]))
        if other is not None:
            before = guard_settings(other)
            if any(before.get(name) != settings[name] for name in ("id", "idle", "onIdle")):
                raise OSError(0, "only root can change the guard of this node", other)
            mode = "service" if os.path.exists(unit_path()) else "process"
            link.send(b"x", json.dumps(guard_report(mode)).encode())
            return
        folder = create_guard_folder()
        end_guards()
        for name in ("status", "status.new"):
            if os.path.exists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
        mode_of_files = 0o644 if folder == guard_folders()[0] else 0o600
        write_whole(os.path.join(folder, "guard.py"), request["program"], mode_of_files)
        write_whole(os.path.join(folder, "settings"), json.dumps(settings), mode_of_files)
        mode = start_guard(folder)
        until = time.monotonic() + FIRST_LOOK_TIMEOUT
        while read(os.path.join(folder, "status")) is None and time.monotonic() < until:
            time.sleep(0.05)
    link.send(b"x", json.dumps(guard_report(mode)).encode())


def earlier_limits(node_id: str) -> dict[str, Any]:
    """Return the limit of idleness of the guard that this node has, empty without one."""
    for folder in guard_folders():
        before = guard_settings(folder)
        idle, action = before.get("idle"), before.get("onIdle")
        if before.get("id") == node_id and type(idle) is int and action in ("delete", "stop"):
            return {"idle": idle, "onIdle": action}
    return {}


def check_metadata_server() -> None:
    """Raise `OSError` unless this is a virtual machine of Google Cloud: elsewhere nothing is installed or started."""
    import http.client  # noqa: PLC0415  # 20 ms, not needed for a report

    host, slash, folder = (os.environ.get("GCE_METADATA_HOST") or METADATA_HOST).partition("/")
    # The service of a sandbox worker brings its own metadata server.
    if "TPUCTL_METADATA_ROOT" in os.environ:
        return
    connection = http.client.HTTPConnection(host, timeout=METADATA_TIMEOUT)
    try:
        path = slash + folder + "/computeMetadata/v1/instance/id"
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        flavor = connection.getresponse().getheader("Metadata-Flavor")
    except (OSError, http.client.HTTPException):
        flavor = None
    finally:
        connection.close()
    if flavor != "Google":
        raise OSError(0, "no metadata server answers there: it is no virtual machine of Google Cloud")


def start_guard(folder: str) -> str:
    """Start the guard as a service if possible, else as a detached process; return `service` or `process`."""
    words = [sys.executable or "/usr/bin/python3", "-IS", os.path.join(folder, "guard.py")]
    if folder == guard_folders()[0] and systemctl("daemon-reload"):
        # `%` has a meaning in unit files.
        text = UNIT_TEXT % (shlex.join(words).replace("%", "%%"), shlex.quote(folder).replace("%", "%%"))
        try:
            make_folder(os.path.dirname(unit_path()), SHARED_FOLDER_MODE)
            write_whole(unit_path(), text, 0o644)
        except OSError:
            text = ""
        if text and systemctl("daemon-reload") and systemctl("enable", UNIT) and systemctl("restart", UNIT):
            return "service"
        end_service()
    subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    return "process"


def end_guards() -> None:
    """End the guards of this node that this user may end, and forget what they were for."""
    end_service()
    for folder in guard_folders():
        try:
            if os.stat(folder).st_uid == os.geteuid():
                end_process(folder)
                os.unlink(os.path.join(folder, "settings"))
        except OSError:
            continue


def end_service() -> None:
    """End the service, and remove its unit."""
    if os.path.exists(unit_path()) and os.access(os.path.dirname(unit_path()), os.W_OK):
        systemctl("disable", UNIT)
        systemctl("stop", UNIT)
        os.unlink(unit_path())


def end_process(folder: str) -> None:
    """End a guard that runs as a detached process, with the process that supervises it."""
    lock = os.path.join(folder, "lock")
    if not is_locked(lock):
        return
    text = (read(lock) or b"").strip()
    try:
        if text.isdigit():
            os.killpg(int(text), TERM)
    except OSError:
        pass
    until = time.monotonic() + END_TIMEOUT
    while is_locked(lock) and time.monotonic() < until:
        time.sleep(0.02)


def unit_path() -> str:
    """Return the path of the unit file. It begins at $TPUCTL_DEVICE_ROOT."""
    return device_root() + "/etc/systemd/system/" + UNIT


def systemctl(*words: str) -> bool:
    """Return whether a command of systemd succeeded."""
    command = ["systemctl", "--no-ask-password", *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SYSTEMCTL_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def write_whole(path: str, text: str, mode: int) -> None:
    """Write a file atomically, with exactly this mode."""
    scratch = path + ".new"
    file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(text)
        os.fchmod(opened.fileno(), mode)
    os.rename(scratch, path)

"""Runs on worker 0: installs and starts the guard of its node (guard.py), replacing an earlier one, or reports about it.

With systemd and a sudo without password the guard is the service `tpuctl-guard`, which also starts after a reboot; else it is a
detached process, which does not. Its folder is `~/.tpuctl/guard`. It must run under Python 3.8.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time

from tpuctl.ssh.agent.guard_report import guard_report, guard_settings
from tpuctl.ssh.agent.job_files import TERM, is_locked, read
from tpuctl.ssh.agent.link import ClientLink

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

[Service]
User=%s
ExecStart=%s
Restart=on-failure
RestartSec=60

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
    folder = os.path.expanduser("~/.tpuctl/guard")
    mode = None
    if request.get("remove"):
        mode = "removed" if guard_settings(folder) else None
        end_guard(folder)
    if request.get("program"):
        check_metadata_server()
        settings, before = request["settings"], guard_settings(folder)
        if request.get("keepsIdle") and before.get("id") == settings["id"]:
            settings.update({name: before.get(name) for name in ("idle", "onIdle")})
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        end_guard(folder)
        for name in ("status", "status.new"):
            if os.path.exists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
        keep_private(os.path.join(folder, "guard.py"), request["program"])
        keep_private(os.path.join(folder, "settings"), json.dumps(settings))
        mode = start_guard(folder)
        until = time.monotonic() + FIRST_LOOK_TIMEOUT
        while read(os.path.join(folder, "status")) is None and time.monotonic() < until:
            time.sleep(0.05)
    link.send(b"x", json.dumps(guard_report(folder, mode)).encode())


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
    words = [sys.executable or "/usr/bin/python3", "-I", os.path.join(folder, "guard.py")]
    if systemctl("daemon-reload"):
        import pwd  # noqa: PLC0415  # only for a service

        user = pwd.getpwuid(os.geteuid()).pw_name
        path = unit_path()
        # `%` has a meaning in unit files.
        text = UNIT_TEXT % (user, shlex.join(words).replace("%", "%%"))
        script = 'mkdir -p "$(dirname "$1")" && umask 022 && cat >"$1"'
        if run_as_root(["sh", "-c", script, "sh", path], text):
            if systemctl("daemon-reload") and systemctl("enable", UNIT) and systemctl("restart", UNIT):
                return "service"
            systemctl("disable", UNIT)
            run_as_root(["rm", "-f", path])
    subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    return "process"


def end_guard(folder: str) -> None:
    """End an earlier guard, whichever way it was started, and forget what it was for."""
    if os.path.exists(unit_path()):
        systemctl("disable", UNIT)
        systemctl("stop", UNIT)
        run_as_root(["rm", "-f", unit_path()])
    lock = os.path.join(folder, "lock")
    if is_locked(lock):
        text = (read(lock) or b"").strip()
        try:
            if text.isdigit():
                os.kill(int(text), TERM)
        except OSError:
            pass
        until = time.monotonic() + END_TIMEOUT
        while is_locked(lock) and time.monotonic() < until:
            time.sleep(0.02)
    try:
        os.unlink(os.path.join(folder, "settings"))
    except OSError:
        pass


def unit_path() -> str:
    """Return the path of the unit file. It begins at $TPUCTL_DEVICE_ROOT."""
    return (os.environ.get("TPUCTL_DEVICE_ROOT") or "") + "/etc/systemd/system/" + UNIT


def systemctl(*words: str) -> bool:
    """Return whether a command of systemd succeeded as root."""
    return run_as_root(["systemctl", *words])


def run_as_root(words: list[str], text: str = "") -> bool:
    """Return whether a command succeeded as root."""
    if os.geteuid() != 0:
        words = ["sudo", "-n", *words]
    try:
        done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=SYSTEMCTL_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def keep_private(path: str, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    scratch = path + ".new"
    file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(text)
    os.rename(scratch, path)

"""What a session finds on a sandbox worker: its home, its name, and stand-ins for programs that would touch this machine."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from tpuctl.sandbox.sshd.folders import Folders, make_private_folder, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuctl.sandbox.sshd.identity import Identity

# Processes of a worker carry this variable with the worker's folder, so that a reboot finds them all.
MARK = "TPUCTL_SANDBOX_WORKER"

_SESSION = """\
#!/bin/sh
# Started by sshd in place of what the client asked for.
export HOME={home} {mark}={control} HOSTNAME={name}
export TPUCTL_DEVICE_ROOT={devices} TPUCTL_METADATA_ROOT={metadata}
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

# /etc/profile of many systems sets PATH anew.
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

# A sandbox worker gives nobody more rights than they have. Programs that would restart this machine are led to the
# stand-ins even when they are named with their folder.
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
    reboot|shutdown|poweroff|halt|systemctl|sudo) program={programs}/"${{1##*/}}"; shift; exec "$program" "$@" ;;
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

_SYSTEMCTL = """\
#!/bin/sh
for word in "$@"; do
    case "$word" in
        reboot) exec {programs}/reboot ;;
        -*) ;;
        *) break ;;
    esac
done
echo "a sandbox worker has no systemd" >&2
exit 1
"""

_REBOOT = """\
#!/bin/sh
exec {python} -P -m tpuctl.sandbox.sshd --reboot {world} {address}
"""

_PROGRAMS = {
    "hostname": _HOSTNAME,
    "sudo": _SUDO,
    "shutdown": _SHUTDOWN,
    "poweroff": _SHUTDOWN,
    "halt": _SHUTDOWN,
    "systemctl": _SYSTEMCTL,
    "reboot": _REBOOT,
}


def furnish(
    folders: Folders, identity: Identity, *, world_path: Path, address: str, host_name: str, domain: str
) -> Path:
    """Make a worker's folders, programs, devices and metadata as they shall be; return the program that starts a session."""
    make_private_folder(folders.home)
    _keep_files(folders.metadata, identity.metadata)
    _keep_files(folders.devices, dict.fromkeys(identity.devices, ""))
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
        "world": str(world_path.absolute()),
        "python": sys.executable,
        "mark": MARK,
    }
    words = {key: shlex.quote(value) for key, value in plain.items()}
    words["variables"] = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in identity.environment.items())
    for name, text in _PROGRAMS.items():
        write_private_file(folders.programs / name, text.format(**words), mode=0o700)
    for name in (".profile", ".zprofile"):
        profile = folders.home / name
        if not profile.exists():
            write_private_file(profile, _PROFILE.format(**words))
    session = folders.control / "session"
    write_private_file(session, _SESSION.format(**words), mode=0o700)
    return session


def _keep_files(root: Path, wanted: Mapping[str, str]) -> None:
    """Let a folder hold these files, by path, and no others."""
    make_private_folder(root)
    for path in root.rglob("*"):
        # Another session may be about to name its scratch file, which begins with a dot.
        if not path.name.startswith(".") and not path.is_dir() and str(path.relative_to(root)) not in wanted:
            path.unlink(missing_ok=True)
    for name, text in wanted.items():
        make_private_folder((root / name).parent)
        write_private_file(root / name, text)

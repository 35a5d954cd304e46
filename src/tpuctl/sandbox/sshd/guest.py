"""The guest of a sandbox worker: its home, its name, and replacements for programs that would affect this machine."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

from tpuctl.sandbox.sshd.folders import Folders, make_private_folder, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuctl.sandbox.sshd.identity import Identity
    from tpuctl.sandbox.sshd.startup import Startup

# Processes of a worker carry this variable with the worker's folder, so that a reboot finds them all.
MARK = "TPUCTL_SANDBOX_WORKER"

_SESSION = """\
#!/bin/sh
# Started by sshd in place of what the client asked for.
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


def furnish(
    folders: Folders,
    identity: Identity,
    startup: Startup,
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
        "mark": MARK,
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

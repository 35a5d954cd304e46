"""Inspect a worker: build the script that runs there, and parse its report. No IO.

The script is POSIX sh. It needs no Python, no framework and no root; it uses `sudo -n` if that works without a password.
Device paths begin at `$TPUCTL_DEVICE_ROOT`, which is empty on a real worker. Sources:

- cloud-init: `cloud-init status` (its documentation); the exit codes differ between versions, so the status word decides.
- startup script: `google-startup-scripts.service`, a oneshot unit: `activating` while the script runs (guest-agent's unit
  file; observed). A script that fails does not fail the unit: the runner logs it and ends with 0 (guest-agent's source).
  Unverified: that TPU VMs have both, as other images do, and that `Job` is set while the unit is queued.
- identity: attributes of the metadata server that JAX and Ray read [facts: multislice, ray], or the sandbox's files of it.
- chips: the more frequent of the two kinds of device files, because sources disagree for v6e.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.nodes.conditions import StartupState, WorkerIdentity
from tpuctl.ssh.agent.tpu_devices import ACCEL_FILES, VFIO_FILES
from tpuctl.ssh.connection import last_printed_line

if TYPE_CHECKING:
    from datetime import timedelta

INSPECTION_COMMAND = "exec sh -s"
# Works without DNS.
METADATA_ADDRESS = "169.254.169.254"
_HOLDERS_SHOWN = 8
# The exit code of coreutils' `timeout` for a command that timed out.
_TIMED_OUT = 124

_SCRIPT = r"""
printf '\ntpuctl-begin\n'
root=${TPUCTL_DEVICE_ROOT-}
[ -z "$root" ] || root=$(cd "$root" 2>/dev/null && pwd -P) || root=/nonexistent
sudo=
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true </dev/null >/dev/null 2>&1; then sudo='sudo -n'; fi

running= failed= ended=
note() { case $1 in running) running=$running,$2 ;; failed) failed=$failed,$2 ;; *) ended=yes ;; esac }

if command -v cloud-init >/dev/null 2>&1; then
    said=$(cloud-init status --long </dev/null 2>/dev/null)
    word=$(printf '%s\n' "$said" | sed -n 's/^extended_status: *//p' | tail -n 1)
    [ -n "$word" ] || word=$(printf '%s\n' "$said" | sed -n 's/^status: *//p' | tail -n 1)
    case $word in
        *running*|'not run'|'not started') note running cloud-init ;;
        *error*) note failed cloud-init ;;
        *done*|disabled) note done ;;
    esac
fi

unit=google-startup-scripts.service
if command -v systemctl >/dev/null 2>&1; then
    said=$(systemctl show "$unit" -p LoadState -p ActiveState -p Result -p Job </dev/null 2>/dev/null | tr '\n' ' ')
    case " $said" in
        *' ActiveState=activating '*|*' ActiveState=deactivating '*) note running startup-script ;;
        *' ActiveState=inactive '*' Job='[1-9]*|*' Job='[1-9]*' ActiveState=inactive '*) note running startup-script ;;
        *' ActiveState=failed '*) note failed startup-script ;;
        *' LoadState=loaded '*)
            # The journal may be root's alone; what cannot be read is not taken for a failure.
            lines=$($sudo journalctl -u "$unit" -b -o cat -n 20 --no-pager </dev/null 2>/dev/null)
            failure='^Script "[a-z-]*" failed with error|^startup-script[a-z-]* exit status [1-9]'
            if printf '%s\n' "$lines" | grep -Eq "$failure"; then note failed startup-script; else note done; fi ;;
    esac
fi
if [ -n "$running" ]; then startup=running
elif [ -n "$failed" ]; then startup=failed
elif [ -n "$ended" ]; then startup=done
else startup=unknown
fi
about=$running
[ "$startup" != failed ] || about=$failed
about=${about#,}

count() {
    number=0
    for file do
        case ${file##*/} in accel*[!0-9]*|[0-9]*[!0-9]*) continue ;; esac
        [ ! -e "$file" ] || number=$((number + 1))
    done
    echo "$number"
}
accel=$(count "$root"ACCEL_FILES)
vfio=$(count "$root"VFIO_FILES)
[ "$accel" -ge "$vfio" ] && chips=$accel || chips=$vfio

holders=
if [ -d /proc/self/fd ] && [ "$chips" -gt 0 ]; then
    plain=$(printf '%s' "$root" | sed 's/[][\\*?]/\\&/g')
    for pid in $(
        $sudo find /proc/[0-9]*/fd -maxdepth 1 \
            \( -lname "${plain}ACCEL_FILES" -o -lname "${plain}VFIO_FILES" \) -print </dev/null 2>/dev/null |
            sed -n 's|^/proc/\([0-9]*\)/.*|\1|p' | sort -nu | head -n HOLDERS_SHOWN
    ); do
        name=$(tr -c 'A-Za-z0-9._+-' '_' <"/proc/$pid/comm" 2>/dev/null)
        name=${name%_}
        holders=$holders,$pid:${name:-gone}
    done
fi
holders=${holders#,}

word() { tr -cd 'A-Za-z0-9._-' | cut -c 1-40; }
attribute() {
    if [ -n "${TPUCTL_METADATA_ROOT-}" ]; then cat "$TPUCTL_METADATA_ROOT/instance/attributes/$1" 2>/dev/null
    else curl -sf -m 2 -H 'Metadata-Flavor: Google' "http://ADDRESS/computeMetadata/v1/instance/attributes/$1" 2>/dev/null
    fi </dev/null
}
variable() { printf '%s\n' "$env" | sed -n "s/^$1: *//p" | head -n 1 | word; }
identity=-
# A folder of devices without one of metadata is not a machine of Google's.
if [ -n "${TPUCTL_METADATA_ROOT-}" ] || { [ -z "$root" ] && attribute '' >/dev/null; }; then
    env=$(attribute tpu-env)
    identity=$(attribute agent-worker-number | word)/$(attribute accelerator-type | word)
    identity=$identity/$(printf '%s' "$env" | word | cut -c 1)/$(variable WORKER_ID)/$(variable ACCELERATOR_TYPE)
fi
printf 'tpuctl-worker startup=%s about=%s chips=%s holders=%s identity=%s\n' \
    "$startup" "${about:--}" "$chips" "${holders:--}" "$identity"
"""

_PROBE = r"""
within=
if command -v timeout >/dev/null 2>&1; then within='timeout -k 2 SECONDS'; fi
{
    $within "${SHELL:-/bin/sh}" -c PROBE </dev/null 2>&1
    printf '\ntpuctl-probe exit=%s\n' "$?"
} | tail -c 2000
"""

_REPORT = re.compile(
    r"^tpuctl-worker startup=(?P<startup>unknown|running|done|failed) about=(?P<about>-|[a-z,-]{1,64})"
    r" chips=(?P<chips>[0-9]{1,5}) holders=(?P<holders>-|[0-9]{1,10}:[\w.+-]{1,64}(?:,[0-9]{1,10}:[\w.+-]{1,64}){0,7})"
    r"(?: identity=(?:-|(?P<identity>[\w.-]{0,40}(?:/[\w.-]{0,40}){4})))?\r?$",
    re.MULTILINE | re.ASCII,
)
_BEGIN = re.compile(r"^tpuctl-begin\r?$", re.MULTILINE)
_PROBE_END = re.compile(r"^tpuctl-probe exit=([0-9]{1,3})\r?$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class InspectionReport:
    """The report of a worker."""

    startup: StartupState
    chips: int
    holders: tuple[str, ...] = ()
    # Why the user's probe did not pass; None if it passed, or there is none.
    failed: str | None = None
    # The part of the startup that is still running, or failed.
    detail: str = ""
    # None: its metadata server did not answer.
    identity: WorkerIdentity | None = None


def inspection_script(probe: str | None, timeout: timedelta) -> str:
    """Return the input of `INSPECTION_COMMAND`. The probe is a shell line; the worker terminates it before the timeout.

    A probe that kept running would hold the TPU and block the next one.
    """
    inside = _SCRIPT.replace("HOLDERS_SHOWN", str(_HOLDERS_SHOWN))
    inside = inside.replace("ACCEL_FILES", ACCEL_FILES).replace("VFIO_FILES", VFIO_FILES)
    inside = inside.replace("ADDRESS", METADATA_ADDRESS)
    if probe is not None:
        inside += _PROBE.replace("SECONDS", str(_patience(timeout))).replace("PROBE", shlex.quote(probe), 1)
    # Nothing runs before the last line has arrived, so that a broken connection never runs a half of the script.
    return f"main() {{\n{inside}\n}}\nmain\n"


def inspection_has_begun(output: str) -> bool:
    """Return whether the script has started."""
    return _BEGIN.search(output) is not None


def parse_inspection(output: str, *, probe: str | None, timeout: timedelta) -> InspectionReport | None:
    """Parse the report of the script within other output; None if there is none.

    A probe without an exit code in the output has timed out.
    """
    match = _REPORT.search(output)
    if match is None:
        return None
    startup = StartupState(match["startup"])
    holders = () if match["holders"] == "-" else tuple(one.replace(":", " ", 1) for one in match["holders"].split(","))
    failed = None
    if probe is not None:
        rest = output[match.end() :]
        ends = list(_PROBE_END.finditer(rest))
        code = int(ends[-1][1]) if ends else _TIMED_OUT
        if code != 0:
            last_line = last_printed_line(rest)
            failed = f"timed out after {_patience(timeout)} s" if code == _TIMED_OUT else f"exit {code}"
            failed += f": {last_line}" if last_line else ""
    what = " and ".join("the startup script" if one == "startup-script" else one for one in match["about"].split(","))
    verb = "still run" if "," in match["about"] else "still runs"
    detail = {StartupState.RUNNING: f"{what} {verb}", StartupState.FAILED: f"{what} failed"}.get(startup, "")
    identity = None if match["identity"] is None else WorkerIdentity(*match["identity"].split("/"))
    if startup is StartupState.FAILED and match["about"] == "cloud-init":
        startup = StartupState.CLOUD_INIT_FAILED
    return InspectionReport(startup, int(match["chips"]), holders, failed, detail, identity)


def _patience(timeout: timedelta) -> int:
    """Return the timeout of a probe in seconds: shorter than the session, so that its exit code arrives."""
    return max(1, int(timeout.total_seconds()) - 2)

#!/bin/sh
# The story of the README, told on the sandbox: nothing is real, nothing is billed.
# The TPU comes up broken once, as real ones do, and is restarted.
set -eu

TPUCTL_SANDBOX=1
TPUCTL_STATE_DIR=$(mktemp -d)
export TPUCTL_SANDBOX TPUCTL_STATE_DIR
trap 'rm -rf "$TPUCTL_STATE_DIR"' EXIT

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
show() { printf '%s$ %s%s\n' "$bold" "$*" "$plain"; }
run() {
    show "tpuctl $*"
    tpuctl "$@"
    echo
}

tpuctl --quiet sandbox fault unhealthy --node demo
run up demo --type v4-8 --zone us-central2-b
run list
if command -v sshd > /dev/null || [ -x /usr/sbin/sshd ]; then
    show "tpuctl ssh demo -- 'echo hello from \$(hostname)'"
    tpuctl ssh demo -- 'echo hello from $(hostname)'
    echo
else
    echo "(a command over ssh is left out: the sandbox's workers need openssh-server)"
fi
run reset demo --yes
run down demo --yes

#!/bin/sh
# The story of the README in the sandbox: nothing is real, nothing is billed.
# The TPU is unhealthy when it comes up: a reboot does not help, a restart does.
set -eu

# Your settings, your journal and your gcloud configuration are neither read nor written.
for name in $(env | grep -oE '^(TPUCTL|CLOUDSDK|GOOGLE_CLOUD)_[A-Z_]+'); do unset "$name"; done
TPUCTL_SANDBOX=1
TPUCTL_STATE_DIR=$(mktemp -d)
XDG_CONFIG_HOME=$TPUCTL_STATE_DIR/config
CLOUDSDK_CONFIG=$TPUCTL_STATE_DIR/gcloud
export TPUCTL_SANDBOX TPUCTL_STATE_DIR XDG_CONFIG_HOME CLOUDSDK_CONFIG
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
    echo "(skipped a command over ssh: the sandbox's workers need openssh-server)"
fi
run reset demo --yes
run down demo --yes

#!/bin/sh
# The picture of docs/top.md, in the sandbox: a slice of four workers, of which one has a slow chip.
set -eu

for name in $(env | grep -oE '^(TPUCTL|CLOUDSDK|GOOGLE_CLOUD)_[A-Z_]+'); do unset "$name"; done
TPUCTL_SANDBOX=1
TPUCTL_STATE_DIR=$(mktemp -d)
XDG_CONFIG_HOME=$TPUCTL_STATE_DIR/config
CLOUDSDK_CONFIG=$TPUCTL_STATE_DIR/gcloud
export TPUCTL_SANDBOX TPUCTL_STATE_DIR XDG_CONFIG_HOME CLOUDSDK_CONFIG
trap 'tpuctl --quiet down trainer --yes > /dev/null; rm -rf "$TPUCTL_STATE_DIR"' EXIT

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
quietly() { tpuctl --quiet "$@" > /dev/null 2>&1; }

quietly up trainer --type v4-32 --zone us-central2-b
quietly sandbox fault straggler --node trainer --worker 2
echo 'import jax, time; jax.local_devices(); time.sleep(600)' > "$TPUCTL_STATE_DIR/train.py"
quietly scp "$TPUCTL_STATE_DIR/train.py" trainer:
quietly run trainer --detach --name train -- python3 train.py
sleep 5
printf '%s$ tpuctl top trainer%s\n' "$bold" "$plain"
tpuctl top trainer --once --columns worker,program,hbm,duty,memory,cpu
printf '\n%s$ tpuctl stacks trainer --device%s\n' "$bold" "$plain"
tpuctl stacks trainer --device | head -1

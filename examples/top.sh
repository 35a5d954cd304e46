#!/bin/sh
# The picture of docs/top.md, in the sandbox: a slice of four workers, of which one has a slow chip.
set -eu

. "$(dirname "$0")/own-sandbox.sh"
trap 'tpuctl --quiet down trainer --yes > /dev/null; rm -rf "$TPUCTL_STATE_DIR"' EXIT
quietly() { tpuctl --quiet "$@" > /dev/null 2>&1; }

quietly up trainer --type v4-32 --zone us-central2-b
quietly sandbox fault straggler --node trainer --worker 2
echo 'import jax, time; jax.local_devices(); time.sleep(600)' > "$TPUCTL_STATE_DIR/train.py"
quietly scp "$TPUCTL_STATE_DIR/train.py" trainer:
quietly run trainer --detach --name train -- python3 train.py
sleep 5
show tpuctl top trainer
tpuctl top trainer --once --columns worker,program,hbm,duty,memory,cpu
echo
show tpuctl stacks trainer --device
tpuctl stacks trainer --device | head -1

#!/bin/bash
set -euo pipefail
out=$(gcloud compute tpus tpu-vm ssh "$TPU" --command true 2>&1 || true)
if grep -q "so it cannot be used anymore" <<<"$out"; then
  echo "gone"
elif grep -q "is not supported while in state PREEMPTED" <<<"$out"; then
  echo "gone"
elif grep -q "ssh: connect to host 10.0.0.1 port 22: Connection timed out" <<<"$out"; then
  echo "unreachable"
fi

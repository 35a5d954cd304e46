#!/bin/sh
# The story of the README in the sandbox: nothing is real, nothing is billed.
# The TPU is unhealthy when it comes up: a reboot does not help, a restart does.
set -eu

. "$(dirname "$0")/own-sandbox.sh"
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

# Read by the scripts beside it: a sandbox of their own, in a folder that is removed at their end.
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

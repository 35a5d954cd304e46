"""The only ssh: connections, routes, keys, host keys, and what workers answer. Makes no API calls.

May import `models`, the base, and `explain.messages`, which classifies what ssh prints. Start reading at `connection`
(`Connection`, `Target`, argv, one command with a timeout), then `channel` (a program on a worker), `transfer` (files to and
from that program), `routes` and `keys`. `agent` has the programs that run on workers (Python 3.8, the standard library); they
come through ssh's stdin and are compiled there.

**The route to a worker.** `routes` decides (pure): the external address; the internal one if the metadata server says that this
machine is in the node's network; a tunnel (gcloud as ProxyCommand) or the internal address if the user asks for it. The sandbox
gives a ProxyCommand instead.

**Shared connections.** `control_master` gives `run`, `sync` and the commands about jobs ssh's own `ControlMaster=auto` with a
socket in a private folder, for the setting `ssh_keep` (five minutes). A second try never uses a shared connection, which may be
what broke; neither do the probes of `up` and `wait`, which must know whether workers answer now. `stop`, `reset` and `down` end
the shared connections to their nodes. In the embedded sandbox none is shared unless `ssh_keep` is set.

**Host keys.** tpuctl has its own known_hosts file, with the keys that the API publishes. An alias is `tpu.ID-WORKER`, so a
recreated node has a new alias and its new key is no conflict.

**The guard.** `tpu_guard` starts `agent/guard` on worker 0 of a node with a time limit, by `agent/guard_setup`; it is the only
program that outlives the client and is no job. It makes its own requests to the TPU API, as the worker's service account.

**Failures.** `ssh_errors` turns what ssh printed into one error for each cause; use it only for an ssh that ended before the
remote command started. Answers are parsed by `answers` and never trusted.
"""

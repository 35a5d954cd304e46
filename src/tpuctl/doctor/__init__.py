"""`tpuctl doctor`: find problems with this machine, the credentials, the network, the project, a node and its workers.

Start reading at `doctor_run`. As in `check`, facts and rules are apart:

- `doctor_facts` declares the facts. Each is `Known`, `Absent` or `Unknown` with the reason, and none is a secret.
- `environment_probe` reads them from this machine (with `local_probes`) and from the cloud, `node_probes` from the
  workers of a node. What the API knows of a node is read and judged by `check`, as for any existing node.
- `local_rules`, `cloud_rules`, `node_rules`, `worker_rules` and `framework_rules` judge facts, and yield problems only;
  `verdicts` makes them findings of `check`. Rules are pure: they read no file, make no request and know no clock.
  `rule_catalogue` collects them; their docstrings are the text of the reference, and an id never changes its meaning.

What a reader must know:

- All slow probes of this machine start at once, one thread each, under one deadline. A late result is `Unknown`; its thread is
  not waited for. A fact that cannot be read is reported by one rule; the others skip it.
- Nothing stops a run: with invalid settings, without a network or an account, the remaining facts are still gathered. But no
  cloud is called unless the settings say which one: a damaged sandbox is never replaced by the real cloud.
- Each worker runs one program (`ssh/agent/worker_facts.py`) over one ssh session, in parallel with the others. Each step there
  has a timeout. Equal verdicts about several workers become one finding.
- Only `--fix` changes anything: `check.fixes` applies the fix of a remedy, after confirmation. Without it no ssh key is created
  and no node is changed; only the host keys of workers are saved on this machine.

This room imports `check` (facts, rules, findings, fixes), `nodes` (to find the node, and its conditions), the status of
the sandbox, and the engines. `support` packs its findings into a bundle.
"""

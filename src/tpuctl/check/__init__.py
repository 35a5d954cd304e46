"""Whether a TPU, its buckets, project and network belong together, checked before money is spent.

`tpuctl check`, and `up`, `create` and `run --up` before a creation: settings → facts → findings → text.

- `facts.py`: `WantedNode`, the node and what it works with, and `CheckFacts`. Every fact is `Known`, `Absent` (the API
  itself said so) or `Unknown` (why, which permission, whether it may pass): a 403 is not an absence, a timeout is not an ok.
- `gathering.py`: the queries. Each is sent once, by one of up to 32 threads, all with one deadline; a late answer is
  `Unknown` and is not waited for. The queries that depend on no answer come first. `Sources` are the API clients.
- `rules/`: a function per rule, from facts to problems (`RuleResult`); silence means that none was found. A fact that could
  not be read is reported by one rule, named in the docstring of its module; the other rules are silent. Rules compute with
  `colocation.py`, `iam.py` and `quotas.py`.
- `findings.py`: findings, remedies, the report, `evaluate_rules`. `report_rendering.py` shows them: page, lines, JSON.
  `doctor` uses all of it.
- `gate.py`: the check right before a creation. An error stops it. A result without errors is kept for ten minutes, under
  a hash of all that rules read and of the caller. A creation clears the other results: the new node uses quota too.
- `fixes.py`: `--fix`, of `check` and of `doctor`. `zone_ranking.py`: `check` without a zone. `ai_platform.py`: old jobs.

Start with `rules/bucket_rules.py` for a rule, `gathering.py` for the queries, and `gate.py` for what connects them.

May import `cloud`, `ssh`, `output`, `config`, `models` and the base; `app` and `nodes` only for its commands. Rules and what
they compute with are pure. `nodes` uses the gate, `doctor` the facts, queries and findings. An id is never reused.
"""

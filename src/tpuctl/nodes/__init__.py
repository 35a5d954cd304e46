"""The life of a node: create it, wait until it is usable, repair it, watch it, delete it, and show it.

Start with `controller.py`, the loop: **fetch, decide, act, report, sleep**. `up`, `wait` and `watch`, and the ends of `create`,
`reset`, `start`, `stop` and `down`, all go through it. A restart is not a routine of several calls but one decision after
another, and a run keeps no state that the next run would miss: the next run continues one that was killed.

- fetch: `tracker.py`. One list call for each zone serves all nodes that are due; a node that is missing in a list is fetched by
  name before it counts as absent. A failed call is an API outage and never evidence about a node. Workers are probed
  (`ssh_workers.py`, `inspection.py`) only if their answers can change the decision.
- decide: `decide.py`, with `repair.py`, `polling.py` and the values in `conditions.py`. Pure: policy, observed state and time
  go in, one frozen decision comes out. `plan.py` asks the same rules for `--dry-run`.
- act: each change is announced in the lease (`lease.py`), written to the journal and reported, and the lease is checked right
  before the request (`actuator.announced_change`). A deletion is not sent unless the journal has the spec (`JournalError`).
- report: events go to `output.progress` and to hooks (`hooks.py`); a change of state is written to the journal first.
- `request_steps.py` (pure) decides how one queued resource is deleted, awaited and retried; `request_actions.py` does that;
  `queue_rendering.py` shows queued resources.
- `queueing.py` (pure) has the rules for the queued resource of a node, as a stage of its life; `zone_order.py` (pure) those for
  several zones and tiers, and `zone_search.py` tries them.
- `race_rules.py` (pure) has the rules of several requests for one node, of which one is kept; `race.py` runs them.
- `expiry.py` and `idleness.py` (pure) say when the time of a node ends; `node_guard.py` starts the guard on worker 0, which
  ends it without tpuctl; `costs.py` (pure) adds up what nodes cost.
- `garbage.py` (pure) decides what `gc` deletes, `garbage_removal.py` deletes it, `idle_workers.py` asks workers for their use.
- `actions.py` and `tear_down.py` have what single commands request; `locate.py` finds a node by name; `journal.py` and
  `journal_entries.py` are the memory between runs; `rendering.py` shows nodes; `key_authorization.py` makes
  workers accept our ssh key.

Deadlines: all calls of the loop end with the deadline of the wait and 5 s for one last snapshot
(`NodeReconciler.within_deadline`), by the clock of the cloud. Leases are released within 5 s of real time.

What commands and `tpuctl.client` share works with the `App`, without click: `bring_up.py`, `waiting.py`, `deletion.py`, and
below them `policies.py`, `zone_choice.py`, `time_limits.py`, `node_lookup.py` and `busy_nodes.py`.

The room may import `check` (its gate), `ssh`, `output`, `config`, `models` and the base; these modules and `commands/` also
`app`, and `commands/` click. The
pure modules import no cloud, ssh, output or clock. `actuator.ActionContext` has the services that actions use.
"""

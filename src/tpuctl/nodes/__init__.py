"""The life of a node: create it, wait until it is usable, repair it, watch it, delete it, and show it.

Start with `controller.py`, the loop: **fetch, decide, act, report, sleep**. `up`, `wait` and `watch`, and the ends of `create`,
`reset`, `start`, `stop` and `down`, all go through it. A restart is not a routine of several calls but one decision after
another, and a run keeps no state that the next run would miss: the next run continues one that was killed.

- fetch: `snapshots.py`; `reconciler.py` holds what was observed of one node. One list call for each zone serves all nodes that
  are due; a node that is missing in a list is fetched by name before it counts as absent. A failed call is an API outage and
  never evidence about a node. Workers are probed (`ssh_workers.py`, `inspection.py`) only if their answers can change the
  decision.
- decide: `decide.py`, with `repair.py`, `polling.py`, for `watch` also `endings.py`, and the values in `conditions.py`. Pure:
  policy, observed state and time go in, one frozen decision comes out. `plan.py` asks the same rules for `--dry-run`.
- act: each change is announced in the lease (`lease.py`, held by `lease_guard.py`), written to the journal and reported, and
  the lease is checked right before the request (`actuator.Actuator`). A deletion is not sent unless the journal has the spec
  (`JournalError`). `pending.py` follows a change until the node shows it, `setup.py` runs the set-up of a node.
- report: events go to `output.progress` and to hooks (`hooks.py`); a change of state is written to the journal first.
- `deletion.py` deletes: each group of a node and its queued resources (`resource_group.py`, pure) is looked at, announced,
  looked at again and sent, in parallel. `tear_down.py` uses it for `down` and the ends of time and idleness,
  `garbage_removal.py` for `gc`. `group_lookup.py` finds the group of a name.
- `request_steps.py` (pure) decides how one queued resource is deleted and awaited; `request_actions.py` makes and awaits it,
  and `queue_rendering.py` shows it.
- `poll.py` is the loop around one step that waits for something in the cloud.
- `queueing.py` (pure) has the rules for the queued resource of a node, as a stage of its life; `zone_order.py` (pure) those for
  several zones and tiers, and `zone_search.py` tries them.
- `race_rules.py` (pure) has the rules of several requests for one node, of which one is kept; `race.py` runs them.
- `expiry.py` and `idle_limit.py` (pure) say when a node ends, `usage.py` what uses it and for how long it is idle;
  `node_guard.py` starts the guard on worker 0, which ends it without tpuctl; `costs.py` (pure) adds up what nodes cost.
- `garbage.py` (pure) decides what `gc` deletes.
- `actions.py` has what single commands request; `lookup.py` finds what a name or a selection means, and
  `as_it_was.py` what a node was before; `journal.py` is the memory between runs, `past.py` (pure) the one fold of its
  entries; `rendering.py` shows nodes; `key_authorization.py` makes workers accept our ssh key.

Deadlines: all calls of the loop end with the deadline of the wait and 5 s for one last snapshot
(`NodeReconciler.within_deadline`), by the clock of the cloud. Leases are released within 5 s of real time.

What commands and `tpuctl.client` share works with the `App`, without click: `bring_up.py`, `waiting.py`, `named_deletion.py`,
and below them `policies.py`, `zone_choice.py`, `time_limits.py`, `as_it_was.py`, `lookup.py` and `usage.py`. Every command that
changes existing nodes fills the frame of `commands/change_frame.py`: select, refuse, dry run, table, question, last look, act.

The room may import `check` (its gate), `ssh`, `output`, `config`, `models` and the base; these modules and `commands/` also
`app`, and `commands/` click. The
pure modules import no cloud, ssh, output or clock. `actuator.ActionContext` has the services that actions use.
"""

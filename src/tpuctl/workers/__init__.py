"""Commands on workers: run them, follow their jobs, copy and sync files, open sessions.

May import `nodes`, `check` (its options), `app`, `ssh`, `output`, `explain` (diagnoses), `config`, `models` and the base; only
`commands` knows click. Start reading at `commands/run.py`, then `targets` (nodes to workers and connections), `execution` (a
run from request to result), `runner` (the loop over all workers) and `worker_session` (one worker).

`tpuctl run trainer -- ./train.sh`, on eight workers: `targets` finds the node, authorizes the key, learns the host keys that
the API vouches for, and gives a `Target` for each worker; before all routes are known, no node is changed. `RemoteRunner` is
one loop over one selector, without threads, and a `WorkerSession` for each worker: its channel, and how much of its output has
arrived. `ssh/channel.py` sends the program (`ssh/agent/job.py`) through ssh's stdin. Then frames go both ways, signals
included: killing ssh ends nothing on a worker. `attach` and `logs -f` are the same loop, which may start nothing; the other
commands about jobs ask one question over a channel (`worker_jobs`).

**At most once.** ssh cannot tell a command that was never started from one whose connection broke. So ssh does not run the
command: it only carries frames, and a rename on the worker decides.

- hello: a folder with the run's random token is prepared under another name; the worker says `new`. If the connection breaks
  here, nothing has run: connect again. The later connection removes what the earlier one prepared.
- go: sent once **all** workers are ready. The folder is renamed to `~/.tpuctl/jobs/NAME.WORKER`; only then the supervisor
  forks. After a break, connect with the same token: if the folder exists (`known`), join it; if not, start it.
- output: goes to files, and from there to each follower, from the offsets that it names.
- exit: the supervisor records how the command ended, by a rename; a later connection can read it.
- bye: the folder is removed unless the job is detached. If this is lost, a later command removes it after a day.

The supervisor has a session of its own and holds a lock while it lives: a job without an end and without that lock is *lost*,
and is never started a second time. Each follower holds a shared lock on `attached`: if none does for five minutes, the
supervisor terminates a job that is not detached.

**A worker is not trusted.** What it sends is parsed against a schema, in the order of the protocol (`worker_session`,
`copying`, `ssh/answers.py`); what does not fit ends that worker, which is not asked a second time. An `exit` counts only
after `started` on the same connection. `tests/hostile` plays such workers, `tests/chaos` breaks connections at random.
"""

"""Commands on workers: run them, follow their jobs, copy and sync files, open sessions.

Start reading at `commands`, then `execution` (a run from request to result), `runner` (the loop that serves all workers) and
`worker_session` (one worker). Each command runs at most once on each worker: one ssh for each, one loop for all.
"""

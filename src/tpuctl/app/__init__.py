"""What every command works with: the `App`, the options that commands share, and trust in project files.

Imports `cloud`, `ssh`, `output`, `config`, `models` and the base. Of rooms it imports what the services of a run open for
`nodes` (journal, leases, ssh access), and the sandbox. It is imported by `cli`, by `*/commands/` and
`command.py`, and by the modules that build what several commands share.

Start with `app.py`: an `App` is one run of the program, with settings, terminal, clock and project. Its `services` are what
the run talks to: client, journal, leases, workers. Each is made when it is first used, so that `--help` opens nothing and
reads no file. `Services.http_access` is the only place that chooses between Google, another endpoint and the sandbox;
everything above it is the same code for all three.

- `config_files.py`: the files that settings come from. `services.py` opens its services with the modules beside it, each of
  which is imported when it is needed: `connections.py`, `credentials.py`, `identity.py`, `worker_access.py`,
  `action_context.py`, `local_sandbox.py`, `served_sandbox.py`. `progress.py`, `summary.py`: the progress of
  long work, and the summary of a step in GitHub Actions. `lazy_import.py`: names that are imported when they are used.
- `options.py`: `@cli_command` passes a command its `App`, adds the shared options, and asks for trust first; `LazyGroup`
  imports a command's module when it is called.
- `option_help.py`: the groups of options, and how `--help` shows them. `value_completion.py`: completion of values in a shell.
- `spec_options.py`: the options that describe a node; `spec_building.py`: the `NodeSpec` made of what the user gave and the
  settings. `route_options.py`: the options of the route to workers; `ssh_options.py`:
  the route to workers.
- `hints.py`: a command in a hint gets the options of this run that it needs (project, endpoint, zone, …).
- `trust_question.py`: a `tpuctl.yaml` may come with a cloned repository. Its keys that send data, run programs, open access or
  cost money apply only after the user has seen them. `trust.py`: `tpuctl trust`.
- `state_paths.py`: the folders and files of the state on this machine.
- `signals.py`: SIGTERM and SIGHUP raise `TerminatedError`. `App.in_flight` notes the work that continues in the cloud, so
  that the report of an interruption names it, and the commands that resume or undo it.
"""

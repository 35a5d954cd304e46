"""The process: entry point, signals, exit codes, the command tree, and the commands that belong to no room.

Imports `app` and what is below it. It names the commands of the rooms as text (`tree.py`), so that a module is imported
only when its command is called: `tpuctl --help` takes 40 ms.

Start with `main.py`: it sets the signal handlers first, and ends the process without the teardown of modules. `program.py`
runs one command and turns each exception into a message and an exit code; a bug keeps its traceback.

The commands here are `config`, `sandbox`, `completion`, `version`, `help` and `options`; the topics of `help` are texts in
`data/help`. `tests/cli/test_imports.py` lists what `--help`, `list`, `version` and completion must not import.
"""

"""Output of results, events and errors: for people, for pipes and for programs.

Imports `models` and the base; no cloud, no ssh, no click. Rooms render their own results; what every room needs is here.

Start with `terminal.py`: all data goes to stdout and all else to stderr through one `Terminal`. There each text passes
`escaping.py`, and each JSON value the masking of metadata: a newline in a value adds no line, and a secret of the metadata
is not shown. Therefore lines of our own are given one by one (`note(*lines)`, `TpuctlError(message, details=…)`). Only the
output of remote commands and the bytes of a bundle are raw; `tests/output/test_hostile_text.py` holds all other modules to
this.

Events of long work go to a `Progress` (`progress.py`). It shows them on a terminal in a live display (`live.py`, with `rich`):
permanent lines, and below them an area with the nodes that are not ready yet. Elsewhere it writes one line for each change,
without repetition. With `--events` it also writes one JSON object for each event, to stdout or to a file, which may be a pipe
without a reader.

In GitHub Actions `github.py` keeps text of others from becoming a workflow command, on both streams; only
`Terminal` sends commands (groups, annotations). `step_summary.py` writes what a command did to the page of the run.
"""

"""Create Google Cloud TPUs, keep them usable, and run programs on them.

Each package below is a room with one feature, or an engine that rooms share; its docstring says where to start reading, and
ARCHITECTURE.md has the map. The modules of this package are the base: every room may import them, and they import only one
another. `errors` has the exceptions and exit codes, `clock` all access to time, `shapes`, `files` and `escaping` the checks for
JSON, files and text from outside, `names`, `accelerators` and `durations` what users write, `platforms` Linux
and macOS.
"""

__version__ = "0.1.0"

"""The command line: one file per command, which parses, does and shows."""

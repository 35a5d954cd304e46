"""Random runs, judged by an oracle that knows only the record of the sandbox and the rules of the design."""

"""Output of results, events and errors: for people, pipes and programs. Imports no cloud and no ssh; start with `terminal`."""

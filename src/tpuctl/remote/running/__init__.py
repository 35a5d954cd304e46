"""Commands on many workers at once, each at most once: one ssh for each worker, and one loop that serves them all."""

"""Rules about the workers of a node."""

"""Rules about a node, as the API and the journal report it."""

"""Is everything in one place, and will it work? Pure decisions: facts in, findings out. Nothing is asked from here."""

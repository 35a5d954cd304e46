"""Frozen values for the resources of the API, parsed from its JSON. They make no decision and no call."""

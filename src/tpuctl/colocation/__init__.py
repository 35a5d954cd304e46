"""Where a bucket is in relation to a TPU, and what reading it costs. Pure.

`table` holds the facts (`data/locations.yaml`), `places` the distance between bucket and TPU, `prices` the cost of
reading.
"""

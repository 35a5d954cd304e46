"""Frozen values for the resources of the API: nodes, specs, operations, queued resources, buckets, projects, networks, events.

Start reading at `node` and `spec`. Models make no decision and no call, and import only the base modules.

What a reader must know:

- `decoding.py` reads the API's JSON by the annotations of a model, whose types are in `api_values`; a mismatch raises
  `ShapeError` with the path of the value. A test compares the fields of each model with Google's discovery document.
- Unknown fields are accepted, and so are unknown values of an enum (`ApiEnum`): the service may be newer than tpuctl.
- Some values keep the complete JSON as `raw`. Metadata may contain secrets: it is printed masked, unless the user passes
  `--show-metadata`.
- A `NodeSpec` is compared with a node only in the fields that the user set (`named`).
"""

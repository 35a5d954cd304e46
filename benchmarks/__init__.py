"""How quick tpuctl is beside gcloud: `python -m benchmarks [NAME...]`. It asserts nothing; docs/contributing/benchmarks.md has figures."""

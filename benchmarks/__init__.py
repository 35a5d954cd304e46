"""How quick tpuctl is beside gcloud: `python -m benchmarks [NAME...]`. Nothing is asserted. Figures: docs/benchmarks.md."""

"""How quick tpuctl is beside gcloud: `python -m benchmarks [NAME...]`, which asserts nothing. Figures: figures.md."""

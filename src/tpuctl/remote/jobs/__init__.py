"""The jobs that `tpuctl run` has left on workers: what they tell of them, what they printed, signals to them."""

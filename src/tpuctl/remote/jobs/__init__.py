"""Jobs that `tpuctl run` left on workers: their state, their output, signals to them."""

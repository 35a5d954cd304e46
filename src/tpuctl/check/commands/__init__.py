"""`tpuctl check`, and the options of the checks that `up`, `create` and `run` share."""

"""What `tpuctl doctor` looks at, gathered: this machine, the way to the cloud, a node and its workers."""

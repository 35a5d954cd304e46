"""Probes of `tpuctl doctor`: this machine, the cloud, a node and its workers."""

"""`tpuctl doctor`: find what is wrong with this machine, the credentials, the network, the project, a node and its workers.

Start reading at `command`. Probes gather facts, each of them known, absent or unknown; rules turn facts into findings. Rules
are pure: they read no file, make no request and know no clock. This room uses `check` for findings and their evaluation.
"""

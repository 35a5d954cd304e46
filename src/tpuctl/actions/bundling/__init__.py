"""`tpuctl bundle`: what support would ask for, gathered into one file, without secrets and within bounds."""

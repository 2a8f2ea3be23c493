"""The training workload: layout, memory, step and estimate."""

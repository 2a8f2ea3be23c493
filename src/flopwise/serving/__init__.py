"""The serving workload: memory, iteration and estimate."""

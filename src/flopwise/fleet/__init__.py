"""A platform's workloads together: what they take, where they run, how they are bought, what a month costs."""

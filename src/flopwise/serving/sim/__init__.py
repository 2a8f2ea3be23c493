"""Serving simulated request by request: traffic, engine steps, percentiles; integer clock, no I/O."""

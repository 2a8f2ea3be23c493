"""Serving simulated request by request: traffic, engine steps, percentiles."""

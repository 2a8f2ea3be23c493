"""Recorded runs: what they are, what they were expected to do, what was measured, and where that is kept."""

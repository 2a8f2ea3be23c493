"""Recorded runs: their settings, estimates and measurements, and the store that keeps them."""

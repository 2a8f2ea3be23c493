"""Enumerate layouts and offers, rule out what does not fit, rank what is left."""

"""Predictions compared with measurements: each row of a file, with its error and whether its interval contains it."""

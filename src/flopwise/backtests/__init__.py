"""Predictions against measurements: each row of a file predicted, with its error and whether the interval held it."""

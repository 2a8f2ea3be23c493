"""Answers on the screen: one module for each command whose picture is more than a table."""

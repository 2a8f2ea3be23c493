"""Bandwidth that training needs, and that kinds of storage deliver."""

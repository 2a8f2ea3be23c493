"""Runs while they go on: what is read of machines and jobs, what bounds them, which limits are crossed."""

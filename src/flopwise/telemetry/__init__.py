"""Monitoring of running jobs: readings of machines and jobs, diagnosis, limits and alerts."""

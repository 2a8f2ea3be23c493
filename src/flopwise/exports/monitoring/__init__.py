"""Monitoring of a deployment: measured quantities, alert rules from its plan, and actions."""

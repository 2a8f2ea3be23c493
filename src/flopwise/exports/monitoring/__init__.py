"""What is measured of a deployment, what is compared with its plan, and what is done about it."""

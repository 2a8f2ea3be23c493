"""What work takes on an accelerator: seconds, joules, dollars."""

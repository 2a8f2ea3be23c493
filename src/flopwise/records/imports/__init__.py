"""Files of other tools as runs: one module per format, and common cleaning of their values."""

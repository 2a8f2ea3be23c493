"""What a machine sustains, measured on it: products, memory, attention, transfers, messages, disk, fixed times."""

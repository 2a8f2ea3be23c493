"""Measured rates of a machine: matrix products, memory, attention, transfers, messages, disk, fixed times."""

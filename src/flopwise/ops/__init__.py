"""What must be done: a model and a shape as operations, elements and bytes; no chip is known here."""

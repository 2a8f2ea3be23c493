"""Buy or build: call an API, serve open weights, fine-tune them or train from scratch, for the same traffic."""
